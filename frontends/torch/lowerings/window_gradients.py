"""Gradients of convolutions and poolings; where a call decides sizes, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.ops.clauses import is_same
from ....hlo.symbols import Dim, ceildiv
from ....hlo.types import TensorType
from ..context import Context, static
from .convolution import Sizes, per_dim, regrouped
from .pooling import adaptive_edges, at_places, divided, windows
from .resize import product_along


def convolution_backward(
    c: Context,
    grad_output: Value,
    input: Value,
    weight: Value,
    bias_sizes: Any,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """Gradients of input, weight and bias, those that `output_mask` asks for."""
    count = weight.rank - 2
    geometry = _Geometry(
        per_dim(stride, count), per_dim(padding, count), per_dim(dilation, count), groups
    )
    wanted = [asked and used for asked, used in zip(output_mask, c.used, strict=False)]
    of_input = of_weight = of_bias = None
    if wanted[0]:
        if transposed:  # a transposed convolution is the gradient of a plain one
            of_input = geometry.plain(c, grad_output, weight, input.dims)
        else:
            of_input = geometry.transposed(c, grad_output, weight, input.dims)
    if wanted[1]:
        if transposed:
            of_weight = geometry.of_weight(c, grad_output, input, weight.dims)
        else:
            of_weight = geometry.of_weight(c, input, grad_output, weight.dims)
    if len(wanted) > 2 and wanted[2]:
        axes = [d for d in range(grad_output.rank) if d != 1]
        of_bias = c.narrow(c.reduce("add", c.wide(grad_output), axes), 2)
    return of_input, of_weight, of_bias


class _Geometry:
    """One plain convolution and the two that compute its gradients.

    Where a call decides a size, the padding behind is the most that may be needed, and what is too
    much of the result is cut.
    """

    def __init__(
        self, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
    ) -> None:
        self.strides, self.pads, self.dilations, self.groups = strides, pads, dilations, groups

    def plain(self, c: Context, x: Value, weight: Value, dims: Sequence[Any]) -> Value:
        """x * weight, of which `dims` are wanted."""
        pads = []
        for axis, (size, out) in enumerate(zip(x.dims[2:], dims[2:], strict=True)):
            reach = self.dilations[axis] * (static(weight.dims[axis + 2]) - 1)
            span = (out - 1) * self.strides[axis] + reach + 1
            low = self.pads[axis]
            pads.append((low, _known(span - size - low, low)))
        return _convolve(
            c, x, weight, dims, self.strides, pads, [1] * len(pads), self.dilations,
            self.groups, (0, 1), (0, 1), (0, 1),
        )  # fmt: skip

    def transposed(self, c: Context, grad: Value, weight: Value, dims: Sequence[Any]) -> Value:
        """The gradient of an input of `dims`."""
        spatial = range(2, weight.rank)
        pads = []
        for axis, (size, out) in enumerate(zip(grad.dims[2:], dims[2:], strict=True)):
            reach = self.dilations[axis] * (static(weight.dims[axis + 2]) - 1)
            low = reach - self.pads[axis]
            spread = (size - 1) * self.strides[axis] + 1
            most = low + self.strides[axis] - 1
            pads.append((low, _known(out + reach - spread - low, most)))
        weight = c("reverse", weight, dimensions=tuple(spatial))
        kernel = (1, 0)
        if self.groups > 1:
            weight, kernel = regrouped(c, weight, self.groups), (0, 1)
        return _convolve(
            c, grad, weight, dims, [1] * len(pads), pads, self.strides, self.dilations,
            self.groups, (0, 1), kernel, (0, 1),
        )  # fmt: skip

    def of_weight(self, c: Context, x: Value, grad: Value, dims: Sequence[Any]) -> Value:
        """The gradient of a weight [out, in/groups, k...]: grad slides over x, summed over n."""
        if not all(isinstance(size, int) for size in (*x.dims, *grad.dims)):
            return self._by_taps(c, x, grad, dims)
        pads = []
        for axis, (size, kernel) in enumerate(zip(x.dims[2:], dims[2:], strict=True)):
            span = (static(grad.dims[axis + 2]) - 1) * self.strides[axis] + 1
            span += (static(kernel) - 1) * self.dilations[axis]
            pads.append((self.pads[axis], span - static(size) - self.pads[axis]))
        # Channels of x are the batch; with groups each has kernels of its own.
        return _convolve(
            c, x, grad, dims, self.dilations, pads, [1] * len(pads), self.strides,
            1, (1, 0), (1, 0), (1, 0), batch_groups=self.groups,
        )  # fmt: skip

    def _by_taps(self, c: Context, x: Value, grad: Value, dims: Sequence[Any]) -> Value:
        """The same where a call decides sizes: a product over n and space for each tap."""
        count, lead = x.rank - 2, [(0, 0, 0)] * 2
        x = c.pad(x, 0, [*lead, *((low, low, 0) for low in self.pads)])
        x, grad = (_in_groups(c, value, self.groups) for value in (x, grad))
        summed = (0, *range(3, count + 3))
        taps = []
        for tap in itertools.product(*(range(static(size)) for size in dims[2:])):
            part = x
            for axis, place in enumerate(tap):
                start = place * self.dilations[axis]
                stop = start + (grad.dims[axis + 3] - 1) * self.strides[axis] + 1
                part = c.slice(part, axis + 3, start, stop, self.strides[axis])
            taps.append(c.dot(grad, part, (summed, summed), ((1,), (1,))))
        flat = (dims[0], dims[1], 1)
        parts = [c.builder.reshape(tap, flat) for tap in taps]
        return c.builder.reshape(c.concatenate(parts, 2), dims)


def _known(size: Dim, otherwise: int) -> int:
    """A padding, or what it is at most where a call decides it."""
    return size if isinstance(size, int) else otherwise


def _in_groups(c: Context, x: Value, groups: int) -> Value:
    """[n, groups, channels of one, space...]"""
    batch, channels, *space = x.dims
    return c.builder.reshape(x, (batch, groups, channels // groups, *space))


def _convolve(
    c: Context,
    x: Value,
    kernel: Value,
    dims: Sequence[Any],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int,
    input: tuple[int, int],
    weight: tuple[int, int],
    output: tuple[int, int],
    batch_groups: int = 1,
) -> Value:
    """`convolution`, cut to `dims`; the pairs say where batch and feature (for `weight`: out and
    in) stand."""
    count = x.rank - 2
    spatial = tuple(range(2, x.rank))
    made = list(dims)
    for axis in spatial:
        n = axis - 2
        size = (x.dims[axis] - 1) * lhs_dilation[n] + 1 + sum(pads[n])
        span = (kernel.dims[axis] - 1) * rhs_dilation[n] + 1
        made[axis] = (size - span) // strides[n] + 1
        if not isinstance(made[axis], int):
            c.require(span, "<=", size)
    result = c(
        "convolution", x, kernel, type=TensorType(made, x.element),
        window_strides=tuple(strides), padding=tuple(pads), lhs_dilation=tuple(lhs_dilation),
        rhs_dilation=tuple(rhs_dilation), window_reversal=(False,) * count,
        input_batch_dimension=input[0], input_feature_dimension=input[1],
        input_spatial_dimensions=spatial, kernel_output_feature_dimension=weight[0],
        kernel_input_feature_dimension=weight[1], kernel_spatial_dimensions=spatial,
        output_batch_dimension=output[0], output_feature_dimension=output[1],
        output_spatial_dimensions=spatial, feature_group_count=groups,
        batch_group_count=batch_groups,
    )  # fmt: skip
    for axis in spatial:
        if not is_same(result.dims[axis], dims[axis]):
            result = c.slice(result, axis, 0, dims[axis])
    return result


class _PoolingGeometry:
    """The geometry of a pooling as `pooling.divided` reads it, of a gradient's input."""

    def __init__(
        self, x: Value, grad: Value, count: int, kernel: Sizes, stride: Sizes, padding: Sizes,
        ceil: bool,
    ) -> None:  # fmt: skip
        self.sizes = per_dim(kernel, count)
        self.strides = per_dim(stride, count) if stride else list(self.sizes)
        self.low = per_dim(padding, count)
        self.inputs, self.outputs = list(x.dims[-count:]), list(grad.dims[-count:])
        self.ceil = ceil


