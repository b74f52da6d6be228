"""CPU seconds that sharding takes on stacks of transformer layers, and how they grow.

    python benchmarks/sharding_speed.py [LAYERS...]

Training steps for eight devices, x and each layer's wq and w1 annotated: propagation, the choice of
how each operation is computed, and the program of one device; the shortest of several runs each.
Results go to benchmarks/results/sharding_speed.json.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from girih.hlo.graph import Module
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.decompose import Decompose
from girih.optimizer.sharding.choice import choose
from girih.optimizer.sharding.partition.program import partition
from girih.optimizer.sharding.propagated import propagate
from models.sharded import FULL, LAYER, TWO_BY_FOUR, layer, read, training

RESULTS = Path(__file__).resolve().parent / "results" / "sharding_speed.json"
RUNS = 3
Result = TypeVar("Result")
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


def seconds(module: Module) -> dict[str, float]:
    """CPU seconds of each stage."""
    found: dict[str, float] = {}

    def timed(stage: str, run: Callable[[], Result]) -> Result:
        gc.collect()
        start = time.process_time()
        result = run()
        found[stage] = time.process_time() - start
        return result

    propagated = timed("propagate", lambda: propagate(module))
    decided = timed("choose", lambda: choose(propagated).module)
    timed("partition", lambda: partition(decided))
    return found


def main(layers: list[int]) -> None:
    rows: list[dict[str, float]] = []
    for count in layers:
        module = Decompose()(Dce()(stack(count)))
        runs = [seconds(module) for _ in range(RUNS)]
        best = {stage: round(min(run[stage] for run in runs), 3) for stage in runs[0]}
        operations = sum(1 for _ in module.walk())
        rows.append({"layers": count, "operations": operations, **best})
        total = sum(best.values())
        growth = f", {total / _total(rows[-2]):.2f} times the one before" if len(rows) > 1 else ""
        stages = ", ".join(f"{stage} {time:.2f} s" for stage, time in best.items())
        print(f"{count} layers, {operations} operations: {stages}, all {total:.2f} s{growth}")
    record = {"devices": TWO_BY_FOUR.devices, "runs": RUNS, "stacks": rows}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


def _total(row: dict[str, float]) -> float:
    return sum(row[stage] for stage in ("propagate", "choose", "partition"))


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [9, 36, 72])
