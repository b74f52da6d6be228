"""Normalisation: layer, group, batch, instance and root-mean-square norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import F64
from ..context import Context
from .reductions import mean_and_variance


def _affine(
    c: Context, x: Value, weight: Value | None, bias: Value | None, axes: Sequence[int]
) -> Value:
    """x * weight + bias, both spread from `axes`."""
    if weight is not None:
        x = c("multiply", x, c.builder.broadcast(c.convert(weight, x.element), x.dims, axes))
    if bias is not None:
        x = c("add", x, c.builder.broadcast(c.convert(bias, x.element), x.dims, axes))
    return x


def _normalized(
    c: Context, x: Value, axes: Sequence[int], eps: float
) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + eps), the mean, and the factor."""
    middle, variance, centred = mean_and_variance(c, x, axes)
    factor = c("rsqrt", c.add(variance, eps))
    return c("multiply", centred, c.along(factor, x.dims, axes)), middle, factor


def native_layer_norm(
    c: Context,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value | None, Value | None]:
    """The normalised input, the mean, and 1 / deviation."""
    axes = list(range(input.rank - len(normalized_shape), input.rank))
    result, middle, factor = _normalized(c, c.wide(input), axes, eps)
    result = c.narrow(_affine(c, result, weight, bias, axes))
    extra = [
        c.convert(c.builder.reshape(value, c.type_of(index).dims), c.type_of(index).element)
        if c.used[index] else None
        for index, value in ((1, middle), (2, factor))
    ]  # fmt: skip
    return result, extra[0], extra[1]


