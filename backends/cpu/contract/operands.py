"""What both sides of a product are made of: stored arrays, groups of columns, walks over depth.

The micro-kernel reads the left side (`left.py`) one element per row and the right side (`right.py`)
whole vectors of columns. A side that lies so already is read in place; another one is copied into
scratch first, in the order of use: panels of the right side per column group, blocks of the left
side per row block. Packing also widens narrow element types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....hlo.deciding import surely_at_most
from ....hlo.symbols import SymbolicDim, maximum
from ....hlo.views import Segment
from ... import llvm
from ...llvm import elements
from .micro import Depth

Value = llvm.Value


@dataclass(frozen=True)
class Phases:
    """Phases of a dilated image as an outer coordinate v. A result `count * u + v` sees the taps
    `first + count * j` of a kernel and the stored pixels `u + j - low(v)`, where low(v) and `first`
    are the quotient and the remainder of (low - v) / count."""

    count: int
    low: int  # of the dilated image
    step: int  # elements from one tap of the stored kernel to the next

    @property
    def lows(self) -> tuple[int, int]:
        """The least low and the greatest one."""
        return (self.low - self.count + 1) // self.count, self.low // self.count

    def _shifted(self, f: llvm.Function, v: Value) -> Value:
        """low - v, with as many rounds of `count` on top as make it not negative."""
        return f.sub(self.low - self.lows[0] * self.count, v)

    def low_of(self, f: llvm.Function, v: Value) -> Value:
        return f.add(f.udiv(self._shifted(f, v), self.count), self.lows[0])

    def offset(self, f: llvm.Function, v: Value) -> Value:
        """Where the first tap of a phase stands in the stored kernel."""
        return f.mul(f.urem(self._shifted(f, v), self.count), self.step)


@dataclass(frozen=True)
class OperandArray:
    """A stored array: its number among the kernel's arguments, its elements, and where a product
    of given outer coordinates begins in it (in elements)."""

    argument: int
    element: Any
    accumulator: str  # LLVM type that arithmetic is done in
    offset: int
    outer: tuple[int | Phases, ...]  # stride per outer coordinate

    def base(self, f: llvm.Function, args: Value, outer: Sequence[Value]) -> Value:
        """Pointer to the first element of the product at `outer`."""
        pointer = f.load("ptr", f.pointer(args, self.argument, "ptr"))
        at: llvm.Value = f.constant("i64", self.offset)
        for coordinate, stride in zip(outer, self.outer, strict=True):
            step = isinstance(stride, Phases)
            at = f.add(at, stride.offset(f, coordinate) if step else f.mul(coordinate, stride))
        return self.at(f, pointer, at)

    def at(self, f: llvm.Function, base: Value, index: llvm.Operand) -> Value:
        return f.pointer(base, index, elements.memory_type(f, self.element))

    def load(self, f: llvm.Function, base: Value, index: llvm.Operand, lanes: int = 1) -> Value:
        """`lanes` elements from base[index] on, in the accumulator's type."""
        kind = llvm.vector(lanes, elements.memory_type(f, self.element))
        return self._widen(f, f.load(kind, self.at(f, base, index)))

    def masked_load(self, f: llvm.Function, base: Value, index: llvm.Operand, mask: Value) -> Value:
        kind = llvm.vector(mask.lanes, elements.memory_type(f, self.element))
        return self._widen(f, f.masked_load(kind, self.at(f, base, index), mask))

    def gather(self, f: llvm.Function, base: Value, index: Value, mask: Value) -> Value:
        """One element per lane from base[index]; zero off the mask."""
        kind = llvm.vector(mask.lanes, elements.memory_type(f, self.element))
        return self._widen(f, f.gather(kind, self.at(f, base, index), mask))

    def _widen(self, f: llvm.Function, raw: Value) -> Value:
        value = elements.widen(f, raw, self.element)
        have, want = value.element, self.accumulator
        if have == want:
            return value
        if llvm.is_float(have):
            return f.cast("fpext", value, want)
        signed = self.element.kind == "int"
        if llvm.is_float(want):
            return f.cast("sitofp" if signed else "uitofp", value, want)
        if llvm.bits_of(have) > llvm.bits_of(want):
            return f.cast("trunc", value, want)  # sums wrap in the end all the same
        return f.cast("sext" if signed else "zext", value, want)

    @property
    def plain(self) -> bool:
        """Whether memory holds what arithmetic is done in, so that no packing is needed for it."""
        memory = {"f32": "float", "f64": "double"}.get(self.element.name)
        if memory is None and self.element.is_integer and self.element.bits >= 8:
            memory = f"i{self.element.bits}"
        return memory == self.accumulator


def not_negative(size: int) -> Any:
    """The size, or 0 where it would be less."""
    return size if surely_at_most(0, size) else maximum(size, 0)


def constant_mask(lanes: int, count: int) -> Value:
    """The first `count` lanes."""
    return llvm.vector_constant("i1", [lane < count for lane in range(lanes)])


