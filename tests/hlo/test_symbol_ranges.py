"""What ranges of symbols alone say of sizes."""

from __future__ import annotations

import itertools

import pytest

from girih.hlo.size_text import parse_dim
from girih.hlo.sizes import SizeConstraint, Symbol
from girih.hlo.symbol_ranges import SymbolRanges
from girih.hlo.symbols import SymbolicDim, bound

SYMBOLS = {"s": Symbol(2, 9), "t": Symbol(0, 6, 3, 0)}
SIZES = ("s*t-4", "s-t", "(s+1)//2*t", "max(s,t)-3", "-2*s+t", "min(s,2*t)", "s*s-t//2+1", "5-s//3")


@pytest.mark.parametrize("text", SIZES)
def test_right_in_every_call(text: str) -> None:
    ranges, size = SymbolRanges(SYMBOLS, ()), parse_dim(text)
    calls = [{"s": s, "t": t} for s, t in itertools.product(range(2, 10), (0, 3, 6))]
    values = [bound(size, call) for call in calls]
    low, high = ranges.interval(size)
    assert low is not None and low <= min(values)
    assert high is not None and max(values) <= high
    if ranges.changes_sign(size):
        assert min(values) < 0 <= max(values)
    call = ranges.largest_in(size)
    assert call is None or bound(size, call) == max(values)


def test_calls_satisfy_constraints() -> None:
    s, t = SymbolicDim("s"), SymbolicDim("t")
    ranges = SymbolRanges({"s": Symbol(1, 8), "t": Symbol(1, 8)}, [SizeConstraint(s, "<=", t)])
    assert not ranges.changes_sign(t - s)
    assert ranges.changes_sign(t - 2 * s)
    assert ranges.largest_in(s - t) is None  # not where a call of the least t has the largest s
    assert ranges.largest_in(s * t) == {"s": 8, "t": 8}


def test_without_end_or_with_a_divisor_that_may_be_0() -> None:
    ranges = SymbolRanges({}, ())
    s, t = SymbolicDim("s"), SymbolicDim("t")
    assert ranges.largest_in(s) is None
    assert ranges.interval(s // t) == (None, None)
    assert not ranges.changes_sign(s // t - 1)
