"""Tiles that change their layout: renamed, by shuffles, through shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia import layouts, tile
from girih.backends.nvidia.tile import assign, windows
from girih.backends.nvidia.tile.distributed_layout import (
    DistributedLayout,
    blocked,
    conversion,
    log2,
    padded,
)
from girih.backends.nvidia.tile.exchange import way
from girih.hlo.types import BF16, C64, F32, F64, I1, I8, I32

from .. import harness
from .support import SM_80, call, check, counted, dot, index, ptx_of, tensor, values


def copied(dims: tuple[int, ...], element: Any, permutation: tuple[int, ...] | None = None) -> Any:
    """A kernel that loads one tile, and stores it or a transposition of it."""
    permutation = permutation or tuple(range(len(dims)))

    def body(b: Any, x: Any, out: Any) -> None:
        zero = [b.constant(0, index(b, 0, 1).type)] * len(dims)
        value = b("tile_load", x, *zero, sizes=dims)
        b.op("tile_store", [out, b.transpose(value, permutation), *zero])

    turned = tuple(dims[d] for d in permutation)
    return call(body, [tensor(*dims, element=element)], [tensor(*turned, element=element)], (1,))


def numbered(op: Any) -> list[np.ndarray]:
    """An operand whose elements differ, as far as its type has numbers."""
    (value,) = op.operands
    numbers = np.arange(value.tensor.size).reshape(value.dims)
    if value.element is I1:
        numbers = numbers * 7 // 5 % 2
    both = numbers - 0.5j * numbers if value.element.is_complex else numbers % 251
    return [both.astype(value.tensor.dtype)]


@pytest.mark.parametrize("element", [F32, BF16, I8, F64, C64, I1], ids=str)
@pytest.mark.parametrize(
    ("dims", "permutation"), [((64, 64), (1, 0)), ((8, 16, 32), (2, 0, 1)), ((128, 32), (1, 0))]
)
def test_transpositions_meet_no_bank_twice(
    dims: tuple[int, ...], permutation: tuple[int, ...], element: Any
) -> None:
    op = copied(dims, element, permutation)
    inputs, reports = numbered(op), []
    code = tile.emit(op, SM_80)
    (got,) = harness.run(op, inputs, code=code, on=SM_80, reports=reports, counters=True)
    np.testing.assert_array_equal(got, inputs[0].transpose(permutation))
    (report,) = reports
    assert report.counters["shared_requests"] > 0 == report.counters["bank_conflicts"]
    assert report.counters["global_sectors"] == report.counters["global_sectors_ideal"]


def tile_layouts(dims: tuple[int, ...], threads: int) -> st.SearchStrategy[DistributedLayout]:
    """Layouts of a tile: bits of its index dealt out in any order, with copies or without."""
    shape = padded(dims)
    count = sum(map(log2, shape))
    slots = log2(threads)

    def dealt(bits: list[int], copies: int) -> DistributedLayout:
        own = [*bits[: slots - copies], *[0] * copies]
        own = own[::-1] if copies % 2 else own
        layout = layouts.layout(shape, register=bits[slots - copies :], lane=own[:5], warp=own[5:])
        return DistributedLayout(dims, layout)

    images = [1 << bit for bit in range(count)]
    return st.builds(dealt, st.permutations(images), st.integers(max(0, slots - count), 2))


CASES = [((5, 12), F32), ((5, 12), BF16), ((16, 8), I1), ((13, 60), I8), ((3, 5, 16), C64)]


@pytest.mark.parametrize(("dims", "element"), CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_layout_becomes_any_other(dims: tuple[int, ...], element: Any, data: Any) -> None:
    op = copied(dims, element)
    threads = 64 if np.prod(padded(dims)) >= 1024 else 32
    source, target = data.draw(tile_layouts(dims, threads)), data.draw(tile_layouts(dims, threads))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assign.Assignment, "blocked", lambda self, dims: source)
        patch.setattr(windows, "stored", lambda e, value, layout: target)
        check(op, numbered(op))


def test_what_a_warp_has_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of registers to columns of registers: shuffles, of two elements at a time if small."""
    op = copied((16, 16), BF16)
    rows, columns = blocked((16, 16), 8, 32), blocked((16, 16), 2, 32)
    assert conversion(rows, columns, 16).kind == "shuffles"
    monkeypatch.setattr(assign.Assignment, "blocked", lambda self, dims: rows)
    monkeypatch.setattr(windows, "stored", lambda e, value, layout: columns)
    check(op, numbered(op))
    ptx = ptx_of(op)
    assert counted(ptx, "st.shared") == 0 < counted(ptx, "shfl") <= 4


def test_places_beyond_a_tile_cost_nothing() -> None:
    """Paddings that differ are no reason to move elements."""
    narrow = blocked((5, 8), 1, 32)
    layout = layouts.mma_accumulator(16, 8)
    wide = DistributedLayout((5, 8), layout.with_inputs(register=layout.bits("register")[:1]))
    value = copied((5, 8), F32).regions[0].ops[0].result
    assert way(value, narrow, narrow).kind == "none"
    padding = DistributedLayout((5, 8), layout)
    assert way(value, wide, padding).kind == "registers"
    assert way(value, padding, wide).kind == "registers"


@pytest.mark.parametrize(
    ("element", "sums", "sizes"),
    [(I8, I32, (32, 64, 32, 32)), (BF16, F32, (32, 64, 32, 32)), (F64, F64, (20, 24, 16, 8))],
    ids=str,
)
def test_a_product_takes_what_its_warps_have(
    element: Any, sums: Any, sizes: tuple[int, int, int, int]
) -> None:
    """(x y^T) v^T: the first sums reach the second product without shared memory."""
    rows, inner, depth, columns = sizes

    def body(b: Any, x: Any, y: Any, v: Any, out: Any) -> None:
        i, zero = index(b, 0, rows), b.constant(0, index(b, 0, 1).type)
        left = b("tile_load", x, i, zero, sizes=(rows, depth))
        right = b("tile_load", y, zero, zero, sizes=(inner, depth))
        last = b("tile_load", v, zero, zero, sizes=(columns, inner))
        made = dot(b, left, right, tensor(rows, inner, element=sums), (1, 1))
        if sums is I32:
            made = b("and", made, b.constant(15, made.type))
        made = dot(b, b.convert(made, element), last, tensor(rows, columns, element=sums), (1, 1))
        b.op("tile_store", [out, made, i, zero])

    kinds = [(2 * rows, depth), (inner, depth), (columns, inner)]
    inputs = [tensor(*dims, element=element) for dims in kinds]
    op = call(body, inputs, [tensor(2 * rows, columns, element=sums)], (2,))
    check(op, values(op), tolerance=2e-2 if element is BF16 else 1e-9)
    ptx = ptx_of(op)
    between = ptx[ptx.index("mma.sync") : ptx.rindex("mma.sync")]
    assert counted(between, "st.shared") == 0
    assert (counted(between, "shfl") > 0) == (element is not BF16)
