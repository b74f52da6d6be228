"""The regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x).

After Temme and DLMF 8: a power series of P below the diagonal, Legendre's continued fraction of Q
above it, a series of Q near 0, and Temme's uniform expansion around x = a, where both others are
slow. All is computed in f64, since the factor before the sums is the exponential of a difference of
large numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.decomposed import Term, exp, expm1, log, log1p, polynomial, sqrt, where
from ....hlo.types import F64, I32
from ..context import Context
from .special_tables import TEMME

_ROUNDING = 2.0**-53
_MOST_TURNS = 2000
"""Near x = a the sums need some multiple of sqrt(a) terms, but there Temme's expansion is used."""


def lower_gamma(c: Context, self: Value, other: Value) -> Value:
    """P(self, other)."""
    return _incomplete(c, self, other, upper=False)


def upper_gamma(c: Context, self: Value, other: Value) -> Value:
    """Q(self, other)."""
    return _incomplete(c, self, other, upper=True)


def _incomplete(c: Context, self: Value, other: Value, upper: bool) -> Value:
    a, x = (Term(c.builder, v) for v in c.together(self, other, element=F64))
    offset = (x - a) / a
    reach = where(a < 200.0, 0.3, 4.5 / sqrt(a))
    near = (a > 20.0) & (abs(offset) < reach)
    above = (x > 1.1) & (x >= a)
    small = (x <= 1.1) & (a <= where(x <= 0.5, -0.4 / log(x), 1.1 * x))
    by_upper = above | small  # where Q is the smaller of the two, or P is near 1
    if not upper:
        by_upper = (x > 1.0) & (x > a)
    inside = (a > 0.0) & (x > 0.0) & (a < math.inf) & (x < math.inf)

    factor = _factor(a, x, offset)
    series = factor * _power_series(c, inside & ~near & ~by_upper, a, x)
    fraction = a * factor * _continued_fraction(c, inside & ~near & above, a, x)
    of_upper = where(above, fraction, _near_zero(a, x))
    usual = where(by_upper, 1.0 - of_upper, series)
    if upper:
        usual = where(by_upper, of_upper, 1.0 - series)
    result = where(near, _temme(a, offset, 1.0 if upper else -1.0), usual)

    none, all_ = (1.0, 0.0) if upper else (0.0, 1.0)  # at x = 0 and at x = inf
    result = where(x.equals(math.inf) | a.equals(0.0), all_, result)
    result = where(x.equals(0.0) | a.equals(math.inf), none, result)
    undefined = (a.equals(0.0) & ~(x > 0.0)) | (a.equals(math.inf) & x.equals(math.inf))
    outside = (a < 0.0) | (x < 0.0)
    return c.narrow(where(undefined | outside, math.nan, result).value)


def _log1p_rest(u: Term) -> Term:
    """log(1 + u) - u, without cancellation near 0."""
    s = u / (u + 2.0)
    square = s * s
    odd = polynomial(square, [1 / (2 * k + 3) for k in reversed(range(13))])
    return where(abs(u) < 0.4, 2.0 * s * square * odd - s * u, log1p(u) - u)


def _factor(a: Term, x: Term, offset: Term) -> Term:
    """x^a exp(-x) / gamma(a + 1): by Stirling's series where a is not small."""
    inverse = 1.0 / a
    square = inverse * inverse
    stirling = inverse * polynomial(square, _STIRLING)
    large = sqrt(inverse * (0.5 / math.pi)) * exp(a * _log1p_rest(offset) - stirling)
    small = exp(a * log(x) - x - (a + 1.0).op("chlo.lgamma"))
    return where(a < 10.0, small, large)


_STIRLING = (
    -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12,
)  # fmt: skip
"""lgamma(a) - ((a - 1/2) log(a) - a + log(2 pi) / 2), times a, in 1 / a^2, highest first."""


