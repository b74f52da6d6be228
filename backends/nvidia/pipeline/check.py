"""Refuses what the threads of a warp group cannot compute on their own elements."""

from __future__ import annotations

from ....hlo.errors import CompilerBug
from ....hlo.graph import Op, Value, constant_of
from ....hlo.ops.bodies import monoid
from ....hlo.types import I32
from ...llvm import arithmetic
from ..frame import Unfit
from .roles import through
from .work import COLUMN, PipelineWork, Roles, is_row, part_of


class Check:
    """Walks everything that is stored or carried, with the role of each dim, and refuses what the
    threads cannot compute on their own elements."""

    def __init__(self, work: PipelineWork) -> None:
        self.work = work
        self.seen: set[tuple[Value, Roles]] = set()

    def run(self) -> None:
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
            plain = one.op.name in ("constant", "tile_bound", "tile_id")
            if not plain and (one.op.definition.pattern != "elementwise" or one.rank):
                raise Unfit(f"the place of a window comes from {one.op.name}")
            if one.element is not I32 and not one.element.is_bool:
                raise Unfit(f"the place of a window comes from {one.element}")
            pending.extend(one.op.operands)


def supported(work: PipelineWork, value: Value, roles: Roles) -> list[tuple[Value, Roles]]:
    """What a value of these roles is computed from; Unfit where threads cannot compute it."""
    for size, role in zip(value.dims, roles, strict=True):
        if is_row(role) and part_of(role, size)[1:] != (size, work.rows):
            raise Unfit(f"{size} rows beside {work.rows}")
        if role == COLUMN and size % 8:
            raise Unfit(f"{size} columns are no multiple of 8")
    if value.element.is_complex or value.element.kind == "quantized":
        raise Unfit(f"it computes with {value.element}")
    op, product = value.op, work.of(value)
    if product is not None:
        needed = [(product.addend, roles)] if product.addend is not None else []
        if isinstance(product.left, Value):
            if product.left not in work.roles:
                raise Unfit("an operand of a product is computed by what no product takes part in")
            needed.append((product.left, work.roles[product.left]))
        return needed
    if op is None or op.name == "tile_for":
        return _carried(work, value, roles)
    if op.name == "constant":
        dense = constant_of(value)
        if dense is None or not dense.is_splat:
            raise Unfit("a constant that is not one number")
        return []
    if op.name in ("tile_bound", "tile_id", "iota"):
        return []
    if op.name == "tile_load":
        return [(offset, ()) for offset in op.offsets]
    if op.name in ("broadcast_in_dim", "reshape", "transpose"):
        return [(op.operands[0], through(op, roles, False))]
    if op.name == "reduce":
        return _reduced(op, roles)
    if op.definition.pattern == "elementwise" and arithmetic.supports(op):
        return [(v, roles if v.rank == len(roles) else ("",) * v.rank) for v in op.operands]
    raise Unfit(f"{op.name} is not computed in registers of a product")


def _reduced(op: Op, roles: Roles) -> list[tuple[Value, Roles]]:
    if len(op.operands) != 2 or monoid(op.regions[0]) in (None, "xor"):
        raise Unfit("a reduction of several operands or by a function of its own")
    inner = through(op, roles, False)
    if any(is_row(inner[dim]) for dim in op.dimensions):
        raise Unfit("a reduction over rows, which different warps have")
    return [(op.operands[0], inner), (op.operands[1], ())]


def _carried(work: PipelineWork, value: Value, roles: Roles) -> list[tuple[Value, Roles]]:
    loop = work.loop
    if loop is None:
        raise CompilerBug(f"nothing gives {value}")
    body = loop.regions[0]
    if value is body.arguments[0]:
        return []
    number = value.index if value.op is not None else value.index - 1
    if value.rank and work.roles.get(value) != roles:
        raise Unfit("what the loop carries is spread over threads in two ways")
    return [(loop.operands[2 + number], roles), (body.results[number], roles)]
