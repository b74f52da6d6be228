"""JAX programs with symbolic shapes: what is exported once and called at many sizes.

Each has the shapes of its arguments as `jax.export.symbolic_shape` reads them, what its variables
satisfy, and the sizes at which it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any


class OpenProgram(NamedTuple):
    """arguments: (shape, dtype, least, first beyond) of integers, (shape, dtype) of floats."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], ...]
    calls: tuple[Mapping[str, int], ...]
    constraints: tuple[str, ...] = ()
    largest: int = 40
    donated: tuple[int, ...] = ()
    tolerance: float = 2e-5

    def exported(self) -> Any:
        scope = jax.export.SymbolicScope(self.constraints)
        specs = [
            jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), dtype)
            for shape, dtype, *_ in self.arguments
        ]
        return jax.export.export(jax.jit(self.function, donate_argnums=self.donated))(*specs)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """The range of each variable."""
        return dict.fromkeys(self.calls[0], (1, self.largest))

    def inputs(self, sizes: Mapping[str, int], seed: int = 0) -> list[Array]:
        random = np.random.default_rng(seed)
        found = []
        for shape, dtype, *ends in self.arguments:
            dims = eval(f"[{shape}]", {}, dict(sizes))  # noqa: S307 - our own text
            if ends:
                first, beyond = ends
                found.append(random.integers(first, beyond, dims).astype(dtype))
            else:
                found.append(random.standard_normal(dims).astype(dtype))
        return found


F, I = np.float32, np.int32  # noqa: E741
B = ({"b": 1}, {"b": 37})
BN = ({"b": 1, "n": 1}, {"b": 3, "n": 37})


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def attention(q: Array, k: Array, v: Array) -> Array:
    n = q.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8).astype(F)
    mask = jnp.arange(n)[:, None] >= jnp.arange(n)[None, :]
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(q.shape[0], n, 16)


def mlp(x: Array, first: Array, second: Array) -> Array:
    return jax.nn.gelu(x @ first) @ second


def convolution(x: Array, w: Array) -> Array:
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y).mean((1, 2))


def pooling(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def segments(data: Array, ids: Array) -> Array:
    return jax.ops.segment_sum(data, ids, num_segments=7)


def cross_entropy(logits: Array, labels: Array) -> Array:
    picked = jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)
    return -picked.sum(-1).mean()


def training_step(w: Array, c: Array, x: Array, labels: Array) -> Array:
    def loss(w: Array, c: Array) -> Array:
        return cross_entropy(jnp.tanh(x @ w) @ c, labels)

    value, (dw, dc) = jax.value_and_grad(loss, (0, 1))(w, c)
    return w - 0.1 * dw, c - 0.1 * dc, value


def looped(x: Array) -> Array:
    def body(carry: Array) -> Array:
        i, y = carry
        return i + 1, jnp.tanh(y) + y.mean(0, keepdims=True)

    return lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1]


def scanned(x: Array, w: Array) -> Array:
    def step(h: Array, row: Array) -> Array:
        h = jnp.tanh(row @ w + h)
        return h, h.sum(-1)

    return lax.scan(step, jnp.zeros((x.shape[1], 4), F), x)


def chosen(x: Array) -> Array:
    return lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - y.mean(), x)


