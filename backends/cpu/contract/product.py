"""The kernel of a product: which tiles there are, and what happens in one.

    out[outer, row, column] =
        epilogue(sum over depth of left[outer, row, depth] * right[outer, depth, column])

A `Blocking` says how rows, columns and depth are cut (`optimizer/cuts/`). Where the depth is cut,
partial sums wait in the result, or in scratch if something follows them. The sum of an element is
always formed in the same order, so any split of the tiles over workers gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ....hlo.deciding import at_hint
from ....hlo.errors import CompilerBug
from ....hlo.symbols import SymbolicDim
from ....optimizer.cuts import products
from ....optimizer.cuts.products import Blocking, ProductShape
from ... import llvm
from ..codegen import Target
from ..machines import cuts_of
from .epilogue import Epilogue
from .left import LeftSide
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
from .operands import ColumnGroup, ColumnGroups, unravel
from .right import STEPS_AHEAD, RightSide

Value = llvm.Value

_STREAMED_PANEL = 1 << 14  # bytes of a panel that is worth fetching ahead
_MOST_LINES = 4
_STREAM_AHEAD = 1 << 13  # bytes


@dataclass(frozen=True)
class Product:
    """One product to emit. `outer` are the sizes of the outer coordinates."""

    target: Target
    accumulator: str
    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: tuple[int, ...]  # sizes
    left: LeftSide
    right: RightSide
    epilogue: Epilogue

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.accumulator)

    @property
    def shape(self) -> ProductShape:
        """What the choice of a blocking needs to know."""
        loops = _merged(self.depth, self.left, self.right, ColumnGroup(self.lanes, 1))
        return ProductShape(
            outer=math.prod(self.outer),
            rows=self.rows,
            columns=self.columns,
            depth=math.prod(self.depth),
            element_bytes=llvm.bits_of(self.accumulator) // 8,
            lanes=self.lanes,
            registers=self.target.vector_registers,
            left_row_stride=self.left.row_stride,
            left_depth_stride=self.left.depth[-1] if self.left.depth else 0,
            left_must_pack=self.left.packed,
            left_may_pack=not self.left.packed,
            right_depth_stride=self.right.depth_stride,
            right_block=self.right.block,
            right_must_pack=self.right.packed,
            right_by_vector=self.right.by_vector,
            even_depth=len(loops) == 1,
            plain_result=self.epilogue.plain,
        )


def emit_product(
    module: llvm.Module, name: str, product: Product, cut: Blocking | None = None
) -> tuple[int, int]:
    """Defines the kernel `name`, cut as said or as predicted best; its tiles and scratch bytes."""
    shape = product.shape
    if cut is None:
        cut = cuts_of(product.target).of_product(products.at_hints(shape))
    elif reason := products.problem(products.at_hints(shape), cut):
        raise CompilerBug(f"{cut} is no blocking of {shape}: {reason}")
    return _ProductEmitter(module, name, product, products.opened(shape, cut)).emit()


class _ProductEmitter:
    """One product under one blocking."""

    def __init__(self, module: llvm.Module, name: str, product: Product, cut: Blocking) -> None:
        self.module, self.name, self.product, self.cut = module, name, product, cut
        self.shape = shape = product.shape
        self.steps = shape.depth
        self.panels, self.size, self.larger = products.row_panels(product.rows, cut.rows)
        self.open = isinstance(product.rows, SymbolicDim)
        self.most = self.size + (self.larger > 0)
        # Rows of micro-kernels for fewer rows than a panel's.
        self.rest = products.rest_heights(product.rows, cut.rows, cut.vectors) if self.open else ()
        self.blocks = -(-self.panels // cut.panels)
        self.left, self.right = product.left, product.right
        if cut.pack_left and not self.left.packed:
            self.left = self.left.copied(product.depth, cut.panels * self.most, product.lanes)
        if cut.pack_right and not self.right.packed:
            self.right = self.right.copied()
        self.parts = products.scratch_parts(shape, cut)
        self.width = cut.vectors * product.lanes
        self.columns = ColumnGroups(ColumnGroup(product.lanes, cut.vectors), product.columns)
        self.groups = self.columns.count
        self.cut_depth = products.cuts_depth(shape, cut)
        # Panels that only one row block reads are packed when it needs them, all in one place.
        kept = products.panels_kept(shape, cut)
        # The first row panel packs columns while it is computed, if vectors can be copied so.
        plain = not product.right.packed and shape.even_depth
        self.packs_along = cut.pack_right and plain and not self.cut_depth
        self.pack_first = cut.pack_right and kept and not self.packs_along
        self.kept = kept

    def emit(self) -> tuple[int, int]:
        """Defines the kernel; its tiles and scratch bytes."""
        cut, outer = self.cut, math.prod(self.product.outer)
        for kind, group in self.columns.kinds:
            _GroupEmitter(self, group, f"{self.name}_{kind}").emit()
        row_parts, column_parts = -(-self.blocks // cut.blocks), -(-self.groups // cut.groups)
        f = self.module.kernel(self.name)
        args, begin, end, scratch = f.arguments
        with f.for_range(begin, end) as loop:
            column_part = f.urem(loop.index, column_parts)
            index = f.udiv(loop.index, column_parts)
            row_part, flat = f.urem(index, row_parts), f.udiv(index, row_parts)
            start = f.mul(column_part, cut.groups)
            stop = f.min(f.add(start, cut.groups), self.groups)
            if self.pack_first:
                self._each_group(f, start, stop, "_open", (args, flat), scratch)
            first = f.mul(row_part, cut.blocks)
            if cut.blocks == 1:
                zero = llvm.constant("i64", 0)
                self._row_block(f, args, flat, first, zero, start, stop, scratch)
            else:
                final = f.min(f.add(first, cut.blocks), self.blocks)
                with f.for_range(first, final, at_least_once=True) as blocks:
                    number = f.sub(blocks.index, first)
                    self._row_block(f, args, flat, blocks.index, number, start, stop, scratch)
        f.ret()
        return outer * row_parts * column_parts, sum(self.parts)

    def _row_block(
        self,
        f: llvm.Function,
        args: Value,
        flat: Value,
        block: Value,
        number: Value,
        start: Value,
        stop: Value,
        scratch: Value,
    ) -> None:
        """One row block, which is the tile's block `number`."""
        first = f.mul(block, self.cut.panels)
        final = f.min(f.add(first, self.cut.panels), self.panels)
        if self.cut.pack_left:
            coordinates = unravel(f, flat, self.product.outer)
            rows = self.first_row(f, first), self.first_row(f, final)
            place = f.pointer(scratch, self.parts[1], "i8")
            self.left.pack(f, args, coordinates, *rows, place)
        operands = args, flat, first, final
        if not self.cut_depth:
            steps = number, f.constant("i64", self.steps)
            self._each_group(f, start, stop, "", (*operands, *steps), scratch)
            return
        with f.for_range(0, self.steps, self.cut.depth) as loop:
            steps = loop.index, f.min(f.sub(self.steps, loop.index), self.cut.depth)
            self._each_group(f, start, stop, "", (*operands, *steps), scratch)

    def _each_group(
        self,
        f: llvm.Function,
        start: Value,
        stop: Value,
        suffix: str,
        operands: tuple[Value, ...],
        scratch: Value,
    ) -> None:
        """Calls a function of the full or the last group for the groups [start, stop)."""
        with f.for_range(start, stop, at_least_once=True) as loop:
            number = loop.index
            place = f.sub(number, start)
            every = *operands, self.columns.first_column(f, number), place, scratch

            def call(kind: str, _: ColumnGroup, every: tuple[Value, ...] = every) -> None:
                f.call(f"{self.name}_{kind}{suffix}", "void", *every)

            self.columns.each_kind(f, number, call)

    def first_row(self, f: llvm.Function, panel: Value) -> Value:
        """The first row of a panel; of one behind the last, the number of rows."""
        row = f.add(f.mul(panel, self.size), f.min(panel, self.larger))
        return f.min(row, self.product.rows) if self.open else row