def layer_norm(
    c: Context,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Value:
    axes = list(range(input.rank - len(normalized_shape), input.rank))
    result = _normalized(c, c.wide(input), axes, eps)[0]
    return c.narrow(_affine(c, result, weight, bias, axes))


def rms_norm(
    c: Context,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    """x / sqrt(mean(x²) + eps) * weight."""
    return c.narrow(_rms(c, input, normalized_shape, weight, eps)[0])


def fused_rms_norm(
    c: Context,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> tuple[Value, Value | None]:
    result, factor = _rms(c, input, normalized_shape, weight, eps)
    kept = c.builder.reshape(factor, c.type_of(1).dims) if c.used[1] else None
    return c.narrow(result), kept


def _rms(
    c: Context, input: Value, shape: Sequence[int], weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    axes = list(range(input.rank - len(shape), input.rank))
    x = c.wide(input)
    if eps is None:
        eps = _epsilon(input)
    squares = c.reduce("add", c("multiply", x, x), axes)
    factor = c("rsqrt", c.add(c.divide(squares, c.count(x.dims, axes)), eps))
    result = c("multiply", x, c.along(factor, x.dims, axes))
    return _affine(c, result, weight, None, axes), factor


def _epsilon(value: Value) -> float:
    return float(ml_dtypes.finfo(value.element.dtype).eps)


def _grouped(
    c: Context, input: Value, groups: int, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """Normalised over the channels of a group and all space."""
    batch, channels, *space = input.dims
    dims = (batch, groups, channels // groups, *space)
    x = c.builder.reshape(c.wide(input), dims)
    result, middle, factor = _normalized(c, x, range(2, x.rank), eps)
    flat = c.builder.reshape(result, input.dims)
    return _affine(c, flat, weight, bias, [1]), middle, factor


def group_norm(
    c: Context,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Value:
    return c.narrow(_grouped(c, input, num_groups, weight, bias, eps)[0])


def native_group_norm(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Value, Value | None, Value | None]:
    result, middle, factor = _grouped(c, input, group, weight, bias, eps)
    return (
        c.narrow(result),
        c.narrow(middle, 1) if c.used[1] else None,
        c.narrow(factor, 2) if c.used[2] else None,
    )


def _batch_inference(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Value:
    """input * scale + shift, with one scale and shift per channel."""
    x = c.wide(input)
    element = x.element
    scale = c("rsqrt", c.add(c.convert(variance, element), eps))
    if weight is not None:
        scale = c("multiply", c.convert(weight, element), scale)
    shift = c("multiply", c.convert(mean, element), scale)
    shift = c("negate", shift) if bias is None else c("subtract", c.convert(bias, element), shift)
    return c.narrow(_affine(c, x, scale, shift, [1]))


def batch_norm_no_training(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value | None, Value | None]:
    result = _batch_inference(c, input, weight, bias, running_mean, running_var, eps)
    return result, *_nothing_saved(c)


def _nothing_saved(c: Context) -> tuple[Value | None, Value | None]:
    """PyTorch saves empty tensors where the running statistics are used."""
    first, second = (
        c.full(0, c.type_of(index).dims, c.type_of(index).element) if c.used[index] else None
        for index in (1, 2)
    )
    return first, second


def _saved(c: Context, middle: Value, factor: Value) -> tuple[Value | None, Value | None]:
    """Mean and 1 / deviation of the batch, which gradients read."""
    return (
        c.narrow(middle, 1) if c.used[1] else None,
        c.narrow(factor, 2) if c.used[2] else None,
    )


def batch_norm(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    """By the batch's own statistics, of which the running ones take their part, or in eval mode by
    the running ones, if there are any."""
    if training and running_mean is not None and running_var is not None:
        result, _ = _by_batch_running(
            c, input, weight, bias, running_mean, running_var, momentum, eps
        )
        return result
    if running_mean is None or running_var is None:
        return _by_batch(c, input, weight, bias, eps)[0]
    return _batch_inference(c, input, weight, bias, running_mean, running_var, eps)


def _by_batch(
    c: Context, input: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """The result, the mean and 1 / deviation of the batch."""
    axes = [axis for axis in range(input.rank) if axis != 1]
    result, middle, factor = _normalized(c, c.wide(input), axes, eps)
    return c.narrow(_affine(c, result, weight, bias, [1])), middle, factor


def native_batch_norm(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value | None, Value | None]:
    if running_mean is None or running_var is None:
        result, middle, factor = _by_batch(c, input, weight, bias, eps)
        return result, *_saved(c, middle, factor)
    if training:
        result, saved = _by_batch_running(
            c, input, weight, bias, running_mean, running_var, momentum, eps
        )
        return result, *_saved(c, *saved)
    result = batch_norm(c, input, weight, bias, running_mean, running_var, training, momentum, eps)
    return result, *_nothing_saved(c)


def _by_batch_running(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, tuple[Value, Value]]:
    """The result, and mean and 1 / deviation of the batch; changes the node's statistics."""
    if 0 in input.dims:  # nothing to normalise: statistics stay
        nothing = c.full(0, running_mean.dims, c.wide(input).element)
        return input, (nothing, nothing)
    result, middle, factor, news = _in_training(
        c, input, weight, bias, running_mean, running_var, momentum, eps
    )
    for place, new in zip(c.node.args[3:5], news, strict=True):
        c.write(place, new)
    return result, (middle, factor)


def batch_norm_without_statistics(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value | None, Value | None]:
    result, middle, factor = _by_batch(c, input, weight, bias, eps)
    return result, *_saved(c, middle, factor)


def batch_norm_functional(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    """The result, saved mean and 1 / deviation, and the new running statistics."""
    if not training:
        result = _batch_inference(c, input, weight, bias, running_mean, running_var, eps)
        return result, *_nothing_saved(c), running_mean, running_var
    result, middle, factor, news = _in_training(
        c, input, weight, bias, running_mean, running_var, momentum, eps
    )
    return result, *_saved(c, middle, factor), *news


def _unbiased(c: Context, variance: Value, count: Dim) -> Value:
    """variance * count / (count - 1)"""
    if isinstance(count, int):
        return c.multiply(variance, count / max(count - 1, 1) if count > 1 else math.nan)
    share = c("divide", c.size(count, F64), c.size(count - 1, F64))
    return c.multiply(variance, c.spread(c.convert(share, variance.element), variance.dims))


def _in_training(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value, list[Value]]:
    """The result, mean and 1 / deviation of the batch, and the new running statistics."""
    x = c.wide(input)
    axes = [axis for axis in range(x.rank) if axis != 1]
    middle, variance, centred = mean_and_variance(c, x, axes)
    factor = c("rsqrt", c.add(variance, eps))
    result = c("multiply", centred, c.along(factor, x.dims, axes))
    result = _affine(c, result, weight, bias, [1])
    count = c.count(x.dims, axes)
    unbiased = _unbiased(c, variance, count)
    news = _running(c, (running_mean, running_var), (middle, unbiased), momentum)
    return c.narrow(result), middle, factor, news


def _running(
    c: Context, olds: Sequence[Value], news: Sequence[Value], momentum: float
) -> list[Value]:
    """Running statistics, of which the new ones take their part."""
    return [
        c.convert(
            c("add", c.multiply(c.convert(old, new.element), 1 - momentum),
              c.multiply(new, momentum)),
            old.element,
        )
        for old, new in zip(olds, news, strict=True)
    ]  # fmt: skip


def batch_norm_with_update(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    """In training: the result, saved mean and 1 / deviation, nothing that is reserved; changes the
    running statistics, or, where the node has them as results, gives the new ones."""
    result, middle, factor, news = _in_training(
        c, input, weight, bias, running_mean, running_var, momentum, eps
    )
    reserved = c.full(0, c.type_of(3).dims, c.type_of(3).element) if c.used[3] else None
    saved = (result, *_saved(c, middle, factor), reserved)
    if len(c.used) > 4:
        return *saved, *news
    for place, new in zip(c.node.args[3:5], news, strict=True):
        c.write(place, new)
    return saved


def batch_norm_no_update(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    result = batch_norm(c, input, weight, bias, running_mean, running_var, False, momentum, eps)
    reserved = c.full(0, c.type_of(3).dims, c.type_of(3).element) if c.used[3] else None
    return result, *_nothing_saved(c), reserved


def instance_norm(
    c: Context,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    """Over space, for each sample and channel; by running statistics in eval mode with them."""
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _batch_inference(c, input, weight, bias, running_mean, running_var, eps)
    x, space = c.wide(input), list(range(2, input.rank))
    middle, variance, centred = mean_and_variance(c, x, space)
    if running_mean is not None and running_var is not None:
        count = c.count(x.dims, space)
        samples = [c.mean(c.reduce("add", v, [0]), v, [0])
                   for v in (middle, _unbiased(c, variance, count))]  # fmt: skip
        olds = running_mean, running_var
        news = _running(c, olds, samples, momentum)
        for place, new in zip(c.node.args[3:5], news, strict=True):
            c.write(place, new)
    factor = c("rsqrt", c.add(variance, eps))
    result = c("multiply", centred, c.along(factor, x.dims, space))
    return c.narrow(_affine(c, result, weight, bias, [1]))


TABLE: dict[str, Callable[..., Any]] = {
    "aten._batch_norm_no_update.default": batch_norm_no_update,
    "aten._batch_norm_with_update.default": batch_norm_with_update,
    "aten._batch_norm_with_update_functional.default": batch_norm_with_update,
    "aten._fused_rms_norm.default": fused_rms_norm,
    "aten._native_batch_norm_legit.default": native_batch_norm,
    "aten._native_batch_norm_legit.no_stats": batch_norm_without_statistics,
    "aten._native_batch_norm_legit_functional.default": batch_norm_functional,
    "aten._native_batch_norm_legit_no_training.default": batch_norm_no_training,
    "aten.batch_norm.default": batch_norm,
    "aten.group_norm.default": group_norm,
    "aten.instance_norm.default": instance_norm,
    "aten.layer_norm.default": layer_norm,
    "aten.native_batch_norm.default": native_batch_norm,
    "aten.native_group_norm.default": native_group_norm,
    "aten.native_layer_norm.default": native_layer_norm,
    "aten.rms_norm.default": rms_norm,
}
