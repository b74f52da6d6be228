"""How a product is cut: into tiles, row blocks, depth blocks and what registers hold.

    tile            `blocks` row blocks of `groups` column groups
      right side    packed once for the tile, if `pack_right`
      row block     `panels` row panels; its left side packed, if `pack_left`
        depth block `depth` steps
          group     `vectors` registers wide
            panel   up to `rows` rows: the micro-kernel

`candidates` are all cuts that an emitter can make of a product, as columns of one array, so that
a cost model scores them at once (`product_prices.py`); `default` is a choice without a machine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace

import numpy as np

from ...hlo.deciding import at_hint, surely_at_most
from ...hlo.symbols import SymbolicDim

PANEL_VECTORS = 2  # of packed weights: what a micro-kernel with rows enough takes at once
_LEFT_BYTES = 3 << 18  # of a row block: what stays in an L2 cache of 2 MB beside other traffic
_LEAST_PANELS = 6  # row panels of a row block, if there are as many
_LARGE_RESULT = 1 << 22
_RESULT_BYTES = 1 << 18  # of a row block of a shallow product
_SHALLOW = 96  # depth steps
_PACKED_PANELS = 4  # row panels of a row block that is packed
_LEAST_GROUPS = 4  # column groups that share a packed row block, if there are as many
_SHARING_GROUPS = 16  # the same where the left side could be read in place
_ENOUGH_TILES = 8
_FEW_TILES = 4
_PACK_FROM_ROWS = 40  # rows that make a tidy copy of the right side pay
_LARGEST_PANEL = 1 << 21  # elements of a packed panel
_STREAMED_RIGHT = 1 << 20  # bytes of a right side that comes from far
_STREAMED_DEPTH = 256  # steps
_LONG_DEPTH = 2048
_NEAR = 1 << 18  # bytes of the right side that may be on their way
_STREAMED_ROWS = 8, 32  # of a right side, read side by side for few rows and for more
_SMALL_RIGHT = 1 << 17  # bytes of a right side that stays near in any order
_FEW_ROWS = 6  # for which a column group is as wide as registers allow
_WIDE = 3  # vectors of a column group of a right side from far, read for more rows than a few
_SCATTERED = 1 << 10  # bytes between depth steps of the left side
_SAME_SETS = 1 << 12  # bytes between rows that then share the sets of a first-level cache
_WAYS = 8  # lines that such a set holds: 8 where caches have 32 KiB, 12 where they have 48
_REST_ROWS = 8  # of a micro-kernel of fewer rows than a panel's, at most
_SUMS_IN_FLIGHT = 8  # vectors: two additions in each cycle, of which each takes four
_LARGEST_SCRATCH = 1 << 27  # bytes


@dataclass(frozen=True)
class Blocking:
    """One way to cut a product; the module's text says what is inside what."""

    rows: int  # of a micro-kernel, at most
    vectors: int  # of a column group
    depth: int  # steps summed in registers
    panels: int  # row panels of a row block
    blocks: int  # row blocks of a tile
    groups: int  # column groups of a tile
    pack_left: bool
    pack_right: bool


@dataclass(frozen=True)
class ProductShape:
    """What decides which blockings a product has, and what they cost. Strides in elements; a side
    that `must_pack` does not lie as the micro-kernel reads it."""

    outer: int  # products side by side
    rows: int
    columns: int
    depth: int  # steps
    element_bytes: int  # of the accumulator
    lanes: int
    registers: int
    left_row_stride: int
    left_depth_stride: int  # of the innermost depth loop
    left_must_pack: bool
    left_may_pack: bool
    right_depth_stride: int  # of the innermost depth loop
    right_block: int  # columns that lie side by side; 0: all
    right_must_pack: bool
    right_by_vector: bool  # whether packing costs little
    even_depth: bool  # one loop on both sides, which may be cut anywhere
    plain_result: bool  # sums are results as they are

    def width_fits(self, vectors: int) -> bool:
        """Whether groups of so many vectors never begin inside a block and end behind it."""
        width = vectors * self.lanes
        block = self.right_block
        return not block or block % width == 0 or width % block == 0


