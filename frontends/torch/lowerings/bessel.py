"""Bessel functions of both kinds, modified ones, and Airy's, from Cephes' fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.decomposed import Term, exp, log, polynomial, sqrt, where
from ....hlo.ops.special import chebyshev
from ....hlo.types import F64
from . import special_tables as tables
from .pointwise import formula

Formula = Callable[[Term], Term]
Fit = tuple[Sequence[float], Sequence[float]]


def of_term(body: Formula) -> Callable[..., Value]:
    """A lowering from a formula over terms, computed in f32 for bf16, f16 and integers."""
    return formula(lambda c, x: body(Term(c.builder, x)).value)


def ratio(x: Term, fit: Fit) -> Term:
    return polynomial(x, fit[0]) / polynomial(x, fit[1])


def _oscillating(x: Term, cosine: Fit, sine: Fit) -> tuple[Term, Term]:
    """sqrt(2 / (pi x)) times the factors of cosine and sine, for x > 5."""
    inverse = 5.0 / x
    square = inverse * inverse
    scale = sqrt((2 / math.pi) / x)
    return scale * ratio(square, cosine), scale * inverse * ratio(square, sine)


def _turned(x: Term) -> tuple[Term, Term]:
    """cos(x - pi/4) and sin(x - pi/4), without rounding x - pi/4."""
    cosine, sine = x.op("cosine"), x.op("sine")
    half = math.sqrt(0.5)
    return (cosine + sine) * half, (sine - cosine) * half


_WAVES0 = (tables.COSINE0_P, tables.COSINE0_Q), (tables.SINE0_P, tables.SINE0_Q)
_WAVES1 = (tables.COSINE1_P, tables.COSINE1_Q), (tables.SINE1_P, tables.SINE1_Q)


def _near_j0(x: Term) -> Term:
    square = x * x
    zeros = (square - 5.78318596294678452118) * (square - 30.4712623436620863991)
    return zeros * ratio(square, (tables.J0_P, tables.J0_Q))


def _near_j1(x: Term) -> Term:
    square = x * x
    zeros = (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    return zeros * x * ratio(square, (tables.J1_P, tables.J1_Q))


def _j0(x: Term) -> Term:
    size = abs(x)
    even, odd = _oscillating(size, *_WAVES0)
    cosine, sine = _turned(size)
    return where(size <= 5.0, _near_j0(x), even * cosine - odd * sine)


def _j1(x: Term) -> Term:
    size = abs(x)
    even, odd = _oscillating(size, *_WAVES1)
    cosine, sine = _turned(size)  # of x - 3 pi / 4 they are sine and -cosine
    far = even * sine + odd * cosine
    return where(size <= 5.0, _near_j1(x), where(x < 0.0, -far, far))


def _y0(x: Term) -> Term:
    near = ratio(x * x, (tables.Y0_P, tables.Y0_Q)) + (2 / math.pi) * log(x) * _near_j0(x)
    even, odd = _oscillating(x, *_WAVES0)
    cosine, sine = _turned(x)
    return where(x <= 5.0, near, even * sine + odd * cosine)


def _y1(x: Term) -> Term:
    regular = x * ratio(x * x, (tables.Y1_P, tables.Y1_Q))
    near = regular + (2 / math.pi) * (log(x) * _near_j1(x) - 1.0 / x)
    even, odd = _oscillating(x, *_WAVES1)
    cosine, sine = _turned(x)
    result = where(x <= 5.0, near, odd * sine - even * cosine)
    return where(x.equals(0.0), -math.inf, result)


def _i0e(x: Term) -> Term:
    size = abs(x)
    near = chebyshev(size * 0.25 - 1.0, tables.I0_NEAR)
    far = chebyshev(16.0 / size - 1.0, tables.I0_FAR) / sqrt(size)
    return where(size <= 8.0, near, far)


def _i1e(x: Term) -> Term:
    return x.op("chlo.bessel_i1e")


def _i0(x: Term) -> Term:
    return exp(abs(x)) * _i0e(x)


def _i1(x: Term) -> Term:
    return exp(abs(x)) * _i1e(x)


def _near_k0(x: Term) -> Term:
    return chebyshev(x * x * 0.5 - 1.0, tables.K0_NEAR) - log(x * 0.5) * _i0(x)


def _near_k1(x: Term) -> Term:
    return log(x * 0.5) * _i1(x) + chebyshev(x * x * 0.5 - 1.0, tables.K1_NEAR) / x


def _decaying(near: Formula, far: Sequence[float], scaled: bool) -> Formula:
    """K of an order from its fits: on (0, 2], and beyond it, where exp(x) sqrt(x) K is fitted."""

    def body(x: Term) -> Term:
        small, large = near(x), chebyshev(4.0 / x - 1.0, far) / sqrt(x)
        if scaled:
            small = small * exp(x)
        else:
            large = large * exp(-x)
        result = where(x.equals(0.0), math.inf, where(x <= 2.0, small, large))
        return where(x < 0.0, math.nan, result)

    return body


def _spherical_j0(x: Term) -> Term:
    """sin(x) / x."""
    square = x * x
    series = x.like(1.0)
    for k in (12, 10, 8, 6, 4, 2):
        series = 1.0 - square * series / (k * (k + 1.0))
    result = where(abs(x) < 0.5, series, x.op("sine") / x)
    return where(abs(x).equals(math.inf), 0.0, result)


_AI_AT_0, _SLOPE_AT_0 = 0.355028053887817239, 0.258819403792806798
_AIRY_TERMS = 14
"""|x|^3 < 9.2 divided by 2*3, 5*6, ...: what follows is less than 1e-20."""


def _airy(x: Term) -> Term:
    """Ai(x), for f32 in f64, since the phase grows with x^1.5; nan at infinity, as in PyTorch."""
    x = x.convert(F64)
    cube = x * x * x
    even, odd = x.like(1.0), x.like(1.0)
    for n in range(3 * _AIRY_TERMS, 0, -3):
        even = 1.0 + cube * even / (n * (n - 1.0))
        odd = 1.0 + cube * odd / (n * (n + 1.0))
    middle = _AI_AT_0 * even - _SLOPE_AT_0 * x * odd
    size = abs(x)
    root = sqrt(size)
    zeta = size * root * (2 / 3)
    inverse, quarter = 1.0 / zeta, sqrt(root)
    square = inverse * inverse
    decayed = ratio(inverse, (tables.AIRY_P, tables.AIRY_Q)) / (2.0 * quarter * exp(zeta))
    sine_factor = 1.0 + square * ratio(square, (tables.AIRY_SINE_P, tables.AIRY_SINE_Q))
    cosine_factor = inverse * ratio(square, (tables.AIRY_COSINE_P, tables.AIRY_COSINE_Q))
    turned = zeta + math.pi / 4
    wave = (turned.op("sine") * sine_factor - turned.op("cosine") * cosine_factor) / quarter
    scale = 1 / math.sqrt(math.pi)
    outer = where(x < 0.0, wave * scale, decayed * scale)
    result = where(size < 2.09, middle, outer)
    return where(size.equals(math.inf), math.nan, result)


_K0, _K1 = (_near_k0, tables.K0_FAR), (_near_k1, tables.K1_FAR)

_FORMULAS: dict[str, Formula] = {
    "i0": _i0, "special_i0e": _i0e, "special_i1": _i1, "special_i1e": _i1e,
    "special_modified_bessel_i0": _i0, "special_modified_bessel_i1": _i1,
    "special_modified_bessel_k0": _decaying(*_K0, scaled=False),
    "special_modified_bessel_k1": _decaying(*_K1, scaled=False),
    "special_scaled_modified_bessel_k0": _decaying(*_K0, scaled=True),
    "special_scaled_modified_bessel_k1": _decaying(*_K1, scaled=True),
    "special_bessel_j0": _j0, "special_bessel_j1": _j1,
    "special_bessel_y0": _y0, "special_bessel_y1": _y1,
    "special_spherical_bessel_j0": _spherical_j0, "special_airy_ai": _airy,
}  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    f"aten.{name}.default": of_term(body) for name, body in _FORMULAS.items()
}
