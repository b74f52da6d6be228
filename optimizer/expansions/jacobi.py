"""linalg.eigh and linalg.svd by Jacobi's rotations: half of all pairs at once, round by round.

Columns stand in pairs, one of the first half with one of the second. A round rotates all pairs so
that their products vanish, then all but the first column move on by one place, so that in a sweep
each is a pair with each (the tournament of Brent and Luk). An odd number gets a column of zeros,
which no rotation mixes with others. Columns are put in order at the end, wherever they stand then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...hlo.build import Builder, build_region
from ...hlo.graph import Op, Value
from ...hlo.ops.factorizations import real_element
from ...hlo.types import I32, TensorType
from .householder import columns_of_q, reflectors
from .matrices import STEPS, Matrix, epsilon, magnitudes, repeat, sizes, until

SWEEPS = 30
"""More than any matrix needs: convergence is quadratic after the first few."""


class Rotation(NamedTuple):
    """The unitary [[c, s], [-s e*, c e*]] of each pair, as rows: own factors of all columns (c and
    c e*), those of their partners (-s e* and s), and by how much the smaller of the diagonal
    elements gets smaller."""

    own: Matrix
    partners: Matrix
    change: Matrix


def _rotation(first: Matrix, second: Matrix, between: Matrix) -> Rotation:
    """What makes [[first, between], [between*, second]] diagonal; all are rows, of real numbers on
    the diagonal."""
    size = abs(between)
    # Numbers with few bits have no direction; beside the largest, which is about 1, they are 0.
    is_zero = (size > 2.0 ** (-100 if size.element.bits == 32 else -900)).equals(False)
    safe = is_zero.where(1, size)
    slope = (second - first) / (safe + safe)
    root = (slope * slope + 1).sqrt()
    tangent = (slope < 0).where(-1, root.filled(1, 1, 1)) / (abs(slope) + root)
    tangent = is_zero.where(0, tangent)
    cosine = root.filled(1, 1, 1) / (tangent * tangent + 1).sqrt()
    sine = tangent * cosine
    phase = is_zero.where(1, between / safe).conjugate
    if between.is_complex:
        cosine, sine = cosine.convert(between.element), sine.convert(between.element)
    own = cosine.beside(cosine * phase)
    return Rotation(own, (-(sine * phase)).beside(sine), tangent * size)


def _swapped(x: Matrix) -> Matrix:
    """Each column in its partner's place."""
    middle = x.columns // 2
    return x[:, middle:].beside(x[:, :middle])


def _rotated(x: Matrix, by: Rotation) -> Matrix:
    return x * by.own + _swapped(x) * by.partners


def _moved(x: Matrix) -> Matrix:
    """All columns but the first, one place on: along the first half, back along the second."""
    half = x.columns // 2
    if half == 1:
        return x
    parts = [
        x[:, half : half + 1], x[:, 1 : half - 1], x[:, half + 1 :], x[:, half - 1 : half],
    ]  # fmt: skip
    return x[:, :1].beside(*parts)


def _evened(x: Matrix) -> Matrix:
    """With another column of zeros if their number is odd."""
    return x.beside(x.filled(0, x.rows, 1)) if x.columns % 2 else x


def _scaled(a: Matrix) -> tuple[Matrix, Matrix]:
    """The matrix divided by its largest element, and that; squares are then numbers."""
    largest = sizes(a).largest()
    scale = largest.equals(0).where(1, largest)
    return a / scale, scale


