"""The driver of a tile function: walks the grid, computes offsets, runs loops, calls nests.

A tile is a value in scratch, or a window of memory that is read where it lies. Windows that are not
proven to lie inside their memory are tested: once per tile, or once per turn of the loop whose
variable decides. Where a test fails, another version of the body copies such windows to scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ....hlo.errors import UserError
from ....hlo.graph import Op, Region, Value
from ....hlo.offsets import Offset, Offsets
from ....hlo.ops.tile import MEMORY_OPS
from .. import arithmetic, elements, llvm
from ..codegen import KernelCode, Target
from .arena import Arena
from .cut import Block, Cutter, Step
from .layout import turned
from .moves import Move, move_of
from .nests import Nests, View

SYMBOL = "kernel"


class Place(NamedTuple):
    """Where a value lies: row-major by itself, or as a view."""

    pointer: llvm.Value
    view: View | None = None


@dataclass
class Scope:
    """What the code of one block knows. Blocks inside start from a copy."""

    places: dict[Value, Place] = field(default_factory=dict)
    registers: dict[Value, llvm.Value] = field(default_factory=dict)
    owned: dict[Value, list[int]] = field(default_factory=dict)  # slots that end with the block
    wanted: dict[Value, Place] = field(default_factory=dict)  # where results have to lie

    def inner(self, wanted: dict[Value, Place] | None = None) -> Scope:
        return Scope(dict(self.places), dict(self.registers), {}, dict(wanted or {}))


Finish = Callable[[Scope], None]


class Driver:
    """Emits one kernel_call."""

    def __init__(self, kernel: Op, target: Target) -> None:
        self.region = turned(kernel.regions[0], target)
        kernel = kernel.with_operands(kernel.operands, [self.region, *kernel.regions[1:]])
        self.kernel, self.target = kernel, target
        self.offsets = Offsets(kernel)
        self.cutter = Cutter(kernel)
        self.module = target.module()
        self.f = self.module.kernel(SYMBOL)
        self.nests = Nests(self.module, target)
        self.arena = Arena()
        self.notes: dict[str, None] = {}
        self.inputs = frozenset(self.region.arguments[: len(kernel.operands)])
        self.memory: dict[Value, llvm.Value] = {}
        self.ids: list[llvm.Value] = []

    def emit(self) -> KernelCode:
        f, op = self.f, self.kernel
        block = self.cutter.cut()
        args, begin, end, self.scratch = f.arguments
        for number, value in enumerate(self.region.arguments):
            self.memory[value] = f.load("ptr", f.pointer(args, number, "ptr"))
        self.working = llvm.Value("ptr", "%working")
        slot = f.slot()
        tiles, serial = math.prod(op.grid), self._serial()
        self.tests = self._tests()
        self.direct = self._direct()
        if serial:
            with f.if_then(f.compare("slt", begin, end)):
                self._start()
                with f.for_range(0, tiles) as loop:
                    self._tile(block, loop.index)
        else:
            with f.for_range(begin, end) as loop:
                self._tile(block, loop.index)
        f.ret()
        slot.append(f"%working = getelementptr i8, {self.scratch}, i64 {self.arena.size}")
        moved = float(sum(value.tensor.bytes for value in self.region.arguments))
        return KernelCode(
            self.nests.text(),
            SYMBOL,
            1 if serial else tiles,
            self.arena.size + self.nests.scratch,
            op.definition.flops(op),
            moved,
            tiles > 1 and not serial,
            (*self.notes, *self.nests.notes),
        )

    def _serial(self) -> bool:
        """Whether tiles depend on each other's order, or on what results hold at the start."""
        if any(start >= 0 for start in self.kernel.starts):
            self.notes["a result starts as a copy, so one worker runs all tiles"] = None
            return True
        if any(op.attributes.get("combine") for op in self.region.walk()):
            self.notes["stores are combined, so one worker runs all tiles in order"] = None
            return True
        return False

    def _start(self) -> None:
        results = self.region.arguments[len(self.kernel.operands) :]
        for start, result in zip(self.kernel.starts, results, strict=False):
            if start >= 0:
                source = self.memory[self.region.arguments[start]]
                self.copy(self.memory[result], source, result)

    def _tile(self, block: Block, flat: llvm.Value) -> None:
        f, ids = self.f, []
        for number, size in enumerate(reversed(self.kernel.grid)):
            last = number == len(self.kernel.grid) - 1
            ids.append(flat if last else f.urem(flat, size))
            flat = f.udiv(flat, size)
        self.ids = [f.cast("trunc", one, "i32") for one in reversed(ids)]
        self._block(block, Scope(), frozenset(), True, lambda scope: None)

    # Versions.

    def _tests(self) -> dict[Region, list[Op]]:
        """By region, the accesses whose windows are known to lie inside, or not, once it begins."""
        chains: dict[Region, tuple[Region, ...]] = {self.region: (self.region,)}
        tests: dict[Region, list[Op]] = {}

        def visit(region: Region) -> None:
            for op in region.ops:
                for inner in op.regions:
                    chains[inner] = (*chains[region], inner)
                    visit(inner)
                if op.name in ("tile_load", "tile_store") and not self._proven(op):
                    home = self._decided(op, chains[region])
                    dims = op.operands[0].dims
                    sizes = move_of(op).sizes
                    fits = all(size <= dim for size, dim in zip(sizes, dims, strict=True))
                    if home is None:
                        if fits and self._asked(op):
                            continue
                        self.notes["windows whose offsets come from data are copied"] = None
                    elif fits:
                        tests.setdefault(home, []).append(op)

        visit(self.region)
        return tests

    def _decided(self, op: Op, chain: tuple[Region, ...]) -> Region | None:
        """The region at whose start all offsets are known; None if there is none."""
        depth = 0
        for offset in _offsets(op):
            for variable in self.offsets.of(offset).variables:
                if variable.op is not None:
                    if variable.op.name != "tile_id":
                        return None
                elif variable.owner in chain:
                    depth = max(depth, chain.index(variable.owner))
        return chain[depth]

    def _proven(self, op: Op) -> bool:
        return all(self._sides(op, d) == (False, False) for d in range(len(_offsets(op))))

    def _sides(self, op: Op, d: int) -> tuple[bool, bool]:
        """Whether a window may reach outside below and above in dim d."""
        sizes = move_of(op).sizes
        low, high = self.offsets.range(self.offsets.of(_offsets(op)[d]))
        return low < 0, high + sizes[d] > op.operands[0].dims[d]

    def _inside(self, accesses: Sequence[Op], scope: Scope) -> llvm.Value:
        """Whether all these windows lie inside."""
        f = self.f
        known: dict[tuple[Offset, str, int], llvm.Value] = {}
        for op in accesses:
            for d, value in enumerate(_offsets(op)):
                offset = self.offsets.of(value)
                below, above = self._sides(op, d)
                limit = op.operands[0].dims[d] - move_of(op).sizes[d]
                for wanted, predicate, bound in ((below, "sge", 0), (above, "sle", limit)):
                    if wanted and (offset, predicate, bound) not in known:
                        at = self._affine(offset, scope)
                        test = f.compare(predicate, at, bound)
                        known[offset, predicate, bound] = test
        tests = list(known.values())
        total = tests[0]
        for test in tests[1:]:
            total = f.land(total, test)
        return total

    def _direct(self) -> frozenset[Op]:
        """Stores of tiles that lie in one piece of a memory which nothing else touches: a nest
        computes them where they belong."""
        touched: dict[Value, int] = {}
        for op in self.region.walk():
            if op.name in MEMORY_OPS:
                touched[op.operands[0]] = touched.get(op.operands[0], 0) + 1
        return frozenset(
            op
            for op in self.region.walk()
            if op.name == "tile_store"
            and not (op.masked or op.combine)
            and touched[op.operands[0]] == 1
            and contiguous(op.operands[1].dims, op.operands[0].dims)
            and all(self._simple(self.offsets.of(offset)) for offset in _offsets(op))
        )

    @staticmethod
    def _simple(offset: Offset) -> bool:
        """Whether an offset is known as soon as its block begins."""
        return all(v.op is None or v.op.name == "tile_id" for v in offset.variables)

    def _pointer(self, op: Op, scope: Scope) -> llvm.Value:
        """The address of the first element of a window that lies inside."""
        memory = op.operands[0]
        at = llvm.constant("i64", 0)
        for d, offset in enumerate(_offsets(op)):
            stride = math.prod(memory.dims[d + 1 :])
            at = self.f.add(at, self.f.mul(self._affine(self.offsets.of(offset), scope), stride))
        return self.f.pointer(self.memory[memory], at, f"i{8 * memory.element.itemsize}")

    def _want(self, block: Block, scope: Scope, inside: frozenset[Op]) -> None:
        """Tiles of this block that are computed where they are stored."""
        for step in block.steps:
            if step.kind != "store" or step.op not in self.direct:
                continue
            value = step.op.operands[1]
            alone = len(block.region.uses[value]) == 1
            made = any(s.kind == "nest" and value in s.outputs for s in block.steps)
            if alone and made and (step.op in inside or self._proven(step.op)):
                scope.wanted[value] = Place(self._pointer(step.op, scope))

    def _affine(self, offset: Offset, scope: Scope) -> llvm.Value:
        f = self.f
        total = llvm.constant("i64", offset.constant)
        for variable, factor in offset.terms:
            wide = f.cast("sext", self._scalar(variable, scope), "i64")
            total = f.add(total, f.mul(wide, factor))
        return total

    def _block(
        self, block: Block, scope: Scope, inside: frozenset[Op], split: bool, finish: Finish
    ) -> None:
        """A block, in two versions if windows in it may reach outside; `finish` ends each."""
        accesses = self.tests.get(block.region)
        if not split or not accesses:
            self._steps(block, scope, inside, split, finish)
            return
        branch = self.f.if_else(self._inside(accesses, scope))
        with branch.then():
            version = scope.inner(scope.wanted)
            self._steps(block, version, inside | frozenset(accesses), True, finish)
        with branch.otherwise():
            version = scope.inner(scope.wanted)
            self._steps(block, version, inside, False, finish)

    # Steps.

    def _steps(
        self, block: Block, scope: Scope, inside: frozenset[Op], split: bool, finish: Finish
    ) -> None:
        self._want(block, scope, inside)
        for number, step in enumerate(block.steps):
            if step.kind == "control":
                _CONTROL[step.op.name](self, block, number, scope, inside, split)
            elif step.kind == "scalar":
                scope.registers[step.outputs[0]] = self._evaluate(step.op, scope)
            elif step.kind == "load":
                self._load(step.op, scope, inside)
            elif step.kind == "store":
                self._store(step.op, scope)
            elif step.kind == "alias":
                scope.places[step.outputs[0]] = self._place(step.inputs[0], scope)
            else:
                self._nest(step, scope)
            for value in block.last.get(number, ()):
                for offset in scope.owned.pop(value, ()):
                    self.arena.give(offset)
        finish(scope)
        for offsets in scope.owned.values():
            for offset in offsets:
                self.arena.give(offset)
        scope.owned.clear()

    def _evaluate(self, op: Op, scope: Scope) -> llvm.Value:
        """A scalar in a register."""
        if op.name == "constant":
            value = op.attributes["value"].splat_value
            register = elements.register_constant(op.result.element, value, 1)
        elif op.name == "tile_id":
            if op.axis >= len(self.ids):
                place = f"{op.origin[0]}: " if op.origin else ""
                raise UserError(f"{place}tile_id: axis {op.axis} of a grid of {len(self.ids)} axes")
            register = self.ids[op.axis]
        else:
            operands = [self._scalar(value, scope) for value in op.operands]
            if op.name == "reshape":
                register = operands[0]
            else:
                register = arithmetic.apply(self.f, op, operands)
        assert isinstance(register, llvm.Value)
        return register

    def _scalar(self, value: Value, scope: Scope) -> llvm.Value:
        """The register of a scalar, read from memory if a nest computed it."""
        found = scope.registers.get(value)
        if found is None:
            if value.op is not None and value not in scope.places:
                found = self._evaluate(value.op, scope)
            else:
                raw = self.f.load(
                    elements.memory_type(self.f, value.element), scope.places[value].pointer
                )
                found = elements.widen(self.f, raw, value.element)
            scope.registers[value] = found
        return found

    def _place(self, value: Value, scope: Scope) -> Place:
        """Where a value lies; a scalar in a register is written down first."""
        found = scope.places.get(value)
        if found is None:
            register = self._scalar(value, scope)
            at = self.f.alloca("i8", 64)
            self.f.store(elements.narrow(self.f, register, value.element), at)
            found = scope.places[value] = Place(at)
        return found

    def _dense(self, value: Value, scope: Scope) -> llvm.Value:
        """The address of a value that lies row-major, copied if it is a window."""
        place = self._place(value, scope)
        if place.view is None:
            return place.pointer
        copy = self._slot(value, scope)
        nest = self.nests.copy(value, place.view)
        self._call(nest.name, nest.tiles, [place.pointer, copy.pointer])
        scope.places[value] = copy
        return copy.pointer

    def _slot(self, value: Value, scope: Scope) -> Place:
        """Scratch for a value that is about to be computed."""
        wanted = scope.wanted.get(value)
        if wanted is not None:
            return wanted
        return Place(self._take(value, scope))

    def _take(self, value: Value, scope: Scope) -> llvm.Value:
        offset = self.arena.take(value.tensor.bytes)
        scope.owned.setdefault(value, []).append(offset)
        return self.f.pointer(self.scratch, offset, "i8")

    def _nest(self, step: Step, scope: Scope) -> None:
        fused = step.op.name == "fusion"
        places = [
            self._place(v, scope) if fused else Place(self._dense(v, scope)) for v in step.inputs
        ]
        nest = self.nests.nest(step.op, [place.view for place in places])
        for value in step.outputs:
            scope.places[value] = self._slot(value, scope)
        pointers = [place.pointer for place in places]
        pointers += [scope.places[value].pointer for value in step.outputs]
        self._call(nest.name, nest.tiles, pointers)

    def _call(self, name: str, tiles: int, pointers: Sequence[llvm.Value]) -> None:
        f = self.f
        table = f.alloca("ptr", max(1, len(pointers)))
        for number, pointer in enumerate(pointers):
            f.store(pointer, f.pointer(table, number, "ptr"))
        zero, count = llvm.constant("i64", 0), llvm.constant("i64", tiles)
        f.call(name, "void", table, zero, count, self.working)

    # Memory.

    def _load(self, op: Op, scope: Scope, inside: frozenset[Op]) -> None:
        memory, value = op.operands[0], op.result
        if op.name == "tile_load" and (op in inside or self._proven(op)):
            pointer = self._pointer(op, scope)
            view = View((*op.sizes[:1], *memory.dims[1:]), op.sizes)
            if contiguous(op.sizes, memory.dims):
                view = None
            place = Place(pointer, view)
            scope.places[value] = place
            if memory not in self.inputs:
                # What the result holds may change before the value is used.
                copy = self._slot(value, scope)
                if view is None:
                    self.copy(copy.pointer, pointer, value)
                else:
                    nest = self.nests.copy(value, view)
                    self._call(nest.name, nest.tiles, [pointer, copy.pointer])
                scope.places[value] = copy
            return
        place = scope.places[value] = self._slot(value, scope)
        fits = all(size <= dim for size, dim in zip(op.sizes, memory.dims, strict=True))
        if not (self._asked(op) and fits):
            self._move(op, place.pointer, scope)
            return
        branch = self.f.if_else(self._inside([op], scope))
        with branch.then():
            branch.give(self._pointer(op, scope))
        with branch.otherwise():
            self._move(op, place.pointer, scope)
            branch.give(place.pointer)
        scope.places[value] = Place(branch.results[0])

    def _asked(self, op: Op) -> bool:
        """Whether a window of one piece is read in place wherever it turns out to lie inside."""
        return (
            op.name == "tile_load"
            and op.operands[0] in self.inputs
            and contiguous(op.sizes, op.operands[0].dims)
        )

    def _store(self, op: Op, scope: Scope) -> None:
        if scope.wanted.get(op.operands[1]) == scope.places.get(op.operands[1], 0):
            return
        self._move(op, self._dense(op.operands[1], scope), scope)

    def copy(self, target: llvm.Value, source: llvm.Value, value: Value) -> None:
        """A value that lies row-major, copied as it is."""
        sizes = (value.tensor.size,)
        name = self.nests.move(Move(value.element, sizes, sizes, store=False))
        null = llvm.Value("ptr", "null")
        self.f.call(name, "void", target, source, null, null, llvm.constant("i64", 0))

    def _move(self, op: Op, tile: llvm.Value, scope: Scope) -> None:
        name = self.nests.move(move_of(op))
        rows = mask = llvm.Value("ptr", "null")
        if op.name in ("tile_gather", "tile_scatter"):
            rows = self._dense(op.operands[1 if op.name == "tile_gather" else 2], scope)
        if op.name == "tile_store" and op.masked:
            mask = self._dense(op.operands[-1], scope)
        offsets = [self._affine(self.offsets.of(v), scope) for v in _offsets(op)]
        memory = self.memory[op.operands[0]]
        self.f.call(name, "void", tile, memory, rows, mask, *offsets)

    # Control flow.

    @contextmanager
    def _carried(
        self, block: Block, number: int, scope: Scope, body: Block, first: int
    ) -> Iterator[_Carried]:
        """The carried values of a loop, in two slots each that change places every turn."""
        step = block.steps[number]
        inputs = step.inputs[len(step.inputs) - len(step.outputs) :]
        carried = _Carried(self, body, first, step.outputs)
        ending = set(block.last.get(number, ()))
        for position, (value, result) in enumerate(zip(inputs, step.outputs, strict=True)):
            if result in self.cutter.native:
                carried.start_register(position, self._scalar(value, scope))
                continue
            captured = any(value in region.captures() for region in step.op.regions)
            once = inputs.count(value) == 1 and not captured
            if value in ending and value in scope.owned and once:
                start = scope.places[value].pointer
                scope.owned.setdefault(result, []).extend(scope.owned.pop(value))
            else:
                source = self._dense(value, scope)
                start = self._take(result, scope)
                self.copy(start, source, value)
            spare = None if carried.same(position) else self._take(result, scope)
            carried.start_tile(position, start, spare)
        yield carried
        for position, result in enumerate(step.outputs):
            if result in self.cutter.native:
                scope.registers[result] = carried.register(position)
            else:
                scope.places[result] = Place(carried.pointer(position))

    def _for(
        self,
        block: Block,
        number: int,
        scope: Scope,
        inside: frozenset[Op],
        split: bool,
    ) -> None:
        step, f = block.steps[number], self.f
        body = step.blocks[0]
        lower, upper = (
            f.cast("sext", self._scalar(value, scope), "i64") for value in step.inputs[:2]
        )
        with (
            self._carried(block, number, scope, body, 1) as carried,
            f.for_range(lower, upper, step.op.step) as loop,
        ):
            inner = scope.inner(carried.wanted())
            inner.registers[body.region.arguments[0]] = f.cast("trunc", loop.index, "i32")
            carried.bind(inner)
            self._block(body, inner, inside, split, carried.finish)

    def _while(
        self,
        block: Block,
        number: int,
        scope: Scope,
        inside: frozenset[Op],
        split: bool,
    ) -> None:
        step, f = block.steps[number], self.f
        condition, body = step.blocks
        with self._carried(block, number, scope, body, 0) as carried:
            head, turn, done = f.label(), f.label(), f.label()
            f.jump(head)
            f.start_block(head)
            test = scope.inner()
            carried.bind(test, condition.region)
            holds = f.alloca("i1")

            def finish(inner: Scope) -> None:
                f.store(self._scalar(condition.region.results[0], inner), holds)

            self._block(condition, test, inside, split, finish)
            f.branch(f.load("i1", holds), turn, done)
            f.start_block(turn)
            inner = scope.inner(carried.wanted())
            carried.bind(inner)
            self._block(body, inner, inside, split, carried.finish)
            f.jump(head)
            f.start_block(done)

    def _branches(
        self,
        block: Block,
        number: int,
        scope: Scope,
        inside: frozenset[Op],
        split: bool,
    ) -> None:
        """`if` and `case`: a branch computes its results where they have to lie."""
        step, f = block.steps[number], self.f
        chosen = self._scalar(step.inputs[0], scope)
        registers: dict[int, llvm.Value] = {}
        for position, result in enumerate(step.outputs):
            if result in self.cutter.native:
                registers[position] = f.alloca(elements.register_type(result.element))
            else:
                scope.places[result] = Place(self._take(result, scope))

        def run(body: Block) -> None:
            places = {
                value: scope.places[result]
                for value, result in zip(body.region.results, step.outputs, strict=True)
                if result not in self.cutter.native and fresh(body, value)
            }

            def finish(inner: Scope) -> None:
                for position, value in enumerate(body.region.results):
                    if position in registers:
                        f.store(self._scalar(value, inner), registers[position])
                    elif value not in places:
                        target = scope.places[step.outputs[position]].pointer
                        self.copy(target, self._dense(value, inner), value)

            self._block(body, scope.inner(places), inside, split, finish)

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


