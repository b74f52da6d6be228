"""Products of narrow numbers: bf16 summed in f32, 8-bit integers summed in i32.

    out[outer, row, column] =
        epilogue(sum over depth of left[outer, row, depth] * right[outer, depth, column])

One instruction forms several products per sum, so operands lie in groups of four bytes along the
depth: left rows contiguous, right columns as [depth / group, columns, group]. A side that lies so
already is read in place; another one is brought into that order in scratch, with zeros behind its
last step. A tile is some column groups of one row block; any split of the tiles gives the same
bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....hlo.deciding import at_hint
from ....hlo.symbols import SymbolicDim
from ....hlo.views import Dimension, Segment, align, merged_depth
from ... import llvm
from ..codegen import Target
from . import pairs, tiles_amx
from .group_lines import line_groups
from .group_sides import LeftRows, RightGroups, left_rows, right_groups
from .operands import ColumnGroup, ColumnGroups, unravel
from .product import Product

Value = llvm.Value

VECTORS = 2  # of 16 columns in a column group
_LANES = 16
_WORD = 4  # bytes of a group
GROUP_COLUMNS = VECTORS * _LANES  # also the width of a packed weight's panels
_LEFT_BYTES = 3 << 18  # of a row block: stays in L2 beside the right side's groups
_FETCHED_BYTES = 1 << 15  # of a column group's weights, for which the next one's are fetched
_PASSES = 2  # over a column group, in which those of the next one are fetched
_ENOUGH_TILES = 16
_MANY_ROWS = 8  # packed rows of a block for each column that is packed anew
_LEAST_TILES = 4
_COPIED_COLUMNS = 128  # for which rows that crowd a cache are copied apart
_LEAST_GROUPS = 4  # column groups that share a row block that must be packed


@dataclass(frozen=True)
class Engine:
    """How sums are formed: `tiles` or vectors; `unit` rows at a time; `step` bytes of depth."""

    tiles: bool
    unit: int
    step: int
    elements: tuple[str, str]

    @property
    def group(self) -> int:
        """Elements in four bytes."""
        return 2 if self.elements[0] == "bf16" else 4

    @property
    def steps(self) -> int:
        """Elements in `step` bytes."""
        return self.step * self.group // 4


def engine_for(
    target: Target, left_element: Any, right_element: Any, accumulator: str
) -> Engine | None:
    """The engine for products of those stored elements; None where the target has none."""
    left, right = left_element.name, right_element.name
    if target.vector_bits != 512:
        return None
    floats = left == right == "bf16" and accumulator == "float"
    integers = {left, right} <= {"i8", "ui8"} and accumulator == "i32"
    if not floats and not integers:
        return None
    if tiles_amx.supports(target, "bf16" if floats else "i8"):
        return Engine(True, tiles_amx.UNIT, tiles_amx.BYTES, (left, right))
    if pairs.supports(target, left, right):
        return Engine(False, pairs.unit(left), 4, (left, right))
    return None


def emit_grouped(module: llvm.Module, name: str, product: Product) -> tuple[int, int] | None:
    """Defines the kernel `name`; its tiles and scratch bytes. None where no engine fits, or the
    call decides columns or depth."""
    elements = product.left.source.element, product.right.source.element
    engine = engine_for(product.target, *elements, product.accumulator)
    steps = math.prod(product.depth)
    if engine is None or not steps or not product.rows or not product.columns:
        return None
    if isinstance(steps, SymbolicDim) or isinstance(product.columns, SymbolicDim):
        return None
    depth = -(-steps * 4 // engine.group // engine.step) * engine.step
    reused = engine.unit < at_hint(product.rows) and product.columns >= _COPIED_COLUMNS
    most = 0 if engine.tiles else engine.unit
    sizes = steps, engine.group, depth, GROUP_COLUMNS
    lines = None if engine.tiles else line_groups(product.left, product.right, *sizes)
    left = left_rows(lines[0] if lines else product.left, steps, engine.group, depth, most, reused)
    if left is None:
        return None
    engine = replace(engine, unit=left.panel or engine.unit)
    right = lines[1] if lines else right_groups(product.right, *sizes)
    if right.stored and (engine.tiles and not right.even or not _loops(left, right, depth)):
        right = RightGroups(product.right, steps, engine.group, depth)
    return _GroupedEmitter(module, name, product, engine, depth, left, right).emit()


def _loops(
    left: LeftRows, right: RightGroups, depth: int, columns: int = GROUP_COLUMNS
) -> list[tuple[int, int, int]]:
    """The depth in steps of four bytes: how many, and how many bytes apart on the left side and in
    a group of so many columns; empty where the sides have no loops in common."""
    *outer, inner = left.runs(depth)
    sides = (*outer, Segment(inner.size // 4, 4)), right.runs(columns)
    whole, other = (Dimension(depth // 4, tuple(segments)) for segments in sides)
    found = align(whole, other)
    return [] if found is None else merged_depth(found) or [(1, 4, 4 * columns)]


class _GroupedEmitter:
    def __init__(
        self,
        module: llvm.Module,
        name: str,
        product: Product,
        engine: Engine,
        depth: int,
        left: LeftRows,
        right: RightGroups,
    ) -> None:
        self.module, self.name, self.product, self.engine = module, name, product, engine
        self.depth, self.left, self.right = depth, left, right  # depth: bytes, padded
        self.width = GROUP_COLUMNS
        self.columns = ColumnGroups(ColumnGroup(_LANES, VECTORS), product.columns)
        self.groups = self.columns.count
        self.units, self.rest = divmod(product.rows, engine.unit)
        self.panels = -(-product.rows // engine.unit)
        self.outer = math.prod(product.outer)
        self.per_block = -(-self._block_panels() // left.panels) * left.panels
        self.blocks = -(-self.panels // self.per_block)
        self.parts = self._column_parts()

    def _block_panels(self) -> int:
        """Units of rows of a block."""
        others, panels = max(1, at_hint(self.outer) * self.groups), max(1, at_hint(self.panels))
        if not self.right.stored:
            # Every block brings the right side into groups anew, which costs more than reading the
            # left side from beyond L2.
            blocks = -(-_LEAST_TILES // others)
            if self.left.packed:
                # Unless that is little beside packing the block's rows, which then stay near.
                rows = at_hint(self.product.rows)
                blocks = max(blocks, rows // (_MANY_ROWS * self.product.columns))
            return -(-panels // min(panels, blocks))
        fits = max(1, _LEFT_BYTES // max(1, self.left.bytes_of(self.engine.unit)))
        blocks = -(-panels // fits)
        if others * blocks < _ENOUGH_TILES:
            blocks = min(panels, -(-_ENOUGH_TILES // others))
        return -(-panels // blocks)

    def _column_parts(self) -> int:
        """Parts that the column groups are cut into; each packs the left side for itself."""
        if not self.left.packed:
            return self.groups
        others = max(1, at_hint(self.outer * self.blocks))
        # Lines that neighbours share are quickly copied again.
        least = _LEAST_GROUPS // 2 if self.left.panel else _LEAST_GROUPS
        return min(-(-_ENOUGH_TILES // others), max(1, self.groups // least))

    def emit(self) -> tuple[int, int]:
        for kind, group in self.columns.kinds:
            self._emit_group(f"{self.name}_{kind}", group)
        engine, product = self.engine, self.product
        f = self.module.kernel(self.name)
        args, begin, end, scratch = f.arguments
        if engine.tiles:
            tiles_amx.configure(f, engine.unit if self.units != 0 else self.rest)
        per_part = -(-self.groups // self.parts)
        parts = -(-self.groups // per_part)
        with f.for_range(begin, end) as loop:
            part, index = f.urem(loop.index, parts), f.udiv(loop.index, parts)
            block, flat = f.urem(index, self.blocks), f.udiv(index, self.blocks)
            first = f.mul(block, self.per_block)
            final = f.min(f.add(first, self.per_block), self.panels)
            if self.left.packed:
                last_row = f.min(f.mul(final, engine.unit), product.rows)
                coordinates = unravel(f, flat, product.outer)
                self.left.pack(f, args, coordinates, f.mul(first, engine.unit), last_row, scratch)
            start = f.mul(part, per_part)
            stop = f.min(f.add(start, per_part), self.groups)
            with f.for_range(start, stop, at_least_once=True) as inner:
                column = self.columns.first_column(f, inner.index)
                operands = args, flat, first, final, column, scratch

                def call(kind: str, _: ColumnGroup, operands: tuple[Value, ...] = operands) -> None:
                    f.call(f"{self.name}_{kind}", "void", *operands)

                self.columns.each_kind(f, inner.index, call)
        if engine.tiles:
            tiles_amx.release(f)
        f.ret()
        return self.outer * self.blocks * parts, self._left_bytes + self.right.scratch(self.width)

    @property
    def _left_bytes(self) -> int:
        rows = self.per_block * self.engine.unit
        if not isinstance(self.product.rows, SymbolicDim):
            rows = min(rows, self.product.rows)
        return -(-self.left.scratch(rows) // 64) * 64

    def _micro(self, name: str, rows: int, group: ColumnGroup, tile_pitch: int) -> None:
        """Defines the innermost kernel for blocks of `rows` rows."""
        engine = self.engine
        pitches = self.left.pitch, self.right.pitch(group), tile_pitch
        if engine.tiles:
            instruction = tiles_amx.product_name(*engine.elements)
            tiles_amx.emit_tile_micro(
                self.module, name, instruction, rows, group.vectors, self.depth, *pitches
            )
        else:
            pairs.emit_vector_micro(
                self.module, name, engine.elements, rows, group.vectors,
                _loops(self.left, self.right, self.depth, group.columns), self.left.pitch,
                tile_pitch, self._fetched,
            )  # fmt: skip

    @property
    def _weights_fetched(self) -> int:
        """Lines of the next column group's weights that are brought near with each step of the
        depth: large weights come from memory, and two passes over a group's have time for it."""
        step = self.right.pitch(self.columns.full)
        whole = self.right.stored and self.right.even and self.groups > 1
        useful = whole and self.depth // 4 * step >= _FETCHED_BYTES
        return 0 if self.engine.tiles or not useful else -(-step // pairs.LINE // _PASSES)

    @property
    def _fetched(self) -> int:
        """Lines that are brought near with each step: of weights, or of the next rows where these
        lie one behind the other, which no cache expects: a step reads a word of each."""
        follow = not self.left.packed and self.left.pitch == self.depth and not self.engine.tiles
        rows = -(-self.engine.unit * _WORD // pairs.LINE) if follow else 0
        return max(self._weights_fetched, rows)

    def _ahead(self, f: llvm.Function, left: Value, right: Value, number: Value) -> Value:
        """Where pass `number` over a column group fetches."""
        rows = f.pointer(left, self.engine.unit * self.left.pitch, "i8")
        if not self._weights_fetched:
            return rows
        size = self.depth // 4 * self.right.pitch(self.columns.full)
        following = f.pointer(right, f.add(f.mul(number, size // _PASSES), size), "i8")
        return f.select(f.compare("ult", number, _PASSES), following, rows)

    def _emit_group(self, name: str, group: ColumnGroup) -> None:
        """Defines name(args, outer, first panel, end panel, column, scratch): a column group."""
        parameters = [
            ("ptr noalias readonly", "args"),
            ("i64", "outer"),
            ("i64", "first"),
            ("i64", "last"),
            ("i64", "column"),
            ("ptr noalias", "scratch"),
        ]
        product, engine, epilogue = self.product, self.engine, self.product.epilogue
        plain = epilogue.plain and not group.tail
        tile_pitch = 4 * (epilogue.rows[1] if plain else group.columns)
        if self.units != 0:
            self._micro(name + "_rows", engine.unit, group, tile_pitch)
        opened = isinstance(self.rest, SymbolicDim)
        rests = {self.rest: name + "_rest"} if self.rest else {}
        if opened:
            # What is configured says how many rows a block in tiles has, but for the upper half.
            counts = [tiles_amx.ROWS] if engine.tiles else range(1, engine.unit)
            rests = {rows: f"{name}_rest{rows}" for rows in counts}
        for rows, micro in rests.items():
            self._micro(micro, rows, group, tile_pitch)
        f = self.module.helper(name, parameters, inline="noinline")
        args, flat, first, last, column, scratch = f.arguments
        coordinates = unravel(f, flat, product.outer)
        panel = f.pointer(scratch, self._left_bytes, "i8")
        right = self.right.open(f, args, coordinates, column, group, panel)
        tile = f.alloca(product.accumulator, 0 if plain else engine.unit * group.columns)

        def block(number: Value, rows: int | Value, micro: str) -> None:
            row = f.mul(number, engine.unit)
            if self.left.packed:
                start = self.left.place(f, f.sub(row, f.mul(first, engine.unit)))
                left = f.pointer(scratch, start, "i8")
            else:
                left = self.left.rows(f, args, coordinates, row)
            if isinstance(rows, int):
                epilogue.fetch(f, args, coordinates, row, column, rows, group)
            target = epilogue.pointer(f, args, coordinates, row, column) if plain else tile
            operands = [left, right, target]
            if not engine.tiles:
                operands.append(self._ahead(f, left, right, f.sub(number, first)))
            f.call(micro, "void", *operands)
            if not plain:
                count = f.lift(rows, "i64")
                epilogue.emit(f, args, coordinates, row, column, count, tile, group)

        if self.units != 0:
            with f.for_range(first, f.min(last, self.units)) as loop:
                block(loop.index, engine.unit, name + "_rows")
        if opened:
            # Behind the units of the last block of rows, where there are rows left.
            with f.if_then(f.compare("slt", self.units, last)):
                units, rest = f.constant("i64", self.units), f.constant("i64", self.rest)
                if engine.tiles:
                    tiles_amx.configure(f, rest)
                    branch = f.if_else(f.compare("sgt", rest, tiles_amx.ROWS))
                    with branch.then():
                        block(units, rest, name + "_rows")
                    with branch.otherwise():
                        block(units, rest, rests[tiles_amx.ROWS])
                    tiles_amx.configure(f, engine.unit)
                else:
                    f.switch(rest, {
                        rows: partial(block, units, rows, micro) for rows, micro in rests.items()
                    })  # fmt: skip
        elif self.rest:
            with f.if_then(f.compare("eq", last, self.panels)):
                if engine.tiles and self.units:
                    tiles_amx.configure(f, self.rest)
                block(llvm.constant("i64", self.units), self.rest, name + "_rest")
                if engine.tiles and self.units:
                    tiles_amx.configure(f, engine.unit)
        f.ret()
