"""Orthogonal polynomials of degrees that data decide: Chebyshev, Hermite, Laguerre, Legendre.

The three-term recurrence runs to the largest degree, in each element to its own. Between -1 and 1
Chebyshev's polynomials of higher degrees are trigonometric functions, as PyTorch computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ....hlo.graph import Value
from ....hlo.ops.decomposed import Term, where
from ....hlo.types import F64, I64
from ..context import Context, Operand

Step = Callable[[Term, Term, Term, Term], Term]


class Family(NamedTuple):
    """Polynomials p_n, p_0 = 1: `first(x)` is p_1, `step(k, x, p_k, p_(k-1))` is p_(k+1)."""

    first: Callable[[Term], Term]
    step: Step
    closed: Callable[[Term, Term, Term], tuple[Term, Term]] | None = None
    """(x, n as x has it, its sign (-1)^n) -> where values are known at once, and these values."""
    limited: bool = False
    """Whether PyTorch gives nan from some degree on."""


def polynomial(family: Family, shifted: bool = False) -> Callable[..., Value]:
    """p_n(x); of 2 x - 1 where it is shifted. 0 for negative n."""

    def lower(c: Context, x: Operand, n: Operand) -> Value:
        given, degrees = (Term(c.builder, v) for v in c.together(x, n, element=c.element))
        place = given + given - 1.0 if shifted else given
        degree = _whole(degrees)
        return c.narrow(_evaluated(c, family, place, degree).value)

    return lower


def _whole(n: Term) -> Term:
    """The integer part in i64, -1 of what has none there."""
    return where(abs(n) < 2.0**63, n, -1.0).convert(I64)


def _evaluated(c: Context, family: Family, x: Term, degree: Term) -> Term:
    one, first = x.like(1.0), family.first(x)
    known, values = degree < 2, where(degree.equals(0), one, first)
    if family.closed is not None:
        even = (degree & 1).equals(0)
        at_once, simple = family.closed(x, degree.convert(x.element), where(even, one, -one))
        values = where(known, values, simple)
        known = known | at_once
    if family.limited:
        most = 512 if x.element is F64 else 128
        known, values = known | (degree > most), where(degree > most, np.nan, values)
    result = where(known, values, _recurrence(c, family, x, first, known, degree))
    return where(degree < 0, 0.0, result)


def _recurrence(
    c: Context, family: Family, x: Term, first: Term, known: Term, degree: Term
) -> Term:
    """p_degree by steps from p_1, in elements that are not known yet."""
    wanted = where(known, 0, degree)
    most = c.reduce("maximum", wanted.value, range(wanted.value.rank))

    def test(k: Value, p: Value, q: Value) -> Value:
        going = Term(c.builder, c.spread(k, q.dims)) < wanted
        alive = ~Term(c.builder, c.is_nan(q))
        more = c.reduce("or", (going & alive).value, range(q.rank))
        return c("and", c.builder.compare("LT", k, most), more)

    def step(k: Value, p: Value, q: Value) -> list[Value]:
        before, now = Term(c.builder, p), Term(c.builder, q)
        number = Term(c.builder, c.spread(c.convert(k, x.element), q.dims))
        going = Term(c.builder, c.spread(k, q.dims)) < wanted
        after = where(going, family.step(number, Term(c.builder, x.value), now, before), now)
        return [c.add(k, 1), where(going, now, before).value, after.value]

    start = [c.scalar(1, I64), x.like(1.0).value, first.value]
    return Term(c.builder, c.iterate(start, test, step)[2])


def _chebyshev_step(k: Term, x: Term, now: Term, before: Term) -> Term:
    return (x + x) * now - before


def _chebyshev(
    first: Callable[[Term], Term],
    inner: Callable[[Term, Term], Term],
    at_one: Callable[[Term], Term],
    at_minus_one: Callable[[Term], Term],
    threshold: float,
) -> Family:
    """One kind: `inner(angle, n)` from a degree above `threshold` on, values at 1 and at -1."""

    def closed(x: Term, n: Term, sign: Term) -> tuple[Term, Term]:
        angle = x.op("chlo.acos")
        edge = where(x > 0.0, at_one(n), sign * at_minus_one(n))
        on_edge = abs(x).equals(1.0)
        return on_edge | ((n > threshold) & (abs(x) < 1.0)), where(on_edge, edge, inner(angle, n))

    return Family(first, _chebyshev_step, closed)


def _one(n: Term) -> Term:
    return n.like(1.0)


def _cos(x: Term) -> Term:
    return x.op("cosine")


def _sin(x: Term) -> Term:
    return x.op("sine")


def _twice_and_one(n: Term) -> Term:
    return n + n + 1.0


CHEBYSHEV = {
    "t": lambda threshold: _chebyshev(
        lambda x: x, lambda angle, n: _cos(n * angle), _one, _one, threshold
    ),
    "u": lambda threshold: _chebyshev(
        lambda x: x + x, lambda angle, n: _sin((n + 1.0) * angle) / _sin(angle),
        lambda n: n + 1.0, lambda n: n + 1.0, threshold,
    ),
    "v": lambda threshold: _chebyshev(
        lambda x: x + x - 1.0, lambda angle, n: _cos((n + 0.5) * angle) / _cos(angle * 0.5),
        _one, _twice_and_one, threshold,
    ),
    "w": lambda threshold: _chebyshev(
        lambda x: x + x + 1.0, lambda angle, n: _sin((n + 0.5) * angle) / _sin(angle * 0.5),
        _twice_and_one, _one, threshold,
    ),
}  # fmt: skip
_PLAIN_FROM = {"t": 6.0, "u": 8.0, "v": 8.0, "w": 8.0}
_SHIFTED_FROM = {"t": 6.0, "u": 6.0, "v": 6.0, "w": 4.0}

HERMITE = Family(
    lambda x: x + x, lambda k, x, now, before: (x + x) * now - 2.0 * k * before, limited=True
)
HERMITE_E = Family(lambda x: x, lambda k, x, now, before: x * now - k * before, limited=True)
LAGUERRE = Family(
    lambda x: 1.0 - x,
    lambda k, x, now, before: ((k + k + (1.0 - x)) * now - k * before) / (k + 1.0),
    lambda x, n, sign: (x.equals(0.0), x.like(1.0)),
)
LEGENDRE = Family(
    lambda x: x,
    lambda k, x, now, before: ((k + k + 1.0) * x * now - k * before) / (k + 1.0),
    lambda x, n, sign: (abs(x).equals(1.0), where(x > 0.0, 1.0, sign)),
)

_FAMILIES = {
    **{
        f"chebyshev_polynomial_{kind}": polynomial(make(_PLAIN_FROM[kind]))
        for kind, make in CHEBYSHEV.items()
    },
    **{
        f"shifted_chebyshev_polynomial_{kind}": polynomial(make(_SHIFTED_FROM[kind]), shifted=True)
        for kind, make in CHEBYSHEV.items()
    },
    "hermite_polynomial_h": polynomial(HERMITE),
    "hermite_polynomial_he": polynomial(HERMITE_E),
    "laguerre_polynomial_l": polynomial(LAGUERRE),
    "legendre_polynomial_p": polynomial(LEGENDRE),
}

TABLE: dict[str, Callable[..., Any]] = {
    f"aten.special_{name}.{kind}": lowering
    for name, lowering in _FAMILIES.items()
    for kind in ("default", "x_scalar", "n_scalar")
}
