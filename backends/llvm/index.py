"""Indices of elements as sums of loop variables, so that accesses show their strides.

An `Affine` is `constant + sum(coefficient * axis)`. An `LoopAxis` is a non-negative integer of the
generated code: a loop variable, or what is not affine (a quotient, a clamped start index). Where
code computes `width` elements at once, an axis also says how it differs between the lanes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...hlo.deciding import at_hint, common_divisor, surely_at_most, surely_below
from ...hlo.symbols import SymbolicDim, maximum
from .. import llvm

SAME, CONSECUTIVE, GENERAL = 0, 1, 2  # lanes of an axis: equal, value + lane, a vector of values


class LoopAxis:
    """A non-negative integer below `extent`; `value` is that of lane 0, or a vector if GENERAL.

    Where a call decides the extent it may be 0: then there is no such integer, and no code runs
    that computes with it. `depth` is the number of loops around its definition; `value` is a
    multiple of `multiple`.
    """

    __slots__ = ("value", "extent", "lanes", "depth", "multiple", "serial")
    _serials = itertools.count()  # threads may compile at the same time

    def __init__(
        self, value: llvm.Value, extent: int, lanes: int = SAME, depth: int = 0, multiple: int = 1
    ) -> None:
        # Where there is none, nothing runs that uses it: one then, so that bounds have an order.
        self.extent = extent if surely_below(0, extent) else maximum(extent, 1)
        self.value, self.lanes = value, lanes
        self.depth, self.multiple = depth, multiple
        self.serial = next(LoopAxis._serials)


class Affine:
    """constant + sum of coefficient * axis, with inclusive bounds where they are known better."""

    __slots__ = ("terms", "constant", "low", "high", "key")

    def __init__(
        self,
        terms: tuple[tuple[LoopAxis, int], ...],
        constant: int,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        self.terms, self.constant = terms, constant
        if bounds is None:
            low = high = constant
            for axis, factor in terms:
                reach = factor * (axis.extent - 1)
                if _is_negative(factor):
                    low = low + reach
                else:
                    high = high + reach
            bounds = low, high
        self.low, self.high = bounds
        self.key = (constant, *((axis.serial, factor) for axis, factor in terms))

    def __add__(self, other: Affine | int) -> Affine:
        if not isinstance(other, Affine):
            if not other:
                return self
            return Affine(self.terms, self.constant + other, (self.low + other, self.high + other))
        if not other.terms:
            return self + other.constant
        factors = dict(self.terms)
        for axis, factor in other.terms:
            factors[axis] = factors.get(axis, 0) + factor
        terms = [(axis, factor) for axis, factor in factors.items() if factor]
        terms.sort(key=lambda term: term[0].serial)
        bounds = self.low + other.low, self.high + other.high
        return Affine(tuple(terms), self.constant + other.constant, bounds)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        ends = self.low * factor, self.high * factor
        terms = tuple((axis, own * factor) for axis, own in self.terms)
        if _is_negative(factor):
            ends = ends[1], ends[0]
        return Affine(terms, self.constant * factor, ends)

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    def within(self, low: int, high: int) -> Affine:
        """The same index, known to lie in [low, high] wherever it is used."""
        bounds = (
            self.low if surely_at_most(low, self.low) else low,
            self.high if surely_at_most(self.high, high) else high,
        )
        if bounds == (self.low, self.high):
            return self
        return Affine(self.terms, self.constant, bounds)

    @property
    def depth(self) -> int:
        return max((axis.depth for axis, _ in self.terms), default=0)

    @property
    def lanes(self) -> int:
        return max((axis.lanes for axis, _ in self.terms), default=SAME)

    @property
    def lane_stride(self) -> int | None:
        """How much it grows from lane to lane; None if that is not one number."""
        if self.lanes == GENERAL:
            return None
        return sum(factor for axis, factor in self.terms if axis.lanes == CONSECUTIVE)

    def __repr__(self) -> str:
        parts = [f"{factor}*{axis.value.name}" for axis, factor in self.terms]
        return " + ".join([*parts, str(self.constant)])


def _is_negative(factor: Any) -> bool:
    """The sign of a stride. That of a size has no proof sometimes, but is the same wherever code
    runs that computes with it."""
    if surely_at_most(0, factor):
        return False
    return surely_at_most(factor, 0) or at_hint(factor) < 0


ZERO = Affine((), 0)


def parted(number: Any, divisor: Any) -> tuple[Any, Any]:
    """Quotient and remainder, where these need no division while the program runs."""
    if not isinstance(divisor, SymbolicDim) and not isinstance(number, SymbolicDim):
        return divmod(number, divisor)
    rest = number % divisor
    return (0, number) if isinstance(rest, SymbolicDim) else (number // divisor, rest)


def number(value: int) -> Affine:
    return Affine((), value)


def of_axis(axis: LoopAxis) -> Affine:
    return Affine(((axis, 1),), 0)


def linear(index: Sequence[Affine], dims: Sequence[int]) -> Affine:
    """The row-major position of an index into an array of `dims`."""
    total, stride = ZERO, 1
    for at, size in zip(reversed(index), reversed(dims), strict=True):
        if size != 1:
            total = total + at * stride
        stride *= size
    return total


class LoopScope:
    """One loop body (or the function's): a place for code of outer scopes, and what is computed."""

    __slots__ = ("slot", "block", "known")

    def __init__(self, block: str) -> None:
        self.slot: list[Any] | None = None
        self.block = block
        self.known: dict[Any, Any] = {}


class Scopes:
    """The loops around the current code; what depends on outer loops only is put outside.

    Everything remembered in a scope dominates the code of that scope and of the scopes inside.
    """

    def __init__(self, function: llvm.Function) -> None:
        self.function = function
        self.stack = [LoopScope(function.block)]

    @property
    def depth(self) -> int:
        return len(self.stack) - 1

    def known(self, depth: int) -> dict[Any, Any]:
        """What is already computed at that depth (or where the code stands, if that is deeper)."""
        scope = self.stack[min(depth, self.depth)]
        if scope is self.stack[-1] and scope.block != self.function.block:
            # Raw control flow came between: nothing computed before is sure to dominate.
            scope.known.clear()
            scope.block = self.function.block
        return scope.known

    @contextmanager
    def place(self, depth: int) -> Iterator[None]:
        """Emits straight-line code at that depth."""
        if depth >= self.depth:
            yield
            return
        slot = self.stack[depth].slot
        assert slot is not None
        with self.function.at(slot):
            yield

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A body that is entered here: a loop's, or a branch's."""
        self.known(self.depth)
        outer = self.stack[-1]
        outer.slot = self.function.slot()
        yield
        outer.block = self.function.block

    @contextmanager
    def body(self) -> Iterator[None]:
        self.stack.append(LoopScope(self.function.block))
        yield
        self.stack.pop()

    @contextmanager
    def loop(
        self,
        begin: llvm.Operand,
        end: llvm.Operand,
        step: int = 1,
        carried: Sequence[llvm.Value] = (),
        *,
        extent: int,
        lanes: int = SAME,
        multiple: int = 1,
        at_least_once: bool = False,
    ) -> Iterator[tuple[Affine, llvm.Loop]]:
        """A loop whose variable is an axis of that extent."""
        with (
            self.inside(),
            self.function.for_range(begin, end, step, carried, at_least_once=at_least_once) as loop,
            self.body(),
        ):
            axis = LoopAxis(loop.index, extent, lanes, self.depth, multiple)
            yield of_axis(axis), loop

    @contextmanager
    def branch(self, condition: llvm.Value) -> Iterator[None]:
        """Code that runs only where the condition holds."""
        with self.inside(), self.function.if_then(condition), self.body():
            yield


class Indexer:
    """Turns affine indices into code, and divides them."""

    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self.function = scopes.function

    # Values.

    def scalar(self, index: Affine) -> llvm.Value:
        """The i64 of lane 0."""
        key = ("i64", index.key)
        known = self.scopes.known(index.depth)
        found = known.get(key)
        if found is None:
            with self.scopes.place(index.depth):
                found = self._sum(index)
            known = self.scopes.known(index.depth)
            known[key] = found
        return found

    def _sum(self, index: Affine) -> llvm.Value:
        f = self.function
        if not index.terms:
            return f.constant("i64", index.constant)
        deepest = index.depth
        inner = [term for term in index.terms if term[0].depth == deepest]
        outer = tuple(term for term in index.terms if term[0].depth != deepest)
        total = self.scalar(Affine(outer, 0)) if outer else f.constant("i64", 0)
        for axis, factor in inner:
            value = axis.value
            if axis.lanes == GENERAL:
                value = f.cast("zext", f.extract(value, 0), "i64")
            total = f.add(total, f.mul(value, factor))
        return f.add(total, index.constant)

    def vector(self, index: Affine, width: int) -> llvm.Value:
        """The value in each lane: <width x i32> where it fits, else <width x i64>."""
        small = surely_at_most(-(2**31), index.low) and surely_below(index.high, 2**31)
        element = "i32" if small else "i64"
        key = ("vector", width, index.key)
        found = self.scopes.known(index.depth).get(key)
        if found is not None:
            return found
        f = self.function
        plain = tuple(term for term in index.terms if term[0].lanes != GENERAL)
        base = Affine(plain, index.constant)
        with self.scopes.place(index.depth):
            total = self.splat(base, width, element)
            stride = base.lane_stride
            if stride and width > 1:
                total = f.add(total, f.iota(width, element, stride))
            for axis, factor in index.terms:
                if axis.lanes == GENERAL:
                    opcode = "trunc" if llvm.bits_of(axis.value.type) > 32 else "zext"
                    wide = axis.value
                    if axis.value.element != element:
                        wide = f.cast(opcode, wide, element)
                    total = f.add(total, f.mul(wide, factor))
        self.scopes.known(index.depth)[key] = total
        return total

    def splat(self, index: Affine, width: int, element: str = "i64") -> llvm.Value:
        """Lane 0's value in every lane."""
        value = self.scalar(index)
        if element == "i32":
            value = (
                self.function.cast("trunc", value, "i32")
                if value.number is None
                else (self.function.constant("i32", value.number))
            )
        return self.function.splat(value, width)

    # Division.

    def divide(self, index: Affine, divisor: int, width: int) -> tuple[Affine, Affine]:
        """(index // divisor, index % divisor) for an index that is nowhere negative."""
        if divisor == 1:
            return index, ZERO
        if surely_at_most(0, index.low) and surely_below(index.high, divisor):
            return ZERO, index
        whole = [(axis, parted(factor, divisor)) for axis, factor in index.terms]
        quotient = Affine(
            tuple((axis, q) for axis, (q, _) in whole if q), parted(index.constant, divisor)[0]
        )
        bounds = None if quotient.terms or quotient.constant else (index.low, index.high)
        remainder = Affine(
            tuple((axis, r) for axis, (_, r) in whole if r),
            parted(index.constant, divisor)[1],
            bounds,
        )
        if not surely_below(remainder.high, divisor):
            atom, remainder = self.quotient(remainder, divisor, width)
            quotient = quotient + of_axis(atom)
        remainder = remainder.within(0, divisor - 1)
        return quotient.within(index.low // divisor, index.high // divisor), remainder

    def quotient(self, index: Affine, divisor: int, width: int) -> tuple[LoopAxis, Affine]:
        """index // divisor as an axis of its own, and index % divisor."""
        depth = index.depth
        key = "quotient", index.key, divisor, width
        found = self.scopes.known(depth).get(key)
        if found is None:
            extent = index.high // divisor + 1
            same = width == 1 or self._same_quotient(index, divisor, width)
            with self.scopes.place(depth):
                if same:
                    value = self._divided(self.scalar(index), index, divisor)
                else:
                    value = self._divided_lanes(self.vector(index, width), divisor)
            atom = LoopAxis(value, extent, SAME if same else GENERAL, min(depth, self.scopes.depth))
            rest = (index + of_axis(atom) * -divisor).within(0, divisor - 1)
            found = atom, rest
            self.scopes.known(depth)[key] = found
        return found

    def _divided(self, value: llvm.Value, index: Affine, divisor: int) -> llvm.Value:
        """value // divisor; a GPU divides 64 bits in many instructions, 32 in a few."""
        f = self.function
        small = surely_at_most(0, index.low) and surely_below(index.high, 2**32)
        if f.module.architecture != "nvptx64" or not small:
            return f.udiv(value, divisor)
        return f.cast("zext", f.udiv(f.cast("trunc", value, "i32"), divisor), "i64")

    def _divided_lanes(self, value: llvm.Value, divisor: int) -> llvm.Value:
        """value // divisor in each lane. CPUs divide no vectors of integers but by a number; one of
        64-bit floats holds every 32-bit integer, and no quotient of two rounds up to the next."""
        f = self.function
        known = isinstance(divisor, int) or f.module.architecture == "nvptx64"
        if known or value.element != "i32":
            return f.udiv(value, divisor)
        by = f.cast("sitofp", f.constant("i64", divisor), "double")
        wide = f.cast("sitofp", value, "double")
        return f.cast("fptosi", f.div(wide, f.splat(by, value.lanes)), value.element)

    @staticmethod
    def _same_quotient(index: Affine, divisor: int, width: int) -> bool:
        stride = index.lane_stride
        if stride is None:
            return False
        step = common_divisor(divisor, index.constant)
        for axis, factor in index.terms:
            step = common_divisor(step, factor * axis.multiple)
        return surely_below(stride * (width - 1), step)


def delinear(
    indexer: Indexer, place: Affine, dims: Sequence[int], width: int
) -> tuple[Affine, ...]:
    """The index of a row-major position."""
    found: list[Affine] = []
    for position in range(len(dims) - 1, -1, -1):
        if dims[position] == 1:
            found.append(ZERO)
        elif not any(size != 1 for size in dims[:position]):
            found.append(place.within(0, dims[position] - 1))
            place = ZERO
        else:
            place, rest = indexer.divide(place, dims[position], width)
            found.append(rest)
    return tuple(reversed(found))
