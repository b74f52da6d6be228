"""Quantised graphs: the operators of PT2E exports, weight-only products, fake quantisation.

A quantised tensor is integers beside scales and zero points; real = (q - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.types import F32, I32, ElementType
from ..context import Blocked, Context, Operand, axis_of, static


def _column(c: Context, parameter: Operand, dims: Sequence[Any], axis: int | None) -> Operand:
    """A scale or zero point spread to `dims`: one for all, or one per position along an axis."""
    if not isinstance(parameter, Value):
        return parameter
    if axis is None:
        return c.spread(c.builder.reshape(parameter, ()), dims)
    return c.builder.broadcast(parameter, dims, [axis])


def _quantized(
    c: Context, x: Value, scale: Operand, zero: Operand, low: Operand, high: Operand
) -> Value:
    """clamp(round(x * (1 / scale)) + zero, low, high) in f32, not yet converted."""
    x = c.wide(x)
    if isinstance(scale, Value):
        factor: Operand = c.divide(1.0, c.convert(scale, x.element))
    else:
        assert not isinstance(scale, complex)
        factor = 1.0 / scale
    result = c("round_nearest_even", c.multiply(x, factor))
    result = c.add(result, c.convert(zero, x.element) if isinstance(zero, Value) else zero)
    for bound, name in ((low, "maximum"), (high, "minimum")):
        result = c.binary(name, result, c.fill(bound, result.tensor))
    return result


def _real(
    c: Context, x: Value, scale: Operand, zero: Operand | None, element: ElementType
) -> Value:
    """(x - zero) * scale."""
    result = c.convert(x, F32)
    if zero is not None:
        result = c.subtract(result, c.convert(zero, F32) if isinstance(zero, Value) else zero)
    result = c.multiply(result, c.convert(scale, F32) if isinstance(scale, Value) else scale)
    return c.convert(result, element)


def quantize(
    c: Context,
    input: Value,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: ElementType,
) -> Value:
    scale, zero = (_column(c, v, input.dims, None) for v in (scale, zero_point))
    low, high = (_column(c, v, input.dims, None) for v in (quant_min, quant_max))
    return c.builder.convert(_quantized(c, input, scale, zero, low, high), c.element)


def dequantize(
    c: Context,
    input: Value,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: ElementType,
    *,
    out_dtype: ElementType | None = None,
) -> Value:
    scale, zero = (_column(c, v, input.dims, None) for v in (scale, zero_point))
    return _real(c, input, scale, zero, c.element)


def quantize_channels(
    c: Context,
    input: Value,
    scales: Value,
    zero_points: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: ElementType,
) -> Value:
    axis = axis_of(axis, input.rank)
    scale, zero = (_column(c, v, input.dims, axis) for v in (scales, zero_points))
    return c.builder.convert(_quantized(c, input, scale, zero, quant_min, quant_max), c.element)


def dequantize_channels(
    c: Context,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: ElementType,
    *,
    out_dtype: ElementType | None = None,
) -> Value:
    axis = axis_of(axis, input.rank)
    scale = _column(c, scales, input.dims, axis)
    zero = None if zero_points is None else _column(c, zero_points, input.dims, axis)
    return _real(c, input, scale, zero, c.element)


def quantize_tokens(
    c: Context,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: ElementType,
) -> Value:
    scale, zero = (c.spread(v, input.dims) for v in (scales, zero_points))
    return c.builder.convert(_quantized(c, input, scale, zero, quant_min, quant_max), c.element)


def dequantize_tokens(
    c: Context,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: ElementType,
    output_dtype: ElementType,
) -> Value:
    return _real(
        c, input, c.spread(scales, input.dims), c.spread(zero_points, input.dims), c.element
    )


def _groups(c: Context, parameter: Value, dims: Sequence[Any], size: int) -> Value:
    """One value per row and group of `size` columns, spread to the columns."""
    rows, columns = dims
    wide = (rows, static(columns) // size, size)
    return c.builder.reshape(c.builder.broadcast(parameter, wide, [0, 1]), dims)


def quantize_groups(
    c: Context,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: ElementType,
    group_size: int,
) -> Value:
    scale, zero = (_groups(c, v, input.dims, group_size) for v in (scales, zero_points))
    return c.builder.convert(_quantized(c, input, scale, zero, quant_min, quant_max), c.element)


def dequantize_groups(
    c: Context,
    w_int8: Value,
    scales: Value,
    zero_points: Value | None,
    quant_min: int,
    quant_max: int,
    dtype: ElementType,
    group_size: int,
    output_dtype: ElementType,
) -> Value:
    scale = _groups(c, scales, w_int8.dims, group_size)
    zero = None if zero_points is None else _groups(c, zero_points, w_int8.dims, group_size)
    return _real(c, w_int8, scale, zero, c.element)


# Scales and zero points of values.


def _range(c: Context, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """The least and the largest value, 0 included."""
    low, high = c.reduce("minimum", x, axes), c.reduce("maximum", x, axes)
    return c.binary("minimum", low, 0.0), c.binary("maximum", high, 0.0)


def choose(
    c: Context, input: Value, quant_min: int, quant_max: int, eps: float, dtype: ElementType
) -> tuple[Value, Value]:
    low, high = _range(c, c.wide(input), range(input.rank))
    scale = c.divide(c("subtract", high, low), float(quant_max - quant_min))
    scale = c.binary("maximum", scale, float(np.float32(eps)))
    zero = c.subtract(quant_min, c("round_nearest_even", c("divide", low, scale)))
    zero = c.binary("minimum", c.binary("maximum", zero, quant_min), quant_max)
    return _pair(c, scale, zero)


def choose_symmetric(
    c: Context, input: Value, quant_min: int, quant_max: int, eps: float, dtype: ElementType
) -> tuple[Value, Value]:
    low, high = _range(c, c.wide(input), range(input.rank))
    scale = c("maximum", c("negate", low), high)
    scale = c.divide(scale, float(quant_max - quant_min) / 2)
    scale = c.binary("maximum", scale, float(np.float32(eps)))
    return _pair(c, scale, c.full(128 if dtype.kind == "uint" else 0, (), F32))


def choose_per_token(c: Context, input: Value, dtype: ElementType) -> tuple[Value, Value]:
    """max |x| of each row over 127."""
    largest = c.reduce("maximum", c("abs", input), [input.rank - 1])
    scale = c.divide(c.binary("maximum", c.wide(largest), 1e-5), 127)
    return _pair(c, scale, c.full(0, scale.dims, F32))


def choose_per_token_asymmetric(
    c: Context, input: Value, dtype: ElementType
) -> tuple[Value, Value]:
    low, high = _range(c, c.wide(input), [input.rank - 1])
    scale = c.divide(c("subtract", high, low), 255.0)
    scale = c.binary("maximum", scale, float(np.finfo(np.float32).eps))
    low, high = c("divide", low, scale), c("divide", high, scale)
    positive = c.compare("GT", c("add", c.add(low, -128), c.add(high, 127)), 0.0)
    zero = c("select", positive, c.subtract(-128, low), c.subtract(127, high))
    zero = c.binary("minimum", c.binary("maximum", zero, -128), 127)
    return _pair(c, scale, c("round_nearest_even", zero))


def _pair(c: Context, scale: Value, zero: Value) -> tuple[Value, Value]:
    """Both in their declared types."""
    first, second = (
        c.builder.reshape(c.convert(value, c.type_of(at).element), c.type_of(at).dims)
        for at, value in enumerate((scale, zero))
    )
    return first, second


# Products and fake quantisation.


def weight_int8(c: Context, self: Value, mat2: Value, scales: Value) -> Value:
    """self @ mat2^T * scales with i8 weights [n, k] and one scale per row."""
    result = c.dot(c.wide(self), c.convert(mat2, F32), ((1,), (1,)))
    return c.narrow(c("multiply", result, c.spread(c.convert(scales, F32), result.dims)))


def weight_int4(
    c: Context, self: Value, mat2: Value, qGroupSize: int, qScaleAndZeros: Value
) -> Value:
    raise Blocked(
        "its packed weights have an order of the machine that packed them",
        "export with dequantize_per_channel_group, or with weights as plain integers",
    )


def integer_product(c: Context, self: Value, mat2: Value) -> Value:
    """i8 x i8 -> i32."""
    return c.dot(self, mat2, ((1,), (0,)), element=I32)


def _fake(
    c: Context, x: Value, scale: Operand, zero: Operand, low: int, high: int
) -> tuple[Value, Value]:
    """The nearest quantised value, and where nothing was clamped."""
    wide = c.wide(x)
    factor = c.divide(1.0, c.convert(scale, F32)) if isinstance(scale, Value) else 1.0 / scale  # type: ignore[operator]
    zero = c.convert(zero, F32) if isinstance(zero, Value) else zero
    steps = c("round_nearest_even", c.add(c.multiply(wide, factor), zero))
    inside = c("and", c.compare("GE", steps, float(low)), c.compare("LE", steps, float(high)))
    steps = c.binary("minimum", c.binary("maximum", steps, low), high)
    if isinstance(scale, Value):
        scale = c.convert(scale, F32)
    return c.narrow(c.multiply(c.subtract(steps, zero), scale)), inside


def fake_tensor(
    c: Context, self: Value, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> Value:
    scale, zero = (_column(c, v, self.dims, None) for v in (scale, zero_point))
    return _fake(c, self, scale, zero, quant_min, quant_max)[0]


def fake_channels(
    c: Context,
    self: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Value:
    factor, zero = (_column(c, v, self.dims, axis) for v in (scale, zero_point))
    return _fake(c, self, factor, zero, quant_min, quant_max)[0]


def fake_tensor_mask(
    c: Context, self: Value, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Value, Value]:
    return _fake(c, self, scale, zero_point, quant_min, quant_max)


def fake_channels_mask(
    c: Context,
    self: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> tuple[Value, Value]:
    factor, zero = (_column(c, v, self.dims, axis) for v in (scale, zero_point))
    return _fake(c, self, factor, zero, quant_min, quant_max)


_OURS: dict[str, Callable[..., Any]] = {
    **{f"quantize_per_tensor.{kind}": quantize for kind in ("default", "tensor", "tensor2")},
    **{f"dequantize_per_tensor.{kind}": dequantize for kind in ("default", "tensor", "tensor2")},
    "choose_qparams.tensor": choose,
    "choose_qparams_symmetric.tensor": choose_symmetric,
    "choose_qparams_per_token.default": choose_per_token,
    "choose_qparams_per_token_asymmetric.default": choose_per_token_asymmetric,
    "dequantize_per_channel.default": dequantize_channels,
    "dequantize_per_channel_group.default": dequantize_groups,
    "dequantize_per_token.default": dequantize_tokens,
    "quantize_per_channel.default": quantize_channels,
    "quantize_per_channel_group.default": quantize_groups,
    "quantize_per_token.default": quantize_tokens,
}

TABLE: dict[str, Callable[..., Any]] = {
    **{f"quantized_decomposed.{name}": body for name, body in _OURS.items()},
    "aten._int_mm.default": integer_product,
    "aten._weight_int4pack_mm_for_cpu.default": weight_int4,
    "aten._weight_int8pack_mm.default": weight_int8,
    "aten.fake_quantize_per_channel_affine.default": fake_channels,
    "aten.fake_quantize_per_channel_affine_cachemask.default": fake_channels_mask,
    "aten.fake_quantize_per_tensor_affine.default": fake_tensor,
    "aten.fake_quantize_per_tensor_affine.tensor_qparams": fake_tensor,
    "aten.fake_quantize_per_tensor_affine_cachemask.default": fake_tensor_mask,
}
