"""Products of matrices beside numpy, torch and XLA, and beside what the machine can do.

    python benchmarks/matmul.py [--threads 1 2] [--seconds 0.3] [--only TEXT] [--save]

Shapes are rows x depth x columns, float32. `weight`: the right side is a constant; `inputs`: both
sides are. The limit of a shape is the larger of two times: of its flops at the rate of fused
multiply-adds on registers, and of its bytes, each counted once, at the rate at which an array of
that size is read. Both are measured in turns with all engines (turns.py), and every figure is a
median. One process per number of threads, held on as many cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from limits import Call, Limits
from turns import in_children, merged, usual_seconds

RESULTS = Path(__file__).parent / "results" / "matmul.json"
SQUARE = [(n, n, n) for n in (128, 256, 512, 1024, 2048)]
SKINNY = [(4096, 64, 1024), (64, 4096, 1024), (512, 64, 512), (128, 768, 3072), (128, 3072, 768)]
STEPS = [(1, 768, 3072), (1, 4096, 4096), (1, 768, 50257), (4, 4096, 4096), (16, 768, 3072),
         (16, 4096, 4096)]  # fmt: skip
ODD = [(127, 129, 131), (1000, 1000, 1000), (333, 777, 555), (61, 1031, 257)]
SHAPES = [*SQUARE, *SKINNY, *STEPS, *ODD]


def engines(rows: int, depth: int, columns: int, variant: str, threads: int) -> dict[str, Call]:
    """The same product by everybody."""
    import jax
    import torch

    import girih
    from girih.hlo.build import build_module
    from girih.hlo.types import F32, TensorType

    random = np.random.default_rng(0)
    x = random.standard_normal((rows, depth)).astype(np.float32)
    w = random.standard_normal((depth, columns)).astype(np.float32)
    numbers = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
    }  # fmt: skip
    left, right = TensorType(x.shape, F32), TensorType(w.shape, F32)
    options = girih.Options(threads=threads)
    torch.set_num_threads(threads)
    tx, tw = torch.tensor(x), torch.tensor(w)  # arrays of its own
    jx, jw = jax.device_put(x), jax.device_put(w)
    if variant == "weight":
        module = build_module(
            [left], lambda b, a: [b("dot_general", a, b.constant(w, right), **numbers)]
        )
        program = girih.compile(module, options=options)
        call: Call = program.prepare(x)
        compiled = jax.jit(lambda a: a @ jw).lower(jx).compile()
        xla: Call = lambda: compiled(jx).block_until_ready()  # noqa: E731
    else:
        module = build_module([left, right], lambda b, a, c: [b("dot_general", a, c, **numbers)])
        program = girih.compile(module, options=options)
        call = program.prepare(x, w)
        compiled = jax.jit(lambda a, c: a @ c).lower(jx, jw).compile()
        xla = lambda: compiled(jx, jw).block_until_ready()  # noqa: E731
    out = np.empty((rows, columns), np.float32)
    tout = torch.empty((rows, columns))
    expected = x.astype(np.float64) @ w
    error = np.abs(np.asarray(call()) - expected).max() / np.abs(expected).max()
    if not error < 1e-4:
        raise SystemExit(f"{rows}x{depth}x{columns} {variant}: wrong by {error}")

    def mm() -> Any:
        with torch.inference_mode():
            return torch.mm(tx, tw, out=tout)

    return {"girih": call, "numpy": lambda: np.matmul(x, w, out=out), "torch": mm, "xla": xla}


def measure(shape: tuple[int, int, int], variant: str, limits: Limits, seconds: float) -> Any:
    """One row of the table."""
    rows, depth, columns = shape
    flops = 2.0 * math.prod(shape)
    size = 4 * (rows * depth + depth * columns + rows * columns)
    calls = engines(rows, depth, columns, variant, limits.threads)
    peak, peak_flops = limits.arithmetic(flops / 4)
    read, read_bytes = limits.reading(size)
    calls |= {"peak": peak, "read": read}
    usual, count = usual_seconds(calls, seconds)
    rate, bandwidth = peak_flops / usual.pop("peak"), read_bytes / usual.pop("read")
    limit = max(flops / rate, size / bandwidth)
    return {
        "shape": "x".join(map(str, shape)),
        "variant": variant,
        "threads": limits.threads,
        "bound": "flops" if flops / rate >= size / bandwidth else "bytes",
        "gflops_limit": rate / 1e9,
        "read_gigabytes_per_second": bandwidth / 1e9,
        "microseconds": {name: value * 1e6 for name, value in usual.items()},
        "of_limit": limit / usual["girih"],
        "over": {name: usual[name] / usual["girih"] for name in usual if name != "girih"},
        "rounds": count,
    }


def show(row: Any) -> None:
    over = "  ".join(f"{name} x{value:.2f}" for name, value in row["over"].items())
    print(
        f"{row['shape']:>16} {row['variant']:6} {row['threads']}t "
        f"{row['microseconds']['girih']:9.1f} us  {row['of_limit']:5.0%} of {row['bound']}  {over}",
        flush=True,
    )


def child(options: argparse.Namespace) -> None:
    """Measures with the one number of threads that the environment was made for."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.child])
    limits = Limits(options.child)
    found = []
    for shape in SHAPES:
        for variant in ("weight", "inputs"):
            name = "x".join(map(str, shape)) + f" {variant}"
            if options.only not in name:
                continue
            row = measure(shape, variant, limits, options.seconds)
            found.append(row)
            show(row)
    Path(options.into).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    parser.add_argument("--save", action="store_true", help="into results/matmul.json")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--into", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    rows = in_children(__file__, options.threads)
    if options.save:
        rows = merged(rows, RESULTS, ("shape", "variant", "threads"))
    mean = math.exp(statistics.fmean(math.log(row["of_limit"]) for row in rows))
    least = min(rows, key=lambda row: row["of_limit"])
    behind = [row for row in rows if min(row["over"].values()) < 1]
    where = f"{least['shape']} {least['variant']} {least['threads']}t"
    print(f"geometric mean {mean:.1%} of the limit; least {least['of_limit']:.0%}, {where}")
    print(f"behind a peer: {len(behind)} of {len(rows)}")
    if options.save:
        rows.sort(key=lambda row: (row["threads"], row["variant"]))
        RESULTS.write_text(json.dumps({"mean_of_limit": mean, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
