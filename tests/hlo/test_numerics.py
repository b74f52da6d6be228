"""The arithmetic that numpy leaves open, against exact Python integers and fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.ops import complex_functions, numerics
from girih.hlo.ops.examples import f32
from girih.hlo.types import (
    BF16,
    F8E4M3FN,
    F8E5M2,
    F16,
    I4,
    I8,
    I32,
    I64,
    UI4,
    UI8,
    UI32,
    UI64,
    ElementType,
)

INTEGERS = (I4, I8, I32, I64, UI4, UI8, UI32, UI64)
SMALL = (BF16, F16, F8E5M2, F8E4M3FN)


def wrapped(value: int, element: ElementType) -> int:
    """The value that so many bits hold."""
    value &= (1 << element.bits) - 1
    high = element.kind == "int" and value >> (element.bits - 1)
    return value - (1 << element.bits) if high else value


def integers(element: ElementType) -> st.SearchStrategy[int]:
    low, high = numerics.integer_bounds(element)
    corners = [v for v in (low, low + 1, -1, 0, 1, 2, high - 1, high) if low <= v <= high]
    return st.one_of(st.sampled_from(corners), st.integers(low, high))


def computed(formula: Any, element: ElementType, *values: int) -> int:
    arrays = [np.asarray([value]).astype(element.dtype) for value in values]
    return int(numerics.elementwise(formula, arrays, element.dtype)[0])


@pytest.mark.parametrize("element", INTEGERS, ids=str)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_integer_arithmetic_wraps(element: ElementType, data: st.DataObject) -> None:
    x, y = data.draw(integers(element)), data.draw(integers(element))
    bits = element.bits
    quotient = -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    assert computed(numerics.divide, element, x, y) == wrapped(quotient, element)
    rest = x if y == 0 else x - y * quotient
    assert computed(numerics.remainder, element, x, y) == wrapped(rest, element)
    count = y if 0 <= y < bits else None
    unsigned, signed = x & ((1 << bits) - 1), x - (1 << bits) * (x >> (bits - 1) & 1) * (x > 0)
    left = 0 if count is None else x << count
    logical = 0 if count is None else unsigned >> count
    arithmetic = signed >> (bits - 1 if count is None else count)
    for formula, wanted in (
        (numerics.shift_left, left),
        (numerics.shift_right_logical, logical),
        (numerics.shift_right_arithmetic, arithmetic),
    ):
        got = computed(lambda a, b, f=formula: f(a, b, bits), element, x, y)
        assert got == wrapped(wanted, element), formula.__name__


@pytest.mark.parametrize("element", INTEGERS, ids=str)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_integer_power(element: ElementType, data: st.DataObject) -> None:
    x = data.draw(integers(element))
    y = data.draw(st.integers(0 if element.kind == "uint" else -4, 7))
    wanted = x**y if y >= 0 else (x if y % 2 else 1) if abs(x) == 1 else 0
    assert computed(numerics.power, element, x, y) == wrapped(wanted, element)


@pytest.mark.parametrize("element", INTEGERS, ids=str)
@given(value=st.floats(allow_nan=True, allow_infinity=True))
@settings(max_examples=60, deadline=None)
def test_floats_become_integers_by_truncation_and_saturate(
    element: ElementType, value: float
) -> None:
    low, high = numerics.integer_bounds(element)
    if np.isnan(value):
        wanted = 0
    elif np.isinf(value):
        wanted = high if value > 0 else low
    else:
        wanted = min(max(int(value), low), high)
    assert int(numerics.convert(np.asarray([value], np.float64), element)[0]) == wanted


@pytest.mark.parametrize("element", INTEGERS, ids=str)
@given(value=st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=40, deadline=None)
def test_integers_become_integers_by_wrapping(element: ElementType, value: int) -> None:
    converted = numerics.convert(np.asarray([value], np.int64), element)
    assert int(converted[0]) == wrapped(value, element)


@pytest.mark.parametrize("element", SMALL, ids=str)
@given(value=st.one_of(st.floats(-1e4, 1e4), st.integers(-(2**14), 2**14)))
@settings(max_examples=150, deadline=None)
def test_small_floats_are_the_nearest(element: ElementType, value: float) -> None:
    """No neighbour is nearer, and of two equally near ones the even is taken."""
    kind = np.int64 if isinstance(value, int) else np.float64
    result = numerics.convert(np.asarray([value], kind), element)
    if not np.isfinite(result.astype(np.float64)[0]):
        limit = float(ml_dtypes.finfo(element.dtype).max)
        assert abs(value) > limit
        return
    storage = np.dtype(f"u{element.itemsize}")
    bits = int(result.view(storage)[0])
    error = abs(Fraction(float(result.astype(np.float64)[0])) - Fraction(value))
    for neighbour in (bits - 1, bits + 1):
        if not 0 <= neighbour < 1 << element.bits:
            continue
        other = np.asarray([neighbour], storage).view(element.dtype).astype(np.float64)[0]
        if np.isfinite(other):
            distance = abs(Fraction(float(other)) - Fraction(value))
            assert error < distance or (error == distance and bits % 2 == 0)


@pytest.mark.parametrize("value", [2**62 + 1, 2**40 + 2**32 + 1, -(2**33) - 2**25 - 1])
def test_wide_integers_are_rounded_once(value: int) -> None:
    got = float(numerics.convert(np.asarray([value], np.int64), BF16)[0])
    step = 2.0 ** (abs(value).bit_length() - 8)
    assert abs(got - value) < step / 2  # two roundings would take the other neighbour


def test_zeros_and_nans_of_maximum_and_minimum() -> None:
    x, y = f32([0.0, -0.0, np.nan, 1.0]), f32([-0.0, 0.0, 1.0, np.nan])
    larger, smaller = numerics.maximum(x, y), numerics.minimum(x, y)
    assert list(np.signbit(larger[:2])) == [False, False]
    assert list(np.signbit(smaller[:2])) == [True, True]
    assert np.isnan(larger[2:]).all() and np.isnan(smaller[2:]).all()


def test_total_order() -> None:
    ordered = np.array([-np.nan, -np.inf, -1, -1e-45, -0.0, 0.0, 1e-45, 1, np.inf, np.nan], "f4")
    ranks = numerics.total_order(np.copysign(ordered, [-1] * 5 + [1] * 5).astype("f4"))
    assert list(np.argsort(ranks)) == list(range(10))


def test_log_plus_one_keeps_digits_near_the_unit_circle() -> None:
    # |1 + z| is one up to 2^-60: the plain formula gives zero
    z = np.asarray([complex(-(2.0**-60), 2.0**-29.5), complex(1e-20, 1e-20)])
    result = complex_functions.log_plus_one(z)
    wanted = [(Fraction(v.real) * 2 + Fraction(v.real) ** 2 + Fraction(v.imag) ** 2) / 2 for v in z]
    assert np.allclose(result.real, [float(v) for v in wanted], rtol=1e-12, atol=0)
