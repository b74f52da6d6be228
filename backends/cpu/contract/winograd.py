"""Winograd's convolution F(2x2, 3x3): 3 x 3 kernels of stride 1 with 16 products for 4 results.

    out = A^T [sum over features of (G w G^T) * (B^T x B)] A        (Winograd 1980; Lavin 2015)

A tile of 4 x 4 inputs, 2 apart, gives 2 x 2 results: for each of the 16 places of a transformed
tile, tiles x features times features x outputs is one product. Everything is exact but rounding:
B and A hold 0 and +-1, G halves too (which is done to the sums instead). Weights are stored as they
are, in the order in which they are read: a block of tiles transforms some of them at a time, in
scratch that the first-level caches hold, and multiplies them there.

A third spatial dim before these two, of any window, has features of its own at each of its taps:
what is summed for a plane of results is its taps times the features, those of its planes that lie
in the padding left out.

An infinity or a NaN would spread over the 2 x 2 results of a tile, whichever of them sees it, and
sums of large values may overflow where the results do not. Either leaves a result that is not
finite; then the results of the block are summed again without any transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....hlo.deciding import at_hint, larger
from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment, merge
from ....optimizer.cuts.products import (
    PANEL_VECTORS,
    largest_rows,
    padded_depth,
    rest_heights,
    row_panels,
)
from ... import llvm
from .epilogue import Epilogue
from .geometry import ConvolutionKernel
from .micro import (
    FEW_PRODUCTS,
    LINE,
    STEP_PRODUCTS,
    Depth,
    Micro,
    emit_micro,
    emit_rest,
    rest_micros,
)
from .operands import ColumnGroup, OperandArray, not_negative, unravel
from .winograd_form import PLACES, TAPS, applies

_ROWS = 56  # tiles of a block
_SCRATCH = 19 << 15  # bytes, if sums of more than one column group are kept
_ENOUGH_TILES = 8
_LEAST_GROUPS = 2  # column groups that share the transformed tiles of a block, if there are
_FEATURES = 64  # inputs that are transformed and multiplied at a time
_MOST_LINES = 4  # fetched in a turn of the micro-kernel's loop

Place = tuple[int, int]  # line and column of a transformed tile
_CORNERS: tuple[Place, ...] = ((0, 0), (0, 3), (3, 0), (3, 3))
_LINES = ((0,), (3,), (1, 2))  # of places: those whose weights are transformed together
_PLANES = 8  # of transformed weights, at most


def of_tiles(kernel: ConvolutionKernel) -> Callable[[], tuple[int, int]] | None:
    """What defines the kernel; its tiles and scratch bytes. None where weights lie otherwise."""
    geometry, lanes = kernel.geometry, kernel.lanes
    if not applies(geometry.op, lanes):
        return None
    stored = geometry.kernel.source.dims
    width = stored[-1] if len(stored) == 4 else 0
    inputs, outputs = geometry.inputs, geometry.outputs
    if width not in (lanes, PANEL_VECTORS * lanes):
        return None
    *leading, lines, columns = geometry.spatial
    found = (
        stored, geometry.kernel_outputs.segments, geometry.kernel_input_step,
        [s.kernel_step for s in geometry.spatial if s.kernel > 1], geometry.kernel_groups,
        lines.kernel, columns.kernel,
    )  # fmt: skip
    panels = outputs // width
    depth = geometry.op.rhs.tensor.size // (TAPS * outputs * geometry.groups)
    step = depth * width
    wanted = (
        (panels * geometry.groups, TAPS, depth, width),
        merge([Segment(panels, TAPS * step), Segment(width, 1)]), width,
        [*(inputs * width for s in leading if s.kernel > 1), 3 * step, step],
        panels * TAPS * step if geometry.groups > 1 else 0, 3, 3,
    )  # fmt: skip
    # Windows begin in the first of their planes, whether the image has it or not.
    planes = [s.stride * s.input_step for s in leading]
    shift = sum(-s.low * s.input_step for s in leading)
    outer = geometry.batch_step, *planes, geometry.group_step
    image = kernel.source(geometry.input, outer, shift)
    if found != wanted or geometry.input_step != 1 or not image.plain:
        return None
    return lambda: _WinogradEmitter(kernel, image, width, step).emit()


class _WinogradEmitter:
    """step: elements from one of the nine taps of a stored panel to the next."""

    def __init__(
        self, kernel: ConvolutionKernel, image: OperandArray, width: int, step: int
    ) -> None:
        geometry, target = kernel.geometry, kernel.target
        self.module, self.name, self.geometry = kernel.module, kernel.name, geometry
        self.accumulator, self.image = kernel.accumulator, image
        self.width, self.step = width, step
        self.weights = kernel.arguments.index(geometry.kernel.source)
        self.lanes = kernel.lanes
        self.vectors = width // self.lanes
        *self.leading, self.lines, self.columns = geometry.spatial  # one before them, or none
        self.coordinates = "batch", *("plane" for _ in self.leading)  # of an image of results
        bounded = any(not spatial.inside for spatial in self.leading)
        self.turn = ("first", "start", "end") if bounded else ("first",)
        self.depth = math.prod(spatial.kernel for spatial in self.leading) * geometry.inputs
        self.across = -(-self.columns.outputs // 2)  # tiles of a line
        self.down = -(-self.lines.outputs // 2)
        self.steps = min(self.depth, _FEATURES)
        self.pitch = padded_depth(self.steps, 4)
        down = at_hint(self.down)
        most = max(1, min(down, _ROWS // at_hint(self.across)))
        self.deep = -(-down // -(-down // most))
        self.blocks = -(-self.down // self.deep)
        self.rows = self.deep * self.across
        self.last_rows = (self.down - (self.blocks - 1) * self.deep) * self.across
        self.opened = any(isinstance(n, SymbolicDim) for n in (self.rows, self.last_rows))
        self.limit = largest_rows(target.vector_registers, self.vectors)
        rests = self.rows % self.limit + self.last_rows % self.limit
        self.rest = rest_heights(rests, self.limit, self.vectors) if self.opened else ()
        # Scratch, in elements, in this order. Planes of weights lie in other sets of a cache, and
        # results are made where they were.
        self.transformed = PLACES * self.rows * self.pitch
        self.sums = PLACES * self.rows * width  # of a column group
        self.plane = self.steps * width + LINE // 4
        self.shared = larger(4 * self.rows * width, _PLANES * self.plane)
        self.groups = geometry.outputs // width  # of columns, of a group of features
        self.images = geometry.batch * math.prod(spatial.outputs for spatial in self.leading)
        others = max(1, at_hint(self.images * self.blocks * geometry.groups))
        parts = min(-(-self.groups // _LEAST_GROUPS), -(-_ENOUGH_TILES // others))
        kept = at_hint(self.transformed + self.shared)
        room = (_SCRATCH // 4 - kept) // at_hint(self.sums)
        self.per_part = min(-(-self.groups // parts), max(1, room))
        self.parts = -(-self.groups // self.per_part)
        op = geometry.op
        self.epilogue = Epilogue(
            op, kernel.body, len(kernel.arguments), kernel.accumulator,
            (
                (geometry.batch, geometry.result_batch_step),
                *((spatial.outputs, spatial.output_step) for spatial in self.leading),
                (self.lines.outputs, self.lines.output_step),
            ),
            (self.columns.outputs, self.columns.output_step),
            (geometry.groups * geometry.outputs, geometry.result_feature_step),
        )  # fmt: skip

    def emit(self) -> tuple[int, int]:
        self._emit_transform()
        self._emit_micros()
        for rows in self._blocks_of_rows:
            self._emit_place(rows)
            self._emit_products(rows)
        self._emit_direct()
        self._emit_results()
        f = self.module.kernel(self.name)
        args, begin, end, scratch = f.arguments
        with f.for_range(begin, end) as loop:
            # The weights of a part stay in the L2 cache from block to block.
            planes = [spatial.outputs for spatial in self.leading]
            sizes = self.parts, self.geometry.groups, self.geometry.batch, *planes, self.blocks
            part, features, *image, block = unravel(f, loop.index, sizes)
            line = f.mul(block, self.deep)
            whole = f.compare("ult", block, self.blocks - 1)
            rows = f.select(whole, f.constant("i64", self.rows), f.constant("i64", self.last_rows))
            part = f.mul(part, self.per_part)
            first = f.add(f.mul(features, self.groups), part)
            last = f.add(first, f.min(f.sub(self.groups, part), self.per_part))
            bounds = self._bounds(f, image[1:])
            start, end = bounds or (0, self.depth)
            if bounds:
                self._zero_where_none(f, bounds, scratch)
            with f.for_range(start, end, self.steps, at_least_once=not bounds) as inputs:
                turn = inputs.index, *bounds
                place = *image, features, line, rows, *turn
                f.call(self.name + "_transform", "void", args, *place, scratch)
                with f.for_range(first, last, at_least_once=True) as groups:
                    sums = f.mul(f.sub(groups.index, first), self.sums)
                    operands = args, groups.index, *turn, sums, scratch
                    if self.opened:
                        f.call(f"{self.name}_products", "void", *operands, rows)
                    elif self.rows == self.last_rows:
                        f.call(f"{self.name}_products{self.rows}", "void", *operands)
                    else:
                        branch = f.if_else(whole)
                        with branch.then():
                            f.call(f"{self.name}_products{self.rows}", "void", *operands)
                        with branch.otherwise():
                            f.call(f"{self.name}_products{self.last_rows}", "void", *operands)
            with f.for_range(first, last, at_least_once=True) as groups:
                sums = f.mul(f.sub(groups.index, first), self.sums)
                operands = args, *image, line, rows, groups.index, sums, scratch
                f.call(self.name + "_results", "void", *operands)
        f.ret()
        tiles = self.images * self.geometry.groups * self.blocks * self.parts
        return tiles, 4 * (self.transformed + self.per_part * self.sums + self.shared)

    @property
    def _blocks_of_rows(self) -> set[int] | list[None]:
        """The tiles of a block; None where the call decides them."""
        return [None] if self.opened else {self.rows, self.last_rows}

    def _bounds(self, f: llvm.Function, planes: Sequence[llvm.Value]) -> list[llvm.Value]:
        """The steps [start, end) of the depth whose planes the image has, for a plane of results;
        nothing where it always has all of them."""
        if len(self.turn) == 1:
            return []
        (spatial,), (plane,) = self.leading, planes
        window = f.sub(f.mul(plane, spatial.stride), spatial.low)
        taps = [
            f.udiv(f.add(f.max(count, 0), spatial.dilation - 1), spatial.dilation)
            for count in (f.sub(0, window), f.sub(spatial.size, window))
        ]
        taps[1] = f.min(taps[1], spatial.kernel)
        return [f.mul(tap, self.geometry.inputs) for tap in taps]

    def _zero_where_none(
        self, f: llvm.Function, bounds: Sequence[llvm.Value], scratch: llvm.Value
    ) -> None:
        """The sums of a plane of results all of whose planes lie in the padding."""
        zero = llvm.constant(llvm.vector(self.lanes, self.accumulator), 0)
        none, every = f.compare("sge", bounds[0], bounds[1]), self.per_part * self.sums
        with f.if_then(none), f.for_range(0, every, self.lanes) as loop:
            place = f.add(loop.index, self.transformed)
            f.store(zero, f.pointer(scratch, place, self.accumulator))

    def _count(self, f: llvm.Function, first: llvm.Value, *bounds: llvm.Value) -> llvm.Value:
        """How many steps of the depth are taken from `first` on."""
        return f.min(f.sub(bounds[-1] if bounds else self.depth, first), self.steps)

    def _at_step(self, f: llvm.Function, first: llvm.Value, step: llvm.Value) -> llvm.Value:
        """Where the step `first + step` of the depth lies in the image, `first` elements into a
        window."""
        for spatial in self.leading:
            if spatial.kernel > 1:
                tap = f.udiv(f.add(first, step), self.geometry.inputs)
                between = spatial.dilation * spatial.input_step - self.geometry.inputs
                return f.add(step, f.mul(tap, between))
        return step

    # 1. B^T x B of every tile of a block.

    def _emit_transform(self) -> None:
        image = *self.coordinates, "features"
        f = self._helper("_transform", (*image, "line", "rows", *self.turn))
        args, *numbers, scratch = f.arguments
        place, (line, rows, first, *bounds) = numbers[: len(image)], numbers[len(image) :]
        base, count = self.image.base(f, args, place), self._count(f, first, *bounds)
        with f.for_range(0, rows) as loop:
            row, column = f.udiv(loop.index, self.across), f.urem(loop.index, self.across)
            y = f.sub(f.mul(f.add(line, row), 2), self.lines.low)
            x = f.sub(f.mul(column, 2), self.columns.low)
            at = f.add(f.mul(y, self.lines.input_step), f.mul(x, self.columns.input_step))
            source = self.image.at(f, base, f.add(at, first))
            target = f.pointer(scratch, f.mul(loop.index, self.pitch), self.accumulator)
            inside = f.land(
                f.compare("ult", y, not_negative(self.lines.size - 3)),
                f.compare("ult", x, not_negative(self.columns.size - 3)),
            )
            branch = f.if_else(inside)
            with branch.then():
                self._transform_tile(f, source, target, first, count, None)
            with branch.otherwise():
                there = [
                    [f.compare("ult", f.add(start, i), spatial.size) for i in range(4)]
                    for start, spatial in ((y, self.lines), (x, self.columns))
                ]
                self._transform_tile(f, source, target, first, count, there)
        f.ret()

    def _transform_tile(
        self,
        f: llvm.Function,
        source: llvm.Value,
        target: llvm.Value,
        first: llvm.Value,
        count: llvm.Value,
        there: list[list[llvm.Value]] | None,
    ) -> None:
        with f.for_range(0, count, self.lanes) as loop:
            tile = []
            corner = self._at_step(f, first, loop.index)
            for i in range(4):
                for j in range(4):
                    offset = i * self.lines.input_step + j * self.columns.input_step
                    at = f.add(corner, offset)
                    if there is None:
                        tile.append(self.image.load(f, source, at, self.lanes))
                    else:
                        mask = f.splat(f.land(there[0][i], there[1][j]), self.lanes)
                        tile.append(self.image.masked_load(f, source, at, mask))
            made: list[llvm.Value] = [tile[0]] * PLACES
            for j in range(4):
                made[j::4] = _input_side(f, tile[j::4])
            for i in range(4):
                made[4 * i : 4 * i + 4] = _input_side(f, made[4 * i : 4 * i + 4])
            for place, value in enumerate(made):
                at = f.add(loop.index, place * self.rows * self.pitch)
                f.store(value, f.pointer(target, at, self.accumulator))

    # 2. The products of every place, with the weights that are transformed for it.

    def _emit_micros(self) -> None:
        sizes: dict[int, int] = {}  # rows of a micro-kernel -> panels of a block that has such
        if self.opened:
            panels = -(-at_hint(self.rows) // self.limit)
            sizes[self.limit] = panels
            for rows, micro in rest_micros(self._micro(self.limit, panels), self.rest).items():
                emit_micro(self.module, f"{self.name}_rows{rows}", micro)
        for rows in () if self.opened else {self.rows, self.last_rows}:
            panels, size, larger = row_panels(rows, self.limit)
            for taken in {size, size + (larger > 0)}:
                sizes[taken] = min(panels, sizes.get(taken, panels))
        for rows, panels in sizes.items():
            emit_micro(self.module, f"{self.name}_rows{rows}", self._micro(rows, panels))

    def _micro(self, rows: int, panels: int) -> Micro:
        """The products of some tiles at one place; weights of the next group are fetched."""
        turns = self.steps // Micro.turns(rows * self.vectors, self.steps)
        lines = -(-self._ahead() * 4 // LINE)
        return Micro(
            self.accumulator, self.lanes, rows, self.pitch,
            tuple(v * self.lanes for v in range(self.vectors)),
            (Depth(self.depth, 1, self.width),), self.width,
            ahead=min(_MOST_LINES, -(-lines // (turns * panels))),
            cut=self.steps < self.depth or len(self.turn) > 1,  # some taps meet padding alone
            most_products=FEW_PRODUCTS if self.opened else STEP_PRODUCTS,
        )  # fmt: skip

    def _ahead(self) -> int:
        """Elements of the next group's weights that are fetched while one place is multiplied."""
        return -(-TAPS * self.steps * self.width // PLACES)

    def _emit_place(self, rows: int | None) -> None:
        """The products of `rows` tiles at one place, of some input features."""
        if rows is None:
            self._emit_open_place()
            return
        parameters = [
            ("ptr noalias readonly", "left"), ("ptr noalias readonly", "right"),
            ("ptr noalias", "sums"), ("ptr", "ahead"), ("i64", "first"), ("i64", "count"),
        ]  # fmt: skip
        f = self.module.helper(f"{self.name}_place{rows}", parameters, inline="noinline")
        left, right, sums, ahead, *features = f.arguments
        panels, size, larger = row_panels(rows, self.limit)
        with f.for_range(0, panels) as loop:
            first = f.add(f.mul(loop.index, size), f.min(loop.index, larger))
            operands = (
                f.pointer(left, f.mul(first, self.pitch), self.accumulator),
                right,
                f.pointer(sums, f.mul(first, self.width), self.accumulator),
                f.pointer(ahead, f.mul(loop.index, -(-self._ahead() // panels)), self.accumulator),
                *features,
            )
            if larger:
                branch = f.if_else(f.compare("ult", loop.index, larger))
                with branch.then():
                    f.call(f"{self.name}_rows{size + 1}", "void", *operands)
                with branch.otherwise():
                    f.call(f"{self.name}_rows{size}", "void", *operands)
            else:
                f.call(f"{self.name}_rows{size}", "void", *operands)
        f.ret()

    def _emit_open_place(self) -> None:
        """The same where the call decides how many tiles there are."""
        parameters = [
            ("ptr noalias readonly", "left"), ("ptr noalias readonly", "right"),
            ("ptr noalias", "sums"), ("ptr", "ahead"), ("i64", "first"), ("i64", "count"),
            ("i64", "rows"),
        ]  # fmt: skip
        f = self.module.helper(f"{self.name}_place", parameters, inline="noinline")
        left, right, sums, ahead, *features, rows = f.arguments
        panels = f.udiv(f.add(rows, self.limit - 1), self.limit)
        fetches = f.udiv(f.add(panels, self._ahead() - 1), panels)
        with f.for_range(0, panels) as loop:
            first = f.mul(loop.index, self.limit)
            count = f.min(f.sub(rows, first), self.limit)
            fetched = f.pointer(ahead, f.mul(loop.index, fetches), self.accumulator)

            def multiply(
                taken: int, *count: llvm.Value, above: llvm.Operand = 0, first: llvm.Value = first
            ) -> None:
                row = f.add(first, above)
                f.call(
                    f"{self.name}_rows{taken}", "void",
                    f.pointer(left, f.mul(row, self.pitch), self.accumulator), right,
                    f.pointer(sums, f.mul(row, self.width), self.accumulator),
                    fetched, *features, *count,  # noqa: B023
                )  # fmt: skip

            branch = f.if_else(f.compare("eq", count, self.limit))
            with branch.then():
                multiply(self.limit)
            with branch.otherwise():
                if self.rest:
                    emit_rest(
                        f,
                        self.rest,
                        count,
                        lambda height, rows, above: multiply(height, rows, above=above),
                    )
        f.ret()

    def _emit_products(self, rows: int | None) -> None:
        """The products of `rows` tiles with some weights of a column group, at all places. In the
        corners a weight is itself."""
        suffix = "" if rows is None else str(rows)
        behind_all = () if rows is not None else ("rows",)
        f = self._helper(f"_products{suffix}", ("group", *self.turn, "slot"), behind_all)
        args, group, *turn, slot, scratch = f.arguments[: len(self.turn) + 4]
        taken = f.arguments[len(self.turn) + 4 :]
        first, *bounds = turn
        count = self._count(f, *turn)
        before = f.sub(first, bounds[0]) if bounds else first  # steps that the sums have
        taps = self._panel(f, args, group)
        here = f.pointer(taps, f.mul(first, self.width), self.accumulator)
        behind = f.add(f.mul(first, TAPS * self.width), TAPS * self.step)
        behind = f.pointer(taps, behind, self.accumulator)
        sums = f.pointer(scratch, f.add(slot, self.transformed), self.accumulator)
        planes = self._planes(f, scratch)
        done = 0

        def multiply(place: int, right: llvm.Value) -> None:
            nonlocal done
            f.call(
                f"{self.name}_place{suffix}", "void",
                f.pointer(scratch, place * self.rows * self.pitch, self.accumulator), right,
                f.pointer(sums, place * self.rows * self.width, self.accumulator),
                f.pointer(behind, done * self._ahead(), self.accumulator), before, count, *taken,
            )  # fmt: skip
            done += 1

        for i, j in _CORNERS:
            tap = 3 * (i and 2) + (j and 2)
            multiply(4 * i + j, f.pointer(here, tap * self.step, self.accumulator))
        for lines in _LINES:
            places = [(i, j) for i in lines for j in range(4) if (i, j) not in _CORNERS]
            with f.for_range(0, f.mul(count, self.width), self.lanes) as loop:
                made = self._kernel_side(f, here, loop.index, lines)
                for number, place in enumerate(places):
                    at = f.add(loop.index, number * self.plane)
                    f.store(made[place], f.pointer(planes, at, self.accumulator))
            for number, (i, j) in enumerate(places):
                multiply(4 * i + j, f.pointer(planes, number * self.plane, self.accumulator))
        f.ret()

    def _panel(self, f: llvm.Function, args: llvm.Value, group: llvm.Value) -> llvm.Value:
        """The weights of a column group, of the first tap that is summed."""
        stored = f.load("ptr", f.pointer(args, self.weights, "ptr"))
        place = f.add(f.mul(group, TAPS * self.step), self.geometry.kernel.offset)
        return f.pointer(stored, place, self.accumulator)

    def _planes(self, f: llvm.Function, scratch: llvm.Value) -> llvm.Value:
        """Where transformed weights lie, and results."""
        at = self.transformed + self.per_part * self.sums
        return f.pointer(scratch, at, self.accumulator)

    def _kernel_side(
        self, f: llvm.Function, taps: llvm.Value, at: llvm.Value, lines: Sequence[int]
    ) -> dict[Place, llvm.Value]:
        """2 G w (2 G)^T of some weights in some lines of places, where that is no weight itself; in
        the first and last line, and column, it is not doubled."""
        kind = llvm.vector(self.lanes, self.accumulator)

        def tap(row: int, column: int) -> llvm.Value:
            place = f.add(at, (3 * row + column) * self.step)
            return f.load(kind, f.pointer(taps, place, self.accumulator))

        made: dict[Place, llvm.Value] = {}
        if 0 in lines or 3 in lines:
            sides = {i: [tap(i and 2, column) for column in range(3)] for i in lines}
        else:
            columns = [
                _kernel_middle(f, [tap(row, column) for row in range(3)]) for column in range(3)
            ]
            sides = {i: [both[i - 1] for both in columns] for i in lines}
        for i, side in sides.items():
            middle = _kernel_middle(f, side)
            made.update({(i, j): x for j, x in enumerate((side[0], *middle, side[2]))})
        return made

    # 3. A^T s A of every tile, and what follows.

    def _emit_results(self) -> None:
        f = self._helper("_results", (*self.coordinates, "line", "rows", "group", "slot"))
        args, *image, line, rows, group, slot, scratch = f.arguments
        sums = f.pointer(scratch, f.add(slot, self.transformed), self.accumulator)
        results = self._planes(f, scratch)
        kind = llvm.vector(self.lanes, self.accumulator)
        length = 2 * self.across * self.width  # elements of a line of results
        with f.for_range(0, rows, 1, [llvm.constant(kind, 0)]) as loop:
            (seen,) = loop.carried  # 0, or NaN once a result was not finite
            row, column = f.udiv(loop.index, self.across), f.urem(loop.index, self.across)
            at = f.add(f.mul(row, 2 * length), f.mul(column, 2 * self.width))
            for vector in range(self.vectors):
                tile = []
                for place in range(PLACES):
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
            f.call(self.name + "_direct", "void", args, *image, first, last, group, results)
        count, zero = f.constant("i64", self.columns.outputs), llvm.constant("i64", 0)
        column = f.mul(group, self.width)
        with f.for_range(first, last) as loop:
            start = f.mul(f.sub(loop.index, first), length)
            tile_line = f.pointer(results, start, self.accumulator)
            columns = ColumnGroup(self.lanes, self.vectors)
            outer = *image, loop.index
            self.epilogue.emit(f, args, outer, zero, column, count, tile_line, columns)
        f.ret()

    # The same results, each as one sum.

    def _emit_direct(self) -> None:
        """The results of the lines [first, last) of a column group."""
        f = self._helper("_direct", (*self.coordinates, "first", "last", "group"))
        args, *image, first, last, group, results = f.arguments
        base = self.image.base(f, args, (*image, f.udiv(group, self.groups)))
        taps = self._panel(f, args, group)
        start, end = self._bounds(f, image[1:]) or (0, self.depth)
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
                with f.for_range(start, end, 1, tap.carried) as loop:
                    branch = f.if_else(inside)
                    with branch.then():
                        step = self._at_step(f, f.constant("i64", 0), loop.index)
                        branch.give(self.image.load(f, base, f.add(at, step)))
                    with branch.otherwise():
                        branch.give(llvm.constant(self.accumulator, 0))
                    spread = f.splat(branch.results[0], self.lanes)
                    weights = f.add(f.mul(tap.index, self.step), f.mul(loop.index, self.width))
                    sums = []
                    for vector, total in enumerate(loop.carried):
                        source = f.add(weights, vector * self.lanes)
                        weight = f.load(kind, f.pointer(taps, source, self.accumulator))
                        sums.append(f.fma(spread, weight, total))
                    loop.carry(*sums)
                tap.carry(*loop.results)
            place = f.mul(f.sub(line.index, first), 2 * self.across * self.width)
            place = f.add(place, f.mul(column.index, self.width))
            for vector, value in enumerate(tap.results):
                target = f.add(place, vector * self.lanes)
                f.store(value, f.pointer(results, target, self.accumulator))
        f.ret()

    def _helper(
        self, suffix: str, numbers: Sequence[str], behind: Sequence[str] = ()
    ) -> llvm.Function:
        parameters = [
            ("ptr noalias readonly", "args"),
            *(("i64", number) for number in numbers),
            ("ptr noalias", "scratch"),
            *(("i64", number) for number in behind),
        ]
        return self.module.helper(self.name + suffix, parameters, inline="noinline")


def _input_side(f: llvm.Function, x: Sequence[llvm.Value]) -> list[llvm.Value]:
    """B^T x of four values."""
    return [f.sub(x[0], x[2]), f.add(x[1], x[2]), f.sub(x[2], x[1]), f.sub(x[1], x[3])]


def _kernel_middle(f: llvm.Function, w: Sequence[llvm.Value]) -> tuple[llvm.Value, llvm.Value]:
    """The middle of 2 G w, of three values."""
    outer = f.add(w[0], w[2])
    return f.add(outer, w[1]), f.sub(outer, w[1])


def _result_side(f: llvm.Function, s: Sequence[llvm.Value]) -> list[llvm.Value]:
    """A^T s of four values, where those in the middle are doubled."""
    half = llvm.constant(s[0].type, 0.5)
    return [f.fma(f.add(s[1], s[2]), half, s[0]), f.fma(f.sub(s[1], s[2]), half, f.neg(s[3]))]
