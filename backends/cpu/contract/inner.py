"""Products of few rows with columns that are contiguous along the depth: inner products.

Vectors run along the depth and are added up at the end. Columns are read as they lie: this is what
a one-token step does with a weight stored [columns, depth], and attention with its keys. Or they
are windows of an image, whose few output features are the rows: vectors of features would be mostly
empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ....hlo.deciding import at_hint
from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment
from ... import llvm
from .epilogue import Epilogue
from .left import LeftSide
from .lines import WindowLines
from .operands import ColumnGroup, ColumnGroups, OperandArray, constant_mask, unravel

Value = llvm.Value

MOST_ROWS = 4
_COLUMNS = 4  # at a time
_MOST_COLUMNS = 8  # of those that are near
_VECTORS = 2  # of columns in a group
_PACKED_COLUMNS = 128  # of a tile, about
_MOST_PACKED = 1 << 18  # bytes


@dataclass(frozen=True)
class InnerProducts:
    """What to compute. depth: (size, left and right stride), the last of strides 1; left: where
    rows are, and the stride of one; right: columns, as a side whose rows they are."""

    lanes: int
    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: tuple[tuple[int, int, int], ...]
    left: tuple[OperandArray, int]
    right: LeftSide
    epilogue: Epilogue
    registers: int

    def at_once(self, width: int) -> int:
        """Columns, of a group of `width`, whose sums are in registers with a vector of each row."""
        near = self.right.packed and not isinstance(self.rows, SymbolicDim)
        fitting = near and self.rows * (_MOST_COLUMNS + 1) + 1 <= self.registers
        most = _MOST_COLUMNS if fitting and width % _MOST_COLUMNS == 0 else _COLUMNS
        return min(width, most)

    def groups_of_tile(self, width: int) -> int:
        """Column groups of a tile: some where their columns are packed together."""
        if not self.right.packed:
            return 1
        unit = 1
        if isinstance(self.right, WindowLines):
            unit = math.lcm(self.right.chunk, width) // width
        fitting = min(_PACKED_COLUMNS // (unit * width), _MOST_PACKED // self.scratch(unit * width))
        return unit * max(1, fitting)

    def scratch(self, columns: int) -> int:
        """Bytes of so many columns, packed."""
        side = self.right
        if not side.packed:
            return 0
        if isinstance(side, WindowLines):
            return side.scratch(columns)
        return columns * side.row_stride * llvm.bits_of(side.source.accumulator) // 8


def emit_inner_products(module: llvm.Module, name: str, work: InnerProducts) -> tuple[int, int]:
    """Defines the kernel; its tiles and scratch bytes."""
    lanes, outer, rows, columns = work.lanes, work.outer, work.rows, work.columns
    epilogue = work.epilogue
    vectors = 1 if isinstance(columns, SymbolicDim) else min(_VECTORS, -(-columns // lanes))
    width = vectors * lanes
    parts = ColumnGroups(ColumnGroup(lanes, vectors), columns)
    per_tile = work.groups_of_tile(width)
    tiles = -(-parts.count // per_tile)
    most = MOST_ROWS if isinstance(rows, SymbolicDim) else rows
    f = module.kernel(name)
    args, begin, end, scratch = f.arguments
    tile = f.alloca(work.left[0].accumulator, most * width)

    def one_group(number: Value, coordinates: Sequence[Value], body: _Body) -> None:
        column = parts.first_column(f, number)

        def some_rows(row: Value, count: int) -> None:
            body.emit(f, args, coordinates, row, count, column, tile)
            finished = llvm.constant("i64", count)

            def finish(_: str, group: ColumnGroup) -> None:
                # Lanes of the last group that do not exist are masked; the tile keeps its width.
                group = replace(group, pitch=width)
                epilogue.emit(f, args, coordinates, row, column, finished, tile, group)

            parts.each_kind(f, number, finish)

        if isinstance(rows, SymbolicDim):
            with f.for_range(0, rows, MOST_ROWS) as some:
                bodies = {n: partial(some_rows, some.index, n) for n in range(1, MOST_ROWS + 1)}
                f.switch(f.min(f.sub(rows, some.index), MOST_ROWS), bodies)
        else:
            some_rows(llvm.constant("i64", 0), rows)

    with f.for_range(begin, end) as loop:
        number, flat = f.urem(loop.index, tiles), f.udiv(loop.index, tiles)
        coordinates = unravel(f, flat, outer)
        if work.right.packed:
            start = f.mul(number, per_tile)
            stop = f.min(f.add(start, per_tile), parts.count)
            first, last = f.mul(start, width), f.min(f.mul(stop, width), columns)
            work.right.pack(f, args, coordinates, first, last, scratch)
            with f.for_range(start, stop, at_least_once=True) as some:
                one_group(some.index, coordinates, _Body(work, width, (scratch, first)))
        else:
            one_group(number, coordinates, _Body(work, width))
    f.ret()
    return math.prod(outer) * tiles, work.scratch(per_tile * width)


class _Body:
    """Sums of a column group of `width` columns; `packed`: where columns are that were packed, and
    the first of them."""

    def __init__(
        self, work: InnerProducts, width: int, packed: tuple[Value, Value] | None = None
    ) -> None:
        self.lanes, self.columns = work.lanes, work.columns
        self.depth, self.width = list(work.depth), width
        self.left, self.row_stride = work.left
        self.side, self.right = work.right, work.right.source
        self.at_once, self.packed = work.at_once(width), packed

    def emit(
        self,
        f: llvm.Function,
        args: Value,
        outer: Sequence[Value],
        row: Value,
        count: int,
        column: Value,
        tile: Value,
    ) -> None:
        """tile[i, j] = sum over depth, for `count` rows from `row` on and the `width` columns from
        `column` on."""
        left = self.left.at(f, self.left.base(f, args, outer), f.mul(row, self.row_stride))
        right = self.right.base(f, args, outer)
        accumulator, at_once = self.left.accumulator, self.at_once
        with f.for_range(0, self.width, at_once) as loop:
            first = f.add(column, loop.index)
            # Columns behind the last one repeat it; they are never stored.
            numbers = [f.min(f.add(first, i), self.columns - 1) for i in range(at_once)]
            places = [self._place(f, right, number) for number in numbers]
            kind = llvm.vector(self.lanes, accumulator)
            zeros = [llvm.constant(kind, 0)] * (count * at_once)
            zero = llvm.constant("i64", 0)
            sums = self._nest(f, self.depth, left, places, zero, zero, zeros)
            for line in range(count):
                totals = totals_of(f, sums[line * at_once : (line + 1) * at_once])
                place = f.add(loop.index, line * self.width)
                f.store(totals, f.pointer(tile, place, accumulator))

    def _place(self, f: llvm.Function, right: Value, column: Value) -> Value:
        """Where a column begins."""
        if self.packed is None:
            return self.right.at(f, right, f.mul(column, self.side.row_stride))
        scratch, first = self.packed
        at = self.side.place(f, f.sub(column, first))
        return f.pointer(scratch, at, self.right.accumulator)

    def _nest(
        self,
        f: llvm.Function,
        depth: list[tuple[int, int, int]],
        left: Value,
        right: Sequence[Value],
        left_at: Value,
        right_at: Value,
        sums: Sequence[Value],
    ) -> Sequence[Value]:
        size, a, b = depth[0]
        if len(depth) > 1:
            with f.for_range(0, size, 1, sums) as loop:
                x = f.add(left_at, f.mul(loop.index, a))
                y = f.add(right_at, f.mul(loop.index, b))
                loop.carry(*self._nest(f, depth[1:], left, right, x, y, loop.carried))
            return loop.results
        whole = size // self.lanes * self.lanes
        with f.for_range(0, whole, self.lanes, sums) as loop:
            x, y = f.add(left_at, loop.index), f.add(right_at, loop.index)
            loop.carry(*self._step(f, left, right, x, y, loop.carried, None))
        sums = loop.results
        if isinstance(size, SymbolicDim):
            with f.for_range(whole, size, self.lanes, sums) as loop:  # at most once
                x, y = f.add(left_at, whole), f.add(right_at, whole)
                mask = f.tail_mask(f.constant("i64", size - whole), self.lanes)
                loop.carry(*self._step(f, left, right, x, y, loop.carried, mask))
            sums = loop.results
        elif whole < size:
            x, y = f.add(left_at, whole), f.add(right_at, whole)
            mask = constant_mask(self.lanes, size - whole)
            sums = self._step(f, left, right, x, y, sums, mask)
        return sums

    def _step(
        self,
        f: llvm.Function,
        left: Value,
        right: Sequence[Value],
        left_at: Value,
        right_at: Value,
        sums: Sequence[Value],
        mask: Value | None,
    ) -> list[Value]:
        def load(source: OperandArray, base: Value, at: Value) -> Value:
            if mask is not None:
                return source.masked_load(f, base, at, mask)
            return source.load(f, base, at, self.lanes)

        count = len(right)
        values = [
            load(self.left, left, f.add(left_at, row * self.row_stride))
            for row in range(len(sums) // count)
        ]
        updated = list(sums)
        for i, place in enumerate(right):
            column = load(self.right, place, right_at)
            for row, value in enumerate(values):
                at = row * count + i
                updated[at] = f.fma(value, column, sums[at])
        return updated


def totals_of(f: llvm.Function, vectors: Sequence[Value]) -> Value:
    """The sums of the lanes of each of `vectors`, a power of two of them, added in halves."""
    found, part = list(vectors), vectors[0].lanes  # lanes that belong to one sum
    while part > 1:
        part //= 2
        pairs = [(found[0], None)]
        if len(found) > 1:
            pairs = list(zip(found[::2], found[1::2], strict=True))
        lanes = found[0].lanes * min(2, len(found))
        low = [first + lane for first in range(0, lanes, 2 * part) for lane in range(part)]
        high = [lane + part for lane in low]
        found = [f.add(f.shuffle(a, b, low), f.shuffle(a, b, high)) for a, b in pairs]
    while len(found) > 1:
        found = [f.shuffle(a, b, range(2 * a.lanes)) for a, b in
                 zip(found[::2], found[1::2], strict=True)]  # fmt: skip
    return found[0]


def fits_windows(rows: int, inputs: int, lanes: int) -> bool:
    """Whether inner products with windows of so many features beat vectors of `rows` features."""
    known = not isinstance(rows, SymbolicDim) and not isinstance(inputs, SymbolicDim)
    return known and rows <= MOST_ROWS and 2 * rows <= lanes and inputs >= lanes


def applies(
    rows: int, columns: Sequence[Segment], depth: Sequence[tuple[int, int, int]], lanes: int
) -> bool:
    """Whether inner products beat bringing the right side into panels."""
    return (
        0 < at_hint(rows) <= MOST_ROWS
        and len(columns) == 1
        and columns[0].stride != 1
        and len(depth) > 0
        and depth[-1][1:] == (1, 1)
        and at_hint(depth[-1][0]) >= 2 * lanes
    )
