"""Symmetric and Hermitian matrices that are not definite: A = P L D L^T P^T, and its solutions.

D has blocks of one and two rows. Packed as LAPACK's sytrf has it: L without its ones and D in the
lower triangle; pivots[k] = p > 0 says that rows k and p were exchanged, counted from 1, before
column k was formed, and pivots[k] = pivots[k + 1] = -p that rows k + 1 and p were, of a block of
two. Columns of L are not exchanged afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....hlo.graph import Value
from ....hlo.types import I32
from ..context import Context, static
from .indexing import gather
from .linear_systems import inverted, triangular
from .matrices import adjoint, check_info, diagonal, eye, rows_at, together, transposed, triangle

_ALPHA = (1 + math.sqrt(17)) / 8  # bounds how much elements grow (Bunch and Kaufman 1977)


def ldl_factor_ex(
    c: Context, self: Value, hermitian: bool = False, check_errors: bool = False
) -> tuple[Value, Value, Value]:
    """L and D as one matrix, pivots, and info: the first zero on D's diagonal, counted from 1."""
    steps = _Steps(c, self, hermitian)
    packed, pivots, info = steps.run()
    if check_errors:
        check_info(c, info, "linalg.ldl_factor")
    return packed, pivots, info


def ldl_factor(c: Context, self: Value, hermitian: bool = False) -> tuple[Value, Value]:
    return ldl_factor_ex(c, self, hermitian, check_errors=True)[:2]


class _PivotChoice(NamedTuple):
    """Of each matrix: which row comes next, whether with its neighbour, and whether it is zero."""

    row: Value
    paired: Value
    zero: Value


