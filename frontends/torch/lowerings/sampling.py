"""Windows and distances: im2col, cdist, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ..context import Context, Number, static
from .convolution import per_dim
from .indexing import take, take_axis, window_parts
from .reductions import power_norm


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
    return power_norm(c, c("abs", gap), p, [last])


def pair_distances(c: Context, self: Value, p: Number = 2) -> Value:
    """torch.nn.functional.pdist: the distances of all pairs of different rows."""
    rows = static(self.dims[0])
    left, right = np.triu_indices(rows, 1)
    first, second = (
        take(c, self, c.array(places.astype(np.int64)), 0, wrap=False) for places in (left, right)
    )
    return power_norm(c, c("abs", c("subtract", first, second)), p, [1])


def all_distances(
    c: Context, x1: Value, x2: Value, p: Number = 2, compute_mode: int | None = None
) -> Value:
    return distances(c, x1, x2, p)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._cdist_forward.default": distances,
    "aten._pdist_forward.default": pair_distances,
    "aten._weight_norm.default": weight_norm,
    "aten.cdist.default": all_distances,
    "aten.col2im.default": col2im,
    "aten.pdist.default": pair_distances,
    "aten.im2col.default": im2col,
}
