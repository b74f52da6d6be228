"""Sorting: sort, argsort, topk, median, mode, quantile, ...; nan counts as the largest value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.build import build_region
from ....hlo.graph import Region, Value
from ....hlo.types import I1, I64, ElementType, TensorType
from ..context import Context, axis_of, sized
from .indexing import gather
from .reductions import extreme_place
from .running import running_of


def _before(element: ElementType, descending: bool) -> Region:
    """Whether one (value, position) pair stands before another."""
    scalar, position = TensorType((), element), TensorType((), I64)

    def body(b: Any, left: Value, right: Value, *positions: Value) -> list[Value]:
        if descending:
            left, right = right, left
        less = b.compare("LT", left, right)
        if element.is_float:
            rising = b("and", b.compare("NE", right, right), b.compare("EQ", left, left))
            less = b("or", less, rising)
        return [less]

    return build_region([scalar, scalar, position, position], body)


def sorted_along(c: Context, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """Sorted values and where they came from; equal values keep their order."""
    op = c.builder.op(
        "sort", [x, c.iota(x.dims, axis)], {"dimension": axis, "is_stable": True},
        [_before(x.element, descending)],
    )  # fmt: skip
    return op.results[0], op.results[1]


def sort(
    c: Context,
    self: Value,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = None,
) -> tuple[Value, Value]:
    if not self.rank:
        return self, c.full(0, (), I64)
    return sorted_along(c, self, axis_of(dim, self.rank), descending)


def sort_stable(
    c: Context, self: Value, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return sort(c, self, dim, descending)


def argsort(
    c: Context, self: Value, dim: int = -1, descending: bool = False, stable: bool = False
) -> Value:
    return sort(c, self, dim, descending)[1]


def topk(
    c: Context, self: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """The k largest (or smallest) values along one dimension, best first, and their positions."""
    if not self.rank:
        return self, c.full(0, (), I64)
    axis = axis_of(dim, self.rank)
    count = sized(k)
    known = isinstance(count, int) and isinstance(self.dims[axis], int)
    if largest and known and self.element is not I1:
        return _largest(c, self, axis, count)
    values, places = sorted_along(c, self, axis, largest)
    return c.slice(values, axis, 0, count), c.slice(places, axis, 0, count)


def _largest(c: Context, x: Value, axis: int, count: int) -> tuple[Value, Value]:
    """The same as `chlo.top_k`, which orders zeros by their signs, and nans as well: so both have
    none."""
    b, order = c.builder, list(range(x.rank))
    order[axis], order[-1] = order[-1], order[axis]
    x = b.transpose(x, order)
    if x.element.is_float:
        unsigned = b("add", x, c.fill(0.0, x.tensor))
        x = b("select", b.compare("EQ", x, x), unsigned, c.fill(math.nan, x.tensor))
    values, places = b.op("chlo.top_k", [x], {"k": count}).results
    return b.transpose(values, order), c.convert(b.transpose(places, order), I64)


def kthvalue(
    c: Context, self: Value, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    """The k-th smallest value along one dimension, and its position."""
    if not self.rank:
        return self, c.full(0, (), I64)
    axis = axis_of(dim, self.rank)
    parts = sorted_along(c, self, axis, False)
    values, places = (c.slice(part, axis, k - 1, k) for part in parts)
    return c.builder.reshape(values, c.dims), c.builder.reshape(places, c.dims)


def median(c: Context, self: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower of the middle values along one dimension, and its position; nan where one is."""
    return _middle(c, self, dim, keepdim, passes=False)


