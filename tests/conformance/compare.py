"""When two arrays agree, as the checks of StableHLO's test programs say it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Relative and absolute error of checks that leave it open; a float's last bits are ours to choose.
TOLERANCE = {"float64": 1e-10, "complex128": 1e-10, "float32": 2e-4, "complex64": 2e-4}
SMALL = 2e-2  # of f16, bf16 and smaller floats
ALMOST = 1e-3  # absolute error of `expect_almost_eq` where the program states none
FURTHEST = (1 << 64) - 1  # distance of numbers of which one is infinite or NaN


class Check(NamedTuple):
    """One comparison: `expect_eq`, `expect_almost_eq`, `expect_close`, `eq` or
    `expect_serialized_eq`, and the bounds that the program states."""

    kind: str
    tolerance: float | None = None
    max_ulp_difference: int | None = None
    min_ulp_difference: int | None = None


def agrees(check: Check, actual: Array, expected: Array) -> bool:
    """Whether the check holds; types and shapes must be equal."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if is_integer(actual):
        return np.array_equal(actual, expected)
    if check.max_ulp_difference is not None:
        distance = ulp_distance(actual, expected)
        least = check.min_ulp_difference or 0
        return all(least <= d <= check.max_ulp_difference for d in distance)
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    bound = TOLERANCE.get(actual.dtype.name, SMALL)
    absolute = max(bound, ALMOST) if check.kind == "expect_almost_eq" else bound
    if check.tolerance is not None:
        absolute = check.tolerance
    with np.errstate(all="ignore"):
        left, right = actual.astype(wide), expected.astype(wide)
        return bool(np.allclose(left, right, rtol=bound, atol=absolute, equal_nan=True))


def is_integer(array: Array) -> bool:
    """Whether it holds integers or booleans, narrow ones among them."""
    return array.dtype.kind in "iub" or array.dtype.name.startswith(("int", "uint"))


def ulp_distance(actual: Array, expected: Array) -> list[int]:
    """How many floats lie between each two numbers (the larger of a complex number's parts)."""
    if actual.dtype.kind == "c":
        pairs = zip(
            ulp_distance(actual.real, expected.real),
            ulp_distance(actual.imag, expected.imag),
            strict=True,
        )
        return [max(pair) for pair in pairs]
    with np.errstate(all="ignore"):
        left, right = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        finite = np.isfinite(left) & np.isfinite(right)
    places = zip(_places(actual), _places(expected), same, finite, strict=True)
    return [
        0 if equal else abs(a - b) if near else FURTHEST for a, b, equal, near in places
    ]  # fmt: skip


def _places(array: Array) -> list[int]:
    """Each float's place in the order of all floats of its type."""
    kind = np.dtype(f"u{array.dtype.itemsize}")
    bits = np.ascontiguousarray(array).reshape(-1).view(kind).tolist()
    sign = 1 << (8 * array.dtype.itemsize - 1)
    return [-(code - sign) if code & sign else code for code in bits]
