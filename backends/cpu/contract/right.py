"""The right side of a product: columns read where they lie, or packed into scratch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....hlo.deciding import at_hint, surely_at_most
from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment
from ... import llvm
from .operands import (
    ColumnGroup,
    OperandArray,
    constant_mask,
    each_index,
    linear_strides,
    segment_offset,
)

Value = llvm.Value

STEPS_AHEAD = 16  # depth steps that a copy fetches ahead


class RightSide:
    """Columns of the right operand, packed by default: vectors of a group side by side, depth steps
    one group width apart."""

    packed = True
    by_vector = True  # whether packing costs little: whole vectors, no masks, no single elements
    block = 0  # columns that lie side by side, if read in place; 0: all

    def __init__(self, source: OperandArray, depth: Sequence[Segment]) -> None:
        self.source, self._loops = source, tuple(depth)

    @property
    def depth_stride(self) -> int:
        """Elements from one step of the innermost loop to the next, where the operand lies."""
        steps = [loop.stride for loop in self._loops if loop.size != 1]
        return steps[-1] if steps else 0

    def copied(self) -> RightSide:
        """The same columns packed."""
        return self

    def strides(self, group: ColumnGroup) -> tuple[int, ...]:
        """Element strides per loop of the depth, as the micro-kernel walks a group."""
        return linear_strides(self._loops, group.columns)

    def offsets(self, group: ColumnGroup) -> tuple[int, ...]:
        """Element offsets of a group's vectors."""
        return tuple(v * group.lanes for v in range(group.vectors))

    def mask_tail(self, group: ColumnGroup) -> bool:
        """Whether the micro-kernel must not read behind the last real column."""
        return False

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        """Pointer for the micro-kernel to the group that begins at `column`; packs if need be."""
        raise NotImplementedError


