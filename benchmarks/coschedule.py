"""Programs of many small steps beside jax.jit: products that need nothing of each other, a graph of
them, two chains, a block with branches, an LSTM that steps in a `while`, and control flow that
depends on data (`control_flow.py`).

    python benchmarks/coschedule.py [--seconds 1] [--only NAME]

Engines take turns in one process; milliseconds are medians, `least` the fastest call. `waits` are
the counters that steps look at and `barriers` the steps that wait for all before them, in the plan.
Writes benchmarks/results/coschedule.json when all were asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import control_flow
import girih
from turns import timed, warm
from zoo import machine

RESULTS = Path(__file__).resolve().parent / "results" / "coschedule.json"
_TURNS = 5
Made = tuple[Callable[..., Any], list[np.ndarray]]


def matrices(count: int, side: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((side, side)) / side**0.5).astype(np.float32) for _ in range(count)
    ]


def independent() -> Made:
    """64 products of 64 x 64 that need nothing of each other."""
    return lambda *a: [a[n] @ a[64 + n] for n in range(64)], matrices(128, 64)


def graph() -> Made:
    """32 levels of 8 products, each of two of the level before."""

    def call(*given: Any) -> Any:
        level = list(given)
        for _ in range(32):
            level = [level[n] @ level[(n + 1) % 8] for n in range(8)]
        return level

    return call, matrices(8, 64)


def unordered() -> Made:
    """As many products as `graph` has, of arguments alone."""
    return lambda *a: [a[n % 16] @ a[n // 16] for n in range(256)], matrices(16, 64)


def chain() -> Made:
    """24 products of 96 x 96, one after the other."""

    def call(x: Any, w: Any) -> Any:
        for _ in range(24):
            x = x @ w
        return x

    return call, matrices(2, 96)


def chains() -> Made:
    """Two such chains that need nothing of each other."""
    one, _ = chain()
    return lambda x, y, w: (one(x, w), one(y, w)), matrices(3, 96)


def branches(blocks: int = 6, side: int = 14, features: int = 64) -> Made:
    """Blocks of four branches of small convolutions, as in Inception."""
    import jax
    from jax import lax

    rng = np.random.default_rng(0)
    part = features // 4
    shapes = [
        (1, features), (1, features), (3, part), (1, features), (3, part), (3, part), (1, features)
    ] * blocks  # fmt: skip
    weights = [
        (rng.standard_normal((k, k, inner, part)) / (k * inner**0.5)).astype(np.float32)
        for k, inner in shapes
    ]

    def convolved(x: Any, w: Any) -> Any:
        form = ("NHWC", "HWIO", "NHWC")
        return jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=form))

    def call(x: Any, *given: Any) -> Any:
        for number in range(blocks):
            a, b, c, d, e, f, g = given[7 * number : 7 * number + 7]
            pooled = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
            parts = [
                convolved(x, a), convolved(convolved(x, b), c),
                convolved(convolved(convolved(x, d), e), f), convolved(pooled, g),
            ]  # fmt: skip
            x = jax.numpy.concatenate(parts, -1)
        return x

    return call, [rng.standard_normal((1, side, side, features)).astype(np.float32), *weights]


def lstm(steps: int = 100, width: int = 256, inside: bool = False) -> Made:
    """An LSTM of batch 1; the loop ends by its counter. inside: each turn projects its input,
    instead of reading what was projected before."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal((steps, width if inside else 4 * width)).astype(np.float32),
        (rng.standard_normal((width, 4 * width)) / 32).astype(np.float32),
        (rng.standard_normal((width, 4 * width)) / 32).astype(np.float32),
    ]

    def call(inputs: Any, w: Any, projection: Any) -> Any:
        def step(state: Any) -> Any:
            i, h, c = state
            own = lax.dynamic_slice(inputs, (i, 0), (1, inputs.shape[1]))
            gates = (own @ projection if inside else own) + h @ w
            a, f, o, g = jnp.split(gates, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(a) * jnp.tanh(g)
            return i + 1, jax.nn.sigmoid(o) * jnp.tanh(c), c

        start = jnp.int32(0), jnp.zeros((1, width)), jnp.zeros((1, width))
        return lax.while_loop(lambda state: state[0] < steps, step, start)[1:]

    return call, given


CASES = {
    "independent": independent, "graph": graph, "unordered": unordered, "chain": chain,
    "chains": chains, "branches": branches, "lstm": lstm,
    "lstm long": partial(lstm, 1000), "lstm inputs": partial(lstm, inside=True),
    "beam search": control_flow.beam_search, "newton": control_flow.newton,
    "machine": control_flow.machine, "tree": control_flow.tree,
}  # fmt: skip


def measured(name: str, seconds: float) -> dict[str, Any]:
    """The times of one program on one worker, on all, and of jax.jit; what its plan has."""
    import jax

    function, given = CASES[name]()
    jitted = jax.jit(function)
    module = girih.import_model(jitted, *given)
    cores = len(os.sched_getaffinity(0))
    engines: dict[str, Callable[[], Any]] = {}
    for label, threads in (("girih on one", 1), ("girih", cores)):
        program = girih.compile(module, options=girih.Options(threads=threads))
        engines[label] = lambda program=program: program(*given)
    engines["jax"] = lambda: jax.block_until_ready(jitted(*given))
    plan = program.plan
    acts = [getattr(step, step.WhichOneof("action")) for step in plan.steps]
    taken: dict[str, list[float]] = {label: [] for label in engines}
    for turn in range(1, _TURNS + 1):
        for label, call in engines.items():
            warm(call)
            while sum(taken[label]) < seconds * turn / _TURNS:
                taken[label].append(timed(call))
    return {
        "name": name,
        "steps": len(plan.steps),
        "barriers": sum(getattr(act, "wait", False) for act in acts),
        "waits": sum(len(getattr(act, "waits", ())) for act in acts),
        "arena_bytes": plan.memory.arena_bytes,
        **{label: statistics.median(times) * 1e3 for label, times in taken.items()},
        **{f"least {label}": min(times) * 1e3 for label, times in taken.items()},
    }


def main() -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each engine and program")
    parser.add_argument("--only", choices=CASES)
    chosen = parser.parse_args()
    rows = [measured(name, chosen.seconds) for name in ([chosen.only] if chosen.only else CASES)]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=200).print(table)
    if not chosen.only:
        report = {"machine": machine(), "rows": rows}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
