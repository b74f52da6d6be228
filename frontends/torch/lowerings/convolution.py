"""Convolutions of one to three dimensions, grouped, dilated, transposed, in PyTorch's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import TensorType
from ..context import Blocked, Context, static

Sizes = Any  # an int for all dimensions, or one per dimension


def per_dim(sizes: Sizes, count: int) -> list[int]:
    """One number per spatial dimension."""
    if isinstance(sizes, int):
        return [sizes] * count
    return [static(size) for size in sizes] * (count if len(sizes) == 1 else 1)


def convolution(
    c: Context,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Value:
    """aten.convolution: [n, c, spatial...] with weights [out, in/groups, k...], or, transposed,
    [in, out/groups, k...].
    """
    count = weight.rank - 2
    if input.rank == count + 1:  # without a batch
        wide = c.builder.reshape(input, (1, *input.dims))
        result = _convolve(
            c, wide, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        return c.builder.reshape(result, result.dims[1:])
    return _convolve(
        c, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _convolve(
    c: Context,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Value:
    count = weight.rank - 2
    strides, dilations = per_dim(stride, count), per_dim(dilation, count)
    reach = [d * (static(k) - 1) for d, k in zip(dilations, weight.dims[2:], strict=True)]
    pads = _pads(padding, reach, strides, count)
    spatial = tuple(range(2, count + 2))
    lhs_dilation = [1] * count
    kernel_in, kernel_out = 1, 0
    if transposed:
        extra = per_dim(output_padding, count)
        pads = [
            (r - low, r - high + e) for r, (low, high), e in zip(reach, pads, extra, strict=True)
        ]
        lhs_dilation, strides = strides, [1] * count
        weight = c("reverse", weight, dimensions=spatial)
        if groups == 1:
            kernel_in, kernel_out = 0, 1
        else:
            weight = regrouped(c, weight, groups)
    out_channels = weight.dims[kernel_out]
    dims: list[Any] = [input.dims[0], out_channels]
    for axis in range(count):
        size = (input.dims[axis + 2] - 1) * lhs_dilation[axis] + 1 + sum(pads[axis])
        if not isinstance(size, int):
            c.require(reach[axis] + 1, "<=", size)
        dims.append((size - reach[axis] - 1) // strides[axis] + 1)
    result = c(
        "convolution", input, weight, type=TensorType(dims, input.element),
        window_strides=tuple(strides), padding=tuple(pads), lhs_dilation=tuple(lhs_dilation),
        rhs_dilation=tuple(dilations), window_reversal=(False,) * count,
        input_batch_dimension=0, input_feature_dimension=1, input_spatial_dimensions=spatial,
        kernel_input_feature_dimension=kernel_in, kernel_output_feature_dimension=kernel_out,
        kernel_spatial_dimensions=spatial, output_batch_dimension=0, output_feature_dimension=1,
        output_spatial_dimensions=spatial, feature_group_count=groups, batch_group_count=1,
    )  # fmt: skip
    if bias is None:
        return result
    return c("add", result, c.builder.broadcast(bias, result.dims, [1]))


def _pads(
    padding: Any, reach: Sequence[int], strides: Sequence[int], count: int
) -> list[tuple[int, int]]:
    """(low, high) per dimension; "same" puts the odd element at the end."""
    if padding == "valid":
        return [(0, 0)] * count
    if padding == "same":
        if any(stride != 1 for stride in strides):
            raise Blocked("padding='same' with a stride", "give the padding as numbers")
        return [(r // 2, r - r // 2) for r in reach]
    return [(p, p) for p in per_dim(padding, count)]


def regrouped(c: Context, weight: Value, groups: int) -> Value:
    """[in, out/groups, k...] -> [out, in/groups, k...], group by group."""
    channels, outputs, *window = weight.dims
    parts = c.builder.reshape(weight, (groups, channels // groups, outputs, *window))
    swapped = c.builder.transpose(parts, [0, 2, 1, *range(3, parts.rank)])
    return c.builder.reshape(swapped, (groups * outputs, channels // groups, *window))


def plain(
    c: Context,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Value:
    """conv1d, conv2d, conv3d."""
    return convolution(c, input, weight, bias, stride, padding, dilation, False, 0, groups)


def named(
    c: Context,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sizes = 1,
    padding: str = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
) -> Value:
    """conv1d, conv2d, conv3d with padding by name: "valid" or "same"."""
    return convolution(c, input, weight, bias, stride, padding, dilation, False, 0, groups)


def transposed(
    c: Context,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Value:
    """conv_transpose1d, conv_transpose2d, conv_transpose3d."""
    return convolution(
        c, input, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


def with_settings(
    c: Context, input: Value, weight: Value, bias: Value | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int, *settings: bool,
) -> Value:  # fmt: skip
    """torch._convolution: which library computes it is no part of a program."""
    return convolution(
        c, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def over_window(
    c: Context,
    self: Value,
    weight: Value,
    kernel_size: Sizes,
    bias: Value | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Value:
    """slow_conv3d, thnn_conv2d and their like, which are told the weight's sizes."""
    return plain(c, self, weight, bias, stride, padding, dilation)


def time_first(c: Context, self: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """conv_tbc: [time, batch, in] with weights [window, in, out]."""
    rows, kernel = c.builder.transpose(self, [1, 2, 0]), c.builder.transpose(weight, [2, 1, 0])
    return c.builder.transpose(plain(c, rows, kernel, bias, 1, pad), [2, 0, 1])


_OVER_WINDOWS = ("slow_conv3d", "slow_conv_dilated2d", "slow_conv_dilated3d", "thnn_conv2d")

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.conv{n}d.default": plain for n in (1, 2, 3)},
    **{f"aten.conv{n}d.padding": named for n in (1, 2, 3)},
    "aten.conv_transpose1d.default": transposed,
    "aten.conv_transpose2d.input": transposed,
    "aten.conv_transpose3d.input": transposed,
    **{f"aten.{name}.default": over_window for name in _OVER_WINDOWS},
    "aten._convolution.default": with_settings,
    "aten._convolution.deprecated": with_settings,
    "aten._convolution_mode.default": named,
    "aten.conv_tbc.default": time_first,
    "aten.convolution.default": convolution,
}
