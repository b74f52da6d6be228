"""How the workers behave: alone, pinned, beside torch in turns, from several threads at once, and
with one core for all.

    python benchmarks/workers.py

The program is a stack of products and functions of some milliseconds. Milliseconds are medians; the
gate is that a call beside torch takes at most 10 x as long as alone. Writes
benchmarks/results/workers.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from zoo import machine

GATE = 10.0
CALLS = 60
MATRIX = TensorType((384, 384), F32)
LAYERS = 8


def model() -> Any:
    def body(b: Any, x: Any, w: Any) -> list[Any]:
        for _ in range(LAYERS):
            product = b(
                "dot_general", x, w, lhs_contracting_dimensions=(1,),
                rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(),
                rhs_batching_dimensions=(),
            )  # fmt: skip
            x = b("tanh", product)
        return [x]

    return build_module([MATRIX, MATRIX], body)


def median(call: Callable[[], Any], between: Callable[[], Any] | None = None) -> float:
    """Milliseconds of a call; `between` runs before each, and is not counted."""
    taken = []
    for _ in range(CALLS):
        if between is not None:
            between()
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e3


def at_once(call: Callable[[], Any], count: int) -> float:
    """Milliseconds for each call where `count` Python threads call."""
    threads = [
        threading.Thread(target=lambda: [call() for _ in range(CALLS)]) for _ in range(count)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - started) / (CALLS * count) * 1e3


def main() -> int:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(MATRIX.dims).astype(np.float32) / 20 for _ in range(2))
    module = model()
    cores = len(os.sched_getaffinity(0))
    report: dict[str, Any] = {"machine": machine(), "milliseconds": {}}
    times = report["milliseconds"]

    def program(threads: int, pin: bool = False) -> Callable[[], Any]:
        compiled = girih.compile(module, options=girih.Options(threads=threads, pin=pin))
        compiled(x, w)
        return lambda: compiled(x, w)

    own, single = program(cores), program(1)
    times["one worker"] = median(single)
    times[f"{cores} workers"] = median(own)
    times[f"{cores} workers, pinned"] = median(program(cores, pin=True))
    times[f"{2 * cores} workers on {cores} cores"] = median(program(2 * cores))
    times["each call, 4 callers at once"] = at_once(own, 4)
    worst = 1.0
    try:
        import torch
    except ImportError:
        pass
    else:
        a, b = torch.from_numpy(x), torch.from_numpy(w)

        def in_torch() -> None:
            y = a
            for _ in range(LAYERS):
                y = torch.tanh(y @ b)

        in_torch()
        times["torch alone"] = median(in_torch)
        times[f"{cores} workers, in turns with torch"] = median(own, in_torch)
        times["torch, in turns with girih"] = median(in_torch, own)
        worst = times[f"{cores} workers, in turns with torch"] / times[f"{cores} workers"]
        report["slower_beside_torch"] = worst
    one = {min(os.sched_getaffinity(0))}
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), one)
    times[f"{cores} workers, one core left"] = median(own)
    times["one worker, one core left"] = median(single)
    for name, value in times.items():
        print(f"{name:34s} {value:8.2f} ms")
    results = Path(__file__).resolve().parent / "results"
    results.mkdir(exist_ok=True)
    (results / "workers.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if worst <= GATE else 1


if __name__ == "__main__":
    sys.exit(main())