def windows(x: Array) -> Array:
    n = x.shape[1]
    y = jnp.pad(x, ((0, 0), (0, -n % 8)))
    return y.reshape(x.shape[0], (n + 7) // 8, 8).max(-1)


PROGRAMS = (
    OpenProgram("mlp", mlp, (("b, 8", F), ("8, 16", F), ("16, 4", F)), B),
    OpenProgram("layer_norm", layer_norm, (("b, n, 8", F), ("8", F), ("8", F)), BN),
    OpenProgram("attention", attention, (("b, n, 2, 8", F),) * 3, BN),
    OpenProgram(
        "convolution", convolution, (("b, h, w, 3", F), ("3, 3, 3, 4", F)),
        ({"b": 1, "h": 1, "w": 1}, {"b": 2, "h": 13, "w": 8}, {"b": 3, "h": 7, "w": 31}),
    ),
    OpenProgram(
        "pooling", pooling, (("b, h, w, 3", F),),
        ({"b": 1, "h": 2, "w": 3}, {"b": 2, "h": 13, "w": 8}), ("h >= 2", "w >= 2"),
    ),
    OpenProgram("mean", lambda x: (x.mean(), x.argmax(-1), x / x.shape[0]), (("b, n", F),), BN),
    OpenProgram("cumsum", lambda x: jnp.cumsum(x, 1), (("b, n", F),), BN),
    OpenProgram(
        "sorts", lambda x: (jnp.sort(x, -1), jnp.argsort(x, 0), lax.top_k(x, 3)), (("b, n", F),),
        ({"b": 1, "n": 3}, {"b": 5, "n": 17}), ("n >= 3",),
    ),
    OpenProgram("segments", segments, (("b, 3", F), ("b", I, 0, 7)), B),
    OpenProgram("take", lambda x, i: jnp.take(x, i, 0), (("n, 5", F), ("b", I, 0, 1)), BN),
    OpenProgram(
        "dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (x.shape[0] - 2, 3)),
        (("n, 3", F), ("", I, 0, 4)), ({"n": 3}, {"n": 19}), ("n >= 3",),
    ),
    OpenProgram("while", looped, (("b, n", F),), BN[1:]),
    OpenProgram("scan", scanned, (("n, 3, 5", F), ("5, 4", F)), ({"n": 1}, {"n": 13})),
    OpenProgram(
        "count", lambda x: lax.fori_loop(0, x.shape[0], lambda i, y: y + i, x), (("b, n", F),), BN
    ),
    OpenProgram("cond", chosen, (("b, n", F),), BN),
    OpenProgram(
        "einsum", lambda x, y: jnp.einsum("bij,bkj->bik", x, y), (("b, n, 5", F), ("b, m, 5", F)),
        ({"b": 1, "n": 1, "m": 1}, {"b": 3, "n": 7, "m": 11}),
    ),
    OpenProgram(
        "merge", lambda x, w: jnp.exp(x.reshape(-1, 8) @ w).reshape(x.shape[0], -1),
        (("b, n, 8", F), ("8, 3", F)), BN,
    ),
    OpenProgram(
        "concatenate", lambda x, y: jnp.concatenate([x, y, jnp.pad(x, ((1, 2), (0, 0)))], 0),
        (("b, 3", F), ("n, 3", F)), BN,
    ),
    OpenProgram("windows", windows, (("b, n", F),), BN),
    OpenProgram(
        "halves", lambda x: x.reshape(x.shape[0] // 2, 2, -1).sum(1), (("2*b, n", F),), BN
    ),
    OpenProgram(
        "eighths", lambda x: x.reshape(8, x.shape[0] // 8, 3).mean(1), (("n, 3", F),),
        ({"n": 8}, {"n": 40}), ("mod(n, 8) == 0", "n >= 8"),
    ),
    OpenProgram(
        "strided", lambda x: (x[::2], x[1:, ::-1], x[-1]), (("n, b", F),),
        ({"n": 2, "b": 1}, {"n": 13, "b": 4}), ("n >= 2",),
    ),
    OpenProgram("tril", lambda x: jnp.tril(x @ x.T), (("n, 4", F),), ({"n": 1}, {"n": 13})),
    OpenProgram("gradient", jax.grad(cross_entropy), (("b, 7", F), ("b", I, 0, 7)), B),
    OpenProgram(
        "training", training_step, (("5, 6", F), ("6, 7", F), ("b, 5", F), ("b", I, 0, 7)), B,
        donated=(0, 1),
    ),
    OpenProgram("update", lambda c, x: (c + x, c.sum()), (("b, n", F),) * 2, BN, donated=(0,)),
    OpenProgram(
        "solve", lambda a, x: jnp.linalg.solve(a @ a.mT + 4 * jnp.eye(4), x),
        (("b, 4, 4", F), ("b, 4, 2", F)), B, tolerance=1e-3,
    ),
    OpenProgram("fft", lambda x: jnp.abs(jnp.fft.rfft(x)), (("b, 16", F),), B),
)  # fmt: skip


def leaves(results: Any) -> list[Array]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]
