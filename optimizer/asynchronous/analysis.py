"""What a tile function has to be for units that multiply while windows come, and what of it goes
where.

It is taken if its products fit such a unit and their operands are windows that can be brought, or
values of the same thread. Then every tile value has a *role* for each dim: ROW (spread over groups
and lanes as the rows of a product), COLUMN, or UNIT (size 1). `analyse` finds panels (windows that
go to shared memory), products and roles, or says why there are none. It looks at what the function
does, never at what it is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...hlo.deciding import surely_at_most, surely_below, surely_divides
from ...hlo.graph import Op, Region, Value
from ...hlo.offsets import Offsets
from ...hlo.precision import TF32, may_use_tf32
from ...hlo.types import BF16, F16, F32, I32
from .check import Check
from .roles import RolePropagation, merged
from .work import Panel, PipelineProduct, PipelineWork, box_width, shape

if TYPE_CHECKING:
    from ...backends.capabilities import BoxCopies, Capabilities, MatrixUnit

_MOST_GROUPS = 4  # of grains of rows that a tile has
_MOST_TRIES = 16  # ways to take the sides of its products


def analyse(kernel: Op, able: Capabilities) -> PipelineWork | str:
    """What there is to know of a kernel_call; or why it is none for such units."""
    body = kernel.regions[0]
    loops = [op for op in body.ops if op.name == "tile_for"]
    loop = loops[0] if loops else None
    regions = [body, *([loop.regions[0]] if loop is not None else [])]
    dots = [op for region in reversed(regions) for op in region.ops if op.name == "dot_general"]
    if able.boxes is None:
        return "no copies of windows that threads do not wait for"
    if len(loops) > 1:
        return "it has several loops"
    reason = _misplaced(kernel, regions)
    if reason:
        return reason
    if not dots:
        return "it has no product"
    if any(start >= 0 for start in kernel.starts):
        return "a result starts as a copy of an input"
    sizes = (*kernel.grid, *(value.tensor.size for value in body.arguments))
    if not all(surely_at_most(1, size) for size in sizes):
        return "it has no tiles, or empty arrays"
    for flips in itertools.islice(itertools.product((False, True), repeat=len(dots)), _MOST_TRIES):
        found = _WorkAnalysis(kernel, loop, regions, able, able.boxes).run(dots, flips)
        if not isinstance(found, str):
            return found
        reason = reason or found
    return reason


def _misplaced(kernel: Op, regions: Sequence[Region]) -> str:
    """Why operations cannot be where they are, "" where they can."""
    results = set(regions[0].arguments[len(kernel.operands) :])
    for region in regions:
        outermost = region is regions[0]
        for op in region.ops:
            if op.definition.numbered:
                return f"a {op.name} has rows by number"
            if op.name == "tile_store" and (not outermost or op.masked or op.combine):
                return "a store inside the loop, with a mask, or that combines"
            if op.name == "tile_load" and op.operands[0] in results:
                return "it reads what it stores"
            loop = outermost and op.name == "tile_for"
            if op.definition.pattern == "control" and not loop:
                return f"control flow inside: {op.name}"
    return ""


class _PanelSide(NamedTuple):
    """An operand of a product that is a window: whether its depth comes first, and in which order
    the summed dims lie in it."""

    panel: Panel
    depth_first: bool
    order: tuple[int, ...]


class _WorkAnalysis:
    """With each dot's sides as they are (rows from the left), or exchanged."""

    def __init__(
        self, kernel: Op, loop: Op | None, regions: list[Region], able: Capabilities,
        boxes: BoxCopies,
    ) -> None:  # fmt: skip
        self.kernel, self.loop, self.regions = kernel, loop, regions
        self.able, self.boxes = able, boxes
        self.inside = set(loop.regions[0].ops) if loop is not None else set()
        self.panels: dict[Op, Panel] = {}
        self.sums: set[Value] = set()

    def run(self, dots: Sequence[Op], flips: Sequence[bool]) -> PipelineWork | str:
        products: list[PipelineProduct] = []
        for dot, flip in reversed(list(zip(dots, flips, strict=True))):
            product = self.product(dot, flip)
            if isinstance(product, str):
                return product
            products.insert(0, product)
        rows = {product.rows for product in products}
        if len(rows) > 1:
            return f"products of {' and '.join(map(str, sorted(rows)))} rows"
        roles = RolePropagation(self.regions, self.loop, products, flips).run()
        if isinstance(roles, str):
            return roles
        stores = tuple(op for op in self.regions[0].ops if op.name == "tile_store")
        work = PipelineWork(
            self.kernel, rows.pop(), self.loop, tuple(products), roles, Offsets(self.kernel), stores
        )  # fmt: skip
        return Check(work, self.able.formulas).reason or work

    def product(self, dot: Op, flip: bool) -> PipelineProduct | str:
        """A product as such a unit takes it, or why it does not."""
        left, right = dot.operands
        depths = dot.lhs_contracting_dimensions, dot.rhs_contracting_dimensions
        if flip:
            left, right, depths = right, left, depths[::-1]
        unit = self.unit(dot, left, right)
        if isinstance(unit, str):
            return unit
        down, across = _matrix(left, depths[0]), _matrix(right, depths[1])
        if down is None or across is None:
            dims = list((left if down is None else right).dims)
            return f"an operand of {dims} is no matrix of rows and depth"
        (rows, depth), (columns, _) = down, across
        first = unit.grain[0]
        if rows % first or rows > _MOST_GROUPS * first:
            sizes = ", ".join(str(n * first) for n in range(1, _MOST_GROUPS))
            return f"{rows} rows of a product are not {sizes} or {_MOST_GROUPS * first}"
        if columns not in unit.widths:
            return f"{columns} columns of a product of {left.element}"
        if depth % unit.depth:
            return f"a depth of {depth} is no multiple of {unit.depth}"
        source, given = self.side(left, depths[0]), self.side(right, depths[1])
        for side in (given, source):
            if isinstance(side, str):
                return side
        assert not isinstance(source, str) and not isinstance(given, str)
        if given is None:
            return "both operands of a product are computed"
        reason = _disagreement(unit, left, source, given)
        if reason:
            return reason
        addend, result = self.added(dot)
        if result in self.sums:  # another product adds to this one
            addend, result = None, dot.result
        self.sums.add(result)
        return PipelineProduct(
            dot, unit, rows, columns, depth, source.panel if source else left, given.panel,
            bool(source and source.depth_first), given.depth_first, result, addend,
        )  # fmt: skip

    def unit(self, dot: Op, left: Value, right: Value) -> MatrixUnit | str:
        """What multiplies such elements, or why nothing does."""
        names = [left.element.name, right.element.name]
        if left.element is F32:
            if not may_use_tf32(dot):
                return "a product of f32, which must not be rounded to tf32"
            names = [TF32, TF32] if right.element is F32 else names
        sums = F32 if left.element.is_float else I32
        units = self.able.units
        wanted = (*names, sums.name)
        found = next(
            (u for u in units if u.asynchronous and (u.left, u.right, u.sums) == wanted), None
        )
        if found is None:
            return f"a product of {left.element} and {right.element}"
        narrow = dot.result.element in (BF16, F16) and sums is F32
        if dot.result.element is not sums and not narrow:
            return f"a product of {left.element} that is summed as {dot.result.element}"
        return found

    def side(self, value: Value, depths: Sequence[int]) -> _PanelSide | str | None:
        """An operand that is a window, or why it cannot be brought; None for a computed value."""
        found = _origin(value)
        if found is None:
            return None
        load, tile, order = found
        known = self.panels.get(load) or panel_of(load, tile, load in self.inside, self.boxes)
        if isinstance(known, str):
            return known
        self.panels[load] = known
        if known.sizes != tile.dims:
            return "products take different parts of a window"
        wide = [dim for dim, size in enumerate(value.dims) if size != 1]
        (free,) = (order[place] for place, dim in enumerate(wide) if dim not in depths)
        total = sum(map(len, order))
        first = free == tuple(range(total - 1))  # rows, and one summed dim behind them
        if not first and free != (total - 1,):
            return "the summed dims of a product are not neighbours in memory"
        placed = sorted((order[place], dim) for place, dim in enumerate(wide) if dim in depths)
        return _PanelSide(known, not first, tuple(depths.index(dim) for _, dim in placed))

    def added(self, dot: Op) -> tuple[Value | None, Value]:
        """(what the product is added to, the sum); (None, the product) where nothing is."""
        if self.loop is None or dot not in self.inside:
            return None, dot.result
        users = self.loop.regions[0].uses.get(dot.result, ())
        if len(users) == 1 and dot.result.element in (F32, I32):
            user, place = users[0]
            if user is not None and user.name == "add":
                return user.operands[1 - place], user.result
        return None, dot.result