@dataclass(frozen=True)
class ContiguousColumns:
    """Contiguous columns in blocks of `inner`, the blocks `block_stride` apart."""

    count: int
    stored: int  # with readable padding behind the last one
    inner: int
    block_stride: int

    @classmethod
    def of(cls, segments: Sequence[Segment], count: int, lanes: int) -> ContiguousColumns | None:
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

    def __init__(
        self, source: OperandArray, depth: Sequence[Segment], columns: ContiguousColumns
    ) -> None:
        super().__init__(source, depth)
        self._columns = columns
        self.block = columns.inner if columns.inner != columns.stored else 0

    def copied(self) -> RightSide:
        return CopiedRight(self.source, self._loops, self._columns)

    def strides(self, group: ColumnGroup) -> tuple[int, ...]:
        return tuple(loop.stride for loop in self._loops)

    def offsets(self, group: ColumnGroup) -> tuple[int, ...]:
        inner, stride = self._columns.inner, self._columns.block_stride
        starts = super().offsets(group)
        if inner == self._columns.stored or surely_at_most(group.columns, inner):
            return starts
        return tuple(s // inner * stride + s % inner for s in starts)

    def mask_tail(self, group: ColumnGroup) -> bool:
        if group.end is not None:
            return True
        first = self._columns.count - (group.columns - group.lanes + group.tail)
        return group.tail > 0 and first + group.columns > self._columns.stored

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        base = self.source.base(f, args, outer)
        if self.block:
            block = f.mul(f.udiv(column, self._columns.inner), self._columns.block_stride)
            column = f.add(block, f.urem(column, self._columns.inner))
        return self.source.at(f, base, column)


class CopiedRight(RightSide):
    """Contiguous columns whose depth steps lie far apart: copied vector by vector."""

    def __init__(
        self, source: OperandArray, depth: Sequence[Segment], columns: ContiguousColumns
    ) -> None:
        super().__init__(source, depth)
        self._direct = DirectRight(source, depth, columns)
        self.block = self._direct.block

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        base = self._direct.open(f, args, outer, column, group, scratch)
        masked = self._direct.mask_tail(group)
        accumulator = self.source.accumulator
        starts = self._direct.offsets(group)
        stride = self._loops[-1].stride if self._loops else 0
        ahead = STEPS_AHEAD * stride if abs(at_hint(stride)) > group.columns else 0
        mask = group.mask(f, column) if masked else None

        def copy(offset: Value, position: Value) -> None:
            for start in starts if ahead else ():
                # Hardware follows no steps that are as far apart as pages.
                f.prefetch(self.source.at(f, base, f.add(offset, start + ahead)))
            for number, start in enumerate(starts):
                at = f.add(offset, start)
                if mask is not None and number == group.vectors - 1:
                    value = self.source.masked_load(f, base, at, mask)
                else:
                    value = self.source.load(f, base, at, group.lanes)
                place = f.add(position, number * group.lanes)
                f.store(value, f.pointer(scratch, place, accumulator))

        each_index(f, self._loops, self.strides(group), copy)
        return scratch


class TransposedRight(RightSide):
    """Columns `stride` apart whose innermost depth is contiguous: transposed in registers."""

    def __init__(self, source: OperandArray, depth: Sequence[Segment], stride: int) -> None:
        super().__init__(source, depth)
        self._stride = stride

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        base = self.source.at(f, self.source.base(f, args, outer), f.mul(column, self._stride))
        strides = self.strides(group)
        inner = self._loops[-1].size
        lanes = group.lanes
        whole = group.vectors - group.partial
        multiples = self._multiples(f, lanes)
        ends = self._ends(f, column, group, multiples)

        def blocks(offset: Value, position: Value, steps: int | Value) -> None:
            if group.end is None:
                with f.for_range(0, whole) as loop:
                    first = f.mul(loop.index, lanes)
                    place = f.add(position, first)
                    start = f.add(offset, f.mul(first, self._stride))
                    places = (f.add(start, one) for one in multiples)
                    vectors = self._rows(f, base, places, lanes, lanes, steps)
                    self._store(f, vectors, place, group, steps, scratch)
            if group.partial:
                first = llvm.constant("i64", whole * lanes)
                place = f.add(position, first)
                start = f.add(offset, f.mul(first, self._stride))
                places = (f.add(start, one) for one in ends)
                vectors = self._rows(f, base, places, lanes, group.tail or lanes, steps)
                self._store(f, vectors, place, group, steps, scratch)

        each_index(f, self._loops, strides, lambda o, p: blocks(o, p, lanes), lanes)
        rest = inner % lanes
        if rest:
            start = inner - rest

            def remainder(offset: Value, position: Value) -> None:
                steps = f.constant("i64", rest) if isinstance(rest, SymbolicDim) else rest
                blocks(f.add(offset, start), f.add(position, start * group.columns), steps)

            each_index(f, self._loops[:-1], strides[:-1], remainder)
        return scratch

    def _multiples(self, f: llvm.Function, count: int) -> list[llvm.Operand]:
        """Where columns begin, from the first one on."""
        if not isinstance(self._stride, SymbolicDim):
            return [number * self._stride for number in range(count)]
        one = f.constant("i64", self._stride)
        found = [llvm.constant("i64", 0), one]
        while len(found) < count:
            found.append(f.binary("add", found[-1], one))
        return list(found[:count])

    def _ends(
        self, f: llvm.Function, column: Value, group: ColumnGroup, multiples: Sequence[llvm.Operand]
    ) -> Sequence[llvm.Operand]:
        """The same for the last vector of a group: columns behind the last real one repeat it, as
        what they hold is never stored."""
        if group.end is None:
            return multiples
        most = f.sub(group.valid(f, column), 1)
        return [f.mul(f.min(most, number), self._stride) for number in range(group.lanes)]

    def _rows(
        self,
        f: llvm.Function,
        base: Value,
        places: Iterable[Value],
        lanes: int,
        columns: int,
        steps: int | Value,
    ) -> list[Value]:
        """`steps` depth steps of each of `columns` columns, zeros behind."""
        accumulator = self.source.accumulator
        mask = None
        if isinstance(steps, Value):
            mask = f.tail_mask(steps, lanes)
        elif steps < lanes:
            mask = constant_mask(lanes, steps)
        vectors = []
        for column, at in enumerate(places):
            if column >= columns:
                vectors.append(llvm.constant(llvm.vector(lanes, accumulator), 0))
            elif mask is not None:
                vectors.append(self.source.masked_load(f, base, at, mask))
            else:
                vectors.append(self.source.load(f, base, at, lanes))
        return vectors

    def _store(
        self,
        f: llvm.Function,
        vectors: Sequence[Value],
        position: Value,
        group: ColumnGroup,
        steps: int | Value,
        scratch: Value,
    ) -> None:
        """The first `steps` columns of the block, step by step."""
        accumulator = self.source.accumulator
        transposed = transpose(f, vectors)
        if isinstance(steps, int):
            for step, vector in enumerate(transposed[:steps]):
                place = f.add(position, step * group.columns)
                f.store(vector, f.pointer(scratch, place, accumulator))
            return
        kind = transposed[0].type
        kept = f.alloca(kind, len(transposed))
        for number, vector in enumerate(transposed):
            f.store(vector, f.pointer(kept, number, kind))
        with f.for_range(0, steps) as loop:
            place = f.add(position, f.mul(loop.index, group.columns))
            vector = f.load(kind, f.pointer(kept, loop.index, kind))
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
        self, source: OperandArray, depth: Sequence[Segment], columns: Sequence[Segment], count: int
    ) -> None:
        super().__init__(source, depth)
        self._columns, self._count = tuple(columns), count

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
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
