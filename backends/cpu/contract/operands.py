"""The two sides of a product: read where they lie, or copied into scratch in the order of use.

The micro-kernel reads `left` one element per row and `right` whole vectors of columns. A side
that lies so already is read in place (`Direct...`); another one is packed first: panels of the
right side per column group, blocks of the left side per row block. Packing also widens narrow
element types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ... import llvm
from ...llvm import elements
from .blocking import padded_depth
from .micro import Depth
from .views import Segment

Value = llvm.Value

STEPS_AHEAD = 16  # depth steps that a copy fetches ahead


@dataclass(frozen=True)
class Source:
    """A stored array: its number among the kernel's arguments, its elements, and where a product
    of given outer coordinates begins in it (in elements)."""

    argument: int
    element: Any
    accumulator: str  # LLVM type that arithmetic is done in
    offset: int
    outer: tuple[int, ...]  # stride per outer coordinate

    def base(self, f: llvm.Function, args: Value, outer: Sequence[Value]) -> Value:
        """Pointer to the first element of the product at `outer`."""
        pointer = f.load("ptr", f.pointer(args, self.argument, "ptr"))
        at: llvm.Value = llvm.constant("i64", self.offset)
        for coordinate, stride in zip(outer, self.outer, strict=True):
            at = f.add(at, f.mul(coordinate, stride))
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
class Group:
    """A column group: `vectors` registers wide; in the last one `tail` lanes are real (0: all).
    In a tile of sums, rows are `pitch` elements apart (0: no gap)."""

    lanes: int
    vectors: int
    tail: int = 0
    pitch: int = 0

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @property
    def tile_stride(self) -> int:
        return self.pitch or self.columns

    @property
    def valid(self) -> int:
        return self.columns - (self.lanes - self.tail if self.tail else 0)


class LeftSide:
    """Rows of the left operand, read in place: any strides, element by element."""

    packed = False

    def __init__(self, source: Source, row_stride: int, depth: Sequence[int]) -> None:
        self.source, self.row_stride = source, row_stride
        self.depth = tuple(depth)  # element stride per loop of the depth

    def rows(self, f: llvm.Function, args: Value, outer: Sequence[Value], row: Value) -> Value:
        """Pointer to the element of `row` at depth 0."""
        base = self.source.base(f, args, outer)
        return self.source.at(f, base, f.mul(row, self.row_stride))

    def pack(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        first: Value,
        last: Value,
        scratch: Value,
    ) -> None:
        """Copies rows [first, last) to scratch, `row_stride` apart; only if `packed`."""
        raise NotImplementedError

    def copied(self, depth: Sequence[int], most: int, lanes: int) -> LeftSide:
        """The same rows packed, at most `most` at a time."""
        loops = [Segment(*loop) for loop in zip(depth, self.depth, strict=True)]
        if self.row_stride == 1 and not (loops and loops[-1].stride == 1):
            return SideBySideLeft(self.source, loops, most, lanes)
        return PackedLeftSide(self.source, [Segment(0, self.row_stride)], loops, lanes)


class PackedLeftSide(LeftSide):
    """Rows copied into scratch, each as one contiguous run over the whole depth."""

    packed = True

    def __init__(
        self, source: Source, rows: Sequence[Segment], depth: Sequence[Segment], lanes: int = 1
    ) -> None:
        steps = math.prod(d.size for d in depth)
        pitch = padded_depth(steps, llvm.bits_of(source.accumulator) // 8)
        super().__init__(source, pitch, linear_strides(depth, 1))
        self._rows, self._loops = tuple(rows), tuple(depth)
        self._lanes = lanes if depth and depth[-1].stride == 1 else 1

    def pack(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        first: Value,
        last: Value,
        scratch: Value,
    ) -> None:
        base = self.source.base(f, args, outer)
        accumulator = self.source.accumulator
        with f.for_range(first, last) as loop:
            row = self.source.at(f, base, segment_offset(f, loop.index, self._rows))
            place = f.mul(f.sub(loop.index, first), self.row_stride)
            target = f.pointer(scratch, place, accumulator)

            def copy(
                lanes: int, offset: Value, position: Value, row: Value = row, to: Value = target
            ) -> None:
                value = self.source.load(f, row, offset, lanes)
                f.store(value, f.pointer(to, position, accumulator))

            each_index(f, self._loops, self.depth, partial(copy, self._lanes), self._lanes)
            rest = self._loops[-1].size % self._lanes if self._loops else 0
            if rest:
                start = self._loops[-1].size - rest
                end = [*self._loops[:-1], Segment(rest, 1)]

                def copy_rest(
                    offset: Value, position: Value, copy: Callable[..., None] = copy
                ) -> None:
                    copy(1, f.add(offset, start), f.add(position, start))  # noqa: B023

                each_index(f, end, self.depth, copy_rest)


class SideBySideLeft(LeftSide):
    """Rows that are neighbours in memory, copied as they lie: step by step, `most` rows apart."""

    packed = True

    def __init__(self, source: Source, depth: Sequence[Segment], most: int, lanes: int) -> None:
        super().__init__(source, 1, linear_strides(depth, most))
        self._loops, self._lanes = tuple(depth), lanes

    def pack(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        first: Value,
        last: Value,
        scratch: Value,
    ) -> None:
        base = self.source.at(f, self.source.base(f, args, outer), first)
        count = f.sub(last, first)
        lanes = self._lanes
        whole = f.mul(f.udiv(count, lanes), lanes)
        keep = f.tail_mask(f.sub(count, whole), lanes)

        def copy(offset: Value, position: Value) -> None:
            target = f.pointer(scratch, position, self.source.accumulator)
            with f.for_range(0, whole, lanes) as loop:
                value = self.source.load(f, base, f.add(offset, loop.index), lanes)
                f.store(value, f.pointer(target, loop.index, self.source.accumulator))
            rest = self.source.masked_load(f, base, f.add(offset, whole), keep)
            f.masked_store(rest, f.pointer(target, whole, self.source.accumulator), keep)

        each_index(f, self._loops, self.depth, copy)


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


class RightSide:
    """Columns of the right operand, packed by default: vectors of a group side by side, depth steps
    one group width apart."""

    packed = True
    by_vector = True  # whether packing costs little: whole vectors, no masks, no single elements
    block = 0  # columns that lie side by side, if read in place; 0: all

    def __init__(self, source: Source, depth: Sequence[Segment]) -> None:
        self.source, self._loops = source, tuple(depth)

    @property
    def depth_stride(self) -> int:
        """Elements from one step of the innermost loop to the next, where the operand lies."""
        steps = [loop.stride for loop in self._loops if loop.size > 1]
        return steps[-1] if steps else 0

    def copied(self) -> RightSide:
        """The same columns packed."""
        return self

    def strides(self, group: Group) -> tuple[int, ...]:
        """Element strides per loop of the depth, as the micro-kernel walks a group."""
        return linear_strides(self._loops, group.columns)

    def offsets(self, group: Group) -> tuple[int, ...]:
        """Element offsets of a group's vectors."""
        return tuple(v * group.lanes for v in range(group.vectors))

    def mask_tail(self, group: Group) -> bool:
        """Whether the micro-kernel must not read behind the last real column."""
        return False

    def open(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        column: Value,
        group: Group,
        scratch: Value,
    ) -> Value:
        """Pointer for the micro-kernel to the group that begins at `column`; packs if need be."""
        raise NotImplementedError


