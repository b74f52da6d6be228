"""What a limit for temporaries costs: a transformer's training step at 90 to 30 % of its own.

    python benchmarks/memory_limit.py [--layers N] [--runs]

Each row: the limit, what the program allocates, floating-point operations more than without a
limit; --runs also calls it, compares all results bit for bit, and gives the ratio of the medians of
5 calls of either, in turns. With the default six layers, results go to
benchmarks/results/memory_limit.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girih
from models.training import transformer

RESULTS = Path(__file__).resolve().parent / "results"
SHARES = (90, 80, 70, 60, 50, 40, 30)


def bits(program: Any, inputs: list[np.ndarray]) -> list[bytes]:
    return [np.asarray(r).tobytes() for r in program.call_flat(inputs)]


def ratio(program: Any, free: Any, inputs: list[np.ndarray]) -> float:
    """Median of five calls of the program to that of `free`; they take turns."""
    seconds: dict[Any, list[float]] = {program: [], free: []}
    for one in (program, free) * 5:
        begin = time.perf_counter()
        one.call_flat(inputs)
        seconds[one].append(time.perf_counter() - begin)
    return statistics.median(seconds[program]) / statistics.median(seconds[free])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--runs", action="store_true")
    chosen = parser.parse_args()
    step, inputs = transformer(layers=chosen.layers)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(inputs)]
    module = girih.import_model(step, *inputs)
    free = girih.compile(module)
    flops = sum(s.run.flops for s in free.plan.steps)
    expected = bits(free, flat) if chosen.runs else []
    rows: list[dict[str, Any]] = []
    for share in SHARES:
        limit = free.memory.total_bytes - (100 - share) * free.memory.arena_bytes // 100
        begin = time.perf_counter()
        program = girih.compile(module, options=girih.Options(max_memory=limit))
        row = {
            "percent": share,
            "limit_bytes": limit,
            "allocated_bytes": program.memory.allocated_bytes,
            "more_flops_percent": 100 * (sum(s.run.flops for s in program.plan.steps) / flops - 1),
            "compile_seconds": time.perf_counter() - begin,
        }
        if chosen.runs:
            equal = bits(program, flat) == expected
            row |= {"equal_bits": equal, "time_ratio": ratio(program, free, flat)}
        rows.append(row)
        print(row, flush=True)
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=140).print(table)
    if chosen.layers == 6 and chosen.runs:
        RESULTS.joinpath("memory_limit.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
