"""Kernels as the backend emits them: tile functions in Hopper's pipeline and in blocks of threads,
and every operation with the examples of its room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np

import girih
import girih.language as tl
from girih.backends.nvidia import kernels, tile
from girih.backends.nvidia.launch import KernelCode
from girih.backends.nvidia.pipeline import emit as pipeline
from girih.backends.nvidia.pipeline.functions import FORMULAS
from girih.backends.nvidia.target import NvidiaTarget
from girih.backends.plain.single import LIMITATIONS
from girih.hlo.build import build_region, make_op
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Function, Module, Op, Region, arguments
from girih.hlo.interpret import evaluated, interpret
from girih.hlo.ops import DEFINITIONS
from girih.hlo.types import TensorType, tensor_of
from girih.optimizer.asynchronous.configuration import PipelineConfiguration
from girih.optimizer.passes.approximate import Approximate

from .trial import Array, Trial

BF16 = ml_dtypes.bfloat16
CASES = 6  # of each operation
Trials = Callable[[NvidiaTarget], Iterator[tuple[str, Trial]]]


@girih.kernel(
    out=lambda M, N, OUT: tl.Array((M, N), OUT),
    grid=lambda M, N, TM, TN: (girih.cdiv(M, TM), girih.cdiv(N, TN)),
)
def matmul(a, b, c, *, M, N, K, TM, TN, TK, left="mk", right="kn", OUT="bfloat16"):
    i, j = tl.tile_id(0) * TM, tl.tile_id(1) * TN
    acc = tl.zeros((TM, TN))
    for k in range(0, K, TK):
        x = a[i : i + TM, k : k + TK] if left == "mk" else a[k : k + TK, i : i + TM].T
        y = b[k : k + TK, j : j + TN] if right == "kn" else b[j : j + TN, k : k + TK].T
        acc = tl.dot(x, y, acc)
    c[i : i + TM, j : j + TN] = acc.to(c.dtype)


@girih.kernel(
    out=lambda q: tl.Array(q.shape, q.dtype),
    grid=lambda q, TQ: (q.shape[0], girih.cdiv(q.shape[1], TQ)),
)
def attention(q, k, v, o, *, causal=False, TQ=128, TK=128):
    h, i = tl.tile_id(0), tl.tile_id(1) * TQ
    D, S = q.shape[2], k.shape[1]
    top, total, acc = tl.full((TQ,), -1e30), tl.zeros((TQ,)), tl.zeros((TQ, D))
    mine = q[h, i : i + TQ, :]
    for n in range(0, tl.minimum(i + TQ, S) if causal else S, TK):
        s = tl.dot(mine, k[h, n : n + TK, :].T) * (D**-0.5)
        column = (n + tl.arange(TK))[None, :]
        if S % TK:
            s = tl.where(column < S, s, -1e30)
        if causal:
            s = tl.where((i + tl.arange(TQ))[:, None] >= column, s, -1e30)
        larger = tl.maximum(top, s.max(1))
        p = tl.exp(s - larger[:, None])
        shrink = tl.exp(top - larger)
        total = total * shrink + p.sum(1)
        acc = tl.dot(p.to(q.dtype), v[h, n : n + TK, :], acc * shrink[:, None])
        top = larger
    o[h, i : i + TQ, :] = (acc / total[:, None]).to(o.dtype)


@girih.kernel(
    out=lambda a, b: tl.Array((a.shape[0], a.shape[1], b.shape[2]), a.dtype),
    grid=lambda a, b: (a.shape[0], girih.cdiv(a.shape[1], 128), girih.cdiv(b.shape[2], 128)),
)
def layer(a, b, bias, residual, c):
    """Batches, and what follows a product: a bias, an activation, a sum."""
    n, i, j = tl.tile_id(0), tl.tile_id(1) * 128, tl.tile_id(2) * 128
    acc = tl.zeros((128, 128))
    for k in range(0, a.shape[2], 64):
        acc = tl.dot(a[n, i : i + 128, k : k + 64], b[n, k : k + 64, j : j + 128], acc)
    y = acc + bias[j : j + 128].to(tl.float32)[None, :]
    y = y * tl.sigmoid(y) + residual[n, i : i + 128, j : j + 128].to(tl.float32)
    c[n, i : i + 128, j : j + 128] = y.to(c.dtype)


def random(*dims: int, dtype: Any = BF16) -> Array:
    return np.random.default_rng(sum(dims)).standard_normal(dims).astype(dtype)


def call(kernel: Any, arrays: list[Array], constants: dict[str, Any]) -> Op:
    (op,) = kernel.module(*arrays, **constants).body.ops
    return Approximate(FORMULAS).marked(op)


def pipelined(op: Op, target: NvidiaTarget) -> KernelCode:
    """The code of a kernel_call in Hopper's pipeline, which it fits."""
    plan = pipeline.plan_of(op, target)
    assert isinstance(plan, PipelineConfiguration), plan
    return pipeline.code_of(plan, target)


