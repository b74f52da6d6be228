"""Reductions: sum, mean, max, argmax, any, var, norm, logsumexp, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.build import build_region
from ....hlo.graph import Region, Value
from ....hlo.symbols import Dim
from ....hlo.types import C64, C128, F32, F64, I1, I64, ElementType, TensorType, real_type
from ..context import (
    Context,
    Number,
    axes_of,
    axis_of,
    highest,
    is_low,
    lowest,
)  # fmt: skip

Axes = Any  # None, an int or a list of ints


def kept_dims(
    c: Context, value: Value, dims: Sequence[Any], axes: Sequence[int], keep: bool
) -> Value:
    """A reduced value with its lost axes as size 1 if they are to be kept."""
    if not keep:
        return value
    return c.builder.reshape(value, [1 if axis in axes else d for axis, d in enumerate(dims)])


def total(
    c: Context, self: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """Sum over `dim`; bf16 and f16 accumulate in f32."""
    axes = axes_of(dim, self.rank)
    x = c.wide(c.convert(self, c.element))
    return c.narrow(kept_dims(c, c.reduce("add", x, axes), self.dims, axes, keepdim))


def total_all(c: Context, self: Value, dtype: Any = None) -> Value:
    return total(c, self)


def sum_of_numbers(
    c: Context, self: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """nansum: the sum of what is no nan."""
    if self.element.is_float:
        self = c.select(c.is_nan(self), 0, self)
    return total(c, self, dim, keepdim)


def sum_to_size(c: Context, self: Value, size: Sequence[Any]) -> Value:
    """Sums over what broadcasting from `size` to self's dims repeats."""
    first = self.rank - len(size)
    one = [axis for axis in range(first, self.rank) if c.dims[axis - first] == 1]
    axes = [*range(first), *(axis for axis in one if self.dims[axis] != 1)]
    total = c.reduce("add", c.wide(c.convert(self, c.element)), axes)
    return c.builder.reshape(c.narrow(total), c.dims)


