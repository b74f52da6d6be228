"""Elementwise operations on registers of integers; each function takes the element type first.

Integers wrap, x / 0 is all ones, shifts past the width give 0 (`hlo/ops/numerics.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import Function, Value, bits_of, constant, mangled


def _divide(f: Function, element: Any, x: Value, y: Value) -> Value:
    if y.number is not None and y.number not in (0, -1):
        return f.binary("sdiv" if element.kind == "int" else "udiv", x, y)
    zero = f.compare("eq", y, 0)
    if element.kind == "uint":
        return f.select(zero, -1, f.binary("udiv", x, f.select(zero, 1, y)))
    minus = f.compare("eq", y, -1)
    safe = f.select(f.lor(zero, minus), 1, y)
    quotient = f.select(minus, f.neg(x), f.binary("sdiv", x, safe))
    return f.select(zero, -1, quotient)


def _remainder(f: Function, element: Any, x: Value, y: Value) -> Value:
    if y.number is not None and y.number not in (0, -1):
        return f.binary("srem" if element.kind == "int" else "urem", x, y)
    zero = f.compare("eq", y, 0)
    if element.kind == "uint":
        return f.select(zero, x, f.binary("urem", x, f.select(zero, 1, y)))
    minus = f.compare("eq", y, -1)
    rest = f.binary("srem", x, f.select(f.lor(zero, minus), 1, y))
    return f.select(zero, x, f.select(minus, 0, rest))


def _power(f: Function, element: Any, x: Value, y: Value) -> Value:
    """Repeated squaring; a negative exponent truncates the fraction."""
    one = constant(x.type, 1)
    result, base, exponent = one, x, y
    signed = element.kind == "int"
    for _ in range(element.bits - (1 if signed else 0)):
        odd = f.compare("ne", f.land(exponent, 1), 0)
        result = f.select(odd, f.mul(result, base), result)
        base = f.mul(base, base)
        exponent = f.lshr(exponent, 1)
    if not signed:
        return result
    is_one, is_minus = f.compare("eq", x, 1), f.compare("eq", x, -1)
    odd = f.compare("ne", f.land(y, 1), 0)
    unit = f.select(f.land(is_minus, odd), -1, one)
    fraction = f.select(f.lor(is_one, is_minus), unit, 0)
    return f.select(f.compare("slt", y, 0), fraction, result)


def _shift(kind: str) -> Callable[..., Value]:
    def emit(f: Function, element: Any, x: Value, y: Value) -> Value:
        bits = element.bits
        if element.bits < 8:
            # Counts and values of sub-byte types are kept in bytes.
            if kind == "ashr" and element.kind == "uint":
                x = f.ashr(f.shl(x, 8 - bits), 8 - bits)
            if kind == "lshr":
                x = f.land(x, (1 << bits) - 1)
        fits = f.compare("ult", y, bits)
        if kind == "ashr":
            return f.ashr(x, f.select(fits, y, bits - 1))
        return f.select(fits, f.binary(kind, x, f.select(fits, y, 0)), 0)

    return emit


def _extreme(name: str) -> Callable[..., Value]:
    def emit(f: Function, element: Any, x: Value, y: Value) -> Value:
        signed = element.kind == "int"
        return (f.max if name == "max" else f.min)(x, y, signed=signed)

    return emit


def absolute(f: Function, x: Value) -> Value:
    name = f"llvm.abs.{mangled(x.type)}"
    return f.call(name, x.type, x, Value("i1", "false"), declare=True)


def _absolute(f: Function, element: Any, x: Value) -> Value:
    return absolute(f, x) if element.kind == "int" else x


def _sign(f: Function, element: Any, x: Value) -> Value:
    positive = f.cast("zext", f.compare("ne", x, 0), x.element)
    if element.kind == "uint":
        return positive
    return f.select(f.compare("slt", x, 0), -1, positive)


def _population(f: Function, element: Any, x: Value) -> Value:
    if element.bits < 8:
        x = f.land(x, (1 << element.bits) - 1)
    return f.intrinsic("llvm.ctpop", x.type, x)


def _leading_zeros(f: Function, element: Any, x: Value) -> Value:
    extra = bits_of(x.type) - element.bits
    if extra:
        x = f.land(x, (1 << element.bits) - 1)
    count = f.call(f"llvm.ctlz.{mangled(x.type)}", x.type, x, Value("i1", "false"), declare=True)
    return f.sub(count, extra) if extra else count


def _plain(method: Callable[..., Value]) -> Callable[..., Value]:
    return lambda f, element, *operands: method(f, *operands)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "add": _plain(Function.add),
    "subtract": _plain(Function.sub),
    "multiply": _plain(Function.mul),
    "divide": _divide,
    "remainder": _remainder,
    "power": _power,
    "negate": _plain(Function.neg),
    "abs": _absolute,
    "sign": _sign,
    "maximum": _extreme("max"),
    "minimum": _extreme("min"),
    "and": _plain(Function.land),
    "or": _plain(Function.lor),
    "xor": _plain(Function.xor),
    "not": _plain(Function.lnot),
    "shift_left": _shift("shl"),
    "shift_right_logical": _shift("lshr"),
    "shift_right_arithmetic": _shift("ashr"),
    "popcnt": _population,
    "count_leading_zeros": _leading_zeros,
}