def tiled(
    emit: Callable[[Op, NvidiaTarget], Any],
    kernel: Any,
    arrays: list[Array],
    constants: dict[str, Any],
    few: bool,
    target: NvidiaTarget,
) -> Iterator[tuple[str, Trial]]:
    """`few`: as if there were two multiprocessors, so that blocks walk several tiles, in clusters
    where they share windows."""
    if few:
        target = replace(target, architecture=replace(target.architecture, multiprocessors=2))
    op = call(kernel, arrays, constants)
    yield "", Trial(emit(op, target), arrays, [*map(np.asarray, evaluated(op, arrays))], 0.02)


# (M, N, K), tile, and what else is different.
MATMULS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], dict[str, Any]]] = {
    "128x256x64": ((256, 256, 256), (128, 256, 64), {}),
    "tails": ((200, 328, 200), (128, 256, 64), {}),
    "left transposed": ((256, 128, 128), (128, 128, 64), {"left": "km"}),
    "right transposed": ((128, 256, 128), (128, 128, 64), {"right": "nk"}),
    "both transposed": ((136, 264, 136), (128, 128, 64), {"left": "km", "right": "nk"}),
    "64 bytes a row": ((128, 128, 96), (128, 128, 32), {"right": "nk"}),
    "32 bytes a row": ((128, 64, 48), (128, 64, 16), {"right": "nk"}),
    "256 bytes a row": ((128, 128, 256), (128, 128, 128), {}),
    "one warp group": ((64, 256, 128), (64, 256, 64), {}),
    "three warp groups": ((192, 128, 128), (192, 128, 64), {}),
    "rows on the right": ((16, 256, 128), (16, 128, 64), {"right": "nk"}),
    "stored directly": ((128, 100, 128), (128, 128, 64), {"right": "nk"}),
    "f32 results": ((128, 128, 128), (128, 128, 64), {"OUT": "float32"}),
}


def _matmul(name: str, dtype: Any = BF16) -> tuple[list[Array], dict[str, Any]]:
    (M, N, K), (TM, TN, TK), more = MATMULS[name]
    a = random(*((K, M) if more.get("left") == "km" else (M, K)), dtype=dtype)
    b = random(*((N, K) if more.get("right") == "nk" else (K, N)), dtype=dtype)
    return [a, b], {"M": M, "N": N, "K": K, "TM": TM, "TN": TN, "TK": TK, **more}


