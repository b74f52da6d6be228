"""Formulas of one element in registers that are shorter than the plain ones, by the special
function unit where there is a way. The approximate ones are taken where marks allow it."""

from __future__ import annotations

import math
from collections.abc import Callable

from ....hlo.graph import APPROXIMATE, Op, Region, Value
from ....hlo.types import BF16, F16, F32
from ....optimizer.asynchronous.work import splat_of
from ....optimizer.passes.approximate import Formula
from ... import llvm
from ...llvm import Function, elements
from .instructions import exponential2, reciprocal

Element = llvm.Value
LOG2_E = 1.4426950408889634


def multiple_of(value: Value) -> tuple[Value, float] | None:
    """(x, c) of a value that is x * c for a finite number c."""
    op = value.op
    if op is None or op.name != "multiply" or value.element is not F32:
        return None
    for number in (0, 1):
        factor = splat_of(op.operands[number])
        if factor is not None and math.isfinite(float(factor)):  # type: ignore[arg-type]
            return op.operands[1 - number], float(factor)  # type: ignore[arg-type]
    return None


def _exp(f: Function, x: Element) -> Element:
    return exponential2(f, f.mul(x, LOG2_E))


def _logistic(f: Function, x: Element) -> Element:
    """1 / (1 + e^-x)"""
    return reciprocal(f, f.add(exponential2(f, f.mul(x, -LOG2_E)), 1.0))


# tanh(x) = x + x^3 (c0 + c1 x^2 + ...), least squares for |x| < 0.6 (relative error 2.3e-7)
_TANH = (-0.33332731, 0.1331579, -0.05235834, 0.01584972)
_TANH_SMALL = 0.55


def _tanh(f: Function, x: Element) -> Element:
    """1 - 2 / (1 + e^2x), and a polynomial for small x, where that cancels."""
    e = exponential2(f, f.mul(x, 2 * LOG2_E))
    large = f.fma(reciprocal(f, f.add(e, 1.0)), llvm.constant("float", -2.0), _ONE)
    square = f.mul(x, x)
    series = llvm.constant("float", _TANH[-1])
    for coefficient in reversed(_TANH[:-1]):
        series = f.fma(series, square, llvm.constant("float", coefficient))
    small = f.fma(f.mul(series, square), x, x)
    size = f.intrinsic("llvm.fabs", "float", x)
    return f.select(f.compare("olt", size, _TANH_SMALL), small, large)


_ONE = llvm.constant("float", 1.0)
FUNCTIONS: dict[str, Callable[[Function, Element], Element]] = {
    "exponential": _exp,
    "logistic": _logistic,
    "tanh": _tanh,
}


def approximate(region: Region) -> tuple[str, ...]:
    """The operations of a kernel's region that may be computed by approximate formulas."""
    return tuple(sorted({op.name for op in region.walk() if APPROXIMATE in op.attributes}))


def resolved(value: Value, known: Callable[[Value], bool] = lambda mask: True) -> Value:
    """What a value is where masks are true that are known to be."""
    while value.op is not None and value.op.name == "select" and known(value.op.operands[0]):
        value = value.op.operands[1]
    return value


def _is_scaled(op: Op) -> bool:
    return multiple_of(resolved(op.operands[0])) is not None


def _by_spread(op: Op) -> bool:
    spread = op.operands[1].op
    return spread is not None and spread.name == "broadcast_in_dim"


_FLOATS = (F32, BF16, F16)
FORMULAS = (
    Formula("exponential", _FLOATS, "`ex2(x log2 e)`", "`4 eps + 2 eps abs(x)`"),
    Formula("logistic", _FLOATS, "`rcp(1 + ex2(-x log2 e))`", "`6 eps + 2 eps abs(x)`"),
    Formula(
        "tanh", _FLOATS,
        "polynomial where `abs(x) < 0.55`, else `1 - 2 rcp(1 + ex2(2 x log2 e))`", "`14 eps`",
    ),
    Formula(
        "divide", (F32,),
        "by one number a row: product with its reciprocal", "`2 eps`", _by_spread,
    ),
    Formula(
        "subtract", (F32,),
        "`x c - y` with a constant `c`: one fused operation", "`eps`", _is_scaled,
    ),
)  # fmt: skip
"""The target's table: what operations with the mark APPROXIMATE may be computed by."""


def plain(register: elements.Register) -> Element:
    assert isinstance(register, llvm.Value)
    return register
