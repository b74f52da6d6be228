"""linalg.qr in panels of reflectors, and products with Q: Q = 1 - V T V^H, in compact WY form."""

from __future__ import annotations

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from .matrices import Matrix, magnitudes, repeat, sizes
from .triangular import BLOCK, half, solve


def qr(b: Builder, o: Op, a: Value) -> list[Value]:
    packed, taus = reflectors(Matrix(b, a))
    return [packed.value, b.reshape(taus.value, o.results[1].dims)]


def householder_product(b: Builder, o: Op, a: Value, taus: Value) -> list[Value]:
    packed = Matrix(b, a)
    column = Matrix(b, b.reshape(taus, (*taus.dims, 1)))
    return [columns_of_q(packed[:, : column.rows], column, packed.columns).value]


def householder_multiply(b: Builder, o: Op, a: Value, taus: Value, c: Value) -> list[Value]:
    column, other = Matrix(b, b.reshape(taus, (*taus.dims, 1))), Matrix(b, c)
    v = _vectors(Matrix(b, a)[:, : column.rows])
    t = _inner(v, column)
    t = t.adjoint if o.transpose else t
    if o.left:
        return [(other - v @ (t @ (v.adjoint @ other))).value]
    return [(other - ((other @ v) @ t) @ v.adjoint).value]


def reflectors(a: Matrix) -> tuple[Matrix, Matrix]:
    """R and, below it, the reflectors' vectors; their factors as a column."""
    count = min(a.rows, a.columns)
    cut = count if count <= BLOCK else half(count)
    if cut == a.columns:
        return _panel(a)
    left, taus = reflectors(a[:, :cut])
    v = _vectors(left)
    right = a[:, cut:]
    right = right - v @ (_inner(v, taus).adjoint @ (v.adjoint @ right))
    top = left[:cut, :].beside(right[:cut, :])
    if cut == a.rows:
        return top, taus
    rest, more = reflectors(right[cut:, :])
    return top.above(left[cut:, :].beside(rest)), taus.above(more)


def columns_of_q(packed: Matrix, taus: Matrix, count: int) -> Matrix:
    """The first columns of the product of the reflectors."""
    v = _vectors(packed)
    unit = packed.identity(packed.rows, count)
    return unit - v @ (_inner(v, taus) @ v[:count, :].adjoint)


def _vectors(packed: Matrix) -> Matrix:
    rows, columns = packed.row_numbers, packed.column_numbers
    below = (rows > columns).where(packed, 0)
    return rows.equals(columns).where(1, below)


def _inner(v: Matrix, taus: Matrix) -> Matrix:
    """T with Q = 1 - V T V^H: (1 + D S)^-1 D, where D has the factors, and S is what is above the
    diagonal of V^H V."""
    count = v.columns
    unit = taus.identity(count, count)
    return solve(taus * (v.adjoint @ v), taus * unit, left=True, lower=False, unit=True)


def _panel(a: Matrix) -> tuple[Matrix, Matrix]:
    """One reflector for each column, applied to those behind it."""
    count = min(a.rows, a.columns)

    def step(b: Builder, at: Value, state: list[Matrix]) -> list[Matrix]:
        packed, taus = state
        rows, columns, here = packed.row_numbers, packed.column_numbers, packed.scalar(at)
        line, column = packed[:, :1].row_numbers, packed.column(at)
        below = (line > here).where(column, 0)
        first = packed.row(at).column(at)
        is_done = sizes(below).largest().equals(0)
        if packed.is_complex:
            is_done = is_done & first.imaginary.equals(0)
        # Squares of what is divided by the largest are neither too large nor all too small.
        largest = sizes(below).largest().maximum(sizes(first))
        largest = largest.equals(0).where(1, largest)
        norm = largest * (magnitudes(below / largest).total() + magnitudes(first / largest)).sqrt()
        beta = (first.real < 0).where(norm, -norm)
        beta = is_done.where(1, beta)
        tau = is_done.where(0, (first * -1 + beta) / beta)
        difference = is_done.where(1, first - beta)
        v = line.equals(here).where(1, is_done.where(0, below / difference))
        products = tau.conjugate * (v.conjugate * packed).sum_of_rows()
        changed = (columns > here).where(packed - v * products, packed)
        corner = is_done.where(first, beta)
        own = rows.equals(here).where(corner, (rows > here).where(v, packed))
        packed = columns.equals(here).where(own, changed)
        return [packed, taus.with_row(at, tau)]

    packed, taus = repeat(count, [a, a.filled(0, count, 1)], step)
    return packed, taus
