"""Counting values and places between edges: bucketize, searchsorted, histc, histogram, bincount,
segment_reduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, name_of
from ....hlo.types import I1, I64
from ..context import Blocked, Context, Number, Operand, axis_of, identity
from ..promotion import result_element
from .indexing import gather
from .running import running_of
from .scatters import combine_along, scatter_line

# Places between edges.


def _edges_before(c: Context, edges: Value, x: Value, right: bool) -> Value:
    """How many of the sorted edges [..., n] are below each of x [..., m] (or, with `right`, not
    above it), i64; nan is above all."""
    dims = (*x.dims, edges.dims[-1])
    lead = range(x.rank - 1)
    wide = c.builder.broadcast(x, dims, range(x.rank))
    sorted_edges = c.builder.broadcast(edges, dims, [*lead, x.rank] if edges.rank > 1 else [x.rank])
    left, other = c.together(sorted_edges, wide)
    below = c.builder.compare("LE" if right else "LT", left, other)
    if other.element.is_float:
        below = c("or", below, c.is_nan(other))
    return c.reduce("add", c.convert(below, I64), [x.rank])


def bucketize(
    c: Context, self: Operand, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Value:
    """The number of boundaries below (or, with `right`, not above) each value."""
    return searchsorted(c, boundaries, self, right=right)


def searchsorted(
    c: Context,
    sorted_sequence: Value,
    self: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """Where each value belongs in a sorted sequence, or in the sequence of its row; `sorter` says
    in which order a sequence is sorted."""
    edges = sorted_sequence
    if sorter is not None:
        edges = gather(c, edges, edges.rank - 1, sorter)
    if not isinstance(self, Value):
        self = c.scalar(self, result_element(edges, self))
    flat = self if edges.rank > 1 else c.builder.reshape(self, (math.prod(self.dims),))
    found = _edges_before(c, edges, flat, right or side == "right")
    return c.narrow(c.builder.reshape(found, c.dims))


# Histograms.


def _range_of(c: Context, x: Value, margin: float) -> tuple[Value, Value]:
    """The smallest and the largest element, moved apart by `margin` each where they are equal; 0
    and 1 where there are none."""
    if math.prod(x.dims) == 0:
        return c.scalar(0, x.element), c.scalar(1, x.element)
    low, high = (c.reduce(name, x, range(x.rank)) for name in ("minimum", "maximum"))
    return _apart(c, low, high, margin)


def _apart(c: Context, low: Value, high: Value, margin: float) -> tuple[Value, Value]:
    same = c.builder.compare("EQ", low, high)
    return (
        c("select", same, c.subtract(low, margin), low),
        c("select", same, c.add(high, margin), high),
    )


def _totals(c: Context, place: Value, count: int, weight: Value | None, like: Any) -> Value:
    """[count]: how many of the places are each number, or the sum of their weights; places outside
    are left out."""
    if weight is None:
        weight = c.full(1, place.dims, like)
    flat = c.builder.reshape(c.convert(weight, like), place.dims)
    return scatter_line(c, c.full(0, (count,), like), place, flat, "add")


def count_in_range(
    c: Context, self: Value, bins: int = 100, min: Number = 0, max: Number = 0
) -> Value:
    """histc: how many values fall into each of `bins` equal parts of [min, max], max into the last;
    of the range of the values where min = max. Places are rounded to the type of the values."""
    x = c.builder.reshape(self, (math.prod(self.dims),))
    if min == max:
        low, high = _range_of(c, x, 1.0)
    else:
        low, high = c.scalar(min, x.element), c.scalar(max, x.element)
    low, high = c.spread(low, x.dims), c.spread(high, x.dims)
    share = c.multiply(c("subtract", x, low), bins)
    share = c("divide", share, c("subtract", high, low))
    inside = c("and", c.builder.compare("GE", x, low), c.builder.compare("LE", x, high))
    place = c.convert(c.select(inside, share, -1.0), I64)
    place = c.binary("minimum", place, bins - 1)
    totals = _totals(c, c.select(inside, place, -1), bins, None, c.wide(x).element)
    return c.narrow(totals)


def _even_edges(c: Context, low: Value, high: Value, bins: int) -> Value:
    """bins + 1 edges from low to high at equal distances, counted from the nearer end."""
    dims, element = (bins + 1,), low.element
    place = c.convert(c.iota(dims, 0), element)
    first, last = c.spread(low, dims), c.spread(high, dims)
    step = c.divide(c("subtract", last, first), bins)
    rising = c("add", first, c("multiply", step, place))
    falling = c("subtract", last, c("multiply", step, c.subtract(bins, place)))
    near = c.compare("LT", c.iota(dims, 0), (bins + 1) // 2)
    return c("select", near, rising, falling)


def _bin_of(c: Context, x: Value, edges: Value) -> tuple[Value, Value]:
    """The number of the part between edges in which each of a vector lies, and whether it is in
    any; the last edge belongs to the last part."""
    place = c.subtract(_edges_before(c, edges, x, right=True), 1)
    bins = edges.dims[0] - 1
    first, last = (c.slice(edges, 0, at, at + 1) for at in (0, bins))
    low, high = (c.spread(edge, x.dims) for edge in (first, last))
    inside = c("and", c.builder.compare("GE", x, low), c.builder.compare("LE", x, high))
    return c.binary("minimum", place, bins - 1), inside


def _edges(c: Context, x: Value, bins: Sequence[int], range: Sequence[float] | None) -> list[Value]:
    """The edges of equal parts along each column of x [n, columns]."""
    found = []
    for at, count in enumerate(bins):
        if range:
            ends = [c.scalar(number, x.element) for number in range[2 * at : 2 * at + 2]]
            low, high = _apart(c, ends[0], ends[1], 0.5)
        else:
            low, high = _range_of(c, c.slice(x, 1, at, at + 1), 0.5)
        found.append(_even_edges(c, low, high, count))
    return found


def _counts(
    c: Context, x: Value, edges: Sequence[Value], weight: Value | None, density: bool
) -> Value:
    """How many rows of x [n, columns], or what sum of weights, lie in each box between edges."""
    rows = x.dims[0]
    sizes = [edge.dims[0] - 1 for edge in edges]
    flat, inside = c.full(0, (rows,), I64), c.full(True, (rows,), I1)
    for at, edge in enumerate(edges):
        column = c.builder.reshape(c.slice(x, 1, at, at + 1), (rows,))
        place, within = _bin_of(c, column, edge)
        flat = c("add", c.multiply(flat, sizes[at]), place)
        inside = c("and", inside, within)
    flat = c.select(inside, flat, -1)
    result = c.builder.reshape(_totals(c, flat, math.prod(sizes), weight, x.element), sizes)
    if not density:
        return result
    result = c("divide", result, c.spread(c.reduce("add", result, range(result.rank)), sizes))
    for at, edge in enumerate(edges):
        width = c("subtract", c.slice(edge, 0, 1, sizes[at] + 1), c.slice(edge, 0, 0, sizes[at]))
        result = c("divide", result, c.builder.broadcast(width, sizes, [at]))
    return result


def _column(c: Context, x: Value) -> Value:
    return c.builder.reshape(x, (math.prod(x.dims), 1))


def histogram(
    c: Context,
    self: Value,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    """torch.histogram: counts in `bins` equal parts of the range, and their edges."""
    x = _column(c, self)
    edges = _edges(c, x, [bins], range)
    return _counts(c, x, edges, weight, density), edges[0]


def histogram_between(
    c: Context, self: Value, bins: Value, weight: Value | None = None, density: bool = False
) -> tuple[Value, Value]:
    """torch.histogram with given edges."""
    return _counts(c, _column(c, self), [bins], weight, density), bins


def _rows(c: Context, x: Value) -> Value:
    return c.builder.reshape(x, (math.prod(x.dims[:-1]), x.dims[-1]))


def box_edges(
    c: Context,
    self: Value,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, ...]:
    """The edges of torch.histogramdd."""
    return tuple(_edges(c, _rows(c, self), bins, range))


def box_counts(
    c: Context,
    self: Value,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    """The counts of torch.histogramdd."""
    x = _rows(c, self)
    return _counts(c, x, _edges(c, x, bins, range), weight, density)


def box_counts_between(
    c: Context,
    self: Value,
    bins: Sequence[Value],
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    """The counts of torch.histogramdd with given edges."""
    return _counts(c, _rows(c, self), bins, weight, density)


def box_histogram(
    c: Context,
    self: Value,
    bins: Any,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, ...]:
    """torch.histogramdd: the counts, then the edges of each column: `bins` of them in all or each,
    or where they are."""
    x = _rows(c, self)
    each = [bins] * x.dims[1] if isinstance(bins, int) else bins  # type: ignore[operator]
    edges = each if isinstance(each[0], Value) else _edges(c, x, each, range)
    return _counts(c, x, edges, weight, density), *edges


def bincount(c: Context, self: Value, weights: Value | None = None, minlength: int = 0) -> Value:
    """How often each number occurs, or the sum of its weights; as long as the largest demands."""
    size: Dim = c.dims[0]
    if isinstance(size, int):
        return _totals(c, c.convert(self, I64), size, weights, c.element)
    places = c.convert(self, I64)
    count = c.add(c.reduce("maximum", places, [0]), 1)
    count = c.binary("maximum", c.binary("maximum", count, 0), minlength)
    if (name := name_of(size)) and c.data.lacks(size):
        c.data.bind(name, count)
    return _totals(c, places, size, weights, c.element)  # type: ignore[arg-type]


# Segments.

_SEGMENT = {"sum": "add", "mean": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def segment_reduce(
    c: Context,
    data: Value,
    reduce: str,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Value:
    """`reduce` over consecutive parts of data along an axis, whose lengths (or ends) are the last
    dim of `lengths` (or `offsets`). A part without elements is `initial`, else the neutral element,
    nan for a mean."""
    if indices is not None or lengths is None and offsets is None:
        raise Blocked("reduces segments that indices name", "use lengths or offsets")
    axis = axis_of(axis, data.rank)
    count, size = c.dims[axis], data.dims[axis]
    lead = data.dims[:axis]
    if lengths is not None:
        sizes = c.convert(lengths, I64)
        ends = running_of(c, "add", sizes, axis)
        if not unsafe:
            total = c.reduce("add", sizes, [axis])
            whole = c.compare("EQ", total, size)
            whole = c.reduce("and", whole, range(whole.rank))
            c.check(whole, "lengths have to sum to the size of data along the axis")
    else:
        assert offsets is not None
        bounds = c.convert(offsets, I64)
        ends = c.slice(bounds, axis, 1, count + 1)
        sizes = c("subtract", ends, c.slice(bounds, axis, 0, count))
    place = c.iota((*lead, size), axis)
    number = _edges_before(c, ends, place, right=True)
    number = c.builder.broadcast(number, data.dims, range(axis + 1))
    x = c.wide(data)
    start = initial
    if start is None:
        start = 0 if reduce == "mean" else identity(_SEGMENT[reduce], x.element)
    target = c.full(start, c.dims, x.element)
    result = combine_along(c, target, axis, number, x, _SEGMENT[reduce])
    if reduce == "mean":
        some = c.builder.broadcast(sizes, c.dims, range(axis + 1))
        empty = c.compare("EQ", some, 0)
        mean = c("divide", result, c.convert(some, x.element))
        result = c.select(empty, math.nan if initial is None else result, mean)
    return c.narrow(result)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._histogramdd_bin_edges.default": box_edges,
    "aten._histogramdd_from_bin_cts.default": box_counts,
    "aten._histogramdd_from_bin_tensors.default": box_counts_between,
    "aten.bincount.default": bincount,
    "aten.bucketize.Scalar": bucketize,
    "aten.bucketize.Tensor": bucketize,
    **{f"aten.histogramdd.{kind}": box_histogram
       for kind in ("default", "int_bins", "TensorList_bins")},
    "aten.histc.default": count_in_range,
    "aten.histogram.bin_ct": histogram,
    "aten.histogram.bins_tensor": histogram_between,
    "aten.searchsorted.Scalar": searchsorted,
    "aten.searchsorted.Tensor": searchsorted,
    "aten.segment_reduce.default": segment_reduce,
}  # fmt: skip
