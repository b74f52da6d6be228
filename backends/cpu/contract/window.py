"""The geometry of a convolution, and operands that are windows of a stored array.

Every spatial position of the input that a sum needs is `y * stride + k * dilation - low` in the
input dilated by `base`; outside, or between dilated elements, the value is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....hlo.deciding import at_hint, surely_below
from ....hlo.views import Segment
from ....optimizer.cuts.products import padded_depth
from ... import llvm
from .left import LeftSide
from .operands import ColumnGroup, OperandArray, Phases, linear_strides, not_negative, unravel
from .right import RightSide

Value = llvm.Value


@dataclass(frozen=True, eq=False)
class Spatial:
    """One spatial dimension, compared by identity; *_step are strides of the stored arrays."""

    size: int  # of the input
    outputs: int
    kernel: int
    stride: int
    low: int
    base: int
    dilation: int
    input_step: int
    kernel_step: int  # negative where the window is reversed
    output_step: int
    reversed: bool = False
    phases: Phases | None = None  # that share this dimension; `low` is the greatest of theirs

    @property
    def least_low(self) -> int:
        return self.low if self.phases is None else self.phases.lows[0]

    @property
    def inside(self) -> bool:
        """Whether no window reaches into padding or between dilated elements."""
        last = (self.outputs - 1) * self.stride + (self.kernel - 1) * self.dilation
        return self.base == 1 and self.low <= 0 and surely_below(last - self.least_low, self.size)


@dataclass(frozen=True)
class Position:
    """Where the coordinate of a spatial dimension comes from: outer coordinate `outer`, or the
    walk over rows or columns (None); `phase`: which outer coordinate is its phase."""

    spatial: Spatial
    outer: int | None
    phase: int | None = None

    def low(self, f: llvm.Function, outer: Sequence[Value]) -> llvm.Operand:
        """How far before the first pixel the first window begins."""
        phases = self.spatial.phases
        if phases is None or self.phase is None:
            return self.spatial.low
        return phases.low_of(f, outer[self.phase])


def window_starts(
    f: llvm.Function,
    positions: Sequence[Position],
    outer: Sequence[Value],
    walked: dict[Spatial, Value],
) -> list[Value]:
    """Where a window begins in the (dilated) input along each dimension."""
    found = []
    for position in positions:
        spatial = position.spatial
        at = walked[spatial] if position.outer is None else outer[position.outer]
        found.append(f.sub(f.mul(at, spatial.stride), position.low(f, outer)))
    return found


def place(
    f: llvm.Function, spatial: Spatial, start: Value, offset: llvm.Operand
) -> tuple[Value, Value]:
    """(stored index, whether it exists) of a position of the dilated input; scalars or vectors."""
    at = f.add(start, offset)
    if spatial.base == 1:
        return at, f.compare("ult", at, spatial.size)
    reach = (spatial.size - 1) * spatial.base + 1
    exists = f.land(
        f.compare("ult", at, not_negative(reach)),
        f.compare("eq", f.urem(at, spatial.base), 0),
    )
    return f.udiv(at, spatial.base), exists


class WindowRight(RightSide):
    """Columns are output positions: every window laid out along the depth (i, k...).

    `walk` are the dimensions that columns run over, outermost first: (size, Spatial) or, for the
    batch, (size, stride).
    """

    by_vector = False

    def __init__(
        self,
        source: OperandArray,
        features: Segment,
        positions: Sequence[Position],
        walk: Sequence[tuple[int, Spatial | int]],
        columns: int,
    ) -> None:
        self._features, self._positions = features, tuple(positions)
        self._walk, self._columns = tuple(walk), columns
        self.inputs = features, self._positions, self._walk
        kernels = [Segment(p.spatial.kernel, 0) for p in positions]
        super().__init__(source, [features, *kernels])

    @property
    def rows_contiguous(self) -> bool:
        """Whether neighbouring columns are neighbours in the input, row by row."""
        last = self._walk[-1][1]
        return (
            isinstance(last, Spatial)
            and last is self._positions[-1].spatial
            and (last.stride, last.base, last.input_step) == (1, 1, 1)
            and all(isinstance(s, Spatial) for _, s in self._walk)
        )

    @property
    def planes_contiguous(self) -> bool:
        """Whether input and result planes have equal rows, so that a column's window always lies
        at the same distance from the column."""
        step = 1
        for size, spatial in reversed(self._walk):
            if not isinstance(spatial, Spatial) or (spatial.stride, spatial.base) != (1, 1):
                return False
            if spatial.input_step != step:
                return False
            step *= size
        return len(self._walk) == len(self._positions)

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        base = self.source.base(f, args, outer)
        if self.planes_contiguous or not self.rows_contiguous:
            self._copy_vectors(f, base, outer, column, group, scratch)
        else:
            self._copy_rows(f, base, outer, column, group, scratch)
        return scratch

    # Rows of the input, copied with masks.

    def _copy_rows(
        self,
        f: llvm.Function,
        base: Value,
        outer: Sequence[Value],
        column: Value,
        group: ColumnGroup,
        scratch: Value,
    ) -> None:
        if group.partial:
            self._clear_tail(f, group, scratch)
        # Every turn copies the longest run of columns that is in one row and one vector.
        with f.while_below(column, f.add(column, group.valid(f, column))) as loop:
            run = self._copy_one(f, base, outer, column, loop.index, group, scratch)
            loop.carry(f.add(loop.index, run))

    def _copy_one(
        self,
        f: llvm.Function,
        base: Value,
        outer: Sequence[Value],
        column: Value,
        at: Value,
        group: ColumnGroup,
        scratch: Value,
    ) -> Value:
        """Copies the windows of the columns from `at` on, as many as it returns."""
        lanes, accumulator = group.lanes, self.source.accumulator
        line = self._walk[-1][0]
        end = f.add(column, group.valid(f, column))
        row, x = f.udiv(at, line), f.urem(at, line)
        run = f.min(f.min(f.sub(line, x), lanes), f.sub(end, at))
        sizes = [size for size, _ in self._walk[:-1]]
        walked: dict[Spatial, Value] = {}
        for coordinate, (_, spatial) in zip(unravel(f, row, sizes), self._walk, strict=False):
            assert isinstance(spatial, Spatial)
            walked[spatial] = coordinate
        last = self._walk[-1][1]
        assert isinstance(last, Spatial)
        walked[last] = x
        begins = window_starts(f, self._positions, outer, walked)
        keep = f.tail_mask(run, lanes)
        target = f.pointer(scratch, f.sub(at, column), accumulator)
        steps = self.strides(group)

        def taps(number: int, offset: Value, position: Value, exists: Value | None) -> None:
            """The loops over the kernel's dimensions, then over features."""
            spatial = self._positions[number].spatial
            with f.for_range(0, spatial.kernel) as tap:
                moved = f.add(position, f.mul(tap.index, steps[number + 1]))
                shift = f.mul(tap.index, spatial.dilation)
                if number + 1 < len(self._positions):
                    index, there = place(f, spatial, begins[number], shift)
                    both = there if exists is None else f.land(exists, there)
                    step = f.mul(index, spatial.input_step)
                    taps(number + 1, f.add(offset, step), moved, both)
                else:
                    self._copy_run(
                        f, spatial, f.add(begins[number], shift), base, offset, exists, keep,
                        target, moved, steps[0], lanes,
                    )  # fmt: skip

        zero = llvm.constant("i64", 0)
        taps(0, zero, zero, None)
        return run

    def _copy_run(
        self,
        f: llvm.Function,
        spatial: Spatial,
        x: Value,
        base: Value,
        offset: Value,
        exists: Value | None,
        keep: Value,
        target: Value,
        position: Value,
        step: int,
        lanes: int,
    ) -> None:
        """One vector of neighbours of every feature."""
        narrow = f.splat(f.cast("trunc", x, "i32"), lanes)
        inside = f.compare("ult", f.add(narrow, f.iota(lanes, "i32")), spatial.size)
        mask = f.land(inside, keep)
        if exists is not None:
            mask = f.land(mask, f.splat(exists, lanes))
        start = f.add(offset, x)
        accumulator = self.source.accumulator
        with f.for_range(0, self._features.size) as loop:
            at = f.add(start, f.mul(loop.index, self._features.stride))
            value = self.source.masked_load(f, base, at, mask)
            place = f.add(position, f.mul(loop.index, step))
            f.masked_store(value, f.pointer(target, place, accumulator), keep)

    def _clear_tail(self, f: llvm.Function, group: ColumnGroup, scratch: Value) -> None:
        """Zeros in the last vector of every step: its lanes behind the last column are computed."""
        zeros = llvm.constant(llvm.vector(group.lanes, self.source.accumulator), 0)
        count = math.prod(loop.size for loop in self._loops)
        with f.for_range(0, count) as loop:
            place = f.add(f.mul(loop.index, group.columns), group.columns - group.lanes)
            f.store(zeros, f.pointer(scratch, place, self.source.accumulator))

    # Whole vectors of columns, wherever their rows end: masks, and where needed addresses, by lane.

    def _copy_vectors(
        self,
        f: llvm.Function,
        base: Value,
        outer: Sequence[Value],
        column: Value,
        group: ColumnGroup,
        scratch: Value,
    ) -> None:
        lanes, steps = group.lanes, self.strides(group)
        flat = self.planes_contiguous
        with f.for_range(0, group.vectors) as loop:
            first = f.mul(loop.index, lanes)
            start = f.add(column, first)
            count = f.splat(f.sub(self._columns, start), lanes)
            lane = f.iota(lanes)
            keep = f.compare("slt", lane, count)
            # Lanes behind the last column stay at the first one: in range, and masked.
            linear = f.select(keep, f.add(f.splat(start, lanes), lane), 0)
            offset: Value = llvm.constant(llvm.vector(lanes, "i64"), 0)
            walked: dict[Spatial, Value] = {}
            coordinates = unravel(f, linear, [size for size, _ in self._walk])
            for coordinate, (_, what) in zip(coordinates, self._walk, strict=True):
                if isinstance(what, Spatial):
                    walked[what] = coordinate
                else:
                    offset = f.add(offset, f.mul(coordinate, what))
            begins = window_starts(f, self._positions, [f.splat(at, lanes) for at in outer], walked)
            if flat:
                offset = start

            def taps(
                number: int,
                offset: Value,
                position: Value,
                exists: Value,
                begins: Sequence[Value] = begins,
            ) -> None:
                """The loops over the kernel's dimensions; a flat offset is lane 0's alone."""
                if number == len(self._positions):
                    self._copy_features(f, base, offset, exists, scratch, position, steps[0])
                    return
                spatial = self._positions[number].spatial
                with f.for_range(0, spatial.kernel) as tap:
                    shift = f.mul(tap.index, spatial.dilation)
                    index, there = place(f, spatial, begins[number], f.splat(shift, lanes))
                    if flat:
                        index = f.sub(shift, self._positions[number].low(f, outer))
                    moved = f.add(position, f.mul(tap.index, steps[number + 1]))
                    step = f.mul(index, spatial.input_step)
                    taps(number + 1, f.add(offset, step), moved, f.land(exists, there))

            taps(0, offset, first, keep)

    def _copy_features(
        self,
        f: llvm.Function,
        base: Value,
        offset: Value,
        exists: Value,
        scratch: Value,
        position: Value,
        step: int,
    ) -> None:
        """One vector of every feature; `offset` is one of lane 0, or one of every lane."""
        flat = offset.lanes == 1
        if not flat:
            # Lanes that do not exist read the array's first element, then become zero.
            offset = f.select(exists, offset, 0)
        with f.for_range(0, self._features.size) as loop:
            shift = f.mul(loop.index, self._features.stride)
            if flat:
                value = self.source.masked_load(f, base, f.add(offset, shift), exists)
            else:
                at = f.add(offset, f.splat(shift, offset.lanes))
                value = self.source.gather(f, base, at, exists)
            place = f.add(position, f.mul(loop.index, step))
            f.store(value, f.pointer(scratch, place, self.source.accumulator))