class _GroupEmitter:
    """The functions of one kind of column group."""

    def __init__(self, whole: _ProductEmitter, group: ColumnGroup, name: str) -> None:
        self.whole, self.group, self.name = whole, group, name
        self.product, self.cut = whole.product, whole.cut
        self.epilogue = self.product.epilogue
        self.plain = self.epilogue.plain and not group.partial
        self.tile_stride = self.epilogue.rows[1] if self.plain else group.columns
        # What the call decides is finished once for all heights.
        in_registers = self.epilogue.short and group.end is None
        self.finishes = in_registers and not (self.plain or whole.cut_depth)
        self.depth = _merged(self.product.depth, whole.left, whole.right, group)
        self.fetch = self._fetch()

    def emit(self) -> None:
        """Defines NAME(args, outer, first panel, end panel, first step, steps, column, group of
        the tile, scratch), and NAME_open(args, outer, column, group of the tile, scratch). Where
        the depth is not cut, the number of the tile's row block stands for the first step."""
        whole = self.whole
        if whole.pack_first:
            self._emit_open()
        micros = copying = self._emit_micros("", whole.right, copies=False)
        if whole.packs_along:
            copying = self._emit_micros("_copy", self.product.right, copies=True)
        numbers = ("outer", "first", "last", "step", "steps", "column", "place")
        f = self.module.helper(
            self.name,
            [
                ("ptr noalias readonly", "args"),
                *(("i64", number) for number in numbers),
                ("ptr noalias", "scratch"),
            ],
            inline="noinline",
        )
        args, flat, first, last, step, steps, column, place, scratch = f.arguments
        coordinates = unravel(f, flat, self.product.outer)
        fresh = direct = None
        if whole.packs_along:
            right = self._panel(f, place, scratch) if whole.kept else scratch
            direct = self.product.right.open(f, args, coordinates, column, self.group, scratch)
            fresh = f.compare("eq", step, 0)
        elif whole.pack_first:
            right = self._panel(f, place, scratch)
        else:
            right = whole.right.open(f, args, coordinates, column, self.group, scratch)
        left_at = right_at = llvm.constant("i64", 0)
        if whole.cut_depth:
            left_at = f.mul(step, self.depth[0].left)
            right_at = f.mul(step, self.depth[0].right)
        right = f.pointer(right, right_at, self.product.accumulator)
        start = whole.first_row(f, first)
        packed = f.pointer(scratch, whole.parts[1], "i8")
        tile = self._tile(f, place, scratch)
        final = f.compare("eq", f.add(step, steps), whole.steps) if whole.cut_depth else None
        with f.for_range(first, last, at_least_once=True) as loop:
            row = whole.first_row(f, loop.index)
            if self.cut.pack_left:
                at = whole.left.place(f, f.sub(row, start))
                left = f.pointer(packed, at, self.product.accumulator)
            else:
                left = whole.left.rows(f, args, coordinates, row)
            left = f.pointer(left, left_at, self.product.accumulator)
            if self.plain:
                target = self.epilogue.pointer(f, args, coordinates, row, column)
            elif whole.cut_depth:
                offset = f.mul(f.sub(loop.index, first), self._tile_size)
                target = f.pointer(tile, offset, self.product.accumulator)
            else:
                target = tile
            ahead = self.fetch.pointer(f, right, f.sub(loop.index, first))
            place = args, flat, row, column
            count = self._count(f, loop.index, row)
            operands = left, right, target, ahead, step, steps
            if fresh is None or direct is None:
                self._call(f, micros, loop.index, count, operands, place)
            else:
                branch = f.if_else(f.land(fresh, f.compare("eq", loop.index, first)))
                with branch.then():
                    copied = left, direct, target, right, step, steps

                    def pack(right: Value = right) -> None:
                        whole.right.open(f, args, coordinates, column, self.group, right)

                    after = pack, micros, operands
                    self._call(f, copying, loop.index, count, copied, place, after)
                with branch.otherwise():
                    self._call(f, micros, loop.index, count, operands, place)
            if self.finishes and whole.rest:
                final = f.compare("slt", count, whole.most)
            sums = args, coordinates, row, column, count, target, self.group
            self._finish_tile(f, final, partial(self.epilogue.emit, f, *sums))
        f.ret()

    @property
    def module(self) -> llvm.Module:
        return self.whole.module

    def _finish_tile(
        self, f: llvm.Function, final: Value | None, finish: Callable[[], None]
    ) -> None:
        """What follows the sums in a tile; `final`: whether it does, where that depends."""
        if final is not None and not self.plain:
            with f.if_then(final):
                finish()
        elif not (self.plain or self.finishes):
            finish()

    @property
    def _tile_size(self) -> int:
        """Elements of the sums of one panel."""
        return self.whole.most * self.whole.width

    def _tile(self, f: llvm.Function, place: Value, scratch: Value) -> Value:
        """Where sums that are not results yet stand: of a panel, or of all panels of a block."""
        if not self.whole.cut_depth:
            is_used = bool(self.whole.rest) if self.finishes else not self.plain
            return f.alloca(self.product.accumulator, self._tile_size if is_used else 0)
        base = f.pointer(scratch, self.whole.parts[0] + self.whole.parts[1], "i8")
        at = f.mul(place, self.cut.panels * self._tile_size)
        return f.pointer(base, at, self.product.accumulator)

    def _panel(self, f: llvm.Function, place: Value, scratch: Value) -> Value:
        """The packed right side of a group of the tile."""
        at = f.mul(place, self.whole.width * self.whole.steps)
        return f.pointer(scratch, at, self.product.accumulator)

    def _emit_open(self) -> None:
        numbers = [("i64", name) for name in ("outer", "column", "place")]
        f = self.module.helper(
            f"{self.name}_open",
            [("ptr noalias readonly", "args"), *numbers, ("ptr noalias", "scratch")],
            inline="noinline",
        )
        args, flat, column, place, scratch = f.arguments
        coordinates = unravel(f, flat, self.product.outer)
        panel = self._panel(f, place, scratch)
        self.whole.right.open(f, args, coordinates, column, self.group, panel)
        f.ret()

    def _emit_micros(self, suffix: str, right: RightSide, *, copies: bool) -> _Micros:
        """The micro-kernels of all panel sizes."""
        whole = self.whole
        lower = () if copies else whole.rest
        names = {rows: f"{self.name}_rows{rows}{suffix}" for rows in lower}
        names[whole.size] = f"{self.name}_rows{suffix}"
        if whole.larger:
            names[whole.size + 1] = f"{self.name}_rows1{suffix}"
        masked = right.mask_tail(self.group)
        open_tail = masked and self.group.end is not None
        depth = _merged(self.product.depth, whole.left, right, self.group)
        stream = self._stream()
        if copies:
            stream = STEPS_AHEAD * depth[0].right * whole.shape.element_bytes
        micro = Micro(
            self.product.accumulator,
            self.group.lanes,
            whole.size,
            whole.left.row_stride,
            right.offsets(self.group),
            depth,
            self.tile_stride,
            self.group.tail if masked else 0,
            0 if copies else self.fetch.lines,
            whole.cut_depth,
            stream,
            copies,
            open_tail,
            FEW_PRODUCTS if whole.open else STEP_PRODUCTS,
        )
        lower_ones = rest_micros(micro, lower)
        for rows, name in names.items():
            finish = self._finish if self.finishes and rows not in lower else None
            one = lower_ones.get(rows) or replace(micro, rows=rows)
            emit_micro(self.module, name, one, finish)
        return _Micros(names, micro.is_open, open_tail)

    def _finish(self, f: llvm.Function, place: Sequence[Value], sums: Sequence[Value]) -> None:
        """What follows the sums of one micro-kernel, while they are in registers."""
        args, flat, row, column = place
        coordinates = unravel(f, flat, self.product.outer)
        self.epilogue.finish(f, args, coordinates, row, column, sums, self.group)

    def _count(self, f: llvm.Function, panel: Value, row: Value) -> Value:
        """The rows of a panel, which begins at `row`."""
        whole = self.whole
        if whole.rest:
            return f.min(f.sub(self.product.rows, row), whole.size)
        if not whole.larger:
            return f.constant("i64", whole.size)
        return f.add(f.cast("zext", f.compare("ult", panel, whole.larger), "i64"), whole.size)

    def _call(
        self,
        f: llvm.Function,
        micros: _Micros,
        panel: Value,
        count: Value,
        operands: tuple[Value, ...],
        place: tuple[Value, ...],
        after: tuple[Callable[[], None], _Micros, tuple[Value, ...]] | None = None,
    ) -> None:
        """Calls the micro-kernel of a panel of `count` rows, which is at `place`: (args, outer,
        row, column); those of its parts where it has fewer rows than the others. `after`: what
        makes the right side that they read, and computes them."""
        whole = self.whole
        if whole.rest:
            branch = f.if_else(f.compare("eq", count, whole.size))
            with branch.then():
                self._micro(f, micros, whole.size, operands, place)
            with branch.otherwise():
                if after is not None:
                    prepare, micros, operands = after
                    prepare()

                def part(height: int, rows: Value, above: Value) -> None:
                    self._micro(f, micros, height, operands, place, (rows, above))

                emit_rest(f, whole.rest, count, part)
        elif whole.larger:
            branch = f.if_else(f.compare("ult", panel, whole.larger))
            with branch.then():
                self._micro(f, micros, whole.size + 1, operands, place)
            with branch.otherwise():
                self._micro(f, micros, whole.size, operands, place)
        else:
            self._micro(f, micros, whole.size, operands, place)

    def _micro(
        self,
        f: llvm.Function,
        micros: _Micros,
        rows: int,
        operands: tuple[Value, ...],
        place: tuple[Value, ...],
        part: tuple[Value, Value] | None = None,
    ) -> None:
        """Calls one micro-kernel; `part`: its rows, and those of the panel above them, where that
        has fewer rows than the others."""
        left, right, target, *rest = operands
        args, flat, row, column = place
        if part is not None:
            above = part[1]
            element = self.product.accumulator
            left = f.pointer(left, f.mul(above, self.whole.left.row_stride), element)
            target = f.pointer(target, f.mul(above, self.tile_stride), element)
        every = [left, right, target, *rest]
        finishes = self.finishes and part is None
        if finishes or micros.is_open:
            every.append(args)
        if finishes:
            every += flat, row, column
        if part is not None:
            every.append(part[0])
        if micros.masked:
            every.append(f.lift(self.group.valid(f, column), "i64"))
        f.call(micros.names[rows], "void", *every)

    def _fetch(self) -> _Fetch:
        """How panels that lie one behind the other are fetched ahead."""
        group, right = self.group, self.whole.right
        depth, steps = at_hint(self.cut.depth), at_hint(self.whole.steps)
        bytes_of_step = group.columns * llvm.bits_of(self.product.accumulator) // 8
        follows = not right.packed or (self.whole.kept and self.cut.groups > 1)
        in_place = follows and len(self.depth) == 1 and self.depth[0].right == group.columns
        size = steps * bytes_of_step
        useful = size >= _STREAMED_PANEL and self.cut.panels > 1 and not group.partial
        if not (in_place and useful):
            return _Fetch(0, 0, 0)
        unroll = Micro.turns(self.whole.most * group.vectors, depth)
        turns = max(1, depth // unroll)
        part = depth * bytes_of_step
        lines = min(_MOST_LINES, -(-part // (LINE * turns * self.cut.panels)))
        # After a depth block of the only group comes the next depth block.
        following = part if self.whole.cut_depth and self.cut.groups == 1 else size
        return _Fetch(following, lines, lines * turns * LINE, part)

    def _stream(self) -> int:
        """Bytes ahead that a right side is fetched of which every element is used once."""
        whole = self.whole
        once = at_hint(whole.panels) <= 2 and not self.cut.pack_right and not self.group.partial
        if not once or not products.streamed(products.at_hints(whole.shape)):
            return 0
        if whole.cut_depth and self.depth[0].right > self.group.columns:
            # Rows of the right side, read side by side: the next ones, where this group is.
            return self.cut.depth * self.depth[0].right * whole.shape.element_bytes
        return _STREAM_AHEAD


@dataclass(frozen=True)
class _Micros:
    """Micro-kernels by the rows of their panels, and what they take beside the usual."""

    names: dict[int, str]
    is_open: bool
    masked: bool


@dataclass(frozen=True)
class _Fetch:
    """Brings the right side's next panel into L2 while products with this one are formed: weights
    come from memory, and each pass over a panel has time for a part of the next."""

    following: int  # bytes to what is read next; 0: panels do not lie so, or are small
    lines: int  # per turn of the micro-kernel's loop
    per_pass: int  # bytes
    part: int = 0  # bytes of a panel that one depth block reads

    def pointer(self, f: llvm.Function, right: Value, number: Value) -> Value:
        """Where pass `number` over a panel fetches; once all is fetched, what is there already."""
        if not self.following:
            return right
        part = f.mul(number, self.per_pass)
        following = f.pointer(right, f.add(part, self.following), "i8")
        return f.select(f.compare("ult", part, self.part), following, right)


def _merged(
    sizes: tuple[int, ...], left: LeftSide, right: RightSide, group: ColumnGroup
) -> tuple[Depth, ...]:
    """Loops over the depth: those that walk evenly become one, those of one step go."""
    merged: list[Depth] = []
    for loop in zip(sizes, left.depth, right.strides(group), strict=True):
        size, a, b = loop
        if size == 1:
            continue
        if merged and (merged[-1].left, merged[-1].right) == (size * a, size * b):
            merged[-1] = Depth(merged[-1].size * size, a, b)
        else:
            merged.append(Depth(size, a, b))
    return tuple(merged)
