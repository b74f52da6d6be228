"""The driver of a tile function: walks the grid, computes offsets, runs loops, calls nests.

A tile is a value in scratch, or a window of memory that is read where it lies. Windows that are not
proven to lie inside their memory are tested: once per tile, or once per iteration of the loop whose
variable decides. Where a test fails, another version of the body copies such windows to scratch, or
computes the part that lies inside, where a call decides sizes (parts.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.deciding import at_hint, largest, surely_at_most
from ....hlo.errors import UserError
from ....hlo.graph import Op, Value
from ....hlo.offsets import Offset
from ....hlo.symbols import Dim
from ....optimizer.overwriting import may_overwrite, tiles_may_overwrite
from ....optimizer.tiles.steps import BodyBlock, BodyStep, Cutter
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.target import KernelCode
from ..codegen import Target
from .arena import Arena
from .control import CONTROL
from .layout import swap_operands
from .moves import TileMove, move_of
from .nests import EMITTERS, EmitNest, Nest, Nests, view_of
from .parting import Parting
from .scope import BlockScope, Finish, ValuePlace
from .windows import WindowFacts, contiguous, offsets_of

SYMBOL = "kernel"


class Driver:
    """Emits one kernel_call. parted: whether tiles at the ends of open dims are computed as far as
    they lie inside."""

    def __init__(
        self, kernel: Op, target: Target, emit_nest: EmitNest, parted: bool = True
    ) -> None:
        self.region = memory = swap_operands(kernel.regions[0], target)
        inputs = len(kernel.operands)
        self.shared = {  # memories that may be one: an input and a result
            (memory.arguments[n], memory.arguments[inputs + m])
            for n in range(inputs)
            for m in range(len(kernel.results))
            if tiles_may_overwrite(kernel, n, m)
        }
        kernel = kernel.with_operands(kernel.operands, [self.region, *kernel.regions[1:]])
        self.kernel, self.target = kernel, target
        self.windows = WindowFacts(kernel)
        self.cutter = Cutter(kernel, EMITTERS, self.windows.masks, self.windows.idle)
        self.module = target.module()
        self.f = self.module.kernel(SYMBOL)
        self.nests = Nests(self.module, target, emit_nest)
        self.arena = Arena()
        self.notes: dict[str, None] = {}
        self.memory: dict[Value, llvm.Value] = {}
        self.ids: list[llvm.Value] = []
        self.size_tables: dict[tuple[Dim, ...], llvm.Value] = {}
        self.parts = Parting(self) if parted else None

    def emit(self) -> KernelCode:
        f, op = self.f, self.kernel
        block = self.cutter.cut()
        args, begin, end, self.scratch = f.arguments
        for number, value in enumerate(self.region.arguments):
            self.memory[value] = f.load("ptr", f.pointer(args, number, "ptr"))
        self.working = llvm.Value("ptr", "%working")
        self.begin = f.slot()
        tiles, serial = math.prod(op.grid), self._serial()
        if serial:
            with f.if_then(f.compare("slt", begin, end)):
                self._start()
                with f.for_range(0, tiles) as loop:
                    self._tile(block, loop.index)
        else:
            with f.for_range(begin, end) as loop:
                self._tile(block, loop.index)
        f.ret()
        self.begin.append(f"%working = getelementptr i8, {self.scratch}, i64 {self.arena.size}")
        moved = float(sum(at_hint(value.tensor.bytes) for value in self.region.arguments))
        return KernelCode(
            self.nests.text(),
            SYMBOL,
            1 if serial else tiles,
            self.arena.size + self.nests.scratch,
            op.definition.flops(op),
            moved,
            not serial and not surely_at_most(tiles, 1),
            (*self.notes, *self.windows.notes, *self.nests.notes),
            sizes=tuple(self.module.sizes),
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

    def _tile(self, block: BodyBlock, flat: llvm.Value) -> None:
        f, ids = self.f, []
        for number, size in enumerate(reversed(self.kernel.grid)):
            last = number == len(self.kernel.grid) - 1
            ids.append(flat if last else f.urem(flat, size))
            flat = f.udiv(flat, size)
        self.ids = [f.cast("trunc", one, "i32") for one in reversed(ids)]
        self.block(block, BlockScope(), frozenset(), True, lambda scope: None)

    # Versions.

    def _inside(
        self, accesses: Sequence[Op], scope: BlockScope, masks: Sequence[Op] = ()
    ) -> llvm.Value:
        """Whether all these windows lie inside, and all these masks hold in whole tiles."""
        f = self.f
        known: dict[tuple[Offset, str, Dim], llvm.Value] = {}
        for op in accesses:
            for d, value in enumerate(offsets_of(op)):
                offset = self.windows.offsets.of(value)
                below, above = self.windows.sides(op, d)
                limit = op.operands[0].dims[d] - move_of(op).sizes[d]
                for wanted, predicate, bound in ((below, "sge", 0), (above, "sle", limit)):
                    if wanted and (offset, predicate, bound) not in known:
                        at = self.affine(offset, scope)
                        test = f.compare(predicate, at, bound)
                        known[offset, predicate, bound] = test
        for op in masks:
            lowest = self.windows.least_of[op]
            if (lowest, "sge", 0) not in known:
                known[lowest, "sge", 0] = f.compare("sge", self.affine(lowest, scope), 0)
        tests = list(known.values())
        total = tests[0]
        for test in tests[1:]:
            total = f.land(total, test)
        return total

    def _pointer(self, op: Op, scope: BlockScope) -> llvm.Value:
        """The address of the first element of a window that lies inside."""
        memory = op.operands[0]
        at = self.f.constant("i64", 0)
        for d, offset in enumerate(offsets_of(op)):
            stride = math.prod(memory.dims[d + 1 :])
            at = self.f.add(
                at, self.f.mul(self.affine(self.windows.offsets.of(offset), scope), stride)
            )
        return self.f.pointer(self.memory[memory], at, f"i{8 * memory.element.itemsize}")

    def _want(self, block: BodyBlock, scope: BlockScope, inside: frozenset[Op]) -> None:
        """Tiles of this block that are computed where they are stored."""
        for step in block.steps:
            if step.kind != "store" or step.op not in self.windows.direct:
                continue
            value = step.op.operands[1]
            alone = len(block.region.uses[value]) == 1
            made = any(s.kind == "nest" and value in s.outputs for s in block.steps)
            if not (alone and made and self._last_reader(block, step.op)):
                continue
            if step.op in inside or self.windows.proven(step.op):
                scope.wanted[value] = ValuePlace(self._pointer(step.op, scope))

    def _last_reader(self, block: BodyBlock, store: Op) -> bool:
        """Whether windows of an input that may lie where `store` writes are read no more once its
        tile is computed, and while it is computed only element by element."""
        target, tile = store.operands[:2]
        sources = {one for one, other in self.shared if other is target}
        windows: set[Value] = set()
        made = False
        for step in block.steps:
            if step.kind == "load" and step.op.operands[0] in sources:
                windows.add(step.op.result)
            elif step.kind == "alias" and step.inputs[0] in windows:
                windows.add(step.outputs[0])
            elif made and not windows.isdisjoint(step.uses()):
                return False
            elif tile in step.outputs:
                made = True
                read = [n for n, value in enumerate(step.inputs) if value in windows]
                if not all(may_overwrite(step.op, n, step.outputs.index(tile)) for n in read):
                    return False
        return True

    def affine(self, offset: Offset, scope: BlockScope) -> llvm.Value:
        f = self.f
        total = f.constant("i64", offset.constant)
        for variable, factor in offset.terms:
            wide = f.cast("sext", self.scalar(variable, scope), "i64")
            total = f.add(total, f.mul(wide, f.constant("i64", factor)))
        return total

    def block(
        self,
        block: BodyBlock,
        scope: BlockScope,
        inside: frozenset[Op],
        split: bool,
        finish: Finish,
    ) -> None:
        """A block, in two versions if windows in it may reach outside; `finish` ends each."""
        if self.parts is not None:
            self.parts.enter(block.region, scope)
        accesses = self.windows.tests.get(block.region, [])
        masks = self.windows.masks.get(block.region, [])
        if not split or not (accesses or masks):
            self.steps(block, scope, inside, split, finish)
            return
        if self.parts is not None and self.parts.suffices(block.region):
            self.parts.run(block, scope.inner(scope.wanted), finish)
            return
        branch = self.f.if_else(self._inside(accesses, scope, masks))
        with branch.then():
            version = scope.inner(scope.wanted)
            self.steps(block.whole, version, inside | frozenset(accesses), True, finish)
        with branch.otherwise():
            version = scope.inner(scope.wanted)
            if self.parts is not None and self.parts.has(block.region):
                self.parts.run(block, version, finish)
            else:
                # Where the call decides sizes, loops inside still have turns that are whole.
                self.steps(block, version, inside, bool(self.windows.masks), finish)

    # Steps.

    def steps(
        self,
        block: BodyBlock,
        scope: BlockScope,
        inside: frozenset[Op],
        split: bool,
        finish: Finish,
    ) -> None:
        self._want(block, scope, inside)
        for number, step in enumerate(block.steps):
            if step.kind == "control":
                CONTROL[step.op.name](self, block, number, scope, inside, split)
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

    def _evaluate(self, op: Op, scope: BlockScope) -> llvm.Value:
        """A scalar in a register."""
        if op.name == "constant":
            value = op.attributes["value"].splat_value
            register = elements.register_constant(op.result.element, value, 1)
        elif op.name == "tile_id":
            if op.axis >= len(self.ids):
                raise UserError(
                    f"{op.place}tile_id: axis {op.axis} of a grid of {len(self.ids)} axes"
                )
            register = self.ids[op.axis]
        elif op.name == "tile_bound":
            register = self.f.constant("i32", op.size)
        else:
            operands = [self.scalar(value, scope) for value in op.operands]
            if op.name == "reshape":
                register = operands[0]
            else:
                register = arithmetic.apply(self.f, op, operands)
        assert isinstance(register, llvm.Value)
        return register

    def scalar(self, value: Value, scope: BlockScope) -> llvm.Value:
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

    def _place(self, value: Value, scope: BlockScope) -> ValuePlace:
        """Where a value lies; a scalar in a register is written down first."""
        found = scope.places.get(value)
        if found is None:
            register = self.scalar(value, scope)
            at = self.f.alloca("i8", 64)
            self.f.store(elements.narrow(self.f, register, value.element), at)
            found = scope.places[value] = ValuePlace(at)
        return found

    def dense(self, value: Value, scope: BlockScope) -> llvm.Value:
        """The address of a value that lies row-major, copied if it is a window."""
        place = self._place(value, scope)
        if place.view is None:
            return place.pointer
        copy = self._slot(value, scope)
        self._call(self.nests.copy(value, place.view), [place.pointer, copy.pointer])
        scope.places[value] = copy
        return copy.pointer

    def _slot(self, value: Value, scope: BlockScope) -> ValuePlace:
        """Scratch for a value that is about to be computed."""
        wanted = scope.wanted.get(value)
        if wanted is not None:
            return wanted
        return ValuePlace(self.take(value, scope), None, True)

    def take(self, value: Value, scope: BlockScope) -> llvm.Value:
        offset = self.arena.take(largest(value.tensor.bytes))
        scope.owned.setdefault(value, []).append(offset)
        return self.f.pointer(self.scratch, offset, "i8")

    def _nest(self, step: BodyStep, scope: BlockScope) -> None:
        fused = step.op.name == "fusion"
        places = [
            self._place(v, scope) if fused else ValuePlace(self.dense(v, scope))
            for v in step.inputs
        ]
        nest = self.nests.nest(step.op, [place.view for place in places])
        for value in step.outputs:
            scope.places[value] = self._slot(value, scope)
        pointers = [place.pointer for place in places]
        pointers += [scope.places[value].pointer for value in step.outputs]
        self._call(nest, pointers)

    def _call(self, nest: Nest, pointers: Sequence[llvm.Value]) -> None:
        f = self.f
        if nest.sizes:  # their table stands in the word before the arguments
            table = f.pointer(f.alloca("ptr", 1 + len(pointers)), 1, "ptr")
            f.store(self._sizes(nest), f.pointer(table, -1, "ptr"))
        else:
            table = f.alloca("ptr", max(1, len(pointers)))
        for number, pointer in enumerate(pointers):
            f.store(pointer, f.pointer(table, number, "ptr"))
        zero, count = llvm.constant("i64", 0), self.size(nest.tiles)
        f.call(nest.name, "void", table, zero, count, self.working)

    def _sizes(self, nest: Nest) -> llvm.Value:
        """A nest's table of sizes; those of the call are there from the kernel's begin on."""
        f = self.f
        found = self.size_tables.get(nest.sizes)
        if found is None:
            found = self.size_tables[nest.sizes] = f.alloca("i64", len(nest.sizes))
            with f.at(self.begin):
                for number, size in enumerate(nest.sizes):
                    if not self._is_partial(size):
                        f.store(f.constant("i64", size), f.pointer(found, number, "i64"))
        for number, size in enumerate(nest.sizes):
            if self._is_partial(size):
                f.store(self.size(size), f.pointer(found, number, "i64"))
        return found

    def _is_partial(self, size: Dim) -> bool:
        return self.parts is not None and self.parts.decides(size)

    def size(self, size: Dim) -> llvm.Value:
        """A size as i64, also of parts of tiles."""
        if self.parts is None or not self.parts.decides(size):
            return self.f.constant("i64", size)
        return self.parts.size(size)

    # Memory.

    def _load(self, op: Op, scope: BlockScope, inside: frozenset[Op]) -> None:
        memory, value = op.operands[0], op.result
        if op.name == "tile_load" and (op in inside or self.windows.proven(op)):
            pointer = self._pointer(op, scope)
            view = view_of(op.sizes, memory.dims)
            if contiguous(op.sizes, memory.dims):
                view = None
            place = ValuePlace(pointer, view)
            scope.places[value] = place
            if memory not in self.windows.inputs:
                # What the result holds may change before the value is used.
                copy = self._slot(value, scope)
                if view is None:
                    self.copy(copy.pointer, pointer, value)
                else:
                    self._call(self.nests.copy(value, view), [pointer, copy.pointer])
                scope.places[value] = copy
            return
        place = scope.places[value] = self._slot(value, scope)
        if not self.windows.asked(op):
            self._move(op, place.pointer, scope)
            return
        branch = self.f.if_else(self._inside([op], scope))
        with branch.then():
            branch.give(self._pointer(op, scope))
        with branch.otherwise():
            self._move(op, place.pointer, scope)
            branch.give(place.pointer)
        scope.places[value] = ValuePlace(branch.results[0])

    def _store(self, op: Op, scope: BlockScope) -> None:
        if scope.wanted.get(op.operands[1]) == scope.places.get(op.operands[1], 0):
            return
        self._move(op, self.dense(op.operands[1], scope), scope)

    def copy(self, target: llvm.Value, source: llvm.Value, value: Value) -> None:
        """A value that lies row-major, copied as it is."""
        sizes = (value.tensor.size,)
        null = llvm.Value("ptr", "null")
        move = TileMove(value.element, sizes, sizes, store=False)
        self._moved(move, target, source, null, null, llvm.constant("i64", 0))

    def _moved(self, move: TileMove, *operands: llvm.Value) -> None:
        """A move, with the sizes that its function does not know."""
        sizes = [self.size(size) for size in move.sizes_to_give]
        self.f.call(self.nests.move(move), "void", *operands, *sizes)

    def _move(self, op: Op, tile: llvm.Value, scope: BlockScope) -> None:
        rows = mask = llvm.Value("ptr", "null")
        if op.definition.numbered:
            rows = self.dense(op.operands[1 if op.name == "tile_gather" else 2], scope)
        if op.name == "tile_store" and op.masked:
            mask = self.dense(op.operands[-1], scope)
        offsets = [self.affine(self.windows.offsets.of(v), scope) for v in offsets_of(op)]
        memory = self.memory[op.operands[0]]
        self._moved(move_of(op), tile, memory, rows, mask, *offsets)