class WindowLeft(LeftSide):
    """Rows are output positions: every window copied as one run over the depth (k..., i)."""

    packed = True
    planes = False  # features are innermost in the depth

    def __init__(
        self,
        source: OperandArray,
        features: Segment,
        positions: Sequence[Position],
        walk: Sequence[tuple[int, Spatial]],
        lanes: int,
    ) -> None:
        self.features, self.positions, self.walk = features, tuple(positions), tuple(walk)
        self.inputs = source, features, self.positions, self.walk
        self.lanes = lanes
        loops = [*(Segment(p.spatial.kernel, 0) for p in positions), features]
        size = math.prod(loop.size for loop in loops)
        pitch = padded_depth(size, llvm.bits_of(source.accumulator) // 8)
        super().__init__(source, pitch, linear_strides(loops, 1))
        self.runs = float(at_hint(math.prod(loop.size for loop in loops[:-1])))

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        base = self.source.base(f, args, outer)
        with f.for_range(first, last) as loop:
            walked = dict(
                zip(
                    (spatial for _, spatial in self.walk),
                    unravel(f, loop.index, [size for size, _ in self.walk]),
                    strict=True,
                )
            )
            begins = window_starts(f, self.positions, outer, walked)
            row = f.mul(f.sub(loop.index, first), self.row_stride)
            self._taps(f, base, scratch, begins, 0, llvm.constant("i64", 0), row, None)

    def _taps(
        self,
        f: llvm.Function,
        base: Value,
        scratch: Value,
        starts: Sequence[Value],
        number: int,
        offset: Value,
        position: Value,
        exists: Value | None,
    ) -> None:
        if number == len(self.positions):
            self._copy_features(f, base, scratch, offset, position, exists)
            return
        spatial = self.positions[number].spatial
        with f.for_range(0, spatial.kernel) as tap:
            shift = f.mul(tap.index, spatial.dilation)
            index, there = place(f, spatial, starts[number], shift)
            moved = f.add(position, f.mul(tap.index, self.depth[number]))
            step = f.add(offset, f.mul(index, spatial.input_step))
            if not spatial.inside:
                exists_here = there if exists is None else f.land(exists, there)
            else:
                exists_here = exists
            self._taps(f, base, scratch, starts, number + 1, step, moved, exists_here)

    def _copy_features(
        self,
        f: llvm.Function,
        base: Value,
        scratch: Value,
        offset: Value,
        position: Value,
        exists: Value | None,
    ) -> None:
        size, stride = self.features
        lanes = self.lanes if stride == 1 else 1
        accumulator = self.source.accumulator
        if exists is not None:
            offset = f.select(exists, offset, 0)

        def move(start: Value, width: int) -> None:
            at = f.add(offset, f.mul(start, stride))
            value = self.source.load(f, base, at, width)
            if exists is not None:
                value = f.select(exists, value, 0)
            place = f.add(position, start)
            f.store(value, f.pointer(scratch, place, accumulator))

        whole = size // lanes * lanes
        with f.for_range(0, whole, lanes) as loop:
            move(loop.index, lanes)
        with f.for_range(whole, size) as loop:
            move(loop.index, 1)
