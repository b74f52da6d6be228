"""What a tile function has to be for Hopper's pipeline, and what of it goes where.

A tile function is taken if its products fit `wgmma` and their operands are windows that the copy
engine can bring, or values of the same thread. Then every tile value has a *role* for each dim:
ROW (spread over warp groups and lanes as the rows of a product), COLUMN, or UNIT (size 1).
`analyse` finds panels (windows that go to shared memory), products and roles, or raises Unfit with
the reason. It looks at what the function does, never at what it is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ....hlo.deciding import surely_at_most, surely_below, surely_divides
from ....hlo.graph import Op, Region, Value
from ....hlo.offsets import Offsets
from ....hlo.precision import may_use_tf32
from ....hlo.types import BF16, F16, F32, I32
from ..frame import Unfit
from . import fragment
from .check import Check
from .instructions import KINDS, ROWS
from .roles import RolePropagation, merged
from .work import Panel, PipelineProduct, PipelineWork, box_width, shape

_SWIZZLES = (128, 64, 32)
_MOST_DIMS = 5  # of a tensor map
_MOST_BOX = 256  # elements of a box along one dim
_MOST_STEP = 8  # elements from one to the next


def analyse(kernel: Op) -> PipelineWork:
    """What the pipeline needs to know of a kernel_call; Unfit if it cannot take it."""
    body = kernel.regions[0]
    loop = _loop(body)
    regions = [body, *([loop.regions[0]] if loop is not None else [])]
    results = set(body.arguments[len(kernel.operands) :])
    for region in regions:
        for op in region.ops:
            _check_place(op, region is body, results)
    dots = [op for region in reversed(regions) for op in region.ops if op.name == "dot_general"]
    if not dots:
        raise Unfit("it has no product")
    if any(start >= 0 for start in kernel.starts):
        raise Unfit("a result starts as a copy of an input")
    sizes = (*kernel.grid, *(value.tensor.size for value in body.arguments))
    if not all(surely_at_most(1, size) for size in sizes):
        raise Unfit("it has no tiles, or empty arrays")
    reasons: list[Unfit] = []
    for flips in itertools.islice(itertools.product((False, True), repeat=len(dots)), 16):
        try:
            return _with(kernel, loop, regions, dots, flips)
        except Unfit as reason:
            reasons.append(reason)
    raise reasons[0]


def _loop(body: Region) -> Op | None:
    loops = [op for op in body.ops if op.name == "tile_for"]
    if len(loops) > 1:
        raise Unfit("it has several loops")
    return loops[0] if loops else None


def _check_place(op: Op, outermost: bool, results: set[Value]) -> None:
    if op.name in ("tile_gather", "tile_scatter"):
        raise Unfit(f"a {op.name} has rows by number")
    if op.name == "tile_store" and (not outermost or op.masked or op.combine):
        raise Unfit("a store inside the loop, with a mask, or that combines")
    if op.name == "tile_load" and op.operands[0] in results:
        raise Unfit("it reads what it stores")
    control = op.definition.pattern == "control" and not (outermost and op.name == "tile_for")
    if control:
        raise Unfit(f"control flow inside: {op.name}")


def _with(
    kernel: Op,
    loop: Op | None,
    regions: list[Region],
    dots: list[Op],
    flips: Sequence[bool],
) -> PipelineWork:
    """The analysis with each dot's sides as they are (rows from the left) or exchanged."""
    inside = set(loop.regions[0].ops) if loop is not None else set()
    panels: dict[Op, Panel] = {}
    products: list[PipelineProduct] = []
    sums: set[Value] = set()
    for dot, flip in reversed(list(zip(dots, flips, strict=True))):
        if dot.operands[0].element is F32 and not may_use_tf32(dot):
            raise Unfit("a product of f32, which must not be rounded to tf32")
        products.insert(0, _product(dot, flip, panels, inside, loop, sums))
    rows = {product.rows for product in products}
    if len(rows) > 1:
        raise Unfit(f"products of {' and '.join(map(str, sorted(rows)))} rows")
    roles = RolePropagation(regions, loop, products, flips).run()
    stores = tuple(op for op in regions[0].ops if op.name == "tile_store")
    work = PipelineWork(
        kernel, rows.pop(), loop, tuple(products), roles, Offsets(kernel), stores
    )  # fmt: skip
    Check(work).run()
    return work


