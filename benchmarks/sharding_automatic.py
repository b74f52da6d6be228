"""`shardings="auto"` beside annotations: bytes, cost, proven bound, seconds.

    python benchmarks/sharding_automatic.py [ID...]

Each program of `models/annotated_*.py` loses its annotations; shardings are found for the memory
that a device needs with them, by the estimate of `optimizer/sharding/memory.py`. Bytes are received
per device and step; the cost counts computing and memory too; seconds are of the processor, of the
search and of the bound. Results go to benchmarks/results/sharding_automatic.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

from girih import partition
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.decompose import KEPT, Decompose
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.automatic import fill
from girih.optimizer.sharding.memory import memory_of
from girih.optimizer.sharding.propagated import propagate
from girih.partitioning import partition_module
from girih.tests.optimizer.sharding.test_automatic import bare
from models.annotated import Example
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

RESULTS = Path(__file__).resolve().parent / "results" / "sharding_automatic.json"
EXAMPLES = {**NETWORKS, **OPERATIONS}
USUAL = ("b1", "c3", "d1", "e2", "b2", "b24")
MIB = 1 << 20


def row(example: Example) -> dict[str, Any]:
    module = Inline()(example.module(8))
    annotated = partition(module)
    memory = memory_of(annotated.decided).total
    nothing = replace(bare(module), meshes=module.meshes)
    for step in (Decompose(KEPT), Dce()):
        nothing = step(nothing)
    propagated = propagate(nothing)
    began = time.process_time()
    found = fill(propagated, memory)
    between = time.process_time()
    bound = found.bound
    ended = time.process_time()
    return {
        "annotated": annotated.bytes / MIB,
        "annotated_cost": annotated.choice.price / MIB,
        "found": partition_module(found.module).bytes / MIB,
        "cost": found.price / MIB,
        "bound": bound / MIB,
        "gap": found.gap,
        "memory": memory / MIB,
        "found_memory": found.memory / MIB,
        "seconds": between - began,
        "bound_seconds": ended - between,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", choices=[[], *EXAMPLES])
    rows = {name: row(EXAMPLES[name]) for name in parser.parse_args().ids or USUAL}
    table = Table("id", title='shardings="auto"')
    for key in next(iter(rows.values())):
        table.add_column(key, justify="right")
    for name, found in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in found.values()))
    Console(width=150).print(table)
    RESULTS.write_text(json.dumps({"programs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