def _rounds(even: Matrix) -> int:
    """Of a sweep, in which each column meets each: some meet twice where turns hold several."""
    return -(-(even.columns - 1) // STEPS) * STEPS


def _sorted(keys: Matrix, vectors: Matrix, count: int, direction: str) -> tuple[Matrix, Matrix]:
    """The first `count` of a column in order, and of the rows that belong to it. What was added to
    an odd number comes last: only its row is not zero behind `count`."""
    if keys.rows > count:
        last = float("inf") if direction == "LT" else -1
        keys = vectors[:, count : count + 1].differs(0).where(last, keys)
    b, kind = keys.b, keys.value.tensor
    numbers = b("iota", type=kind.with_element(I32), iota_dimension=kind.rank - 2)
    scalars = [TensorType((), e) for e in (kind.element, kind.element, I32, I32)]

    def before(b: Builder, x: Value, y: Value, *rest: Value) -> Sequence[Value]:
        return [b.compare(direction, x, y)]

    facts = {"dimension": kind.rank - 2, "is_stable": True}
    made = b.op("sort", [keys.value, numbers], facts, [build_region(scalars, before)])
    values, order = (Matrix(b, value)[:count, :] for value in made.results)
    return values, vectors.rows_at(order)


def eigh(b: Builder, o: Op, a: Value) -> list[Value]:
    """Rotations on both sides. What is not finite gives NaN, what does not converge info 1."""
    given = Matrix(b, a)
    size, rows, columns = given.rows, given.row_numbers, given.column_numbers
    kept = rows >= columns if o.lower else columns >= rows
    whole = kept.where(given, given.adjoint)
    if given.is_complex:
        whole = rows.equals(columns).where(whole.real, whole)
    whole, scale = _scaled(whole)
    if size > 1:
        even = _evened(_evened(whole).transposed).transposed
        limit = epsilon(given) ** 2

        def left(state: list[Matrix]) -> Matrix:
            x = state[0]
            squares = magnitudes(x)
            is_inner = x.row_numbers.equals(x.column_numbers)
            return is_inner.where(0, squares).total() > squares.total() * limit

        def sweep(b: Builder, state: list[Matrix]) -> list[Matrix]:
            return repeat(_rounds(even), state, lambda b, at, each: _two_sided(*each))

        unit = given.identity(even.rows, even.rows)
        whole, vectors = until(SWEEPS, [even, unit], sweep, left)
        info = left([whole, vectors]).convert(I32)
    else:
        vectors, info = given.identity(size, size), given.filled(0, 1, 1, I32)
    values = whole.diagonal().real
    values, vectors = _sorted(values, vectors.transposed, size, "LT")
    values, vectors = values * scale, vectors.transposed[:size, :]
    is_bad = (scale - scale).differs(0)
    values, vectors = (is_bad.where(float("nan"), x) for x in (values, vectors))
    flat = (b.reshape(x.value, y.dims) for x, y in zip((values, info), o.results[1:], strict=True))
    return [vectors.value, *flat]


def _two_sided(a: Matrix, vectors: Matrix) -> list[Matrix]:
    """One round: J^H a J and vectors J, moved on."""
    half = a.rows // 2
    first, second = (x.diagonal().real.transposed for x in (a[:half, :half], a[half:, half:]))
    by = _rotation(first, second, a[:half, half:].diagonal().transposed)
    rotated = _rotated(_rotated(a, by).adjoint, by)  # its adjoint, which it equals
    rows, columns = a.row_numbers, a.column_numbers
    inner = (first - by.change).beside(second + by.change)
    partner = (columns >= half).where(columns - half, columns + half)
    rotated = rows.equals(partner).where(0, rotated)  # but for rounding
    rotated = rows.equals(columns).where(inner, rotated)
    return [_moved(_moved(rotated).transposed).transposed, _moved(_rotated(vectors, by))]


def svd(b: Builder, o: Op, a: Value) -> list[Value]:
    """Rotations of the columns until they are orthogonal; their lengths are the singular values,
    and their directions are made orthonormal by reflectors, also those of zeros."""
    given = Matrix(b, a)
    is_wide = given.rows < given.columns
    tall = given.adjoint if is_wide else given
    count = tall.columns
    tall, scale = _scaled(tall)
    if count > 1:
        rotated, vectors, worst = _orthogonal(tall)
    else:
        rotated, vectors = tall, given.identity(count, count)
        worst = given.filled(0, 1, 1, real_element(given.element))
    limit = _tolerance(tall)
    info = (worst > limit).convert(I32)
    lengths = magnitudes(rotated).sum_of_rows().sqrt().transposed
    beside = vectors.transposed.beside(rotated.transposed)
    lengths, beside = _sorted(lengths, beside, count, "GT")
    is_bad = (scale - scale).differs(0)
    values = is_bad.where(float("nan"), lengths * scale)
    results = [b.reshape(values.value, o.results[0].dims)]
    if o.compute_uv:
        vectors, rotated = beside[:, :count], beside[:, vectors.rows :].transposed  # V^T, a V
        packed, taus = reflectors(rotated)
        corner = packed[:count, :].diagonal()
        is_zero = corner.equals(0)
        phase = is_zero.where(1, corner / is_zero.where(1, abs(corner)))
        columns = tall.rows if o.full_matrices else count
        unit = columns_of_q(packed, taus, columns)
        unit = (unit[:, :count] * phase.transposed).beside(unit[:, count:])
        sides = (vectors.transposed, unit.adjoint) if is_wide else (unit, vectors.conjugate)
        results += [is_bad.where(float("nan"), side).value for side in sides]
    else:
        results += [b.constant(0, empty.tensor) for empty in o.results[1:3]]
    return [*results, b.reshape(info.value, o.results[3].dims)]


def _tolerance(a: Matrix) -> float:
    """Cosines of columns below which they count as orthogonal: those of rounding."""
    return epsilon(a) * max(4.0, a.rows**0.5)


def _orthogonal(a: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """a V with orthogonal columns, V, and the largest cosine of the last sweep."""
    even, limit, noise = _evened(a), _tolerance(a), epsilon(a) ** 2
    half = even.columns // 2
    real = real_element(a.element)
    nothing = a.filled(0, 1, 1, real)

    def round_of(b: Builder, at: Value, state: list[Matrix]) -> list[Matrix]:
        x, vectors, worst = state
        squares = magnitudes(x).sum_of_rows()
        first, second = squares[:, :half], squares[:, half:]
        between = (x[:, :half].conjugate * x[:, half:]).sum_of_rows()
        lengths = (first * second).sqrt()
        size = abs(between)
        # Columns of rounding errors, beside a largest element of 1, have no direction either.
        counts = (first > noise) & (second > noise) & (size > lengths * limit)
        cosine = counts.where(size / counts.where(lengths, 1), 0)
        by = _rotation(first, second, counts.where(between, 0))
        moved = [_moved(_rotated(y, by)) for y in (x, vectors)]
        return [*moved, worst.maximum(cosine.largest())]

    def sweep(b: Builder, state: list[Matrix]) -> list[Matrix]:
        return repeat(_rounds(even), [*state[:2], nothing.on(b)], round_of)

    start = [even, a.identity(even.columns, even.columns), nothing + 1]
    x, vectors, worst = until(SWEEPS, start, sweep, lambda state: state[2] > 0)
    return x, vectors, worst
