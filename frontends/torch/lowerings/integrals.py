"""Integrals and slopes of samples along a dimension: trapezoid, gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.decomposed import Term
from ....hlo.symbols import Dim
from ....hlo.types import F32, I64, ElementType
from ..context import Context, Number, axis_of
from ..promotion import promote
from .running import differences_of, running_of

# Integrals by the trapezoidal rule. Sums of neighbours are in the samples' own type, as PyTorch's.


def _summands(c: Context, x: Value) -> Value:
    """As wide as sums of them are: whole numbers as i64."""
    return c.convert(x, I64) if x.element.is_integer else c.wide(x)


def _neighbours(c: Context, y: Value, axis: int) -> Value:
    size = y.dims[axis]
    return c("add", c.slice(y, axis, 0, size - 1), c.slice(y, axis, 1, size))


def _areas(c: Context, y: Value, x: Value, axis: int) -> Value:
    """Twice the area between each two neighbours; their places are a vector, or have y's last
    dims."""
    dims = [*(1,) * (y.rank - x.rank), *x.dims]
    if x.rank == 1:
        dims = [1] * y.rank
        dims[axis] = x.dims[0]
    steps = differences_of(c, c.builder.reshape(x, dims), axis)
    return _summands(c, c("multiply", *c.together(_neighbours(c, y, axis), steps)))


def _half(c: Context, value: Value) -> Value:
    return c.narrow(c.divide(c.wide(c.convert(value, c.element)), 2))


def integral(c: Context, y: Value, x: Value, dim: int = -1) -> Value:
    """trapezoid.x: the integral of y at places x."""
    axis = axis_of(dim, y.rank)
    if y.dims[axis] == 0:
        return c.full(0, c.dims, c.element)
    return _half(c, c.reduce("add", _areas(c, y, x, axis), [axis]))


def even_integral(c: Context, y: Value, dx: Number = 1, dim: int = -1) -> Value:
    """trapezoid.dx: the same at places `dx` apart: their sum less half of both ends."""
    axis = axis_of(dim, y.rank)
    size = y.dims[axis]
    if size == 0:
        return c.full(0, c.dims, c.element)
    ends = c("add", c.slice(y, axis, 0, 1), c.slice(y, axis, size - 1, size))
    total = c.reduce("add", _summands(c, y), [axis])
    both = c.builder.reshape(ends, total.dims)
    total, both = (c.wide(c.convert(value, c.element)) for value in (total, both))
    return c.narrow(c.multiply(c("subtract", total, c.multiply(both, 0.5)), dx))


def running_integral(c: Context, y: Value, x: Value, dim: int = -1) -> Value:
    """cumulative_trapezoid.x: the integral from the first place to each of the others."""
    axis = axis_of(dim, y.rank)
    return _half(c, running_of(c, "add", _areas(c, y, x, axis), axis))


def even_running_integral(c: Context, y: Value, dx: Number = 1, dim: int = -1) -> Value:
    """cumulative_trapezoid.dx."""
    axis = axis_of(dim, y.rank)
    areas = c.wide(c.convert(_neighbours(c, y, axis), c.element))
    return c.narrow(running_of(c, "add", c.multiply(areas, dx / 2), axis))  # type: ignore[operator]


# Slopes: parabolas through three neighbours; at the ends lines (order 1) or parabolas (2).


def _even_slope(c: Context, x: Value, axis: int, step: Number, order: int) -> Value:
    """Differences are in the samples' own type, as PyTorch's."""
    size = x.dims[axis]

    def slope(first: Dim, count: Dim, apart: int) -> Value:
        """Of `count` pairs of elements that are so far apart."""
        parts = (c.slice(x, axis, start, start + count) for start in (first + apart, first))
        gap = c.wide(c.convert(c("subtract", *parts), _real(x)))
        return c.divide(gap, apart * step)  # type: ignore[operator]

    def bent(*places: Dim) -> Value:
        parts = [
            c.multiply(c.wide(c.convert(c.slice(x, axis, at, at + 1), _real(x))), factor)
            for at, factor in zip(places, (-1.5, 2.0, -0.5), strict=True)
        ]
        return c.divide(c("add", c("add", parts[0], parts[1]), parts[2]), step)

    if order == 1:
        ends = slope(0, 1, 1), slope(size - 2, 1, 1)
    else:
        ends = bent(0, 1, 2), c("negate", bent(size - 1, size - 2, size - 3))
    return c.concatenate([ends[0], slope(0, size - 2, 2), ends[1]], axis)


def _real(x: Value) -> ElementType:
    return F32 if x.element.is_integer else x.element


def _slope(c: Context, x: Value, axis: int, places: Value, order: int) -> Value:
    """The slopes at these places, a vector."""
    element = promote(_real(x), _real(places))
    size, steps = x.dims[axis], differences_of(c, places, 0)
    x, steps = (c.wide(c.convert(value, element)) for value in (x, steps))

    def step(first: Dim, count: Dim = 1) -> Term:
        dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
        part = c.slice(steps, 0, first, first + count)
        return Term(c.builder, c.builder.broadcast(part, dims, [axis]))

    def at(first: Dim, count: Dim = 1) -> Term:
        return Term(c.builder, c.slice(x, axis, first, first + count))

    def line(first: Dim) -> Term:
        return (at(first + 1) - at(first)) / step(first)

    def bent(h: Term, k: Term, *values: Term) -> Term:
        """At the first of three elements, from which the next one is h, and that the last one k
        away."""
        first, second, third = values
        rise = second * ((h + k) / (h * k)) - third * (h / (k * (h + k)))
        return rise - first * ((2.0 * h + k) / (h * (h + k)))

    if order == 1:
        ends = line(0), line(size - 2)
    else:
        last = bent(step(size - 2), step(size - 3), at(size - 1), at(size - 2), at(size - 3))
        ends = bent(step(0), step(1), at(0), at(1), at(2)), -last
    h, k = step(0, size - 2), step(1, size - 2)
    middle = at(2, size - 2) * (h / (k * (h + k))) - at(0, size - 2) * (k / (h * (h + k)))
    middle = middle + at(1, size - 2) * ((k - h) / (h * k))
    return c.concatenate([ends[0].value, middle.value, ends[1].value], axis)


def gradient(
    c: Context, self: Value, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Value, ...]:
    """The slopes along each dimension, or along `dim`; `spacing`: how far samples are apart, for
    all or each of them, or where they are."""
    axes = range(self.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    each = (
        spacing
        if isinstance(spacing, Sequence)
        else [1 if spacing is None else spacing] * len(axes)
    )
    found = []
    for axis, step in zip(axes, each, strict=True):
        at = axis_of(axis, self.rank)
        if isinstance(step, Value):
            value = _slope(c, self, at, step, edge_order)
        else:
            value = _even_slope(c, self, at, step, edge_order)
        found.append(c.narrow(value, len(found)))
    return tuple(found)


_OVERLOADS = (
    "array", "scalararray", "scalarint", "scalarrayarray", "scalarrayint", "tensorarray",
    "tensorarrayint",
)  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.gradient.{kind}": gradient for kind in _OVERLOADS},
    **{f"aten.{name}.dx": even_integral for name in ("trapezoid", "trapz")},
    **{f"aten.{name}.x": integral for name in ("trapezoid", "trapz")},
    "aten.cumulative_trapezoid.dx": even_running_integral,
    "aten.cumulative_trapezoid.x": running_integral,
}
