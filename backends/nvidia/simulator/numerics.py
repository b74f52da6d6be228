"""Floating point with exact rounding, in numpy.

Results are formed in float64 *rounded to odd* (the last bit is set where the result is not exact),
which makes a second rounding to a narrower type correct in every mode.
"""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np

F4, F8, U2, U4, U8, I8 = np.float32, np.float64, np.uint16, np.uint32, np.uint64, np.int64
_LOW = U8((1 << 29) - 1)  # bits of a float64 below a float32's
_TIE = U8(1 << 28)
_SMALL = F8(2.0**-126)


def flush(a: Any) -> Any:
    """Subnormal float32 numbers become zeros of their sign."""
    small = np.abs(a) < F4(2.0**-126)
    return np.where(small, np.copysign(F4(0), a), a) if small.any() else a


def saturate(a: Any) -> Any:
    """Clamped to [0, 1]; NaN becomes 0."""
    one, zero = a.dtype.type(1), a.dtype.type(0)
    return np.where(a > zero, np.minimum(a, one), zero)


def odd(total: Any, error: Any) -> Any:
    """`total` rounded to odd, where total + error is exact (|error| below half an ulp)."""
    total, error = np.asarray(total, F8), np.asarray(error, F8)
    bits = total.view(U8)
    inexact = (error != 0) & np.isfinite(total) & ((bits & U8(1)) == 0)
    away = (error > 0) == (total > 0)
    step = np.where(away, U8(1), U8(0xFFFFFFFFFFFFFFFF))
    return np.where(inexact & (total != 0), bits + step, bits).view(F8)


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Any, b: Any) -> tuple[Any, Any]:
    product = a * b
    split = F8(134217729.0)
    scaled = a * split
    ah = scaled - (scaled - a)
    al = a - ah
    scaled = b * split
    bh = scaled - (scaled - b)
    bl = b - bh
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32 values (or narrower, widened) in float64, rounded to odd."""
    product = a.astype(F8) * b.astype(F8)
    total, error = two_sum(product, c.astype(F8))
    return odd(total, np.where(np.isfinite(error), error, F8(0)))


def fma_f4(a: Any, b: Any, c: Any) -> Any:
    """fma.rn.f32"""
    product = a.astype(F8) * b
    total = product + c
    bits = np.asarray(total).view(U8)
    risky = ((bits & _LOW) == _TIE) | ((np.abs(total) < _SMALL) & (total != 0))
    if risky.any():
        return fused(a, b, c).astype(F4)
    return total.astype(F4)


def _exact(value: Fraction, mode: str) -> float:
    """The float64 nearest to `value` in a rounding mode (no overflow or underflow in `mode` rn)."""
    try:
        near = value.numerator / value.denominator
    except OverflowError:
        near = float("inf") if value > 0 else float("-inf")
        if mode in ("rz", "rm" if value > 0 else "rp"):
            near = float(np.copysign(np.finfo(F8).max, near))
        return near
    if mode == "rn":
        return near
    down = mode == "rm" or (mode == "rz" and value > 0)
    exact = Fraction(near) if isfinite(near) else None
    if exact is None:
        return float(np.nextafter(near, 0.0)) if down == (near > 0) else near
    if down and exact > value:
        return float(np.nextafter(near, -np.inf))
    if not down and exact < value:
        return float(np.nextafter(near, np.inf))
    return near


def _elementwise(a: Any, b: Any, c: Any, mode: str, plain: Any) -> Any:
    """a * b + c in exact arithmetic, element by element; `plain` where something is not finite."""
    a, b, c, plain = np.broadcast_arrays(*(np.atleast_1d(x) for x in (a, b, c, plain)))
    result = plain.copy()
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for place in np.nonzero(finite)[0]:
        x, y, z = float(a[place]), float(b[place]), float(c[place])
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact:
            result[place] = _exact(exact, mode)
        elif mode == "rm" and (x * y != 0 or np.signbit(x * y) != np.signbit(z)):
            result[place] = -0.0  # an exact zero of different signs is -0 when rounding down
    return result


def fma_f8(a: Any, b: Any, c: Any) -> Any:
    """fma.rn.f64"""
    product, low = two_product(a, b)
    high, rest = two_sum(c, low)
    total, tail = two_sum(product, high)
    small, error = two_sum(tail, rest)
    result = total + odd(small, error)
    plain = np.where((c == 0) & (a != 0) & (b != 0), product, product + c)
    simple = (a == 0) | (b == 0) | (c == 0) | ~np.isfinite(plain)  # one rounding at most
    result = np.where(simple, plain, result)
    size, third = np.abs(product), np.abs(c)
    safe = (size < 1e290) & (third < 1e290) & (np.abs(a) < 1e290) & (np.abs(b) < 1e290)
    safe &= (size > 1e-200) & (np.abs(result) > 1e-280)
    overflows = ~np.isfinite(plain) & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    wrong = ~(safe | simple) | overflows
    if np.any(wrong):
        if not result.ndim:
            return _elementwise(a, b, c, "rn", plain)[0]
        x, y, z, p = (np.broadcast_to(v, result.shape)[wrong] for v in (a, b, c, plain))
        result[wrong] = _elementwise(x, y, z, "rn", p)
    return result


def fma_f8_directed(a: Any, b: Any, c: Any, mode: str) -> Any:
    plain = a * b + c
    result = _elementwise(a, b, c, mode, plain)
    return result if np.ndim(plain) else result[0]


def divide_f8_directed(a: Any, b: Any, mode: str, square_root: bool = False) -> Any:
    """a / b, or the root of a, in a directed mode."""
    plain = np.atleast_1d(np.sqrt(a) if square_root else a / b)
    x, y = np.broadcast_to(a, plain.shape), np.broadcast_to(b, plain.shape)
    result = plain.copy()
    for place in np.nonzero(np.isfinite(plain) & np.isfinite(y) & (plain != 0))[0]:
        near, above = Fraction(float(plain[place])), False
        if square_root:
            difference = near * near - Fraction(float(x[place]))
        else:
            exact = Fraction(float(x[place])) / Fraction(float(y[place]))
            difference = near - exact
        down = mode == "rm" or (mode == "rz" and near > 0)
        above = difference > 0
        if difference and down == above:
            result[place] = np.nextafter(plain[place], -np.inf if down else np.inf)
    return result if np.ndim(a) or np.ndim(b) else result[0]


def narrow_f4(a: Any, mode: str) -> Any:
    """float64 (exact, or rounded to odd) -> float32 in a rounding mode."""
    near = a.astype(F4)
    if mode in ("rn", "rni", ""):
        return near
    back = near.astype(F8)
    infinity = F4(np.inf)
    down = np.where(back > a, np.nextafter(near, -infinity), near)
    up = np.where(back < a, np.nextafter(near, infinity), near)
    if mode == "rm":
        return down
    if mode == "rp":
        return up
    return np.where(a > 0, down, up)


def odd_f4(a: Any) -> Any:
    """float64 -> float32 rounded to odd."""
    truncated = narrow_f4(np.asarray(a, F8), "rz")
    inexact = np.isfinite(truncated) & (truncated.astype(F8) != a)
    bits = np.asarray(truncated).view(U4)
    return np.where(inexact, bits | U4(1), bits).view(F4)


def to_half(a: Any, mode: str = "rn") -> Any:
    """float32 or float64 -> float16 in a rounding mode."""
    near = np.asarray(a).astype(np.float16)
    if mode in ("rn", "rni", ""):
        return near
    back = near.astype(F8)
    infinity = np.float16(np.inf)
    down = np.where(back > a, np.nextafter(near, -infinity), near)
    up = np.where(back < a, np.nextafter(near, infinity), near)
    if mode == "rm":
        return down
    if mode == "rp":
        return up
    return np.where(a > 0, down, up)


def to_bfloat(a: Any, mode: str = "rn") -> Any:
    """float32, or float64 rounded to odd, -> the bits of a bfloat16 as u2."""
    if np.asarray(a).dtype == F8:
        a = odd_f4(a)
    bits = np.asarray(a, F4).view(U4)
    if mode in ("rn", "rni", ""):
        rounded = (bits + U4(0x7FFF) + ((bits >> U4(16)) & U4(1))) >> U4(16)
    elif mode == "rz":
        rounded = bits >> U4(16)
    else:
        away = (bits >> U4(31)) == U4(1 if mode == "rm" else 0)
        rounded = np.where(away, bits + U4(0xFFFF), bits) >> U4(16)
    return np.where(np.isnan(a), U4(0x7FFF), rounded).astype(U2)


def from_bfloat(bits: Any) -> Any:
    """Bits of a bfloat16 (u2) -> float32."""
    return (bits.astype(U4) << U4(16)).view(F4)


def to_tf32(a: Any, mode: str) -> Any:
    """float32 with 10 fraction bits: "rna" ties away, "rn" ties to even, "rz"."""
    bits = np.asarray(a, F4).view(U4)
    if mode == "rna":
        rounded = bits + U4(0x1000)
    elif mode == "rn":
        rounded = bits + U4(0xFFF) + ((bits >> U4(13)) & U4(1))
    else:
        rounded = bits
    rounded = np.where(np.isfinite(a), rounded & U4(0xFFFFE000), bits)
    return np.where(np.isnan(a), U4(0x7FFFFFFF), rounded).view(F4)


def _bits(a: Any) -> Any:
    return np.asarray(a).view(f"u{a.dtype.itemsize}")


def minimum(a: Any, b: Any) -> Any:
    """The number where one is NaN; -0 below +0."""
    result = np.asarray(np.fmin(a, b))
    if (result == 0).any():
        return np.where(a == b, (_bits(a) | _bits(b)).view(a.dtype), result)
    return result


def maximum(a: Any, b: Any) -> Any:
    result = np.asarray(np.fmax(a, b))
    if (result == 0).any():
        return np.where(a == b, (_bits(a) & _bits(b)).view(a.dtype), result)
    return result


def with_nan(result: Any, a: Any, b: Any) -> Any:
    """`result`, but NaN where a or b is (min.NaN, max.NaN)."""
    return np.where(np.isnan(a) | np.isnan(b), result.dtype.type(np.nan), result)


def xor_sign(result: Any, a: Any, b: Any) -> Any:
    """|result| with the product of the signs of a and b."""
    negative = np.signbit(a) != np.signbit(b)
    size = np.abs(result)
    return np.where(negative, -size, size)