def unravel(f: llvm.Function, index: Value, sizes: Sequence[int]) -> list[Value]:
    """The coordinates of a linear index over `sizes`, outermost first; the first is not wrapped."""
    coordinates: list[Value] = []
    for number, size in enumerate(reversed(sizes)):
        last = number == len(sizes) - 1
        coordinates.append(index if last else f.urem(index, size))
        index = f.udiv(index, size)
    return coordinates[::-1]


def segment_offset(f: llvm.Function, index: Value, segments: Sequence[Segment]) -> Value:
    """The stored offset of a linear index over segments."""
    offset: Value = llvm.constant("i64", 0)
    for coordinate, segment in zip(
        unravel(f, index, [s.size for s in segments]), segments, strict=True
    ):
        offset = f.add(offset, f.mul(coordinate, segment.stride))
    return offset


@dataclass(frozen=True)
class ColumnGroup:
    """A column group: `vectors` registers wide; in the last one `tail` lanes are real (0: all).
    With `end`, the columns that the call decides, it is one register, of which those lanes are real
    that lie before it: at least one. In a tile of sums, rows are `pitch` elements apart (0: no
    gap)."""

    lanes: int
    vectors: int
    tail: int = 0
    pitch: int = 0
    end: Any = None

    @property
    def partial(self) -> bool:
        """Whether lanes of the last vector may be no columns."""
        return self.tail > 0 or self.end is not None

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @property
    def tile_stride(self) -> int:
        return self.pitch or self.columns

    def valid(self, f: llvm.Function, column: Value) -> llvm.Operand:
        """The real columns of the group that begins at `column`."""
        if self.end is not None:
            return f.min(f.sub(self.end, column), self.lanes)
        return self.columns - (self.lanes - self.tail if self.tail else 0)

    def mask(self, f: llvm.Function, column: Value) -> Value:
        """The real lanes of its last vector."""
        if self.end is not None:
            return f.tail_mask(f.sub(self.end, column), self.lanes)
        return constant_mask(self.lanes, self.tail)


@dataclass(frozen=True)
class ColumnGroups:
    """How columns are cut: `whole` groups as wide as `full`, then the rest. Of a number that the
    call decides, the rest are groups of one vector."""

    full: ColumnGroup
    columns: int

    @property
    def whole(self) -> int:
        return self.columns // self.full.columns

    @property
    def last(self) -> ColumnGroup | None:
        """A group of the rest."""
        lanes, columns = self.full.lanes, self.columns
        if isinstance(columns, SymbolicDim):
            return ColumnGroup(lanes, 1, end=columns)
        rest = columns % self.full.columns
        return ColumnGroup(lanes, -(-rest // lanes), rest % lanes) if rest else None

    @property
    def count(self) -> int:
        if isinstance(self.columns, SymbolicDim):
            rest = self.columns - self.whole * self.full.columns
            return self.whole - -rest // self.full.lanes
        return -(-self.columns // self.full.columns)

    @property
    def kinds(self) -> list[tuple[str, ColumnGroup]]:
        """The groups that there are, with a name for each."""
        found = [("full", self.full)] if self.whole != 0 else []
        return [*found, ("last", self.last)] if self.last is not None else found

    def first_column(self, f: llvm.Function, number: Value) -> Value:
        """Where group `number` begins."""
        if not isinstance(self.columns, SymbolicDim):
            return f.mul(number, self.full.columns)
        wider = f.mul(f.min(number, self.whole), self.full.columns - self.full.lanes)
        return f.add(f.mul(number, self.full.lanes), wider)

    def each_kind(
        self, f: llvm.Function, number: Value, emit: Callable[[str, ColumnGroup], Any]
    ) -> None:
        """Emits the code of the kind that group `number` has."""
        first, *others = self.kinds
        if not others:
            emit(*first)
            return
        branch = f.if_else(f.compare("ult", number, self.whole))
        with branch.then():
            emit(*first)
        with branch.otherwise():
            emit(*others[0])


def linear_strides(depth: Sequence[Segment | Depth], unit: int) -> tuple[int, ...]:
    """Strides of the depth's loops where steps of the whole depth lie `unit` apart."""
    strides: list[int] = []
    for loop in reversed(depth):
        strides.append(unit)
        unit *= loop.size
    return tuple(reversed(strides))


def each_index(
    f: llvm.Function,
    source: Sequence[Segment],
    target_strides: Sequence[int],
    body: Callable[[Value, Value], None],
    step: int = 1,
) -> None:
    """Calls body(source offset, target offset) in nested loops; the innermost by `step`, only
    over whole steps."""
    zero = llvm.constant("i64", 0)

    def nest(number: int, offset: Value, position: Value) -> None:
        if number == len(source):
            body(offset, position)
            return
        size, stride = source[number]
        by = step if number == len(source) - 1 else 1
        with f.for_range(0, size // by * by, by) as loop:
            nest(
                number + 1,
                f.add(offset, f.mul(loop.index, stride)),
                f.add(position, f.mul(loop.index, target_strides[number])),
            )

    nest(0, zero, zero)
