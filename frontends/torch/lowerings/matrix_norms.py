"""Norms of matrices, and what singular values say: norm, cond, matrix_rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import I64, ElementType
from ..context import Context, Number, axis_of
from .linear_algebra import eigvalsh, singular_values
from .linear_systems import inverse_ex, tolerance, tolerances
from .reductions import kept_dims, power_norm, size_of, vector_norm

Axes = Sequence[int]


def _extreme(c: Context, values: Value, order: Number, axes: Axes) -> Value:
    """The largest for a positive order, the smallest for a negative one; of nothing 0."""
    return power_norm(c, values, math.copysign(math.inf, order), axes)  # type: ignore[arg-type]


def _singular(c: Context, a: Value, axes: Axes) -> Value:
    """The singular values of matrices in these two axes, along a new last one."""
    rest = [axis for axis in range(a.rank) if axis not in axes]
    return singular_values(c, c.builder.transpose(a, [*rest, *axes]))


def matrix_norm(
    c: Context,
    self: Value,
    ord: Number | str = "fro",
    dim: Axes = (-2, -1),
    keepdim: bool = False,
    dtype: ElementType | None = None,
) -> Value:
    """The norm of matrices: "fro", "nuc", the largest (order > 0) or the smallest sum of sizes of a
    column (1) or a row (inf), or singular value (2)."""
    first, second = axes = [axis_of(axis, self.rank) for axis in dim]
    if ord == "fro":
        return vector_norm(c, self, 2, axes, keepdim)
    if isinstance(ord, str) or abs(ord) == 2:  # type: ignore[arg-type]
        values = _singular(c, self if dtype is None else c.convert(self, dtype), axes)
        last = [values.rank - 1]
        whole = isinstance(ord, str)
        result = c.reduce("add", values, last) if whole else _extreme(c, values, ord, last)  # type: ignore[arg-type]
    else:
        if abs(ord) == math.inf:  # type: ignore[arg-type]
            first, second = second, first
        sums = c.reduce("add", size_of(c, self, c.element), [first])
        result = _extreme(c, sums, ord, [second - (first < second)])
    return c.narrow(kept_dims(c, result, self.dims, axes, keepdim))


def norm(
    c: Context,
    self: Value,
    ord: Number | str | None = None,
    dim: Any = None,
    keepdim: bool = False,
    dtype: ElementType | None = None,
) -> Value:
    """torch.linalg.norm: of matrices where an order is given for two dimensions, else of vectors;
    of all elements where nothing is given."""
    axes = [dim] if isinstance(dim, int) else dim
    pair = (0, 1) if axes is None else axes
    if ord is not None and (isinstance(ord, str) or len(pair if axes else self.dims) == 2):
        return matrix_norm(c, self, ord, pair, keepdim, dtype)
    return vector_norm(c, self, 2 if ord is None else ord, axes, keepdim)


def frobenius_norm(c: Context, self: Value, dim: Axes, keepdim: bool = False) -> Value:
    return vector_norm(c, self, 2, dim, keepdim)


def nuclear_norm(c: Context, self: Value, keepdim: bool = False) -> Value:
    return matrix_norm(c, self, "nuc", (-2, -1), keepdim)


def nuclear_norm_along(c: Context, self: Value, dim: Axes, keepdim: bool = False) -> Value:
    return matrix_norm(c, self, "nuc", dim, keepdim)


def norm_except(c: Context, v: Value, pow: int = 2, dim: int = 0) -> Value:
    """The norms over all dimensions but one; over all for -1."""
    axes = [axis for axis in range(v.rank) if axis != dim]
    return vector_norm(c, v, pow, axes, dim != -1) if axes else c("abs", v)


def condition(c: Context, self: Value, p: Number | str | None = None) -> Value:
    """The norm of a matrix times that of its inverse, infinite where it has none."""
    if 0 in self.dims[-2:]:
        return c.full(0, c.dims, c.element)
    axes = (self.rank - 2, self.rank - 1)
    if p in (None, 2, -2, "nuc"):
        values = _singular(c, self, axes)
        last = [values.rank - 1]
        if p == "nuc":
            parts = (values, c.divide(1, values))
            return c("multiply", *(c.reduce("add", part, last) for part in parts))
        large, small = (_extreme(c, values, sign, last) for sign in (1, -1))
        return c("divide", small, large) if p == -2 else c("divide", large, small)
    inverse, info = inverse_ex(c, self)
    singular = c.along(c.compare("NE", info, 0), inverse.dims, axes)
    inverse = c.select(singular, math.inf, inverse)
    return c("multiply", *(matrix_norm(c, a, p) for a in (self, inverse)))  # type: ignore[arg-type]


def rank(
    c: Context, input: Value, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Value:
    """How many singular values, or eigenvalues if hermitian, are above the tolerance."""
    if 0 in input.dims:
        return c.full(0, c.dims, I64)
    values = c("abs", eigvalsh(c, input)) if hermitian else singular_values(c, input)
    last = values.rank - 1
    largest = c.builder.reshape(c.reduce("maximum", values, [last]), (*values.dims[:last], 1))
    limit = tolerance(c, input, largest, *tolerances(c, atol, rtol))
    values = c.spread(values, (*limit.dims[:-1], values.dims[last]))
    above = c.builder.compare("GT", values, c.spread(limit, values.dims))
    return c.reduce("add", c.convert(above, I64), [above.rank - 1])


def rank_above(c: Context, input: Value, tol: Any, hermitian: bool = False) -> Value:
    return rank(c, input, tol, 0.0, hermitian)


def float_rank(
    c: Context, self: Value, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Value:
    return rank(c, self, atol, rtol, hermitian)


def float_rank_above(c: Context, self: Value, tol: float, hermitian: bool = False) -> Value:
    return rank(c, self, tol, 0.0, hermitian)


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.linalg_cond.{kind}": condition for kind in ("default", "p_str")},
    **{f"aten.linalg_matrix_norm.{kind}": matrix_norm for kind in ("default", "str_ord")},
    **{f"aten.linalg_norm.{kind}": norm for kind in ("default", "ord_str")},
    "aten.frobenius_norm.dim": frobenius_norm,
    "aten.linalg_matrix_rank.atol_rtol_float": float_rank,
    "aten.linalg_matrix_rank.atol_rtol_tensor": rank,
    "aten.linalg_matrix_rank.default": float_rank_above,
    "aten.linalg_matrix_rank.tol_tensor": rank_above,
    "aten.norm_except_dim.default": norm_except,
    "aten.nuclear_norm.default": nuclear_norm,
    "aten.nuclear_norm.dim": nuclear_norm_along,
}
