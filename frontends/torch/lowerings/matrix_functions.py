"""Functions and products of matrices and vectors: matrix_exp, matrix_power, multi_dot, kron, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.factorizations import real_element
from ....hlo.types import F32, I32
from ..context import Context, Number, axis_of
from .linear_systems import inverse, solve
from .matrices import eye, product
from .running import running_of

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


def power(c: Context, self: Value, n: int) -> Value:
    """self^n by squaring; of the inverse for negative n."""
    if n == 0:
        return eye(c, self.dims, self.element)
    square = inverse(c, self) if n < 0 else self
    result: Value | None = None
    for place, bit in enumerate(reversed(f"{abs(n):b}")):
        square = product(c, square, square) if place else square
        if bit == "1":
            result = square if result is None else product(c, result, square)
    assert result is not None
    return result


def chain(c: Context, tensors: Sequence[Value]) -> Value:
    """The product of matrices, in the order that needs the fewest multiplications where all sizes
    are known; the first may be a row and the last a column."""
    parts = list(tensors)
    if parts[0].rank == 1:
        parts[0] = c.builder.reshape(parts[0], (1, *parts[0].dims))
    if parts[-1].rank == 1:
        parts[-1] = c.builder.reshape(parts[-1], (*parts[-1].dims, 1))
    sizes = [parts[0].dims[0], *(value.dims[1] for value in parts)]
    splits = _splits(sizes) if all(isinstance(size, int) for size in sizes) else {}

    def multiplied(first: int, last: int) -> Value:
        if first == last:
            return parts[first]
        middle = splits.get((first, last), last - 1)
        return product(c, multiplied(first, middle), multiplied(middle + 1, last))

    return c.builder.reshape(multiplied(0, len(parts) - 1), c.dims)


def _splits(sizes: Sequence[Any]) -> dict[tuple[int, int], int]:
    """Of each run of matrices, i of which has sizes[i] rows and sizes[i + 1] columns, the last of
    those that are multiplied first."""
    count = len(sizes) - 1
    costs = {(at, at): 0 for at in range(count)}
    found = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            ways = {
                middle: costs[first, middle] + costs[middle + 1, last]
                + sizes[first] * sizes[middle + 1] * sizes[last + 1]
                for middle in range(first, last)
            }  # fmt: skip
            found[first, last] = min(ways, key=ways.__getitem__)
            costs[first, last] = min(ways.values())
    return found


def vandermonde(c: Context, x: Value, N: int | None = None) -> Value:
    """[..., n] -> [..., n, N]: the powers 0, 1, ... of each element."""
    *dims, count = c.dims
    ones = c.full(1, (*dims, c.smaller(count, 1)), c.element)
    if count in (0, 1):
        return ones
    x = c.builder.reshape(c.convert(x, c.element), dims)
    parts = [ones, c.builder.broadcast(x, (*dims, count - 1), range(len(dims)))]
    return running_of(c, "multiply", c.concatenate(parts, len(dims)), len(dims))


def falling_vandermonde(
    c: Context, x: Value, N: int | None = None, increasing: bool = False
) -> Value:
    """torch.vander: the highest power first, if not `increasing`."""
    result = vandermonde(c, x, N)
    return result if increasing else c("reverse", result, dimensions=(result.rank - 1,))


def tensor_inverse(c: Context, self: Value, ind: int = 2) -> Value:
    """The inverse of a tensor as a map from its last dimensions to its first `ind`."""
    rows = math.prod(self.dims[:ind])
    return c.builder.reshape(inverse(c, c.builder.reshape(self, (rows, rows))), c.dims)


def tensor_solve(c: Context, self: Value, other: Value, dims: Sequence[int] | None = None) -> Value:
    """X with tensordot(self, X, X.ndim) = other, once `dims` of self stand behind the others."""
    moved = [axis_of(axis, self.rank) for axis in dims or ()]
    rest = [axis for axis in range(self.rank) if axis not in moved]
    size = math.prod(other.dims)
    matrix = c.builder.reshape(c.builder.transpose(self, [*rest, *moved]), (size, size))
    return c.builder.reshape(solve(c, matrix, c.builder.reshape(other, (size,))), c.dims)


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
    **{f"aten.{name}.default": power for name in ("linalg_matrix_power", "matrix_power")},
    "aten.addr.default": outer_added,
    "aten.chain_matmul.default": chain,
    "aten.cross.default": cross,
    "aten.kron.default": kronecker,
    "aten.linalg_cross.default": last_cross,
    "aten.linalg_matrix_exp.default": matrix_exponential,
    "aten.linalg_multi_dot.default": chain,
    "aten.linalg_tensorinv.default": tensor_inverse,
    "aten.linalg_tensorsolve.default": tensor_solve,
    "aten.linalg_vander.default": vandermonde,
    "aten.linalg_vecdot.default": vector_product,
    "aten.matrix_exp.default": matrix_exponential,
    "aten.tensordot.default": tensordot,
    "aten.vander.default": falling_vandermonde,
}