class _Steps:
    """Bunch and Kaufman's algorithm, one column or two of all matrices of a batch at a time.

    `rest` holds what is left to factorise as whole matrices; rows and columns before `at` are done.
    """

    def __init__(self, c: Context, a: Value, hermitian: bool) -> None:
        self.c, self.hermitian = c, hermitian and a.element.is_complex
        self.a, self.rank, self.size = a, a.rank, static(a.dims[-1])
        self.batch, self.vector = a.dims[:-2], a.dims[:-1]

    def run(self) -> tuple[Value, Value, Value]:
        c, lower = self.c, triangle(self.c, self.a, lower=True)
        pivots, zero = c.full(0, self.vector, I32), c.full(0, self.batch, I32)
        if 0 in self.a.dims:
            return lower, pivots, zero
        strict = triangle(c, self.a, lower=True, beside=1)
        mirrored = adjoint(c, strict) if self.hermitian else transposed(c, strict)
        middle = self.real(c("subtract", lower, strict))
        whole = c("add", c("add", strict, mirrored), middle)
        carried = [zero, whole, c.full(0, self.a.dims, self.a.element),
                   pivots, zero]  # fmt: skip
        kinds = [value.tensor.with_sharding(None) for value in carried]
        regions = [c.nested(kinds, self.unfinished), c.nested(kinds, self.step)]
        found = c.builder.op("while", carried, {}, regions, kinds).results
        return found[2], found[3], found[4]

    def unfinished(self, at: Value, *others: Value) -> Sequence[Value]:
        c = self.c
        return [c.reduce("or", c.compare("LT", at, self.size), range(at.rank))]

    def step(
        self, at: Value, rest: Value, packed: Value, pivots: Value, info: Value
    ) -> Sequence[Value]:
        c = self.c
        chosen = self.choice(at, rest)
        number = c.iota(self.vector, len(self.batch), I32)
        here, row = self.wide(at), self.wide(chosen.row)
        paired = self.wide(chosen.paired)
        last = c("add", here, c.convert(paired, I32))  # of this block
        order = c.select(c.compare("EQ", number, last), row,
                         c.select(c.compare("EQ", number, row), last, number))  # fmt: skip
        rest = rows_at(c, rest, order)
        rest = transposed(c, rows_at(c, transposed(c, rest), order))
        first, second = self.column(rest, at), self.column(rest, c.add(at, 1))
        below = c.compare("GT", number, last)
        left, right = self.multipliers(first, second, at, chosen)
        left, right = (c.select(below, value, 0.0) for value in (left, right))
        for multiplier, column in ((left, first), (right, second)):
            column = c.select(below, column, 0.0)
            rest = c("subtract", rest, self.outer(multiplier, column))
        one = c.select(below, left, first)
        two = c.select(below, right, second)
        packed = self.replaced(packed, at, one, c.compare("GE", number, here))
        after = c("and", paired, c.compare("GE", number, last))
        packed = self.replaced(packed, c.add(at, 1), two, after)
        place = c.add(row, 1)
        place = c.select(paired, c("negate", place), place)
        mine = c("or", c.compare("EQ", number, here),
                 c("and", paired, c.compare("EQ", number, last)))  # fmt: skip
        pivots = c("select", mine, place, pivots)
        failed = c("and", chosen.zero, c.compare("EQ", info, 0))
        info = c("select", failed, c.add(at, 1), info)
        at = c("add", c.add(at, 1), c.convert(chosen.paired, I32))
        return [at, rest, packed, pivots, info]

    def choice(self, at: Value, rest: Value) -> _PivotChoice:
        """The next pivot: the diagonal's, or one that is larger, or a block of two."""
        c, last = self.c, len(self.batch)
        number, here = c.iota(self.vector, last, I32), self.wide(at)
        sizes = self.sizes(self.column(rest, at))
        lower = c.select(c.compare("GT", number, here), sizes, 0.0)
        largest = c.reduce("maximum", lower, [last])
        found = c("and", c.compare("EQ", lower, self.wide(largest)),
                  c.compare("GT", number, here))  # fmt: skip
        row = c.reduce("minimum", c.select(found, number, self.size - 1), [last])
        own = self.entry(sizes, at)
        others = self.sizes(self.column(rest, row))  # the row's, as the matrix is symmetric
        theirs = self.entry(others, row)
        beside = c("and", c.compare("GE", number, here), c.compare("NE", number, self.wide(row)))
        across = c.reduce("maximum", c.select(beside, others, 0.0), [last])
        zero = c.compare("EQ", c("maximum", own, largest), 0.0)
        zero = c("and", c("or", zero, c.is_nan(own)), c.compare("LT", at, self.size))
        stays = c.compare("GE", own, c.multiply(largest, _ALPHA))
        bound = c("divide", largest, across)
        bound = c.multiply(c("multiply", largest, bound), _ALPHA)
        stays = c("or", c("or", stays, c.compare("GE", own, bound)), zero)
        moves = c.compare("GE", theirs, c.multiply(across, _ALPHA))
        paired = c("and", c("not", stays), c("not", moves))
        return _PivotChoice(c("select", stays, at, row), paired, zero)

    def multipliers(
        self, first: Value, second: Value, at: Value, chosen: _PivotChoice
    ) -> tuple[Value, Value]:
        """The columns of L for the first and, in a block of two, for the second column."""
        c, after = self.c, self.c.add(at, 1)
        d11 = self.real(self.entry(first, at))
        d22, d21 = self.real(self.entry(second, after)), self.entry(first, after)
        d12 = c("chlo.conj", d21) if self.hermitian else d21
        one = c.full(1, first.dims, first.element)
        paired, zero = self.wide(chosen.paired), self.wide(chosen.zero)
        alone = c("divide", first, c("select", zero, one, self.wide(d11)))
        upper, lower = self.wide(c("divide", d11, d21)), self.wide(c("divide", d22, d12))
        scale = c("subtract", c("multiply", upper, lower), one)
        by21, by12 = c("divide", first, self.wide(d21)), c("divide", second, self.wide(d12))
        left = c("divide", c("subtract", c("multiply", by21, lower), by12), scale)
        right = c("divide", c("subtract", c("multiply", by12, upper), by21), scale)
        return c("select", paired, left, alone), c.select(paired, right, 0.0)

    # Parts of matrices and vectors, at places that differ from matrix to matrix.

    def wide(self, value: Value) -> Value:
        """A number of each matrix along a vector."""
        return self.c.builder.broadcast(value, self.vector, range(value.rank))

    def column(self, matrix: Value, place: Value) -> Value:
        c, last = self.c, self.rank - 1
        where = c.builder.broadcast(place, matrix.dims, range(place.rank))
        here = c.builder.compare("EQ", c.iota(matrix.dims, last, I32), where)
        return c.reduce("add", c.select(here, matrix, 0.0), [last])

    def entry(self, vector: Value, place: Value) -> Value:
        c, last = self.c, len(self.batch)
        here = c.builder.compare("EQ", c.iota(vector.dims, last, I32), self.wide(place))
        return c.reduce("add", c.select(here, vector, 0.0), [last])

    def replaced(self, matrix: Value, place: Value, column: Value, rows: Value) -> Value:
        """The matrix with another column in those rows."""
        c, last = self.c, self.rank - 1
        where = c.builder.broadcast(place, matrix.dims, range(place.rank))
        here = c.builder.compare("EQ", c.iota(matrix.dims, last, I32), where)
        new, kept = (c.builder.broadcast(v, matrix.dims, range(last)) for v in (column, rows))
        return c("select", c("and", here, kept), new, matrix)

    def outer(self, left: Value, right: Value) -> Value:
        c, batch = self.c, list(range(len(self.batch)))
        right = c("chlo.conj", right) if self.hermitian else right
        first = c.builder.broadcast(left, self.a.dims, [*batch, self.rank - 2])
        second = c.builder.broadcast(right, self.a.dims, [*batch, self.rank - 1])
        return c("multiply", first, second)

    def sizes(self, value: Value) -> Value:
        """|re| + |im|, as LAPACK compares complex numbers."""
        c = self.c
        if not value.element.is_complex:
            return c("abs", value)
        return c("add", c("abs", c("real", value)), c("abs", c("imag", value)))

    def real(self, value: Value) -> Value:
        """What stands on a diagonal."""
        return self.c.convert(self.c("real", value), value.element) if self.hermitian else value


