"""Windows as columns of products of narrow numbers, as lines of pixels that neighbours share.

Where columns are pixels side by side, the window of one is that of its neighbour but for a step of
the image. So a column group brings one line for each group of features and each tap of the outer
kernel dims, with its padding, the features of a group side by side; taps of the last dim are shifts
of the line, a word each. A kernel three wide copies a third of what unfolding it copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment
from ... import llvm
from .group_sides import RightGroups, merged_groups, raw_side
from .left import LeftSide, PackedLeftSide
from .operands import ColumnGroup, linear_strides, unravel
from .right import RightSide
from .window import Spatial, WindowRight, place, window_starts

Value = llvm.Value

_LANES = 16
_WORD = 4


class LineGroups(RightGroups):
    """The columns of a group are pixels of one line."""

    even = False

    def __init__(self, side: WindowRight, steps: int, group: int, depth: int, width: int) -> None:
        super().__init__(raw_side(side), steps, group, depth)
        self.features, self.positions, self.walk = side.inputs
        last = self.positions[-1].spatial
        words = width + (last.kernel - 1) * last.dilation
        self._vectors = -(-words // _LANES)
        taps = [p.spatial.kernel for p in self.positions[:-1]]
        lines = [Segment(n, 0) for n in (self.features.size // group, *taps)]
        steps_of = linear_strides(lines, self._vectors * _LANES * _WORD)
        self._lines = [Segment(line.size, step) for line, step in zip(lines, steps_of, strict=True)]

    def runs(self, columns: int) -> tuple[Segment, ...]:
        last = self.positions[-1].spatial
        return (*self._lines, Segment(last.kernel, last.dilation * _WORD))

    def scratch(self, columns: int) -> int:
        return math.prod(line.size for line in self._lines) * self._vectors * _LANES * _WORD

    def open(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], column: Value,
        group: ColumnGroup, scratch: Value,
    ) -> Value:  # fmt: skip
        base = self.side.source.base(f, args, outer)
        found = unravel(f, column, [size for size, _ in self.walk])
        walked = {
            spatial: at
            for (_, spatial), at in zip(self.walk, found, strict=True)
            if isinstance(spatial, Spatial)
        }
        begins = window_starts(f, self.positions, outer, walked)
        size = self.positions[-1].spatial.size
        first = f.splat(f.cast("trunc", begins[-1], "i32"), _LANES)
        masks = [
            f.compare("ult", f.add(first, f.add(f.iota(_LANES, "i32"), vector * _LANES)), size)
            for vector in range(self._vectors)
        ]
        with f.for_range(0, self._lines[0].size) as features:
            start = f.mul(features.index, self.features.stride * self.group)
            target = f.mul(features.index, self._lines[0].stride)
            self._taps(f, base, scratch, begins, 0, f.add(start, begins[-1]), target, masks)
        return scratch

    def _taps(
        self, f: llvm.Function, base: Value, scratch: Value, begins: Sequence[Value], number: int,
        offset: Value, target: Value, masks: Sequence[Value],
    ) -> None:  # fmt: skip
        """The lines of all taps of the outer kernel dims from `number` on."""
        if number + 1 == len(self.positions):
            for vector, mask in enumerate(masks):
                at = f.add(offset, vector * _LANES)
                parts = [
                    self.side.source.masked_load(
                        f, base, f.add(at, part * self.features.stride), mask
                    )
                    for part in range(self.group)
                ]
                to = f.add(target, vector * _LANES * _WORD)
                f.store(merged_groups(f, parts, self.group), f.pointer(scratch, to, "i8"))
            return
        spatial = self.positions[number].spatial
        with f.for_range(0, spatial.kernel) as tap:
            index, there = place(f, spatial, begins[number], f.mul(tap.index, spatial.dilation))
            step = f.add(offset, f.mul(index, spatial.input_step))
            moved = f.add(target, f.mul(tap.index, self._lines[number + 1].stride))
            inside = [f.land(mask, f.splat(there, _LANES)) for mask in masks]
            self._taps(f, base, scratch, begins, number + 1, step, moved, inside)


def line_groups(
    left: LeftSide, side: RightSide, steps: int, group: int, depth: int, width: int
) -> tuple[LeftSide, LineGroups] | None:
    """Both sides of a product in that order; None where the columns of some group of `width` do not
    lie in one line, or features are no groups."""
    if not isinstance(side, WindowRight) or not isinstance(left, PackedLeftSide):
        return None
    features, positions, walk = side.inputs
    if not side.rows_contiguous:
        return None
    sizes = [features.size, *(size for size, _ in walk)]
    sizes += [n for p in positions for n in (p.spatial.size, p.spatial.kernel, p.spatial.low)]
    if any(isinstance(size, SymbolicDim) for size in sizes):
        return None
    if features.size % group or walk[-1][0] % width:
        return None
    return left.grouped(group), LineGroups(side, steps, group, depth, width)