def _repeat(
    c: Context,
    active: Term,
    given: Sequence[Term],
    state: Sequence[Term],
    step: Callable[..., tuple[Term, Sequence[Term]]],
) -> list[Term]:
    """`state` replaced by step(n, *given, *state) = (what goes on, new state) for n = 1, 2, ..., in
    each element while it goes on."""

    def test(turn: Value, going: Value, *rest: Value) -> Value:
        left = c.builder.compare("LT", turn, c.scalar(_MOST_TURNS, I32))
        return c("and", left, c.reduce("or", going, range(going.rank)))

    def body(turn: Value, going: Value, *rest: Value) -> list[Value]:
        turn = c.add(turn, 1)
        number = Term(c.builder, c.spread(c.convert(turn, F64), going.dims))
        fixed = [Term(c.builder, term.value) for term in given]
        before = [Term(c.builder, value) for value in rest]
        goes, after = step(number, *fixed, *before)
        kept = Term(c.builder, going)
        chosen = [where(kept, new, old) for new, old in zip(after, before, strict=True)]
        return [turn, (kept & goes).value, *(term.value for term in chosen)]

    carried = [c.scalar(0, I32), active.value, *(term.value for term in state)]
    return [Term(c.builder, value) for value in c.iterate(carried, test, body)[2:]]


def _power_series(c: Context, active: Term, a: Term, x: Term) -> Term:
    """The sum of x^n / ((a + 1) ... (a + n))."""

    def step(n: Term, a: Term, x: Term, term: Term, total: Term) -> tuple[Term, Sequence[Term]]:
        term = term * x / (a + n)
        total = total + term
        return term > total * _ROUNDING, (term, total)

    one = a.like(1.0)
    return _repeat(c, active, (a, x), (one, one), step)[1]


def _continued_fraction(c: Context, active: Term, a: Term, x: Term) -> Term:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...)), by Lentz' method."""
    tiny = 1e-300

    def step(
        n: Term, a: Term, first: Term, upper: Term, lower: Term, total: Term
    ) -> tuple[Term, Sequence[Term]]:
        above = n * (a - n)
        below = first + 2.0 * n
        lower = below + above * lower
        lower = 1.0 / where(abs(lower) < tiny, tiny, lower)
        upper = below + above / upper
        upper = where(abs(upper) < tiny, tiny, upper)
        change = upper * lower
        return abs(change - 1.0) > 2 * _ROUNDING, (upper, lower, total * change)

    first = x + 1.0 - a
    first = where(abs(first) < tiny, tiny, first)
    start = (a.like(1 / tiny), 1.0 / first, 1.0 / first)
    return _repeat(c, active, (a, first), start, step)[2]


def _near_zero(a: Term, x: Term) -> Term:
    """Q for x <= 1.1 and small a: 1 - x^a / gamma(1 + a) less the rest of the series."""
    total, power = a.like(0.0), a.like(1.0)
    for n in range(1, 21):
        power = power * x / -float(n)
        total = total + power / (a + float(n))
    logarithm = a * log(x) - (a + 1.0).op("chlo.lgamma")
    return -expm1(logarithm) - a * exp(logarithm) * total


def _temme(a: Term, offset: Term, sign: float) -> Term:
    """P (sign -1) or Q (sign 1) around x = a: half of erfc, and a sum of a^-k polynomial(eta)."""
    square = -2.0 * _log1p_rest(offset)
    size = sqrt(square)
    eta = where(offset < 0.0, -size, size)
    inverse = 1.0 / a
    total = a.like(0.0)
    for coefficients in reversed(TEMME):
        total = total * inverse + polynomial(eta, coefficients)
    main = 0.5 * (sign * eta * sqrt(a * 0.5)).op("chlo.erfc")
    return main + sign * exp(-0.5 * a * square) / sqrt(2 * math.pi * a) * total


TABLE: dict[str, Callable[..., Any]] = {
    "aten.igamma.default": lower_gamma,
    "aten.igammac.default": upper_gamma,
    "aten.special_gammainc.default": lower_gamma,
    "aten.special_gammaincc.default": upper_gamma,
}
