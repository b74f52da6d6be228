"""Seconds that propagation takes on stacks of transformer layers, and how they grow.

python benchmarks/sharding_speed.py [LAYERS...]
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

from models.sharded import FULL, LAYER, layer, read, training

from girih.hlo.graph import Module
from girih.optimizer.sharding.propagated import propagate

WEIGHTS = [name for name in LAYER if name != "x"]


def stack(layers: int) -> Module:
    """A training step of that many layers; x and each layer's wq and w1 are annotated."""

    def forward(p: Any) -> Any:
        x = p["x"]
        for number in range(layers):
            x = layer({"x": x, **{name: p[f"{name}_{number}"] for name in WEIGHTS}})
        return x

    shapes = {f"{name}_{n}": LAYER[name] for n in range(layers) for name in WEIGHTS}
    said = {f"{name}_{n}": FULL[name] for n in range(layers) for name in ("wq", "w1")}
    return read(training(forward), {"x": LAYER["x"], **shapes}, {"x": FULL["x"], **said})


def main(layers: list[int]) -> None:
    before = 0.0
    for count in layers:
        module = stack(count)
        best = float("inf")
        for _ in range(3):
            gc.collect()
            start = time.process_time()
            propagate(module)
            best = min(best, time.process_time() - start)
        operations = sum(1 for _ in module.walk())
        growth = f", {best / before:.2f} times the one before" if before else ""
        print(f"{count} layers, {operations} operations: {best:.2f} s of CPU time{growth}")
        before = best


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [36, 72])
