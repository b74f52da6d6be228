"""Windows whose lines are short runs of memory, copied as vectors: rows of a product.

A run is one line of one feature where columns are innermost (depth (i, k...)), or one line of all
features where few of them are innermost (depth (k..., i)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.deciding import at_hint, surely_at_most
from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment
from ....optimizer.cuts.products import padded_depth
from ... import llvm
from .left import LeftSide
from .operands import OperandArray, constant_mask, linear_strides, unravel
from .window import Position, Spatial, place, window_starts

Value = llvm.Value

_VECTORS = 4  # of a run
_UNROLLED = 8  # taps of an outer kernel dimension that are straight-line code


def run_unit(features: Segment, positions: Sequence[Position], lanes: int) -> int | None:
    """Elements of one column of a run: 1 for a line of one feature, all features for a line of
    all; None where lines of windows are no short runs."""
    last = positions[-1].spatial
    if (last.base, last.dilation) != (1, 1):
        return None
    if isinstance(last.kernel, SymbolicDim):
        return None
    if last.input_step == 1 and last.kernel <= lanes:
        return 1
    if isinstance(features.size, SymbolicDim):
        return None
    few = features.size * 2 <= lanes and last.kernel * features.size <= _VECTORS * lanes
    return features.size if few and features == (last.input_step, 1) else None


class WindowRuns(LeftSide):
    """Rows are output positions: every window copied run by run over the depth."""

    packed = True

    def __init__(
        self,
        source: OperandArray,
        features: Segment,
        positions: Sequence[Position],
        walk: Sequence[tuple[int, Spatial]],
        lanes: int,
        unit: int,
    ) -> None:
        self.features, self.positions, self.walk = features, tuple(positions), tuple(walk)
        self.inputs = source, features, self.positions, self.walk
        self.planes = unit == 1  # whether runs are of one feature
        self._lanes, self._unit = lanes, unit
        self._run = positions[-1].spatial.kernel * unit
        kernels = [Segment(p.spatial.kernel, 0) for p in positions]
        loops = [features, *kernels] if self.planes else [*kernels, features]
        size = math.prod(loop.size for loop in loops)
        pitch = padded_depth(size, llvm.bits_of(source.accumulator) // 8)
        super().__init__(source, pitch, linear_strides(loops, 1))
        # What has runs of its own, steps of the kernel dimensions, and of the features of runs.
        self._apart = features if self.planes else Segment(1, 0)
        self._steps = self.depth[1:] if self.planes else self.depth[:-1]
        self._feature_step = self.depth[0] if self.planes else 0
        self.runs = float(at_hint(math.prod(k.size for k in kernels[:-1]) * self._apart.size))
        # Whole vectors reach behind a run, into what is written next: never behind the row.
        reach = size - self._run + -(-self._run // lanes) * lanes
        self._spare = surely_at_most(reach, pitch)
        self.written = reach if self._spare else size  # elements of a row; zeros behind its values

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        base = self.source.base(f, args, outer)
        lanes, columns = self._lanes, self.positions[-1].spatial
        with f.for_range(first, last) as loop:
            coordinates = unravel(f, loop.index, [size for size, _ in self.walk])
            walked = dict(zip((s for _, s in self.walk), coordinates, strict=True))
            begins = window_starts(f, self.positions, outer, walked)
            begin = f.mul(begins[-1], self._unit)
            narrow = f.splat(f.cast("trunc", begin, "i32"), lanes)
            masks = []
            for first_lane in range(0, self._run, lanes):
                lane = f.add(f.iota(lanes, "i32"), first_lane)
                inside = f.compare("ult", f.add(narrow, lane), columns.size * self._unit)
                masks.append(f.land(inside, constant_mask(lanes, self._run - first_lane)))
            row = f.mul(f.sub(loop.index, first), self.row_stride)
            with f.for_range(0, self._apart.size) as features:
                offset = f.add(f.mul(features.index, self._apart.stride), begin)
                at = f.add(row, f.mul(features.index, self._feature_step))
                self._lines(f, base, scratch, begins, 0, offset, at, masks)

    def _lines(
        self,
        f: llvm.Function,
        base: Value,
        scratch: Value,
        starts: Sequence[Value],
        number: int,
        offset: Value,
        position: Value,
        masks: Sequence[Value],
    ) -> None:
        """All runs of the kernel dimensions from `number` on."""
        if number == len(self.positions) - 1:
            for first, mask in zip(range(0, self._run, self._lanes), masks, strict=True):
                value = self.source.masked_load(f, base, f.add(offset, first), mask)
                target = f.pointer(scratch, f.add(position, first), self.source.accumulator)
                if self._spare:
                    f.store(value, target)
                else:
                    f.masked_store(value, target, constant_mask(self._lanes, self._run - first))
            return
        spatial = self.positions[number].spatial

        def line(tap: Value) -> None:
            index, there = place(f, spatial, starts[number], f.mul(tap, spatial.dilation))
            step = f.add(offset, f.mul(index, spatial.input_step))
            moved = f.add(position, f.mul(tap, self._steps[number]))
            inside = masks
            if not spatial.inside:
                inside = [f.land(mask, f.splat(there, self._lanes)) for mask in masks]
            self._lines(f, base, scratch, starts, number + 1, step, moved, inside)

        if not isinstance(spatial.kernel, SymbolicDim) and spatial.kernel <= _UNROLLED:
            for tap in range(spatial.kernel):
                line(llvm.constant("i64", tap))
        else:
            with f.for_range(0, spatial.kernel) as loop:
                line(loop.index)
