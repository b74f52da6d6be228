"""Orders of operations: what is found, what is proven, and in what time.

    python benchmarks/orders.py [name ...]

12 random wirings (Watts-Strogatz graphs of 32 nodes, 4 neighbours, rewired by 0.75; 1 and 3
stages), training steps of benchmarks/models/training.py, and deep training steps of about 600 and
2,200 operations. Bytes are those of the arena and of outputs that replace no argument; "bound" is
what no order can be below. Seconds are of the processor. Results go to
benchmarks/results/orders.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

from girih.backends import find
from girih.hlo.graph import Module
from girih.imports import import_model
from girih.optimizer.measure import measure
from girih.optimizer.orders.beam import beam_order
from girih.optimizer.orders.bound import forced_live
from girih.optimizer.orders.divide import search
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import STRATEGIES, Order
from girih.optimizer.pipeline import pipeline_for, run_pipeline
from girih.optimizer.schedule import ORDER_BOUND, ORDER_PROOF
from girih.options import Options
from girih.tests.optimizer.orders.graphs import random_wiring
from models.training import TRAINING, transformer

RESULTS = Path(__file__).resolve().parent / "results"
DEEP: dict[str, Callable[[], Any]] = {
    "600 operations": lambda: transformer(layers=10, width=64, vocabulary=256),
    "2,200 operations": lambda: transformer(layers=40, width=64, vocabulary=256),
    "2,200 operations, checkpoints": lambda: transformer(
        layers=32, width=64, vocabulary=256, checkpoint=True
    ),
}


def wiring(stages: int, seed: int) -> dict[str, Any]:
    graph = random_wiring(stages, seed)
    begin = time.process_time()
    floor = forced_live(graph).bytes
    orders = [strategy(graph) for strategy in (*STRATEGIES, beam_order)]
    found = search(graph, min(orders, key=graph.peak), floor)
    seconds = time.process_time() - begin
    return {
        "name": f"wiring {seed}, {stages} stages",
        "tasks": len(graph.tasks),
        "source_bytes": graph.peak(orders[0]),
        "bytes": found.peak,
        "bound_bytes": found.bound,
        "proof": "proven" if found.peak == found.bound else f"{found.states} states",
        "seconds": seconds,
    }


def program(name: str, module: Module) -> dict[str, Any]:
    begin = time.process_time()
    ordered = Order(in_tiles=True)(module)
    seconds = time.process_time() - begin
    found = measure(ordered, in_tiles=True)
    return {
        "name": name,
        "tasks": len(module.body.ops),
        "source_bytes": measure(module, in_tiles=True).total_bytes,
        "bytes": found.total_bytes,
        "bound_bytes": ordered.attributes[ORDER_BOUND] + found.output_bytes,
        "proof": ordered.attributes[ORDER_PROOF],
        "seconds": seconds,
    }


def fused(built: Any, connected: bool) -> Module:
    """A training step as the pass takes it; not connected: more operations."""
    step, inputs = built
    options = Options(cache="off")
    passes = pipeline_for(find("cpu", options), options)
    module = run_pipeline(import_model(step, *inputs), passes.simplify)
    lower = [p for p in passes.lower if p.name not in ("order", "encode")]
    return run_pipeline(module, lower if connected else [Fuse()])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="programs, or 'wirings'; none: all")
    names = parser.parse_args().names
    rows: list[dict[str, Any]] = []
    if not names or "wirings" in names:
        rows += [wiring(stages, seed) for stages in (1, 3) for seed in range(6)]
    for name, build in {**TRAINING, **DEEP}.items():
        if not names or name in names:
            rows.append(program(name, fused(build(), connected=name in TRAINING)))
            print(name, "done", flush=True)
    table = Table(
        "program", *("tasks", "as written", "found", "bound", "gap %", "seconds", "proof")
    )
    for row in rows:
        gap = 100 * (row["bytes"] / row["bound_bytes"] - 1)
        table.add_row(
            row["name"], str(row["tasks"]), f"{row['source_bytes']:,}", f"{row['bytes']:,}",
            f"{row['bound_bytes']:,}", f"{gap:.4f}", f"{row['seconds']:.2f}", row["proof"],
        )  # fmt: skip
    Console(width=150).print(table)
    if not names:
        text = json.dumps({"orders": rows}, indent=1) + "\n"
        (RESULTS / "orders.json").write_text(text)


if __name__ == "__main__":
    main()
