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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....hlo.graph import Op, Region, Value, constant_of
from ....hlo.offsets import Offsets
from ....hlo.types import F32, I32
from ..frame import Unfit
from ..launch import Memory, TensorMap
from .instructions import KINDS, ROWS, MatrixKind

ROW, COLUMN, UNIT = "row", "column", ""
Roles = tuple[str, ...]

_SWIZZLES = (128, 64, 32)
_MOST_DIMS = 5  # of a tensor map
_MOST_BOX = 256  # elements of a box along one dim
_MOST_COLUMNS = 256  # of one wgmma


@dataclass(frozen=True, eq=False)
class Panel:
    """A window in shared memory: `outer` rows of `inner` neighbouring elements.

    It lies as chunks of `swizzle` bytes, one behind the other, each with all rows. `order` are the
    memory's dims that count, fastest first: the first is the inner one; those at `outer_places`
    together count the rows.
    """

    op: Op
    slot: int  # of the memory among the kernel's operands and results
    outer: int
    inner: int
    order: tuple[int, ...]
    outer_places: tuple[int, ...]
    swizzle: int
    moves: bool  # in the loop

    @property
    def element(self) -> str:
        return self.op.result.element.name

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return self.op.result.element.bits // 8

    @property
    def chunk(self) -> int:
        """Elements of a row of one chunk."""
        return self.swizzle // self.width

    @property
    def chunks(self) -> int:
        return self.inner // self.chunk

    @property
    def bytes(self) -> int:
        return self.outer * self.inner * self.width

    def tensor_map(self, share: int = 1) -> TensorMap:
        """The map of one chunk, of 1 / `share` of its rows."""
        memory = self.op.operands[0]
        box = [self.op.sizes[dim] for dim in self.order]
        box[0] = self.chunk
        box[self.outer_places[-1]] //= share
        return tensor_map(memory, self.slot, self.order, self.swizzle, box)


def tensor_map(
    memory: Value, slot: int, order: Sequence[int], swizzle: int, box: Sequence[int]
) -> TensorMap:
    """The map of boxes of a row-major array; `order` and `box` have the fastest dim first."""
    width = memory.element.bits // 8
    strides = [width * math.prod(memory.dims[dim + 1 :]) for dim in order]
    dims = tuple(memory.dims[dim] for dim in order)
    name = memory.element.name
    return TensorMap(Memory(slot), name, dims, tuple(strides[1:]), tuple(box), swizzle)


@dataclass(frozen=True, eq=False)
class Product:
    """A dot: `result` is rows x columns in registers.

    left: a panel, or a value of the threads themselves. `*_depth_first`: the panel's inner dim is
    not the depth. `addend` is what the product is added to; `result` is that sum then.
    """

    op: Op
    kind: MatrixKind
    rows: int
    columns: int
    depth: int
    left: Panel | Value
    right: Panel
    left_depth_first: bool
    right_depth_first: bool
    result: Value
    addend: Value | None

    @property
    def panels(self) -> tuple[Panel, ...]:
        return (self.left, self.right) if isinstance(self.left, Panel) else (self.right,)


