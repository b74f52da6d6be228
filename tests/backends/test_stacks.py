"""Kernels that write and read runs of arrays where they lie: the rest of the memory stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.cpu import codegen
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.types import BF16, I32, I64, UI8, ElementType, TensorType
from girih.optimizer.windows import UPDATE, moved_bytes, opened, updated

from .cpu.harness import Kernel
from .nvidia import harness as nvidia
from .support import compare, expected, fusion, inputs_for, kind

Body = Callable[..., Any]


def scaled(b: Any, x: Any) -> list[Any]:
    return [b("multiply", x, x)]


def two_values(b: Any, x: Any) -> list[Any]:
    square = b("multiply", x, x)
    return [square, b("add", square, x)]


def as_it_is(b: Any, x: Any) -> list[Any]:
    return [x, b("tanh", x)]


def total(b: Any, x: Any) -> list[Any]:
    zero = b.constant(0, TensorType((), x.element))
    return [b.reduce("add", x, zero, (x.rank - 1,))]


def normal(b: Any, x: Any) -> list[Any]:
    (sums,) = total(b, x)
    return [b("subtract", x, b.broadcast(sums, x.dims, tuple(range(x.rank - 1))))]


def over_rows(b: Any, x: Any) -> list[Any]:
    return [b.reduce("add", x, b.constant(0, TensorType((), x.element)), (0,))]


def stacking(
    body: Body,
    x: TensorType,
    stack: TensorType,
    update: tuple[int, ...],
    index: ElementType = I32,
    kept: bool = False,
    name: str = "loop",
    free: int = 1,
) -> Op:
    """A fusion that writes the first value of a body into a stack, as an update of those dims whose
    first `free` indices are operands; the last value is a result besides where it is `kept`."""

    def region(b: Any, x: Any, stack: Any, *starts: Any) -> list[Any]:
        first, *others = body(b, x)
        zero = [b.constant(0, TensorType((), index)) for _ in range(stack.rank - free)]
        row = b.reshape(first, update)
        written = b("dynamic_update_slice", stack, row, *starts, *zero)
        return [*([(others or [first])[-1]] if kept else []), written]

    scalars = [TensorType((), index)] * free
    return fusion(name, build_region([x, stack, *scalars], region))


def arrays(op: Op, starts: Sequence[int]) -> list[np.ndarray]:
    types = [value.tensor for value in op.operands]
    count = len(types) - len(starts)
    scalars = zip(starts, types[count:], strict=True)
    return [*inputs_for(types[:count]), *(np.array(at).astype(t.dtype) for at, t in scalars)]


def check(op: Op, starts: Sequence[int], tolerance: float = 0.0, on: str = "cpu") -> None:
    """The kernel in place gives what the interpreter gives, and writes the window alone."""
    inputs, places = arrays(op, starts), updated(op)
    assert places
    wanted = expected(op, inputs)
    if on != "cpu":
        results = nvidia.run(op, inputs, shared=[(n, r) for r, n in places.items()])
        for got, right in zip(results, wanted, strict=True):
            compare(got, right, tolerance)
        return
    kernel = Kernel(op)
    for splits in (1, 3):
        given = [array.copy() for array in inputs]
        outputs = kernel.outputs()
        for result, operand in places.items():
            outputs[result] = given[operand]
        kernel.call(given, outputs, splits)
        for got, right in zip(outputs, wanted, strict=True):
            compare(got, right, tolerance)


ROW, STACK = kind(8, 32), kind(5, 8, 32)
CASES: dict[str, tuple[Op, Sequence[int]]] = {
    "row": (stacking(scaled, ROW, STACK, (1, 8, 32)), [2]),
    "before the first": (stacking(scaled, ROW, STACK, (1, 8, 32), I64), [-(1 << 40)]),
    "behind the last": (stacking(scaled, ROW, STACK, (1, 8, 32)), [5]),
    "unsigned": (stacking(scaled, ROW, STACK, (1, 8, 32), UI8), [255]),
    "kept besides": (stacking(scaled, ROW, STACK, (1, 8, 32), kept=True), [3]),
    "beside another": (stacking(two_values, ROW, STACK, (1, 8, 32), kept=True), [3]),
    "an operand": (stacking(as_it_is, ROW, STACK, (1, 8, 32), kept=True), [3]),
    "block": (stacking(scaled, ROW, kind(40, 32), (8, 32)), [37]),
    "two indices": (stacking(scaled, kind(32), STACK, (1, 1, 32), free=2), [4, 9]),
    "odd rows": (stacking(scaled, kind(5), kind(7, 5), (1, 5)), [6]),
    "one element": (stacking(scaled, kind(), kind(7), (1,)), [3]),
    "narrow": (
        stacking(scaled, kind(8, 32, element=BF16), kind(5, 8, 32, element=BF16), (1, 8, 32)), [1],
    ),
    "rows": (stacking(normal, ROW, STACK, (1, 8, 32), name="rows"), [2]),
    "rows kept": (stacking(normal, ROW, STACK, (1, 8, 32), kept=True, name="rows"), [2]),
    "sums of rows": (stacking(total, ROW, kind(5, 8), (1, 8), name="rows"), [2]),
    "sums": (stacking(over_rows, ROW, kind(5, 32), (1, 32), name="reduce"), [2]),
    "sums, odd": (stacking(over_rows, kind(8, 5), kind(5, 5), (1, 5), name="reduce"), [4]),
}  # fmt: skip

EXACT = {name for name in CASES if "sum" not in name and "rows" not in name and "an " not in name}


@pytest.mark.parametrize("on", ["cpu", "nvidia"])
@pytest.mark.parametrize("name", CASES)
def test_a_fusion_writes_a_row_of_a_stack(name: str, on: str) -> None:
    op, starts = CASES[name]
    check(op, starts, 0.0 if name in EXACT else 1e-6, on)


def product(kept: bool, after: bool) -> Op:
    """A product with a row of one stack, added to a row of another, into a row of a third."""

    def region(b: Any, x: Any, sides: Any, others: Any, stack: Any, *starts: Any) -> list[Any]:
        zero = b.constant(0, TensorType((), I32))
        side = b("dynamic_slice", sides, starts[0], zero, zero, slice_sizes=(1, 24, 40))
        right = b.reshape(side, (24, 40))
        made = b(
            "dot_general", x, right, lhs_contracting_dimensions=(1,),
            rhs_contracting_dimensions=(0,),
        )  # fmt: skip
        if after:
            other = b("dynamic_slice", others, starts[1], zero, zero, slice_sizes=(1, 16, 40))
            made = b("tanh", b("add", made, b.reshape(other, (16, 40))))
        row = b.reshape(made, (1, 16, 40))
        written = b("dynamic_update_slice", stack, row, starts[2], zero, zero)
        return [made, written] if kept else [written]

    types = [kind(16, 24), kind(3, 24, 40), kind(4, 16, 40), kind(5, 16, 40)]
    return fusion("contract", build_region([*types, *[TensorType((), I32)] * 3], region))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_product_reads_and_writes_rows_of_stacks(kept: bool, after: bool) -> None:
    op = product(kept, after)
    reads = {0, 1, 2} if after else {0, 1}
    assert set(opened(op).windows) == {*reads - {0}, len(op.operands) + kept}
    check(op, [1, -4, 7], 1e-6)


@pytest.mark.parametrize("level", ["avx2", "baseline"])
def test_code_of_other_levels_writes_the_window_alone(level: str) -> None:
    host = codegen.host_target()
    target = codegen.level_target(level)
    if not target.runs_on(host):
        pytest.skip(f"this machine does not run {level}")
    op, starts = CASES["kept besides"]
    inputs = arrays(op, starts)
    wanted = expected(op, inputs)
    kernel = Kernel(op, target)
    outputs = [kernel.outputs()[0], inputs[1]]
    kernel.call(inputs, outputs)
    for got, right in zip(outputs, wanted, strict=True):
        compare(got, right, 0.0)


def test_the_bytes_of_a_kernel_are_those_of_its_windows() -> None:
    row = ROW.bytes
    op, _ = CASES["kept besides"]
    assert Kernel(op).code.bytes == pytest.approx(3 * row, abs=8)
    assert nvidia.emit(op, nvidia.TARGET).bytes == pytest.approx(3 * row, abs=8)
    assert moved_bytes(op) == 3 * row
    assert moved_bytes(CASES["sums of rows"][0]) == row + 32
    kept = product(kept=True, after=False)
    assert moved_bytes(kept) == 4 * (16 * 24 + 24 * 40 + 2 * 16 * 40)
    assert Kernel(kept).code.bytes == moved_bytes(kept)


def test_only_runs_of_memory_are_windows() -> None:
    """Columns lie apart, and an array that is read besides cannot be written meanwhile."""
    columns = stacking(scaled, kind(5, 8), kind(5, 32), (5, 8))
    assert not updated(columns)

    def read_too(b: Any, x: Any, stack: Any, start: Any) -> list[Any]:
        zero = b.constant(0, TensorType((), I32))
        row = b("dynamic_slice", stack, zero, zero, slice_sizes=(1, 32))
        return [b("dynamic_update_slice", stack, b("add", x, row), start, zero)]

    types = [kind(1, 32), kind(5, 32), TensorType((), I32)]
    assert not updated(fusion("loop", build_region(types, read_too)))


def test_the_element_type_of_a_start_may_be_any_integer() -> None:
    for element in (I32, I64, UI8):
        op = stacking(scaled, ROW, STACK, (1, 8, 32), element)
        check(op, [3])


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_scan_gives_the_same_bits_as_with_updates_on_their_own(target: str) -> None:
    jax = pytest.importorskip("jax")

    def scan(start: Any, rows: Any) -> Any:
        def turn(state: Any, row: Any) -> Any:
            new = state + row
            return new, (new * 2, new.sum(-1), new - row, state)

        return jax.lax.scan(turn, start, rows, reverse=True)

    inputs = inputs_for([kind(4, 12), kind(9, 4, 12)])
    runs = []
    for disabled in ((), ("stacks",)):
        options = girih.Options(cache="off", disable=disabled)
        program = girih.compile(scan, *inputs, target=target, options=options)
        alone = [UPDATE] in [list(kernel.ops) for kernel in program.plan.kernels]
        assert alone == bool(disabled)
        runs.append(jax.tree.leaves(program(*inputs)))
    for got, before in zip(*runs, strict=True):
        np.testing.assert_array_equal(got, before)
