"""Arithmetic that numpy leaves open: one rounding for small floats, wrapping, division by zero,
shifts past the width, conversions that saturate. Every room computes through these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..types import ElementType

Array = Any  # a numpy array or scalar

_NATIVE_FLOATS = frozenset(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))
_SMALL_INTEGERS = {
    np.dtype(ml_dtypes.int2): (np.int8, 2),
    np.dtype(ml_dtypes.int4): (np.int8, 4),
    np.dtype(ml_dtypes.uint2): (np.uint8, 2),
    np.dtype(ml_dtypes.uint4): (np.uint8, 4),
}


def width(dtype: np.dtype[Any]) -> int:
    """Bits of an integer's value: 4 for int4, though it takes a byte."""
    small = _SMALL_INTEGERS.get(dtype)
    return small[1] if small else dtype.itemsize * 8


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype in _SMALL_INTEGERS


def is_signed(dtype: np.dtype[Any]) -> bool:
    small = _SMALL_INTEGERS.get(dtype)
    return np.dtype(small[0] if small else dtype).kind == "i"


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a real floating-point type, ml_dtypes' among them."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype not in _SMALL_INTEGERS)


def wide(array: Array) -> Array:
    """The same values in the type that arithmetic is done in: f16, bf16, fp8 in f32, int4 in i8."""
    dtype = array.dtype
    if dtype in _NATIVE_FLOATS or dtype.kind in "iub":
        return array
    if dtype in _SMALL_INTEGERS:
        return array.astype(_SMALL_INTEGERS[dtype][0])
    return array.astype(np.float32)


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """A result of arithmetic in its element type: floats rounded to nearest even, integers wrap."""
    array = np.asarray(array)
    return array if array.dtype == dtype else array.astype(dtype)


def elementwise(formula: Callable[..., Any], arrays: Any, dtype: np.dtype[Any]) -> Array:
    """formula(arrays) with each element rounded once."""
    with np.errstate(all="ignore"):
        return narrow(formula(*map(wide, arrays)), dtype)


# Integers and floats with the specification's corner cases. Arguments are `wide` already.


def divide(x: Array, y: Array) -> Array:
    """x / y; integers truncate towards zero, x / 0 is all ones, the minimum / -1 is itself."""
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    quotient = _truncated_quotient(x, y)
    return np.where(y == 0, x.dtype.type(-1) if x.dtype.kind == "i" else ~x.dtype.type(0), quotient)


def _truncated_quotient(x: Array, y: Array) -> Array:
    safe = np.where(y == 0, y.dtype.type(1), y)
    if x.dtype.kind == "u":
        return x // safe
    floor = np.where(safe == -1, -x, x // np.where(safe == -1, safe.dtype.type(1), safe))
    inexact = (floor * safe != x) & ((x < 0) != (safe < 0))
    return (floor + inexact).astype(x.dtype)


def remainder(x: Array, y: Array) -> Array:
    """x - y * truncate(x / y), with the sign of x; integers: x rem 0 is x."""
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    return np.where(y == 0, x, x - y * _truncated_quotient(x, y))


def power(x: Array, y: Array) -> Array:
    """x to the y; integers by repeated squaring, a negative exponent truncates the fraction."""
    if x.dtype.kind not in "iu":
        return np.power(x, y)
    if x.dtype.kind == "u":
        return np.power(x, y)
    result = np.power(x, np.where(y < 0, y.dtype.type(0), y))
    odd = (y & 1).astype(bool)
    unit = np.where(odd, np.sign(x), np.abs(np.sign(x)))
    fraction = np.where(np.abs(x) == 1, unit, x.dtype.type(0))
    return np.where(y < 0, fraction, result)


def maximum(x: Array, y: Array) -> Array:
    """The larger; NaN if either is NaN, +0 over -0; booleans: or; complex: lexicographic."""
    result = np.maximum(x, y)
    if result.dtype.kind == "f":
        zeros = (x == 0) & (y == 0)
        if np.any(zeros):
            result = np.where(zeros, x + y, result)
    return result


def minimum(x: Array, y: Array) -> Array:
    """The smaller; NaN if either is NaN, -0 over +0; booleans: and; complex: lexicographic."""
    result = np.minimum(x, y)
    if result.dtype.kind == "f":
        zeros = (x == 0) & (y == 0)
        if np.any(zeros):
            result = np.where(zeros, -(-x - y), result)
    return result


def shift_left(x: Array, y: Array, bits: int) -> Array:
    """x * 2**y, 0 where y (as an unsigned number) reaches the width."""
    fits = (y >= 0) & (y < bits)
    return np.where(fits, np.left_shift(x, np.where(fits, y, y.dtype.type(0))), x.dtype.type(0))


def shift_right_arithmetic(x: Array, y: Array, bits: int) -> Array:
    """x / 2**y rounded down, copies of the sign where y reaches the width."""
    signed = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    if not is_signed(x.dtype) and bits < 8:
        signed = np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed)
    fits = (y >= 0) & (y < bits)
    count = np.where(fits, y, y.dtype.type(bits - 1)).astype(signed.dtype)
    return np.right_shift(signed, count).astype(x.dtype)


