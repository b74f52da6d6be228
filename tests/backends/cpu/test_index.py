"""Affine indices: sums, products, divisions that cancel, lanes."""

from __future__ import annotations

from girih.backends import llvm
from girih.backends.llvm.index import (
    CONSECUTIVE,
    GENERAL,
    SAME,
    Affine,
    Indexer,
    LoopAxis,
    Scopes,
    delinear,
    linear,
    number,
    of_axis,
)  # fmt: skip


def indexer() -> Indexer:
    return Indexer(Scopes(llvm.Module().function("f", [("i64", "i"), ("i64", "j")])))


def axis(name: str, extent: int, lanes: int = SAME, multiple: int = 1) -> Affine:
    return of_axis(LoopAxis(llvm.Value("i64", f"%{name}"), extent, lanes, 0, multiple))


def test_sums_cancel_and_keep_bounds() -> None:
    i, j = axis("i", 10), axis("j", 4)
    total = i * 4 + j
    assert (total.low, total.high) == (0, 39)
    assert (total - j).terms == (i * 4).terms
    assert (total - total).terms == ()
    assert (i * -1 + 9).low == 0


def test_a_split_index_is_joined_again() -> None:
    """(x // 7, x % 7) of a flat index, made linear again, is the flat index."""
    x = axis("i", 35, CONSECUTIVE)
    parts = delinear(indexer(), x, (5, 7), 16)
    assert len(parts[0].terms) == 1 and parts[0].terms[0][0].lanes == GENERAL
    assert linear(parts, (5, 7)).terms == x.terms


def test_division_without_code() -> None:
    unit = indexer()
    i, j = axis("i", 10), axis("j", 4)
    quotient, rest = unit.divide(i * 8 + j * 2, 8, 1)
    assert quotient.terms == i.terms and rest.terms == (j * 2).terms
    assert unit.divide(j, 4, 1) == unit.divide(j, 4, 1)
    assert not unit.function.text().count("udiv")


def test_lanes_that_stay_in_one_row_share_a_quotient() -> None:
    unit = indexer()
    aligned = axis("j", 640, CONSECUTIVE, multiple=16)
    quotient, rest = unit.divide(aligned, 64, 16)
    assert quotient.lanes == SAME and rest.lane_stride == 1
    ragged = axis("j", 600, CONSECUTIVE, multiple=16)
    quotient, rest = unit.divide(ragged, 60, 16)
    assert quotient.lanes == GENERAL and rest.lane_stride is None


def test_code_goes_to_the_outermost_loop_it_depends_on() -> None:
    function = llvm.Module().function("f", [("i64", "n")])
    scopes = Scopes(function)
    unit = Indexer(scopes)
    with scopes.loop(0, 8, extent=8) as (i, _), scopes.loop(0, 8, extent=8) as (j, _):
        unit.scalar(i * 100 + j)
    body = function.text()
    assert body.index("mul i64") < body.rindex("phi i64")  # i * 100 stands before the inner loop


def test_numbers_are_constants() -> None:
    value = indexer().scalar(number(5) * 3 + 1)
    assert value.number == 16
