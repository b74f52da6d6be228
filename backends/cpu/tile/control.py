"""Loops and branches of a tile function as native control flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ....hlo.graph import Op, Region, Value
from ....optimizer.tiles.steps import BodyBlock, BodyStep
from ... import llvm
from ...llvm import elements
from .scope import BlockScope, ValuePlace

if TYPE_CHECKING:
    from .driver import Driver


@contextmanager
def _carried(
    driver: Driver, block: BodyBlock, number: int, scope: BlockScope, body: BodyBlock, first: int
) -> Iterator[Carried]:
    """The carried values of a loop, in two slots each that change places every turn."""
    step = block.steps[number]
    inputs = step.inputs[len(step.inputs) - len(step.outputs) :]
    carried = Carried(driver, body, first, step.outputs)
    ending = set(block.last.get(number, ()))
    for position, (value, result) in enumerate(zip(inputs, step.outputs, strict=True)):
        if result in driver.cutter.native:
            carried.start_register(position, driver.scalar(value, scope))
            continue
        if value in ending and _free(step, value, scope):
            start = scope.places[value].pointer
            scope.owned.setdefault(result, []).extend(scope.owned.pop(value))
        else:
            source = driver.dense(value, scope)
            start = driver.take(result, scope)
            driver.copy(start, source, value)
        spare = None if carried.same(position) else driver.take(result, scope)
        carried.start_tile(position, start, spare)
    yield carried
    for position, result in enumerate(step.outputs):
        if result in driver.cutter.native:
            scope.registers[result] = carried.register(position)
        else:
            scope.places[result] = ValuePlace(carried.pointer(position))


def _free(step: BodyStep, value: Value, scope: BlockScope) -> bool:
    """Whether a loop may change the slot of an initial value: nothing else inside reads it."""
    place = scope.places.get(value)
    if place is None or not place.own or value not in scope.owned:
        return False
    others = [v for region in step.op.regions for v in region.captures()]
    others += list(step.inputs)
    same = [v for v in others if v in scope.places and scope.places[v].pointer is place.pointer]
    return len(same) == 1


def _for(
    driver: Driver,
    block: BodyBlock,
    number: int,
    scope: BlockScope,
    inside: frozenset[Op],
    split: bool,
) -> None:
    step, f = block.steps[number], driver.f
    body = step.blocks[0]
    lower, upper = (f.cast("sext", driver.scalar(value, scope), "i64") for value in step.inputs[:2])
    with (
        _carried(driver, block, number, scope, body, 1) as carried,
        f.for_range(lower, upper, step.op.step) as loop,
    ):
        inner = scope.inner(carried.wanted())
        inner.registers[body.region.arguments[0]] = f.cast("trunc", loop.index, "i32")
        carried.bind(inner)
        driver.block(body, inner, inside, split, carried.finish)


def _while(
    driver: Driver,
    block: BodyBlock,
    number: int,
    scope: BlockScope,
    inside: frozenset[Op],
    split: bool,
) -> None:
    step, f = block.steps[number], driver.f
    condition, body = step.blocks
    with _carried(driver, block, number, scope, body, 0) as carried:
        head, turn, done = f.label(), f.label(), f.label()
        f.jump(head)
        f.start_block(head)
        test = scope.inner()
        carried.bind(test, condition.region)
        holds = f.alloca("i1")

        def finish(inner: BlockScope) -> None:
            f.store(driver.scalar(condition.region.results[0], inner), holds)

        driver.block(condition, test, inside, split, finish)
        f.branch(f.load("i1", holds), turn, done)
        f.start_block(turn)
        inner = scope.inner(carried.wanted())
        carried.bind(inner)
        driver.block(body, inner, inside, split, carried.finish)
        f.jump(head)
        f.start_block(done)


def _branches(
    driver: Driver,
    block: BodyBlock,
    number: int,
    scope: BlockScope,
    inside: frozenset[Op],
    split: bool,
) -> None:
    """`if` and `case`: a branch computes its results where they have to lie."""
    step, f = block.steps[number], driver.f
    chosen = driver.scalar(step.inputs[0], scope)
    registers: dict[int, llvm.Value] = {}
    for position, result in enumerate(step.outputs):
        if result in driver.cutter.native:
            registers[position] = f.alloca(elements.register_type(result.element))
        else:
            scope.places[result] = ValuePlace(driver.take(result, scope))

    def run(body: BodyBlock) -> None:
        places = {
            value: scope.places[result]
            for value, result in zip(body.region.results, step.outputs, strict=True)
            if result not in driver.cutter.native and fresh(body, value)
        }

        def finish(inner: BlockScope) -> None:
            for position, value in enumerate(body.region.results):
                if position in registers:
                    f.store(driver.scalar(value, inner), registers[position])
                elif value not in places:
                    target = scope.places[step.outputs[position]].pointer
                    driver.copy(target, driver.dense(value, inner), value)

        driver.block(body, scope.inner(places), inside, split, finish)

    def choose(position: int) -> None:
        if position == len(step.blocks) - 1:
            run(step.blocks[position])
            return
        test = chosen if step.op.name == "if" else f.compare("eq", chosen, position)
        branch = f.if_else(test)
        with branch.then():
            run(step.blocks[position])
        with branch.otherwise():
            choose(position + 1)

    choose(0)
    for position, address in registers.items():
        result = step.outputs[position]
        scope.registers[result] = f.load(elements.register_type(result.element), address)


CONTROL = {
    "tile_for": _for,
    "while": _while,
    "if": _branches,
    "case": _branches,
}


class Carried:
    """The state of a loop: registers, and for each tile the current slot and the spare one."""

    def __init__(
        self, driver: Driver, body: BodyBlock, first: int, results: Sequence[Value]
    ) -> None:
        self.driver, self.f, self.body, self.first = driver, driver.f, body, first
        self.results = results
        self._cells: dict[int, llvm.Value] = {}
        self._spares: dict[int, llvm.Value] = {}
        self._registers: set[int] = set()

    def same(self, position: int) -> bool:
        """Whether the body hands the value on as it is."""
        return self.body.region.results[position] is self.argument(self.body.region, position)

    def argument(self, region: Region, position: int) -> Value:
        first = self.first if region is self.body.region else 0
        return region.arguments[first + position]

    def start_register(self, position: int, register: llvm.Value) -> None:
        self._cells[position] = self.f.alloca(register.type)
        self._registers.add(position)
        self.f.store(register, self._cells[position])

    def start_tile(self, position: int, start: llvm.Value, spare: llvm.Value | None) -> None:
        self._cells[position] = self.f.alloca("ptr")
        self.f.store(start, self._cells[position])
        if spare is not None:
            self._spares[position] = self.f.alloca("ptr")
            self.f.store(spare, self._spares[position])

    def register(self, position: int) -> llvm.Value:
        kind = elements.register_type(self.results[position].element)
        return self.f.load(kind, self._cells[position])

    def pointer(self, position: int) -> llvm.Value:
        return self.f.load("ptr", self._cells[position])

    def bind(self, scope: BlockScope, region: Region | None = None) -> None:
        """Makes the arguments of the body (or of the condition) known."""
        region = region or self.body.region
        for position in range(len(self.results)):
            argument = self.argument(region, position)
            if position in self._registers:
                scope.registers[argument] = self.register(position)
            else:
                scope.places[argument] = ValuePlace(self.pointer(position))

    def wanted(self) -> dict[Value, ValuePlace]:
        """Where the body computes its results: in the spare slots."""
        return {
            self.body.region.results[position]: ValuePlace(self.f.load("ptr", spare))
            for position, spare in self._spares.items()
            if fresh(self.body, self.body.region.results[position])
        }

    def finish(self, scope: BlockScope) -> None:
        """Ends a turn: all results first, then they become the current values."""
        driver, f, results = self.driver, self.f, self.body.region.results
        registers = [(p, driver.scalar(results[p], scope)) for p in sorted(self._registers)]
        for position, spare in self._spares.items():
            value = results[position]
            if not fresh(self.body, value):
                source = driver.dense(value, scope)
                driver.copy(f.load("ptr", spare), source, value)
        for position, register in registers:
            f.store(register, self._cells[position])
        for position, spare in self._spares.items():
            old, new = self.pointer(position), f.load("ptr", spare)
            f.store(new, self._cells[position])
            f.store(old, spare)


def fresh(block: BodyBlock, value: Value) -> bool:
    """Whether a nest of this block computes the value, which is one result: it can do so there."""
    made = any(step.kind == "nest" and value in step.outputs for step in block.steps)
    return made and block.region.results.count(value) == 1
