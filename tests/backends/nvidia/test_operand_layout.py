"""Operands that lie across the sum: copied along it, or stored so when they are weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia.capabilities import capabilities
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.hlo.build import Builder, build_region, make_op
from girih.hlo.graph import Function, Module, Op, Weight, arguments
from girih.hlo.precision import OPERANDS, TF32
from girih.hlo.types import BF16, F32, I8, I32, ElementType, TensorType, element_type
from girih.optimizer.kernels import operand_layout
from girih.options import Options

from . import harness
from .tile.support import values

SM_90A = target("sm_90a")
# Memory so fast that small products repay copies too.
FREE_89, FREE_90A = (harness.free(target(name)) for name in ("sm_89", "sm_90a"))
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


KINDS: dict[str, tuple[Any, Any, Any, float]] = {
    "tf32": ((F32, F32), F32, {OPERANDS: TF32}, 2e-3),
    "e4m3": ((E4M3, E4M3), F32, {}, 1e-5),
    "e4m3 e5m2": ((E4M3, E5M2), F32, {"out": BF16}, 1e-2),
    "i8": ((I8, I8), I32, {}, 0.0),
}


def emitted(op: Op, on: NvidiaTarget, instruction: str) -> harness.Emitted:
    code = harness.emitted(op, on).compiled(on)
    assert instruction in code.text
    return code


@pytest.mark.parametrize("kind", KINDS)
def test_copies_along_the_sum(kind: str) -> None:
    """wgmma and mma.sync give what the interpreter gives."""
    elements, result, facts, tolerance = KINDS[kind]
    sides = (0, 1) if kind == "e4m3" else (1, 0)
    op = product((72, 48, 64), elements, result, sides, **facts)
    inputs = values(op)
    (wanted,) = harness.expected(op, inputs)
    runs = [
        (FREE_90A, "eager", "wgmma"),
        (FREE_90A, "lazy", "wgmma"),
        (FREE_89, "lazy", "mma.sync"),
    ]
    for on, mode, instruction in runs:
        code = emitted(op, on, instruction)
        assert (len(code.launches) == 2) == (on is FREE_90A or kind != "tf32")
        reports: list[Any] = []
        (got,) = harness.run(op, inputs, code=code, on=on, mode=mode, seed=3, reports=reports)
        harness.compare(got, wanted, tolerance)
        assert not any(report.faults for report in reports)


@pytest.mark.parametrize("sizes", [(72, 45, 64), (72, 45, 99)])
@pytest.mark.parametrize("element", [BF16, E4M3])
def test_rows_that_are_not_whole(element: Any, sizes: tuple[int, int, int]) -> None:
    """Zeros behind the sum, where its length asks for them."""
    op = product(sizes, (element, element), F32)
    inputs = values(op)
    (wanted,) = harness.expected(op, inputs)
    for on, instruction in ((FREE_90A, "wgmma"), (FREE_89, "mma.sync")):
        code = emitted(op, on, instruction)
        assert len(code.launches) == (3 if sizes[2] % 16 else 2)
        (got,) = harness.run(op, inputs, code=code, on=on, mode="lazy")
        harness.compare(got, wanted, 1e-5)


def laid_along(op: Op) -> Any:
    able = capabilities(SM_90A.architecture)
    return operand_layout.laid_along(op.regions[0], SM_90A.machine, able)


def test_copies_that_cost_more_than_they_gain() -> None:
    few, many = (product((rows, 4096, 4096), (E4M3, E4M3), F32) for rows in (4, 512))
    assert laid_along(few) is None
    found = laid_along(many)
    assert found is not None and [value.dims for value in found[1]] == [(4096, 4096)]


def test_operands_of_16_bits_are_read_as_they_lie() -> None:
    op = product((128, 128, 128), (BF16, BF16), F32, (0, 0))
    assert laid_along(op) is None


def test_weights_are_stored_along_the_sum() -> None:
    """No launch copies them, and the numbers stay."""
    b = Builder()
    (x,) = b.arguments([TensorType((64, 96), I8)])
    w = b("weight", type=TensorType((96, 64), I8), weight="w")
    sums = TensorType((64, 64), I32)
    y = b("dot_general", x, w, type=sums, lhs_contracting_dimensions=(1,),
          rhs_contracting_dimensions=(0,))  # fmt: skip
    data = RNG.integers(-100, 100, (96, 64)).astype(np.int8)
    module = Module({"main": Function("main", b.region([y]))})
    module = module.with_weights({"w": Weight("w", data)})
    program = girih.compile(module, target="ptx-sim:sm_90a", options=Options(cache="off"))
    (kernel,) = program.plan.kernels
    assert len(kernel.launches) == 1 and not kernel.notes
    given = RNG.integers(-100, 100, (64, 96)).astype(np.int8)
    (found,) = program(given)
    np.testing.assert_array_equal(found, given.astype(np.int32) @ data.astype(np.int32))
