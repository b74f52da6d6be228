"""The annotated programs on several devices beside one: the largest relative difference.

    python benchmarks/sharding_numerics.py [--devices 2,6] [ID...]

Every program of `models/annotated_*.py`, partitioned by `girih.partition` for 1, 2, 4, 6 and 8
devices and run on the interpreter, with NaN in the blocks' padding; beside it the whole program on
the interpreter: max |partitioned - whole| / max |whole| over the results. Six devices divide few of
the dims. What is explained is compared with the bytes that were counted, which have to be equal.
Results go to benchmarks/results/sharding_numerics.json. `b24`, which takes long, is run only where
it is named; a manual region is bound to its own mesh, of eight devices.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType
from rich.console import Console
from rich.table import Table

from girih import import_model, partition
from girih.hlo.distributed import interpret_parallel
from girih.hlo.interpret import interpret
from girih.hlo.ops import numerics
from girih.hlo.placement import cut, joined
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.partition.program import WHOLE
from girih.partitioning import Partitioned
from models.annotated import DEVICES, Example
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

RESULTS = Path(__file__).resolve().parent / "results" / "sharding_numerics.json"
EXAMPLES = {**NETWORKS, **OPERATIONS}
WRITTEN_FOR = 8
ALLOWED = 1e-5  # of f32

Array = np.ndarray[Any, Any]


class Ran(NamedTuple):
    """`difference`: relative; `explained`, `counted`: bytes that a device receives, the mean of
    all; `sure`: whether the program says how often its loops turn."""

    difference: float
    explained: float
    counted: float
    sure: bool

    @property
    def fine(self) -> bool:
        equal = abs(self.explained - self.counted) < 1e-3
        return self.difference <= ALLOWED and (equal or not self.sure)


def text(example: Example) -> str:
    """As JAX writes it for eight devices."""
    names, sizes = zip(*example.mesh, strict=True)
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    return example.lowered(mesh).as_text()


def parallel(parts: Partitioned, inputs: list[Array]) -> tuple[list[Array], float]:
    """The whole results, and the bytes that a device receives."""
    main, mesh = parts.local.main, parts.mesh
    taken: list[Any] = [facts[WHOLE] for facts in main.argument_attributes]
    given: list[Any] = [facts[WHOLE] for facts in main.result_attributes]
    columns = [
        cut(x, kind.sharding, mesh, np.nan if numerics.is_float(kind.dtype) else 1)
        for x, kind in zip(inputs, taken, strict=True)
    ]
    rows = [[column[device] for column in columns] for device in range(mesh.devices)]
    ran = interpret_parallel(parts.local, rows, num_partitions=mesh.devices)
    results = [
        joined([device[n] for device in ran.results], kind.sharding, mesh, kind.dims)
        for n, kind in enumerate(given)
    ]
    return results, sum(sum(counts.values()) for counts in ran.received) / mesh.devices


def difference(found: list[Array], whole: list[Array]) -> float:
    """max |found - whole| / max |whole| over the results; infinite where one has a NaN."""
    worst = 0.0
    for one, other in zip(found, whole, strict=True):
        apart = np.abs(one.astype(np.float64) - other).max(initial=0.0)
        worst = max(worst, float(apart / max(np.abs(other).max(initial=0.0), 1e-30)))
        if np.isnan(one).any():
            return float("inf")
    return worst


def run(example: Example, written: str, whole: list[Array], devices: int) -> Ran:
    parts = partition(written, mesh=example.sizes(devices) if example.portable else None)
    found, counted = parallel(parts, example.inputs())
    sure = all(row.times is not None for row in parts.communications)
    return Ran(difference(found, whole), parts.bytes, counted, sure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)))
    parser.add_argument("programs", nargs="*", metavar="ID")
    options = parser.parse_args()
    counts = [int(number) for number in options.devices.split(",")]
    names = options.programs or [name for name in EXAMPLES if name != "b24"]
    known = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    table = Table("id", *(f"{count} devices" for count in counts), title="relative difference")
    failed = []
    for name in names:
        example, began = EXAMPLES[name], time.monotonic()
        written = text(example)
        whole = interpret(Inline()(import_model(written)), example.inputs())
        cells: list[str] = []
        for count in counts:
            if not example.portable and count != WRITTEN_FOR:
                cells.append("-")
                continue
            ran = run(example, written, whole, count)
            known.setdefault(name, {})[str(count)] = ran._asdict()
            cells.append(f"{ran.difference:.1e}" + ("" if ran.fine else " !"))
            if not ran.fine:
                failed.append(f"{name} on {count}: {ran}")
        table.add_row(name, *cells)
        print(name, *cells, f"{time.monotonic() - began:.0f} s", flush=True)
    Console(width=120).print(table)
    print(*failed, sep="\n")
    fresh = RESULTS.with_suffix(".tmp")
    fresh.write_text(json.dumps({"jax": jax.__version__, "programs": known}, indent=1) + "\n")
    fresh.replace(RESULTS)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
