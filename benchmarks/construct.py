"""How well the cost model ranks: predicted against measured times of many tile sizes.

    python benchmarks/construct.py [--only NAME] [--configurations 100] [--typical] [--json]

Every case is one kernel on one core. Construct ranks all its configurations; then the ten best and
random others are compiled and timed (the smallest of a few runs). Printed per case: how many
configurations there are and how long ranking took; Spearman's correlation of predicted and measured
time; the speed of the first choice and of the best of ten, as a part of the best that was measured.
--typical ranks with the typical machine of the feature level instead of this one as calibrated.
"""

from __future__ import annotations

import os

# Peers are compared on one thread; their libraries read this when they are loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from girih.backends.cpu import codegen, contract, image, machines
from girih.backends.cpu.calibrate import calibrate
from girih.backends.cpu.contract import choose
from girih.backends.cpu.contract.blocking import blocking_of as product_blocking
from girih.backends.cpu.loops import blocking, loop, reduce, rows
from girih.backends.llvm.target import KernelCode
from girih.hlo.build import build_module, make_op
from girih.hlo.graph import Region, arguments
from girih.hlo.types import F32, TensorType
from girih.optimizer.cost.construct import TilingProblem, ranked
from girih.optimizer.machine import Machine
from girih.runtime.devices.cpu import map_image

TARGET = codegen.host_target("avx512" if codegen.host_target().vector_bits == 512 else None)
BEST = 10
Emit = Callable[[Any], KernelCode]


@dataclass
class Case:
    """A kernel whose configurations are compared. `emit` makes the code of one."""

    name: str
    kind: str
    problem: TilingProblem
    emit: Emit
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    work: float  # flops, or bytes


def product(name: str, m: int, n: int, k: int) -> Case:
    kinds = [TensorType((m, k), F32), TensorType((k, n), F32)]
    empty: tuple[int, ...] = ()
    op = make_op(
        "dot_general", arguments(kinds),
        {
            "lhs_batching_dimensions": empty, "rhs_batching_dimensions": empty,
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        },
    )  # fmt: skip
    shape = contract.shape_of(op, TARGET)
    assert shape is not None, f"{name} has no blocking"
    inputs = [_random(kind.dims) for kind in kinds]
    return Case(
        name, "product", choose.ProductProblem(shape),
        lambda row: contract.emit(op, TARGET, product_blocking(row)),
        inputs, [np.zeros((m, n), np.float32)], 2.0 * m * n * k,
    )  # fmt: skip


def looped(name: str, kind: str, dims: tuple[int, ...], formula: Callable[..., Any]) -> Case:
    module = build_module([TensorType(dims, F32)], lambda b, x: [formula(b, x)])
    body = module.body
    region = Region(body.arguments, body.ops, body.results)
    emitter = {"rows": rows.emit, "reduce": reduce.emit}.get(kind, loop.emit)
    result = region.results[0].tensor
    x = _random(dims)
    return Case(
        name, kind, blocking.LoopProblem(region, TARGET, kind),
        lambda row: emitter(region, TARGET, 0.0, blocking.blocking_of(row)),
        [x], [np.zeros(result.dims, np.float32)], float(x.nbytes + result.bytes),
    )  # fmt: skip


def _random(dims: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(0).random(dims, np.float32)


def cases() -> list[Callable[[], Case]]:
    return [
        lambda: product("square 512", 512, 512, 512),
        lambda: product("square 1024", 1024, 1024, 1024),
        lambda: product("skinny 16x3072x768", 16, 3072, 768),
        lambda: product("skinny 64x1024x1024", 64, 1024, 1024),
        lambda: product("deep 128x768x3072", 128, 768, 3072),
        lambda: product("conv 3136x64x576", 3136, 64, 576),
        lambda: product("conv 784x128x1152", 784, 128, 1152),
        lambda: looped("row sums 256x1000", "reduce", (256, 1000), _row_sum),
        lambda: looped("column sums 256x768", "reduce", (256, 768), _column_sum),
        lambda: looped("softmax 64x1000", "rows", (64, 1000), _softmax),
        lambda: looped("transpose 512x512", "transpose", (512, 512),
                       lambda b, x: b.transpose(x, (1, 0))),
        lambda: looped("x erf x 65536", "loop", (65536,), _erf),
    ]  # fmt: skip


def _row_sum(b: Any, x: Any) -> Any:
    return b.reduce("add", x, b.constant(0, TensorType((), F32)), (1,))


def _column_sum(b: Any, x: Any) -> Any:
    return b.reduce("add", x, b.constant(0, TensorType((), F32)), (0,))


def _softmax(b: Any, x: Any) -> Any:
    smallest = b.constant(-np.inf, TensorType((), F32))
    largest = b.reduce("maximum", x, smallest, (1,))
    grown = b("exponential", b("subtract", x, b.broadcast(largest, x.dims, (0,))))
    return b("divide", grown, b.broadcast(_row_sum(b, grown), x.dims, (0,)))


def _erf(b: Any, x: Any) -> Any:
    return b("multiply", x, b("chlo.erf", x))


class Measured:
    """A compiled configuration, and the shortest time it took."""

    def __init__(self, case: Case, code: KernelCode) -> None:
        linked = image.link([codegen.compile_object(code.ir_text, TARGET)])
        self.mapping = map_image(linked.data)
        signature = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )
        self.function = signature(self.mapping.address + linked.symbols[code.symbol])
        addresses = [array.ctypes.data for array in (*case.inputs, *case.outputs)]
        self.table = (ctypes.c_void_p * len(addresses))(*addresses)
        self.tiles, self.scratch_bytes = code.tiles, code.scratch_bytes
        self.seconds = float("inf")

    def run(self, scratch: int, seconds: float) -> None:
        """Runs for about so many seconds, at least twice after a warming run."""
        self.function(self.table, 0, self.tiles, scratch)
        end, left = time.perf_counter() + seconds, 2
        while left > 0 or time.perf_counter() < end:
            begin = time.perf_counter()
            self.function(self.table, 0, self.tiles, scratch)
            self.seconds = min(self.seconds, time.perf_counter() - begin)
            left -= 1


