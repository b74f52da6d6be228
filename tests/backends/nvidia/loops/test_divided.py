"""Few long rows: several blocks divide each, always in the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.capabilities import RowParts
from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.target import target
from girih.hlo.build import build_module
from girih.hlo.types import BF16, F32, I1, TensorType
from girih.optimizer.kernels import divided_rows

from ...support import argmax, layer_norm, softmax
from .. import harness
from .support import check, emit, inputs_for, kind, operation


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that one block would take are divided too, so that tests are fast."""
    monkeypatch.setattr(divided_rows, "streamed", lambda *features: -features[3])  # more tasks win
    monkeypatch.setattr(RowParts, "least", lambda parts, width: parts.threads * width)


def launches(code: Any) -> list[str]:
    return [launch.symbol for launch in code.launches]


@pytest.mark.parametrize("element", [F32, BF16], ids=str)
@pytest.mark.parametrize("dims", [(2, 70000), (3, 66001), (1, 2, 40000)], ids=str)
def test_softmax(dims: tuple[int, ...], element: Any, short: None) -> None:
    tolerance = 8e-3 if element is BF16 else 3e-6
    types = [kind(*dims, element=element)]
    code = check(types, lambda b, x: [softmax(b, x, len(dims) - 1)], "rows", tolerance)
    assert launches(code) == ["fold0", "fold1", "roots"]
    assert all(launch.grid[0] >= 6 for launch in code.launches)


def test_the_plan_owns_the_memory_of_parts(short: None) -> None:
    module = build_module([kind(2, 70000)], lambda b, x: [softmax(b, x, 1)])
    program = girih.compile(module, target="ptx-sim", options=girih.Options(cache="off"))
    (kernel,) = program.plan.kernels
    assert kernel.scratch_bytes == program.memory.temporary_bytes > 0
    assert program.memory.scratch_bytes == 0


def test_normalisation_with_results_per_row(short: None) -> None:
    """What each row has one of is written once."""

    def body(b: Any, x: Any, scale: Any, shift: Any) -> Any:
        scalar = TensorType((), F32)
        largest = b.reduce("maximum", x, b.constant(-np.inf, scalar), (1,))
        return [layer_norm(b, x, scale, shift), largest]

    code = check([kind(2, 70001), kind(70001), kind(70001)], body, "rows", 1e-4)
    assert launches(code) == ["fold0", "fold1", "roots"]


def test_bodies_that_do_not_commute_and_truth_values(short: None) -> None:
    def body(b: Any, x: Any) -> Any:
        zero = b.constant(0, TensorType((2, 66001), F32))
        some = b.reduce("or", b.compare("GT", x, zero), b.constant(False, TensorType((), I1)), (1,))
        top, place = argmax(b, x, (1,))
        spread = b.broadcast(top, x.dims, (0,))
        return [b("subtract", x, spread), place, some]

    code = check([kind(2, 66001)], body, "rows", 1e-6)
    assert launches(code) == ["fold0", "roots"]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_bits_do_not_depend_on_the_order_of_blocks(order: int, short: None) -> None:
    op = operation([kind(2, 40000)], lambda b, x: [softmax(b, x)], "rows")
    inputs = inputs_for([kind(2, 40000)])
    (first,) = harness.run(op, inputs, seed=0)
    (again,) = harness.run(op, inputs, seed=order + 1, mode="lazy")
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("dims", "divides"),
    [((8, 1 << 20), True), ((1, 1 << 20), True), ((4, 128256), True), ((32, 1 << 20), True),
     ((8, 16384), False), ((4096, 1 << 16), False), ((64, 1 << 20), False)],
)  # fmt: skip
def test_when_rows_are_divided(dims: tuple[int, int], divides: bool) -> None:
    """Where blocks of their own would leave most of the machine's bandwidth idle, and rows are
    worth it: 40 multiprocessors reach all that memory gives."""
    op = operation([kind(*dims)], lambda b, x: [softmax(b, x)], "rows")
    code = emit(op)
    assert (len(code.launches) > 1) == divides
    if divides:
        assert all(launch.grid[0] >= 120 for launch in code.launches)


@pytest.mark.parametrize("rows", [1, 8])
def test_argmax_of_a_vocabulary(rows: int) -> None:
    code = emit(operation([kind(rows, 128256)], lambda b, x: argmax(b, x, (1,)), "reduce"))
    assert len(code.launches) == 2
    assert code.launches[0].grid[0] >= 25 * rows


@pytest.mark.requires_ptxas
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_no_spills(name: str) -> None:
    on = target(name)
    for op in (
        operation([kind(8, 1 << 20)], lambda b, x: [softmax(b, x)], "rows"),
        operation([kind(8, 1 << 20, element=BF16)], lambda b, x: [softmax(b, x)], "rows"),
        operation([kind(8, 128256)], lambda b, x: argmax(b, x, (1,)), "reduce"),
    ):
        made = assemble(compile_ptx(emit(op, on).text, on.architecture), on.architecture)
        assert made.faults() == []