def _disagreement(
    unit: MatrixUnit, left: Value, source: _PanelSide | None, given: _PanelSide
) -> str:
    """Why a unit cannot take the two operands of a product together, "" where it can."""
    if source is None and not unit.chains:
        return f"an operand of {left.element} is computed"
    if unit.along and (given.depth_first or source is not None and source.depth_first):
        return f"a product of {left.element} whose depth is not along its memory"
    first = unit.grain[0]
    if source is not None and source.depth_first and source.panel.chunk != first:
        return f"a transposed left operand that is not in chunks of {first} rows"
    if source is not None and source.order != given.order:
        return "the summed dims of a product lie in different orders"
    if source is None and len(given.order) > 1:
        return "a computed operand with several summed dims"
    return ""


def _matrix(value: Value, depths: Sequence[int]) -> tuple[int, int] | None:
    """(free size, depth) of an operand; None where it is no matrix of these."""
    free = [n for dim, n in enumerate(value.dims) if n != 1 and dim not in depths]
    depth = [value.dims[dim] for dim in depths if value.dims[dim] != 1]
    if len(free) != 1 or not depth:
        return None
    return free[0], math.prod(depth)


def _origin(value: Value) -> tuple[Op, Value, tuple[tuple[int, ...], ...]] | None:
    """The load behind what only moves dims, merges them, or adds dims of 1; its window, or every so
    many-th element of it; and for each dim of the value that is not 1, which of the window's it is.
    """
    order = tuple((place,) for place in range(len(shape(value))))
    while value.op is not None and value.op.definition.views:
        op = value.op
        source = op.operands[0]
        if op.name == "transpose":
            kept = [dim for dim in range(source.rank) if source.dims[dim] != 1]
            moved = [(kept.index(dim),) for dim in op.permutation if source.dims[dim] != 1]
        else:
            found = merged(shape(source), shape(value))
            if found is None or not _in_order(op):
                return None
            moved = found
        order = tuple(tuple(n for place in own for n in moved[place]) for own in order)
        value = source
    tile = value
    if value.op is not None and value.op.name == "slice" and not any(value.op.start_indices):
        value = value.op.operands[0]
        if any((a == 1) != (b == 1) for a, b in zip(value.dims, tile.dims, strict=True)):
            return None
    if value.op is None or value.op.name != "tile_load":
        return None
    return value.op, tile, order