def measure(case: Case, machine: Machine, count: int, seconds: float = 0.02) -> dict[str, Any]:
    """Ranks all configurations, times some: what is printed of a case."""
    ranked(case.problem, machine, 1)
    begin = time.perf_counter()
    order, predicted = ranked(case.problem, machine, 1)
    constructing = time.perf_counter() - begin
    others = np.random.default_rng(1).permutation(np.arange(min(BEST, len(order)), len(order)))
    chosen = [*range(min(BEST, len(order))), *sorted(others[: max(0, count - BEST)])]
    compiled = [Measured(case, case.emit(order[i])) for i in chosen]
    scratch = np.zeros(max(one.scratch_bytes for one in compiled) + 128, np.uint8)
    place = scratch.ctypes.data + -scratch.ctypes.data % 64
    for _ in range(3):  # in turns: a disturbance does not hit one configuration alone
        for one in compiled:
            one.run(place, seconds / 3)
    taken = np.array([one.seconds for one in compiled])
    best = taken.min()
    return {
        "case": case.name,
        "class": case.kind,
        "configurations": len(order),
        "measured": len(chosen),
        "construct_ms": constructing * 1e3,
        "spearman": spearman(predicted[chosen], taken),
        "top1": float(best / taken[0]),
        "top10": float(best / taken[:BEST].min()),
        "rate": case.work / taken[0] / 1e9,
        "best_rate": case.work / best / 1e9,
    }


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """The correlation of ranks; equal values share the mean of their ranks."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    a, b = ranks(np.asarray(x)), ranks(np.asarray(y))
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def peers(size: int = 1024) -> dict[str, float]:
    """GFLOP/s of the same square product in numpy and torch on one thread."""
    x, y = _random((size, size)), _random((size, size))
    found = {"numpy": _fastest(lambda: x @ y)}
    try:
        import torch

        torch.set_num_threads(1)
        a, b = torch.from_numpy(x), torch.from_numpy(y)
        found["torch"] = _fastest(lambda: a @ b)
    except ImportError:
        pass
    return {name: 2.0 * size**3 / seconds / 1e9 for name, seconds in found.items()}


def _fastest(function: Callable[[], Any], seconds: float = 0.5) -> float:
    function()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begin)
    return best


def machine_for(typical: bool) -> Machine:
    """The typical machine, or this one; measured now if it was never calibrated."""
    if typical:
        return machines.machine_of(TARGET)
    if machines.host_file().is_file():
        return machines.read_machine(machines.host_file())
    kept = []

    def load(data: bytes) -> int:
        kept.append(map_image(data))
        return kept[-1].address

    return calibrate(TARGET, machines.host_name(), 1, load, seconds=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--typical", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = machine_for(options.typical)
    results = []
    for make in cases():
        case = make()
        if options.only not in case.name:
            continue
        row = measure(case, machine, options.configurations)
        if case.name == "square 1024":
            row["peers"] = peers()
            row["of_peak"] = row["rate"] * 1e9 / machine.unit("f32").flops
        results.append(row)
        if not options.json:
            show(row)
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for kind in dict.fromkeys(row["class"] for row in results):
        mean = np.mean([row["spearman"] for row in results if row["class"] == kind])
        print(f"Spearman {kind:10} {mean:.2f}")


def show(row: dict[str, Any]) -> None:
    unit = "GFLOP/s" if row["class"] == "product" else "GB/s"
    print(
        f"{row['case']:20} {row['configurations']:6} in {row['construct_ms']:5.1f} ms  "
        f"Spearman {row['spearman']:.2f} of {row['measured']:3}  top-1 {row['top1']:.2f} "
        f"top-10 {row['top10']:.2f}  {row['rate']:6.1f} {unit}",
        flush=True,
    )
    if "peers" in row:
        beside = ", ".join(f"{name} {rate:.0f}" for name, rate in row["peers"].items())
        print(f"{'':20} {100 * row['of_peak']:.0f} % of peak; GFLOP/s of peers: {beside}")


if __name__ == "__main__":
    main()
