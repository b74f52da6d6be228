"""The left side of a product: rows read where they lie, or copied into scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from ....hlo.deciding import at_hint
from ....hlo.views import Segment
from ....optimizer.cuts.products import padded_depth
from ... import llvm
from .operands import OperandArray, each_index, linear_strides, segment_offset

Value = llvm.Value


class LeftSide:
    """Rows of the left operand, read in place: any strides, element by element."""

    packed = False
    runs = 0.0  # that are copied for a row

    def __init__(self, source: OperandArray, row_stride: int, depth: Sequence[int]) -> None:
        self.source, self.row_stride = source, row_stride
        self.depth = tuple(depth)  # element stride per loop of the depth

    def rows(self, f: llvm.Function, args: Value, outer: Sequence[Value], row: Value) -> Value:
        """Pointer to the element of `row` at depth 0."""
        base = self.source.base(f, args, outer)
        return self.source.at(f, base, f.mul(row, self.row_stride))

    @property
    def row_bytes(self) -> float:
        """Bytes of scratch of a row, where it is packed."""
        return at_hint(self.row_stride) * llvm.bits_of(self.source.accumulator) / 8

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        """Copies rows [first, last) to scratch, `row_stride` apart; only if `packed`."""
        raise NotImplementedError

    def place(self, f: llvm.Function, row: Value) -> Value:
        """Where a packed row begins, in elements; `row` counts from the first packed one."""
        return f.mul(row, self.row_stride)

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
        self,
        source: OperandArray,
        rows: Sequence[Segment],
        depth: Sequence[Segment],
        lanes: int = 1,
    ) -> None:
        steps = math.prod(d.size for d in depth)
        pitch = padded_depth(steps, llvm.bits_of(source.accumulator) // 8)
        super().__init__(source, pitch, linear_strides(depth, 1))
        self._rows, self._loops = tuple(rows), tuple(depth)
        self._lanes = lanes if depth and depth[-1].stride == 1 else 1
        along = depth[-1].size if self._lanes > 1 else 1
        self.runs = at_hint(steps) / max(1, at_hint(along))

    def grouped(self, group: int) -> PackedLeftSide:
        """The same rows with the outermost loop of the depth in groups, whose steps lie side by
        side behind all other loops."""
        first, *others = self._loops
        groups = Segment(first.size // group, first.stride * group)
        return PackedLeftSide(
            self.source, self._rows, [groups, *others, first._replace(size=group)]
        )

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
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

    def __init__(
        self, source: OperandArray, depth: Sequence[Segment], most: int, lanes: int
    ) -> None:
        super().__init__(source, 1, linear_strides(depth, most))
        self._loops, self._lanes = tuple(depth), lanes

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
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
