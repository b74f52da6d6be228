"""Gathered values that are gathered again for a later use, rather than kept until then.

Layers whose weights are cut among the devices gather them to compute, forward and again backward.
What is gathered twice costs its bytes twice, and lies nowhere in between.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...hlo.graph import Module, Op, Region, Value
from ...hlo.regions import rename
from ...hlo.sharding import Mesh
from ...hlo.types import TensorType
from .decide import Decided


@dataclass(frozen=True, eq=False)
class Gap:
    """A stretch of the program in which a gathered value is not read.

    op: the `sharding_constraint` that gathers; user: what reads it next. bytes: what a device holds
    meanwhile; products: how many operations that are none of its readers sum products there.
    """

    op: Op
    user: Op
    bytes: int
    products: int


def gaps(decided: Module, mesh: Mesh) -> list[Gap]:
    """Where gathering again frees memory for the time of a product at least, the most bytes for the
    longest time first. Loops keep what they gather.

    decided: at level DECIDED.
    """
    region = decided.body
    before, count = dict[Op, int](), 0
    for op in region.ops:
        before[op] = count
        count += op.definition.pattern == "contract"
    found = []
    for op in region.ops:
        if op.name != "sharding_constraint":
            continue
        held = _local(op.result, mesh)
        if held <= _local(op.operands[0], mesh):
            continue
        users = [user for user, _ in region.uses.get(op.result, ()) if user is not None]
        users = sorted(dict.fromkeys(users), key=lambda user: before[user])
        for last, user in zip(users, users[1:], strict=False):
            products = before[user] - before[last] - (last.definition.pattern == "contract")
            if products > 0:
                found.append(Gap(op, user, held, products))
    place = {op: number for number, op in enumerate(region.ops)}
    found.sort(key=lambda gap: (-gap.bytes * gap.products, place[gap.op], place[gap.user]))
    return found


def regathered(decided: Decided, chosen: Collection[Gap]) -> Decided:
    """The program at level DECIDED that gathers again at the end of each of these gaps. Who asked
    for a gathered value asked for all of its gathers."""
    again: dict[Op, list[Op]] = {}
    for gap in chosen:
        again.setdefault(gap.user, []).append(gap.op)
    origins, uses = dict(decided.origins), dict(decided.uses)
    known: dict[Value, Value] = {}
    ops: list[Op] = []

    def append(old: Op, new: Op) -> None:
        ops.append(new)
        if new is old:
            return
        if old in uses:
            uses[new] = uses[old]
        for value, other in zip(old.results, new.results, strict=True):
            known[value] = other
            if value in origins:
                origins[other] = origins[value]

    body = decided.module.body
    for op in body.ops:
        for gather in again.get(op, ()):
            source = known.get(gather.operands[0], gather.operands[0])
            kinds, facts = gather.result_types, gather.attributes
            append(gather, Op(gather.definition, [source], facts, (), kinds, op.origin))
        operands = [known.get(value, value) for value in op.operands]
        append(op, op.with_operands(operands, [rename(inner, known) for inner in op.regions]))
    results = [known.get(value, value) for value in body.results]
    module = decided.module.with_main(Region(body.arguments, ops, results))
    return Decided(module, origins, uses)


def _local(value: Value, mesh: Mesh) -> int:
    """Bytes of a device's block."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.sharding is None:
        return 0
    return TensorType(kind.sharding.local_dims(mesh, kind.dims), kind.element).bytes