def avg_pool_backward(count: int) -> Callable[..., Value]:
    """Each element takes its share of every window that it was in."""

    def lower(
        c: Context,
        grad_output: Value,
        self: Value,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        w = _PoolingGeometry(self, grad_output, count, kernel_size, stride, padding, ceil_mode)
        grad = c.wide(grad_output)
        if divisor_override:
            grad = c.divide(grad, divisor_override)
        else:
            grad = divided(c, grad, w, count_include_pad)
        pads: list[tuple[Any, Any, int]] = [(0, 0, 0)] * (grad.rank - count)
        for size, out, kernel, low, step in zip(
            w.inputs, w.outputs, w.sizes, w.low, w.strides, strict=True
        ):
            pads.append((kernel - 1 - low, size + low - (out - 1) * step - 1, step - 1))
        grad = c.pad(grad, 0, pads)
        return c.narrow(windows(c, "add", grad, w.sizes, [1] * count, [(0, 0)] * count))

    return lower


def max_pool_backward(count: int) -> Callable[..., Value]:
    """The gradient of each maximum added at its place: the last argument."""

    def lower(c: Context, grad_output: Value, self: Value, *geometry: Any, **named: Any) -> Value:
        indices = named["indices"] if "indices" in named else geometry[-1]
        grad = c.wide(grad_output)
        return c.narrow(at_places(c, grad, indices, self.dims, count, "add"))

    return lower


def adaptive_avg_pool_backward(count: int) -> Callable[..., Value]:
    """The gradient spread over each window, one dimension after the other."""

    def lower(c: Context, grad_output: Value, self: Value) -> Value:
        result = c.wide(grad_output)
        for axis in range(self.rank - count, self.rank):
            size, out = self.dims[axis], static(result.dims[axis])
            if isinstance(size, int):  # one product with constant shares
                shares = np.zeros((size, out))
                for row, (start, stop) in enumerate(adaptive_edges(size, out)):
                    shares[start:stop, row] = 1 / (stop - start)
                result = product_along(c, result, axis, shares)
                continue
            total: Value | None = None
            for index in range(out):
                start, stop = index * size // out, ceildiv((index + 1) * size, out)
                part = c.divide(c.slice(result, axis, index, index + 1), stop - start)
                dims = (*result.dims[:axis], stop - start, *result.dims[axis + 1 :])
                pads: list[Any] = [(0, 0, 0)] * part.rank
                pads[axis] = (start, size - stop, 0)
                part = c.pad(c.builder.broadcast(part, dims, range(part.rank)), 0, pads)
                total = part if total is None else c("add", total, part)
            assert total is not None
            result = total
        return c.narrow(result)

    return lower


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten._adaptive_avg_pool{n}d_backward.default": adaptive_avg_pool_backward(n)
       for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d_backward.default": max_pool_backward(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d_backward.default": avg_pool_backward(n) for n in (2, 3)},
    **{f"aten.fractional_max_pool{n}d_backward.default": max_pool_backward(n) for n in (2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward.default": max_pool_backward(n) for n in (2, 3)},
    "aten.convolution_backward.default": convolution_backward,
}  # fmt: skip
