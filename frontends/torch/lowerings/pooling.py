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
from ..context import Blocked, Context, identity, scalar_region, sized, static
from .convolution import Sizes, per_dim
from .reductions import better


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


class Windows:
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
        w = Windows(c, self, kernel_size, stride, padding, dilation, count, ceil_mode)
        result = windows(c, "maximum", self, w.sizes, w.strides, w.pads, w.dilations)
        result = w.cut(c, result)
        if not with_indices:
            return result
        if not c.used[1]:
            return result, None
        return _with_positions(c, self, w, count)

    return lower


def _with_positions(c: Context, x: Value, w: Windows, count: int) -> tuple[Value, Value]:
    """The maxima and their places in the flattened spatial dimensions."""
    if any(pad < 0 for pads in w.pads for pad in pads):
        raise Blocked("the positions of maxima of a partly used input", "make the windows fit")
    space = x.dims[x.rank - count :]
    flat = c.builder.reshape(c.iota((math.prod(w.inputs),), 0), space)
    starts = c.scalar(identity("maximum", x.element), x.element), c.scalar(2**63 - 1, I64)
    attributes = _attributes(x.rank, w.sizes, w.strides, w.pads, w.dilations)
    operands = [x, c.spread(flat, x.dims), *starts]
    op = c.builder.op("reduce_window", operands, attributes, [better(True, x.element)])
    return w.cut(c, op.results[0]), w.cut(c, op.results[1])


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
        w = Windows(c, self, kernel_size, stride, padding, 1, count, ceil_mode)
        x = c.wide(self)
        sums = w.cut(c, windows(c, "add", x, w.sizes, w.strides, w.pads))
        if divisor_override:
            return c.narrow(c.divide(sums, divisor_override))
        if not all(isinstance(size, int) for size in w.inputs):
            return c.narrow(_divided_open(c, sums, w, count_include_pad))
        return c.narrow(_divided(c, sums, window_counts(w, count_include_pad)))

    return lower


def window_counts(w: Windows, with_padding: bool) -> list[np.ndarray[Any, Any]]:
    """Elements per window along each dimension; the count of a window is their product."""
    lines = []
    for low, size, stride, out, kernel in zip(
        w.low, w.inputs, w.strides, w.outputs, w.sizes, strict=True
    ):
        start = np.arange(out) * stride - low
        stop = np.minimum(start + kernel, size + low)
        if not with_padding:
            start, stop = np.maximum(start, 0), np.minimum(stop, size)
        lines.append(stop - start)
    return lines


def _divided_open(c: Context, sums: Value, w: Windows, with_padding: bool) -> Value:
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


def adaptive(count: int, largest: bool, with_indices: bool = False) -> Callable[..., Any]:
    """adaptive_avg_poolNd and adaptive_max_poolNd: as many windows as the result has elements."""

    def lower(c: Context, self: Value, output_size: Sizes) -> Any:
        if with_indices and c.used[1]:
            raise Blocked("the positions of the maxima are used", "use return_indices=False")
        lead = self.rank - count
        inputs, outputs = self.dims[lead:], [sized(size) for size in c.dims[lead:]]
        x = self if largest else c.wide(self)
        body = "maximum" if largest else "add"
        axes = range(lead, self.rank)
        if all(out == 1 for out in outputs):
            result = c.builder.reshape(c.reduce(body, x, axes), c.dims)
        elif not all(isinstance(size, int) for size in (*inputs, *outputs)):
            result = _adaptive_open(c, x, lead, inputs, outputs, largest)
            return (result, None) if with_indices else result
        elif all(size % out == 0 for size, out in zip(inputs, outputs, strict=True)):
            steps = [size // out for size, out in zip(inputs, outputs, strict=True)]
            result = windows(c, body, x, steps, steps, [(0, 0)] * count)
        else:
            result = x
            for axis, size, out in zip(axes, inputs, outputs, strict=True):
                result = _adaptive_axis(c, body, result, axis, adaptive_edges(size, out))
        if not largest and all(out == 1 for out in outputs):
            result = c.narrow(c.divide(result, math.prod(inputs)))
        elif not largest:
            lines = [
                np.asarray([stop - start for start, stop in adaptive_edges(size, out)])
                for size, out in zip(inputs, outputs, strict=True)
            ]
            result = c.narrow(_divided(c, result, lines))
        return (result, None) if with_indices else result

    return lower


def _adaptive_open(
    c: Context,
    x: Value,
    lead: int,
    inputs: Sequence[Dim],
    outputs: Sequence[Dim],
    largest: bool,
) -> Value:
    """The same where a call decides how large the input is: the mean of each window by itself."""
    for axis, (size, out) in enumerate(zip(inputs, outputs, strict=True), lead):
        if is_same(size, out):
            continue
        parts = []
        for index in range(static(out)):
            start, stop = index * size // out, ceildiv((index + 1) * size, out)
            part = c.slice(x, axis, start, stop)
            if not isinstance(stop - start, int):
                c.require(1, "<=", stop - start)
            total = c.reduce("maximum" if largest else "add", part, [axis])
            total = total if largest else c.divide(total, stop - start)
            parts.append(c.builder.reshape(total, (*x.dims[:axis], 1, *x.dims[axis + 1 :])))
        x = c.concatenate(parts, axis)
    return x if largest else c.narrow(x)


def _adaptive_axis(
    c: Context, body: str, value: Value, axis: int, edges: Sequence[tuple[int, int]]
) -> Value:
    """One reduction per window along an axis, for windows of different sizes."""
    dims = (*value.dims[:axis], 1, *value.dims[axis + 1 :])
    parts = [
        c.builder.reshape(c.reduce(body, c.slice(value, axis, start, stop), [axis]), dims)
        for start, stop in edges
    ]
    return c.concatenate(parts, axis)


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.avg_pool{n}d.default": avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d.default": max_pool(n, False) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices.default": max_pool(n, True) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": adaptive(n, False) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": adaptive(n, False) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": adaptive(n, True, True) for n in (1, 2, 3)},
}
