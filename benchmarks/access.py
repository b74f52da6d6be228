"""How long boxes of a group take: `python benchmarks/access.py`.

Symbolic propagation once per group, then the footprints of 4,000 tile sizes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from girih.hlo.build import build_region
from girih.hlo.graph import Region, Value
from girih.hlo.types import F32, TensorType
from girih.optimizer.tiles.access import propagate, tiles, volume
from girih.optimizer.tiles.expressions import evaluate

SIZES = 4000
REPEATS = 30


def attention() -> Region:
    """q k^T, softmax, p v and the heads side by side."""
    kind = TensorType((1, 8, 2048, 64), F32)
    batch = {"lhs_batching_dimensions": (0, 1), "rhs_batching_dimensions": (0, 1)}

    def body(b: Any, q: Value, k: Value, v: Value) -> list[Value]:
        deep = {"lhs_contracting_dimensions": (3,), "rhs_contracting_dimensions": (3,)}
        scores = b("dot_general", q, k, **batch, **deep)
        top = b.reduce("maximum", scores, b.constant(-np.inf, TensorType((), F32)), [3])
        powers = b("exponential", b("subtract", scores, b.broadcast(top, scores.dims, (0, 1, 2))))
        total = b.reduce("add", powers, b.constant(0, TensorType((), F32)), [3])
        weights = b("divide", powers, b.broadcast(total, scores.dims, (0, 1, 2)))
        deep = {"lhs_contracting_dimensions": (3,), "rhs_contracting_dimensions": (2,)}
        heads = b.transpose(b("dot_general", weights, v, **batch, **deep), (0, 2, 1, 3))
        return [b.reshape(heads, (1, 2048, 512))]

    return build_region([kind] * 3, body)


def best(work: Callable[[], Any]) -> float:
    """The least milliseconds of several runs."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def main() -> None:
    region = attention()
    root = region.results[0]
    roots = {root: tiles(root.dims, tiled=(1, 2))}
    boxes = propagate(region.ops, roots).boxes
    generator = np.random.default_rng(0)
    values = {"s1": generator.integers(1, 2048, SIZES), "s2": generator.integers(1, 512, SIZES)}
    footprints = [volume(box) for box in boxes.values()]
    print(f"{len(region.ops)} operations, {len(boxes)} boxes")
    print(f"propagate: {best(lambda: propagate(region.ops, roots)):.2f} ms")
    print(f"{SIZES} sizes: {best(lambda: evaluate(footprints, values)):.2f} ms")


if __name__ == "__main__":
    main()
