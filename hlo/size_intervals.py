"""Intervals of sizes: bounds, and bounds of what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .symbols import Atom, SymbolicDim

End = int | None  # None: without end


class Bounds(NamedTuple):
    """low <= size <= high; None is no bound."""

    low: End
    high: End

    def meet(self, other: Bounds) -> Bounds:
        return Bounds(_largest(self.low, other.low), least(self.high, other.high))


def _largest(a: End, b: End) -> End:
    """The larger lower bound."""
    return b if a is None else a if b is None else max(a, b)


def least(a: End, b: End) -> End:
    """The smaller upper bound."""
    return b if a is None else a if b is None else min(a, b)


def sum_of_products(size: SymbolicDim, atom_range: Callable[[Atom], Bounds]) -> Bounds:
    """The range of a size, term by term, by those of its atoms."""
    low: End = 0
    high: End = 0
    for monomial, coefficient in size.terms:
        part = Bounds(coefficient, coefficient)
        for atom in monomial:
            part = times(part, atom_range(atom))
        low = None if low is None or part.low is None else low + part.low
        high = None if high is None or part.high is None else high + part.high
    return Bounds(low, high)


def of_function(function: str, ranges: Sequence[Bounds]) -> Bounds:
    """The values of "//", "max" or "min" of operands with these ranges."""
    if function == "//":
        return quotient(*ranges)
    lows, highs = [r.low for r in ranges], [r.high for r in ranges]
    if function == "max":
        known = [low for low in lows if low is not None]
        return Bounds(max(known, default=None), None if None in highs else max(highs))  # type: ignore[type-var]
    known = [high for high in highs if high is not None]
    return Bounds(None if None in lows else min(lows), min(known, default=None))  # type: ignore[type-var]


def times(a: Bounds, b: Bounds) -> Bounds:
    """The values of products."""
    (low, high), (other_low, other_high) = a, b
    known = high is not None and other_high is not None
    if known and low is not None and other_low is not None and low >= 0 <= other_low:
        return Bounds(low * other_low, high * other_high)  # type: ignore[operator]
    ends = [
        _end_product(x, x_sign, y, y_sign)
        for x, x_sign in ((a.low, -1), (a.high, 1))
        for y, y_sign in ((b.low, -1), (b.high, 1))
    ]
    least_of_all = None if -math.inf in ends else min(ends)
    most = None if math.inf in ends else max(ends)
    return Bounds(least_of_all, most)  # type: ignore[arg-type]


def _end_product(x: End, x_sign: int, y: End, y_sign: int) -> int | float:
    """The product of two ends; None is the infinity of that sign, and 0 times it is 0."""
    if x is not None and y is not None:
        return x * y
    if x == 0 or y == 0:
        return 0
    positive = ((x_sign if x is None else x) > 0) == ((y_sign if y is None else y) > 0)
    return math.inf if positive else -math.inf


def quotient(x: Bounds, divisor: Bounds) -> Bounds:
    """x // divisor; no bounds where the divisor may be 0."""
    low, high = divisor
    if low is None or low < 1:
        if high is None or high > -1:
            return Bounds(None, None)
        return quotient(_negative(x), _negative(divisor))
    smallest = largest = None
    if x.low is not None:
        smallest = x.low // low if x.low < 0 else _over(x.low, high)
    if x.high is not None:
        largest = x.high // low if x.high >= 0 else _over(x.high, high)
    return Bounds(smallest, largest)


def _negative(x: Bounds) -> Bounds:
    low, high = x
    return Bounds(None if high is None else -high, None if low is None else -low)


def _over(number: int, divisor: End) -> int:
    """number // divisor, of the largest divisor."""
    if divisor is None:
        return 0 if number >= 0 else -1
    return number // divisor
