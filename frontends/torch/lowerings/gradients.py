"""Gradients of operators that PyTorch counts as its core: those of convolutions, norms, pools.

They stand in exports of training steps. Where a gradient is not used it is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.types import I64, TensorType
from ..context import Blocked, Context, static
from .convolution import Sizes, per_dim, regrouped
from .pooling import adaptive_edges, window_counts, windows
from .scatters import scattered


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
    """One plain convolution and the two that compute its gradients."""

    def __init__(
        self, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
    ) -> None:
        self.strides, self.pads, self.dilations, self.groups = strides, pads, dilations, groups

    def plain(self, c: Context, x: Value, weight: Value, dims: Sequence[Any]) -> Value:
        """x * weight, of which `dims` are wanted."""
        pads = []
        for axis, (size, out) in enumerate(zip(x.dims[2:], dims[2:], strict=True)):
            reach = self.dilations[axis] * (static(weight.dims[axis + 2]) - 1)
            span = (static(out) - 1) * self.strides[axis] + reach + 1
            pads.append((self.pads[axis], span - static(size) - self.pads[axis]))
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
            spread = (static(size) - 1) * self.strides[axis] + 1
            pads.append((low, static(out) + reach - spread - low))
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
    """`convolution`; the pairs say where batch and feature (for `weight`: out and in) stand."""
    count = x.rank - 2
    spatial = tuple(range(2, x.rank))
    return c(
        "convolution", x, kernel, type=TensorType(dims, x.element),
        window_strides=tuple(strides), padding=tuple(pads), lhs_dilation=tuple(lhs_dilation),
        rhs_dilation=tuple(rhs_dilation), window_reversal=(False,) * count,
        input_batch_dimension=input[0], input_feature_dimension=input[1],
        input_spatial_dimensions=spatial, kernel_output_feature_dimension=weight[0],
        kernel_input_feature_dimension=weight[1], kernel_spatial_dimensions=spatial,
        output_batch_dimension=output[0], output_feature_dimension=output[1],
        output_spatial_dimensions=spatial, feature_group_count=groups,
        batch_group_count=batch_groups,
    )  # fmt: skip


def embedding_dense_backward(
    c: Context,
    grad_output: Value,
    indices: Value,
    num_weights: Any,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    """Rows of the gradient added where they were read; none for `padding_idx`."""
    if scale_grad_by_freq:
        raise Blocked("scales gradients by frequency", "use scale_grad_by_freq=False")
    width = static(c.dims[1])
    rows = c.builder.reshape(c.wide(grad_output), (grad_output.tensor.size // width, width))
    flat = c.builder.reshape(c.convert(indices, I64), (rows.dims[0],))
    if padding_idx >= 0:
        kept = c.builder.compare("NE", flat, c.full(padding_idx, flat.dims, I64))
        rows = c.select(c.builder.broadcast(kept, rows.dims, [0]), rows, 0)
    zero = c.full(0, c.dims, rows.element)
    return c.narrow(
        scattered(
            c, zero, flat, rows, "add", update_window_dims=(1,), inserted_window_dims=(0,),
            input_batching_dims=(), scatter_indices_batching_dims=(),
            scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
        )
    )  # fmt: skip


def _norm_input(
    c: Context, scaled: Value, normal: Value, factor: Value, axes: Sequence[int], count: int
) -> Value:
    """factor * (g - mean(g) - normal * mean(g * normal)) over `axes`; `factor` spread already."""
    middle = c.along(c.reduce("add", scaled, axes), scaled.dims, axes)
    along = c.reduce("add", c("multiply", scaled, normal), axes)
    share = c("multiply", normal, c.along(along, scaled.dims, axes))
    rest = c("subtract", scaled, c.divide(c("add", middle, share), count))
    return c("multiply", factor, rest)


def native_layer_norm_backward(
    c: Context,
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    rank, inner = input.rank, len(normalized_shape)
    outer, axes = list(range(rank - inner)), list(range(rank - inner, rank))
    x, grad = c.wide(input), c.wide(grad_out)
    mean, rstd = (c.spread(c.convert(v, x.element), x.dims) for v in (mean, rstd))
    normal = c("multiply", c("subtract", x, mean), rstd)
    scaled = grad
    if weight is not None:
        scaled = c("multiply", grad, c.spread(c.convert(weight, x.element), x.dims))
    return _norm_gradients(
        c, output_mask,
        lambda: _norm_input(c, scaled, normal, rstd, axes, c.count(x.dims, axes)),
        lambda: c.reduce("add", c("multiply", grad, normal), outer),
        lambda: c.reduce("add", grad, outer),
    )  # fmt: skip


def _norm_gradients(
    c: Context, mask: Sequence[bool], *bodies: Callable[[], Value]
) -> tuple[Value | None, ...]:
    """The gradients that are asked for and used, in their declared types."""
    return tuple(
        c.narrow(body(), index) if asked and index < len(c.used) and c.used[index] else None
        for index, (asked, body) in enumerate(zip(mask, bodies, strict=True))
    )


def native_group_norm_backward(
    c: Context,
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    batch, channels = static(N), static(C)
    dims = (batch, group, channels // group, static(HxW))
    x, grad = (c.builder.reshape(c.wide(v), dims) for v in (input, grad_out))
    mean, rstd = (
        c.builder.broadcast(c.builder.reshape(c.convert(v, x.element), dims[:2]), dims, [0, 1])
        for v in (mean, rstd)
    )
    normal = c("multiply", c("subtract", x, mean), rstd)
    scaled = grad
    if weight is not None:
        grouped = c.builder.reshape(c.convert(weight, x.element), dims[1:3])
        scaled = c("multiply", grad, c.builder.broadcast(grouped, dims, [1, 2]))

    def per_channel(value: Value) -> Value:
        return c.builder.reshape(c.reduce("add", value, [0, 3]), (channels,))

    return _norm_gradients(
        c, output_mask,
        lambda: c.builder.reshape(
            _norm_input(c, scaled, normal, rstd, [2, 3], dims[2] * dims[3]), input.dims
        ),
        lambda: per_channel(c("multiply", grad, normal)),
        lambda: per_channel(grad),
    )  # fmt: skip


class _Pool:
    """The geometry that `pooling.window_counts` reads, of a gradient's input."""

    def __init__(self, x: Value, grad: Value, kernel: Sizes, stride: Sizes, padding: Sizes) -> None:
        self.sizes = per_dim(kernel, 2)
        self.strides = per_dim(stride, 2) if stride else list(self.sizes)
        self.low = per_dim(padding, 2)
        self.inputs = [static(size) for size in x.dims[-2:]]
        self.outputs = [static(size) for size in grad.dims[-2:]]


