"""Functions and products of matrices and vectors: matrix_exp, cross, kron, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.factorizations import real_element
from ....hlo.types import F32, I32
from ..context import Context, Number, axis_of
from .matrices import eye, product

_TERMS = {True: (12, 1.461661507209034), False: (18, 1.090863719290036)}
"""For f32 (True) and f64: the degree of the Taylor polynomial, and up to which 1-norm of the matrix
its backward error is below the type's rounding (Bader, Blanes, Casas 2019, table 1)."""


def matrix_exponential(c: Context, self: Value) -> Value:
    """exp(self): the Taylor polynomial of self / 2^s, squared s times; s by each matrix's norm."""
    if 0 in self.dims:
        return self
    x = c.wide(self)
    real = real_element(x.element)
    degree, most = _TERMS[real is F32]
    batch = x.rank - 2
    size = c.reduce("maximum", c.reduce("add", c("abs", x), [batch]), [batch])
    ratio = c.divide(size, most)
    steps = c("ceil", c.divide(c("log", ratio), math.log(2)))
    fine = c("is_finite", steps)
    steps = c.select(fine, c("maximum", steps, c.full(0, steps.dims, real)), 0.0)
    scale = c("power", c.full(0.5, steps.dims, real), steps)
    x = c("multiply", x, c.convert(c.along(scale, x.dims, [batch, batch + 1]), x.element))
    result = _taylor(c, x, degree)
    return c.narrow(_squared(c, result, c.convert(steps, I32)))


def _taylor(c: Context, x: Value, degree: int) -> Value:
    """sum of x^k / k! for k <= degree: by Horner's rule in x^3 (Paterson and Stockmeyer)."""
    one = eye(c, x.dims, x.element)
    square = product(c, x, x)
    powers, cube = [one, x, square], product(c, square, x)
    total: Value | None = None
    for first in range(degree - degree % 3, -1, -3):
        part: Value | None = None if total is None else product(c, total, cube)
        for k in range(first, min(first + 3, degree + 1)):
            term = c.multiply(powers[k - first], 1 / math.factorial(k))
            part = term if part is None else c("add", part, term)
        total = part
    assert total is not None
    return total


def _squared(c: Context, x: Value, counts: Value) -> Value:
    """Each matrix squared as many times as its count."""
    batch = x.rank - 2
    most = c.reduce("maximum", counts, range(counts.rank))
    carried = [c.scalar(0, I32), x]
    kinds = [value.tensor.with_sharding(None) for value in carried]

    def condition(at: Value, value: Value) -> list[Value]:
        return [c.builder.compare("LT", at, most)]

    def step(at: Value, value: Value) -> list[Value]:
        more = c.builder.compare("LT", c.spread(at, counts.dims), counts)
        more = c.along(more, x.dims, [batch, batch + 1])
        return [c.add(at, 1), c("select", more, product(c, value, value), value)]

    regions = [c.nested(kinds, condition), c.nested(kinds, step)]
    return c.builder.op("while", carried, {}, regions, kinds).results[1]


def cross(c: Context, self: Value, other: Value, dim: int | None = None) -> Value:
    """Products of vectors of three along `dim`, by default the first such dimension."""
    left, right = c.together(self, other, dims=c.dims)
    axis = c.dims.index(3) if dim is None else axis_of(dim, left.rank)

    def turned(value: Value, by: int) -> Value:
        parts = [c.slice(value, axis, by, 3), c.slice(value, axis, 0, by)]
        return c.concatenate(parts, axis)

    return c(
        "subtract",
        c("multiply", turned(left, 1), turned(right, 2)),
        c("multiply", turned(left, 2), turned(right, 1)),
    )


def last_cross(c: Context, self: Value, other: Value, dim: int = -1) -> Value:
    return cross(c, self, other, dim)


def outer_added(
    c: Context, self: Value, vec1: Value, vec2: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    """beta self + alpha vec1 vec2^T."""
    dims, element = c.dims, c.element
    left = c.builder.broadcast(c.convert(vec1, element), dims, [0])
    right = c.builder.broadcast(c.convert(vec2, element), dims, [1])
    if element.is_bool:
        result = c("and", left, right) if alpha else c.full(False, dims, element)
        return c("or", c.fill(self, c.type), result) if beta else result
    result = c.multiply(c("multiply", left, right), alpha)
    if beta == 0:
        return result
    return c("add", c.multiply(c.fill(self, c.type), beta), result)


def kronecker(c: Context, self: Value, other: Value) -> Value:
    """Each element of self times the whole of other."""
    rank = max(self.rank, other.rank)
    left, right = (
        c.builder.reshape(value, (*(1,) * (rank - value.rank), *value.dims))
        for value in (c.convert(self, c.element), c.convert(other, c.element))
    )
    dims = [size for pair in zip(left.dims, right.dims, strict=True) for size in pair]
    first = c.builder.broadcast(left, dims, range(0, 2 * rank, 2))
    second = c.builder.broadcast(right, dims, range(1, 2 * rank, 2))
    name = "and" if c.element.is_bool else "multiply"
    return c.builder.reshape(c(name, first, second), c.dims)


def tensordot(
    c: Context, self: Value, other: Value, dims_self: Sequence[int], dims_other: Sequence[int]
) -> Value:
    """The product summed over pairs of dimensions."""
    left = tuple(axis_of(axis, self.rank) for axis in dims_self)
    right = tuple(axis_of(axis, other.rank) for axis in dims_other)
    for one, two in zip(left, right, strict=True):  # of size 1, they are repeated
        if self.dims[one] == 1 != other.dims[two]:
            other = _kept_sum(c, other, two)
        elif other.dims[two] == 1 != self.dims[one]:
            self = _kept_sum(c, self, one)
    return c.dot(self, other, (left, right))


def _kept_sum(c: Context, value: Value, axis: int) -> Value:
    dims = (*value.dims[:axis], 1, *value.dims[axis + 1 :])
    return c.builder.reshape(c.reduce("add", value, [axis]), dims)


def vector_product(c: Context, x: Value, y: Value, dim: int = -1) -> Value:
    """The sum of conj(x) y along a dimension."""
    left, right = c.together(x, y)
    left = c("chlo.conj", left) if left.element.is_complex else left
    return c.reduce("add", c("multiply", left, right), [axis_of(dim, left.rank)])


TABLE: dict[str, Callable[..., Any]] = {
    "aten.addr.default": outer_added,
    "aten.cross.default": cross,
    "aten.kron.default": kronecker,
    "aten.linalg_cross.default": last_cross,
    "aten.linalg_matrix_exp.default": matrix_exponential,
    "aten.linalg_vecdot.default": vector_product,
    "aten.matrix_exp.default": matrix_exponential,
    "aten.tensordot.default": tensordot,
}
