"""Windows, counts, distances: im2col, bucketize, cdist, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ..context import Blocked, Context, Number, static
from .convolution import per_dim
from .indexing import take, take_axis, window_parts


def bucketize(
    c: Context, self: Value, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Value:
    """The number of boundaries below (or, with `right`, not above) each value."""
    x, edges = c.together(
        c.builder.reshape(self, (*self.dims, 1)), boundaries,
        dims=(*self.dims, *boundaries.dims),
    )  # fmt: skip
    below = c.builder.compare("LE" if right else "LT", edges, x)
    return c.reduce("add", c.convert(below, c.element), [self.rank])


def searchsorted(
    c: Context,
    sorted_sequence: Value,
    self: Value,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """bucketize with the arguments the other way round; the sequence has one dimension."""
    if sorted_sequence.rank != 1 or sorter is not None:
        raise Blocked("searches several sequences or by a sorter", "search one sorted sequence")
    return bucketize(c, self, sorted_sequence, out_int32, right or side == "right")


def histogram(c: Context, self: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """How many values fall into each of `bins` equal parts of [min, max]; max is in the last."""
    low, high = float(min), float(max)  # type: ignore[arg-type]
    if low == high:
        raise Blocked("takes its range from the values", "pass min and max")
    x = c.builder.reshape(self, (math.prod(self.dims),))
    # In the type of the values, which rounds after each step, as PyTorch's places do.
    place = c.divide(c.multiply(c.subtract(x, low), bins), high - low)
    place = c.binary("minimum", c("floor", c.wide(place)), bins - 1)
    x = c.wide(x)
    inside = c("and", c.compare("GE", x, low), c.compare("LE", x, high))
    place = c.select(inside, place, -1)
    dims = (x.dims[0], bins)
    same = c.builder.compare(
        "EQ", c.builder.broadcast(place, dims, [0]), c.iota(dims, 1, x.element)
    )
    return c.narrow(c.reduce("add", c.convert(same, x.element), [0]))


def im2col(
    c: Context,
    self: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """torch.nn.functional.unfold: windows as columns, [n, c k k, windows]."""
    value = self
    if value.rank == 3:
        value = c.builder.reshape(value, (1, *value.dims))
    low = per_dim(padding, 2)
    value = c.pad(value, 0, [(0, 0, 0), (0, 0, 0), *((p, p, 0) for p in low)])
    # The last dimension first: each becomes (place in the window, window).
    for axis in (3, 2):
        kernel, gap, step = kernel_size[axis - 2], dilation[axis - 2], stride[axis - 2]
        count = (value.dims[axis] - gap * (kernel - 1) - 1) // step + 1
        if not isinstance(count, int):
            value = window_parts(c, value, axis, axis, kernel, step, gap)
            continue
        places = [start * step + k * gap for k in range(kernel) for start in range(count)]
        value = take_axis(c, value, axis, places)
        dims = (*value.dims[:axis], kernel, count, *value.dims[axis + 1 :])
        value = c.builder.reshape(value, dims)
    return c.builder.reshape(c.builder.transpose(value, [0, 1, 2, 4, 3, 5]), c.dims)


def col2im(
    c: Context,
    self: Value,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """torch.nn.functional.fold: columns added up where their windows lie; a sum of shifts."""
    value = self
    if value.rank == 2:
        value = c.builder.reshape(value, (1, *value.dims))
    batch, columns, _ = map(static, value.dims)
    channels = columns // math.prod(kernel_size)
    low = per_dim(padding, 2)
    counts = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, pad, gap, kernel, step in zip(
            output_size, low, dilation, kernel_size, stride, strict=True
        )
    ]
    value = c.builder.reshape(c.wide(value), (batch, channels, *kernel_size, *counts))
    for axis in (0, 1):  # [n, c, k, ..., windows, ...] -> [n, c, ..., size, ...], rows first
        total: Value | None = None
        for k in range(kernel_size[axis]):
            part = c.slice(value, 2, k, k + 1)
            part = c.builder.reshape(part, (*part.dims[:2], *part.dims[3:]))
            start = k * dilation[axis] - low[axis]
            span = (counts[axis] - 1) * stride[axis] + 1
            pads = [(0, 0, 0)] * part.rank
            pads[3] = (start, output_size[axis] - start - span, stride[axis] - 1)
            part = c.pad(part, 0, pads)
            total = part if total is None else c("add", total, part)
        assert total is not None
        value = total
    return c.narrow(c.builder.reshape(value, c.dims))


def weight_norm(c: Context, v: Value, g: Value, dim: int = 0) -> Value:
    """v * g / |v|, the norm over all dimensions but `dim`."""
    axes = [axis for axis in range(v.rank) if axis != dim]
    x = c.wide(v)
    size = c("sqrt", c.reduce("add", c("multiply", x, x), axes))
    factor = c("divide", c.builder.reshape(c.wide(g), size.dims), size)
    return c.narrow(c("multiply", x, c.along(factor, x.dims, axes)))


def distances(
    c: Context, x1: Value, x2: Value, p: Number, compute_mode: int | None = None
) -> Value:
    """torch.cdist: the p-norms of all differences of rows."""
    lead = c.dims[:-2]
    rows, columns, size = x1.dims[-2], x2.dims[-2], x1.dims[-1]
    wide = (*lead, rows, columns, size)
    last = len(wide) - 1
    first = c.spread(x1, (*lead, rows, size))
    second = c.spread(x2, (*lead, columns, size))
    others = list(range(len(lead)))
    gap = c(
        "subtract",
        c.builder.broadcast(first, wide, [*others, last - 2, last]),
        c.builder.broadcast(second, wide, [*others, last - 1, last]),
    )
    return _power_norm(c, gap, p, last)


def _power_norm(c: Context, gap: Value, p: Number, axis: int) -> Value:
    """sum(|gap| ** p) ** (1 / p) along an axis."""
    size = c("abs", gap)
    if p == 0:
        return c.reduce("add", c.convert(c.compare("NE", size, 0.0), gap.element), [axis])
    if p == 1:
        return c.reduce("add", size, [axis])
    if p == 2:
        return c("sqrt", c.reduce("add", c("multiply", gap, gap), [axis]))
    if p == math.inf:
        return c.select(c.compare("EQ", x := c.reduce("maximum", size, [axis]), -math.inf), 0.0, x)
    total = c.reduce("add", c("power", size, c.full(p, size.dims, size.element)), [axis])
    return c("power", total, c.full(1 / p, total.dims, total.element))  # type: ignore[operator]


def pair_distances(c: Context, self: Value, p: Number = 2) -> Value:
    """torch.nn.functional.pdist: the distances of all pairs of different rows."""
    rows = static(self.dims[0])
    left, right = np.triu_indices(rows, 1)
    first, second = (
        take(c, self, c.array(places.astype(np.int64)), 0, wrap=False) for places in (left, right)
    )
    return _power_norm(c, c("subtract", first, second), p, 1)


def all_distances(
    c: Context, x1: Value, x2: Value, p: Number = 2, compute_mode: int | None = None
) -> Value:
    return distances(c, x1, x2, p)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._cdist_forward.default": distances,
    "aten._pdist_forward.default": pair_distances,
    "aten._weight_norm.default": weight_norm,
    "aten.bucketize.Tensor": bucketize,
    "aten.cdist.default": all_distances,
    "aten.col2im.default": col2im,
    "aten.pdist.default": pair_distances,
    "aten.histc.default": histogram,
    "aten.im2col.default": im2col,
    "aten.searchsorted.Tensor": searchsorted,
}