def avg_pool2d_backward(
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
    """Each element takes its share of every window that it was in."""
    w = _Pool(self, grad_output, kernel_size, stride, padding)
    grad = c.wide(grad_output)
    if divisor_override:
        grad = c.divide(grad, divisor_override)
    else:
        rows, columns = window_counts(w, count_include_pad)  # type: ignore[arg-type]
        counts = np.maximum(rows[:, None] * columns[None, :], 1)
        grad = c("divide", grad, c.spread(c.array(counts, grad.element), grad.dims))
    pads = [(0, 0, 0)] * (grad.rank - 2) + [(0, 0, step - 1) for step in w.strides]
    grad = c.pad(grad, 0, pads)
    edges = []
    for size, kernel, low, spread in zip(w.inputs, w.sizes, w.low, grad.dims[-2:], strict=True):
        first = kernel - 1 - low
        edges.append((first, size + kernel - 1 - first - static(spread)))
    return c.narrow(windows(c, "add", grad, w.sizes, [1, 1], edges))


def max_pool2d_with_indices_backward(
    c: Context,
    grad_output: Value,
    self: Value,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """The gradient of each maximum added at its place."""
    lead = math.prod(map(static, self.dims[:-2]))
    space = math.prod(map(static, self.dims[-2:]))
    grad = c.builder.reshape(c.wide(grad_output), (lead, grad_output.tensor.size // max(lead, 1)))
    places = c.builder.reshape(indices, grad.dims)
    zero = c.full(0, (lead, space), grad.element)
    result = scattered(
        c, zero, places, grad, "add", update_window_dims=(), inserted_window_dims=(1,),
        input_batching_dims=(0,), scatter_indices_batching_dims=(0,),
        scatter_dims_to_operand_dims=(1,), index_vector_dim=2,
    )  # fmt: skip
    return c.narrow(c.builder.reshape(result, self.dims))


def adaptive_avg_pool2d_backward(c: Context, grad_output: Value, self: Value) -> Value:
    """The gradient spread over each window: one product with constant shares per dimension."""
    result = c.wide(grad_output)
    for axis in (self.rank - 2, self.rank - 1):
        size, count = static(self.dims[axis]), static(result.dims[axis])
        shares = np.zeros((count, size))
        for row, (start, stop) in enumerate(adaptive_edges(size, count)):
            shares[row, start:stop] = 1 / (stop - start)
        dot = c.dot(result, c.array(shares, result.element), ((axis,), (0,)))
        order = list(range(self.rank - 1))
        order.insert(axis, self.rank - 1)
        result = c.builder.transpose(dot, order)
    return c.narrow(result)


def softmax_backward(c: Context, grad_output: Value, output: Value, dim: int, dtype: Any) -> Value:
    """(g - sum(g * y)) * y along `dim`."""
    axis = dim % max(output.rank, 1)
    grad, y = c.wide(grad_output), c.wide(output)
    if not y.rank:
        return c.full(0, (), c.element)
    along = c.along(c.reduce("add", c("multiply", grad, y), [axis]), y.dims, [axis])
    return c.narrow(c("multiply", c("subtract", grad, along), y))


def log_softmax_backward(
    c: Context, grad_output: Value, output: Value, dim: int, dtype: Any
) -> Value:
    """g - exp(y) * sum(g) along `dim`."""
    axis = dim % max(output.rank, 1)
    grad, y = c.wide(grad_output), c.wide(output)
    if not y.rank:
        return c.full(0, (), c.element)
    along = c.along(c.reduce("add", grad, [axis]), y.dims, [axis])
    return c.narrow(c("subtract", grad, c("multiply", c("exponential", y), along)))


TABLE: dict[str, Callable[..., Any]] = {
    "aten._adaptive_avg_pool2d_backward.default": adaptive_avg_pool2d_backward,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
    "aten._softmax_backward_data.default": softmax_backward,
    "aten.avg_pool2d_backward.default": avg_pool2d_backward,
    "aten.convolution_backward.default": convolution_backward,
    "aten.embedding_dense_backward.default": embedding_dense_backward,
    "aten.max_pool2d_with_indices_backward.default": max_pool2d_with_indices_backward,
    "aten.native_group_norm_backward.default": native_group_norm_backward,
    "aten.native_layer_norm_backward.default": native_layer_norm_backward,
}
