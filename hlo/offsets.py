"""Offsets of windows as sums of tile ids and loop variables, with the ranges that follow.

    offsets = Offsets(kernel_call)
    offset = offsets.of(value)             # constant + sum of factor * variable
    offsets.inside(offset, 64, 1000)       # whether [offset, offset + 64) lies in [0, 1000)

A variable is a tile id, the variable of a `tile_for`, or any i32 scalar that is not such a sum: it
stands for itself then, with the range that its operation implies. Numbers may be sizes that a call
decides; what is said of them then holds at all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .deciding import surely_at_most
from .graph import Op, Region, Value, constant_of
from .symbols import Dim, SymbolicDim, maximum, minimum
from .types import I32, I64

INTEGERS = (I32, I64)  # of positions; those of i64 are followed where they are sums of i32
Range = tuple[Dim, Dim]  # inclusive
EVERYTHING: Range = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Offset:
    """constant + sum of factor * variable; every variable once, in order of first use."""

    constant: Dim
    terms: tuple[tuple[Value, Dim], ...] = ()

    def plus(self, other: Offset, factor: Dim = 1) -> Offset:
        """self + factor * other."""
        sums = dict(self.terms)
        for variable, own in other.terms:
            sums[variable] = sums.get(variable, 0) + factor * own
        terms = tuple((variable, n) for variable, n in sums.items() if n)
        return Offset(self.constant + factor * other.constant, terms)

    def times(self, factor: Dim) -> Offset:
        return Offset(0).plus(self, factor)

    @property
    def variables(self) -> tuple[Value, ...]:
        return tuple(variable for variable, _ in self.terms)


class Offsets:
    """The offsets of one kernel_call's i32 and i64 scalars, and the ranges of their variables."""

    def __init__(self, kernel: Op) -> None:
        self.grid: tuple[Dim, ...] = kernel.grid
        self.owners: dict[Region, Op] = {}
        for op in (kernel, *kernel.regions[0].walk()):
            for region in op.regions:
                self.owners[region] = op
        self._known: dict[Value, Offset] = {}
        self._ranges: dict[Value, Range] = {}

    def of(self, value: Value) -> Offset:
        """The sum that an i32 scalar is. One that may wrap around is a variable of its own."""
        found = self._known.get(value)
        if found is None:
            found = self._sum(value)
            low, high = self.range(found)
            if not _fits(low, high):
                found = Offset(0, ((value, 1),))
            self._known[value] = found
        return found

    def range(self, offset: Offset) -> Range:
        """The least and the greatest value that an offset may have."""
        low = high = offset.constant
        for variable, factor in offset.terms:
            first, last = (factor * end for end in self.variable_range(variable))
            if not surely_at_most(0, factor):
                if not surely_at_most(factor, 0):
                    return EVERYTHING
                first, last = last, first
            low, high = low + first, high + last
        return low, high

    def inside(self, offset: Offset, size: int, dim: int) -> bool:
        """Whether a window of that size lies in [0, dim) wherever it is used."""
        low, high = self.range(offset)
        return surely_at_most(0, low) and surely_at_most(high + size, dim)

    def variable_range(self, variable: Value) -> Range:
        """Where a variable lies, from the grid, the bounds of its loop, or its operation."""
        found = self._ranges.get(variable)
        if found is None:
            low, high = self._bounds(variable)
            if isinstance(low, SymbolicDim) or isinstance(high, SymbolicDim):
                found = (low, high) if _fits(low, high) else EVERYTHING
            else:
                found = max(low, EVERYTHING[0]), min(high, EVERYTHING[1])
            self._ranges[variable] = found = (
                found if surely_at_most(found[0], found[1]) else EVERYTHING
            )
        return found

    def _sum(self, value: Value) -> Offset:
        dense = constant_of(value)
        if dense is not None:
            return Offset(int(dense.splat_value))
        op = value.op
        if op is not None and op.name == "tile_bound":
            return Offset(op.size)
        itself = Offset(0, ((value, 1),))
        if op is not None and op.name == "convert" and value.element in INTEGERS:
            (source,) = op.operands
            if source.element in INTEGERS and not source.rank:
                found = self.of(source)
                known = all(variable.element is I32 for variable in found.variables)
                return found if known else itself
        if op is None or any(v.rank or v.element is not value.element for v in op.operands):
            return itself
        parts = [self.of(operand) for operand in op.operands] if op.name in _LINEAR else []
        if op.name == "add":
            return parts[0].plus(parts[1])
        if op.name == "subtract":
            return parts[0].plus(parts[1], -1)
        if op.name == "negate":
            return parts[0].times(-1)
        if op.name == "multiply" and not (parts[0].terms and parts[1].terms):
            one, other = parts if parts[1].terms else (parts[1], parts[0])
            return other.times(one.constant)
        return parts[0] if op.name == "reshape" else itself

    def _bounds(self, variable: Value) -> Range:
        op = variable.op
        if op is None:
            return self._loop_range(variable)
        if op.name == "tile_id":
            size = self.grid[op.axis] if op.axis < len(self.grid) else 1
            return 0, maximum(0, size - 1)
        rule = _RANGES.get(op.name)
        if rule is None or any(v.rank or v.element is not variable.element for v in op.operands):
            return EVERYTHING
        return rule(*(self.range(self.of(operand)) for operand in op.operands))

    def _loop_range(self, variable: Value) -> Range:
        region = variable.owner
        loop = self.owners.get(region) if isinstance(region, Region) else None
        if loop is None or loop.name != "tile_for" or variable.index:
            return EVERYTHING
        lower, upper = (self.range(self.of(bound)) for bound in loop.operands[:2])
        last = upper[1] - 1
        if lower[0] == lower[1]:
            last -= (last - lower[0]) % loop.step
        return lower[0], maximum(last, lower[0])


def _fits(low: Dim, high: Dim) -> bool:
    """Whether all values between the two are of 32 bits."""
    return surely_at_most(EVERYTHING[0], low) and surely_at_most(high, EVERYTHING[1])


def _minimum(a: Range, b: Range) -> Range:
    return minimum(a[0], b[0]), minimum(a[1], b[1])


def _maximum(a: Range, b: Range) -> Range:
    return maximum(a[0], b[0]), maximum(a[1], b[1])


def _clamp(low: Range, value: Range, high: Range) -> Range:
    return _minimum(_maximum(value, low), high)


def _divide(a: Range, b: Range) -> Range:
    if not (surely_at_most(0, a[0]) and surely_at_most(1, b[0])):
        return EVERYTHING
    return a[0] // b[1], a[1] // b[0]


def _remainder(a: Range, b: Range) -> Range:
    if not (surely_at_most(0, a[0]) and surely_at_most(1, b[0])):
        return EVERYTHING
    return 0, minimum(a[1], b[1] - 1)


_LINEAR = frozenset({"add", "subtract", "negate", "multiply", "reshape"})
_RANGES: dict[str, Callable[..., Range]] = {
    "minimum": _minimum,
    "maximum": _maximum,
    "clamp": _clamp,
    "divide": _divide,
    "remainder": _remainder,
}
