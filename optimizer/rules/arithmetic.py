"""Rules for addition, subtraction, multiplication, division and remainder."""

from __future__ import annotations

import numpy as np

from ..licence import ASSUMES_FINITE, IGNORES_ZERO_SIGN, REASSOCIATES
from ..rule import Rule
from .formula import (
    FLOAT,
    INTEGER,
    NUMBER,
    c,
    exp,
    k1,
    k2,
    neg_one,
    neg_zero,
    one,
    op,
    rsqrt,
    sqrt,
    v,
    x,
    y,
    z,
    zero,
)
from .language import rule
from .matching import Match


def _reciprocal_is_exact(m: Match) -> bool:
    """2^k whose reciprocal is a normal number."""
    if not np.isfinite(m.c) or m.c == 0:
        return False
    mantissa, _ = np.frexp(np.float64(m.c))
    return abs(mantissa) == 0.5 and _reciprocal_is_normal(m)


def _reciprocal_is_normal(m: Match) -> bool:
    element = m.value("c").element
    if not np.isfinite(m.c) or m.c == 0:
        return False
    with np.errstate(all="ignore"):
        reciprocal = np.asarray(1 / np.float64(m.c)).astype(element.dtype).astype(np.float64)
    smallest = {"f64": 2.0**-1022, "f16": 2.0**-14}.get(element.name, 2.0**-126)
    return bool(np.isfinite(reciprocal)) and bool(abs(reciprocal) >= smallest)


ADDITION: tuple[Rule, ...] = (
    rule("add-zero", x + zero, x, licence=IGNORES_ZERO_SIGN, kinds=NUMBER),
    rule("add-neg-zero", x + neg_zero, x, kinds=FLOAT),
    rule("subtract-zero", x - zero, x),
    rule("add-negate", x + -y, x - y),
    rule("subtract-negate", x - -y, x + y),
    rule("subtract-constant", x - c, x + -c, lowers="subtractions"),
    rule("zero-subtract", zero - x, -x, licence=IGNORES_ZERO_SIGN),
    rule("neg-zero-subtract", neg_zero - x, -x, kinds=FLOAT),
    rule("subtract-self", x - x, zero, licence=ASSUMES_FINITE),
    rule("negate-subtract", -(x - y), y - x, licence=IGNORES_ZERO_SIGN, single=True),
    rule("negate-negate", -(-x), x, kinds=NUMBER),  # noqa: B002
    rule("add-add-static", (v + k1) + k2, v + (k1 + k2), licence=REASSOCIATES, single=True),
    rule("subtract-add-static", (v - k1) + k2, v + (k2 - k1), licence=REASSOCIATES, single=True),
    rule("add-subtract-static", (v + k1) - k2, v + (k1 - k2), licence=REASSOCIATES, single=True),
    rule("subtract-subtract-static", (v - k1) - k2, v - (k1 + k2), licence=REASSOCIATES,
         single=True),
    rule("add-products", (x * z) + (y * z), (x + y) * z, single=True,
         licence=REASSOCIATES | IGNORES_ZERO_SIGN | ASSUMES_FINITE),
)  # fmt: skip


MULTIPLICATION: tuple[Rule, ...] = (
    rule("multiply-one", x * one, x),
    rule("multiply-minus-one", x * neg_one, -x),
    rule("multiply-zero", x * zero, zero, licence=IGNORES_ZERO_SIGN | ASSUMES_FINITE),
    rule("multiply-multiply-static", (v * k1) * k2, v * (k1 * k2), licence=REASSOCIATES,
         single=True),
    rule("multiply-negate-negate", -x * -y, x * y),
    rule("multiply-negate-constant", -x * c, x * -c),
    rule("negate-multiply-constant", -(x * c), x * -c, single=True),
    rule("multiply-abs-abs", abs(x) * abs(x), x * x, kinds=frozenset({"float", "int"})),
    rule("multiply-reciprocal", x * (one / y), x / y, licence=REASSOCIATES, kinds=FLOAT, ulps=1),
    rule("multiply-exponentials", exp(x) * exp(y), exp(x + y), kinds=FLOAT, ulps=8,
         licence=REASSOCIATES | ASSUMES_FINITE),
    rule("square-of-rsqrt", rsqrt(x) * rsqrt(x), one / x, licence=REASSOCIATES | ASSUMES_FINITE,
         kinds=FLOAT, ulps=4),
)  # fmt: skip

DIVISION: tuple[Rule, ...] = (
    rule("divide-one", x / one, x),
    rule("divide-minus-one", x / neg_one, -x, kinds=FLOAT),
    rule("divide-power-of-two", x / c, x * (one / c), kinds=FLOAT, where=_reciprocal_is_exact,
         lowers="divisions"),
    rule("divide-constant", x / c, x * (one / c), licence=REASSOCIATES, kinds=FLOAT, ulps=1,
         where=_reciprocal_is_normal, lowers="divisions"),
    rule("divide-sqrt", x / sqrt(y), x * rsqrt(y), licence=REASSOCIATES, kinds=FLOAT, ulps=2),
    rule("divide-rsqrt", x / rsqrt(y), x * sqrt(y), licence=REASSOCIATES | ASSUMES_FINITE,
         kinds=FLOAT, ulps=2),
    rule("divide-divide", (x / y) / z, x / (y * z), licence=REASSOCIATES | ASSUMES_FINITE,
         kinds=FLOAT, ulps=2, single=True),
    rule("divide-by-divide", x / (y / z), (x * z) / y, licence=REASSOCIATES | ASSUMES_FINITE,
         kinds=FLOAT, ulps=2, single=True),
    rule("divide-exponentials", exp(x) / exp(y), exp(x - y), kinds=FLOAT, ulps=8,
         licence=REASSOCIATES | ASSUMES_FINITE),
    rule("divide-negates", -x / -y, x / y, kinds=FLOAT),
    rule("divide-negate-constant", -x / c, x / -c, kinds=FLOAT),
    rule("remainder-one", op("remainder", x, one), zero, kinds=INTEGER),
)  # fmt: skip

RULES: tuple[Rule, ...] = ADDITION + MULTIPLICATION + DIVISION
