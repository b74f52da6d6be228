"""Kernels that users write, beside the machine's limits and numpy and torch.

    python benchmarks/kernel_language.py [--threads 2] [--repeats 30] [--json PATH]

tri-1: a matrix product of at most 25 lines, its tile sizes left open, in GF/s: at least 70 % of the
calibrated peak, and not slower than numpy. tri-2: a softmax of rows in one kernel, in GB/s (the
array read once and written once): at least 80 % of the calibrated bandwidth of the level that holds
the array twice. tri-5: the interpreter gives what the compiled kernel gives, and sees the races and
gaps of broken kernels. call: what a call of a kernel costs beside that of its program.

Needs `girih machine --calibrate` once. Times are medians, the competitors' taken in turn with
girih's. With fewer threads than cores numpy needs OPENBLAS_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import girih
import girih.language as tl
from girih.backends.cpu.machines import find
from turns import in_turns, keep_heap
from zoo import machine as where


@girih.kernel(
    out=lambda a, b: tl.Array((a.shape[0], b.shape[1]), a.dtype),
    grid=lambda c, TM, TN: (girih.cdiv(c.shape[0], TM), girih.cdiv(c.shape[1], TN)),
    reference=lambda a, b: a @ b,
)
def matmul(a, b, c, *, TM=girih.auto, TN=girih.auto, TK=girih.auto):
    i, j = tl.tile_id(0) * TM, tl.tile_id(1) * TN
    acc = tl.zeros((TM, TN))
    for k in range(0, a.shape[1], TK):
        acc = tl.dot(a[i : i + TM, k : k + TK], b[k : k + TK, j : j + TN], acc)
    c[i : i + TM, j : j + TN] = acc


@girih.kernel(out=lambda x: x, grid=lambda x, ROWS: girih.cdiv(x.shape[0], ROWS))
def softmax(x, out, *, ROWS=8):
    i = tl.tile_id(0) * ROWS
    rows = x[i : i + ROWS, :]
    powers = tl.exp(rows - rows.max(axis=1, keepdims=True))
    out[i : i + ROWS, :] = powers * (1 / powers.sum(axis=1, keepdims=True))


@girih.kernel(out=lambda x: x, grid=lambda x, T: girih.cdiv(x.size, T))
def shifted(x, out, *, T=100, STEP=100):
    i = tl.tile_id(0) * STEP
    out[i : i + T] = x[i : i + T] * 2.0


def together(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median seconds of each, all of them in turns."""
    taken = in_turns(runs, max(2, repeats // 3), 3)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def product(size: int, threads: int, repeats: int) -> dict[str, Any]:
    """tri-1 for one size."""
    random = np.random.default_rng(size)
    a, b = (random.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    program = matmul.program(a, b, options=girih.Options(threads=threads))
    error = np.abs(program(a, b)[0] - a @ b).max() / np.abs(a @ b).max()
    tensors = torch.from_numpy(a), torch.from_numpy(b)
    best = together(
        {
            "girih": lambda: program(a, b),
            "numpy": lambda: a @ b,
            "torch": lambda: tensors[0] @ tensors[1],
        },
        repeats,
    )
    host = find("host")
    assert host is not None
    rates = {name: 2 * size**3 / seconds / 1e9 for name, seconds in best.items()}
    peak = host.unit("f32").flops * threads / 1e9
    return {
        "size": size,
        "tiles": matmul.sizes(a, b),
        "gflops": rates,
        "of_peak": rates["girih"] / peak,
        "error": float(error),
    }


def rows(shape: Sequence[int], threads: int, repeats: int) -> dict[str, Any]:
    """tri-2 for one shape."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    program = softmax.program(x, options=girih.Options(threads=threads))
    tensor = torch.from_numpy(x)
    wanted = torch.softmax(tensor, -1).numpy()
    best = together(
        {
            "girih": lambda: program(x),
            "torch": lambda: torch.softmax(tensor, -1),
            "copy": lambda: tensor.clone(),
        },
        repeats,
    )
    host = find("host")
    assert host is not None
    rates = {name: 2 * x.nbytes / seconds / 1e9 for name, seconds in best.items()}
    level = next(
        level for level in host.levels if 2 * x.nbytes <= level.capacity or level is host.levels[-1]
    )
    bandwidth = level.rate(threads, "copy") * threads / 1e9
    return {
        "shape": list(shape),
        "gigabytes_per_second": rates,
        "level": level.name,
        "bandwidth": bandwidth,
        "of_bandwidth": rates["girih"] / bandwidth,
        "error": float(np.abs(program(x)[0] - wanted).max()),
    }


def call_overhead() -> dict[str, float]:
    """Microseconds of one call: of a small kernel, and of its program."""
    x = np.ones(100, np.float32)
    program = shifted.program(x)
    best = together(
        {
            "kernel": lambda: [shifted(x) for _ in range(1000)],
            "program": lambda: [program(x) for _ in range(1000)],
        },
        10,
    )
    return {name: seconds * 1e3 for name, seconds in best.items()}


def named(faults: Sequence[str]) -> list[str]:
    """The faults with this file's name alone: results say nothing of where they were taken."""
    return [fault.replace(__file__, Path(__file__).name) for fault in faults]


def interpreted() -> dict[str, Any]:
    """tri-5: equal results, and the faults that the interpreter finds."""
    random = np.random.default_rng(5)
    a, b, x = (random.standard_normal(n).astype(np.float32) for n in ((70, 50), (50, 90), 1000))
    sizes = {"TM": 32, "TN": 48, "TK": 16}
    pairs = (
        (matmul(a, b, **sizes), matmul.interpret(a, b, **sizes)),
        (softmax(a), softmax.interpret(a)),
        (shifted(x), shifted.interpret(x)),
    )
    return {
        "difference": float(max(np.abs(fast - slow).max() for fast, slow in pairs)),
        "race": named(shifted.counts(x, STEP=50).faults),
        "gap": named(shifted.counts(x, T=50).faults),
        "outside": matmul.counts(a, b, **sizes).outside,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = len(inspect.getsource(matmul.definition.function).splitlines())
    report: dict[str, Any] = {"machine": where(), "threads": options.threads, "lines": lines}
    print(f"tri-1: a matrix product of {lines} lines")
    report["tri-1"] = []
    for size in (512, 1000, 1024, 2048):
        found = product(size, options.threads, max(3, options.repeats * 512 // size))
        report["tri-1"].append(found)
        shown = "  ".join(f"{name} {rate:6.0f}" for name, rate in found["gflops"].items())
        print(f"  {size:5}: {shown} GF/s, {found['of_peak']:.0%} of peak, {found['tiles']}")
    print("tri-2: softmax of rows")
    report["tri-2"] = []
    for shape in ((4096, 1024), (1024, 1024), (16384, 4096)):
        found = rows(shape, options.threads, options.repeats)
        report["tri-2"].append(found)
        shown = "  ".join(f"{n} {rate:6.1f}" for n, rate in found["gigabytes_per_second"].items())
        print(
            f"  {shape}: {shown} GB/s, {found['of_bandwidth']:.0%} of {found['level']}'s "
            f"{found['bandwidth']:.0f}"
        )
    report["tri-5"] = interpreted()
    print("tri-5:", report["tri-5"])
    report["call_microseconds"] = call_overhead()
    print("call:", {name: round(value, 1) for name, value in report["call_microseconds"].items()})
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    keep_heap()
    raise SystemExit(main())