@dataclass(frozen=True)
class Columns:
    """Contiguous columns in blocks of `inner`, the blocks `block_stride` apart."""

    count: int
    stored: int  # with readable padding behind the last one
    inner: int
    block_stride: int

    @classmethod
    def of(cls, segments: Sequence[Segment], count: int, lanes: int) -> Columns | None:
        """None where vectors of `lanes` columns are not contiguous."""
        if not segments:
            return cls(count, 1, 1, 0)
        stored = math.prod(s.size for s in segments)
        if segments[-1].stride != 1 or len(segments) > 2:
            return None
        inner = segments[-1].size
        if len(segments) == 1:
            return cls(count, stored, stored, 0)
        return cls(count, stored, inner, segments[0].stride) if inner % lanes == 0 else None


class DirectRight(RightSide):
    """Contiguous columns, read in place."""

    packed = False

    def __init__(self, source: Source, depth: Sequence[Segment], columns: Columns) -> None:
        super().__init__(source, depth)
        self._columns = columns
        self.block = columns.inner if columns.inner < columns.stored else 0

    def copied(self) -> RightSide:
        return CopiedRight(self.source, self._loops, self._columns)

    def strides(self, group: Group) -> tuple[int, ...]:
        return tuple(loop.stride for loop in self._loops)

    def offsets(self, group: Group) -> tuple[int, ...]:
        inner, stride = self._columns.inner, self._columns.block_stride
        starts = super().offsets(group)
        if inner >= group.columns:
            return starts
        return tuple(s // inner * stride + s % inner for s in starts)

    def mask_tail(self, group: Group) -> bool:
        first = self._columns.count - group.valid
        return group.tail > 0 and first + group.columns > self._columns.stored

    def open(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        column: Value,
        group: Group,
        scratch: Value,
    ) -> Value:
        base = self.source.base(f, args, outer)
        if self._columns.inner < self._columns.stored:
            block = f.mul(f.udiv(column, self._columns.inner), self._columns.block_stride)
            column = f.add(block, f.urem(column, self._columns.inner))
        return self.source.at(f, base, column)


class CopiedRight(RightSide):
    """Contiguous columns whose depth steps lie far apart: copied vector by vector."""

    def __init__(self, source: Source, depth: Sequence[Segment], columns: Columns) -> None:
        super().__init__(source, depth)
        self._direct = DirectRight(source, depth, columns)
        self.block = self._direct.block

    def open(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        column: Value,
        group: Group,
        scratch: Value,
    ) -> Value:
        base = self._direct.open(f, args, outer, column, group, scratch)
        masked = self._direct.mask_tail(group)
        accumulator = self.source.accumulator
        starts = self._direct.offsets(group)
        apart = self._loops[-1].stride if self._loops else 0
        ahead = STEPS_AHEAD * apart if abs(apart) > group.columns else 0

        def copy(offset: Value, position: Value) -> None:
            for start in starts if ahead else ():
                # Hardware follows no steps that are as far apart as pages.
                f.prefetch(self.source.at(f, base, f.add(offset, start + ahead)))
            for number, start in enumerate(starts):
                at = f.add(offset, start)
                if masked and number == group.vectors - 1:
                    mask = constant_mask(group.lanes, group.tail)
                    value = self.source.masked_load(f, base, at, mask)
                else:
                    value = self.source.load(f, base, at, group.lanes)
                place = f.add(position, number * group.lanes)
                f.store(value, f.pointer(scratch, place, accumulator))

        each_index(f, self._loops, self.strides(group), copy)
        return scratch


class TransposedRight(RightSide):
    """Columns `stride` apart whose innermost depth is contiguous: transposed in registers."""

    def __init__(self, source: Source, depth: Sequence[Segment], stride: int) -> None:
        super().__init__(source, depth)
        self._stride = stride

    def open(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        column: Value,
        group: Group,
        scratch: Value,
    ) -> Value:
        base = self.source.at(f, self.source.base(f, args, outer), f.mul(column, self._stride))
        strides = self.strides(group)
        inner = self._loops[-1].size
        lanes = group.lanes

        def blocks(offset: Value, position: Value, steps: int) -> None:
            whole = group.vectors - (1 if group.tail else 0)
            with f.for_range(0, whole) as loop:
                first = f.mul(loop.index, lanes)
                self._block(
                    f, base, offset, f.add(position, first), first, lanes, group, steps, scratch
                )
            if group.tail:
                first = llvm.constant("i64", whole * lanes)
                place = f.add(position, first)
                self._block(f, base, offset, place, first, group.tail, group, steps, scratch)

        each_index(f, self._loops, strides, lambda o, p: blocks(o, p, lanes), lanes)
        rest = inner % lanes
        if rest:
            start = inner - rest

            def remainder(offset: Value, position: Value) -> None:
                blocks(f.add(offset, start), f.add(position, start * group.columns), rest)

            each_index(f, self._loops[:-1], strides[:-1], remainder)
        return scratch

    def _block(
        self,
        f: llvm.Function,
        base: Value,
        offset: Value,
        position: Value,
        first: Value,
        columns: int,
        group: Group,
        steps: int,
        scratch: Value,
    ) -> None:
        """`steps` depth steps of `columns` columns, from column `first` of the group on."""
        lanes, accumulator = group.lanes, self.source.accumulator
        start = f.add(offset, f.mul(first, self._stride))
        vectors = []
        for column in range(lanes):
            at = f.add(start, column * self._stride)
            if column >= columns:
                vectors.append(llvm.constant(llvm.vector(lanes, accumulator), 0))
            elif steps < lanes:
                mask = constant_mask(lanes, steps)
                vectors.append(self.source.masked_load(f, base, at, mask))
            else:
                vectors.append(self.source.load(f, base, at, lanes))
        for step, vector in enumerate(transpose(f, vectors)[:steps]):
            place = f.add(position, step * group.columns)
            f.store(vector, f.pointer(scratch, place, accumulator))


def transpose(f: llvm.Function, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square block of registers."""
    count = len(rows)
    block = list(rows)
    half = count // 2
    while half:
        low = [j if not j & half else count + j - half for j in range(count)]
        high = [j + half if not j & half else count + j for j in range(count)]
        for i in range(count):
            if not i & half:
                a, b = block[i], block[i + half]
                block[i], block[i + half] = f.shuffle(a, b, low), f.shuffle(a, b, high)
        half //= 2
    return block


class GatheredRight(RightSide):
    """Columns anywhere: copied element by element, column by column."""

    by_vector = False

    def __init__(
        self, source: Source, depth: Sequence[Segment], columns: Sequence[Segment], count: int
    ) -> None:
        super().__init__(source, depth)
        self._columns, self._count = tuple(columns), count

    def open(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        column: Value,
        group: Group,
        scratch: Value,
    ) -> Value:
        base = self.source.base(f, args, outer)
        accumulator = self.source.accumulator
        with f.for_range(0, group.columns) as loop:
            # Columns behind the last one repeat it: what they hold is never stored.
            index = f.min(f.add(column, loop.index), self._count - 1)
            start = self.source.at(f, base, segment_offset(f, index, self._columns))
            target = f.pointer(scratch, loop.index, accumulator)

            def copy(
                offset: Value, position: Value, start: Value = start, target: Value = target
            ) -> None:
                value = self.source.load(f, start, offset)
                f.store(value, f.pointer(target, position, accumulator))

            each_index(f, self._loops, self.strides(group), copy)
        return scratch
