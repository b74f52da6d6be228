"""Loops and branches of a tile function. All threads of a block go the same way."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op, Region, Value
from ... import llvm
from . import ring
from .distributed_layout import DistributedLayout
from .emitter import Emitter
from .operands import staged


def _tile_layouts(e: Emitter, values: Sequence[Value]) -> list[DistributedLayout | None]:
    """Layouts of carried values; None for scalars."""
    return [e.layout(value) if value.rank else None for value in values]


def _opened(
    e: Emitter, values: Sequence[Value], tile_layouts: Sequence[DistributedLayout | None]
) -> list[list[llvm.Value]]:
    return [e.opened(value, layout) for value, layout in zip(values, tile_layouts, strict=True)]


def _closed(
    e: Emitter,
    values: Sequence[Value],
    tile_layouts: Sequence[DistributedLayout | None],
    registers: Sequence[llvm.Value],
    counts: Sequence[int],
) -> None:
    first = 0
    for value, layout, count in zip(values, tile_layouts, counts, strict=True):
        e.closed(value, layout, registers[first : first + count])
        first += count


def tile_for(e: Emitter, op: Op) -> None:
    f = e.f
    region = op.regions[0]
    tile_layouts = _tile_layouts(e, op.results)
    start = _opened(e, op.operands[2:], tile_layouts)
    counts = [len(values) for values in start]
    lower, upper = (e.integer(value) for value in op.operands[:2])
    _hoist(e, op)
    ahead = ring.ring(e, op)
    carried = [one for some in start for one in some]
    if ahead is not None:
        e.rings.append(ahead)
        ring.begin(e, ahead, lower, upper)
        carried.append(llvm.constant("i32", 0))
    e.block.hazards.forget()
    with f.for_range(lower, upper, op.step, carried) as loop:
        outer = e.enter()
        e.scope.scalars[region.arguments[0]] = f.cast("trunc", loop.index, "i32")
        slots: list[llvm.Value] = []
        if ahead is not None:
            slots.append(ring.turn(e, ahead, loop.index, upper, loop.carried[-1]))
        _closed(e, region.arguments[1:], tile_layouts, loop.carried, counts)
        e.region(region)
        following = _opened(e, region.results, tile_layouts)
        e.leave(outer)
        loop.carry(*(one for some in following for one in some), *slots)
    e.block.hazards.forget()
    if ahead is not None:
        ring.end(e, ahead)
    _closed(e, op.results, tile_layouts, loop.results, counts)


def _hoist(e: Emitter, op: Op) -> None:
    """Operands of products inside that the loop does not change lie in shared memory before it."""
    inside = set(op.regions[0].walk())
    for product in e.facts.products:
        plan = e.assignment.products.get(product.op)
        if product.op not in inside or plan is None:
            continue
        for operand in plan.operands:
            owner = operand.source.origin.op
            if owner is not None and owner not in inside:
                staged(e, operand)


def while_loop(e: Emitter, op: Op) -> None:
    """Carried registers lie on the stack while code is emitted; LLVM takes them off again."""
    f = e.f
    condition, body = op.regions
    tile_layouts = _tile_layouts(e, op.results)
    start = _opened(e, op.operands, tile_layouts)
    counts = [len(values) for values in start]
    values = [one for some in start for one in some]
    places = [f.alloca(one.type, align=8) for one in values]

    def keep(registers: Sequence[llvm.Value]) -> None:
        for register, place in zip(registers, places, strict=True):
            f.store(register, place, align=8)

    def taken() -> list[llvm.Value]:
        return [f.load(one.type, place, align=8) for one, place in zip(values, places, strict=True)]

    keep(values)
    head, turn, done = f.label(), f.label(), f.label()
    f.jump(head)
    f.start_block(head)
    e.block.hazards.forget()
    outer = e.enter()
    _closed(e, condition.arguments, tile_layouts, taken(), counts)
    e.region(condition)
    holds = e.scalar(condition.results[0])
    e.leave(outer)
    assert isinstance(holds, llvm.Value)
    f.branch(holds, turn, done)
    f.start_block(turn)
    outer = e.enter()
    _closed(e, body.arguments, tile_layouts, taken(), counts)
    e.region(body)
    following = _opened(e, body.results, tile_layouts)
    e.leave(outer)
    keep([one for some in following for one in some])
    f.jump(head)
    f.start_block(done)
    e.block.hazards.forget()
    _closed(e, op.results, tile_layouts, taken(), counts)


def branches(e: Emitter, op: Op) -> None:
    """`if` (then, else) and `case` (by number; the last one for numbers out of range)."""
    chosen = e.scalar(op.operands[0])
    assert isinstance(chosen, llvm.Value)
    tile_layouts = _tile_layouts(e, op.results)
    counts: list[int] = []

    def side(region: Region) -> list[llvm.Value]:
        outer = e.enter()
        e.region(region)
        results = _opened(e, region.results, tile_layouts)
        e.leave(outer)
        counts[:] = [len(values) for values in results]
        return [one for some in results for one in some]

    def decide(number: int) -> Sequence[llvm.Value]:
        if number == len(op.regions) - 1:
            return side(op.regions[number])
        test = chosen if op.name == "if" else e.f.compare("eq", chosen, number)
        e.block.hazards.forget()
        branch = e.f.if_else(test)
        with branch.then():
            branch.give(*side(op.regions[number]))
        e.block.hazards.forget()
        with branch.otherwise():
            branch.give(*decide(number + 1))
        e.block.hazards.forget()
        return branch.results

    _closed(e, op.results, tile_layouts, decide(0), counts)