@dataclass(frozen=True, eq=False)
class Work:
    """A tile function as the pipeline sees it. `rows` of all products; `loop` is None where there
    is one window along the depth."""

    kernel: Op
    rows: int
    loop: Op | None
    products: tuple[Product, ...]
    roles: dict[Value, Roles]
    offsets: Offsets
    stores: tuple[Op, ...]

    @property
    def inner(self) -> tuple[Product, ...]:
        """The products of the loop, in order."""
        return tuple(p for p in self.products if self.in_loop(p.op))

    @property
    def outer(self) -> tuple[Product, ...]:
        return tuple(p for p in self.products if not self.in_loop(p.op))

    def in_loop(self, op: Op) -> bool:
        return self.loop is not None and op in self.loop.regions[0].ops

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Each panel once, in order of first use."""
        return tuple(dict.fromkeys(panel for p in self.products for panel in p.panels))

    def slot(self, memory: Value) -> int:
        return memory.index

    def of(self, value: Value) -> Product | None:
        """The product that gives a value."""
        for product in self.products:
            if value in (product.result, product.op.result):
                return product
        return None

    def depends(self, values: Iterable[Value]) -> set[int]:
        """The axes of the grid on which values depend."""
        axes: set[int] = set()
        seen: set[Value] = set()
        pending = list(values)
        while pending:
            value = pending.pop()
            if value in seen or value.op is None:
                continue
            seen.add(value)
            if value.op.name == "tile_id":
                axes.add(value.op.axis)
            pending.extend(value.op.operands)
        return axes


def shape(value: Value) -> tuple[int, ...]:
    """The dims that are not 1."""
    return tuple(n for n in value.dims if n != 1)


def analyse(kernel: Op, *, tf32: bool = False) -> Work:
    """What the pipeline needs to know of a kernel_call; Unfit if it cannot take it. `tf32`: whether
    operands of f32 may be rounded to 11 bits."""
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
    if not all(kernel.grid) or not all(value.tensor.size for value in body.arguments):
        raise Unfit("it has no tiles, or empty arrays")
    reasons: list[Unfit] = []
    for flips in itertools.islice(itertools.product((False, True), repeat=len(dots)), 16):
        try:
            return _with(kernel, loop, regions, dots, flips, tf32)
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
    tf32: bool,
) -> Work:
    """The analysis with each dot's sides as they are (rows from the left) or exchanged."""
    inside = set(loop.regions[0].ops) if loop is not None else set()
    panels: dict[Op, Panel] = {}
    products: list[Product] = []
    sums: set[Value] = set()
    for dot, flip in reversed(list(zip(dots, flips, strict=True))):
        if dot.operands[0].element is F32 and not tf32:
            raise Unfit("a product of f32, which must not be rounded to tf32")
        products.insert(0, _product(dot, flip, panels, inside, loop, sums))
    rows = {product.rows for product in products}
    if len(rows) > 1:
        raise Unfit(f"products of {' and '.join(map(str, sorted(rows)))} rows")
    roles = _Propagation(regions, loop, products, flips).run()
    stores = tuple(op for op in regions[0].ops if op.name == "tile_store")
    work = Work(
        kernel, rows.pop(), loop, tuple(products), roles, Offsets(kernel), stores
    )  # fmt: skip
    _Check(work).run()
    return work


# Products and panels.


