"""Rules for powers, exponentials, logarithms, roots, rounding and other functions."""

from __future__ import annotations

from ..licence import ASSUMES_FINITE, IGNORES_ZERO_SIGN, REASSOCIATES
from ..rule import Rule
from .formula import (
    FLOAT,
    FormulaNode,
    Literal,
    exp,
    half,
    log,
    neg_half,
    neg_one,
    one,
    op,
    rsqrt,
    sqrt,
    three,
    two,
    x,
    y,
    zero,
)
from .language import rule

SIGNED = frozenset({"float", "int"})
LOOSE = REASSOCIATES | IGNORES_ZERO_SIGN | ASSUMES_FINITE
FINITE = REASSOCIATES | ASSUMES_FINITE


def logistic(value: FormulaNode) -> FormulaNode:
    return op("logistic", value)


def tanh(value: FormulaNode) -> FormulaNode:
    return op("tanh", value)


four = Literal("4", 4)

POWERS: tuple[Rule, ...] = (
    rule("power-zero", x**zero, one, kinds=FLOAT),
    rule("power-one", x**one, x, licence=REASSOCIATES, kinds=FLOAT),
    rule("power-two", x**two, x * x, licence=REASSOCIATES, kinds=FLOAT),
    rule("power-three", x**three, (x * x) * x, licence=REASSOCIATES, kinds=FLOAT,
         lowers="transcendentals"),
    rule("power-four", x**four, (x * x) * (x * x), licence=REASSOCIATES, kinds=FLOAT,
         lowers="transcendentals"),
    rule("power-minus-one", x**neg_one, one / x, licence=REASSOCIATES, kinds=FLOAT, ulps=1),
    rule("power-half", x**half, sqrt(x), licence=LOOSE, kinds=FLOAT, ulps=1),
    rule("power-minus-half", x**neg_half, rsqrt(x), licence=LOOSE, kinds=FLOAT, ulps=2),
    rule("power-of-exponential", exp(x) ** y, exp(x * y), licence=FINITE, kinds=FLOAT, ulps=64,
         lowers="transcendentals"),
)  # fmt: skip

EXPONENTIALS: tuple[Rule, ...] = (
    rule("exponential-log", exp(log(x)), x, licence=LOOSE, kinds=FLOAT, ulps=8),
    rule("log-exponential", log(exp(x)), x, licence=LOOSE, kinds=FLOAT, ulps=32),
    rule("exponential-minus-one", exp(x) + neg_one, op("exponential_minus_one", x),
         licence=REASSOCIATES | IGNORES_ZERO_SIGN, kinds=FLOAT, ulps=8, single=True),
    rule("log-plus-one", log(x + one), op("log_plus_one", x),
         licence=REASSOCIATES | IGNORES_ZERO_SIGN, kinds=FLOAT, ulps=4, single=True),
    rule("logistic", one / (one + exp(-x)), logistic(x), licence=REASSOCIATES, kinds=FLOAT,
         ulps=2, single=True),
    rule("sqrt-square", sqrt(x * x), abs(x), licence=FINITE, kinds=FLOAT, ulps=1),
    rule("reciprocal-sqrt", one / sqrt(x), rsqrt(x), licence=REASSOCIATES, kinds=FLOAT, ulps=1),
    rule("sqrt-reciprocal", sqrt(one / x), rsqrt(x), licence=REASSOCIATES | IGNORES_ZERO_SIGN
         | ASSUMES_FINITE, kinds=FLOAT, ulps=2),
    rule("log-sqrt", log(sqrt(x)), log(x) * half, licence=REASSOCIATES | IGNORES_ZERO_SIGN,
         kinds=FLOAT, ulps=4, lowers="roots"),
)  # fmt: skip

ODD_AND_EVEN: tuple[Rule, ...] = (
    rule("abs-abs", abs(abs(x)), abs(x), kinds=SIGNED),
    rule("abs-negate", abs(-x), abs(x), kinds=SIGNED),
    rule("abs-square", abs(x * x), x * x, kinds=FLOAT),
    rule("cosine-negate", op("cosine", -x), op("cosine", x), kinds=FLOAT),
    rule("tanh-negate", tanh(-x), -tanh(x), kinds=FLOAT, single=True, lowers="depth of negations"),
    rule("sine-negate", op("sine", -x), -op("sine", x), kinds=FLOAT, single=True,
         lowers="depth of negations"),
)  # fmt: skip


def _idempotent(operation: str) -> Rule:
    return rule(f"{operation}-twice", op(operation, op(operation, x)), op(operation, x),
                kinds=FLOAT)  # fmt: skip


ROUNDING: tuple[Rule, ...] = tuple(
    _idempotent(operation)
    for operation in ("floor", "ceil", "round_nearest_even", "round_nearest_afz")
)

RULES: tuple[Rule, ...] = POWERS + EXPONENTIALS + ODD_AND_EVEN + ROUNDING
