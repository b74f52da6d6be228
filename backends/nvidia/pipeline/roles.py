"""Which dim of every value is spread over rows and which over columns of the products."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op, Region, Value
from ..frame import Unfit
from .work import COLUMN, ROW, UNIT, Panel, Product, Roles, shape


class Propagation:
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