def _product(
    dot: Op,
    flip: bool,
    panels: dict[Op, Panel],
    inside: set[Op],
    loop: Op | None,
    sums: set[Value],
) -> Product:
    left, right = dot.operands
    left_depth, right_depth = dot.lhs_contracting_dimensions, dot.rhs_contracting_dimensions
    if flip:
        left, right, left_depth, right_depth = right, left, right_depth, left_depth
    if left.element is not right.element:
        raise Unfit(f"a product of {left.element} and {right.element}")
    kind = KINDS.get(left.element.name)
    if kind is None or dot.result.element is not F32 and dot.result.element.bits != 16:
        raise Unfit(f"a product of {left.element} that is summed as {dot.result.element}")
    rows, depth = _matrix(left, left_depth)
    columns, _ = _matrix(right, right_depth)
    if rows % ROWS or rows > 4 * ROWS:
        raise Unfit(f"{rows} rows of a product are not 64, 128, 192 or 256")
    if columns % 8 or columns > _MOST_COLUMNS:
        raise Unfit(f"{columns} columns of a product are no multiple of 8 up to 256")
    if depth % kind.depth:
        raise Unfit(f"a depth of {depth} is no multiple of {kind.depth}")

    def panel(value: Value, depths: Sequence[int]) -> tuple[Panel, bool, tuple[int, ...]] | None:
        """The panel, whether its depth comes first, and in which order the summed dims lie in it;
        None for a computed value."""
        found = _origin(value)
        if found is None:
            return None
        load, order = found
        if load not in panels:
            panels[load] = _panel(load, load in inside)
        wide = [dim for dim, size in enumerate(value.dims) if size != 1]
        (free,) = (order[place] for place, dim in enumerate(wide) if dim not in depths)
        if 0 < free < len(order) - 1 or free == 0 and len(order) > 2:
            raise Unfit("the summed dims of a product are not neighbours in memory")
        placed = sorted((order[place], dim) for place, dim in enumerate(wide) if dim in depths)
        return panels[load], free != 0, tuple(depths.index(dim) for _, dim in placed)

    given = panel(right, right_depth)
    if given is None:
        raise Unfit("both operands of a product are computed")
    source = panel(left, left_depth)
    if source is None and not kind.registers:
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
    return Product(
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


def _origin(value: Value) -> tuple[Op, tuple[int, ...]] | None:
    """The load behind what only moves dims or adds dims of 1, and for each dim of the value that is
    not 1, which of the load's it is."""
    order = tuple(range(len(shape(value))))
    while value.op is not None and value.op.name in ("transpose", "reshape", "broadcast_in_dim"):
        op = value.op
        source = op.operands[0]
        if op.name == "transpose":
            kept = [dim for dim in range(source.rank) if source.dims[dim] != 1]
            moved = [kept.index(dim) for dim in op.permutation if source.dims[dim] != 1]
            order = tuple(moved[place] for place in order)
        elif shape(source) != shape(value) or not _in_order(op):
            return None
        value = source
    if value.op is None or value.op.name != "tile_load":
        return None
    return value.op, order


def _in_order(op: Op) -> bool:
    """Whether a reshape or a broadcast leaves the dims in their order."""
    return op.name == "reshape" or list(op.broadcast_dimensions) == sorted(op.broadcast_dimensions)


def _panel(load: Op, moves: bool) -> Panel:
    memory = load.operands[0]
    if load.fill != 0:
        raise Unfit(f"a window of a product is filled with {load.fill}")
    order, outer_places, reason = mapped(memory, load.sizes)
    if reason:
        raise Unfit(f"a window of a product: {reason}")
    inner = load.sizes[order[0]]
    outer = math.prod(load.sizes[order[place]] for place in outer_places)
    width = memory.element.bits // 8
    swizzle = next((s for s in _SWIZZLES if inner * width % s == 0), 0)
    if not swizzle:
        raise Unfit(f"rows of {inner * width} bytes of a window are no multiple of 32")
    if outer > _MOST_BOX or outer % 8:
        raise Unfit(f"{outer} rows of a window are no multiple of 8 up to 256")
    return Panel(
        load, memory.index, outer, inner, order, outer_places, swizzle, moves
    )  # fmt: skip


def mapped(memory: Value, sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """(dims that count, fastest first; places of the outer ones; why there is no map)."""
    order = tuple(dim for dim in reversed(range(memory.rank)) if memory.dims[dim] != 1)
    wide = tuple(place for place, dim in enumerate(order) if sizes[dim] != 1)
    if len(wide) < 2 or any(n != 1 and memory.dims[d] == 1 for d, n in enumerate(sizes)):
        return order, wide, f"{list(sizes)} of {list(memory.dims)} is no matrix"
    if wide[0] != 0:
        return order, wide, "its elements are not neighbours in memory"
    if len(order) > _MOST_DIMS:
        return order, wide, f"{len(order)} dims are more than a tensor map has"
    width = memory.element.bits / 8
    for dim in order[1:]:
        stride = width * math.prod(memory.dims[dim + 1 :])
        if stride % 16 or stride >= 2**40:
            return order, wide, f"rows are {stride:g} bytes apart, which is no multiple of 16"
    return order, wide[1:], ""


def _sum(dot: Op, loop: Op | None) -> tuple[Value | None, Value]:
    """(what the product is added to, the sum); (None, the product) where nothing is."""
    region = _region_of(dot, loop)
    users = region.uses.get(dot.result, ()) if region is not None else ()
    if len(users) == 1 and dot.result.element is F32:
        user, place = users[0]
        if user is not None and user.name == "add":
            return user.operands[1 - place], user.result
    return None, dot.result


def _region_of(op: Op, loop: Op | None) -> Region | None:
    if loop is not None and op in loop.regions[0].ops:
        return loop.regions[0]
    return None


# Roles.


class _Propagation:
    """Spreads the roles of the products' results over all values that depend on them."""

    def __init__(
        self,
        regions: Sequence[Region],
        loop: Op | None,
        products: Sequence[Product],
        flips: Sequence[bool],
    ) -> None:
        self.ops = [op for region in regions for op in region.ops]
        self.loop, self.products, self.flips = loop, products, flips
        self.roles: dict[Value, Roles] = {}
        self.anchored: set[Value] = set()

    def run(self) -> dict[Value, Roles]:
        self.anchor()
        for product, flip in zip(self.products, self.flips, strict=True):
            self.seed(product, flip)
        before = -1
        while before != len(self.roles):
            before = len(self.roles)
            for op in self.ops:
                self.step(op)
        return self.roles

    def anchor(self) -> None:
        """Values that are spread over threads in one way: what products and loops give."""
        if self.loop is not None:
            carried = (*self.loop.regions[0].arguments[1:], *self.loop.results)
            self.anchored.update(value for value in carried if value.rank)
        before = -1
        while before != len(self.anchored):
            before = len(self.anchored)
            for op in self.ops:
                if op.name == "dot_general" or any(v in self.anchored for v in op.operands):
                    self.anchored.update(value for value in op.results if value.rank)

    def seed(self, product: Product, flip: bool) -> None:
        dot = product.op
        left, right = dot.operands
        first, second = (COLUMN, ROW) if flip else (ROW, COLUMN)
        free = [UNIT] * len(dot.lhs_batching_dimensions)
        sides = (
            (left, dot.lhs_contracting_dimensions, dot.lhs_batching_dimensions, first),
            (right, dot.rhs_contracting_dimensions, dot.rhs_batching_dimensions, second),
        )
        for value, depths, batches, role in sides:
            for dim, size in enumerate(value.dims):
                if dim not in depths and dim not in batches:
                    free.append(role if size != 1 else UNIT)
        self.note(dot.result, tuple(free))
        if not isinstance(product.left, Panel):
            value, depths, role = (right, sides[1][1], ROW) if flip else (left, sides[0][1], ROW)
            self.note(
                value,
                tuple(
                    UNIT if size == 1 else COLUMN if dim in depths else role
                    for dim, size in enumerate(value.dims)
                ),
            )

    def note(self, value: Value, roles: Roles) -> None:
        if value not in self.anchored:
            return
        known = self.roles.setdefault(value, roles)
        if known != roles:
            raise Unfit("a value would have to be spread over threads in two ways")

    def step(self, op: Op) -> None:
        if op.name == "tile_for":
            body = op.regions[0]
            for number, result in enumerate(op.results):
                group = (body.arguments[number + 1], body.results[number], result)
                self.meet(group)
        elif op.definition.pattern == "elementwise":
            self.meet([v for v in (*op.operands, *op.results) if v.dims == op.results[0].dims])
        elif op.name in ("reshape", "transpose", "broadcast_in_dim", "reduce"):
            for value, other, forward in (
                (op.operands[0], op.results[0], True),
                (op.results[0], op.operands[0], False),
            ):
                if value in self.roles:
                    found = through(op, self.roles[value], forward)
                    self.note(other, found)

    def meet(self, values: Sequence[Value]) -> None:
        known = next((self.roles[value] for value in values if value in self.roles), None)
        if known is not None:
            for value in values:
                if value.rank == len(known):
                    self.note(value, known)


def through(op: Op, roles: Roles, forward: bool) -> Roles:
    """The roles of the result of an operation that moves dims from those of its operand, or the
    other way round; a dim that only one of them has gets the role that is left."""
    source, target = op.operands[0], op.results[0]
    pairs = _pairs(op)
    if forward:
        here, there = source, target
    else:
        here, there = target, source
        pairs = [(b, a) for a, b in pairs]
    found = [UNIT] * there.rank
    for mine, other in pairs:
        if there.dims[other] != 1:
            found[other] = roles[mine] if here.dims[mine] != 1 else "open"
    mapped_to = {other for _, other in pairs}
    for dim in range(there.rank):
        if there.dims[dim] != 1 and dim not in mapped_to:
            found[dim] = "open"
    used = {role for role in found if role in (ROW, COLUMN)}
    gone = {roles[m] for m in range(here.rank)} & {ROW, COLUMN}
    if found.count("open") > 1:
        raise Unfit(f"a {op.name} makes two dims out of one")
    if "open" in found:
        left = (
            {ROW, COLUMN} - used - (gone if not forward or op.name == "broadcast_in_dim" else set())
        )
        if len(left) != 1:
            raise Unfit(f"a {op.name} has no place for its new dim")
        found[found.index("open")] = left.pop()
    return tuple(found)


def _pairs(op: Op) -> list[tuple[int, int]]:
    """(dim of the operand, dim of the result) that are the same."""
    source, target = op.operands[0], op.results[0]
    if op.name == "transpose":
        return [(dim, place) for place, dim in enumerate(op.permutation)]
    if op.name == "broadcast_in_dim":
        return list(enumerate(op.broadcast_dimensions))
    if op.name == "reduce":
        kept = [dim for dim in range(source.rank) if dim not in op.dimensions]
        return [(dim, place) for place, dim in enumerate(kept)]
    if shape(source) != shape(target):
        raise Unfit(f"a reshape of {list(source.dims)} to {list(target.dims)}")
    ours = [dim for dim in range(source.rank) if source.dims[dim] != 1]
    theirs = [dim for dim in range(target.rank) if target.dims[dim] != 1]
    return list(zip(ours, theirs, strict=True))


# What the threads compute.


class _Check:
    """Walks everything that is stored or carried, with the role of each dim, and refuses what the
    threads cannot compute on their own elements."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.seen: set[tuple[Value, Roles]] = set()

    def run(self) -> None:
        from .registers import supported  # it needs this module's types

        work = self.work
        for panel in work.panels:
            for value in panel.op.offsets:
                self.scalar(value)
        pending: list[tuple[Value, Roles]] = []
        for store in work.stores:
            value = store.operands[1]
            roles = work.roles.get(value)
            if roles is None:
                raise Unfit("a store of what no product takes part in")
            pending.append((value, roles))
        while pending:
            value, roles = pending.pop()
            if (value, roles) in self.seen:
                continue
            self.seen.add((value, roles))
            pending.extend(supported(work, value, roles))

    def scalar(self, value: Value) -> None:
        """A number that every thread, also that which starts copies, can compute."""
        loop = self.work.loop
        pending = [value]
        while pending:
            one = pending.pop()
            if one.op is None:
                index = loop is not None and one is loop.regions[0].arguments[0]
                if not index:
                    raise Unfit("the place of a window depends on what the loop carries")
                continue
            plain = one.op.name in ("constant", "tile_id")
            if not plain and (one.op.definition.pattern != "elementwise" or one.rank):
                raise Unfit(f"the place of a window comes from {one.op.name}")
            if one.element is not I32 and not one.element.is_bool:
                raise Unfit(f"the place of a window comes from {one.element}")
            pending.extend(one.op.operands)


def trips(work: Work) -> tuple[int, int] | None:
    """(least, most) rounds of the loop; None where the bounds say nothing."""
    if work.loop is None:
        return None
    lower, upper = (work.offsets.of(value) for value in work.loop.operands[:2])
    low, high = work.offsets.range(upper.plus(lower, -1))
    step = work.loop.step
    return max(0, -(-low // step)), max(0, -(-high // step))


def splat_of(value: Value) -> object | None:
    """The number of a constant that is one number everywhere."""
    dense = constant_of(value)
    return dense.splat_value if dense is not None and dense.is_splat else None