def shift_right_logical(x: Array, y: Array, bits: int) -> Array:
    """x as an unsigned number / 2**y rounded down, 0 where y reaches the width."""
    unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    if bits < 8:
        unsigned = unsigned & ((1 << bits) - 1)
    fits = (y >= 0) & (y < bits)
    count = np.where(fits, y, y.dtype.type(0)).astype(unsigned.dtype)
    shifted = np.where(fits, np.right_shift(unsigned, count), unsigned.dtype.type(0))
    return shifted.astype(x.dtype)


def unsigned_bits(x: Array) -> Array:
    """The elements' bits as unsigned integers of the same storage width."""
    return np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}")).reshape(np.shape(x))


def sign(x: Array) -> Array:
    """-1, 0 or 1; keeps NaN and the sign of a zero; x / |x| for complex numbers."""
    if x.dtype.kind == "c":
        size = np.abs(x)
        return np.where(size == 0, x, x / np.where(size == 0, 1, size))
    return np.where(x == 0, x, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def round_half_away(x: Array) -> Array:
    """The nearest integer, ties away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), whole)


def total_order(x: Array) -> Array:
    """Signed integers that order floats as IEEE totalOrder does: -NaN < -inf < -0 < +0 < +NaN."""
    if x.dtype.itemsize == 1:
        x = wide(x)  # not all of the small floats have their sign in front of their magnitude
    bits = np.ascontiguousarray(x).view(np.dtype(f"i{x.dtype.itemsize}")).reshape(np.shape(x))
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


# Conversions.


def convert(x: Array, element: ElementType) -> Array:
    """x in another element type: floats round to nearest even, float to integer truncates and
    saturates (NaN gives 0), integers wrap, anything but zero is true, complex gives its real part.
    """
    dtype = element.dtype
    if x.dtype == dtype:
        return x
    with np.errstate(all="ignore"):
        if element.is_complex:
            return np.asarray(wide(x)).astype(dtype)
        if x.dtype.kind == "c":
            x = x.real
        if element.is_bool:
            return wide(x) != 0
        if element.is_integer:
            return _to_integer(x, element)
        return to_float(x, dtype)


def _to_integer(x: Array, element: ElementType) -> Array:
    if not is_float(x.dtype):
        return np.asarray(wide(x)).astype(element.dtype)
    low, high = integer_bounds(element)
    real = np.asarray(wide(x)).astype(np.float64)
    inside = (real > low - 1.0) & (real < high + 1.0) if element.bits < 53 else (
        (real >= low) & (real < float(high + 1))
    )  # fmt: skip
    whole = np.where(inside, np.trunc(real), 0.0)
    signed = element.kind == "int"
    integers = whole.astype(np.int64 if signed else np.uint64)
    integers = np.where(inside | np.isnan(real), integers, integers.dtype.type(low))
    integers = np.where(~inside & (real > 0), integers.dtype.type(high), integers)
    return integers.astype(element.dtype)


def integer_bounds(element: ElementType) -> tuple[int, int]:
    """The smallest and largest value of an integer type."""
    if element.kind == "uint":
        return 0, (1 << element.bits) - 1
    return -(1 << (element.bits - 1)), (1 << (element.bits - 1)) - 1


def to_float(x: Array, dtype: np.dtype[Any]) -> Array:
    """x in a float type, rounded once to nearest even."""
    x = np.asarray(wide(x))
    if dtype.kind == "f":
        return x.astype(dtype)
    exact = x.dtype == np.float32 or x.dtype.kind == "b" or x.dtype.itemsize < 3
    return (x.astype(np.float32) if exact else _round_to_odd(x)).astype(dtype)


def _round_to_odd(x: Array) -> Array:
    """f64 or wide integers in f32, inexact ones odd, so that a second rounding is harmless."""
    near = x.astype(np.float32)
    back = near.astype(np.float64)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # f64 cannot hold x; the integer of `near` can be compared exactly inside the range
        inside = np.abs(back) < 2.0**62
        whole = np.where(inside, back, 0).astype(x.dtype)
        above, below = (whole > x) & inside, (whole < x) & inside
    else:
        above, below = back > x, back < x
    bits = near.view(np.uint32)
    even = ((bits & 1) == 0) & np.isfinite(near)
    toward = np.where(above, np.float32(-np.inf), np.float32(np.inf))
    return np.where(even & (above | below), np.nextafter(near, toward), near)
