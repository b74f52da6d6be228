"""Operators of integers alone: shifts, common divisors and multiples, hashes of bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F64, I32, I64, UI64
from ..context import Blocked, Context, Operand, axes_of


def shift(name: str) -> Callable[..., Value]:
    """A shift of integers; by less than 0 or by all bits nothing is left, or the sign."""

    def lower(c: Context, self: Operand, other: Operand) -> Value:
        left, right = c.together(self, other, element=c.element)
        unsigned = left.element.kind == "uint" and name == "shift_right_arithmetic"
        return c("shift_right_logical" if unsigned else name, left, right)

    return lower


def _size(c: Context, x: Value) -> Value:
    return x if x.element.kind == "uint" else c("abs", x)


def gcd(c: Context, self: Value, other: Value) -> Value:
    """The greatest common divisor of the sizes, by Euclid's algorithm; that of 0 and 0 is 0."""
    return _gcd(c, *c.together(self, other, element=c.element))


def _gcd(c: Context, x: Value, y: Value) -> Value:
    def test(x: Value, y: Value) -> Value:
        return c.reduce("or", c.compare("NE", y, 0), range(y.rank))

    def step(x: Value, y: Value) -> list[Value]:
        going = c.compare("NE", y, 0)
        rest = c("remainder", x, c.select(going, y, 1))
        return [c("select", going, y, x), c.select(going, rest, 0)]

    return c.iterate([_size(c, x), _size(c, y)], test, step)[0]


def lcm(c: Context, self: Value, other: Value) -> Value:
    """The least common multiple of the sizes, 0 where one is 0; it overflows as C's does."""
    element = c.element if c.element.bits >= 32 else I32
    x, y = c.together(self, other, element=element)
    common = _gcd(c, x, y)
    none = c.builder.compare("EQ", common, c.full(0, x.dims, x.element))
    multiple = c("multiply", c("divide", x, c.select(none, 1, common)), y)
    return c.narrow(c.select(none, 0, _size(c, multiple)))


def hash_tensor(
    c: Context, self: Value, dim: Sequence[int] = (), keepdim: bool = False, mode: int = 0
) -> Value:
    """The exclusive or, over `dim`, of the bits of the elements as f64 or i64."""
    if mode:
        raise Blocked(f"hashes by mode {mode}", "use mode=0, the exclusive or")
    wide = c.convert(self, F64 if self.element.is_float else I64)
    bits = c("bitcast_convert", wide, type=wide.tensor.with_element(UI64))
    axes = axes_of(dim, self.rank)
    found = c.builder.reduce("xor", bits, c.scalar(0, UI64), axes) if axes else bits
    return c.builder.reshape(found, c.dims)


_LEFT, _RIGHT = shift("shift_left"), shift("shift_right_arithmetic")

TABLE: dict[str, Callable[..., Any]] = {
    **{
        f"aten.bitwise_{name}_shift.{kind}": body
        for name, body in (("left", _LEFT), ("right", _RIGHT))
        for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    **{
        f"aten.__{name}__.{kind}": body
        for name, body in (("lshift", _LEFT), ("rshift", _RIGHT))
        for kind in ("Tensor", "Scalar")
    },
    "aten.gcd.default": gcd,
    "aten.hash_tensor.default": hash_tensor,
    "aten.lcm.default": lcm,
}
