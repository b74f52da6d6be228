"""Pooling: the maximum or mean of windows, with PyTorch's ceil_mode and divisors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.ops.clauses import is_same
from ....hlo.symbols import Dim, ceildiv
from ....hlo.types import I64
from ..context import Context, identity, scalar_region, sized, static
from .convolution import Sizes, per_dim
from .reductions import better
from .scatters import scattered


def windows(
    c: Context,
    body: str,
    value: Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int] = (),
) -> Value:
    """reduce_window over the trailing dimensions; a negative padding cuts first."""
    lead = value.rank - len(sizes)
    for axis, (low, high) in enumerate(pads):
        size = value.dims[lead + axis]
        value = c.slice(value, lead + axis, max(-low, 0), size - max(-high, 0))
    padding = [(max(low, 0), max(high, 0)) for low, high in pads]
    neutral = c.scalar(identity(body, value.element), value.element)
    region = scalar_region(value.element, lambda b, x, y: b(body, x, y))
    attributes = _attributes(value.rank, sizes, strides, padding, dilations)
    return c.builder.op("reduce_window", [value, neutral], attributes, [region]).result


def _attributes(
    rank: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: Sequence[int],
) -> dict[str, Any]:
    """The window of the trailing dimensions; leading ones are taken one by one."""
    ones = (1,) * (rank - len(sizes))
    return {
        "window_dimensions": (*ones, *sizes),
        "window_strides": (*ones, *strides),
        "base_dilations": (1,) * rank,
        "window_dilations": (*ones, *(dilations or (1,) * len(sizes))),
        "padding": (*((0, 0) for _ in ones), *padding),
    }


class PoolingWindows:
    """The geometry of one pooling: what fits the declared result exactly."""

    def __init__(
        self, c: Context, value: Value, kernel: Sizes, stride: Sizes, padding: Sizes,
        dilation: Sizes, count: int, ceil: bool = False,
    ) -> None:  # fmt: skip
        self.sizes = per_dim(kernel, count)
        no_stride = stride is None or (isinstance(stride, (list, tuple)) and not stride)
        self.strides = list(self.sizes) if no_stride else per_dim(stride, count)
        self.low = per_dim(padding, count)
        self.dilations = per_dim(dilation, count)
        self.inputs = list(value.dims[-count:])
        self.outputs = list(c.dims[-count:])
        self.ceil = ceil
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilations, self.sizes, strict=True)]
        self.pads: list[tuple[int, int]] = []
        for axis in range(count):
            size, out, low, stride = (
                line[axis] for line in (self.inputs, self.outputs, self.low, self.strides)
            )
            if isinstance(size, int):
                self.pads.append((low, (out - 1) * stride + reach[axis] - size - low))
                continue
            more = stride - 1 if ceil else 0  # so that a window that only begins inside counts
            c.require(1, "<=", size)
            c.require(reach[axis], "<=", size + 2 * low + more)
            count_of = (size + 2 * low + more - reach[axis]) // stride + 1
            self.pads.append((low, low + more))
            # The last window begins inside, or in the padding before.
            begun = (size + low - 1) // stride + 1
            self.outputs[axis] = c.smaller(count_of, begun) if ceil else count_of

    def cut(self, c: Context, value: Value) -> Value:
        """The windows of a result that begin inside."""
        lead = value.rank - len(self.outputs)
        for axis, out in enumerate(self.outputs):
            if not is_same(value.dims[lead + axis], out):
                value = c.slice(value, lead + axis, 0, out)
        return value


def max_pool(count: int, with_indices: bool) -> Callable[..., Any]:
    """max_poolNd; its indices are computed only where they are used."""

    def lower(
        c: Context,
        self: Value,
        kernel_size: Sizes,
        stride: Sizes = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Any:
        w = PoolingWindows(c, self, kernel_size, stride, padding, dilation, count, ceil_mode)
        result = windows(c, "maximum", self, w.sizes, w.strides, w.pads, w.dilations)
        result = w.cut(c, result)
        if not with_indices:
            return result
        if not c.used[1]:
            return result, None
        return _with_positions(c, self, w, count)

    return lower


def _with_positions(c: Context, x: Value, w: PoolingWindows, count: int) -> tuple[Value, Value]:
    """The maxima and their places in the flattened spatial dimensions."""
    lead = x.rank - count
    places = c.spread(_places(c, x.dims[lead:]), x.dims)
    for axis, (low, high) in enumerate(w.pads, lead):
        ends = max(-low, 0), x.dims[axis] - max(-high, 0)
        x, places = (c.slice(value, axis, *ends) for value in (x, places))
    pads = [(max(low, 0), max(high, 0)) for low, high in w.pads]
    starts = c.scalar(identity("maximum", x.element), x.element), c.scalar(2**63 - 1, I64)
    attributes = _attributes(x.rank, w.sizes, w.strides, pads, w.dilations)
    operands = [x, places, *starts]
    op = c.builder.op("reduce_window", operands, attributes, [better(True, x.element)])
    return w.cut(c, op.results[0]), w.cut(c, op.results[1])


def _places(c: Context, space: Sequence[Dim]) -> Value:
    """The number of each element of the spatial dimensions."""
    return c.builder.reshape(c.iota((math.prod(space),), 0), space)


def avg_pool(count: int) -> Callable[..., Value]:
    """avg_poolNd: window sums divided by PyTorch's count of elements."""

    def lower(
        c: Context,
        self: Value,
        kernel_size: Sizes,
        stride: Sizes = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        w = PoolingWindows(c, self, kernel_size, stride, padding, 1, count, ceil_mode)
        x = c.wide(self)
        sums = w.cut(c, windows(c, "add", x, w.sizes, w.strides, w.pads))
        if divisor_override:
            return c.narrow(c.divide(sums, divisor_override))
        return c.narrow(divided(c, sums, w, count_include_pad))

    return lower


def divided(c: Context, sums: Value, w: Any, with_padding: bool) -> Value:
    """Values of windows, as the geometry `w` has them, divided by PyTorch's counts of elements."""
    if not all(isinstance(size, int) for size in (*w.inputs, *w.outputs)):
        return _divided_open(c, sums, w, with_padding)
    return _divided(c, sums, window_counts(w, with_padding))


def window_counts(w: Any, with_padding: bool) -> list[np.ndarray[Any, Any]]:
    """Elements per window along each dimension; the count of a window is their product."""
    lines = []
    for low, size, stride, out, kernel in zip(
        w.low, w.inputs, w.strides, w.outputs, w.sizes, strict=True
    ):
        start = np.arange(out) * stride - low
        stop = np.minimum(start + kernel, size + low)
        if not with_padding:
            start, stop = np.maximum(start, 0), np.minimum(stop, size)
        lines.append(np.maximum(stop - start, 1))
    return lines


def _divided_open(c: Context, sums: Value, w: Any, with_padding: bool) -> Value:
    """Window sums divided by what `window_counts` has, along dimensions that a call decides."""
    lead = sums.rank - len(w.outputs)
    for axis, size in enumerate(w.inputs):
        kernel, low, out = w.sizes[axis], w.low[axis], w.outputs[axis]
        if not w.ceil and (with_padding or not low):
            sums = c.divide(sums, kernel)
            continue
        start = c.subtract(c.multiply(c.iota((out,), 0), w.strides[axis]), low)
        stop = c.binary("minimum", c.add(start, kernel), size + low)
        if not with_padding:
            start, stop = c.binary("maximum", start, 0), c.binary("minimum", stop, size)
        counts = c.convert(c("subtract", stop, start), sums.element)
        sums = c("divide", sums, c.builder.broadcast(counts, sums.dims, [lead + axis]))
    return sums


def _divided(c: Context, sums: Value, lines: Sequence[np.ndarray[Any, Any]]) -> Value:
    """Window sums divided by the product of the counts along each dimension."""
    counts: np.ndarray[Any, Any] = np.ones((), np.int64)
    for line in lines:
        counts = counts[..., None] * line
    if counts.size and (counts == counts.flat[0]).all():
        return c.divide(sums, int(counts.flat[0]))
    return c("divide", sums, c.spread(c.array(counts, sums.element), sums.dims))


def adaptive_edges(size: int, count: int) -> list[tuple[int, int]]:
    """Start and stop of each of `count` adaptive windows."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


Reduced = tuple[Value, ...]
"""Values, or values and their places, which one reduction takes together."""


def adaptive(count: int, largest: bool, with_indices: bool = False) -> Callable[..., Any]:
    """adaptive_avg_poolNd and adaptive_max_poolNd: as many windows as the result has elements."""

    def lower(c: Context, self: Value, output_size: Sizes) -> Any:
        lead = self.rank - count
        inputs, outputs = self.dims[lead:], [sized(size) for size in c.dims[lead:]]
        if 0 in outputs:
            empty = c.full(0, c.dims, self.element)
            return (empty, c.convert(empty, I64)) if with_indices else empty
        if with_indices and c.used[1]:
            places = c.spread(_places(c, inputs), self.dims)
            return _adaptive(c, (self, places), lead, outputs, _best)
        if largest:
            result = _adaptive_plain(c, "maximum", self, lead, outputs)
            return (result, None) if with_indices else result
        x = c.wide(self)
        if all(out == 1 for out in outputs):
            total = _adaptive_plain(c, "add", x, lead, outputs)
            return c.narrow(c.divide(total, math.prod(inputs)))
        if all(isinstance(size, int) for size in (*inputs, *outputs)):
            result = _adaptive_plain(c, "add", x, lead, outputs)
            lines = [
                np.asarray([stop - start for start, stop in adaptive_edges(size, out)])
                for size, out in zip(inputs, outputs, strict=True)
            ]
            return c.narrow(_divided(c, result, lines))
        return c.narrow(_adaptive(c, (x,), lead, outputs, _mean)[0])

    return lower


def _adaptive_plain(c: Context, body: str, x: Value, lead: int, outputs: Sequence[Dim]) -> Value:
    """Each window reduced by `body`; at once where all are as large."""
    inputs, axes = x.dims[lead:], range(lead, x.rank)
    if all(out == 1 for out in outputs):
        return c.builder.reshape(c.reduce(body, x, axes), (*x.dims[:lead], *outputs))
    if all(isinstance(size, int) for size in (*inputs, *outputs)) and all(
        out and size % out == 0 for size, out in zip(inputs, outputs, strict=True)
    ):
        steps = [static(size // out) for size, out in zip(inputs, outputs, strict=True)]
        return windows(c, body, x, steps, steps, [(0, 0)] * len(steps))

    def reduced(c: Context, values: Reduced, axis: int) -> Reduced:
        return (c.reduce(body, values[0], [axis]),)

    return _adaptive(c, (x,), lead, outputs, reduced)[0]


def _mean(c: Context, values: Reduced, axis: int) -> Reduced:
    """What windows of sizes that a call decides become by themselves."""
    return (c.divide(c.reduce("add", values[0], [axis]), values[0].dims[axis]),)


def _best(c: Context, values: Reduced, axis: int) -> Reduced:
    """The maximum and its place."""
    element = values[0].element
    starts = c.scalar(identity("maximum", element), element), c.scalar(2**63 - 1, I64)
    attributes = {"dimensions": (axis,)}
    op = c.builder.op("reduce", [*values, *starts], attributes, [better(True, element)])
    return tuple(op.results)


def _adaptive(
    c: Context,
    values: Reduced,
    lead: int,
    outputs: Sequence[Dim],
    reduced: Callable[[Context, Reduced, int], Reduced],
) -> Reduced:
    """Each dimension from `lead` on in as many windows as `outputs` says, one reduction each; a
    dimension that they divide is reduced at once."""
    for axis, out in enumerate(outputs, lead):
        dims = values[0].dims
        size, before, after = dims[axis], dims[:axis], dims[axis + 1 :]
        if is_same(size, out):
            continue
        step = size // out
        if is_same(step * out, size):
            split = (*before, out, step, *after)
            parts = tuple(c.builder.reshape(value, split) for value in values)
            values = reduced(c, parts, axis + 1)
            continue
        found: list[Reduced] = []
        for index in range(static(out)):
            start, stop = index * size // out, ceildiv((index + 1) * size, out)
            if not isinstance(stop - start, int):
                c.require(1, "<=", stop - start)
            window = tuple(c.slice(value, axis, start, stop) for value in values)
            found.append(reduced(c, window, axis))
        values = tuple(
            c.concatenate([c.builder.reshape(v, (*before, 1, *after)) for v in line], axis)
            for line in zip(*found, strict=True)
        )
    return values


def fractional(count: int) -> Callable[..., tuple[Value, Value]]:
    """fractional_max_poolNd: windows of one size that begin where random samples say."""

    def lower(
        c: Context, self: Value, kernel_size: Sizes, output_size: Sizes, random_samples: Value
    ) -> tuple[Value, Value]:
        sizes, lead = per_dim(kernel_size, count), self.rank - count
        values = (self, c.spread(_places(c, self.dims[lead:]), self.dims))
        batch = tuple(range(lead))
        for number in range(count):
            axis = lead + number
            size, out, kernel = values[0].dims[axis], c.dims[axis], sizes[number]
            which = count - 1 - number if count == 2 else number  # of two, the last one's are first
            sample = c.slice(random_samples, 2, which, which + 1)
            sample = c.builder.reshape(sample, (*self.dims[:lead], 1, 1))
            index = _begins(c, sample, size, static(out), kernel)
            index = c.builder.reshape(index, (*self.dims[:lead], out * kernel))
            values = tuple(_along(c, value, index, axis, batch) for value in values)
        split = [*self.dims[:lead]]
        for out, kernel in zip(c.dims[lead:], sizes, strict=True):
            split += [out, kernel]
        values = tuple(c.builder.reshape(value, split) for value in values)
        for number in range(count):
            values = _best(c, values, lead + number + 1)
        return values[0], values[1]

    return lower


def _begins(c: Context, sample: Value, size: Dim, count: int, kernel: int) -> Value:
    """The places of all elements of `count` windows, [..., count, kernel], as PyTorch rounds
    them."""
    dims = (*sample.dims[:-2], count, kernel)
    number = c.iota(dims, len(dims) - 2)
    sample = c.spread(sample, dims)
    last = c.full(size - kernel, dims, I64)
    if count > 1:
        step = c("divide", c.full(size - kernel, dims, sample.element),
                 c.full(count - 1, dims, sample.element))  # fmt: skip
        moved = c("multiply", c("add", c.convert(number, sample.element), sample), step)
        first = c.convert(c("multiply", sample, step), I64)
        start = c("subtract", c.convert(moved, I64), first)
        last = c.select(c.compare("EQ", number, count - 1), last, start)
    return c("add", last, c.iota(dims, len(dims) - 1))


def _along(c: Context, value: Value, index: Value, axis: int, batch: Sequence[int]) -> Value:
    """value[b..., :, index[b..., i], :]"""
    whole = [d for d in range(value.rank) if d not in batch and d != axis]
    sizes = [value.dims[d] if d in whole else 1 for d in range(value.rank)]
    return c(
        "gather", value, index, offset_dims=tuple(whole), collapsed_slice_dims=(axis,),
        operand_batching_dims=tuple(batch), start_indices_batching_dims=tuple(batch),
        start_index_map=(axis,), index_vector_dim=index.rank, slice_sizes=tuple(sizes),
        indices_are_sorted=False,
    )  # fmt: skip


def max_unpool(count: int) -> Callable[..., Value]:
    """max_unpoolNd: each value at its place in the flattened spatial dimensions, else zeros."""

    def lower(c: Context, self: Value, indices: Value, *sizes: Any, **named: Any) -> Value:
        return at_places(c, self, indices, c.dims, count, "")

    return lower


def at_places(
    c: Context, values: Value, places: Value, dims: Sequence[Dim], count: int, body: str
) -> Value:
    """Zeros of `dims` with values at places in the last `count` of them, flattened."""
    lead = len(dims) - count
    before = math.prod(dims[:lead])
    flat = (before, math.prod(values.dims[lead:]))
    values, places = (c.builder.reshape(value, flat) for value in (values, places))
    zero = c.full(0, (before, math.prod(dims[lead:])), values.element)
    result = scattered(
        c, zero, places, values, body, update_window_dims=(), inserted_window_dims=(1,),
        input_batching_dims=(0,), scatter_indices_batching_dims=(0,),
        scatter_dims_to_operand_dims=(1,), index_vector_dim=2,
    )  # fmt: skip
    return c.builder.reshape(result, dims)


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.avg_pool{n}d.default": avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d.default": max_pool(n, False) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices.default": max_pool(n, True) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": adaptive(n, False) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": adaptive(n, False) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": adaptive(n, True, True) for n in (1, 2, 3)},
    **{f"aten.fractional_max_pool{n}d.default": fractional(n) for n in (2, 3)},
    **{f"aten.max_unpool{n}d.default": max_unpool(n) for n in (2, 3)},
}
