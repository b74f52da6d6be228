"""The sides of a product of narrow numbers, as `grouped` reads them.

Left rows are contiguous along the depth, `pitch` bytes apart; the right side holds, for each group
of four bytes along the depth, the columns of a column group side by side. Both may be read behind
the last step of the depth, up to `depth` bytes; one of them holds zeros there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....hlo.symbols import SymbolicDim
from ....hlo.types import I8, I16
from ....hlo.views import Segment, merge
from ... import llvm
from .left import LeftSide, PackedLeftSide
from .lines import WindowLines, chunks
from .operands import (
    ColumnGroup,
    OperandArray,
    constant_mask,
    each_index,
    linear_strides,
    segment_offset,
)
from .right import CopiedRight, GatheredRight, RightSide, TransposedRight, transpose
from .runs import WindowRuns
from .window import WindowLeft

Value = llvm.Value

_LANES = 16
_LINE = 64
_SETS, _WAYS = 4096, 8  # bytes that a way of a first-level cache holds, and ways


def _raw(source: OperandArray) -> str:
    """The LLVM integer type of a stored element."""
    return f"i{source.element.bits}"


def raw_side(side: Any) -> Any:
    """The same side of the same bits as integers, so that packing it copies them."""
    bits = side.source.element.bits
    raw = copy.copy(side)
    raw.source = replace(side.source, element=I8 if bits == 8 else I16, accumulator=f"i{bits}")
    if isinstance(side, CopiedRight):
        raw._direct = raw_side(side._direct)
    return raw


def _odd_lines(size: int) -> int:
    """At least `size`, an odd number of cache lines: rows then fall into different cache sets."""
    lines = -(-size // _LINE)
    return (lines + (lines % 2 == 0)) * _LINE


class LeftRows:
    """Rows read where they lie: contiguous along a depth that needs no padding."""

    packed = False
    panel = 0  # rows of a block of sums, where the side decides
    panels = 1  # that a block of rows has a multiple of

    def __init__(self, side: LeftSide, row_stride: int, element_bytes: int) -> None:
        self.side, self._stride = side, row_stride
        self.pitch = row_stride * element_bytes

    def bytes_of(self, rows: int) -> int:
        """What products with `rows` neighbouring rows read."""
        return rows * self.pitch

    def runs(self, depth: int) -> tuple[Segment, ...]:
        """Loops over the depth in bytes; the innermost runs are contiguous."""
        return (Segment(depth, 1),)

    def place(self, f: llvm.Function, row: Value) -> Value:
        """Where a packed row begins in scratch, in bytes; `row` counts from the first packed."""
        return f.add(f.mul(row, self.pitch), self.offset)

    @property
    def offset(self) -> int:
        """Where the first packed row begins in scratch."""
        return 0

    def scratch(self, rows: int) -> int:
        """Bytes that `rows` packed rows take."""
        return rows * self.pitch if self.packed else 0

    def rows(self, f: llvm.Function, args: Value, outer: Sequence[Value], row: Value) -> Value:
        """Pointer to the first element of a row."""
        source = self.side.source
        return source.at(f, source.base(f, args, outer), f.mul(row, self._stride))

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        """Copies rows [first, last) to scratch, `pitch` apart; only if `packed`."""
        raise NotImplementedError


class _CopiedRows(LeftRows):
    """Rows copied element by element, or vector by vector where they are contiguous."""

    packed = True

    def __init__(
        self, side: LeftSide, rows: Sequence[Segment], loops: Sequence[Segment], steps: int,
        depth: int,
    ) -> None:  # fmt: skip
        super().__init__(side, 0, 1)
        self._rows, self._loops = tuple(rows), tuple(loops) or (Segment(1, 1),)
        self._steps, self._depth, self.pitch = steps, depth, _odd_lines(depth)

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        source = self.side.source
        kind = _raw(source)
        size = source.element.bits // 8
        base = source.base(f, args, outer)
        *loops, run = self._loops
        strides = linear_strides(self._loops, 1)
        lanes = _LINE // size if run.stride == 1 else 1
        whole = run.size // lanes * lanes
        with f.for_range(first, last) as loop:
            row = source.at(f, base, segment_offset(f, loop.index, self._rows))
            target = f.pointer(scratch, f.mul(f.sub(loop.index, first), self.pitch), "i8")
            if self._depth > self._steps * size:
                # Zeros before the values: they may be whole vectors, which the values overwrite.
                start = self._steps * size
                f.fill(f.pointer(target, start, "i8"), 0, self._depth - start)

            def copy(
                offset: Value, position: Value, row: Value = row, target: Value = target
            ) -> None:
                with f.for_range(0, whole, lanes) as inner:
                    at = f.pointer(row, f.add(offset, f.mul(inner.index, run.stride)), kind)
                    value = f.load(llvm.vector(lanes, kind), at)
                    f.store(value, f.pointer(target, f.add(position, inner.index), kind))
                if whole < run.size:
                    mask = constant_mask(lanes, run.size - whole)
                    at = f.pointer(row, f.add(offset, whole), kind)
                    value = f.masked_load(llvm.vector(lanes, kind), at, mask)
                    f.masked_store(value, f.pointer(target, f.add(position, whole), kind), mask)

            each_index(f, loops, strides[:-1], copy)


class _PackedRows(LeftRows):
    """Rows that the side itself packs, with nothing to add behind their last step."""

    packed = True

    def __init__(self, side: LeftSide) -> None:
        raw = side if side.source.plain else raw_side(side)
        super().__init__(raw, side.row_stride, side.source.element.bits // 8)

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        self.side.pack(f, args, outer, first, last, scratch)


class _LineRows(_PackedRows):
    """Rows of lines of pixels that neighbours share."""

    def __init__(self, side: WindowLines, group: int) -> None:
        super().__init__(side)
        self.panel, self.panels = side.panel, side.chunk // side.panel
        self._lines, self._size = side, 4 // group

    def scratch(self, rows: int) -> int:
        return self._lines.scratch(rows)

    def bytes_of(self, rows: int) -> int:
        return math.ceil(rows * self._lines.row_bytes)

    def runs(self, depth: int) -> tuple[Segment, ...]:
        loops = zip(self._lines.kernel, self._lines.depth, strict=True)
        *outer, run = merge([Segment(size, stride) for size, stride in loops])
        return (
            *(Segment(size, stride * self._size) for size, stride in outer),
            Segment(run.size * self._size, 1),
        )

    def place(self, f: llvm.Function, row: Value) -> Value:
        return f.mul(self._lines.place(f, row), self._size)


class _PaddedRows(LeftRows):
    """Rows that the side itself packs, some at a time, then copied with zeros behind."""

    packed = True
    _at_once = 8

    def __init__(self, side: LeftSide, steps: int, depth: int) -> None:
        super().__init__(raw_side(side), 0, 1)
        self._steps, self._depth, self.pitch = steps, depth, _odd_lines(depth)

    @property
    def offset(self) -> int:
        size = self.side.source.element.bits // 8
        return -(-self._at_once * self.side.row_stride * size // _LINE) * _LINE

    def scratch(self, rows: int) -> int:
        return rows * self.pitch + self.offset

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        side = self.side
        kind = side.source.accumulator
        done = self._steps * llvm.bits_of(kind) // 8
        with f.for_range(first, last, self._at_once) as block:
            end = f.min(f.add(block.index, self._at_once), last)
            side.pack(f, args, outer, block.index, end, scratch)
            with f.for_range(block.index, end) as loop:
                start = f.mul(f.sub(loop.index, block.index), side.row_stride)
                row = f.pointer(scratch, start, kind)
                target = f.mul(f.sub(loop.index, first), self.pitch)
                place = f.pointer(scratch, f.add(target, self.offset), "i8")
                f.copy(place, row, done)
                f.fill(f.pointer(place, done, "i8"), 0, self._depth - done)


def _crowded(pitch: int, rows: int) -> bool:
    """Whether a first-level cache cannot hold a line of each of `rows` rows `pitch` apart."""
    known = not isinstance(pitch, SymbolicDim)
    return known and rows * math.gcd(pitch, _SETS) > _WAYS * _SETS


def left_rows(
    side: LeftSide, steps: int, group: int, depth: int, most: int = 0, reused: bool = False
) -> LeftRows | None:
    """How the left side's rows come to be contiguous runs of `depth` bytes; None if they cannot.

    most: rows that are read side by side, word by word, at most; 0: lines of the cache are read
    whole. Rows that are `reused` are copied if they crowd a cache in place.
    """
    size = 4 // group
    if isinstance(side, WindowLeft):
        side = _windows(side, group, most)
        if isinstance(side, WindowLines):
            return _LineRows(side, group)
    if isinstance(side, WindowRuns) and side.written * size >= depth:
        return _PackedRows(side)
    if not isinstance(side, PackedLeftSide):
        contiguous = not side.depth or side.depth[-1] in (0, 1)
        if not (side.packed and contiguous):
            return None
        if steps * size == depth:
            return _PackedRows(side)
        return _PaddedRows(side, steps, depth)
    rows, loops = merge(side._rows), merge(side._loops)
    if len(rows) <= 1 and loops == (Segment(steps, 1),) and steps * size == depth:
        found = LeftRows(side, rows[0].stride if rows else 0, size)
        if not (reused and _crowded(found.pitch, most)):
            return found
    return _CopiedRows(side, side._rows, loops, steps, depth)


def _windows(side: WindowLeft, group: int, most: int) -> LeftSide:
    """Windows whose elements are moved as integers, whole vectors at a time: lines that neighbours
    share, where that copies less."""
    source, lanes = raw_side(side).source, _LINE * group // 4
    inputs = source, side.features, side.positions, side.walk
    size = side.features.size
    even = not isinstance(size, SymbolicDim) and size % group == 0
    cut = chunks(*inputs, most) if most and even else None
    return WindowLeft(*inputs, lanes) if cut is None else WindowLines(*inputs, cut)


class RightGroups:
    """Columns brought into groups from the rows of columns that any right side gives."""

    stored = False  # whether the columns are read in place
    even = True  # whether groups of the depth lie one `pitch` apart

    def __init__(self, side: RightSide, steps: int, group: int, depth: int) -> None:
        self.side, self.steps, self.group, self.depth = side, steps, group, depth

    def runs(self, columns: int) -> tuple[Segment, ...]:
        """Loops over the groups of the depth, and bytes from one to the next."""
        return (Segment(self.depth // 4, 4 * columns),)

    def pitch(self, group: ColumnGroup) -> int:
        """Bytes from one group of depth steps to the next."""
        return 4 * group.columns

    def scratch(self, columns: int) -> int:
        """Bytes for a column group."""
        return self.depth * columns + 4 // self.group * self.steps * columns

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        """Pointer to the column group that begins at `column`."""
        wide = f.pointer(scratch, self.depth * group.columns, "i8")
        side = raw_side(self.side)
        element = side.source.accumulator
        opened = side.open(f, args, outer, column, group, wide)
        kind = llvm.vector(_LANES, element)
        pitch, whole = group.columns, self.steps // self.group

        def merged(first: Value, count: int, target: Value) -> None:
            for vector in range(group.vectors):
                start = vector * _LANES
                parts = [
                    f.load(kind, f.pointer(opened, f.add(first, k * pitch + start), element))
                    for k in range(count)
                ]
                f.store(
                    merged_groups(f, parts, self.group), f.pointer(target, vector * _LINE, "i8")
                )

        with f.for_range(0, whole) as loop:
            target = f.pointer(scratch, f.mul(loop.index, 4 * pitch), "i8")
            merged(f.mul(loop.index, self.group * pitch), self.group, target)
        rest = self.steps % self.group
        if rest:
            target = f.pointer(scratch, whole * 4 * pitch, "i8")
            merged(llvm.constant("i64", whole * self.group * pitch), rest, target)
        self.clear(f, scratch, group)
        return scratch

    def clear(self, f: llvm.Function, scratch: Value, group: ColumnGroup) -> None:
        """Zeros behind the last step: what scratch holds there could be no number."""
        done = -(-self.steps // self.group) * 4
        if done < self.depth:
            start = f.pointer(scratch, done * group.columns, "i8")
            f.fill(start, 0, (self.depth - done) * group.columns)


def merged_groups(f: llvm.Function, parts: Sequence[Value], group: int) -> Value:
    """Vectors of consecutive depth steps as one vector of groups."""
    total = None
    for number, part in enumerate(parts):
        word = f.shl(f.cast("zext", part, "i32"), number * 32 // group)
        total = word if total is None else f.lor(total, word)
    assert total is not None
    return total


class _TransposedGroups(RightGroups):
    """Columns that are contiguous along the depth: groups of four bytes are transposed."""

    def scratch(self, columns: int) -> int:
        return self.depth * columns

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        assert isinstance(self.side, TransposedRight)
        source, stride = self.side.source, self.side._stride
        size = 4 // self.group
        words = self.steps // self.group
        base = source.at(f, source.base(f, args, outer), f.mul(column, stride))
        kind = llvm.vector(_LANES, "i32")

        def block(word: Value, count: int) -> None:
            for vector in range(group.vectors):
                real = group.tail if group.tail and vector == group.vectors - 1 else _LANES
                rows: list[Value] = []
                for number in range(_LANES):
                    start = (vector * _LANES + number) * stride * size
                    at = f.pointer(base, f.add(f.mul(word, 4), start), "i8")
                    if number >= real:
                        rows.append(llvm.constant(kind, 0))
                    elif count < _LANES:
                        rows.append(f.masked_load(kind, at, constant_mask(_LANES, count)))
                    else:
                        rows.append(f.load(kind, at, align=size))
                for number, values in enumerate(transpose(f, rows)[:count]):
                    place = f.mul(f.add(word, number), 4 * group.columns)
                    f.store(values, f.pointer(scratch, f.add(place, vector * _LINE), "i8"))

        with f.for_range(0, words // _LANES * _LANES, _LANES) as loop:
            block(loop.index, _LANES)
        if words % _LANES:
            block(llvm.constant("i64", words // _LANES * _LANES), words % _LANES)
        self.clear(f, scratch, group)
        return scratch


class _StoredGroups(RightGroups):
    """A weight stored as [panels, depth / group, width, group], read in place: all of its depth,
    or the steps that `loops` walk."""

    stored = True

    def __init__(
        self, side: RightSide, steps: int, group: int, depth: int, panel_stride: int, width: int,
        loops: Sequence[Segment],
    ) -> None:  # fmt: skip
        super().__init__(side, steps, group, depth)
        self._panel_stride, self._width, self._loops = panel_stride, width, loops
        self.even = len(loops) == 1

    def runs(self, columns: int) -> tuple[Segment, ...]:
        if self.even:  # behind the last step as well
            return super().runs(self._width)
        size = 4 // self.group
        return tuple(Segment(loop.size, loop.stride * size) for loop in self._loops)

    def pitch(self, group: ColumnGroup) -> int:
        return 4 * self._width

    def scratch(self, columns: int) -> int:
        return 0

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        source = self.side.source
        panel = f.udiv(column, self._width)
        return source.at(f, source.base(f, args, outer), f.mul(panel, self._panel_stride))


def _stored_groups(
    side: RightSide, steps: int, group: int, depth: int, width: int
) -> RightGroups | None:
    """The side as a weight that was packed for groups; None if it does not lie so."""
    if not isinstance(side, GatheredRight) or steps % group:
        return None
    panels = [segment for segment in side._columns if segment.size > 1]
    if not panels or panels[-1] != (width, group) or len(panels) > 2:
        return None
    *loops, inner = side._loops or (Segment(1, 0),)
    merged = merge(loops)
    if inner != (group, 1) or not merged or merged[-1].stride != group * width:
        return None
    stride = panels[0].stride if len(panels) == 2 else 0
    padded = steps * 4 != group * depth
    if padded and (len(merged) > 1 or stride != group * depth // 4 * width):
        return None  # panels end with the last step: reading on would leave the weight
    return _StoredGroups(side, steps, group, depth, stride, width, merged)


def right_groups(side: RightSide, steps: int, group: int, depth: int, width: int) -> RightGroups:
    """How the right side's columns come to lie in groups; `width` is a column group's."""
    stored = _stored_groups(side, steps, group, depth, width)
    if stored is not None:
        return stored
    transposed = isinstance(side, TransposedRight) and steps % group == 0
    if transposed and merge(side._loops) == (Segment(steps, 1),):
        return _TransposedGroups(side, steps, group, depth)
    return RightGroups(side, steps, group, depth)
