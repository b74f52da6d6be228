"""Depthwise convolutions with features innermost: vectors of features, blocks of pixels.

    out[y, x, c] = sum over i, j of image[y * s + i - low, x * s + j - low, c] * kernel[i, j, c]

The sums of a block of pixels stay in registers over all taps: a loaded pixel serves every sum that
sees it. Blocks at the sides of the picture stand at places known when code is emitted, so that
their taps outside are never computed; those between are one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....hlo.deciding import at_hint
from ....hlo.symbols import SymbolicDim
from ... import llvm
from .epilogue import Epilogue
from .operands import ColumnGroup, unravel

if TYPE_CHECKING:
    from .depthwise import DepthwiseForm
    from .window import Spatial

Value = llvm.Value

_VECTORS = 2  # of features at a time
_WIDE_KERNEL = 4  # taps of a line whose weights fill the registers of one vector of features
_ENOUGH_TILES = 16


def emit_features(form: DepthwiseForm) -> tuple[int, int]:
    """Defines the kernel; its tiles and scratch bytes. A tile is one line of result pixels, or a
    part of its features where there are few lines."""
    geometry, lines, columns, lanes = form.geometry, form.lines, form.columns, form.lanes
    features = geometry.groups
    vectors = _VECTORS if columns.kernel < _WIDE_KERNEL else 1
    vectors = min(vectors, -(-features // lanes))
    sums = 14 if form.registers >= 32 else 8
    pixels = max(1, min(sums // vectors, at_hint(columns.outputs)))
    width = vectors * lanes
    whole, rest = divmod(features, width)
    groups = whole + (rest > 0)
    parts = min(groups, -(-_ENOUGH_TILES // max(1, at_hint(geometry.batch * lines.outputs))))
    per_part = -(-groups // parts)
    parts = -(-groups // per_part)
    epilogue = form.epilogue(
        ((geometry.batch, geometry.result_batch_step), (lines.outputs, lines.output_step)),
        (columns.outputs, columns.output_step),
        (features, 1),
    )
    f = form.module.kernel(form.name)
    args, begin, end, _ = f.arguments
    tile = f.alloca(form.accumulator, pixels * width)
    with f.for_range(begin, end) as loop:
        batch, line, part = unravel(f, loop.index, (geometry.batch, lines.outputs, parts))
        image = form.image.base(f, args, (batch, llvm.constant("i64", 0)))
        kernel = form.kernel.base(f, args, ())
        place = _ResultLine(form, f, args, image, kernel, batch, line, tile, epilogue, pixels)
        first = f.mul(part, per_part)
        last = f.min(f.add(first, per_part), groups)
        with f.for_range(first, f.min(last, whole)) as inner:
            place.emit(f.mul(inner.index, width), ColumnGroup(lanes, vectors))
        if rest:
            with f.if_then(f.compare("eq", last, groups)):
                group = ColumnGroup(lanes, -(-rest // lanes), rest % lanes)
                place.emit(llvm.constant("i64", features - rest), group)
    f.ret()
    return geometry.batch * lines.outputs * parts, 0


@dataclass(frozen=True)
class _ResultLine:
    """One line of result pixels, for one group of features at a time."""

    form: DepthwiseForm
    f: llvm.Function
    args: Value
    image: Value
    kernel: Value
    batch: Value
    line: Value
    tile: Value
    epilogue: Epilogue
    pixels: int  # of a block

    def emit(self, feature: Value, group: ColumnGroup) -> None:
        columns = self.form.columns
        if isinstance(columns.outputs, SymbolicDim) or isinstance(columns.size, SymbolicDim):
            self._emit_open(feature, group)
            return
        blocks = columns.outputs // self.pixels
        inner = [b for b in range(blocks) if self._inside(b * self.pixels, self.pixels)]
        sides = [b for b in range(blocks) if b not in inner]
        for block in sides:
            self._block(feature, group, block * self.pixels, self.pixels)
        if inner:
            with self.f.for_range(inner[0], inner[-1] + 1) as loop:
                self._block(feature, group, self.f.mul(loop.index, self.pixels), self.pixels)
        if columns.outputs > blocks * self.pixels:
            start = blocks * self.pixels
            self._block(feature, group, start, columns.outputs - start)

    def _emit_open(self, feature: Value, group: ColumnGroup) -> None:
        """The same where the call decides how wide the picture is: pixels that see no padding in
        blocks, then in smaller ones; the others one by one."""
        f, columns = self.f, self.form.columns
        reach = (columns.kernel - 1) * columns.dilation
        past = (columns.size + columns.low - reach - 1) // columns.stride + 1
        outputs = f.lift(columns.outputs, "i64")
        left = f.min(outputs, max(0, -(-columns.low // columns.stride)))
        right = f.max(f.min(outputs, past), left)
        with f.for_range(0, left) as loop:
            self._side(feature, group, loop.index)
        count, at = self.pixels, left
        while count:
            end = f.add(at, f.mul(f.udiv(f.sub(right, at), count), count))
            with f.for_range(at, end, count) as loop:
                self._block(feature, group, loop.index, count)
            at = end
            count //= 2
        with f.for_range(right, outputs) as loop:
            self._side(feature, group, loop.index)

    def _side(self, feature: Value, group: ColumnGroup, x: Value) -> None:
        """One pixel whose window may reach out of the picture."""
        f, form = self.f, self.form
        columns = form.columns
        kind = llvm.vector(form.lanes, form.accumulator)
        sums: Sequence[Value] = [llvm.constant(kind, 0)] * group.vectors
        y, top, bottom = self._bounds(form.lines, self.line)
        start, first, last = self._bounds(columns, x)
        with f.for_range(top, bottom, 1, sums) as outer:
            row = f.mul(f.add(y, f.mul(outer.index, form.lines.dilation)), form.lines.input_step)
            taps = f.add(f.mul(outer.index, form.lines.kernel_step), form.tap_offset((0, 0)))
            with f.for_range(first, last, 1, outer.carried) as loop:
                column = f.add(start, f.mul(loop.index, columns.dilation))
                at = f.add(f.add(row, f.mul(column, columns.input_step)), feature)
                image = form.image.at(f, self.image, at)
                at = f.add(f.add(taps, f.mul(loop.index, columns.kernel_step)), feature)
                kernel = form.kernel.at(f, self.kernel, at)
                updated = []
                for vector, total in enumerate(loop.carried):
                    weight = self._load(kernel, 0, group, vector, True)
                    updated.append(f.fma(self._load(image, 0, group, vector), weight, total))
                loop.carry(*updated)
            outer.carry(*loop.results)
        self._finish(feature, group, x, 1, outer.results)

    def _inside(self, first: int, count: int) -> bool:
        """Whether all columns that the windows of these pixels see are in the picture."""
        columns = self.form.columns
        reach = (first + count - 1) * columns.stride + (columns.kernel - 1) * columns.dilation
        return first * columns.stride >= columns.low and reach - columns.low < columns.size

    def _block(self, feature: Value, group: ColumnGroup, first: Value | int, count: int) -> None:
        """`count` pixels from column `first` on: sums, then what follows them."""
        f, form = self.f, self.form
        kind = llvm.vector(form.lanes, form.accumulator)
        sums: Sequence[Value] = [llvm.constant(kind, 0)] * (count * group.vectors)
        y, top, bottom = self._bounds(form.lines, self.line)
        with f.for_range(top, bottom, 1, sums) as loop:
            row = f.mul(f.add(y, f.mul(loop.index, form.lines.dilation)), form.lines.input_step)
            taps = f.add(f.mul(loop.index, form.lines.kernel_step), form.tap_offset((0, 0)))
            loop.carry(*self._taps(feature, group, first, count, row, taps, loop.carried))
        x = first if isinstance(first, Value) else llvm.constant("i64", first)
        self._finish(feature, group, x, count, loop.results)

    def _finish(
        self, feature: Value, group: ColumnGroup, x: Value, count: int, sums: Sequence[Value]
    ) -> None:
        """What follows the sums of `count` pixels from column `x` on."""
        f, form = self.f, self.form
        if self.epilogue.short:
            self.epilogue.finish(f, self.args, (self.batch, self.line), x, feature, sums, group)
            return
        for number, value in enumerate(sums):
            f.store(value, f.pointer(self.tile, number * form.lanes, form.accumulator))
        rows = llvm.constant("i64", count)
        self.epilogue.emit(
            f, self.args, (self.batch, self.line), x, feature, rows, self.tile, group
        )

    def _taps(
        self,
        feature: Value,
        group: ColumnGroup,
        first: Value | int,
        count: int,
        row: Value,
        taps: Value,
        sums: Sequence[Value],
    ) -> list[Value]:
        """All taps of one line of the kernel."""
        f, form, columns = self.f, self.form, self.form.columns
        updated = list(sums)
        left = f.mul(first, columns.stride) if isinstance(first, Value) else first * columns.stride
        start = f.add(f.add(row, f.mul(left, columns.input_step)), feature)
        image = form.image.at(f, self.image, start)
        kernel = form.kernel.at(f, self.kernel, f.add(taps, feature))
        for vector in range(group.vectors):
            loaded: dict[int, Value] = {}
            for j in range(columns.kernel):
                weight = None
                for pixel in range(count):
                    at = pixel * columns.stride + j * columns.dilation - columns.low
                    if isinstance(left, int) and not 0 <= left + at < columns.size:
                        continue
                    if weight is None:
                        weight = self._load(kernel, j * columns.kernel_step, group, vector, True)
                    if at not in loaded:
                        loaded[at] = self._load(image, at * columns.input_step, group, vector)
                    number = pixel * group.vectors + vector
                    updated[number] = f.fma(loaded[at], weight, updated[number])
        return updated

    def _load(
        self, base: Value, at: int, group: ColumnGroup, vector: int, weight: bool = False
    ) -> Value:
        f, lanes = self.f, self.form.lanes
        source = self.form.kernel if weight else self.form.image
        at += vector * lanes
        if group.tail and vector == group.vectors - 1:
            mask = llvm.vector_constant("i1", [i < group.tail for i in range(lanes)])
            return source.masked_load(f, base, at, mask)
        return source.load(f, base, at, lanes)

    def _bounds(self, spatial: Spatial, at: Value) -> tuple[Value, Value, Value]:
        """Where the window of `at` begins, and its taps [first, last) that are in the picture:
        begin + tap * dilation lies in [0, size)."""
        f, dilation = self.f, spatial.dilation
        begin = f.sub(f.mul(at, spatial.stride), spatial.low)
        missing = f.max(f.sub(0, begin), 0)
        first = f.udiv(f.add(missing, dilation - 1), dilation)
        room = f.max(f.sub(spatial.size + dilation - 1, begin), 0)
        return begin, first, f.min(f.udiv(room, dilation), spatial.kernel)
