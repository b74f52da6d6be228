"""Loop kernels beside torch's: elementwise functions, normalisations, reductions, transposes.

    python benchmarks/kernels.py [--threads 2] [--json]

Each program is one fusion. Times are the smallest of many short runs, so that other work on the
machine disturbs little; girih's contain the call's overhead (benchmarks/call_overhead.py), as
torch's do. GB/s counts what must be read and written once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType

SCALAR = TensorType((), F32)


def softmax(b: Any, x: Any) -> Any:
    rows = tuple(range(x.rank - 1))
    largest = b.reduce("maximum", x, b.constant(-np.inf, SCALAR), (x.rank - 1,))
    grown = b("exponential", b("subtract", x, b.broadcast(largest, x.dims, rows)))
    total = b.reduce("add", grown, b.constant(0, SCALAR), (x.rank - 1,))
    return b("divide", grown, b.broadcast(total, x.dims, rows))


def layer_norm(b: Any, x: Any) -> Any:
    rows, last = tuple(range(x.rank - 1)), x.rank - 1
    kept = TensorType(x.dims[:-1], F32)

    def mean(value: Any) -> Any:
        total = b.reduce("add", value, b.constant(0, SCALAR), (last,))
        return b("multiply", total, b.constant(1 / x.dims[-1], kept))

    centred = b("subtract", x, b.broadcast(mean(x), x.dims, rows))
    variance = mean(b("multiply", centred, centred))
    inverse = b("rsqrt", b("add", variance, b.constant(1e-5, kept)))
    return b("multiply", centred, b.broadcast(inverse, x.dims, rows))


def gelu(b: Any, x: Any) -> Any:
    def number(value: float) -> Any:
        return b.constant(value, x.tensor)

    inner = b("chlo.erf", b("multiply", x, number(0.5**0.5)))
    return b("multiply", b("multiply", x, number(0.5)), b("add", inner, number(1.0)))


def column_sum(b: Any, x: Any) -> Any:
    return b.reduce("add", x, b.constant(0, SCALAR), (0,))


def cases() -> list[tuple[str, tuple[int, ...], Callable[..., Any], Callable[..., Any]]]:
    """name, dims, girih's formula, torch's function."""
    import torch
    from torch.nn import functional

    wide, large = (512, 3072), (4096, 4096)
    return [
        ("add to itself", large, lambda b, x: b("add", x, x), lambda x: x + x),
        ("exp", wide, lambda b, x: b("exponential", x), torch.exp),
        ("tanh", wide, lambda b, x: b("tanh", x), torch.tanh),
        ("logistic", wide, lambda b, x: b("logistic", x), torch.sigmoid),
        ("erf", wide, lambda b, x: b("chlo.erf", x), torch.erf),
        ("gelu", wide, gelu, functional.gelu),
        ("sine", wide, lambda b, x: b("sine", x), torch.sin),
        ("softmax 128", (12, 512, 128), softmax, lambda x: torch.softmax(x, -1)),
        ("softmax 1000", (512, 1000), softmax, lambda x: torch.softmax(x, -1)),
        ("layer norm 768", (512, 768), layer_norm, lambda x: functional.layer_norm(x, (768,))),
        ("column sums", (2048, 768), column_sum, lambda x: x.sum(0)),
        ("transpose", (1024, 1024), lambda b, x: b.transpose(x, (1, 0)),
         lambda x: x.t().contiguous()),
    ]  # fmt: skip


def fastest(function: Callable[..., Any], argument: Any, seconds: float = 0.4) -> float:
    """The smallest time of function(argument), over about that many seconds."""
    function(argument)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        function(argument)
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    rows = []
    for name, dims, formula, function in cases():
        kind = TensorType(dims, F32)
        module = build_module([kind], lambda b, x, formula=formula: [formula(b, x)])
        program = girih.compile(module, options=girih.Options(threads=options.threads))
        x = torch.randn(dims)
        array = x.numpy()
        ours, theirs = fastest(program, array), fastest(function, x)
        moved = array.nbytes + module.body.results[0].tensor.bytes
        rows.append(
            {
                "case": name,
                "girih_us": ours * 1e6,
                "torch_us": theirs * 1e6,
                "ratio": theirs / ours,
                "gigabytes_per_second": moved / ours / 1e9,
            }
        )
        if not options.json:
            row = rows[-1]
            print(
                f"{name:16} girih {row['girih_us']:9.1f} us  torch {row['torch_us']:9.1f} us  "
                f"x{row['ratio']:.2f}  {row['gigabytes_per_second']:6.1f} GB/s"
            )
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