# Products and panels.


def _product(
    dot: Op,
    flip: bool,
    panels: dict[Op, Panel],
    inside: set[Op],
    loop: Op | None,
    sums: set[Value],
) -> PipelineProduct:
    left, right = dot.operands
    left_depth, right_depth = dot.lhs_contracting_dimensions, dot.rhs_contracting_dimensions
    if flip:
        left, right, left_depth, right_depth = right, left, right_depth, left_depth
    kind = KINDS.get((left.element.name, right.element.name))
    if kind is None:
        raise Unfit(f"a product of {left.element} and {right.element}")
    narrow = dot.result.element in (BF16, F16) and kind.sums == "float"
    if dot.result.element is not (F32 if kind.sums == "float" else I32) and not narrow:
        raise Unfit(f"a product of {left.element} that is summed as {dot.result.element}")
    rows, depth = _matrix(left, left_depth)
    columns, _ = _matrix(right, right_depth)
    if rows % ROWS or rows > 4 * ROWS:
        raise Unfit(f"{rows} rows of a product are not 64, 128, 192 or 256")
    if columns not in kind.atoms:
        raise Unfit(f"{columns} columns of a product of {left.element}")
    if depth % kind.depth:
        raise Unfit(f"a depth of {depth} is no multiple of {kind.depth}")

    def panel(value: Value, depths: Sequence[int]) -> tuple[Panel, bool, tuple[int, ...]] | None:
        """The panel, whether its depth comes first, and in which order the summed dims lie in it;
        None for a computed value."""
        found = _origin(value)
        if found is None:
            return None
        load, tile, order = found
        known = panels.setdefault(load, panel_of(load, tile, load in inside))
        if known.sizes != tile.dims:
            raise Unfit("products take different parts of a window")
        wide = [dim for dim, size in enumerate(value.dims) if size != 1]
        (free,) = (order[place] for place, dim in enumerate(wide) if dim not in depths)
        total = sum(map(len, order))
        first = free == tuple(range(total - 1))  # rows, and one summed dim behind them
        if not first and free != (total - 1,):
            raise Unfit("the summed dims of a product are not neighbours in memory")
        placed = sorted((order[place], dim) for place, dim in enumerate(wide) if dim in depths)
        return known, not first, tuple(depths.index(dim) for _, dim in placed)

    given = panel(right, right_depth)
    if given is None:
        raise Unfit("both operands of a product are computed")
    source = panel(left, left_depth)
    if source is None and not fragment.stays(kind.bits):
        raise Unfit(f"an operand of {left.element} is computed")
    if not kind.transposes and (given[1] or source is not None and source[1]):
        raise Unfit(f"a product of {left.element} whose depth is not along its memory")
    if source is not None and source[1] and source[0].chunk != ROWS:
        raise Unfit("a transposed left operand that is not in chunks of 64 rows")
    if source is not None and source[2] != given[2]:
        raise Unfit("the summed dims of a product lie in different orders")
    if source is None and len(given[2]) > 1:
        raise Unfit("a computed operand with several summed dims")
    addend, result = _sum(dot, loop)
    if result in sums:  # another product adds to this one
        addend, result = None, dot.result
    sums.add(result)
    return PipelineProduct(
        dot, kind, rows, columns, depth, source[0] if source else left, given[0],
        bool(source and source[1]), given[1], result, addend,
    )  # fmt: skip


