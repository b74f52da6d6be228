"""Loops and branches of a tile function. All threads of a block go the same way."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op, Region, Value
from ... import llvm
from ...llvm import elements
from ...plain.monoid import flat, unflat
from . import ring
from .emitter import Emitter
from .operands import staged


class _Carried:
    """The values that a loop or a branch gives, as LLVM values: each in the layout of the result
    that it becomes."""

    def __init__(self, e: Emitter, op: Op) -> None:
        self.e = e
        self.layouts = [e.layout(value) for value in op.results]
        zeros = [
            elements.register_constant(v.element, v.element.dtype.type(0), 1) for v in op.results
        ]
        self.like = [
            zero for zero, layout in zip(zeros, self.layouts, strict=True) for _ in layout.alive
        ]

    def opened(self, values: Sequence[Value]) -> list[llvm.Value]:
        tiles = map(self.e.tile, values, self.layouts)
        return flat([one for tile in tiles for one in tile if one is not None])

    def closed(self, values: Sequence[Value], found: Sequence[llvm.Value]) -> None:
        """States where values are that lie so."""
        registers = iter(unflat(found, self.like))
        for value, layout in zip(values, self.layouts, strict=True):
            self.e.bind(value, self.e.registers(layout, lambda _: next(registers)), layout)


def tile_for(e: Emitter, op: Op) -> None:
    f = e.f
    region = op.regions[0]
    values = _Carried(e, op)
    carried = values.opened(op.operands[2:])
    lower, upper = (e.integer(value) for value in op.operands[:2])
    _hoist(e, op)
    ahead = ring.ring(e, op)
    if ahead is not None:
        e.rings.append(ahead)
        ring.begin(e, ahead, lower, upper)
        carried.append(llvm.constant("i32", 0))
    e.block.hazards.forget()
    with f.for_range(lower, upper, op.step, carried) as loop:
        with e.inside():
            e.bind(region.arguments[0], [f.cast("trunc", loop.index, "i32")])
            slots: list[llvm.Value] = []
            if ahead is not None:
                slots.append(ring.turn(e, ahead, loop.index, upper, loop.carried[-1]))
            values.closed(region.arguments[1:], loop.carried)
            e.region(region)
            following = values.opened(region.results)
        loop.carry(*following, *slots)
    e.block.hazards.forget()
    if ahead is not None:
        ring.end(e, ahead)
    values.closed(op.results, loop.results)


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
    values = _Carried(e, op)
    start = values.opened(op.operands)
    places = [f.alloca(one.type, align=8) for one in start]

    def keep(registers: Sequence[llvm.Value]) -> None:
        for register, place in zip(registers, places, strict=True):
            f.store(register, place, align=8)

    def taken() -> list[llvm.Value]:
        return [f.load(one.type, place, align=8) for one, place in zip(start, places, strict=True)]

    keep(start)
    head, turn, done = f.label(), f.label(), f.label()
    f.jump(head)
    f.start_block(head)
    e.block.hazards.forget()
    with e.inside():
        values.closed(condition.arguments, taken())
        e.region(condition)
        holds = e.number(condition.results[0])
    f.branch(holds, turn, done)
    f.start_block(turn)
    with e.inside():
        values.closed(body.arguments, taken())
        e.region(body)
        following = values.opened(body.results)
    keep(following)
    f.jump(head)
    f.start_block(done)
    e.block.hazards.forget()
    values.closed(op.results, taken())


def branches(e: Emitter, op: Op) -> None:
    """`if` (then, else) and `case` (by number; the last one for numbers out of range)."""
    chosen, values = e.number(op.operands[0]), _Carried(e, op)

    def side(region: Region) -> list[llvm.Value]:
        with e.inside():
            e.region(region)
            return values.opened(region.results)

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

    values.closed(op.results, decide(0))
