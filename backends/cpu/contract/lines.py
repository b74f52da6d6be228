"""Windows over lines of pixels whose neighbours share what is copied: rows of a product.

Along a line, the window of one pixel is that of its neighbour but for a step of the image. So a
line of the input is copied once for each tap of the outer kernel dims, with its padding, and taps
of the last one are shifts: a kernel three wide copies a third of what unfolding it copies. Lines
are cut into chunks of rows, and chunks lie one behind the other; a row panel never leaves one.
Chunks that are whole lines share them: each line of the input is copied once for the rows that are
packed together. Where lines cannot be cut evenly, rows are those of one line, and a chunk is what
is packed at once.

Where columns are innermost in the image, each feature has lines of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment
from ....optimizer.cuts.convolutions import MOST_PACKED
from ....optimizer.cuts.products import padded_depth, row_panels
from ... import llvm
from .left import LeftSide
from .operands import OperandArray, linear_strides, unravel
from .window import Position, Spatial, place, window_starts

Value = llvm.Value

_LONGEST_CHUNK = 64  # rows
_FILLED = 0.8  # of the rows of the largest panel, at least: lower ones read weights more often
_SAVED = 3 / 4  # of what unfolding copies, at most
_MASKABLE = 256  # bits of a vector for which CPUs have masked loads
_SHORT = 16  # vectors of a line
MOST_PANELS = 16  # row panels of a row block


class WindowLines(LeftSide):
    """Rows are output positions in chunks of `chunk`, in panels of `panel` rows. Where `walk` is
    one line whose chunks are not even, as many rows are packed at once, at most."""

    packed = True

    def __init__(
        self,
        source: OperandArray,
        features: Segment,
        positions: Sequence[Position],
        walk: Sequence[tuple[int, Spatial]],
        cut: tuple[int, int],
        planes: bool = False,
        lanes: int = 1,
    ) -> None:
        self.chunk, self.panel = cut
        self._positions, self._walk = tuple(positions), tuple(walk)
        last = positions[-1].spatial
        taps = [p.spatial.kernel for p in positions]
        # Sizes of the depth.
        self.kernel = (features.size, *taps) if planes else (*taps, features.size)
        self._apart = features if planes else Segment(1, 0)  # what has lines of its own
        self._unit = 1 if planes else features.size  # elements of a pixel of a line
        self._pixels = _pixels(last, self.chunk)
        self._pitch = _pitch(source, self._unit, self._pixels)
        # Short lines are copied as vectors where these can be masked.
        maskable = lanes * llvm.bits_of(source.accumulator) >= _MASKABLE
        self._lanes = lanes if maskable and self._pixels * self._unit <= _SHORT * lanes else 1
        self.even = last.outputs % self.chunk == 0 == self.chunk % self.panel
        lines = self._apart.size, *taps[:-1]
        self._shared = self.even and _share(positions, walk, self.chunk)
        own = lines[:-1] if self._shared else lines  # of one line of windows
        steps = linear_strides([Segment(size, 0) for size in own], self._pitch)
        self._line_step = self._chunk = math.prod(own) * self._pitch
        if self._shared:
            steps = [*steps, self._line_step]
            self._chunk *= positions[-2].spatial.stride
        self._feature_step, self._outer = steps[0], steps[1:]
        along = last.dilation * self._unit
        depth = (*steps, along) if planes else (*self._outer, along, 1)
        super().__init__(source, last.stride * self._unit, depth)
        self.runs = math.prod(own) / self.chunk

    @property
    def row_bytes(self) -> float:
        return self._chunk * llvm.bits_of(self.source.accumulator) // 8 / self.chunk

    def scratch(self, rows: int) -> int:
        """Bytes of so many rows, as they are packed."""
        chunks = -(-rows // self.chunk)
        elements = chunks * self._chunk
        if self._shared:
            above = self._positions[-2].spatial
            elements += (above.kernel - above.stride) * self._line_step
        return elements * llvm.bits_of(self.source.accumulator) // 8

    def place(self, f: llvm.Function, row: Value) -> Value:
        if not self.even:
            return f.mul(row, self.row_stride)
        chunk, within = f.udiv(row, self.chunk), f.urem(row, self.chunk)
        return f.add(f.mul(chunk, self._chunk), f.mul(within, self.row_stride))

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        base, column = self.source.base(f, args, outer), self._positions[-1].spatial
        zero = llvm.constant("i64", 0)
        if not self.even:
            below = f.sub(self.chunk, f.sub(last, first))
            pixels = f.sub(self._pixels, f.mul(below, column.stride))
            begins = window_starts(f, self._positions, outer, {column: first})
            self._one(f, base, scratch, begins, zero, pixels)
            return
        begin, end = f.udiv(first, self.chunk), f.udiv(last, self.chunk)
        if self._shared:
            above = self._positions[-2].spatial
            starts = window_starts(f, self._positions, outer, {above: begin, column: zero})
            count = f.add(f.mul(f.sub(end, begin), above.stride), above.kernel - above.stride)
            with f.for_range(0, count) as loop:
                begins = [*starts[:-2], f.add(starts[-2], loop.index), starts[-1]]
                target = f.mul(loop.index, self._line_step)
                self._one(f, base, scratch, begins, target, self._pixels)
            return
        lines = self._walk[-1][0] // self.chunk
        sizes = [*(size for size, _ in self._walk[:-1]), lines]
        with f.for_range(begin, end) as loop:
            *around, part = unravel(f, loop.index, sizes)
            walked = dict(zip((s for _, s in self._walk[:-1]), around, strict=True))
            walked[column] = f.mul(part, self.chunk)
            target = f.mul(f.sub(loop.index, begin), self._chunk)
            begins = window_starts(f, self._positions, outer, walked)
            self._one(f, base, scratch, begins, target, self._pixels)

    def _one(
        self, f: llvm.Function, base: Value, scratch: Value, begins: Sequence[Value],
        target: Value, pixels: llvm.Operand,
    ) -> None:  # fmt: skip
        """A chunk, or one line of those that share them, whose lines have so many pixels."""
        with f.for_range(0, self._apart.size) as feature:
            offset = f.mul(feature.index, self._apart.stride)
            to = f.add(target, f.mul(feature.index, self._feature_step))
            exists = llvm.constant("i1", 1)
            self._lines(f, base, scratch, begins, 0, offset, to, exists, pixels)

    def _lines(
        self,
        f: llvm.Function,
        base: Value,
        scratch: Value,
        starts: Sequence[Value],
        number: int,
        offset: Value,
        target: Value,
        exists: Value,
        pixels: llvm.Operand,
    ) -> None:
        """The lines of all taps of the outer kernel dims from `number` on."""
        spatial = self._positions[number].spatial
        if number + 1 == len(self._positions):
            self._line(f, base, scratch, starts[-1], offset, target, exists, pixels)
            return
        every = 1 if self._shared and number + 2 == len(self._positions) else spatial.kernel
        with f.for_range(0, every) as tap:
            shift = f.mul(tap.index, spatial.dilation)
            index, there = place(f, spatial, starts[number], shift)
            step = f.add(offset, f.mul(index, spatial.input_step))
            moved = f.add(target, f.mul(tap.index, self._outer[number]))
            both = exists if spatial.inside else f.land(exists, there)
            self._lines(f, base, scratch, starts, number + 1, step, moved, both, pixels)

    def _line(
        self, f: llvm.Function, base: Value, scratch: Value, start: Value, offset: Value,
        target: Value, exists: Value, pixels: llvm.Operand,
    ) -> None:  # fmt: skip
        """A chunk's pixels of one input line, zeros where there are none."""
        spatial, unit = self._positions[-1].spatial, self._unit
        accumulator = self.source.accumulator
        if self._lanes > 1:
            self._vectors(f, base, f.pointer(scratch, target, accumulator), f.mul(start, unit),
                          offset, exists, f.mul(pixels, unit))  # fmt: skip
            return
        size = llvm.bits_of(accumulator) // 8 * unit  # bytes of a pixel
        left = f.min(f.max(f.sub(0, start), 0), pixels)
        low = f.select(exists, left, pixels)
        high = f.max(f.min(f.sub(spatial.size, start), pixels), low)
        line = f.pointer(scratch, target, accumulator)

        def place(pixel: Value) -> Value:
            return f.pointer(line, f.mul(pixel, size), "i8")

        with f.if_then(f.compare("slt", 0, low)):
            f.fill(line, 0, f.mul(low, size))
        with f.if_then(f.compare("slt", low, high)):
            at = f.add(offset, f.mul(f.add(start, low), unit))
            f.copy(place(low), self.source.at(f, base, at), f.mul(f.sub(high, low), size))
        with f.if_then(f.compare("slt", high, pixels)):
            f.fill(place(high), 0, f.mul(f.sub(pixels, high), size))

    def _vectors(
        self, f: llvm.Function, base: Value, line: Value, start: Value, offset: Value,
        exists: Value, count: llvm.Operand,
    ) -> None:  # fmt: skip
        """The same in vectors; the last one may reach behind the line, into its padding."""
        lanes, size = self._lanes, self._positions[-1].spatial.size * self._unit
        lane = f.add(f.splat(f.cast("trunc", start, "i32"), lanes), f.iota(lanes, "i32"))
        there, begin = f.splat(exists, lanes), f.add(offset, start)
        with f.for_range(0, count, lanes) as loop:
            moved = f.add(lane, f.splat(f.cast("trunc", loop.index, "i32"), lanes))
            mask = f.land(f.compare("ult", moved, size), there)
            value = self.source.masked_load(f, base, f.add(begin, loop.index), mask)
            f.store(value, f.pointer(line, loop.index, self.source.accumulator))


