"""Comparisons, logic, and choices by a condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F32, I1
from ..context import Context, Operand
from ..promotion import promote


def comparison(direction: str) -> Callable[..., Value]:
    """An elementwise comparison in the promoted type."""

    def lower(c: Context, self: Operand, other: Operand) -> Value:
        return c.compare(direction, self, other)

    return lower


def logical(name: str) -> Callable[..., Value]:
    """An operation on truth: zero is false, everything else is true."""

    def lower(c: Context, self: Value, other: Operand) -> Value:
        left, right = c.together(self, other, element=I1)
        return c(name, left, right)

    return lower


def logical_not(c: Context, self: Value) -> Value:
    if self.element is I1:
        return c("not", self)
    return c.builder.compare("EQ", self, c.full(0, self.dims, self.element))


def where(c: Context, condition: Value, self: Operand, other: Operand) -> Value:
    """self where the condition holds, else other."""
    chosen = c.spread(c.convert(condition, I1), c.dims)
    return c("select", chosen, c.fill(self, c.type), c.fill(other, c.type))


def masked_fill(c: Context, self: Value, mask: Value, value: Operand) -> Value:
    """value where the mask holds, else self."""
    return c("select", c.spread(mask, c.dims), c.fill(value, c.type), c.fill(self, c.type))


def by_part(
    test: Callable[[Context, Value], Value], join: str, otherwise: bool
) -> Callable[..., Value]:
    """A test of floats, that of both parts of complex numbers; of integers it is `otherwise`."""

    def lower(c: Context, self: Value) -> Value:
        if self.element.is_complex:
            return c(join, *(test(c, c.part(name, self)) for name in ("real", "imag")))
        return test(c, self) if self.element.is_float else c.full(otherwise, self.dims, I1)

    return lower


def _is_infinite(c: Context, x: Value) -> Value:
    return c.builder.compare("EQ", c("abs", x), c.full(math.inf, x.dims, x.element))


def is_infinity(negative: bool) -> Callable[..., Value]:
    """isposinf and isneginf."""

    def lower(c: Context, self: Value) -> Value:
        if not self.element.is_float:
            return c.full(False, self.dims, I1)
        value = -math.inf if negative else math.inf
        return c.builder.compare("EQ", self, c.full(value, self.dims, self.element))

    return lower


def isreal(c: Context, self: Value) -> Value:
    """Whether the imaginary part is 0."""
    if not self.element.is_complex:
        return c.full(True, self.dims, I1)
    return c.compare("EQ", c("imag", self), 0)


def isclose(
    c: Context,
    self: Value,
    other: Value,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Value:
    """|self - other| <= atol + rtol * |other|, or equal."""
    x, y = c.together(self, other, element=promote(self.element, other.element))
    same = c.builder.compare("EQ", x, y)
    if equal_nan and (x.element.is_float or x.element.is_complex):
        same = c("or", same, c("and", c.is_nan(x), c.is_nan(y)))
    if rtol == 0 and atol == 0 or x.element is I1:
        return same
    gap, size = c("subtract", x, y), y
    if x.element.kind != "uint":  # where differences wrap in PyTorch too
        gap, size = c("abs", gap), c("abs", size)
    if x.element.is_integer:
        gap, size = c.convert(gap, F32), c.convert(size, F32)
    near = c.builder.compare("LE", gap, c.add(c.multiply(size, rtol), atol))
    return c("or", same, c("and", near, c("is_finite", gap)))


_DIRECTIONS = {
    "eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE",
    "greater": "GT", "greater_equal": "GE", "less": "LT", "less_equal": "LE", "not_equal": "NE",
}  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{
        f"aten.{name}.{kind}": comparison(direction)
        for name, direction in _DIRECTIONS.items()
        for kind in ("Tensor", "Scalar")
    },
    **{f"aten.logical_{name}.default": logical(name) for name in ("and", "or", "xor")},
    **{f"aten.where.{kind}": where for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **{f"aten.masked_fill.{kind}": masked_fill for kind in ("Scalar", "Tensor")},
    "aten.isclose.default": isclose,
    "aten.isfinite.default": by_part(lambda c, x: c("is_finite", x), "and", True),
    "aten.isinf.default": by_part(_is_infinite, "or", False),
    "aten.isnan.default": by_part(lambda c, x: c.is_nan(x), "or", False),
    "aten.isneginf.default": is_infinity(True),
    "aten.isposinf.default": is_infinity(False),
    "aten.isreal.default": isreal,
    "aten.logical_not.default": logical_not,
}
