"""Offsets of windows as sums of tile ids and loop variables, with the ranges that follow.

    offsets = Offsets(kernel_call)
    offset = offsets.of(value)             # constant + sum of factor * variable
    offsets.inside(offset, 64, 1000)       # whether [offset, offset + 64) lies in [0, 1000)

A variable is a tile id, the variable of a `tile_for`, or any i32 scalar that is not such a sum: it
stands for itself then, with the range that its operation implies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .graph import Op, Region, Value, constant_of
from .types import I32, I64

INTEGERS = (I32, I64)  # of positions; those of i64 are followed where they are sums of i32
Range = tuple[int, int]  # inclusive
EVERYTHING: Range = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Offset:
    """constant + sum of factor * variable; every variable once, in order of first use."""

    constant: int
    terms: tuple[tuple[Value, int], ...] = ()

    def plus(self, other: Offset, factor: int = 1) -> Offset:
        """self + factor * other."""
        sums = dict(self.terms)
        for variable, own in other.terms:
            sums[variable] = sums.get(variable, 0) + factor * own
        terms = tuple((variable, n) for variable, n in sums.items() if n)
        return Offset(self.constant + factor * other.constant, terms)

    def times(self, factor: int) -> Offset:
        return Offset(0).plus(self, factor)

    @property
    def variables(self) -> tuple[Value, ...]:
        return tuple(variable for variable, _ in self.terms)


class Offsets:
    """The offsets of one kernel_call's i32 and i64 scalars, and the ranges of their variables."""

    def __init__(self, kernel: Op) -> None:
        self.grid: tuple[int, ...] = kernel.grid
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
            if low < EVERYTHING[0] or high > EVERYTHING[1]:
                found = Offset(0, ((value, 1),))
            self._known[value] = found
        return found

    def range(self, offset: Offset) -> Range:
        """The least and the greatest value that an offset may have."""
        low = high = offset.constant
        for variable, factor in offset.terms:
            ends = [factor * end for end in self.variable_range(variable)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def inside(self, offset: Offset, size: int, dim: int) -> bool:
        """Whether a window of that size lies in [0, dim) wherever it is used."""
        low, high = self.range(offset)
        return low >= 0 and high + size <= dim

    def variable_range(self, variable: Value) -> Range:
        """Where a variable lies, from the grid, the bounds of its loop, or its operation."""
        found = self._ranges.get(variable)
        if found is None:
            low, high = self._bounds(variable)
            found = max(low, EVERYTHING[0]), min(high, EVERYTHING[1])
            self._ranges[variable] = found = found if found[0] <= found[1] else EVERYTHING
        return found

    def _sum(self, value: Value) -> Offset:
        dense = constant_of(value)
        if dense is not None:
            return Offset(int(dense.splat_value))
        op = value.op
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
            return 0, max(0, size - 1)
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
        return lower[0], max(last, lower[0])


def _minimum(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), min(a[1], b[1])


def _maximum(a: Range, b: Range) -> Range:
    return max(a[0], b[0]), max(a[1], b[1])


def _clamp(low: Range, value: Range, high: Range) -> Range:
    return _minimum(_maximum(value, low), high)


def _divide(a: Range, b: Range) -> Range:
    return (a[0] // b[1], a[1] // b[0]) if a[0] >= 0 and b[0] > 0 else EVERYTHING


def _remainder(a: Range, b: Range) -> Range:
    return (0, min(a[1], b[1] - 1)) if a[0] >= 0 and b[0] > 0 else EVERYTHING


_LINEAR = frozenset({"add", "subtract", "negate", "multiply", "reshape"})
_RANGES: dict[str, Callable[..., Range]] = {
    "minimum": _minimum,
    "maximum": _maximum,
    "clamp": _clamp,
    "divide": _divide,
    "remainder": _remainder,
}
