"""linalg.lu by halves of the columns: a panel at a time by elimination, the rest as products."""

from __future__ import annotations

from typing import NamedTuple

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from ...hlo.types import I32
from .matrices import Matrix, repeat, sizes
from .triangular import BLOCK, half, solve


class Factors(NamedTuple):
    """packed: U and, below it, L without its ones. order: which row of the matrix each row was, as
    a column. pivots: with which row each was exchanged, from 1. info: of the first zero pivot."""

    packed: Matrix
    order: Matrix
    pivots: Matrix
    info: Matrix


def lu(b: Builder, o: Op, a: Value) -> list[Value]:
    found = _factors(Matrix(b, a))
    pivots, info = (
        b.reshape(part.value, result.dims)
        for part, result in zip(found[2:], o.results[1:], strict=True)
    )
    return [found.packed.value, pivots, info]


def _factors(a: Matrix) -> Factors:
    count = min(a.rows, a.columns)
    cut = count if count <= BLOCK else half(count)
    if cut == a.columns:
        return _panel(a)
    left = _factors(a[:, :cut])
    right = a[:, cut:].rows_at(left.order)
    top = solve(left.packed[:cut, :], right[:cut, :], left=True, lower=True, unit=True)
    if cut == a.rows:
        return left._replace(packed=left.packed.beside(top))
    below = left.packed[cut:, :]
    rest = _factors(right[cut:, :] - below @ top)
    packed = left.packed[:cut, :].beside(top)
    packed = packed.above(below.rows_at(rest.order).beside(rest.packed))
    order = left.order[:cut, :].above(left.order[cut:, :].rows_at(rest.order))
    later = rest.info.equals(0).where(rest.info, rest.info + cut)
    info = left.info.equals(0).where(later, left.info)
    return Factors(packed, order, left.pivots.above(rest.pivots + cut), info)


def _panel(a: Matrix) -> Factors:
    """Column by column: the largest element below goes to the diagonal, its row is eliminated."""
    count, numbers = min(a.rows, a.columns), a.filled(0, a.rows, 1, I32).row_numbers
    zero = a.filled(0, 1, 1, I32)

    def step(b: Builder, at: Value, state: list[Matrix]) -> list[Matrix]:
        packed, order, pivots, info = state
        rows, columns = packed.row_numbers, packed.column_numbers
        here, row = packed.scalar(at), packed[:, :1].row_numbers
        size = (row >= here).where(sizes(packed.column(at)), -1)
        best = size.largest_of_rows()
        place = size.equals(best).where(row, packed.rows).smallest_of_rows()
        place = place.equals(packed.rows).where(here, place)  # nothing but NaN

        def swapped(x: Matrix) -> Matrix:
            line = x.row_numbers
            other = line.equals(place).where(x, 0).sum_of_rows()
            return line.equals(here).where(other, line.equals(place).where(x.row(at), x))

        packed, order = swapped(packed), swapped(order)
        top = packed.row(at)
        pivot = top.column(at)
        column = packed.column(at)
        is_zero = pivot.equals(0)
        column = is_zero.where(column, column / is_zero.where(1, pivot))
        changed = columns.equals(here).where(
            column, (columns > here).where(packed - column * top, packed)
        )
        packed = (rows > here).where(changed, packed)
        info = (info.equals(0) & is_zero).where(here + 1, info)
        return [packed, order, pivots.with_row(at, place + 1), info]

    state = [a, numbers, a.filled(0, count, 1, I32), zero]
    return Factors(*repeat(count, state, step))
