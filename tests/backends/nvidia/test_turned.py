"""Operands that lie across the sum: copied along it, or stored so when they are weights."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import girih
from girih.backends.nvidia import kernels
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.target import Target, target
from girih.hlo.build import Builder, build_region, make_op
from girih.hlo.graph import Function, Module, Op, Weight, arguments
from girih.hlo.precision import OPERANDS, TF32
from girih.hlo.types import BF16, F32, I8, I32, ElementType, TensorType, element_type

from . import harness

SM_89, SM_90A = target("sm_89"), target("sm_90a")
E4M3, E5M2 = element_type("f8E4M3FN"), element_type("f8E5M2")
RNG = np.random.default_rng(2)


def product(
    sizes: tuple[int, int, int],
    elements: tuple[ElementType, ElementType],
    result: ElementType,
    sides: tuple[int, int] = (1, 0),
    out: ElementType | None = None,
    **facts: Any,
) -> Op:
    """A fusion of [M, K] x [K, N], the summed dims at `sides`, converted to `out`."""
    m, n, k = sizes
    left = TensorType((m, k) if sides[0] else (k, m), elements[0])
    right = TensorType((n, k) if sides[1] else (k, n), elements[1])

    def body(b: Any, x: Any, y: Any) -> list[Any]:
        total = b(
            "dot_general", x, y, type=TensorType((m, n), result),
            lhs_contracting_dimensions=sides[:1], rhs_contracting_dimensions=sides[1:], **facts,
        )  # fmt: skip
        return [b.convert(total, out) if out else total]

    region = build_region([left, right], body)
    kind = {"kind": "contract"}
    own = arguments([left, right])
    return make_op("fusion", own, kind, (region,), region.result_types, check=False)


def values(op: Op) -> list[np.ndarray]:
    found = []
    for value in op.operands:
        if value.element.is_float:
            array = RNG.standard_normal(value.dims)
        else:
            array = RNG.integers(-100, 100, value.dims)
        found.append(array.astype(value.tensor.dtype))
    return found


KINDS: dict[str, tuple[Any, Any, Any, float]] = {
    "tf32": ((F32, F32), F32, {OPERANDS: TF32}, 2e-3),
    "e4m3": ((E4M3, E4M3), F32, {}, 1e-5),
    "e4m3 e5m2": ((E4M3, E5M2), F32, {"out": BF16}, 1e-2),
    "i8": ((I8, I8), I32, {}, 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sides", [(1, 0), (0, 1), (0, 0)])
def test_both_sides(kind: str, sides: tuple[int, int]) -> None:
    """Both modes of the simulator give what the interpreter gives, by wgmma and by mma.sync."""
    elements, result, facts, tolerance = KINDS[kind]
    op = product((144, 160, 208), elements, result, sides, **facts)
    inputs = values(op)
    (wanted,) = harness.expected(op, inputs)
    for on, mode in ((SM_90A, "eager"), (SM_90A, "lazy"), (SM_89, "lazy")):
        code = kernels.emit(op, on)
        reports: list[Any] = []
        (got,) = harness.run(op, inputs, code=code, on=on, mode=mode, seed=3, reports=reports)
        harness.compare(got, wanted, tolerance)
        assert not any(report.faults for report in reports)
    ptx = compile_ptx(kernels.emit(op, SM_90A).text, SM_90A.architecture)
    assert "wgmma.mma_async" in ptx
    ptx = compile_ptx(kernels.emit(op, SM_89).text, SM_89.architecture)
    assert "mma.sync" in ptx
