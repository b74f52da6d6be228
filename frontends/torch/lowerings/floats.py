"""Functions of how floats are represented: neighbours, exponents, signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F32, I32, element_type
from ..context import Context, Operand

_MANTISSA = {64: 52, 32: 23}
"""Bits of the mantissa that f64 and f32 store, by their width."""


def _bits(c: Context, x: Value) -> Value:
    """The representation as an integer, which is negative where the sign bit is set."""
    whole = element_type(f"i{x.element.bits}")
    return c("bitcast_convert", x, type=x.tensor.with_element(whole))


def signbit(c: Context, self: Value) -> Value:
    """Whether the sign bit is set, also of -0.0."""
    if self.element.is_bool:
        return c.full(False, self.dims, self.element)
    raw = _bits(c, self) if self.element.is_float else self
    return c.builder.compare("LT", raw, c.full(0, raw.dims, raw.element))


def copysign(c: Context, self: Operand, other: Operand) -> Value:
    """The magnitude of `self` with the sign bit of `other`."""
    x, y = c.together(self, other, element=c.element)
    magnitude = c("abs", x)
    return c("select", signbit(c, y), c("negate", magnitude), magnitude)


def nextafter(c: Context, self: Value, other: Value) -> Value:
    """The float next to `self` in the direction of `other`."""
    return c("chlo.next_after", *c.together(self, other, element=c.element))


def frexp(c: Context, self: Value) -> tuple[Value, Value]:
    """m and e with self = m 2^e and 0.5 <= |m| < 1; 0, inf and nan are their own m, with e = 0."""
    x = c.wide(self)
    stored = _MANTISSA[x.element.bits]
    bias = (1 << (x.element.bits - stored - 2)) - 2  # of the exponent of numbers in [0.5, 1)
    tiny = c.builder.compare("LT", c("abs", x), c.full(2.0 ** (1 - bias), x.dims, x.element))
    raw = _bits(c, c("select", tiny, c.multiply(x, 2.0 ** (stored + 1)), x))
    field = (1 << (x.element.bits - stored - 1)) - 1
    stored_exponent = c.binary("shift_right_logical", raw, stored)
    exponent = c.subtract(c.binary("and", stored_exponent, field), bias)
    exponent = c("select", tiny, c.subtract(exponent, stored + 1), exponent)
    kept = c.binary("and", raw, ~(field << stored))
    mantissa = c("bitcast_convert", c.binary("or", kept, bias << stored), type=x.tensor)
    zero = c.builder.compare("EQ", x, c.full(0, x.dims, x.element))
    plain = c("and", c("is_finite", x), c("not", zero))
    return (
        c.narrow(c("select", plain, mantissa, x)),
        c.convert(c.select(plain, exponent, 0), I32),
    )


def ldexp(c: Context, self: Value, other: Value) -> Value:
    """self * 2^other; the power in f32 where `other` is an integer, as in PyTorch."""
    element = other.element if other.element.kind in ("float", "complex") else F32
    exponent = c.wide(c.convert(other, element))
    power = c.builder.convert(c.binary("power", 2, exponent), element)
    return c.narrow(c("multiply", *map(c.wide, c.together(self, power, element=c.element))))


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.copysign.{kind}": copysign for kind in ("Tensor", "Scalar")},
    "aten.frexp.Tensor": frexp,
    **{f"aten.ldexp.{kind}": ldexp for kind in ("Tensor", "default")},  # the latter of ldexp_
    "aten.nextafter.default": nextafter,
    "aten.signbit.default": signbit,
}
