"""Kernels of the kernel language for the tests of Hopper's pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import girih
import girih.language as tl
from girih.backends.nvidia import fits
from girih.backends.nvidia.assemble import Assembly, assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.launch import KernelCode
from girih.backends.nvidia.pipeline.emit import code_of, plan_of
from girih.backends.nvidia.pipeline.functions import FORMULAS
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.benchmarks.gpu.first.kernels import attention as attention
from girih.benchmarks.gpu.first.kernels import layer as layer
from girih.benchmarks.gpu.first.kernels import matmul as matmul
from girih.hlo.build import Builder, build_region, make_op
from girih.hlo.graph import Op, Value, arguments
from girih.hlo.interpret import evaluated
from girih.hlo.precision import OPERANDS, TF32
from girih.hlo.regions import rewritten
from girih.hlo.types import TensorType
from girih.optimizer.asynchronous.configuration import PipelineConfiguration
from girih.optimizer.passes.approximate import Approximate

from .. import harness

SM_90A = target("sm_90a")
# Few multiprocessors: several waves of tiles already in small problems.
SMALL = replace(SM_90A, architecture=replace(SM_90A.architecture, multiprocessors=2))
BF16 = ml_dtypes.bfloat16
F8 = ml_dtypes.float8_e4m3fn
RNG = np.random.default_rng(5)


def random(*dims: int, dtype: Any = BF16) -> np.ndarray:
    return RNG.standard_normal(dims).astype(dtype)


def call_of(kernel: Any, *arrays: Any, **constants: Any) -> Op:
    """The kernel_call that a kernel is for these arrays, under the default numerics."""
    (op,) = kernel.module(*arrays, **constants).body.ops
    return Approximate(FORMULAS).marked(op)


def fusion(left: TensorType, right: TensorType, result: TensorType, **attributes: Any) -> Op:
    """A fusion of one product."""
    region = build_region(
        (left, right), lambda b, x, y: [b("dot_general", x, y, type=result, **attributes)]
    )
    own = arguments((left, right))
    return make_op("fusion", own, {"kind": "contract"}, (region,), (result,), check=False)


def marked(op: Op) -> Op:
    """A kernel_call whose products of f32 may read tf32."""

    def change(b: Builder, inner: Op, known: dict[Value, Value]) -> bool:
        if inner.name != "dot_general":
            return False
        operands = [known.get(value, value) for value in inner.operands]
        facts = {**inner.attributes, OPERANDS: TF32}
        known[inner.result] = b.op(inner.name, operands, facts, (), inner.result_types).result
        return True

    body = rewritten(op.regions[0], {}, change)
    return Op(op.definition, op.operands, op.attributes, (body,), op.result_types, op.origin)


def planned(op: Op, on: NvidiaTarget = SM_90A) -> PipelineConfiguration:
    """How a kernel_call that fits runs."""
    found = plan_of(op, on)
    assert isinstance(found, PipelineConfiguration), found
    return found


def alone(op: Op) -> PipelineConfiguration:
    """How a fusion of one product runs, in the tile that suits the machine best."""
    found = fits.pipelined(harness.with_tilings(op, SM_90A), SM_90A)
    assert isinstance(found, PipelineConfiguration), found
    return found


def ptx_of(code: KernelCode) -> str:
    return compile_ptx(code.text, SM_90A.architecture)


def assembled(plan: PipelineConfiguration) -> tuple[str, Assembly]:
    """PTX and machine code of a configuration."""
    ptx = ptx_of(code_of(plan, SM_90A))
    return ptx, assemble(ptx, SM_90A.architecture)


def check(
    kernel: Any,
    *arrays: np.ndarray,
    on: NvidiaTarget = SM_90A,
    tolerance: float = 0.01,
    **constants: Any,
) -> PipelineConfiguration:
    """Both modes of the simulator give what the interpreter gives."""
    return check_call(call_of(kernel, *arrays, **constants), *arrays, on=on, tolerance=tolerance)


def check_call(
    op: Op, *arrays: np.ndarray, on: NvidiaTarget = SM_90A, tolerance: float = 0.01
) -> PipelineConfiguration:
    plan = planned(op, on)
    code = code_of(plan, on)
    wanted = evaluated(op, arrays)
    for mode, seed in (("eager", 1), ("lazy", 2)):
        reports: list[Any] = []
        found = harness.run(op, arrays, code=code, reports=reports, mode=mode, seed=seed)
        for got, right in zip(found, wanted, strict=True):
            compare(got, np.asarray(right), tolerance)
        assert not reports[0].faults, reports[0].faults
    return plan


def compare(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Equal within a part of the largest number."""
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def matrices(
    M: int, N: int, K: int, left: str = "mk", right: str = "kn", dtype: Any = BF16
) -> tuple[np.ndarray, np.ndarray]:
    a = random(*((M, K) if left == "mk" else (K, M)), dtype=dtype)
    return a, random(*((K, N) if right == "kn" else (N, K)), dtype=dtype)


@girih.kernel(
    out=lambda r: tl.Array(r.shape, r.dtype),
    grid=lambda r, TM, TN: (girih.cdiv(r.shape[0], TM), girih.cdiv(r.shape[1], TN)),
)
def residual(a, b, r, c, *, TM, TN):
    """A product added to what is read where the result is written."""
    i, j = tl.tile_id(0) * TM, tl.tile_id(1) * TN
    acc = tl.zeros((TM, TN))
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a[i : i + TM, k : k + 64], b[k : k + 64, j : j + TN], acc)
    before = r[i : i + TM, j : j + TN].to(tl.float32)
    c[i : i + TM, j : j + TN] = (before + tl.tanh(acc)).to(c.dtype)


@girih.kernel(
    out=lambda a, b: [
        tl.Array((a.shape[0], b.shape[1]), a.dtype),
        tl.Array(a.shape[:1], "float32"),
    ],
    grid=lambda a: (girih.cdiv(a.shape[0], 128),),
)
def gated(a, b, g, c, sums):
    """Two products of one operand, and a second result of one number a row."""
    i = tl.tile_id(0) * 128
    acc, gate = tl.zeros((128, 128)), tl.zeros((128, 128))
    for k in range(0, a.shape[1], 64):
        x = a[i : i + 128, k : k + 64]
        acc = tl.dot(x, b[k : k + 64, :], acc)
        gate = tl.dot(x, g[k : k + 64, :], gate)
    y = acc * tl.tanh(gate)
    c[i : i + 128, :] = y.to(c.dtype)
    sums[i : i + 128] = y.sum(1)
