"""What threads cannot compute on the elements that they have of products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hlo.errors import CompilerBug
from ...hlo.graph import Op, Value, constant_of
from ...hlo.ops.bodies import monoid
from ...hlo.types import I32
from .roles import moved
from .work import COLUMN, PipelineWork, Roles, is_row, part_of

if TYPE_CHECKING:
    from ...backends.capabilities import Formulas

Needed = list[tuple[Value, Roles]]


class Check:
    """Walks everything that is stored or carried, with the role of each dim: `reason` says what the
    threads cannot compute of it on their own elements, "" where they can all of it."""

    def __init__(self, work: PipelineWork, formulas: Formulas) -> None:
        self.work, self.formulas = work, formulas
        self.seen: set[tuple[Value, Roles]] = set()
        self.reason = self._places() or self._values()

    def _places(self) -> str:
        offsets = (value for panel in self.work.panels for value in panel.op.offsets)
        return next(filter(None, map(self.scalar, offsets)), "")

    def _values(self) -> str:
        work = self.work
        pending: Needed = []
        for store in work.stores:
            value = store.operands[1]
            roles = work.roles.get(value)
            if roles is None:
                return "a store of what no product takes part in"
            pending.append((value, roles))
        while pending:
            value, roles = pending.pop()
            if (value, roles) in self.seen:
                continue
            self.seen.add((value, roles))
            needed = _misplaced(work, value, roles) or self.needed(value, roles)
            if isinstance(needed, str):
                return needed
            pending.extend(needed)
        return ""

    def scalar(self, value: Value) -> str:
        """Why a number is none that every thread, also that which starts copies, can compute; ""
        where it is."""
        loop = self.work.loop
        pending = [value]
        while pending:
            one = pending.pop()
            if one.op is None:
                index = loop is not None and one is loop.regions[0].arguments[0]
                if not index:
                    return "the place of a window depends on what the loop carries"
                continue
            plain = one.op.definition.pattern == "elementwise" and not one.rank
            if not plain and not one.op.definition.uniform and one.op.name != "constant":
                return f"the place of a window comes from {one.op.name}"
            if one.element is not I32 and not one.element.is_bool:
                return f"the place of a window comes from {one.element}"
            pending.extend(one.op.operands)
        return ""

    def needed(self, value: Value, roles: Roles) -> Needed | str:
        """What a value of these roles is computed from, or why threads cannot compute it."""
        work = self.work
        op, product = value.op, work.of(value)
        if product is not None:
            needed = [(product.addend, roles)] if product.addend is not None else []
            if isinstance(product.left, Value):
                if product.left not in work.roles:
                    return "an operand of a product is computed by what no product takes part in"
                needed.append((product.left, work.roles[product.left]))
            return needed
        if op is None or op.name == "tile_for":
            return _carried(work, value, roles)
        if op.name == "constant":
            dense = constant_of(value)
            whole = dense is not None and dense.is_splat
            return [] if whole else "a constant that is not one number"
        if op.name == "iota" or op.definition.uniform:
            return []
        if op.name == "tile_load":
            return [(offset, ()) for offset in op.offsets]
        if op.name == "reduce":
            return _reduced(op, roles)
        if op.definition.views:
            inner = moved(op, roles, False)
            return inner if isinstance(inner, str) else [(op.operands[0], inner)]
        if op.definition.pattern == "elementwise" and self.formulas.has(op):
            return [(v, roles if v.rank == len(roles) else ("",) * v.rank) for v in op.operands]
        return f"{op.name} is not computed in registers of a product"


def _misplaced(work: PipelineWork, value: Value, roles: Roles) -> str:
    """Why elements of a value do not lie as those of products do, "" where they do."""
    least = work.products[0].kind.grain[1]
    for size, role in zip(value.dims, roles, strict=True):
        if is_row(role) and part_of(role, size)[1:] != (size, work.rows):
            return f"{size} rows beside {work.rows}"
        if role == COLUMN and size % least:
            return f"{size} columns are no multiple of {least}"
    if value.element.is_complex or value.element.kind == "quantized":
        return f"it computes with {value.element}"
    return ""


def _reduced(op: Op, roles: Roles) -> Needed | str:
    if len(op.operands) != 2 or monoid(op.regions[0]) in (None, "xor"):
        return "a reduction of several operands or by a function of its own"
    inner = moved(op, roles, False)
    if isinstance(inner, str):
        return inner
    if any(is_row(inner[dim]) for dim in op.dimensions):
        return "a reduction over rows, which different warps have"
    return [(op.operands[0], inner), (op.operands[1], ())]


def _carried(work: PipelineWork, value: Value, roles: Roles) -> Needed | str:
    loop = work.loop
    if loop is None:
        raise CompilerBug(f"nothing gives {value}")
    body = loop.regions[0]
    if value is body.arguments[0]:
        return []
    number = value.index if value.op is not None else value.index - 1
    if value.rank and work.roles.get(value) != roles:
        return "what the loop carries is spread over threads in two ways"
    return [(loop.operands[2 + number], roles), (body.results[number], roles)]