def at_hints(shape: ProductShape) -> ProductShape:
    """The shape where blockings are chosen; nothing in it is empty that a call decides."""
    sizes = {f.name: getattr(shape, f.name) for f in fields(shape)}
    chosen = {n: max(1, at_hint(s)) for n, s in sizes.items() if isinstance(s, SymbolicDim)}
    return replace(shape, **chosen)


FIELDS = np.dtype(
    [(name, np.int64) for name in ("rows", "vectors", "depth", "panels", "blocks", "groups")]
    + [("pack_left", np.bool_), ("pack_right", np.bool_)]
)

_CUTS = ("depth", "pack_left", "pack_right", "panels", "groups")


def blocking_of(row: np.void) -> Blocking:
    """One element of `candidates` as a Blocking."""
    return Blocking(*(value.item() for value in row))


def largest_rows(registers: int, vectors: int) -> int:
    """Rows whose accumulators, with the right side's vectors and one left value, fit registers."""
    return max(1, (registers - 1 - vectors) // vectors)


def crowded(shape: ProductShape) -> bool:
    """Whether the rows of the left side share the sets of a first-level cache where they lie."""
    stride = shape.left_row_stride * shape.element_bytes
    return isinstance(stride, int) and stride > 0 and stride % _SAME_SETS == 0


def most_rows(shape: ProductShape, vectors: int, pack_left: bool) -> int:
    """Rows of a micro-kernel: what registers hold, and what the cache can keep of a left side that
    is read in place."""
    most = largest_rows(shape.registers, vectors)
    return most if pack_left or not crowded(shape) else min(most, _WAYS)


def row_panels(rows: int, most: int) -> tuple[int, int, int]:
    """(panels, size, larger): `larger` panels of size + 1 rows, then those of `size` rows; where
    the call decides the rows, all have as many as they may, but for the last."""
    panels = -(-rows // most)
    if isinstance(rows, SymbolicDim):
        return panels, most, 0
    return panels, *divmod(rows, max(1, panels))


def rest_heights(rows: int, most: int, vectors: int) -> tuple[int, ...]:
    """Where the call decides the rows, and panels have `most`: the rows of the micro-kernels, least
    first, that compute the rest of them in equal parts; none where there is none. Higher ones would
    be more code than they save: for a second part the right side is in a cache. One row more takes
    little more time than code for each number of rows would take to be compiled, and none where
    all sums together do not hide how long an addition takes."""
    if rows % most == 0:
        return ()
    highest = min(-(-most // 2), _REST_ROWS, most - 1)
    lowest = min(highest, -(-_SUMS_IN_FLIGHT // vectors))
    between = range(highest, lowest, -2)
    return tuple(sorted({1, lowest, *between} - {0}))


def scratch_parts(shape: ProductShape, cut: Blocking) -> tuple[int, int, int]:
    """Scratch bytes of the packed left side, the packed right side and partial sums of a tile."""
    _, size, larger = row_panels(shape.rows, cut.rows)
    rows = cut.panels * (size + (larger > 0))
    width = cut.vectors * shape.lanes
    left = rows * padded_depth(shape.depth, shape.element_bytes) if cut.pack_left else 0
    kept = cut.groups if panels_kept(shape, cut) else 1
    right = kept * width * shape.depth if cut.pack_right else 0
    partial = rows * cut.groups * width if cuts_depth(shape, cut) else 0
    first, second, third = (-(-part * shape.element_bytes // 64) * 64
                            for part in (left, right, partial))  # fmt: skip
    return first, second, third


def panels_kept(shape: ProductShape, cut: Blocking) -> bool:
    """Whether all packed panels of a tile are kept: for its other row or depth blocks."""
    return cut.blocks > 1 or cuts_depth(shape, cut)


def cuts_depth(shape: ProductShape, cut: Blocking) -> bool:
    """Whether sums are formed in several parts of the depth."""
    return cut.depth != shape.depth


def opened(shape: ProductShape, cut: Blocking) -> Blocking:
    """A blocking of the shape at its hints as one of the shape at all sizes: a depth that is not
    cut there is cut nowhere; nor is one that may be none."""
    whole = cut.depth == at_hint(shape.depth) or not surely_at_most(1, shape.depth)
    return replace(cut, depth=shape.depth) if whole else cut


def padded_depth(depth: int, element_bytes: int) -> int:
    """Elements from one packed row to the next: whole lines, never a large power of two apart."""
    line = max(1, 64 // element_bytes)
    lines = -(-depth // line)
    if isinstance(lines, SymbolicDim):
        return (lines // 2 * 2 + 1) * line
    return (lines | 1) * line if lines > 8 else lines * line


def _powers(limit: int) -> list[int]:
    """1, 2, 4, ... and `limit` itself."""
    powers = [1 << bit for bit in range(limit.bit_length()) if 1 << bit < limit]
    return [*powers, max(1, limit)]


def vector_choices(shape: ProductShape) -> list[int]:
    """Widths of a column group that the right side allows, in vectors."""
    most = max(1, min(-(-shape.columns // shape.lanes), 8, (shape.registers - 2) // 2))
    fitting = [v for v in range(1, most + 1) if v in (1, 2, 3, 4, 6, 8) and shape.width_fits(v)]
    return fitting or [1]


def candidates(shape: ProductShape) -> np.ndarray:
    """All eligible blockings, elements of `FIELDS`, each once and in a fixed order."""
    depths = [shape.depth]
    if shape.even_depth:
        rows = _STREAMED_ROWS if streaming(shape) else ()
        depths += [d for d in (*rows, 128, 256, 384, 512, 1024) if d < shape.depth]
    lefts = [True] if shape.left_must_pack else [False, True] if shape.left_may_pack else [False]
    rights = [True] if shape.right_must_pack else [False, True]
    # Of a left side that crowds in place, panels are lower than those of its copy.
    kinds = [[left] for left in lefts] if crowded(shape) else [lefts]
    found = []
    for vectors, some in itertools.product(vector_choices(shape), kinds):
        most = most_rows(shape, vectors, some[0])
        panels = row_panels(shape.rows, most)[0]
        groups = -(-shape.columns // (vectors * shape.lanes))
        axes = (depths, some, rights, _powers(panels), _powers(groups))
        parts = [part.ravel() for part in np.meshgrid(*map(np.array, axes), indexing="ij")]
        whole = -(-panels // parts[3])
        quarter = -(-whole // 4)
        # One row block in a tile, a quarter of them, or all: where these are not the same.
        for blocks, other in ((np.ones_like(whole), whole > 0), (quarter, quarter > 1),
                              (whole, whole > quarter)):  # fmt: skip
            rows = np.zeros(np.count_nonzero(other), FIELDS)
            rows["rows"], rows["vectors"], rows["blocks"] = most, vectors, blocks[other]
            for name, part in zip(_CUTS, parts, strict=True):
                rows[name] = part[other]
            found.append(rows)
    every = np.concatenate(found)
    return every[scratch_bytes(shape, every) <= _LARGEST_SCRATCH]


def scratch_bytes(shape: ProductShape, cuts: np.ndarray) -> np.ndarray:
    """Scratch bytes of a tile, at most, for an array of blockings."""
    rows = cuts["panels"] * cuts["rows"]
    width = cuts["groups"] * cuts["vectors"] * shape.lanes
    left = np.where(cuts["pack_left"], rows * padded_depth(shape.depth, shape.element_bytes), 0)
    kept = (cuts["blocks"] > 1) | (cuts["depth"] < shape.depth)
    panel = cuts["vectors"] * shape.lanes * shape.depth
    right = np.where(cuts["pack_right"], panel * np.where(kept, cuts["groups"], 1), 0)
    partial = np.where(cuts["depth"] < shape.depth, rows * width, 0)
    return (left + right + partial) * shape.element_bytes


def problem(shape: ProductShape, cut: Blocking) -> str | None:
    """Why a product cannot be cut so; None where it can."""
    groups = -(-shape.columns // (cut.vectors * shape.lanes))
    panels = row_panels(shape.rows, cut.rows)[0]
    checks = {
        "sums that do not fit registers": cut.rows > largest_rows(shape.registers, cut.vectors),
        "counts below one": min(cut.rows, cut.vectors, cut.panels, cut.blocks, cut.groups) < 1,
        "more row panels or column groups than there are":
            cut.panels > panels or cut.groups > groups,
        "columns that do not lie side by side":
            not shape.width_fits(cut.vectors),
        "a left side in place that must be packed": shape.left_must_pack and not cut.pack_left,
        "a packed left side that cannot be": cut.pack_left
            and not (shape.left_may_pack or shape.left_must_pack),
        "a right side in place that must be packed": shape.right_must_pack and not cut.pack_right,
        "a cut of an uneven depth": cut.depth != shape.depth
            and not (shape.even_depth and 0 < cut.depth < shape.depth),
    }  # fmt: skip
    return next((text for text, wrong in checks.items() if wrong), None)


def streamed(shape: ProductShape) -> bool:
    """Whether the right side comes from far and is read where it lies."""
    size = shape.depth * shape.columns * shape.element_bytes
    return size >= _STREAMED_RIGHT and not shape.right_must_pack


def column_vectors(shape: ProductShape) -> int:
    """Vectors of a column group: two where there are rows enough, more for few rows."""
    vectors = PANEL_VECTORS
    rows, columns, lanes = shape.rows, shape.columns, shape.lanes
    # One load of the left side serves more products, and enough sums hide FMA's latency; a right
    # side from memory comes faster as many streams.
    enough = shape.registers if streamed(shape) else 16
    while (
        rows <= _FEW_ROWS
        and vectors < 8
        and rows * (vectors + 2) + vectors + 3 <= shape.registers
        and rows * vectors < enough
    ):
        vectors += 2
    while vectors > 2 and -(-columns // (vectors * lanes)) < 2 * _ENOUGH_TILES:
        vectors -= 2
    vectors = min(vectors, max(1, -(-columns // lanes)))
    while vectors > 1 and not shape.width_fits(vectors):
        vectors -= 1
    return vectors


def streaming(shape: ProductShape) -> Blocking | None:
    """The blocking of a product that takes the time of reading its right side from far, where only
    the order of reading matters; None for others."""
    vectors = column_vectors(shape)
    most = largest_rows(shape.registers, vectors)
    panels = row_panels(shape.rows, most)[0]
    wide = largest_rows(shape.registers, _WIDE)
    lies_far = shape.even_depth and abs(shape.right_depth_stride) > 4 * _WIDE * shape.lanes
    fits = shape.width_fits(_WIDE) and -(-shape.rows // wide) == panels
    if lies_far and fits and vectors < _WIDE and shape.rows > _FEW_ROWS:
        # Fewer and longer runs of each row of the right side.
        vectors, most = _WIDE, wide
    if panels > 2 or shape.left_must_pack or not streamed(shape):
        return None
    width = vectors * shape.lanes
    groups = -(-shape.columns // width)
    depth, column_parts = shape.depth, groups
    if shape.even_depth:
        if abs(shape.right_depth_stride) > 4 * width:
            # A few rows of the right side are read at a time, each from end to end.
            depth = min(depth, _STREAMED_ROWS[shape.rows > _FEW_ROWS])
            near = -(-shape.columns * depth * shape.element_bytes // _NEAR)
            column_parts = min(groups, max(near, -(-_FEW_TILES // shape.outer)))
        elif panels == 2 and depth > _LONG_DEPTH:
            depth = _STREAMED_DEPTH  # what the first panel brought near is there for the second
    return Blocking(most, vectors, depth, panels, 1, -(-groups // column_parts), False, False)


def default(shape: ProductShape) -> Blocking:
    """A sound blocking for any machine with caches of the usual sizes."""
    if found := streaming(shape):
        return found
    vectors = column_vectors(shape)
    width = vectors * shape.lanes
    groups = -(-shape.columns // width)
    pack_right = shape.right_must_pack or _right_pays(shape, width)
    pack_left = shape.left_must_pack or (
        groups >= _SHARING_GROUPS and _left_pays(shape, pack_right)
    )
    most = most_rows(shape, vectors, pack_left)
    panels, size, _ = row_panels(shape.rows, most)
    per_block = _panels_per_block(shape, panels, size, pack_left)
    blocks = -(-panels // per_block)
    wanted = -(-_ENOUGH_TILES // shape.outer)
    column_parts = groups
    if shape.left_must_pack:
        column_parts = min(-(-wanted // blocks), max(1, groups // _LEAST_GROUPS))
    elif pack_left:
        # Each part packs its columns, or its rows, again: few parts.
        wanted = min(wanted, _FEW_TILES)
        column_parts = min(wanted, max(1, groups // _SHARING_GROUPS))
    elif pack_right and shape.depth <= _SHALLOW and blocks >= wanted:
        column_parts = 1
    elif pack_right and blocks > 1:
        wanted = min(wanted, _FEW_TILES)
        column_parts = min(groups, wanted)
    if column_parts * blocks < wanted and not pack_left:
        # A panel of the right side is then opened by several tiles, but all workers have work.
        blocks = min(-(-wanted // column_parts), max(blocks, panels // 3, 1))
        per_block = -(-panels // blocks)
    row_parts = blocks
    if pack_right and not shape.left_must_pack:
        row_parts = min(blocks, -(-wanted // column_parts))
    return Blocking(
        most, vectors, shape.depth, per_block, -(-blocks // row_parts),
        -(-groups // column_parts), pack_left, pack_right,
    )  # fmt: skip


def _right_pays(shape: ProductShape, width: int) -> bool:
    """Whether a tidy copy of a right side that could be read in place is worth making."""
    # Steps that lie close together stream from memory; others use one page and line each.
    near = shape.depth == 1 or abs(shape.right_depth_stride) <= 2 * width
    deep = shape.depth * width > _LARGEST_PANEL
    small = shape.depth * shape.columns * shape.element_bytes <= _SMALL_RIGHT
    return not (near or deep or small or shape.rows < _PACK_FROM_ROWS)


def _left_pays(shape: ProductShape, pack_right: bool) -> bool:
    """The same of the left side: where the rows of a panel would share the sets of a cache, or
    every step of the depth lies on a line of its own."""
    if not shape.left_may_pack or shape.rows < _PACK_FROM_ROWS:
        return False
    stride = shape.left_row_stride * shape.element_bytes
    scattered = abs(shape.left_depth_stride) * shape.element_bytes >= _SCATTERED
    # Where all rows lie one page apart, fewer of them at a time are faster than a copy.
    return scattered or (pack_right and stride % (2 * _SAME_SETS) == 0 and stride > 0)


def _panels_per_block(shape: ProductShape, panels: int, size: int, pack_left: bool) -> int:
    """Row panels whose left side stays in L2."""
    if shape.left_must_pack:
        return min(panels, _PACKED_PANELS)
    panel_bytes = (size + 1) * shape.depth * shape.element_bytes
    per_block = max(_LEAST_PANELS, _LEFT_BYTES // max(1, panel_bytes))
    if panels <= per_block * 3 // 2:
        per_block = panels  # rather than a small second block
    row_bytes = (size + 1) * shape.columns * shape.element_bytes
    large = panels * row_bytes >= _LARGE_RESULT
    if large and shape.depth <= _SHALLOW and shape.right_by_vector and not pack_left:
        # The result is most of the traffic: its rows should be complete while in L2.
        per_block = min(per_block, max(2, _RESULT_BYTES // row_bytes))
    return min(panels, per_block)