_CONTROL = {
    "tile_for": Driver._for,
    "while": Driver._while,
    "if": Driver._branches,
    "case": Driver._branches,
}


class _Carried:
    """The state of a loop: registers, and for each tile the current slot and the spare one."""

    def __init__(self, driver: Driver, body: Block, first: int, results: Sequence[Value]) -> None:
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

    def bind(self, scope: Scope, region: Region | None = None) -> None:
        """Makes the arguments of the body (or of the condition) known."""
        region = region or self.body.region
        for position in range(len(self.results)):
            argument = self.argument(region, position)
            if position in self._registers:
                scope.registers[argument] = self.register(position)
            else:
                scope.places[argument] = Place(self.pointer(position))

    def wanted(self) -> dict[Value, Place]:
        """Where the body computes its results: in the spare slots."""
        return {
            self.body.region.results[position]: Place(self.f.load("ptr", spare))
            for position, spare in self._spares.items()
            if fresh(self.body, self.body.region.results[position])
        }

    def finish(self, scope: Scope) -> None:
        """Ends a turn: all results first, then they become the current values."""
        driver, f, results = self.driver, self.f, self.body.region.results
        registers = [(p, driver._scalar(results[p], scope)) for p in sorted(self._registers)]
        for position, spare in self._spares.items():
            value = results[position]
            if not fresh(self.body, value):
                source = driver._dense(value, scope)
                driver.copy(f.load("ptr", spare), source, value)
        for position, register in registers:
            f.store(register, self._cells[position])
        for position, spare in self._spares.items():
            old, new = self.pointer(position), f.load("ptr", spare)
            f.store(new, self._cells[position])
            f.store(old, spare)


def fresh(block: Block, value: Value) -> bool:
    """Whether a nest of this block computes the value, which is one result: it can do so there."""
    made = any(step.kind == "nest" and value in step.outputs for step in block.steps)
    return made and block.region.results.count(value) == 1


def contiguous(sizes: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether a window is one piece of a row-major memory."""
    first = next((d for d, size in enumerate(sizes) if size != 1), len(sizes))
    return tuple(sizes[first + 1 :]) == tuple(dims[first + 1 :])


def _offsets(op: Op) -> tuple[Value, ...]:
    return tuple(op.offsets[: op.operands[0].rank])
