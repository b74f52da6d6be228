"""Products of few rows with columns that are contiguous along the depth: inner products.

Each column is read once, as it lies; vectors run along the depth and are added up at the end.
This is what a one-token step does with a weight stored [columns, depth], and attention with its
keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ....hlo.deciding import at_hint
from ....hlo.symbols import SymbolicDim
from ... import llvm
from .epilogue import Epilogue
from .operands import ColumnGroup, ColumnGroups, OperandArray, constant_mask, unravel
from .views import Segment

Value = llvm.Value

MOST_ROWS = 4
_COLUMNS = 4  # at a time
_VECTORS = 2  # of columns in a tile


@dataclass(frozen=True)
class InnerProducts:
    """What to compute. depth: (size, left and right stride), the last of strides 1; left and
    right: where they are, and the stride of a row or column."""

    lanes: int
    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: tuple[tuple[int, int, int], ...]
    left: tuple[OperandArray, int]
    right: tuple[OperandArray, int]
    epilogue: Epilogue


def emit_inner_products(module: llvm.Module, name: str, work: InnerProducts) -> tuple[int, int]:
    """Defines the kernel; its tiles and scratch bytes."""
    lanes, outer, rows, columns = work.lanes, work.outer, work.rows, work.columns
    epilogue = work.epilogue
    vectors = 1 if isinstance(columns, SymbolicDim) else min(_VECTORS, -(-columns // lanes))
    width = vectors * lanes
    parts = ColumnGroups(ColumnGroup(lanes, vectors), columns)
    groups = parts.count
    body = _Body(lanes, columns, list(work.depth), work.left, work.right, width)
    most = MOST_ROWS if isinstance(rows, SymbolicDim) else rows
    f = module.kernel(name)
    args, begin, end, _ = f.arguments
    tile = f.alloca(work.left[0].accumulator, most * width)
    with f.for_range(begin, end) as loop:
        number, flat = f.urem(loop.index, groups), f.udiv(loop.index, groups)
        coordinates = unravel(f, flat, outer)
        column = parts.first_column(f, number)

        def some_rows(row: Value, count: int) -> None:
            body.emit(f, args, coordinates, row, count, column, tile)  # noqa: B023
            finished = llvm.constant("i64", count)

            def finish(_: str, group: ColumnGroup) -> None:
                # Lanes of the last group that do not exist are masked; the tile keeps its width.
                group = replace(group, pitch=width)
                epilogue.emit(f, args, coordinates, row, column, finished, tile, group)  # noqa: B023

            parts.each_kind(f, number, finish)  # noqa: B023

        if isinstance(rows, SymbolicDim):
            with f.for_range(0, rows, MOST_ROWS) as some:
                bodies = {n: partial(some_rows, some.index, n) for n in range(1, MOST_ROWS + 1)}
                f.switch(f.min(f.sub(rows, some.index), MOST_ROWS), bodies)
        else:
            some_rows(llvm.constant("i64", 0), rows)
    f.ret()
    return math.prod(outer) * groups, 0


class _Body:
    def __init__(
        self,
        lanes: int,
        columns: int,
        depth: list[tuple[int, int, int]],
        left: tuple[OperandArray, int],
        right: tuple[OperandArray, int],
        width: int,
    ) -> None:
        self.lanes, self.columns = lanes, columns
        self.depth, self.width = depth, width
        self.left, self.row_stride = left
        self.right, self.column_stride = right

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
        accumulator = self.left.accumulator
        with f.for_range(0, self.width, _COLUMNS) as loop:
            first = f.add(column, loop.index)
            # Columns behind the last one repeat it; they are never stored.
            places = [
                self.right.at(
                    f, right, f.mul(f.min(f.add(first, i), self.columns - 1), self.column_stride)
                )
                for i in range(_COLUMNS)
            ]
            kind = llvm.vector(self.lanes, accumulator)
            zeros = [llvm.constant(kind, 0)] * (count * _COLUMNS)
            zero = llvm.constant("i64", 0)
            sums = self._nest(f, self.depth, left, places, zero, zero, zeros)
            for position, total in enumerate(sums):
                line, i = divmod(position, _COLUMNS)
                place = f.add(loop.index, line * self.width + i)
                f.store(total_of(f, total), f.pointer(tile, place, accumulator))

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

        columns = [load(self.right, place, right_at) for place in right]
        updated: list[Value] = []
        rows = len(sums) // _COLUMNS
        for row in range(rows):
            value = load(self.left, left, f.add(left_at, row * self.row_stride))
            for i, column in enumerate(columns):
                updated.append(f.fma(value, column, sums[row * _COLUMNS + i]))
        return updated


def total_of(f: llvm.Function, vector: Value) -> Value:
    """The sum of all lanes, added in halves."""
    lanes = vector.lanes
    while lanes > 1:
        lanes //= 2
        low = f.shuffle(vector, None, range(lanes))
        high = f.shuffle(vector, None, range(lanes, 2 * lanes))
        vector = f.add(low, high)
    return vector


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