def pipelines() -> Iterator[tuple[str, Trials]]:
    """Kernels of roles: one warp group copies, the others multiply."""
    for name in MATMULS:
        yield f"pipeline: {name}", partial(tiled, pipelined, matmul, *_matmul(name), False)
    large = {"M": 512, "N": 512, "K": 320, "TM": 128, "TN": 128, "TK": 64}
    sides = [random(512, 320), random(320, 512)]
    yield "pipeline: clusters", partial(tiled, pipelined, matmul, sides, large, True)
    halves = [array.astype(np.float16) for array in sides]
    large = {**large, "OUT": "float16"}
    yield "pipeline: f16", partial(tiled, pipelined, matmul, halves, large, False)
    eight = ml_dtypes.float8_e4m3fn
    narrow = [random(128, 512, dtype=eight), random(128, 512, dtype=eight)]
    sizes = {"M": 128, "N": 128, "K": 512, "TM": 128, "TN": 128, "TK": 128, "right": "nk"}
    sizes["OUT"] = "float32"
    yield "pipeline: fp8", partial(tiled, pipelined, matmul, narrow, sizes, False)
    arrays = [random(2, 200, 192), random(2, 192, 136), random(136), random(2, 200, 136)]
    yield "pipeline: epilogue", partial(tiled, pipelined, layer, arrays, {}, False)
    for keys, width, options in (
        (256, 64, {}), (256, 128, {"causal": True}), (200, 64, {"TK": 64}), (128, 64, {}),
        (384, 64, {"TQ": 192, "TK": 96, "causal": True}), (256, 64, {"TQ": 64, "TK": 64}),
    ):  # fmt: skip
        three = [random(2, keys, width) for _ in range(3)]
        name = f"pipeline: attention {keys}x{width} {' '.join(map(str, options.values()))}".strip()
        yield name, partial(tiled, pipelined, attention, three, options, False)
    three = [random(3, 256, 64) for _ in range(3)]
    yield (
        "pipeline: attention, several heads a block",
        partial(tiled, pipelined, attention, three, {"TK": 64}, True),
    )


def blocks() -> Iterator[tuple[str, Trials]]:
    """Kernels of blocks of threads: mma.sync, ldmatrix, cp.async."""
    for name in ("128x256x64", "tails", "both transposed", "stored directly"):
        arrays, constants = _matmul(name)
        constants |= {"TM": 64, "TN": 64, "TK": 64}
        yield f"block: {name}", partial(tiled, tile.emit, matmul, arrays, constants, False)
    for dtype, out in ((np.float16, "float16"), (np.float32, "float32")):
        arrays, constants = _matmul("tails", dtype)
        constants |= {"TM": 64, "TN": 64, "TK": 32, "OUT": out}
        yield f"block: {out}", partial(tiled, tile.emit, matmul, arrays, constants, False)
    three = [random(2, 200, 64) for _ in range(3)]
    options = {"TQ": 64, "TK": 64, "causal": True}
    yield "block: attention", partial(tiled, tile.emit, attention, three, options, False)


# Operations.


def operation(definition: Any, target: NvidiaTarget) -> Iterator[tuple[str, Trial]]:
    """The first examples of an operation's room that are kernels, beside the interpreter."""
    for case in islice(definition.cases(), CASES):
        operands = arguments([tensor_of(np.asarray(x)) for x in case.inputs])
        regions = case.regions(build_region) if case.regions else ()
        op = make_op(definition.name, operands, case.attributes, regions, case.result_types)
        values = (*op.operands, *op.results)
        if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
            continue
        try:
            code = kernels.emit(op, target)
        except UnsupportedError:
            continue
        if not code.launches:
            continue
        module = Module({"main": Function("main", Region(operands, (op,), op.results))})
        arrays = [np.asarray(x) for x in case.inputs]
        wanted = [np.asarray(x) for x in interpret(module, arrays)]
        yield case.name, Trial(code, arrays, wanted, max(case.tolerance, 1e-5))


def operations() -> Iterator[tuple[str, Trials]]:
    for definition in DEFINITIONS:
        control = definition.pattern in ("control", "source") and definition.name != "iota"
        if control or definition.name in LIMITATIONS or definition.communicates:
            continue
        yield f"operation: {definition.name}", partial(operation, definition)


def everything(target: NvidiaTarget) -> Iterator[tuple[str, Trials]]:
    """(name, maker of trials) of what the architecture can run."""
    yield from blocks()
    if target.architecture.warpgroups:
        yield from pipelines()
    yield from operations()
