"""`rows` fusions: normalisations of rows of any length, in registers and in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.target import target
from girih.hlo.types import BF16, F16, F32, F64, ElementType

from ...support import SCALAR, argmax, kind, layer_norm, softmax
from .. import harness
from .support import check, counted, operation


@pytest.mark.parametrize("size", [1, 5, 16, 64, 100, 1000, 1023, 3000, 9001, 40000])
def test_softmax(size: int) -> None:
    check([kind(7, size)], lambda b, x: [softmax(b, x)], "rows", 3e-6)


@pytest.mark.parametrize("element", [BF16, F16, F64], ids=str)
@pytest.mark.parametrize("size", [32, 1000, 4099])
def test_softmax_types(element: ElementType, size: int) -> None:
    tolerance = {BF16: 8e-3, F16: 1e-3, F64: 1e-13}[element]
    check([kind(5, size, element=element)], lambda b, x: [softmax(b, x)], "rows", tolerance)


@pytest.mark.parametrize("dims", [(130, 12), (3, 5, 8, 16), (600, 256)], ids=str)
def test_softmax_of_many_rows(dims: tuple[int, ...]) -> None:
    outer = len(dims) // 2
    check([kind(*dims)], lambda b, x: [softmax(b, x, outer)], "rows", 3e-6)


@pytest.mark.parametrize("element", [F32, BF16], ids=str)
@pytest.mark.parametrize("size", [64, 1000, 2048, 50000])
def test_layer_norm(element: ElementType, size: int) -> None:
    types = [
        kind(3, size, element=element),
        kind(size, element=element),
        kind(size, element=element),
    ]
    check(types, lambda b, *xs: [layer_norm(b, *xs)], "rows", 1e-5 if element is F32 else 1e-2)


def test_special_values_spread_through_their_row_only() -> None:
    values = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    values[1, 7], values[2, 9], values[3, :] = np.nan, np.inf, -np.inf
    values[4, :] = -0.0
    op = operation([kind(6, 200)], lambda b, x: [softmax(b, x)], "rows")
    (got,) = harness.run(op, [values])
    (wanted,) = harness.expected(op, [values])
    np.testing.assert_allclose(got, wanted, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("size", [64, 3000, 40000])
def test_quotients_by_a_rows_number_are_rounded_once(size: int) -> None:
    """x / max |x| of the row, of numbers of all magnitudes: the bits of a division."""

    def body(b: Any, x: Any) -> Any:
        largest = b.reduce("maximum", b("abs", x), b.constant(0, SCALAR), (1,))
        return [b("divide", x, b.broadcast(largest, x.dims, (0,)))]

    generator = np.random.default_rng(0)
    values = generator.standard_normal((6, size)).astype(np.float32)
    values[1] *= 2.0 ** generator.integers(-148, 120, size).astype(np.float32)
    values[2] *= np.float32(1e-39)
    values[3, ::7] = [-0.0] * len(values[3, ::7])
    values[4, 5], values[5, 6] = np.inf, np.nan
    op = operation([kind(6, size)], body, "rows")
    (got,) = harness.run(op, [values])
    with np.errstate(all="ignore"):
        wanted = values / np.abs(values).max(1, keepdims=True)
    same = np.isnan(wanted) & np.isnan(got) | (got.view(np.uint32) == wanted.view(np.uint32))
    assert same.all()


def test_several_results_and_shapes() -> None:
    """Row sums, and the rows themselves, in one kernel."""

    def body(b: Any, x: Any) -> Any:
        total = b.reduce("add", x, b.constant(0, SCALAR), (1,))
        spread = b.broadcast(total, x.dims, (0,))
        shifted = b("subtract", x, spread)
        return [total, shifted, b.reduce("maximum", shifted, b.constant(-1e30, SCALAR), (1,))]

    for size in (48, 5000):
        check([kind(9, size)], body, "rows", 1e-5)


def test_argmax_and_what_follows() -> None:
    """A body that takes the operands' order into account, among rows."""

    def body(b: Any, x: Any) -> Any:
        largest, place = argmax(b, x, (1,))
        shifted = b("subtract", x, b.broadcast(largest, x.dims, (0,)))
        return [shifted, place]

    values = np.random.default_rng(0).integers(0, 5, (6, 300)).astype(np.float32)
    for size in (3, 100, 300):
        check([kind(6, size)], body, "rows", inputs=[np.ascontiguousarray(values[:, :size])])


def test_in_place() -> None:
    op = operation([kind(70, 500)], lambda b, x: [softmax(b, x)], "rows")
    values = np.random.default_rng(0).standard_normal((70, 500)).astype(np.float32)
    (got,) = harness.run(op, [values], shared=[(0, 0)])
    np.testing.assert_allclose(got, harness.expected(op, [values])[0], rtol=3e-6)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 40), size=st.integers(1, 700), element=st.sampled_from([F32, F64, BF16]))
def test_any_row(rows: int, size: int, element: ElementType) -> None:
    tolerance = {F32: 3e-6, F64: 1e-13, BF16: 8e-3}[element]
    check([kind(rows, size, element=element)], lambda b, x: [softmax(b, x)], "rows", tolerance)


def test_every_seed_gives_the_same_bits() -> None:
    op = operation([kind(5, 3000)], lambda b, x: [softmax(b, x)], "rows")
    values = np.random.default_rng(0).standard_normal((5, 3000)).astype(np.float32)
    found = [harness.run(op, [values], seed=seed)[0] for seed in (0, 1, 2)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("element", [F32, BF16], ids=str)
def test_rows_are_read_once_in_whole_sectors(element: ElementType) -> None:
    _, (report,) = counted([kind(64, 1024, element=element)], lambda b, x: [softmax(b, x)], "rows")
    assert report.counters["global_sectors"] == 2 * 64 * 1024 * element.itemsize // 32


@pytest.mark.requires_ptxas
@pytest.mark.parametrize(
    ("architecture", "size"),
    [("sm_80", 1024), ("sm_80", 16384), ("sm_89", 100000)]
    + [("sm_90a", size) for size in (64, 1024, 4096, 16384, 100000)],
)
def test_no_spills(size: int, architecture: str) -> None:
    for element, rows in ((F32, 512), (BF16, 512), (F32, 4), (F64, 64)):
        types = [kind(rows, size, element=element), *[kind(size, element=element)] * 2]
        machine = target(architecture)
        ops = [operation(types[:1], lambda b, x: [softmax(b, x)], "rows")]
        if element is not F64:
            ops.append(operation(types, lambda b, *xs: [layer_norm(b, *xs)], "rows"))
        for op in ops:
            ptx = compile_ptx(emit(op, machine).text, machine.architecture)
            assert not assemble(ptx, machine.architecture).faults()
