"""Which dim of every value is spread over rows and which over columns of the products."""

from __future__ import annotations

from collections.abc import Sequence

from ...hlo.errors import CompilerBug
from ...hlo.graph import Op, Region, Value
from .work import COLUMN, ROW, UNIT, Panel, PipelineProduct, Roles, RowDim, is_row, part_of, shape


class RolePropagation:
    """Spreads the roles of the products' results over all values that depend on them."""

    def __init__(
        self,
        regions: Sequence[Region],
        loop: Op | None,
        products: Sequence[PipelineProduct],
        flips: Sequence[bool],
    ) -> None:
        self.ops = [op for region in regions for op in region.ops]
        self.loop, self.products, self.flips = loop, products, flips
        self.roles: dict[Value, Roles] = {}
        self.anchored: set[Value] = set()
        self.reason = ""

    def run(self) -> dict[Value, Roles] | str:
        """The roles, or why there are none."""
        self.anchor()
        for product, flip in zip(self.products, self.flips, strict=True):
            self.seed(product, flip)
        before = -1
        while before != len(self.roles) and not self.reason:
            before = len(self.roles)
            for op in self.ops:
                self.step(op)
        return self.reason or self.roles

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

    def seed(self, product: PipelineProduct, flip: bool) -> None:
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
            self.refuse("a value would have to be spread over threads in two ways")

    def refuse(self, reason: str) -> None:
        """Keeps the first reason."""
        self.reason = self.reason or reason

    def step(self, op: Op) -> None:
        if op.name == "tile_for":
            body = op.regions[0]
            for number, result in enumerate(op.results):
                group = (body.arguments[number + 1], body.results[number], result)
                self.meet(group)
        elif op.definition.pattern == "elementwise":
            self.meet([v for v in (*op.operands, *op.results) if v.dims == op.results[0].dims])
        elif op.definition.views or op.name == "reduce":
            for value, other, forward in (
                (op.operands[0], op.results[0], True),
                (op.results[0], op.operands[0], False),
            ):
                if value in self.roles:
                    found = moved(op, self.roles[value], forward)
                    if isinstance(found, str):
                        self.refuse(found)
                    else:
                        self.note(other, found)

    def meet(self, values: Sequence[Value]) -> None:
        known = next((self.roles[value] for value in values if value in self.roles), None)
        if known is not None:
            for value in values:
                if value.rank == len(known):
                    self.note(value, known)


def through(op: Op, roles: Roles, forward: bool) -> Roles:
    """What `moved` gives, of an operation that is known to have it."""
    found = moved(op, roles, forward)
    if isinstance(found, str):
        raise CompilerBug(found)
    return found


def moved(op: Op, roles: Roles, forward: bool) -> Roles | str:
    """The roles of the result of an operation that moves dims from those of its operand, or the
    other way round; a dim that only one of them has gets the role that is left. A text says why
    there are none."""
    source, target = op.operands[0], op.results[0]
    if op.name == "reshape" and shape(source) != shape(target):
        return _reshaped(*((source, target) if forward else (target, source)), roles)
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
    used = {ROW if is_row(role) else role for role in found} & {ROW, COLUMN}
    gone = {ROW if is_row(role) else role for role in roles} & {ROW, COLUMN}
    if found.count("open") > 1:
        return f"a {op.name} makes two dims out of one"
    if "open" in found:
        left = (
            {ROW, COLUMN} - used - (gone if not forward or op.name == "broadcast_in_dim" else set())
        )
        if len(left) != 1:
            return f"a {op.name} has no place for its new dim"
        found[found.index("open")] = left.pop()
    return tuple(found)


def merged(many: Sequence[int], few: Sequence[int]) -> list[tuple[int, ...]] | None:
    """For each of few dims those of many that a reshape makes it of; None if it is no merge."""
    found: list[tuple[int, ...]] = []
    place = 0
    for size in few:
        first, product = place, 1
        while product < size and place < len(many):
            product *= many[place]
            place += 1
        if product != size:
            return None
        found.append(tuple(range(first, place)))
    return found if place == len(many) else None


def _reshaped(here: Value, there: Value, roles: Roles) -> Roles | str:
    """The roles behind a reshape that splits the rows into dims, or makes rows of them; or why
    there are none."""
    ours = [dim for dim, size in enumerate(here.dims) if size != 1]
    theirs = [dim for dim, size in enumerate(there.dims) if size != 1]
    found = [UNIT] * there.rank
    groups = merged(shape(there), shape(here))
    if groups is not None:
        for dim, places in zip(ours, groups, strict=True):
            if len(places) == 1:
                found[theirs[places[0]]] = roles[dim]
                continue
            if not is_row(roles[dim]):
                break
            stride, _, rows = part_of(roles[dim], here.dims[dim])
            for place in reversed(places):
                size = there.dims[theirs[place]]
                found[theirs[place]] = RowDim(stride, size, rows).role
                stride *= size
        else:
            return tuple(found)
    groups = merged(shape(here), shape(there))
    for dim, places in zip(theirs, groups or (), strict=groups is not None):
        own = [roles[ours[place]] for place in places]
        if len(own) == 1:
            found[dim] = own[0]
            continue
        if not all(map(is_row, own)):
            break
        parts = [part_of(role, here.dims[ours[p]]) for role, p in zip(own, places, strict=True)]
        steps = zip(parts, parts[1:], strict=False)
        if any(a.stride != b.stride * b.size for a, b in steps):
            break
        found[dim] = RowDim(parts[-1].stride, there.dims[dim], parts[-1].rows).role
    else:
        if groups is not None:
            return tuple(found)
    return f"a reshape of {list(here.dims)} to {list(there.dims)}"


def _pairs(op: Op) -> list[tuple[int, int]]:
    """(dim of the operand, dim of the result) that are the same; a reshape moves dims of 1."""
    source, target = op.operands[0], op.results[0]
    if op.name == "transpose":
        return [(dim, place) for place, dim in enumerate(op.permutation)]
    if op.name == "broadcast_in_dim":
        return list(enumerate(op.broadcast_dimensions))
    if op.name == "reduce":
        kept = [dim for dim in range(source.rank) if dim not in op.dimensions]
        return [(dim, place) for place, dim in enumerate(kept)]
    ours = [dim for dim in range(source.rank) if source.dims[dim] != 1]
    theirs = [dim for dim in range(target.rank) if target.dims[dim] != 1]
    return list(zip(ours, theirs, strict=True))
