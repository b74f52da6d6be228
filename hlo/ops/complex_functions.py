"""Functions of complex numbers where numpy's lose digits or treat infinities another way."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

SPLITTER = float(2**27 + 1)  # cuts a f64 into two halves of 26 bits (Dekker)


def exponential(z: Array) -> Array:
    """exp(x) * (cos(y) + i sin(y)), so NaN wherever y is infinite."""
    if z.dtype.kind != "c":
        return np.exp(z)
    return np.where(np.isfinite(z.imag), np.exp(z), z.dtype.type(complex(np.nan, np.nan)))


def exponential_minus_one(z: Array) -> Array:
    """exp(z) - 1; on the real axis it is real, also where it overflows."""
    if z.dtype.kind != "c":
        return np.expm1(z)
    result = np.empty_like(z)
    value = np.expm1(z)
    result.real = value.real
    result.imag = np.where(z.imag == 0, z.imag, value.imag)
    return result


def square(z: Array) -> Array:
    """z * z with the real part as (x + y)(x - y), which neither overflows early nor cancels."""
    if z.dtype.kind != "c":
        return np.square(z)
    x, y = z.real, z.imag
    result = np.empty_like(z)
    same = (np.abs(x) == np.abs(y)) & np.isfinite(x)
    result.real = np.where(same, 0, (x + y) * (x - y))
    result.imag = 2 * (x * y)
    return result


def log_plus_one(z: Array) -> Array:
    """log(1 + z): the modulus near one through log1p of x(2 + x) + y^2, summed without loss."""
    if z.dtype.kind != "c":
        return np.log1p(z)
    x, y = z.real.astype(np.float64), z.imag.astype(np.float64)
    result = np.empty(z.shape, np.complex128)
    small = (np.abs(x) < 3.0) & (np.abs(y) < 3.0)
    near_x, near_y = np.where(small, x, 0.0), np.where(small, y, 0.0)
    near = 0.5 * np.log1p(_excess(near_x, near_y))
    far = np.log(np.hypot(x + 1.0, y))
    # a modulus that overflows: log|z| of the halves
    huge = np.isinf(far) & np.isfinite(x) & np.isfinite(y)
    far = np.where(huge, np.log(np.hypot(x / 2, y / 2)) + np.log(2.0), far)
    result.real = np.where(small, near, far)
    result.imag = np.arctan2(y, x + 1.0)
    return result.astype(z.dtype)


def _excess(x: Array, y: Array) -> Array:
    """|1 + z|^2 - 1 = 2x + x^2 + y^2, each product exact and the sum compensated."""
    terms = [2.0 * x, *_exact_square(x), *_exact_square(y)]
    total, lost = np.zeros_like(x), np.zeros_like(x)
    for term in _largest_first(terms):
        following = total + term
        back = following - total
        lost = lost + ((total - (following - back)) + (term - back))
        total = following
    return total + lost


def _largest_first(terms: list[Array]) -> Array:
    """The terms with the largest first, element by element."""
    stacked = np.stack(terms)
    order = np.argsort(-np.abs(stacked), axis=0)
    return np.take_along_axis(stacked, order, 0)


def _exact_square(x: Array) -> tuple[Array, Array]:
    """x * x as the sum of a rounded product and its error."""
    product = x * x
    cut = SPLITTER * x
    high = cut - (cut - x)
    low = x - high
    return product, ((high * high - product) + 2.0 * high * low) + low * low
