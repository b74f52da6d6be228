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
import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from girih.backends.cpu import codegen, contract, executor, image, machines
from girih.backends.cpu.calibrate import calibrate
from girih.backends.cpu.loops import loop, reduce, rows
from girih.backends.llvm.target import KernelCode
from girih.hlo.build import build_module, build_region, make_op
from girih.hlo.graph import Module, Region, Weight, arguments
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.cost.construct import TilingProblem, ranked
from girih.optimizer.cuts import convolutions, product_prices, products
from girih.optimizer.cuts.loops import LoopProblem
from girih.optimizer.cuts.loops import blocking_of as loop_blocking
from girih.optimizer.machine import Machine
from girih.optimizer.passes.encode import Encode
from girih.optimizer.schedule import RunStep, schedule
from girih.runtime.devices.cpu import map_image

TARGET = codegen.host_target("avx512" if codegen.host_target().vector_bits == 512 else None)
BEST = 10
ROUNDS = 6  # in which each configuration is timed
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
        name, "product", product_prices.ProductProblem(shape),
        lambda row: contract.emit(op, TARGET, products.blocking_of(row)),
        inputs, [np.zeros((m, n), np.float32)], 2.0 * m * n * k,
    )  # fmt: skip


def convolution(name: str, side: int, c: int, f: int, window: int, stride: int = 1) -> Case:
    """Of an image with features innermost, by a kernel that is stored as kernels read it."""
    out, low = -(-side // stride), window // 2
    facts = {
        "window_strides": (stride,) * 2, "padding": ((low, window - 1 - low),) * 2,
        "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "window_reversal": (False, False),
        "input_batch_dimension": 0, "input_feature_dimension": 3,
        "input_spatial_dimensions": (1, 2), "kernel_input_feature_dimension": 2,
        "kernel_output_feature_dimension": 3, "kernel_spatial_dimensions": (0, 1),
        "output_batch_dimension": 0, "output_feature_dimension": 3,
        "output_spatial_dimensions": (1, 2), "feature_group_count": 1, "batch_group_count": 1,
    }  # fmt: skip
    kinds = [TensorType((1, side, side, c), F32), TensorType((window, window, c, f), F32)]
    result = TensorType((1, out, out, f), F32)
    region = build_region(kinds, lambda b, x, w: [b("convolution", x, w, type=result, **facts)])

    def body(b: Any, x: Any) -> Any:
        weight = b("weight", weight="w", type=kinds[1])
        made = make_op(
            "fusion", [x, weight], {"kind": "contract"}, (region,), [result], check=False
        )
        b.ops.append(made)
        return [made.result]

    functions = build_module(kinds[:1], body).functions
    module = Module(functions, weights={"w": Weight("w", _random(kinds[1].dims))})
    module = Encode(lambda op: contract.packing_for(op, TARGET))(module)
    steps = schedule(module)
    (op,) = (step.op for step in steps.steps if isinstance(step, RunStep))
    shape = contract.windows_of(op, TARGET)
    assert shape is not None, f"{name} has no blocking"
    (weight,) = module.weights.values()
    return Case(
        name, "convolution", convolutions.ConvolutionProblem(shape),
        lambda row: contract.emit(op, TARGET, convolutions.cut_of(row)),
        [_random(kinds[0].dims), np.ascontiguousarray(weight.array)],
        [np.zeros(result.dims, np.float32)], 2.0 * out * out * f * c * window**2,
    )  # fmt: skip


def looped(
    name: str, kind: str, room: Any, formula: Callable[..., Any], *inputs: np.ndarray
) -> Case:
    kinds = [TensorType(x.shape, I32 if x.dtype == np.int32 else F32) for x in inputs]
    module = build_module(kinds, lambda b, *values: [formula(b, *values)])
    region = Region(module.body.arguments, module.body.ops, module.body.results)
    result = region.results[0].tensor
    return Case(
        name, kind, LoopProblem(room.shape_of(region, TARGET)),
        lambda row: room.emit(region, TARGET, 0.0, loop_blocking(row)),
        inputs, [np.zeros(result.dims, np.float32)],
        float(sum(x.nbytes for x in inputs) + result.bytes),
    )  # fmt: skip


def _random(dims: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(0).random(dims, np.float32)


PRODUCTS = {  # rows, columns, depth
    "square 512": (512, 512, 512),
    "square 1024": (1024, 1024, 1024),
    "skinny 16x3072x768": (16, 3072, 768),
    "skinny 64x1024x1024": (64, 1024, 1024),
    "deep 128x768x3072": (128, 768, 3072),
    "tall 3136x64x576": (3136, 64, 576),
    "tall 784x128x1152": (784, 128, 1152),
}
CONVOLUTIONS = {  # side of the image, features in and out, side of the window, stride
    "3x3 56x56 64 to 64": (56, 64, 64, 3, 1),
    "3x3 28x28 128 to 128": (28, 128, 128, 3, 1),
    "3x3 by 2 56x56 128 to 128": (56, 128, 128, 3, 2),
    "5x5 28x28 48 to 128": (28, 48, 128, 5, 1),
    "7x7 by 2 112x112 3 to 64": (112, 3, 64, 7, 2),
}


def cases() -> list[Callable[[], Case]]:
    return [
        *(partial(product, name, *sizes) for name, sizes in PRODUCTS.items()),
        *(partial(convolution, name, *sizes) for name, sizes in CONVOLUTIONS.items()),
        *(partial(looped, name, kind, room, formula, *inputs)
          for kind, found in loops().items() for name, room, formula, *inputs in found),
    ]  # fmt: skip


def loops() -> dict[str, list[tuple[Any, ...]]]:
    """Of each class: name, the emitter's module, what is computed, of what."""
    return {
        "row reduction": [
            ("row sums 256x1000", reduce, _row_sum, _random((256, 1000))),
            ("row sums 4096x96", reduce, _row_sum, _random((4096, 96))),
            ("softmax 64x1000", rows, _softmax, _random((64, 1000))),
            ("softmax 768x128", rows, _softmax, _random((768, 128))),
            ("centred 256x768", rows, _centred, _random((256, 768))),
        ],
        "column reduction": [
            ("column sums 256x768", reduce, _column_sum, _random((256, 768))),
            ("column sums 4096x64", reduce, _column_sum, _random((4096, 64))),
            ("pool 16x49x512", reduce, _pool, _random((16, 49, 512))),
        ],
        "elementwise": [
            ("x erf x 65536", loop, _erf, _random((65536,))),
            ("x + y 197x768", loop, _add, _random((197, 768)), _random((197, 768))),
            ("bias and relu 197x3072", loop, _bias, _random((197, 3072)), _random((3072,))),
            ("silu 12x100x60", loop, _silu, _random((12, 100, 60))),
        ],
        "transpose": [
            ("transpose 512x512", loop, _swap, _random((512, 512))),
            ("transpose 197x768", loop, _swap, _random((197, 768))),
            ("transpose 12x128x64", loop, _swap_last, _random((12, 128, 64))),
        ],
        "gather": [
            ("rows of 30000x256", loop, _take, _random((30000, 256)), _places(30000, 512)),
            ("rows of 4096x8", loop, _take, _random((4096, 8)), _places(4096, 8192)),
            ("elements of 32768", loop, _take, _random((32768,)), _places(32768, 65536)),
        ],
    }


def _places(size: int, count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size, (count, 1), np.int32)


def _row_sum(b: Any, x: Any) -> Any:
    return b.reduce("add", x, b.constant(0, TensorType((), F32)), (x.rank - 1,))


def _column_sum(b: Any, x: Any) -> Any:
    return b.reduce("add", x, b.constant(0, TensorType((), F32)), (0,))


def _pool(b: Any, x: Any) -> Any:
    return b.reduce("add", x, b.constant(0, TensorType((), F32)), (1,))


def _softmax(b: Any, x: Any) -> Any:
    smallest = b.constant(-np.inf, TensorType((), F32))
    largest = b.reduce("maximum", x, smallest, (1,))
    grown = b("exponential", b("subtract", x, b.broadcast(largest, x.dims, (0,))))
    return b("divide", grown, b.broadcast(_row_sum(b, grown), x.dims, (0,)))


def _centred(b: Any, x: Any) -> Any:
    """What layer normalisation computes of a row."""
    count = b.constant(1 / x.dims[1], TensorType(x.dims[:1], F32))
    mean = b("multiply", _row_sum(b, x), count)
    centred = b("subtract", x, b.broadcast(mean, x.dims, (0,)))
    variance = b("multiply", _row_sum(b, b("multiply", centred, centred)), count)
    return b("multiply", centred, b.broadcast(b("rsqrt", variance), x.dims, (0,)))


def _erf(b: Any, x: Any) -> Any:
    return b("multiply", x, b("chlo.erf", x))


def _add(b: Any, x: Any, y: Any) -> Any:
    return b("add", x, y)


def _bias(b: Any, x: Any, y: Any) -> Any:
    moved = b("add", x, b.broadcast(y, x.dims, (1,)))
    return b("maximum", moved, b.constant(0, TensorType(x.dims, F32)))


def _silu(b: Any, x: Any) -> Any:
    return b("multiply", x, b("logistic", x))


def _swap(b: Any, x: Any) -> Any:
    return b.transpose(x, (1, 0))


def _swap_last(b: Any, x: Any) -> Any:
    return b.transpose(x, (0, 2, 1))


def _take(b: Any, x: Any, places: Any) -> Any:
    """x[places], of its first dim."""
    others = x.dims[1:]
    return b(
        "gather", x, places, type=x.tensor.with_dims((places.dims[0], *others)),
        offset_dims=tuple(range(1, x.rank)), collapsed_slice_dims=(0,), start_index_map=(0,),
        index_vector_dim=1, slice_sizes=(1, *others),
    )  # fmt: skip


@functools.cache
def _copies_and_fills() -> bytes:
    """The object that has what code generators call for copies and fills."""
    return codegen.compile_object(executor.emit(TARGET), TARGET)


class Measured:
    """A compiled configuration, and the shortest time it took."""

    def __init__(self, case: Case, code: KernelCode) -> None:
        own = codegen.compile_object(code.ir_text, TARGET)
        linked = image.link([own, _copies_and_fills()])
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
    mixed = np.random.default_rng(2)
    for _ in range(ROUNDS):  # in turns: what slows the machine does not hit neighbours in rank
        for number in mixed.permutation(len(compiled)):
            compiled[number].run(place, seconds / ROUNDS)
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
    parser.add_argument("--only", default="", help="cases whose name or class contains this")
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--typical", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = machine_for(options.typical)
    results = []
    for make in cases():
        case = make()
        if options.only not in case.name and options.only not in case.kind:
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
        of = [row for row in results if row["class"] == kind]
        means = [float(np.mean([row[name] for row in of])) for name in ("spearman", "top1")]
        print(f"{kind:16} Spearman {means[0]:.2f}  top-1 {means[1]:.2f}")


def show(row: dict[str, Any]) -> None:
    unit = "GFLOP/s" if row["class"] in ("product", "convolution") else "GB/s"
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
