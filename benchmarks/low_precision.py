"""Products of bf16 and of 8-bit integers beside torch, and the zoo with bf16 products.

    python benchmarks/low_precision.py            the table of products
    python benchmarks/low_precision.py --zoo      the zoo: girih, torch and OpenVINO, all with bf16

Engines take turns in one process; a figure is the median of all turns. Writes
benchmarks/results/low-precision.json, or low-precision-zoo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Weight
from girih.hlo.types import BF16, I8, I32, TensorType
from zoo import OUT, RESULTS, geometric_mean, latencies, machine

SHAPES = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (128, 768, 768), (128, 768, 3072),
    (128, 3072, 768), (197, 768, 768), (1000, 1000, 1000), (1, 4096, 4096), (8, 4096, 4096),
)  # fmt: skip


def product(rows: int, depth: int, columns: int, element: Any, out: Any) -> Module:
    """x [rows, depth] times the transpose of a weight [columns, depth], as torch's linear."""
    b = Builder()
    (x,) = b.arguments([TensorType((rows, depth), element)])
    kind = TensorType((columns, depth), element)
    y = b(
        "dot_general", x, b("weight", type=kind, weight="w"), type=TensorType((rows, columns), out),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(1,),
    )  # fmt: skip
    module = Module({"main": Function("main", b.region([y]))})
    return module.with_weights({"w": Weight("w", numbers(columns, depth, element))})


def numbers(rows: int, columns: int, element: Any) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).standard_normal((rows, columns)) * 30
    values = values.astype(element.dtype)
    # On a line of the cache, where every framework's own tensors begin.
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    aligned = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    aligned[...] = values
    return aligned


def engines(rows: int, depth: int, columns: int, element: Any) -> dict[str, Callable[[], Any]]:
    """Calls of girih and torch on products of those elements."""
    import torch

    integers = element is I8
    program = girih.compile(product(rows, depth, columns, element, I32 if integers else BF16))
    x = numbers(rows, depth, element)
    if integers:
        a = torch.randint(-127, 127, (rows, depth), dtype=torch.int8)
        b = torch.randint(-127, 127, (depth, columns), dtype=torch.int8)
        return {"girih": lambda: program(x), "torch": lambda: torch._int_mm(a, b)}  # pyright: ignore[reportPrivateImportUsage]
    a, b = (torch.randn(n, depth, dtype=torch.bfloat16) for n in (rows, columns))
    return {"girih": lambda: program(x), "torch": lambda: torch.nn.functional.linear(a, b)}


def measure(shape: tuple[int, int, int], seconds: float) -> dict[str, Any]:
    """GFLOP/s of every engine and element type."""
    flops = 2.0 * shape[0] * shape[1] * shape[2]
    row: dict[str, Any] = {"shape": shape}
    for name, element in (("bf16", BF16), ("int8", I8)):
        calls = engines(*shape, element)
        times: dict[str, list[float]] = {key: [] for key in calls}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for key, call in calls.items():
                for _ in range(5):
                    begin = time.perf_counter()
                    call()
                    times[key].append(time.perf_counter() - begin)
        for key, taken in times.items():
            row[f"{name}_{key}"] = flops / float(np.median(taken)) / 1e9
    return row


def products(seconds: float, console: Console) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = [measure(shape, seconds) for shape in SHAPES]
    keys = [key for key in rows[0] if key != "shape"]
    table = Table(title="products, GFLOP/s")
    for heading in ("rows x depth x columns", *keys):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(" x ".join(map(str, row["shape"])), *(f"{row[key]:.0f}" for key in keys))
    console.print(table)
    for name in ("bf16", "int8"):
        mean = geometric_mean([row[f"{name}_girih"] / row[f"{name}_torch"] for row in rows])
        console.print(f"{name}: geometric mean over torch {mean:.2f}")
    return rows


def zoo_model(name: str, seconds: float) -> dict[str, Any]:
    """Milliseconds of one model's engines."""
    from engines import BF16_ENGINES, Unavailable, flat
    from models import model, relative_error

    built = model(name).build()
    expected = built.reference()
    row: dict[str, Any] = {"name": name}
    prepared = {}
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        for engine, make in BF16_ENGINES.items():
            try:
                prepared[engine] = make(built, Path(folder), name)
            except Unavailable as reason:
                row[f"{engine} unavailable"] = str(reason)
        found = flat(prepared["girih-bf16"].call())
        pairs = zip(found, expected, strict=False)
        row["error"] = max(relative_error(a, b) for a, b in pairs)
        for engine, times in latencies(prepared, seconds).items():
            row[engine] = statistics.median(times) * 1e3
    return row


def zoo_table(rows: list[dict[str, Any]], console: Console) -> None:
    from engines import BF16_ENGINES

    table = Table(title="zoo with bf16 products, milliseconds")
    for heading in ("model", *BF16_ENGINES, "error"):
        table.add_column(heading, justify="right")
    for row in rows:
        shown = (f"{row[engine]:.2f}" if engine in row else "-" for engine in BF16_ENGINES)
        table.add_row(row["name"], *shown, f"{row['error']:.1e}")
    console.print(table)
    for peer in ("torch-bf16", "openvino-bf16"):
        mean = geometric_mean([row[peer] / row["girih-bf16"] for row in rows if peer in row])
        console.print(f"geometric mean over {peer}: {mean:.2f}")


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", action="store_true", help="whole models instead of products")
    parser.add_argument("--only", metavar="NAMES", help="models, separated by commas")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    console = Console(width=120)
    if options.one:
        print("RESULT " + json.dumps(zoo_model(options.one, options.seconds)))
        return 0
    if not options.zoo:
        report = {"machine": machine(), "products": products(options.seconds, console)}
        (RESULTS / "low-precision.json").write_text(json.dumps(report, indent=1) + "\n")
        return 0
    from models import ZOO

    names = options.only.split(",") if options.only else [entry.name for entry in ZOO]
    rows = []
    for name in names:
        command = [sys.executable, __file__, "--one", name, "--seconds", str(options.seconds)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not found:
            console.print(f"[red]{name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}[/]")
            continue
        rows.append(json.loads(found[0].removeprefix("RESULT ")))
    zoo_table(rows, console)
    if not options.only:
        report = {"machine": machine(), "models": rows}
        (RESULTS / "low-precision-zoo.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
