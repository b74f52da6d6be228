"""Programs whose loops end, branch and recurse as their data say: what `coschedule.py` measures and
the tests run in small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Made = tuple[Callable[..., Any], list[np.ndarray]]


def beam_search(beams: int = 4, words: int = 32768, steps: int = 64, width: int = 64) -> Made:
    """The likeliest sequences of a small recurrent model, whose states move with their beams."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    rng = np.random.default_rng(0)
    shapes = (words, width), (width, width), (width, words)
    given = [(rng.standard_normal(s) / width**0.5).astype(np.float32) for s in shapes]

    def call(embedding: Any, recurrent: Any, output: Any) -> Any:
        def step(state: Any) -> Any:
            i, tokens, scores, hidden = state
            last = tokens[:, jnp.maximum(i - 1, 0)]
            hidden = jnp.tanh(embedding[last] + hidden @ recurrent)
            logits = scores[:, None] + jax.nn.log_softmax(hidden @ output)
            scores, chosen = lax.top_k(logits.reshape(-1), beams)
            origin = chosen // words
            tokens = lax.dynamic_update_slice(
                tokens[origin], (chosen % words)[:, None].astype(jnp.int32), (0, i)
            )
            return i + 1, tokens, scores, hidden[origin]

        start = (
            jnp.int32(0), jnp.zeros((beams, steps), jnp.int32),
            jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf), jnp.zeros((beams, width)),
        )  # fmt: skip
        return lax.while_loop(lambda state: state[0] < steps, step, start)[1:3]

    return call, given


def newton(width: int = 64) -> Made:
    """Square roots of a matrix's elements, until none changes much; and in how many turns."""
    from jax import lax
    from jax import numpy as jnp

    rng = np.random.default_rng(0)

    def call(x: Any) -> Any:
        def step(state: Any) -> Any:
            i, root, _ = state
            new = 0.5 * (root + x / root)
            return i + 1, new, jnp.max(jnp.abs(new - root))

        start = jnp.int32(0), jnp.ones_like(x), jnp.float32(1)
        return lax.while_loop(lambda s: (s[2] > 1e-3) & (s[0] < 100), step, start)[:2]

    return call, [rng.uniform(1, 1000, (width, width)).astype(np.float32)]


def machine(steps: int = 200, width: int = 64) -> Made:
    """A machine that does what its program says: one of four operations in each turn, some of them
    only where the state is large."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    rng = np.random.default_rng(0)
    given = [
        rng.integers(-1, 5, steps).astype(np.int32),
        rng.standard_normal((1, width)).astype(np.float32),
        (rng.standard_normal((width, width)) / width**0.5).astype(np.float32),
    ]

    def call(codes: Any, x: Any, w: Any) -> Any:
        operations = [
            lambda x: x @ w, jnp.tanh, lambda x: jnp.roll(x, 1, 1) + 0.5,
            lambda x: lax.cond(jnp.sum(x) > 0, lambda x: x - jnp.max(x), lambda x: x * 1.5, x),
        ]  # fmt: skip

        def step(state: Any) -> Any:
            i, x = state
            return i + 1, lax.switch(codes[i], operations, x)

        state = lax.while_loop(lambda state: state[0] < steps, step, (jnp.int32(0), x))
        return state[1]

    return jax.jit(call), given


def tree(depth: int = 8, width: int = 32) -> Made:
    """What a recursive network makes of a binary tree, by a stack of what is still to be visited:
    of each inner node tanh((left + right) w), of the leaves their rows."""
    from jax import lax
    from jax import numpy as jnp

    rng = np.random.default_rng(0)
    leaves = 1 << depth
    given = [
        rng.standard_normal((leaves, width)).astype(np.float32),
        (rng.standard_normal((width, width)) / width**0.5).astype(np.float32),
    ]

    def call(rows: Any, w: Any) -> Any:
        # Nodes are numbered as in a heap. A node is visited twice: its children come in between.
        def step(state: Any) -> Any:
            size, nodes, again, values, count = state
            node, second = nodes[size - 1], again[size - 1]

            def leaf(_: Any) -> Any:
                return size - 1, nodes, again, values.at[count].set(rows[node - leaves]), count + 1

            def descend(_: Any) -> Any:
                below = lax.dynamic_update_slice(
                    nodes, jnp.stack([2 * node + 1, 2 * node]), (size,)
                )
                seen = lax.dynamic_update_slice(
                    again.at[size - 1].set(True), jnp.zeros(2, bool), (size,)
                )
                return size + 2, below, seen, values, count

            def join(_: Any) -> Any:
                both = values[count - 2] + values[count - 1]
                made = values.at[count - 2].set(jnp.tanh(both @ w))
                return size - 1, nodes, again, made, count - 1

            kind = jnp.where(node >= leaves, 0, jnp.where(second, 2, 1))
            return lax.switch(kind, [leaf, descend, join], None)

        start = (
            jnp.int32(1), jnp.zeros(2 * depth + 3, jnp.int32).at[0].set(1),
            jnp.zeros(2 * depth + 3, bool), jnp.zeros((depth + 2, width)), jnp.int32(0),
        )  # fmt: skip
        return lax.while_loop(lambda state: state[0] > 0, step, start)[3][0]

    return call, given
