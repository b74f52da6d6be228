"""Windows over lines of pixels whose neighbours share what is copied: rows of a product.

Along a line, the window of one pixel is that of its neighbour but for a step of the image. So a
line of the input is copied once for each tap of the outer kernel dims, with its padding, and taps
of the last one are shifts: a kernel three wide copies a third of what unfolding it copies. Lines
are cut into chunks of rows, and chunks lie one behind the other; a row panel never leaves one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.symbols import SymbolicDim
from ... import llvm
from .blocking import padded_depth
from .left import LeftSide
from .operands import OperandArray, linear_strides, unravel
from .views import Segment
from .window import Position, Spatial, place, window_starts

Value = llvm.Value

_LONGEST_CHUNK = 64  # rows
_FILLED = 0.8  # of the rows of the largest panel, at least: lower ones read weights more often
_SAVED = 3 / 4  # of what unfolding copies, at most


class WindowLines(LeftSide):
    """Rows are output positions in chunks of `chunk`, in panels of `panel` rows."""

    packed = True

    def __init__(
        self,
        source: OperandArray,
        features: Segment,
        positions: Sequence[Position],
        walk: Sequence[tuple[int, Spatial]],
        cut: tuple[int, int],
    ) -> None:
        self.chunk, self.panel = cut
        self._features, self._positions, self._walk = features, tuple(positions), tuple(walk)
        last = positions[-1].spatial
        self.kernel = *(p.spatial.kernel for p in positions), features.size  # sizes of the depth
        self._pixels = _pixels(last, self.chunk)
        self._pitch = _pitch(source, features, self._pixels)
        planes = [p.spatial.kernel for p in self._positions[:-1]]
        self._outer = linear_strides([Segment(size, 0) for size in planes], self._pitch)
        self._chunk = math.prod(planes) * self._pitch
        depth = (*self._outer, last.dilation * features.size, 1)
        super().__init__(source, last.stride * features.size, depth)

    @property
    def chunk_bytes(self) -> int:
        """Of a chunk of rows, as it is packed."""
        return self._chunk * llvm.bits_of(self.source.accumulator) // 8

    def place(self, f: llvm.Function, row: Value) -> Value:
        chunk, within = f.udiv(row, self.chunk), f.urem(row, self.chunk)
        return f.add(f.mul(chunk, self._chunk), f.mul(within, self.row_stride))

    def pack(
        self, f: llvm.Function, args: Value, outer: Sequence[Value], first: Value, last: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        base, column = self.source.base(f, args, outer), self._positions[-1].spatial
        begin = f.udiv(first, self.chunk)
        lines = self._walk[-1][0] // self.chunk
        sizes = [*(size for size, _ in self._walk[:-1]), lines]
        with f.for_range(begin, f.udiv(last, self.chunk)) as loop:
            *around, part = unravel(f, loop.index, sizes)
            walked = dict(zip((s for _, s in self._walk[:-1]), around, strict=True))
            walked[column] = f.mul(part, self.chunk)
            begins = window_starts(f, self._positions, outer, walked)
            target = f.mul(f.sub(loop.index, begin), self._chunk)
            zero, exists = llvm.constant("i64", 0), llvm.constant("i1", 1)
            self._lines(f, base, scratch, begins, 0, zero, target, exists)

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
    ) -> None:
        """The lines of all taps of the outer kernel dims from `number` on."""
        spatial = self._positions[number].spatial
        if number + 1 == len(self._positions):
            self._line(f, base, scratch, starts[-1], offset, target, exists)
            return
        with f.for_range(0, spatial.kernel) as tap:
            shift = f.mul(tap.index, spatial.dilation)
            index, there = place(f, spatial, starts[number], shift)
            step = f.add(offset, f.mul(index, spatial.input_step))
            moved = f.add(target, f.mul(tap.index, self._outer[number]))
            both = exists if spatial.inside else f.land(exists, there)
            self._lines(f, base, scratch, starts, number + 1, step, moved, both)

    def _line(
        self, f: llvm.Function, base: Value, scratch: Value, start: Value, offset: Value,
        target: Value, exists: Value,
    ) -> None:  # fmt: skip
        """A chunk's pixels of one input line, zeros where there are none."""
        spatial, features, pixels = self._positions[-1].spatial, self._features.size, self._pixels
        accumulator = self.source.accumulator
        size = llvm.bits_of(accumulator) // 8 * features  # bytes of a pixel
        left = f.min(f.max(f.sub(0, start), 0), pixels)
        low = f.select(exists, left, pixels)
        high = f.max(f.min(f.sub(spatial.size, start), pixels), low)
        line = f.pointer(scratch, target, accumulator)

        def place(pixel: Value) -> Value:
            return f.pointer(line, f.mul(pixel, size), "i8")

        with f.if_then(f.compare("slt", 0, low)):
            f.fill(line, 0, f.mul(low, size))
        with f.if_then(f.compare("slt", low, high)):
            at = f.add(offset, f.mul(f.add(start, low), features))
            f.copy(place(low), self.source.at(f, base, at), f.mul(f.sub(high, low), size))
        with f.if_then(f.compare("slt", high, pixels)):
            f.fill(place(high), 0, f.mul(f.sub(pixels, high), size))


def chunks(
    source: OperandArray,
    features: Segment,
    positions: Sequence[Position],
    walk: Sequence[tuple[int, Spatial]],
    most: int,
) -> tuple[int, int] | None:
    """Rows of a chunk and of a panel, at most `most`, for `WindowLines`; None where lines cannot be
    cut evenly, or copying them saves little."""
    last = positions[-1].spatial
    if walk[-1][1] is not last or (last.base, features.stride) != (1, 1) or not source.plain:
        return None
    if last.input_step != features.size:
        return None  # pixels of a group of features do not lie side by side
    sizes = [features.size, *(size for size, _ in walk)]
    sizes += [n for p in positions for s in (p.spatial,)
              for n in (s.size, s.kernel, s.stride, s.low, s.dilation)]  # fmt: skip
    if any(isinstance(size, SymbolicDim) for size in sizes):
        return None
    panel = _divisor(last.outputs, most)
    chunk = panel * _divisor(last.outputs // panel, _LONGEST_CHUNK // panel)
    if panel < _FILLED * most:
        return None
    pixels = _pixels(last, chunk)
    if pixels > _SAVED * chunk * last.kernel:
        return None
    size = features.size * math.prod(p.spatial.kernel for p in positions)
    unfolded = chunk * padded_depth(size, llvm.bits_of(source.accumulator) // 8)
    lines = math.prod(p.spatial.kernel for p in positions[:-1])
    return (chunk, panel) if lines * _pitch(source, features, pixels) <= unfolded else None


def _divisor(size: int, most: int) -> int:
    """The largest divisor that is not above `most`; 1 at least."""
    return next((n for n in range(min(size, most), 0, -1) if size % n == 0), 1)


def _pixels(last: Spatial, chunk: int) -> int:
    """Pixels of an input line that a chunk of rows sees."""
    return (chunk - 1) * last.stride + (last.kernel - 1) * last.dilation + 1


def _pitch(source: OperandArray, features: Segment, pixels: int) -> int:
    """Elements from one copied line to the next."""
    return padded_depth(pixels * features.size, llvm.bits_of(source.accumulator) // 8)
