"""Winograd's convolution F(2x2, 3x3): 3 x 3 kernels of stride 1 with 16 products for 4 results.

    out = A^T [sum over features of (G w G^T) * (B^T x B)] A        (Winograd 1980; Lavin 2015)

A tile of 4 x 4 inputs, 2 apart, gives 2 x 2 results: for each of the 16 places of a transformed
tile, tiles x features times features x outputs is one product. Everything is exact but rounding:
B and A hold 0 and +-1, G halves too. Weights are stored transformed and, behind that, as they are,
so that the meaning of the stored tensor is an ordinary slice of it.

An infinity or a NaN would spread over the 2 x 2 results of a tile, whichever of them sees it, and
sums of large values may overflow where the results do not. Either leaves a result that is not
finite; then the results of the block are summed again from the weights as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....hlo.build import Builder
from ....hlo.graph import Op, Region, Value
from ....hlo.ops.convolution import window_attributes
from ....hlo.types import F64
from ....optimizer.passes.encode import Packing
from ... import llvm
from ..codegen import Target
from .blocking import PANEL_VECTORS, largest_rows, padded_depth, row_panels
from .epilogue import Epilogue
from .micro import LINE, Depth, Micro, emit_micro
from .operands import Group, Source, unravel
from .views import Segment, merge

if TYPE_CHECKING:
    from .convolution import Geometry

_PLACES = 16  # of a transformed tile
_STORED = 25  # the same and the 9 taps as they are
_LEAST_FEATURES = 32
_LEAST_TILES = 48  # fewer do not repay reading weights that grew by 16 / 9
_ROWS = 56  # tiles of a block
_MOST_TRANSFORMED = 1 << 20  # bytes of a block
_ENOUGH_TILES = 8
_LEAST_GROUPS = 2  # column groups that share the transformed tiles of a block, if there are
_MOST_LINES = 4  # fetched in a turn of the micro-kernel's loop
_KERNEL_SIDE = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def applies(op: Op, lanes: int) -> bool:
    """Whether a convolution, features innermost on both sides, has this form and gains by it."""
    strides, _, base, dilation, reversal = window_attributes(op)
    last = op.type.rank - 1
    if op.type.rank != 4 or op.input_feature_dimension != last:
        return False
    order = (op.output_batch_dimension, *op.output_spatial_dimensions, op.output_feature_dimension)
    same = (op.input_batch_dimension, *op.input_spatial_dimensions) == order[:-1] == (0, 1, 2)
    taps = tuple(op.rhs.dims[d] for d in op.kernel_spatial_dimensions)
    if not same or taps != (3, 3) or op.feature_group_count * op.batch_group_count != 1:
        return False
    if {*strides, *base, *dilation} != {1} or any(reversal):
        return False
    if {op.lhs.element.name, op.rhs.element.name, op.type.element.name} != {"f32"}:
        return False
    inputs, outputs = op.lhs.dims[last], op.type.dims[last]
    if inputs % lanes or outputs % lanes or min(inputs, outputs) < _LEAST_FEATURES:
        return False
    batch, height, width = op.type.dims[:3]
    across = -(-width // 2)
    few = 4 * _PLACES * across * padded_depth(inputs, 4) <= _MOST_TRANSFORMED
    return few and batch * -(-height // 2) * across >= _LEAST_TILES


def packing(op: Op, lanes: int) -> Packing:
    """Weights as [panels, 25, inputs, width]: 16 transformed taps, then the 9 themselves."""
    outputs, inputs = op.kernel_output_feature_dimension, op.kernel_input_feature_dimension
    order = (*op.kernel_spatial_dimensions, inputs, outputs)
    count = op.rhs.dims[outputs]
    depth = op.rhs.dims[inputs]
    width = PANEL_VECTORS * lanes if count % (PANEL_VECTORS * lanes) == 0 else lanes
    transform = np.kron(_KERNEL_SIDE, _KERNEL_SIDE)

    def forward(b: Builder, weight: Value) -> Value:
        taps = b.reshape(b.transpose(weight, order), (9, depth, count))
        wide = b.convert(taps, F64)
        made = b(
            "dot_general", b.constant(transform), wide, type=wide.tensor.with_dims(
                (_PLACES, depth, count)
            ),
            lhs_batching_dimensions=(), rhs_batching_dimensions=(),
            lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
        )  # fmt: skip
        both = b("concatenate", b.convert(made, weight.element), taps, dimension=0)
        panels = b.reshape(both, (_STORED, depth, count // width, width))
        return b.transpose(panels, (2, 0, 1, 3))

    def inverse(b: Builder, packed: Value) -> Value:
        places = b.transpose(packed, (1, 2, 0, 3))
        taps = b(
            "slice", places, start_indices=(_PLACES, 0, 0, 0), limit_indices=places.dims,
            strides=(1,) * 4,
        )  # fmt: skip
        return b.transpose(
            b.reshape(taps, (3, 3, depth, count)), [order.index(d) for d in range(4)]
        )

    return Packing(1, f"winograd{width}:{order}".replace(" ", ""), forward, inverse)


def emit_winograd(
    module: llvm.Module,
    name: str,
    geometry: Geometry,
    body: Region | None,
    arguments: Sequence[object],
    accumulator: str,
    target: Target,
) -> tuple[int, int] | None:
    """Defines the kernel; its tiles and scratch bytes. None where weights are not stored so."""
    lanes = target.lanes(accumulator)
    if not applies(geometry.op, lanes):
        return None
    stored = geometry.kernel.source.dims
    width = stored[-1] if len(stored) == 4 else 0
    inputs, outputs = geometry.inputs, geometry.outputs
    if width not in (lanes, PANEL_VECTORS * lanes):
        return None
    step = inputs * width
    columns = merge([Segment(outputs // width, _STORED * step), Segment(width, 1)])
    found = (
        stored, geometry.kernel.offset, geometry.kernel_outputs.segments,
        geometry.kernel_input_step, [s.kernel_step for s in geometry.spatial],
    )  # fmt: skip
    wanted = (
        (outputs // width, _STORED, inputs, width), _PLACES * step, columns, width,
        [3 * step, step],
    )  # fmt: skip
    image = Source(
        arguments.index(geometry.input.source), geometry.input.source.element, accumulator,
        geometry.input.offset, (geometry.batch_step,),
    )  # fmt: skip
    if found != wanted or geometry.input_step != 1 or not image.plain:
        return None
    weights = arguments.index(geometry.kernel.source)
    emitter = _Emitter(
        module, name, geometry, body, len(arguments), accumulator, target, image, weights, width
    )
    return emitter.emit()


class _Emitter:
    def __init__(
        self,
        module: llvm.Module,
        name: str,
        geometry: Geometry,
        body: Region | None,
        arguments: int,
        accumulator: str,
        target: Target,
        image: Source,
        weights: int,
        width: int,
    ) -> None:
        self.module, self.name, self.geometry = module, name, geometry
        self.accumulator, self.image, self.weights, self.width = accumulator, image, weights, width
        self.lanes = target.lanes(accumulator)
        self.vectors = width // self.lanes
        self.lines, self.columns = geometry.spatial
        self.across = -(-self.columns.outputs // 2)  # tiles of a line
        down = -(-self.lines.outputs // 2)
        self.pitch = padded_depth(geometry.inputs, 4)
        fitting = _MOST_TRANSFORMED // (4 * _PLACES * self.pitch)
        most = max(1, min(down, min(_ROWS, fitting) // self.across))
        # Lines of tiles in a block: as many as fit, but few of them behind the last line.
        depths = range(most, most // 2, -1)
        self.deep = min(depths, key=lambda deep: -(-down // deep) * deep)
        self.blocks = -(-down // self.deep)
        self.rows = self.deep * self.across
        limit = largest_rows(target.vector_registers, self.vectors)
        self.panels, self.size, self.larger = row_panels(self.rows, limit)
        self.groups = geometry.outputs // width
        others = geometry.batch * self.blocks
        parts = min(-(-self.groups // _LEAST_GROUPS), -(-_ENOUGH_TILES // others))
        self.per_part = -(-self.groups // parts)
        self.parts = -(-self.groups // self.per_part)
        op = geometry.op
        self.epilogue = Epilogue(
            op, body, arguments, accumulator,
            (
                (geometry.batch, geometry.result_batch_step),
                (self.lines.outputs, self.lines.output_step),
            ),
            (self.columns.outputs, self.columns.output_step),
            (geometry.outputs, geometry.result_feature_step),
        )  # fmt: skip
        self.transformed = _PLACES * self.rows * self.pitch  # elements of scratch, in this order
        self.sums = _PLACES * self.rows * width
        self.results = 4 * self.rows * width

    def emit(self) -> tuple[int, int]:
        self._emit_transform()
        self._emit_micros()
        self._emit_direct()
        self._emit_results()
        f = self.module.kernel(self.name)
        args, begin, end, scratch = f.arguments
        with f.for_range(begin, end) as loop:
            # The weights of a part stay in the L2 cache from block to block.
            part, batch, block = unravel(
                f, loop.index, (self.parts, self.geometry.batch, self.blocks)
            )
            line = f.mul(block, self.deep)
            f.call(self.name + "_transform", "void", args, batch, line, scratch)
            first = f.mul(part, self.per_part)
            last = f.min(f.add(first, self.per_part), self.groups)
            with f.for_range(first, last, at_least_once=True) as groups:
                self._products(f, args, groups.index, scratch)
                operands = args, batch, line, groups.index, scratch
                f.call(self.name + "_results", "void", *operands)
        f.ret()
        tiles = self.geometry.batch * self.blocks * self.parts
        return tiles, 4 * (self.transformed + self.sums + self.results)

    # 1. B^T x B of every tile of a block.

    def _emit_transform(self) -> None:
        f = self._helper("_transform", ("batch", "line"))
        args, batch, line, scratch = f.arguments
        base = self.image.base(f, args, (batch,))
        with f.for_range(0, self.rows) as loop:
            row, column = f.udiv(loop.index, self.across), f.urem(loop.index, self.across)
            y = f.sub(f.mul(f.add(line, row), 2), self.lines.low)
            x = f.sub(f.mul(column, 2), self.columns.low)
            at = f.add(f.mul(y, self.lines.input_step), f.mul(x, self.columns.input_step))
            source = self.image.at(f, base, at)
            target = f.pointer(scratch, f.mul(loop.index, self.pitch), self.accumulator)
            inside = f.land(
                f.compare("ult", y, max(0, self.lines.size - 3)),
                f.compare("ult", x, max(0, self.columns.size - 3)),
            )
            branch = f.if_else(inside)
            with branch.then():
                self._transform_tile(f, source, target, None)
            with branch.otherwise():
                there = [
                    [f.compare("ult", f.add(start, i), spatial.size) for i in range(4)]
                    for start, spatial in ((y, self.lines), (x, self.columns))
                ]
                self._transform_tile(f, source, target, there)
        f.ret()

    def _transform_tile(
        self,
        f: llvm.Function,
        source: llvm.Value,
        target: llvm.Value,
        there: list[list[llvm.Value]] | None,
    ) -> None:
        with f.for_range(0, self.geometry.inputs, self.lanes) as loop:
            tile = []
            for i in range(4):
                for j in range(4):
                    offset = i * self.lines.input_step + j * self.columns.input_step
                    at = f.add(loop.index, offset)
                    if there is None:
                        tile.append(self.image.load(f, source, at, self.lanes))
                    else:
                        mask = f.splat(f.land(there[0][i], there[1][j]), self.lanes)
                        tile.append(self.image.masked_load(f, source, at, mask))
            made: list[llvm.Value] = [tile[0]] * _PLACES
            for j in range(4):
                made[j::4] = _input_side(f, tile[j::4])
            for i in range(4):
                made[4 * i : 4 * i + 4] = _input_side(f, made[4 * i : 4 * i + 4])
            for place, value in enumerate(made):
                at = f.add(loop.index, place * self.rows * self.pitch)
                f.store(value, f.pointer(target, at, self.accumulator))

    # 2. The products of every place.

    def _emit_micros(self) -> None:
        for rows in {self.size, self.size + (self.larger > 0)}:
            emit_micro(self.module, f"{self.name}_rows{rows}", self._micro(rows))

    def _micro(self, rows: int) -> Micro:
        """The products of some tiles at one place; weights of the next place are fetched."""
        turns = self.geometry.inputs // Micro.turns(rows * self.vectors, self.geometry.inputs)
        lines = self.geometry.inputs * self.width * 4 // LINE
        return Micro(
            self.accumulator, self.lanes, rows, self.pitch,
            tuple(v * self.lanes for v in range(self.vectors)),
            (Depth(self.geometry.inputs, 1, self.width),), self.width,
            ahead=min(_MOST_LINES, -(-lines // (turns * self.panels))),
        )  # fmt: skip

    def _products(
        self, f: llvm.Function, args: llvm.Value, group: llvm.Value, scratch: llvm.Value
    ) -> None:
        weights = f.load("ptr", f.pointer(args, self.weights, "ptr"))
        step = self.geometry.inputs * self.width
        zero = llvm.constant("i64", 0)
        sums = f.pointer(scratch, self.transformed, self.accumulator)
        with f.for_range(0, _PLACES) as loop:
            place = f.add(f.mul(group, _STORED), loop.index)
            right = f.pointer(weights, f.mul(place, step), self.accumulator)
            with f.for_range(0, self.panels) as inner:
                first = f.add(f.mul(inner.index, self.size), f.min(inner.index, self.larger))
                row = f.add(f.mul(loop.index, self.rows), first)
                left = f.pointer(scratch, f.mul(row, self.pitch), self.accumulator)
                tile = f.pointer(sums, f.mul(row, self.width), self.accumulator)
                # Each pass brings its part of what follows into the L2 cache.
                part = f.mul(inner.index, -(-step // self.panels))
                ahead = f.pointer(right, f.add(part, step), self.accumulator)
                operands = left, right, tile, ahead, zero, zero
                if self.larger:
                    branch = f.if_else(f.compare("ult", inner.index, self.larger))
                    with branch.then():
                        f.call(f"{self.name}_rows{self.size + 1}", "void", *operands)
                    with branch.otherwise():
                        f.call(f"{self.name}_rows{self.size}", "void", *operands)
                else:
                    f.call(f"{self.name}_rows{self.size}", "void", *operands)

    # 3. A^T s A of every tile, and what follows.

    def _emit_results(self) -> None:
        f = self._helper("_results", ("batch", "line", "group"))
        args, batch, line, group, scratch = f.arguments
        sums = f.pointer(scratch, self.transformed, self.accumulator)
        results = f.pointer(scratch, self.transformed + self.sums, self.accumulator)
        kind = llvm.vector(self.lanes, self.accumulator)
        length = 2 * self.across * self.width  # elements of a line of results
        with f.for_range(0, self.rows, 1, [llvm.constant(kind, 0)]) as loop:
            (seen,) = loop.carried  # 0, or NaN once a result was not finite
            row, column = f.udiv(loop.index, self.across), f.urem(loop.index, self.across)
            at = f.add(f.mul(row, 2 * length), f.mul(column, 2 * self.width))
            for vector in range(self.vectors):
                tile = []
                for place in range(_PLACES):
                    start = place * self.rows * self.width + vector * self.lanes
                    start = f.add(f.mul(loop.index, self.width), start)
                    tile.append(f.load(kind, f.pointer(sums, start, self.accumulator)))
                lines = [_result_side(f, tile[j::4]) for j in range(4)]
                for i in range(2):
                    pair = _result_side(f, [lines[j][i] for j in range(4)])
                    for j, value in enumerate(pair):
                        place = i * length + j * self.width + vector * self.lanes
                        target = f.pointer(results, f.add(at, place), self.accumulator)
                        f.store(value, target)
                        seen = f.fma(value, llvm.constant(kind, 0), seen)
            loop.carry(seen)
        first = f.mul(line, 2)
        last = f.min(f.add(first, 2 * self.deep), self.lines.outputs)
        (seen,) = loop.results
        lost = f.bitcast(f.compare("uno", seen, seen), f"i{self.lanes}")
        with f.if_then(f.compare("ne", lost, 0)):
            f.call(self.name + "_direct", "void", args, batch, first, last, group, results)
        count, zero = llvm.constant("i64", self.columns.outputs), llvm.constant("i64", 0)
        column = f.mul(group, self.width)
        with f.for_range(first, last) as loop:
            start = f.mul(f.sub(loop.index, first), length)
            tile_line = f.pointer(results, start, self.accumulator)
            columns = Group(self.lanes, self.vectors)
            outer = batch, loop.index
            self.epilogue.emit(f, args, outer, zero, column, count, tile_line, columns)
        f.ret()

    # The same results, each as one sum.

    def _emit_direct(self) -> None:
        """The results of the lines [first, last) of a column group."""
        f = self._helper("_direct", ("batch", "first", "last", "group"))
        args, batch, first, last, group, results = f.arguments
        base = self.image.base(f, args, (batch,))
        weights = f.load("ptr", f.pointer(args, self.weights, "ptr"))
        step = self.geometry.inputs * self.width
        place = f.mul(f.add(f.mul(group, _STORED), _PLACES), step)
        taps = f.pointer(weights, place, self.accumulator)
        kind = llvm.vector(self.lanes, self.accumulator)
        zeros = [llvm.constant(kind, 0)] * self.vectors
        with f.for_range(first, last) as line, f.for_range(0, self.columns.outputs) as column:
            with f.for_range(0, 9, 1, zeros) as tap:
                row, across = f.udiv(tap.index, 3), f.urem(tap.index, 3)
                y = f.sub(f.add(line.index, row), self.lines.low)
                x = f.sub(f.add(column.index, across), self.columns.low)
                inside = f.land(
                    f.compare("ult", y, self.lines.size), f.compare("ult", x, self.columns.size)
                )
                at = f.add(f.mul(y, self.lines.input_step), f.mul(x, self.columns.input_step))
                with f.for_range(0, self.geometry.inputs, 1, tap.carried) as loop:
                    branch = f.if_else(inside)
                    with branch.then():
                        branch.give(self.image.load(f, base, f.add(at, loop.index)))
                    with branch.otherwise():
                        branch.give(llvm.constant(self.accumulator, 0))
                    spread = f.splat(branch.results[0], self.lanes)
                    start = f.add(f.mul(tap.index, step), f.mul(loop.index, self.width))
                    sums = []
                    for vector, total in enumerate(loop.carried):
                        source = f.add(start, vector * self.lanes)
                        weight = f.load(kind, f.pointer(taps, source, self.accumulator))
                        sums.append(f.fma(spread, weight, total))
                    loop.carry(*sums)
                tap.carry(*loop.results)
            start = f.mul(f.sub(line.index, first), 2 * self.across * self.width)
            start = f.add(start, f.mul(column.index, self.width))
            for vector, value in enumerate(tap.results):
                target = f.add(start, vector * self.lanes)
                f.store(value, f.pointer(results, target, self.accumulator))
        f.ret()

    def _helper(self, suffix: str, numbers: Sequence[str]) -> llvm.Function:
        parameters = [
            ("ptr noalias readonly", "args"),
            *(("i64", number) for number in numbers),
            ("ptr noalias", "scratch"),
        ]
        return self.module.helper(self.name + suffix, parameters, inline="noinline")


def _input_side(f: llvm.Function, x: Sequence[llvm.Value]) -> list[llvm.Value]:
    """B^T x of four values."""
    return [f.sub(x[0], x[2]), f.add(x[1], x[2]), f.sub(x[2], x[1]), f.sub(x[1], x[3])]


def _result_side(f: llvm.Function, s: Sequence[llvm.Value]) -> list[llvm.Value]:
    """A^T s of four values."""
    return [f.add(f.add(s[0], s[1]), s[2]), f.sub(f.sub(s[1], s[2]), s[3])]