def mean(
    c: Context, self: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """Sum over `dim` divided by the number of elements."""
    axes = axes_of(dim, self.rank)
    x = c.wide(c.convert(self, c.element))
    result = c.mean(c.reduce("add", x, axes), x, axes)
    return c.narrow(kept_dims(c, result, self.dims, axes, keepdim))


def mean_of_numbers(
    c: Context, self: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """nanmean: the mean of what is no nan."""
    axes = axes_of(dim, self.rank)
    x = c.wide(c.convert(self, c.element))
    valid = c.builder.compare("EQ", x, x)
    total = c.reduce("add", c.select(valid, x, 0), axes)
    result = c("divide", total, c.reduce("add", c.convert(valid, x.element), axes))
    return c.narrow(kept_dims(c, result, self.dims, axes, keepdim))


def mean_all(c: Context, self: Value, dtype: Any = None) -> Value:
    return mean(c, self)


def extreme(body: str) -> Callable[..., Value]:
    """amax and amin: nan wins."""

    def lower(c: Context, self: Value, dim: Axes = (), keepdim: bool = False) -> Value:
        axes = axes_of(dim, self.rank)
        name = {"maximum": "or", "minimum": "and"}[body] if self.element is I1 else body
        return kept_dims(c, c.reduce(name, self, axes), self.dims, axes, keepdim)

    return lower


def both_extremes(
    c: Context, self: Value, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """aminmax: the smallest and the largest value."""
    low, high = (extreme(body)(c, self, dim, keepdim) for body in ("minimum", "maximum"))
    return low, high


def extreme_all(body: str) -> Callable[..., Value]:
    def lower(c: Context, self: Value) -> Value:
        return extreme(body)(c, self)

    return lower


def product(c: Context, self: Value, dtype: Any = None) -> Value:
    x = c.wide(c.convert(self, c.element))
    return c.narrow(c.reduce("multiply", x, range(x.rank)))


def product_along(
    c: Context, self: Value, dim: int, keepdim: bool = False, dtype: Any = None
) -> Value:
    axes = axes_of(dim, self.rank)
    x = c.wide(c.convert(self, c.element))
    return c.narrow(kept_dims(c, c.reduce("multiply", x, axes), self.dims, axes, keepdim))


def truth(body: str) -> Callable[..., Value]:
    """any ("or") and all ("and")."""

    def lower(c: Context, self: Value, dim: Axes = None, keepdim: bool = False) -> Value:
        axes = axes_of(dim, self.rank)
        result = c.reduce(body, c.convert(self, I1), axes)
        return c.narrow(kept_dims(c, result, self.dims, axes, keepdim))

    return lower


# The place of an extreme.


def better(largest: bool, element: ElementType, last: bool = False) -> Region:
    """Of two (value, position) pairs the larger value, nan above all; of equal ones the first, or
    the last."""
    scalar, position = TensorType((), element), TensorType((), I64)

    def body(b: Any, value: Value, at: Value, other: Value, other_at: Value) -> list[Value]:
        wins = b.compare("GT" if largest else "LT", other, value)
        same = b.compare("EQ", value, other)
        if element.is_float:
            nan, other_nan = b.compare("NE", value, value), b.compare("NE", other, other)
            wins = b("or", wins, b("and", other_nan, b("not", nan)))
            wins = b("and", wins, b("not", nan))
            same = b("or", same, b("and", nan, other_nan))
        wins = b("or", wins, b("and", same, b.compare("GT" if last else "LT", other_at, at)))
        return [b("select", wins, other, value), b("select", wins, other_at, at)]

    return build_region([scalar, position] * 2, body)


def extreme_place(c: Context, x: Value, axis: int, largest: bool) -> tuple[Value, Value]:
    """The extreme along an axis and its first position (i64)."""
    worst = lowest(x.element) if largest else highest(x.element)
    operands = [
        x, c.iota(x.dims, axis), c.scalar(worst, x.element), c.scalar(2**63 - 1, I64)
    ]  # fmt: skip
    region = better(largest, x.element)
    op = c.builder.op("reduce", operands, {"dimensions": (axis,)}, [region])
    return op.results[0], op.results[1]


def argument_of(largest: bool) -> Callable[..., Value]:
    """argmax and argmin; without a dimension, of the flat tensor."""

    def lower(c: Context, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if not self.rank:
            return c.full(0, (), I64)
        if dim is None:
            flat = c.builder.reshape(self, (math.prod(self.dims),))
            place = extreme_place(c, flat, 0, largest)[1]
            return c.builder.reshape(place, c.dims)
        axis = axis_of(dim, self.rank)
        place = extreme_place(c, self, axis, largest)[1]
        return kept_dims(c, place, self.dims, (axis,), keepdim)

    return lower


def extreme_along(largest: bool) -> Callable[..., tuple[Value, Value | None]]:
    """max.dim and min.dim: values and their positions."""

    def lower(
        c: Context, self: Value, dim: int, keepdim: bool = False
    ) -> tuple[Value, Value | None]:
        if not self.rank:
            return self, c.full(0, (), I64)
        axis = axis_of(dim, self.rank)
        if not c.used[1]:
            body = "maximum" if largest else "minimum"
            return extreme(body)(c, self, axis, keepdim), None
        value, place = extreme_place(c, self, axis, largest)
        return tuple(kept_dims(c, v, self.dims, (axis,), keepdim) for v in (value, place))  # type: ignore[return-value]

    return lower


# Spread.


def mean_and_variance(
    c: Context, x: Value, axes: Sequence[int], correction: Number = 0
) -> tuple[Value, Value, Value]:
    """Mean, variance and x - mean; two passes, as PyTorch's own precision needs. The variance of
    complex numbers is that of their distances from the mean."""
    count = c.count(x.dims, axes)
    middle = c.divide(c.reduce("add", x, axes), count)
    centred = c("subtract", x, c.along(middle, x.dims, axes))
    parts = [c(name, centred) for name in ("real", "imag")] if x.element.is_complex else [centred]
    squares, *others = (c.reduce("add", c("multiply", part, part), axes) for part in parts)
    for other in others:
        squares = c("add", squares, other)
    variance = _by_degrees(c, squares, count, correction)
    return middle, variance, centred


def _by_degrees(c: Context, squares: Value, count: Dim, correction: Number) -> Value:
    """squares / max(count - correction, 0); nan where that is 0."""
    if isinstance(count, int):
        divisor = max(float(count - correction), 0.0)  # type: ignore[operator]
        return c.divide(squares, divisor) if divisor else c.multiply(squares, math.nan)
    if isinstance(correction, int):  # squares of one element are 0: 0 / 0 is nan
        return c.divide(squares, c.larger(count - correction, 0))
    degrees = c.subtract(c.size(count, F64), correction)
    degrees = c.convert(c.binary("maximum", degrees, 0.0), squares.element)
    return c("divide", squares, c.spread(degrees, squares.dims))


def variance(root: bool, with_mean: bool = False) -> Callable[..., Any]:
    """var, std, var_mean and std_mean."""

    def lower(
        c: Context,
        self: Value,
        dim: Axes = None,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> Any:
        axes = axes_of(dim, self.rank)
        x = c.wide(self)
        middle, result, _ = mean_and_variance(c, x, axes, 1 if correction is None else correction)
        result = c("sqrt", result) if root else result
        result = c.narrow(kept_dims(c, result, self.dims, axes, keepdim))
        if not with_mean:
            return result
        return result, c.narrow(kept_dims(c, middle, self.dims, axes, keepdim), 1)

    return lower


def unbiased(root: bool, with_mean: bool = False) -> Callable[..., Any]:
    """The older spelling of `variance`: a flag for a correction of 1."""
    body = variance(root, with_mean)

    def along(
        c: Context, self: Value, dim: Axes, unbiased: bool = True, keepdim: bool = False
    ) -> Any:
        return body(c, self, dim, int(unbiased), keepdim)

    return along


def unbiased_all(root: bool, with_mean: bool = False) -> Callable[..., Any]:
    def lower(c: Context, self: Value, unbiased: bool = True) -> Any:
        return variance(root, with_mean)(c, self, None, int(unbiased))

    return lower


def vector_norm(
    c: Context,
    self: Value,
    ord: Number = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    """(sum |self|^ord)^(1/ord); the largest and smallest size for ord = inf and -inf."""
    axes = axes_of(dim, self.rank)
    result = power_norm(c, size_of(c, self, c.element), ord, axes)
    return c.narrow(kept_dims(c, result, self.dims, axes, keepdim))


def size_of(c: Context, x: Value, element: ElementType) -> Value:
    """|x| in a real element type, or in f32 where that has 16 bits."""
    wide = F32 if is_low(element) else element
    if not x.element.is_complex:
        return c("abs", c.convert(x, wide))
    return c("abs", c.convert(x, C128 if wide is F64 else C64))


def power_norm(c: Context, size: Value, p: Number, axes: Sequence[int]) -> Value:
    """sum(size ** p) ** (1 / p) over axes, of what is not negative: the largest and the smallest
    for p = inf and -inf, how many are not 0 for p = 0."""
    if p == 0:
        return c.reduce("add", c.convert(c.convert(size, I1), size.element), axes)
    if p == 1:
        return c.reduce("add", size, axes)
    if p == 2:
        return c("sqrt", c.reduce("add", c("multiply", size, size), axes))
    if p == math.inf:  # of nothing: 0
        return c.binary("maximum", c.reduce("maximum", size, axes), 0)
    if p == -math.inf:
        return c.reduce("minimum", size, axes)
    powers = c("power", size, c.full(p, size.dims, size.element))
    total = c.reduce("add", powers, axes)
    return c("power", total, c.full(1 / p, total.dims, total.element))  # type: ignore[operator]


def distance(c: Context, self: Value, other: Value, p: Number = 2) -> Value:
    """torch.dist: the p-norm of the difference."""
    x, y = c.together(self, other)
    gap = size_of(c, c("subtract", x, y), c.element)
    return c.narrow(power_norm(c, gap, p, range(gap.rank)))


def renorm(c: Context, self: Value, p: Number, dim: int, maxnorm: Number) -> Value:
    """Each part self[..., i, ...] along `dim` scaled so that its p-norm is at most `maxnorm`."""
    axis = axis_of(dim, self.rank)
    axes = [other for other in range(self.rank) if other != axis]
    norms = power_norm(c, size_of(c, self, real_type(self.element)), p, axes)
    factor = c.divide(maxnorm, c.add(norms, 1e-7))
    factor = c.select(c.compare("GT", norms, maxnorm), factor, 1)
    return c("multiply", self, c.along(c.convert(factor, self.element), self.dims, axes))


def norm(
    c: Context, self: Value, p: Number | None = 2, dim: Axes = None, keepdim: bool = False,
    dtype: Any = None,
) -> Value:  # fmt: skip
    return vector_norm(c, self, 2 if p is None else p, dim, keepdim)


def logsumexp(c: Context, self: Value, dim: Axes, keepdim: bool = False) -> Value:
    """log(sum(exp(self))), shifted by the maximum (of real parts) where that is finite."""
    axes = axes_of(dim, self.rank)
    x = c.wide(c.convert(self, c.element))
    top = c.reduce("maximum", c("real", x) if x.element.is_complex else x, axes)
    top = c.select(c("is_finite", top), top, c.full(0, top.dims, top.element))
    top = c.convert(top, x.element)
    grown = c("exponential", c("subtract", x, c.along(top, x.dims, axes)))
    result = c("add", c("log", c.reduce("add", grown, axes)), top)
    return c.narrow(kept_dims(c, result, self.dims, axes, keepdim))


def count_nonzero(c: Context, self: Value, dim: Axes = None) -> Value:
    axes = axes_of(dim, self.rank)
    return c.reduce("add", c.convert(c.convert(self, I1), I64), axes)


_MAX, _MIN = extreme("maximum"), extreme("minimum")
_ANY, _ALL = truth("or"), truth("and")

TABLE: dict[str, Callable[..., Any]] = {
    "aten._is_all_true.default": truth("and"),
    "aten._is_any_true.default": truth("or"),
    **{f"aten.any.{kind}": _ANY for kind in ("default", "dim", "dims")},
    **{f"aten.all.{kind}": _ALL for kind in ("default", "dim", "dims")},
    **{f"aten.count_nonzero.{kind}": count_nonzero for kind in ("default", "dim_IntList")},
    **{
        f"aten.norm.{kind}": norm
        for kind in ("Scalar", "ScalarOpt_dim", "ScalarOpt_dim_dtype", "ScalarOpt_dtype")
    },
    **{f"aten._aminmax.{kind}": both_extremes for kind in ("default", "dim")},
    "aten.amax.default": _MAX,
    "aten.amin.default": _MIN,
    "aten.aminmax.default": both_extremes,
    "aten.argmax.default": argument_of(True),
    "aten.argmin.default": argument_of(False),
    "aten.dist.default": distance,
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.logsumexp.default": logsumexp,
    "aten.max.default": extreme_all("maximum"),
    "aten.max.dim": extreme_along(True),
    "aten.mean.default": mean_all,
    "aten.mean.dim": mean,
    "aten.min.default": extreme_all("minimum"),
    "aten.min.dim": extreme_along(False),
    "aten.nanmean.default": mean_of_numbers,
    "aten.nansum.default": sum_of_numbers,
    "aten.prod.default": product,
    "aten.prod.dim_int": product_along,
    "aten.renorm.default": renorm,
    "aten.std.correction": variance(True),
    "aten.std.default": unbiased_all(True),
    "aten.std.dim": unbiased(True),
    "aten.std_mean.correction": variance(True, True),
    "aten.std_mean.default": unbiased_all(True, True),
    "aten.std_mean.dim": unbiased(True, True),
    "aten.sum.default": total_all,
    "aten.sum.dim_IntList": total,
    "aten.sum_to_size.default": sum_to_size,
    "aten.var.correction": variance(False),
    "aten.var.default": unbiased_all(False),
    "aten.var.dim": unbiased(False),
    "aten.var_mean.correction": variance(False, True),
    "aten.var_mean.default": unbiased_all(False, True),
    "aten.var_mean.dim": unbiased(False, True),
}
