"""Activations and softmax. Composite formulas compute in f32 for bf16 and f16 and round once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import ElementType
from ..context import Blocked, Context, Number, axis_of, finite_lowest
from .pointwise import formula


def relu(c: Context, self: Value) -> Value:
    """max(self, 0)."""
    return c.binary("maximum", self, 0)


def clamped(low: Number, high: Number) -> Callable[..., Value]:
    """self between two constants."""

    def lower(c: Context, self: Value) -> Value:
        return bounded(c, self, low, high)

    return lower


def bounded(c: Context, x: Value, low: Number, high: Number) -> Value:
    return c("clamp", c.scalar(low, x.element), x, c.scalar(high, x.element))


def hardtanh(c: Context, self: Value, min_val: Number = -1.0, max_val: Number = 1.0) -> Value:
    return bounded(c, self, min_val, max_val)


def gelu(c: Context, self: Value, approximate: str = "none") -> Value:
    """self * Phi(self), exact or by tanh."""
    x = c.wide(self)
    if approximate == "none":
        tail = c.add(c("chlo.erf", c.multiply(x, math.sqrt(0.5))), 1)
        return c.narrow(c("multiply", c.multiply(x, 0.5), tail))
    cube = c("multiply", c("multiply", x, x), x)
    inner = c.multiply(c("add", x, c.multiply(cube, 0.044715)), math.sqrt(2 / math.pi))
    return c.narrow(c("multiply", c.multiply(x, 0.5), c.add(c("tanh", inner), 1)))


def softplus(c: Context, self: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """log(1 + exp(beta * self)) / beta; linear above the threshold."""
    x = c.wide(self)
    scaled = x if beta == 1 else c.multiply(x, beta)
    grown = c("log_plus_one", c("exponential", scaled))
    soft = grown if beta == 1 else c.divide(grown, beta)
    high = c.builder.compare("GT", scaled, c.full(threshold, x.dims, x.element))
    return c.narrow(c("select", high, x, soft))


def elu(
    c: Context, self: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Value:
    """scale * self above 0, scale * alpha * (exp(input_scale * self) - 1) below."""
    x = c.wide(self)
    inner = x if input_scale == 1 else c.multiply(x, input_scale)
    below = c.multiply(c("exponential_minus_one", inner), alpha * scale)
    above = x if scale == 1 else c.multiply(x, scale)
    positive = c.builder.compare("GT", x, c.full(0, x.dims, x.element))
    return c.narrow(c("select", positive, above, below))


def celu(c: Context, self: Value, alpha: Number = 1.0) -> Value:
    return elu(c, self, alpha, 1, 1 / alpha)


def selu(c: Context, self: Value) -> Value:
    return elu(c, self, 1.6732632423543772, 1.0507009873554805)


def leaky_relu(c: Context, self: Value, negative_slope: Number = 0.01) -> Value:
    x = c.wide(self)
    positive = c.builder.compare("GT", x, c.full(0, x.dims, x.element))
    return c.narrow(c("select", positive, x, c.multiply(x, negative_slope)))


def prelu(c: Context, self: Value, weight: Value) -> Value:
    """leaky_relu with one slope, or one per channel (dimension 1)."""
    if weight.rank == 1 and self.rank > 1 and weight.dims[0] != 1:
        slope = c.builder.broadcast(weight, self.dims, [1])
    elif weight.rank == 1:
        slope = c.spread(weight, self.dims)
    else:
        slope = c.spread(weight, self.dims)
    positive = c.builder.compare("GT", self, c.full(0, self.dims, self.element))
    return c("select", positive, self, c("multiply", self, slope))


def hardswish(c: Context, self: Value) -> Value:
    """self * clamp(self + 3, 0, 6) / 6."""
    x = c.wide(self)
    return c.narrow(c.divide(c("multiply", x, bounded(c, c.add(x, 3), 0, 6)), 6))


def hardsigmoid(c: Context, self: Value) -> Value:
    """clamp(self + 3, 0, 6) / 6."""
    x = c.wide(self)
    return c.narrow(c.divide(bounded(c, c.add(x, 3), 0, 6), 6))


def threshold(c: Context, self: Value, threshold: Number, value: Number) -> Value:
    """value up to the threshold, self above it and where it is nan."""
    return c.select(c.compare("LE", self, threshold), value, self)


def hardshrink(c: Context, self: Value, lambd: Number = 0.5) -> Value:
    inside = c.builder.compare("LE", c("abs", self), c.full(lambd, self.dims, self.element))
    return c.select(inside, 0, self)


def softshrink(c: Context, self: Value, lambd: Number = 0.5) -> Value:
    x = c.wide(self)
    shrunk = c("subtract", x, bounded(c, x, -lambd, lambd))  # type: ignore[operator]
    return c.narrow(shrunk)


def glu(c: Context, self: Value, dim: int = -1) -> Value:
    """first half * sigmoid(second half)."""
    axis = axis_of(dim, self.rank)
    half = self.dims[axis] // 2
    first = c.slice(self, axis, 0, half)
    second = c.slice(self, axis, half, 2 * half)
    return c.narrow(c("multiply", c.wide(first), c("logistic", c.wide(second))))


def _silu(c: Context, x: Value) -> Value:
    return c("multiply", x, c("logistic", x))


def _mish(c: Context, x: Value) -> Value:
    return c("multiply", x, c("tanh", _softplus(c, x)))


def _softplus(c: Context, x: Value) -> Value:
    # max(x, 0) + log(1 + exp(-|x|)) cannot overflow
    small = c("log_plus_one", c("exponential", c("negate", c("abs", x))))
    return c("add", c.binary("maximum", x, 0), small)


def log_sigmoid_of(c: Context, x: Value) -> Value:
    return c("negate", _softplus(c, c("negate", x)))


def log_sigmoid_forward(c: Context, self: Value) -> tuple[Value, Value | None]:
    """log_sigmoid and the buffer of its gradient, which no inference uses."""
    if c.used[1]:
        raise Blocked("the buffer of its gradient is used", "export the model without gradients")
    return c.narrow(log_sigmoid_of(c, c.wide(self))), None


# Softmax.


def softmax_of(c: Context, x: Value, axis: int, safe: bool = False) -> Value:
    """exp(x) / sum(exp(x)) along an axis, shifted by the maximum.

    `safe`: a line of nothing but -inf gives zeros instead of nan. A shifted line has exp(0) = 1 in
    it unless it is such a line, so bounding the sum by 1 from below changes nothing else.
    """
    top = c.reduce("maximum", x, [axis])
    if safe:
        top = c.binary("maximum", top, finite_lowest(x.element))
    grown = c("exponential", c("subtract", x, c.along(top, x.dims, [axis])))
    total = c.reduce("add", grown, [axis])
    if safe:
        total = c.binary("maximum", total, 1)
    return c("divide", grown, c.along(total, x.dims, [axis]))


def log_softmax_of(c: Context, x: Value, axis: int) -> Value:
    """x - log(sum(exp(x))) along an axis."""
    top = c.reduce("maximum", x, [axis])
    shifted = c("subtract", x, c.along(top, x.dims, [axis]))
    total = c("log", c.reduce("add", c("exponential", shifted), [axis]))
    return c("subtract", shifted, c.along(total, x.dims, [axis]))


def _line_softmax(c: Context, self: Value, dim: int, body: Callable[..., Value]) -> Value:
    x = c.wide(c.convert(self, c.element))
    if not x.rank:
        line = c.builder.reshape(x, (1,))
        return c.builder.reshape(c.narrow(body(c, line, 0)), ())
    return c.narrow(body(c, x, axis_of(dim, x.rank)))


def softmax(c: Context, self: Value, dim: int, half_to_float: Any = False) -> Value:
    return _line_softmax(c, self, dim, softmax_of)


def softmax_int(c: Context, self: Value, dim: int, dtype: ElementType | None = None) -> Value:
    return _line_softmax(c, self, dim, softmax_of)


def safe_softmax(c: Context, self: Value, dim: int, dtype: ElementType | None = None) -> Value:
    return _line_softmax(c, self, dim, lambda c, x, axis: softmax_of(c, x, axis, safe=True))


def log_softmax(c: Context, self: Value, dim: int, half_to_float: Any = False) -> Value:
    return _line_softmax(c, self, dim, log_softmax_of)


def log_softmax_int(c: Context, self: Value, dim: int, dtype: ElementType | None = None) -> Value:
    return _line_softmax(c, self, dim, log_softmax_of)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._log_softmax.default": log_softmax,
    "aten._prelu_kernel.default": prelu,
    "aten._safe_softmax.default": safe_softmax,
    "aten._softmax.default": softmax,
    "aten.celu.default": celu,
    "aten.elu.default": elu,
    "aten.gelu.default": gelu,
    "aten.glu.default": glu,
    "aten.hardshrink.default": hardshrink,
    "aten.hardsigmoid.default": hardsigmoid,
    "aten.hardswish.default": hardswish,
    "aten.hardtanh.default": hardtanh,
    "aten.leaky_relu.default": leaky_relu,
    "aten.log_sigmoid.default": formula(log_sigmoid_of),
    "aten.log_sigmoid_forward.default": log_sigmoid_forward,
    "aten.log_softmax.int": log_softmax_int,
    "aten.mish.default": formula(_mish),
    "aten.prelu.default": prelu,
    "aten.relu.default": relu,
    "aten.relu6.default": clamped(0, 6),
    "aten.selu.default": selu,
    "aten.silu.default": formula(_silu),
    "aten.softmax.int": softmax_int,
    "aten.softplus.default": softplus,
    "aten.softshrink.default": softshrink,
    "aten.threshold.default": threshold,
}
