"""The kernel of a product: which tiles there are, and what happens in one.

    out[outer, row, column] =
        epilogue(sum over depth of left[outer, row, depth] * right[outer, depth, column])

Rows are cut into panels that the micro-kernel can hold, panels into blocks whose left side stays in
the L2 cache; columns into groups of a few vectors. A tile is one column group of one row block (of
many column groups, where the left side must be packed first). The sum of an element is always
formed in the same order, so any split of the tiles over workers gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import llvm
from ..codegen import Target
from .epilogue import Epilogue
from .micro import LINE, Depth, Micro, emit_micro, largest_rows
from .operands import Group, LeftSide, RightSide, unravel

Value = llvm.Value

PANEL_VECTORS = 2  # of packed weights: what a micro-kernel with rows enough takes at once
_LEFT_BYTES = 1 << 20  # of a row block: what may stay in half of an L2 cache of 2 MB
_LARGE_RESULT = 1 << 22
_RESULT_BYTES = 1 << 18  # of a row block of a shallow product
_SHALLOW = 96  # depth steps
_PACKED_ROWS = 4  # panels of a row block that is packed
_LEAST_GROUPS = 4  # column groups that share a packed row block, if there are as many
_ENOUGH_TILES = 16
_STREAMED_PANEL = 1 << 14  # bytes of a panel that is worth fetching ahead
_MOST_LINES = 4


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
    def element_bytes(self) -> int:
        return llvm.bits_of(self.accumulator) // 8

    @property
    def depth_steps(self) -> int:
        steps = 1
        for size in self.depth:
            steps *= size
        return steps


def column_vectors(target: Target, rows: int, columns: int, lanes: int) -> int:
    """Vectors of a column group: two where there are rows enough, more for few rows."""
    registers = target.vector_registers
    vectors = PANEL_VECTORS
    if rows <= 6:
        # One load of the left side serves more products, and enough sums hide FMA's latency.
        while (
            vectors < 8 and rows * (vectors + 2) + vectors + 3 <= registers and rows * vectors < 16
        ):
            vectors += 2
    while vectors > 2 and -(-columns // (vectors * lanes)) < _ENOUGH_TILES:
        vectors -= 2
    return min(vectors, max(1, -(-columns // lanes)))


@dataclass(frozen=True)
class _Rows:
    """Rows in `panels` of `size` or, the first `larger` ones, `size` + 1; blocks of panels."""

    panels: int
    size: int
    larger: int
    per_block: int

    @property
    def blocks(self) -> int:
        return -(-self.panels // self.per_block)

    def first(self, f: llvm.Function, panel: Value) -> Value:
        """The first row of a panel."""
        return f.add(f.mul(panel, self.size), f.min(panel, self.larger))


def _cut_rows(product: Product, vectors: int, groups: int) -> _Rows:
    panels = -(-product.rows // largest_rows(product.target, vectors))
    size, larger = divmod(product.rows, panels)
    if product.left.packed:
        return _Rows(panels, size, larger, min(panels, _PACKED_ROWS))
    panel_bytes = (size + 1) * product.depth_steps * product.element_bytes
    per_block = max(8, _LEFT_BYTES // max(1, panel_bytes))
    row_bytes = (size + 1) * product.columns * product.element_bytes
    large = panels * row_bytes >= _LARGE_RESULT
    if large and product.depth_steps <= _SHALLOW and product.right.by_vector:
        # The result is most of the traffic: its rows should be complete while they are in L2.
        per_block = min(per_block, max(2, _RESULT_BYTES // row_bytes))
    blocks = -(-panels // per_block)
    outer = 1
    for count in product.outer:
        outer *= count
    if outer * groups * blocks < _ENOUGH_TILES:
        # A panel of the right side is then opened by several tiles, but all workers have work.
        blocks = min(-(-_ENOUGH_TILES // (outer * groups)), max(blocks, panels // 3, 1))
    return _Rows(panels, size, larger, -(-panels // blocks))


def emit_product(module: llvm.Module, name: str, product: Product) -> tuple[int, int]:
    """Defines the kernel `name`; its tiles and scratch bytes."""
    lanes = product.target.lanes(product.accumulator)
    vectors = column_vectors(product.target, product.rows, product.columns, lanes)
    width = vectors * lanes
    whole, rest = divmod(product.columns, width)
    full = Group(lanes, vectors) if whole else None
    last = Group(lanes, -(-rest // lanes), rest % lanes) if rest else None
    groups = whole + (rest > 0)
    rows = _cut_rows(product, vectors, groups)
    outer = 1
    for count in product.outer:
        outer *= count

    left_bytes = 0
    if product.left.packed:
        left_bytes = rows.per_block * (rows.size + 1) * product.depth_steps * product.element_bytes
        left_bytes = -(-left_bytes // 64) * 64
    panel_bytes = width * product.depth_steps * product.element_bytes if product.right.packed else 0
    for group, suffix in ((full, "_full"), (last, "_last")):
        if group is not None:
            _emit_group(module, name + suffix, product, group, rows, left_bytes)

    # Groups of a tile: one, or, to use a packed left side often, many.
    tile_groups = _groups_per_tile(outer * rows.blocks, groups) if product.left.packed else 1
    parts = -(-groups // tile_groups)
    f = module.kernel(name)
    args, begin, end, scratch = f.arguments
    with f.for_range(begin, end) as loop:
        part, block = f.urem(loop.index, parts), f.udiv(loop.index, parts)
        block, flat = f.urem(block, rows.blocks), f.udiv(block, rows.blocks)
        first = f.mul(block, rows.per_block)
        final = f.min(f.add(first, rows.per_block), rows.panels)
        if product.left.packed:
            coordinates = unravel(f, flat, product.outer)
            product.left.pack(
                f, args, coordinates, rows.first(f, first), rows.first(f, final), scratch
            )
        start = f.mul(part, tile_groups)
        stop = f.min(f.add(start, tile_groups), groups)
        with f.for_range(start, stop, at_least_once=True) as inner:
            number = inner.index
            column = f.mul(number, width)
            operands = args, flat, first, final, column, scratch
            if full and last:
                branch = f.if_else(f.compare("ult", number, whole))
                with branch.then():
                    f.call(name + "_full", "void", *operands)
                with branch.otherwise():
                    f.call(name + "_last", "void", *operands)
            else:
                f.call(name + ("_full" if full else "_last"), "void", *operands)
    f.ret()
    return outer * rows.blocks * parts, left_bytes + panel_bytes


def _groups_per_tile(others: int, groups: int) -> int:
    """Column groups of a tile whose left side is packed for it; `others` tiles beside exist."""
    parts = min(-(-_ENOUGH_TILES // max(1, others)), max(1, groups // _LEAST_GROUPS))
    return -(-groups // parts)


def _emit_group(
    module: llvm.Module, name: str, product: Product, group: Group, rows: _Rows, panel_at: int
) -> None:
    """Defines name(args, outer, first panel, end panel, column, scratch): one group of columns."""
    parameters = [
        ("ptr noalias readonly", "args"),
        ("i64", "outer"),
        ("i64", "first"),
        ("i64", "last"),
        ("i64", "column"),
        ("ptr noalias", "scratch"),
    ]
    epilogue = product.epilogue
    plain = epilogue.plain and not group.tail
    tile_stride = epilogue.rows[1] if plain else group.columns
    sizes = {rows.size: name + "_rows"}
    if rows.larger:
        sizes[rows.size + 1] = name + "_rows1"
    loops = zip(product.depth, product.left.depth, product.right.strides(group), strict=True)
    depth = _merged([Depth(*loop) for loop in loops])
    fetch = _fetch(product, group, depth, rows)
    for size, micro_name in sizes.items():
        micro = Micro(
            product.accumulator,
            group.lanes,
            size,
            product.left.row_stride,
            product.right.offsets(group),
            depth,
            tile_stride,
            group.tail if product.right.mask_tail(group) else 0,
        )
        fetch.lines = fetch.lines or fetch.lines_per_turn(micro)
        emit_micro(module, micro_name, replace(micro, ahead=fetch.lines))

    f = module.helper(name, parameters, inline="noinline")
    args, flat, first, last, column, scratch = f.arguments
    coordinates = unravel(f, flat, product.outer)
    panel = f.pointer(scratch, panel_at, "i8")
    right = product.right.open(f, args, coordinates, column, group, panel)
    start = rows.first(f, first)
    tile = f.alloca(product.accumulator, 0 if plain else (rows.size + 1) * group.columns)
    with f.for_range(first, last) as loop:
        row = rows.first(f, loop.index)
        if product.left.packed:
            place = f.mul(f.sub(row, start), product.left.row_stride)
            left = f.pointer(scratch, place, product.accumulator)
        else:
            left = product.left.rows(f, args, coordinates, row)
        target = epilogue.pointer(f, args, coordinates, row, column) if plain else tile
        operands = left, right, target, fetch.pointer(f, right, f.sub(loop.index, first))
        count: Value = llvm.constant("i64", rows.size)
        if rows.larger:
            branch = f.if_else(f.compare("ult", loop.index, rows.larger))
            with branch.then():
                f.call(sizes[rows.size + 1], "void", *operands)
            with branch.otherwise():
                f.call(sizes[rows.size], "void", *operands)
            more = f.cast("zext", f.compare("ult", loop.index, rows.larger), "i64")
            count = f.add(count, more)
        else:
            f.call(sizes[rows.size], "void", *operands)
        if not plain:
            epilogue.emit(f, args, coordinates, row, column, count, tile, group)
    f.ret()


@dataclass
class _Fetch:
    """Brings the right side's next panel into L2 while products with this one are formed: weights
    come from memory, and each pass over a panel has time for a part of the next."""

    panel_bytes: int  # 0: panels do not lie one behind the other, or are small
    passes: int
    lines: int = 0  # per turn of the micro-kernel's loop
    _bytes: int = 0  # per pass

    def lines_per_turn(self, micro: Micro) -> int:
        if not self.panel_bytes:
            return 0
        turns = max(1, micro.depth[0].size // micro.unroll)
        lines = min(_MOST_LINES, -(-self.panel_bytes // (LINE * turns * self.passes)))
        self._bytes = lines * turns * LINE
        return lines

    def pointer(self, f: llvm.Function, right: Value, number: Value) -> Value:
        """Where pass `number` over a panel fetches; once all is fetched, what is there already."""
        if not self.panel_bytes:
            return right
        part = f.mul(number, self._bytes)
        following = f.pointer(right, f.add(part, self.panel_bytes), "i8")
        return f.select(f.compare("ult", part, self.panel_bytes), following, right)


def _fetch(product: Product, group: Group, depth: tuple[Depth, ...], rows: _Rows) -> _Fetch:
    size = product.depth_steps * group.columns * product.element_bytes
    in_place = not product.right.packed and len(depth) == 1 and depth[0].right == group.columns
    useful = size >= _STREAMED_PANEL and rows.per_block > 1 and not group.tail
    return _Fetch(size if in_place and useful else 0, rows.per_block)


def _merged(depth: list[Depth]) -> tuple[Depth, ...]:
    """Loops that walk evenly become one; loops of one step go."""
    merged: list[Depth] = []
    for loop in depth:
        if loop.size == 1:
            continue
        if (
            merged
            and merged[-1].left == loop.size * loop.left
            and merged[-1].right == loop.size * loop.right
        ):
            merged[-1] = Depth(merged[-1].size * loop.size, loop.left, loop.right)
        else:
            merged.append(loop)
    return tuple(merged)