def ldl_solve(c: Context, LD: Value, pivots: Value, B: Value, hermitian: bool = False) -> Value:
    """X with A X = B, A as ldl_factor packs it."""
    hermitian = hermitian and LD.element.is_complex
    packed, b = together(c, LD, B)
    if 0 in b.dims:
        return b
    places = c.spread(c.convert(pivots, I32), packed.dims[:-1])
    first, second = _pairs(c, places)
    factor, order = _unpacked(c, packed, places, first)
    x = triangular(c, factor, rows_at(c, b, order), True, True)
    x = _divided(c, packed, x, first, second, hermitian)
    x = triangular(c, factor, x, True, True, "ADJOINT" if hermitian else "TRANSPOSE")
    return rows_at(c, x, inverted(c, order))


def _pairs(c: Context, pivots: Value) -> tuple[Value, Value]:
    """Which rows are the first and the second of a block of two."""
    *batch, size = pivots.dims
    rank, dims = pivots.rank, (*pivots.dims, size)
    negative = c.compare("LT", pivots, 0)
    earlier = c.builder.compare("LT", c.iota(dims, rank), c.iota(dims, rank - 1))
    each = c.builder.broadcast(negative, dims, [*range(rank - 1), rank])
    count = c.reduce("add", c.convert(c("and", each, earlier), I32), [rank])
    odd = c.compare("EQ", c("and", count, c.full(1, count.dims, I32)), 1)
    return c("and", negative, c("not", odd)), c("and", negative, odd)


def _unpacked(c: Context, packed: Value, pivots: Value, first: Value) -> tuple[Value, Value]:
    """L with its ones and with all rows exchanged, and the order of rows, P^T."""
    size, rank = static(packed.dims[-1]), packed.rank
    number = c.iota(pivots.dims, rank - 2, I32)
    own = c("or", first, c.compare("EQ", pivots, 0))
    swaps = c("select", own, number, c.subtract(c("abs", pivots), 1))
    order = c("linalg.pivots_to_permutation", swaps, size=size)
    # Column j has those exchanges that come after its block.
    dims = packed.dims
    end = c("add", number, c.convert(first, I32))
    end = c.builder.broadcast(end, dims, range(rank - 1))
    each = c.builder.broadcast(swaps, dims, [*range(rank - 2), rank - 1])
    place = c.iota(dims, rank - 1, I32)
    later = c("select", c.builder.compare("GT", place, end), each, place)
    orders = c("linalg.pivots_to_permutation", later, size=size)
    columns = transposed(c, triangle(c, packed, lower=True, beside=1))
    columns = c("select", c.builder.compare("GT", place, end), columns,
                c.full(0, dims, packed.element))  # fmt: skip
    columns = gather(c, columns, -1, orders)
    return c("add", transposed(c, columns), eye(c, dims, packed.element)), order


def _divided(
    c: Context, packed: Value, b: Value, first: Value, second: Value, hermitian: bool
) -> Value:
    """D^-1 b."""
    axis = b.rank - 2

    def moved(value: Value, by: int, along: int) -> Value:
        """value[k + by], zero where there is none."""
        pads = [(0, 0, 0)] * value.rank
        pads[along] = (-by, by, 0)
        return c.pad(value, 0, pads)

    def rows(value: Value) -> Value:
        return c.builder.broadcast(value, b.dims, range(axis + 1))

    own = diagonal(c, packed)
    own = c.convert(c("real", own), own.element) if hermitian else own
    under = diagonal(c, c.pad(packed, 0, [*[(0, 0, 0)] * axis, (-1, 1, 0), (0, 0, 0)]))
    above = moved(under, -1, axis)
    mine = c("select", first, under, above)  # d21 of the row's block
    other = c("chlo.conj", mine) if hermitian else mine  # d12
    partner = c("select", first, moved(own, 1, axis), moved(own, -1, axis))
    neighbour = c("select", rows(first), moved(b, 1, axis), moved(b, -1, axis))
    near = c("select", second, mine, other)  # what couples the row to its neighbour
    far = c("select", second, other, mine)
    one = c.full(1, own.dims, own.element)
    scale = c("subtract", c("multiply", c("divide", own, far), c("divide", partner, near)), one)
    share = c("multiply", rows(c("divide", partner, near)), c("divide", b, rows(far)))
    share = c("subtract", share, c("divide", neighbour, rows(far)))
    pair = c("divide", share, rows(scale))
    return c("select", rows(c("or", first, second)), pair, c("divide", b, rows(own)))


TABLE: dict[str, Callable[..., Any]] = {
    "aten.linalg_ldl_factor.default": ldl_factor,
    "aten.linalg_ldl_factor_ex.default": ldl_factor_ex,
    "aten.linalg_ldl_solve.default": ldl_solve,
}
