"""Convolutions in which every output feature sees one input feature: plain loops over pixels.

There is nothing to reuse across features, so a product over windows would unfold each pixel many
times for one use. Where pixels are innermost, a tile is one plane: it is copied with its padding,
columns of equal remainder by the stride side by side, and every tap is a shifted vector load. Where
features are innermost, vectors run along features (`channels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ....hlo.deciding import at_hint
from ....hlo.graph import Region
from ....hlo.symbols import SymbolicDim
from ... import llvm
from .channels import emit_features
from .epilogue import Epilogue
from .geometry import ConvolutionKernel, Geometry
from .operands import ColumnGroup, ColumnGroups, OperandArray, unravel
from .window import Spatial

Value = llvm.Value

_MOST_TAPS = 128  # unrolled in full
_HELD_TAPS = 12  # weights that stay in registers
_SUMS = 8  # accumulators at a time
_OPEN_VECTORS = 2  # of a line whose length the call decides


def depthwise(kernel: ConvolutionKernel) -> Callable[[], tuple[int, int]] | None:
    """What defines the kernel; its tiles and scratch bytes. None where it is no such convolution,
    or one of a form that the general way handles."""
    geometry, op, spatial = kernel.geometry, kernel.geometry.op, kernel.geometry.spatial
    if geometry.inputs != 1 or op.batch_group_count != 1 or geometry.groups == 1:
        return None
    if not 1 <= len(spatial) <= 2 or any(s.base != 1 for s in spatial):
        return None
    taps = math.prod(s.kernel for s in spatial)
    if isinstance(taps, SymbolicDim) or taps > _MOST_TAPS:
        return None
    image = kernel.source(geometry.input, (geometry.batch_step, geometry.group_step))
    weights = kernel.source(geometry.kernel, ())
    floats = image.element.is_float and weights.element.is_float  # narrow ones are widened
    if not (floats and llvm.is_float(kernel.accumulator)):
        return None
    form = DepthwiseForm(
        kernel.module, kernel.name, geometry, kernel.body, len(kernel.arguments),
        kernel.accumulator, kernel.lanes, kernel.target.vector_registers, image, weights,
    )  # fmt: skip
    columns, step = spatial[-1], form.kernel_step
    if step * geometry.outputs != geometry.kernel_groups:
        return None
    if columns.output_step == 1 and columns.stride <= 2:
        return form.emit_planes
    if geometry.result_feature_step == geometry.group_step == step == geometry.outputs == 1:
        return partial(emit_features, form)
    return None


@dataclass(frozen=True)
class DepthwiseForm:
    """What both ways need: the convolution, its operands and where the code goes."""

    module: llvm.Module
    name: str
    geometry: Geometry
    body: Region | None
    arguments: int
    accumulator: str
    lanes: int
    registers: int
    image: OperandArray
    kernel: OperandArray

    @property
    def lines(self) -> Spatial:
        """The outer spatial dimension; one of a single line if there is none."""
        if len(self.geometry.spatial) == 2:
            return self.geometry.spatial[0]
        return Spatial(1, 1, 1, 1, 0, 1, 1, 0, 0, 0)

    @property
    def columns(self) -> Spatial:
        return self.geometry.spatial[-1]

    @property
    def kernel_step(self) -> int:
        """From one output feature to the next in the stored kernel, if they lie evenly."""
        segments = self.geometry.kernel_outputs.segments
        return segments[-1].stride if segments else self.geometry.kernel_groups

    def epilogue(
        self,
        outer: tuple[tuple[int, int], ...],
        rows: tuple[int, int],
        columns: tuple[int, int],
    ) -> Epilogue:
        return Epilogue(
            self.geometry.op, self.body, self.arguments, self.accumulator, outer, rows, columns,
            self.geometry.result_offset,
        )  # fmt: skip

    def taps(self) -> list[tuple[int, int]]:
        lines, columns = self.lines, self.columns
        return [(i, j) for i in range(lines.kernel) for j in range(columns.kernel)]

    def tap_offset(self, tap: tuple[int, int]) -> int:
        """Of a tap in the stored kernel, also where a dimension is reversed."""
        offset = 0
        for index, spatial in zip(tap, (self.lines, self.columns), strict=True):
            step = spatial.kernel_step
            offset += (index - spatial.kernel + 1 if spatial.reversed else index) * step
        return offset

    # Pixels innermost.

    def emit_planes(self) -> tuple[int, int]:
        """A tile is one plane of the result."""
        geometry, lines, columns = self.geometry, self.lines, self.columns
        vectors = -(-columns.outputs // self.lanes)
        opened = isinstance(columns.outputs, SymbolicDim)
        # Of lines whose length the call decides, some vectors at a time.
        at_once = _OPEN_VECTORS if opened else vectors
        parts = ColumnGroups(ColumnGroup(self.lanes, at_once), columns.outputs)
        reach = (columns.kernel - 1) * columns.dilation // columns.stride
        width = -(-(vectors * self.lanes + reach) // self.lanes) * self.lanes
        height = (lines.outputs - 1) * lines.stride + (lines.kernel - 1) * lines.dilation + 1
        pitch = width * columns.stride
        features = geometry.groups * geometry.outputs
        epilogue = self.epilogue(
            (
                (geometry.batch, geometry.result_batch_step),
                (features, geometry.result_feature_step),
            ),
            (lines.outputs, lines.output_step),
            (columns.outputs, 1),
        )
        f = self.module.kernel(self.name)
        args, begin, end, scratch = f.arguments
        lines_at_once = max(1, min(at_hint(lines.outputs), _SUMS // at_once))
        tile = f.alloca(self.accumulator, lines_at_once * at_once * self.lanes)
        with f.for_range(begin, end) as loop:
            batch, feature = unravel(f, loop.index, (geometry.batch, features))
            source = [batch, f.udiv(feature, geometry.outputs)]
            plane = self.image.base(f, args, source)
            self._copy_plane(f, plane, scratch, height, width)
            weights = self._weights(f, args, feature)
            held = None
            if lines.kernel * columns.kernel <= _HELD_TAPS:
                held = [self._weight(f, weights, tap) for tap in self.taps()]

            def compute(line: Value, count: int, column: Value, group: ColumnGroup) -> None:
                at = f.pointer(scratch, f.mul(line, lines.stride * pitch), self.accumulator)
                at = f.pointer(at, column, self.accumulator)
                vectors = group.vectors
                sums = self._plane_sums(f, at, weights, held, count, vectors, width)  # noqa: B023
                for number, value in enumerate(sums):
                    f.store(value, f.pointer(tile, number * self.lanes, self.accumulator))
                rows = llvm.constant("i64", count)
                epilogue.emit(f, args, (batch, feature), line, column, rows, tile, group)  # noqa: B023

            def some_lines(line: Value, count: int) -> None:
                if not opened:
                    group = ColumnGroup(self.lanes, vectors, columns.outputs % self.lanes)
                    compute(line, count, llvm.constant("i64", 0), group)
                    return
                with f.for_range(0, parts.count) as groups:
                    column = parts.first_column(f, groups.index)
                    parts.each_kind(
                        f, groups.index, lambda _, group: compute(line, count, column, group)
                    )

            whole = lines.outputs // lines_at_once * lines_at_once
            with f.for_range(0, whole, lines_at_once) as inner:
                some_lines(inner.index, lines_at_once)
            if isinstance(lines.outputs, SymbolicDim):
                with f.for_range(whole, lines.outputs) as inner:
                    some_lines(inner.index, 1)
            elif whole < lines.outputs:
                some_lines(llvm.constant("i64", whole), lines.outputs - whole)
        f.ret()
        size = height * pitch * llvm.bits_of(self.accumulator) // 8
        return geometry.batch * features, size

    def _copy_plane(
        self, f: llvm.Function, plane: Value, scratch: Value, height: int, width: int
    ) -> None:
        """scratch[line, phase, j] = image[line - low, j * stride + phase - low], zero outside."""
        lines, columns, lanes = self.lines, self.columns, self.lanes
        with f.for_range(0, height) as outer:
            line = f.sub(outer.index, lines.low)
            there = f.splat(f.compare("ult", line, lines.size), lanes)
            source = self.image.at(f, plane, f.mul(line, lines.input_step))
            target = f.pointer(
                scratch, f.mul(outer.index, width * columns.stride), self.accumulator
            )
            with f.for_range(0, width, lanes) as inner:
                for phase in range(columns.stride):
                    at = f.add(f.mul(inner.index, columns.stride), phase - columns.low)
                    parts = [
                        self._line_part(f, source, f.add(at, i * lanes), there)
                        for i in range(columns.stride)
                    ]
                    value = parts[0]
                    if columns.stride == 2:
                        value = f.shuffle(parts[0], parts[1], range(0, 2 * lanes, 2))
                    place = f.add(inner.index, phase * width)
                    f.store(value, f.pointer(target, place, self.accumulator))

    def _line_part(self, f: llvm.Function, source: Value, at: Value, there: Value) -> Value:
        """A vector of one input line from column `at` on; zero outside."""
        narrow = f.splat(f.cast("trunc", at, "i32"), self.lanes)
        place = f.add(narrow, f.iota(self.lanes, "i32"))
        inside = f.land(f.compare("ult", place, self.columns.size), there)
        step = self.columns.input_step
        if step == 1:
            return self.image.masked_load(f, source, at, inside)
        offsets = f.select(inside, f.mul(place, step), 0)
        return self.image.gather(f, source, offsets, inside)

    def _weights(self, f: llvm.Function, args: Value, feature: Value) -> Value:
        """Pointer to the kernel of one output feature."""
        base = self.kernel.base(f, args, ())
        return self.kernel.at(f, base, f.mul(feature, self.kernel_step))

    def _weight(self, f: llvm.Function, weights: Value, tap: tuple[int, int]) -> Value:
        return f.splat(self.kernel.load(f, weights, self.tap_offset(tap)), self.lanes)

    def _plane_sums(
        self,
        f: llvm.Function,
        at: Value,
        weights: Value,
        held: Sequence[Value] | None,
        count: int,
        vectors: int,
        width: int,
    ) -> list[Value]:
        """The sums of `count` lines, vector by vector; `at` points to the first line's window."""
        lines, columns = self.lines, self.columns
        kind = llvm.vector(self.lanes, self.accumulator)
        sums = [llvm.constant(kind, 0)] * (count * vectors)
        for number, (i, j) in enumerate(self.taps()):
            weight = held[number] if held is not None else self._weight(f, weights, (i, j))
            shift, phase = divmod(j * columns.dilation, columns.stride)
            for line in range(count):
                row = line * lines.stride + i * lines.dilation
                for vector in range(vectors):
                    step = shift + vector * self.lanes
                    place = self._place_of(f, at, row * columns.stride + phase, width, step)
                    position = line * vectors + vector
                    sums[position] = f.fma(f.load(kind, place), weight, sums[position])
        return sums

    def _place_of(self, f: llvm.Function, at: Value, phases: int, width: int, step: int) -> Value:
        """`step` elements behind so many lines of one phase."""
        if not isinstance(width, SymbolicDim):
            return f.pointer(at, phases * width + step, self.accumulator)
        # Not as sizes of their own: each of them would be a load where the function begins.
        start = f.binary("mul", f.constant("i64", width), phases)
        return f.pointer(f.pointer(at, start, self.accumulator), step, self.accumulator)