def nanmedian(c: Context, self: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The median of what is no nan."""
    return _middle(c, self, dim, keepdim, passes=True)


def _middle(c: Context, x: Value, dim: int, keepdim: bool, passes: bool) -> tuple[Value, Value]:
    """The median and its position. passes: over nan, which sorting puts behind all numbers."""
    if not x.rank:
        return x, c.full(0, (), I64)
    axis = axis_of(dim, x.rank)
    values, places = sorted_along(c, x, axis, False)
    size = x.dims[axis]
    valid = c.builder.compare("EQ", x, x) if x.element.is_float else c.full(True, x.dims, I1)
    count = c.reduce("add", c.convert(valid, I64), [axis])
    half = c("divide", c("maximum", c.subtract(count, 1), c.fill(0, count.tensor)),
             c.fill(2, count.tensor))  # fmt: skip
    if not passes:
        whole = c.builder.compare("EQ", count, c.fill(size, count.tensor))
        half = c("select", whole, half, count)  # the first nan
    chosen = c.builder.compare("EQ", c.iota(x.dims, axis), c.along(half, x.dims, [axis]))
    return _chosen(c, chosen, axis, values, places)


def mode(c: Context, self: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The value that is most frequent along one dimension, the smallest of several, and the last
    position of it."""
    if not self.rank:
        return self, c.full(0, (), I64)
    axis = axis_of(dim, self.rank)
    size = self.dims[axis]
    values, places = sorted_along(c, self, axis, False)
    line = c.iota(self.dims, axis)
    pads = [(0, 0, 0)] * self.rank
    pads[axis] = (1, -1, 0)
    changed = c.builder.compare("NE", values, c.pad(values, 0, pads))
    first = c("or", changed, c.compare("EQ", line, 0))
    start = running_of(c, "maximum", c.select(first, line, 0), axis)
    pads[axis] = (-1, 1, 0)
    last = c("or", c.pad(changed, False, pads), c.compare("EQ", line, c.subtract(c.size(size), 1)))
    count = c.select(last, c.add(c("subtract", line, start), 1), 0)
    best = extreme_place(c, count, axis, largest=True)[1]
    chosen = c.builder.compare("EQ", line, c.along(best, self.dims, [axis]))
    return _chosen(c, chosen, axis, values, places)


def _chosen(c: Context, chosen: Value, axis: int, *parts: Value) -> Any:
    """Of each part the one element along an axis that is chosen, in the declared dims."""
    found = []
    for part in parts:
        name = "or" if part.element is I1 else "add"
        only = c.reduce(name, c.select(chosen, part, 0), [axis])
        found.append(c.builder.reshape(only, c.dims))
    return tuple(found)


def quantile(passes: bool) -> Callable[..., Value]:
    """quantile and nanquantile. passes: over nan; else a line with one is nan."""

    def lower(
        c: Context,
        self: Value,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        interpolation: str = "linear",
    ) -> Value:
        if dim is None or not self.rank:
            x, axis = c.builder.reshape(self, (math.prod(self.dims),)), 0
        else:
            x, axis = self, axis_of(dim, self.rank)
        shares = q if isinstance(q, Value) else c.scalar(q, x.element)
        shares = c.builder.reshape(shares, (math.prod(shares.dims),))
        values = sorted_along(c, x, axis, False)[0]
        rest = [other for other in range(x.rank) if other != axis]
        values = c.builder.transpose(values, [*rest, axis])
        found = _between(c, values, shares, interpolation, passes)
        last = found.rank - 1
        return c.builder.reshape(c.builder.transpose(found, [last, *range(last)]), c.dims)

    return lower


def _between(c: Context, values: Value, shares: Value, interpolation: str, passes: bool) -> Value:
    """[..., q]: what stands at each share of the way through sorted values [..., n]."""
    element, size = values.element, values.dims[-1]
    dims = (*values.dims[:-1], *shares.dims)
    lead = range(values.rank - 1)
    end = c.spread(c.size(size - 1, element), values.dims[:-1])
    numbers = c.convert(c.builder.compare("EQ", values, values), element)
    last = c.subtract(c.reduce("add", numbers, [values.rank - 1]), 1)  # that is no nan
    whole = c.builder.broadcast(c.builder.compare("EQ", last, end), dims, lead)
    end = c.builder.broadcast(end, dims, lead)
    limit = c.builder.broadcast(c.binary("maximum", last, 0), dims, lead) if passes else end
    place = c("multiply", c.spread(shares, dims), limit)
    place = place if passes else c("select", whole, place, end)

    def at(name: str) -> Value:
        return gather(c, values, values.rank - 1, c.convert(c(name, place), I64))

    nearest = {"lower": "floor", "higher": "ceil", "nearest": "round_nearest_even"}
    if interpolation in nearest:
        return at(nearest[interpolation])
    low, high = at("floor"), at("ceil")
    gap = c("subtract", high, low)
    if interpolation == "midpoint":
        return c("add", low, c.multiply(gap, 0.5))
    share = c("subtract", place, c("floor", place))
    rising = c("add", low, c("multiply", gap, share))
    falling = c("subtract", high, c("multiply", gap, c.subtract(1, share)))
    return c("select", c.compare("LT", share, 0.5), rising, falling)


def msort(c: Context, self: Value) -> Value:
    return sort(c, self, 0)[0]


def _of_all(middle: Callable[..., tuple[Value, Value]]) -> Callable[..., Value]:
    """The same over all elements: the value alone."""

    def lower(c: Context, self: Value) -> Value:
        return middle(c, c.builder.reshape(self, (math.prod(self.dims),)))[0]

    return lower


TABLE: dict[str, Callable[..., Any]] = {
    "aten.argsort.default": argsort,
    "aten.argsort.stable": argsort,
    "aten.kthvalue.default": kthvalue,
    "aten.median.default": _of_all(median),
    "aten.median.dim": median,
    "aten.mode.default": mode,
    "aten.msort.default": msort,
    "aten.nanmedian.default": _of_all(nanmedian),
    "aten.nanmedian.dim": nanmedian,
    **{f"aten.quantile.{kind}": quantile(False) for kind in ("default", "scalar")},
    **{f"aten.nanquantile.{kind}": quantile(True) for kind in ("default", "scalar")},
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.topk.default": topk,
}
