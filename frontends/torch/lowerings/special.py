"""torch.special: error functions, gamma, zeta, entropy and the like, as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops import special as formulas
from ....hlo.ops.decomposed import Term, exp, log, log1p, polynomial, sqrt, where
from ....hlo.types import F64, UI32, UI64
from ..context import Context
from . import special_tables as tables
from .bessel import of_term, ratio
from .pointwise import formula_of_two


def _entropy(x: Term) -> Term:
    """-x log(x); 0 at 0, -inf below."""
    inside = where(x.equals(0.0), 0.0, -x * log(x))
    return where(x < 0.0, -math.inf, inside)


def _xlog1py(x: Term, y: Term) -> Term:
    """x log(1 + y), 0 where x is 0; nan where y is."""
    product = where(x.equals(0.0), 0.0, x * log1p(y))
    return where(y.differs(y), y, product)


def _sinc(x: Term) -> Term:
    """sin(pi x) / (pi x)."""
    angle = x * math.pi
    return where(x.equals(0.0), 1.0, angle.op("sine") / angle)


def _exp_square(x: Term) -> Term:
    """exp(x * x), the rounding of x * x made good: high * high is exact."""
    bits, low = (UI64, 27) if x.element is F64 else (UI32, 12)
    mask = ((1 << bits.bits) - 1) ^ ((1 << low) - 1)
    x = x.op("maximum", -30.0).op("minimum", 30.0)  # beyond, the result is infinite
    high = (x.bits(bits) & mask).bits(x.element)
    return exp(high * high) * exp((x - high) * (x + high))


def _erfcx(x: Term) -> Term:
    """exp(x * x) erfc(x), for x >= 1 from the fits of erfc, which have it as a factor."""
    size = abs(x)
    if x.element is F64:
        near = ratio(size, (formulas.CEPHES_P, formulas.CEPHES_Q))
        far = ratio(size, (formulas.CEPHES_R, formulas.CEPHES_S))
        tail = where(size < 8.0, near, where(size > 1e8, math.sqrt(1 / math.pi) / size, far))
    else:
        inverse = 1.0 / size
        square = inverse * inverse
        near, far = (polynomial(square, fit) for fit in (formulas.ERFC_P, formulas.ERFC_R))
        tail = inverse * where(size < 2.0, near, far)
    grown = _exp_square(x)
    inner = grown * (1.0 - x.op("chlo.erf"))
    mirrored = where(grown.equals(math.inf), math.inf, 2.0 * grown - tail)
    return where(size < 1.0, inner, where(x < 0.0, mirrored, tail))


def _ndtr(x: Term) -> Term:
    """The normal distribution function."""
    return 0.5 * (x * -math.sqrt(0.5)).op("chlo.erfc")


def _log_ndtr(x: Term) -> Term:
    scaled = x * math.sqrt(0.5)
    low = log(_erfcx(-scaled) * 0.5) - 0.5 * x * x
    return where(x < -1.0, low, log1p(-0.5 * scaled.op("chlo.erfc")))


def _ndtri(x: Term) -> Term:
    """The number at which the normal distribution function is x."""
    edge = math.exp(-2)
    mirrored = x > 1.0 - edge
    tail = where(mirrored, 1.0 - x, x)
    centred = tail - 0.5
    square = centred * centred
    fit = ratio(square, (tables.QUANTILE_CENTRE_P, tables.QUANTILE_CENTRE_Q))
    centre = math.sqrt(2 * math.pi) * (centred + centred * square * fit)
    root = sqrt(-2.0 * log(tail))
    inverse = 1.0 / root
    near = ratio(inverse, (tables.QUANTILE_TAIL_P, tables.QUANTILE_TAIL_Q))
    far = ratio(inverse, (tables.QUANTILE_FAR_P, tables.QUANTILE_FAR_Q))
    outer = root - log(root) / root - inverse * where(root < 8.0, near, far)
    outer = where(tail.equals(0.0), math.inf, outer)
    return where(tail > edge, centre, where(mirrored, outer, -outer))


def _digamma(x: Term) -> Term:
    """As chlo's, but infinite at 0, with the sign that the limit has from that side."""
    return where(x.equals(0.0), -1.0 / x, x.op("chlo.digamma"))


def _zeta(x: Term, q: Term) -> Term:
    """Hurwitz' zeta function.

    Below 0, where only whole x have a meaning, the terms of negative q + k are (-1)^x times those
    of their sizes, which are differences of two values at positive places.
    """
    whole = q.op("floor")
    first, negative = q - whole, q < 0.0
    plain = x.op("chlo.zeta", where(negative, first, q))
    odd = abs(x - 2.0 * (x * 0.5).op("floor")).equals(1.0)
    sign = where(odd, x.like(-1.0), x.like(1.0))
    mirrored = plain + sign * x.op("chlo.zeta", 1.0 - first) - sign * x.op("chlo.zeta", 1.0 - q)
    mirrored = where(x.equals(x.op("floor")), mirrored, math.nan)
    mirrored = where(x < 1.0, math.nan, mirrored)
    mirrored = where(x.equals(1.0) | (q.equals(whole) & (x >= 1.0)), math.inf, mirrored)
    result = where(negative, mirrored, plain)
    limit = where(q.equals(1.0), q, math.inf)
    return where(x.equals(math.inf) & (q <= 1.0), limit, result)


def polygamma(c: Context, n: int | Value, self: Value | int) -> Value:
    """The derivative number n of digamma; polygamma_ has n behind what it changes."""
    if isinstance(n, Value):
        n, self = self, n
    assert isinstance(n, int) and isinstance(self, Value)

    def body(x: Term) -> Term:
        if n == 0:
            return _digamma(x)
        scale = (-1.0) ** (n + 1) * (math.gamma(n + 1) if n <= 170 else math.inf)
        result = _zeta(x.like(n + 1.0), x) * scale
        return where(x > 1e17, 1.0 / x, result) if n == 1 else result

    return of_term(body)(c, self)


def mvlgamma(c: Context, self: Value, p: int) -> Value:
    """log of the multivariate gamma function: the sum of lgamma(x - i / 2), and a constant."""

    def body(x: Term) -> Term:
        total = x.like(p * (p - 1) / 4 * math.log(math.pi))
        for i in range(p):
            total = total + (x - 0.5 * i).op("chlo.lgamma")
        return total

    return of_term(body)(c, self)


_FORMULAS: dict[str, Callable[[Term], Term]] = {
    "digamma": _digamma, "sinc": _sinc, "special_entr": _entropy, "special_erfcx": _erfcx,
    "special_log_ndtr": _log_ndtr, "special_ndtr": _ndtr, "special_ndtri": _ndtri,
}  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}.default": of_term(body) for name, body in _FORMULAS.items()},
    **{
        f"aten.special_{name}.{kind}": formula_of_two(body)
        for name, body in (("zeta", _zeta), ("xlog1py", _xlog1py))
        for kind in ("default", "other_scalar", "self_scalar")
    },
    "aten.mvlgamma.default": mvlgamma,
    "aten.polygamma.default": polygamma,
    "aten.special_multigammaln.default": mvlgamma,
    "aten.special_polygamma.default": polygamma,
}
