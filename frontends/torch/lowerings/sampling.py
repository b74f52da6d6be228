"""Reading between elements, windows, distances: grid_sample, im2col, cdist, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.types import I64
from ..context import Blocked, Context, Number, static
from .convolution import per_dim
from .indexing import take, take_axis, window_parts
from .reductions import power_norm

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def grid_sampler(
    c: Context,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    """input [n, c, h, w] read at grid [n, y, x, 2] of (x, y) in [-1, 1]."""
    if input.rank != 4 or interpolation_mode not in (BILINEAR, NEAREST):
        raise Blocked("samples in three dimensions or by cubic functions", "use mode='bilinear'")
    height, width = map(static, input.dims[2:])
    points = c.wide(grid)
    places = []
    for number, size in enumerate((width, height)):
        part = c.slice(points, 3, number, number + 1)
        place = c.builder.reshape(part, grid.dims[:3])
        place = c.add(place, 1)
        if align_corners:
            place = c.multiply(place, (size - 1) / 2)
        else:
            place = c.divide(c.subtract(c.multiply(place, size), 1), 2)
        places.append(_bounded(c, place, size, padding_mode, align_corners))
    if interpolation_mode == NEAREST:
        x, y = (c("round_nearest_even", place) for place in places)
        return c.narrow(_read(c, input, x, y, None))
    lower = [c("floor", place) for place in places]
    shares = [c("subtract", place, low) for place, low in zip(places, lower, strict=True)]
    total: Value | None = None
    for dy in (0, 1):
        for dx in (0, 1):
            x, y = c.add(lower[0], dx), c.add(lower[1], dy)
            weight_x = shares[0] if dx else c.subtract(1, shares[0])
            weight_y = shares[1] if dy else c.subtract(1, shares[1])
            part = _read(c, input, x, y, c("multiply", weight_x, weight_y))
            total = part if total is None else c("add", total, part)
    assert total is not None
    return c.narrow(total)


def _bounded(c: Context, place: Value, size: int, mode: int, corners: bool) -> Value:
    """Places outside moved to the border, or reflected at it; zeros are for the reader."""
    if mode == REFLECTION:
        low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
        if span == 0:
            return c.multiply(place, 0)
        away = c("abs", c.subtract(place, low))
        turns = c("floor", c.divide(away, span))
        rest = c("subtract", away, c.multiply(turns, span))
        odd = c.builder.compare("NE", c("remainder", turns, c.full(2, turns.dims, turns.element)),
                                c.full(0, turns.dims, turns.element))  # fmt: skip
        place = c.add(c("select", odd, c.subtract(span, rest), rest), low)
    if mode in (BORDER, REFLECTION):
        limits = (c.scalar(0, place.element), c.scalar(size - 1, place.element))
        return c("clamp", limits[0], place, limits[1])
    return place


def _read(c: Context, input: Value, x: Value, y: Value, weight: Value | None) -> Value:
    """input[n, :, y, x] * weight, zero where (x, y) lies outside: [n, c, *places]."""
    height, width = map(static, input.dims[2:])
    inside: Value | None = None
    whole = []
    for place, size in ((y, height), (x, width)):
        for holds in (
            c.builder.compare("GE", place, c.full(0, place.dims, place.element)),
            c.builder.compare("LE", place, c.full(size - 1, place.dims, place.element)),
        ):
            inside = holds if inside is None else c("and", inside, holds)
        limits = (c.scalar(0, place.element), c.scalar(size - 1, place.element))
        whole.append(c.convert(c("clamp", limits[0], place, limits[1]), I64))
    batch = c.iota(whole[0].dims, 0)
    parts = [c.builder.reshape(v, (*v.dims, 1)) for v in (batch, *whole)]
    positions = c.concatenate(parts, 3)
    channels = input.dims[1]
    values = c(
        "gather", input, positions, offset_dims=(1,), collapsed_slice_dims=(0, 2, 3),
        operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=(0, 2, 3),
        index_vector_dim=3, slice_sizes=(1, channels, 1, 1), indices_are_sorted=False,
    )  # fmt: skip
    values = c.wide(values)
    assert inside is not None
    kept = c.builder.broadcast(inside, values.dims, [0, 2, 3])
    values = c.select(kept, values, 0)
    if weight is None:
        return values
    return c("multiply", values, c.builder.broadcast(weight, values.dims, [0, 2, 3]))


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
    "aten.grid_sampler.default": grid_sampler,
    "aten.grid_sampler_2d.default": grid_sampler,
    "aten.pdist.default": pair_distances,
    "aten.im2col.default": im2col,
}