def _matrix(value: Value, depths: Sequence[int]) -> tuple[int, int]:
    """(free size, depth) of an operand."""
    free = [n for dim, n in enumerate(value.dims) if n != 1 and dim not in depths]
    depth = [value.dims[dim] for dim in depths if value.dims[dim] != 1]
    if len(free) != 1 or not depth:
        raise Unfit(f"an operand of {list(value.dims)} is no matrix of rows and depth")
    return free[0], math.prod(depth)


def _origin(value: Value) -> tuple[Op, Value, tuple[tuple[int, ...], ...]] | None:
    """The load behind what only moves dims, merges them, or adds dims of 1; its window, or every so
    many-th element of it; and for each dim of the value that is not 1, which of the window's it is.
    """
    order = tuple((place,) for place in range(len(shape(value))))
    while value.op is not None and value.op.name in ("transpose", "reshape", "broadcast_in_dim"):
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


def panel_of(load: Op, tile: Value, moves: bool) -> Panel:
    """The panel of a window, or of every so many-th of its elements."""
    memory, sizes = load.operands[0], tile.dims
    steps = (1,) * memory.rank
    if tile.op is not None and tile.op.name == "slice":
        steps = tuple(tile.op.strides)
    if load.fill != 0:
        raise Unfit(f"a window of a product is filled with {load.fill}")
    order, outer_places, reason = mapped(memory, sizes)
    if reason:
        raise Unfit(f"a window of a product: {reason}")
    if steps[order[0]] != 1 or any(step > _MOST_STEP for step in steps):
        raise Unfit(f"a window of a product has every {steps}-th element")
    if any(box_width(*pair) > _MOST_BOX for pair in zip(sizes, steps, strict=True)):
        raise Unfit(f"a window of {list(sizes)} of every {steps}-th element is too large")
    inner = sizes[order[0]]
    outer = math.prod(sizes[order[place]] for place in outer_places)
    width = memory.element.bits // 8
    swizzle = next((s for s in _SWIZZLES if inner * width % s == 0), 0)
    if not swizzle:
        raise Unfit(f"rows of {inner * width} bytes of a window are no multiple of 32")
    if outer > _MOST_BOX or outer % 8:
        raise Unfit(f"{outer} rows of a window are no multiple of 8 up to 256")
    return Panel(
        load, memory.index, outer, inner, order, outer_places, swizzle, moves, sizes, steps
    )  # fmt: skip


def mapped(memory: Value, sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """(dims that count, fastest first; places of the outer ones; why there is no map)."""
    wider = [n != 1 or m != 1 for n, m in zip(memory.dims, sizes, strict=True)]
    order = tuple(dim for dim in reversed(range(memory.rank)) if wider[dim])
    wide = tuple(place for place, dim in enumerate(order) if sizes[dim] != 1)
    if len(wide) < 2:
        return order, wide, f"{list(sizes)} of {list(memory.dims)} is no matrix"
    if wide[0] != 0:
        return order, wide, "its elements are not neighbours in memory"
    if len(order) > _MOST_DIMS:
        return order, wide, f"{len(order)} dims are more than a tensor map has"
    for dim in order[1:]:
        bits = memory.element.bits * math.prod(memory.dims[dim + 1 :])
        if not surely_divides(128, bits) or not surely_below(bits, 2**43):
            apart = f"{bits / 8:g}" if isinstance(bits, int) else bits // 8
            return order, wide, f"rows are {apart} bytes apart, which is no multiple of 16"
    return order, wide[1:], ""


def _sum(dot: Op, loop: Op | None) -> tuple[Value | None, Value]:
    """(what the product is added to, the sum); (None, the product) where nothing is."""
    region = _region_of(dot, loop)
    users = region.uses.get(dot.result, ()) if region is not None else ()
    if len(users) == 1 and dot.result.element in (F32, I32):
        user, place = users[0]
        if user is not None and user.name == "add":
            return user.operands[1 - place], user.result
    return None, dot.result


def _region_of(op: Op, loop: Op | None) -> Region | None:
    if loop is not None and op in loop.regions[0].ops:
        return loop.regions[0]
    return None