def chunks(
    source: OperandArray,
    features: Segment,
    positions: Sequence[Position],
    walk: Sequence[tuple[int, Spatial]],
    most: int,
    planes: bool = False,
) -> tuple[int, int] | None:
    """Rows of a chunk and of a panel, at most `most`, for `WindowLines`; None where lines cannot be
    cut evenly, or copying them saves little. `planes`: whether the depth begins with features."""
    if not _lies_so(source, features, positions, walk, planes):
        return None
    last = positions[-1].spatial
    panel = _divisor(last.outputs, most)
    chunk = panel * _divisor(last.outputs // panel, _LONGEST_CHUNK // panel)
    if panel < _FILLED * most or not _saves(source, features, positions, chunk, planes):
        return None
    return chunk, panel


def uneven_chunks(
    source: OperandArray,
    features: Segment,
    positions: Sequence[Position],
    walk: Sequence[tuple[int, Spatial]],
    most: int,
    planes: bool = False,
) -> tuple[int, int] | None:
    """The same where rows are those of one line, which chunks need not divide."""
    if len(walk) != 1 or not _lies_so(source, features, positions, walk, planes):
        return None
    line = walk[0][0]
    panels, size, larger = row_panels(line, most)
    panel = size + (larger > 0)
    parts = -(-panels // MOST_PANELS)
    while True:
        chunk = panel * -(-panels // parts)
        if chunk <= panel or _size(source, features, positions, chunk, planes) <= MOST_PACKED:
            break
        parts += 1
    if line < _FILLED * most * panels or not _saves(source, features, positions, chunk, planes):
        return None
    return chunk, panel


def _share(positions: Sequence[Position], walk: Sequence[tuple[int, Spatial]], chunk: int) -> bool:
    """Whether chunks are whole lines of one plane, and windows of a line reach into the next."""
    if len(positions) < 2 or len(walk) != 2 or walk[-1][0] != chunk:
        return False
    above = positions[-2].spatial
    fits = walk[0][1] is above and above.base == above.dilation == 1 and above.phases is None
    return fits and above.stride < above.kernel


def _lies_so(
    source: OperandArray,
    features: Segment,
    positions: Sequence[Position],
    walk: Sequence[tuple[int, Spatial]],
    planes: bool,
) -> bool:
    """Whether rows walk along lines of the image whose pixels lie side by side."""
    last = positions[-1].spatial
    if walk[-1][1] is not last or last.base != 1 or not source.plain:
        return False
    # Pixels of a group of features do not lie so.
    if last.input_step != (1 if planes else features.size) or not (planes or features.stride == 1):
        return False
    sizes = [features.size, *(size for size, _ in walk)]
    sizes += [n for p in positions for s in (p.spatial,)
              for n in (s.size, s.kernel, s.stride, s.low, s.dilation)]  # fmt: skip
    return not any(isinstance(size, SymbolicDim) for size in sizes)


def _saves(
    source: OperandArray,
    features: Segment,
    positions: Sequence[Position],
    chunk: int,
    planes: bool,
) -> bool:
    """Whether lines of chunks are clearly less than what unfolds them."""
    last = positions[-1].spatial
    if _pixels(last, chunk) > _SAVED * chunk * last.kernel:
        return False
    size = features.size * math.prod(p.spatial.kernel for p in positions)
    bytes = llvm.bits_of(source.accumulator) // 8
    unfolded = chunk * padded_depth(size, bytes) * bytes
    return _size(source, features, positions, chunk, planes) <= unfolded


def _size(
    source: OperandArray,
    features: Segment,
    positions: Sequence[Position],
    chunk: int,
    planes: bool,
) -> int:
    """Bytes of a chunk of rows, as it is packed."""
    lines = math.prod(p.spatial.kernel for p in positions[:-1]) * (features.size if planes else 1)
    pitch = _pitch(source, 1 if planes else features.size, _pixels(positions[-1].spatial, chunk))
    return lines * pitch * llvm.bits_of(source.accumulator) // 8


def _divisor(size: int, most: int) -> int:
    """The largest divisor that is not above `most`; 1 at least."""
    return next((n for n in range(min(size, most), 0, -1) if size % n == 0), 1)


def _pixels(last: Spatial, chunk: int) -> int:
    """Pixels of an input line that a chunk of rows sees."""
    return (chunk - 1) * last.stride + (last.kernel - 1) * last.dilation + 1


def _pitch(source: OperandArray, unit: int, pixels: int) -> int:
    """Elements from one copied line of pixels of `unit` elements to the next."""
    return padded_depth(pixels * unit, llvm.bits_of(source.accumulator) // 8)
