"""Loops and branches of a tile function. All threads of a block go the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....hlo.graph import Op, Region
from ... import llvm

if TYPE_CHECKING:
    from .emitter import Emitter
    from .memory_tiles import Resident


def tile_for(e: Emitter | Resident, op: Op) -> None:
    f, (region,) = e.f, op.regions
    values = e.carried(op)
    carried = values.start(op.operands[2:])
    lower, upper = (e.integer(value) for value in op.operands[:2])
    ahead = e.ahead(op)
    if ahead is not None:
        carried.append(ahead.begin(lower, upper))
    e.hazards.forget()
    with f.for_range(lower, upper, op.step, carried) as loop:
        with e.inside():
            e.know(region.arguments[0], f.cast("trunc", loop.index, "i32"))
            numbers: list[llvm.Value] = []
            if ahead is not None:
                numbers.append(ahead.turn(loop.index, upper, loop.carried[-1]))
            values.bind(region.arguments[1:], loop.carried)
            e.region(region)
            following = values.again(region.results)
        loop.carry(*following, *numbers)
    e.hazards.forget()
    if ahead is not None:
        ahead.end()
    values.bind(op.results, loop.results)


def while_loop(e: Emitter | Resident, op: Op) -> None:
    """Carried registers lie on the stack while code is emitted; LLVM takes them off again."""
    f = e.f
    condition, body = op.regions
    values = e.carried(op)
    start = values.start(op.operands)
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
    e.hazards.forget()
    with e.inside():
        values.bind(condition.arguments, taken())
        e.region(condition)
        holds = e.number(condition.results[0])
    f.branch(holds, turn, done)
    f.start_block(turn)
    with e.inside():
        values.bind(body.arguments, taken())
        e.region(body)
        following = values.again(body.results)
    keep(following)
    f.jump(head)
    f.start_block(done)
    e.hazards.forget()
    values.bind(op.results, taken())


def branches(e: Emitter | Resident, op: Op) -> None:
    """`if` (then, else) and `case` (by number; the last one for numbers out of range)."""
    chosen, values = e.number(op.operands[0]), e.carried(op)

    def side(region: Region) -> list[llvm.Value]:
        with e.inside():
            e.region(region)
            return values.start(region.results)

    def decide(number: int) -> Sequence[llvm.Value]:
        if number == len(op.regions) - 1:
            return side(op.regions[number])
        test = chosen if op.name == "if" else e.f.compare("eq", chosen, number)
        e.hazards.forget()
        branch = e.f.if_else(test)
        with branch.then():
            branch.give(*side(op.regions[number]))
        e.hazards.forget()
        with branch.otherwise():
            branch.give(*decide(number + 1))
        e.hazards.forget()
        return branch.results

    values.bind(op.results, decide(0))


CONTROL = {"tile_for": tile_for, "while": while_loop, "if": branches, "case": branches}