def _in_order(op: Op) -> bool:
    """Whether a reshape or a broadcast leaves the dims in their order."""
    return op.name == "reshape" or list(op.broadcast_dimensions) == sorted(op.broadcast_dimensions)


def panel_of(load: Op, tile: Value, moves: bool, boxes: BoxCopies) -> Panel | str:
    """The panel of a window, or of every so many-th of its elements; or why there is none."""
    memory, sizes = load.operands[0], tile.dims
    steps = (1,) * memory.rank
    if tile.op is not None and tile.op.name == "slice":
        steps = tuple(tile.op.strides)
    if load.fill != 0:
        return f"a window of a product is filled with {load.fill}"
    order, outer_places, reason = mapped(memory, sizes, boxes)
    if reason:
        return f"a window of a product: {reason}"
    if steps[order[0]] != 1 or any(step > boxes.step for step in steps):
        return f"a window of a product has every {steps}-th element"
    if any(box_width(*pair) > boxes.box for pair in zip(sizes, steps, strict=True)):
        return f"a window of {list(sizes)} of every {steps}-th element is too large"
    inner = sizes[order[0]]
    outer = math.prod(sizes[order[place]] for place in outer_places)
    width = memory.element.bits // 8
    swizzle = next((s for s in boxes.swizzles if inner * width % s == 0), 0)
    if not swizzle:
        return f"rows of {inner * width} bytes of a window are no multiple of {boxes.swizzles[-1]}"
    if outer > boxes.box or outer % 8:
        return f"{outer} rows of a window are no multiple of 8 up to {boxes.box}"
    return Panel(
        load, memory.index, outer, inner, order, outer_places, swizzle, moves, sizes, steps
    )  # fmt: skip


def mapped(
    memory: Value, sizes: Sequence[int], boxes: BoxCopies
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """(dims that count, fastest first; places of the outer ones; why there is no map)."""
    wider = [n != 1 or m != 1 for n, m in zip(memory.dims, sizes, strict=True)]
    order = tuple(dim for dim in reversed(range(memory.rank)) if wider[dim])
    wide = tuple(place for place, dim in enumerate(order) if sizes[dim] != 1)
    if len(wide) < 2:
        return order, wide, f"{list(sizes)} of {list(memory.dims)} is no matrix"
    if wide[0] != 0:
        return order, wide, "its elements are not neighbours in memory"
    if len(order) > boxes.rank:
        return order, wide, f"{len(order)} dims are more than a tensor map has"
    for dim in order[1:]:
        bits = memory.element.bits * math.prod(memory.dims[dim + 1 :])
        if not surely_divides(8 * boxes.stride, bits) or not surely_below(bits, 2**43):
            apart = f"{bits / 8:g}" if isinstance(bits, int) else bits // 8
            no_multiple = f"which is no multiple of {boxes.stride}"
            return order, wide, f"rows are {apart} bytes apart, {no_multiple}"
    return order, wide[1:], ""
