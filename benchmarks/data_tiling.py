"""What packing weights at compile time gives: products of few rows, packed and unpacked.

    python benchmarks/data_tiling.py [--threads 1] [--seconds 0.8] [--save]

Both programs compute x @ weight with a constant weight; one was compiled with pack_weights=False
and reads the weight as it lies. The plan of the packed one holds the product alone: nothing is
packed in the steady state. Unpacked products of few rows stream the weight as it lies: where that
takes as long as reading it once, packing has nothing to add, and the gain is near 1. Times are
medians of calls made in turn; bandwidth counts the weight.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType

RESULTS = Path(__file__).parent / "results" / "data_tiling.json"
WEIGHTS = [(768, 3072), (3072, 768), (4096, 4096)]
ROWS = [1, 2, 4, 8, 16]
# How the weight is stored: [depth, columns], or [columns, depth] as linear layers have it.
LAYOUTS = ("depth first", "columns first")


def compiled(rows: int, weight: np.ndarray, over: int, threads: int, packed: bool) -> Any:
    """x @ weight, summed over the weight's dimension `over`."""
    numbers = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (over,),
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
    }  # fmt: skip
    kind = TensorType(weight.shape, F32)
    module = build_module(
        [TensorType((rows, weight.shape[over]), F32)],
        lambda b, x: [b("dot_general", x, b.constant(weight, kind), **numbers)],
    )
    options = girih.Options(threads=threads, pack_weights=packed)
    return girih.compile(module, options=options)


def measure(
    rows: int, weight: np.ndarray, over: int, threads: int, seconds: float
) -> dict[str, Any]:
    """One row of the table; SystemExit if a result is wrong or the packed plan packs."""
    x = np.random.default_rng(rows).standard_normal((rows, weight.shape[over])).astype(np.float32)
    programs = {name: compiled(rows, weight, over, threads, name == "packed") for name in _WAYS}
    runs = [step for step in programs["packed"].plan.steps if step.HasField("run")]
    if len(runs) != 1:
        raise SystemExit(f"{rows} rows: the packed plan runs {len(runs)} kernels, not one")
    calls = {name: program.prepare(x) for name, program in programs.items()}
    expected = x.astype(np.float64) @ (weight.T if over else weight)
    for name, call in calls.items():
        if np.abs(call() - expected).max() > 1e-4 * np.abs(expected).max():
            raise SystemExit(f"{rows} rows: the {name} product is wrong")
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    packed, unpacked = (statistics.median(times[name]) for name in _WAYS)
    return {
        "rows": rows,
        "weight": "x".join(map(str, weight.shape)),
        "layout": LAYOUTS[over],
        "threads": threads,
        "packed_us": packed * 1e6,
        "unpacked_us": unpacked * 1e6,
        "gain": unpacked / packed,
        "gigabytes_per_second": weight.nbytes / packed / 1e9,
        "kernels_per_call": len(runs),
    }


_WAYS = ("packed", "unpacked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    rows = []
    for dims in WEIGHTS:
        weight = np.random.default_rng(0).standard_normal(dims).astype(np.float32)
        for over, count in itertools.product((0, 1), ROWS):
            stored = np.ascontiguousarray(weight.T) if over else weight
            row = measure(count, stored, over, options.threads, options.seconds)
            rows.append(row)
            print(
                f"{count:3} x {row['weight']:10} {row['layout']:14} packed {row['packed_us']:8.1f} "
                f"us  unpacked {row['unpacked_us']:8.1f} us  x{row['gain']:.2f}  "
                f"{row['gigabytes_per_second']:5.1f} GB/s",
                flush=True,
            )
    if options.save:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
