"""Tile functions whose tiles lie in memory: those that are too large for registers.

Formulas of elements are computed where they are read; what else is computed is written to shared
memory as long as it lasts, else to scratch of the block. Threads take turns with the elements, see
`block_wide.py`. Scalars are registers, equal in all threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ....hlo.graph import Op, Region, Value
from ....hlo.tiling import MEMORY_OPS
from ... import llvm
from ...llvm.elements import Register
from ...llvm.elementwise import Mask, given, supports
from ...llvm.index import Affine, delinear
from ...plain.frame import weight
from ...plain.monoid import flat, unflat
from ..evaluator import ThreadValues, along_grid
from ..frame import Parameter, Unit
from ..launch import SCRATCH, KernelCode, KernelMemory
from ..plain import updates
from ..plain.work import Place
from ..raster import places
from ..target import NvidiaTarget
from ..windows import WindowAccess, loaded
from .analysis import Facts
from .block_wide import BlockWideLowering, BlockWorker, simpler
from .control import CONTROL
from .kernel import finished
from .shared import EVERYTHING, Arena, Hazards, MemoryPiece
from .windows import write

THREADS = 512  # of a block
BLOCKS = 2  # of a multiprocessor, where they need scratch


class Room:
    """Pieces of shared memory, as long as it lasts; then of scratch."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shared, self.scratch = Arena(), Arena()

    def take(self, size: int) -> MemoryPiece:
        before = self.shared.size
        piece = self.shared.take(size)
        if piece.start + size <= self.limit:
            return piece
        self.shared.give(piece)
        self.shared.size = before
        return self.scratch.take(size)._replace(memory=SCRATCH)

    def give(self, piece: MemoryPiece) -> None:
        (self.shared if piece.memory is None else self.scratch).give(piece)


def emit(op: Op, target: NvidiaTarget, shares: bool = False) -> KernelCode:
    """The kernel of a kernel_call. `shares`: a result may lie in the memory of an operand."""
    found = Resident(op, target, shares, 0)
    if found.room.scratch.size:
        found = Resident(op, target, shares, found.room.scratch.size)
    scratch = found.room.scratch.size * found.blocks
    return finished(op, found.entry, found.blocks, found.room.shared.size, scratch)


@dataclass(frozen=True, eq=False)
class OneElement:
    """A thread has one element of a tile, where the mask holds."""

    index: Sequence[Affine]
    mask: Mask | None = None
    places: tuple[tuple[()]] = ((),)

    def vector(self, most: int) -> int:
        return 1


class _ElementAccess(WindowAccess):
    """One element of a memory operation; `row`: its place along the axis whose rows go by
    number."""

    def __init__(
        self, code: Resident, op: Op, layout: OneElement, offsets: Sequence[llvm.Value],
        row: Register | None,
    ) -> None:  # fmt: skip
        tile = op.result if op.definition.loads else op.operands[1]
        super().__init__(code, op, tile, layout, offsets)
        if isinstance(row, llvm.Value):
            self.axis = op.axis
            self.number = self.f.add(self.f.cast("sext", row, "i64"), self.starts[op.axis])

    def row(self, number: int) -> llvm.Value:
        return self.number


class Resident(ThreadValues[OneElement, list[Register]]):
    """The code of one block. `scratch`: bytes that it has in global memory, as far as is known."""

    def __init__(self, kernel: Op, target: NvidiaTarget, shares: bool, scratch: int) -> None:
        self.kernel, self.shares = kernel, shares
        self.facts = Facts(kernel)
        region, tiles = self.facts.region, math.prod(kernel.grid)
        self.unit = Unit(target)
        parameters = [
            Parameter(f"m{n}", KernelMemory(n), n < len(kernel.operands) and not shares, not shares)
            for n in range(len(region.arguments))
        ]
        self.blocks = tiles
        if scratch:
            self.blocks = min(tiles, BLOCKS * target.architecture.multiprocessors)
            parameters.append(Parameter("scratch", KernelMemory(SCRATCH)))
        self.entry = self.unit.kernel("tile", parameters, THREADS)
        f = self.entry.function
        super().__init__(f, self.facts.offsets)
        self.memory = dict(zip(region.arguments, self.entry.pointers, strict=False))
        self.room = Room(target.architecture.shared_bytes)
        self.hazards = Hazards(self.entry)
        self.worker = BlockWorker(self.entry, self.hazards, self.room, self.pointer)
        self.lowering = BlockWideLowering(self.worker, region, {}, [], {})
        block = self.entry.block()
        # Where it lies is known when everything has been emitted once.
        self.scratch = llvm.Value("ptr", "null")
        if scratch:
            mine = f.mul(f.cast("zext", block, "i64"), scratch)
            self.scratch = f.pointer(self.entry.pointers[-1], mine, "i8")
        if self.blocks == tiles:
            self.ids = places(f, block, kernel.grid)
            self.region(region)
            return
        number = llvm.constant("i32", tiles)
        with f.for_range(block, number, self.blocks, at_least_once=True) as loop:
            self.hazards.forget()
            self.ids = places(f, loop.index, kernel.grid)
            self.region(region)

    def pointer(self, piece: MemoryPiece) -> llvm.Value:
        if piece.memory is None:
            return self.entry.shared(piece.start)
        if piece.memory == SCRATCH:
            return self.f.pointer(self.scratch, piece.start, "i8")
        return (
            self.memory[piece.memory] if isinstance(piece.memory, Value) else self.entry.pointers[0]
        )

    def all_of(self, memory: Value) -> MemoryPiece:
        """Memory of the program; any of it may be the same where a result lies in an operand."""
        return MemoryPiece("program" if self.shares else memory, 0, EVERYTHING)

    # Operations.

    def region(self, region: Region) -> None:
        for op in region.ops:
            with self.f.within(op):
                self.op(op, region)

    def op(self, op: Op, region: Region) -> None:
        if op.name in MEMORY_OPS:
            (self.load if op.definition.loads else self.store)(op)
        elif op.name in CONTROL:
            CONTROL[op.name](self, op)
        elif op.name == "tile_id":
            self.know(op.result, along_grid(op, self.ids))
        elif supports(op):
            if op.result.rank == 0:
                self.know(op.result, self.scalar(op.result))
            elif self.kept(op, region):
                self.lowering.stored(op.result)
        else:
            self.single(op)

    def kept(self, op: Op, region: Region) -> bool:
        """Whether a formula is computed once, as it is read many times."""
        uses = region.uses.get(op.result, ())
        often = len(uses) > 1 or any(
            number < 0
            or user is not None
            and (user.definition.pattern == "contract" or user.name == "broadcast_in_dim")
            for user, number in uses
        )
        return often and weight(op) > 0

    def single(self, op: Op) -> None:
        """An operation that is no formula of elements."""
        if op.definition.pattern == "contract":
            for value in op.operands:
                self.lowering.stored(value)
        count, instead = len(self.worker.taken), simpler(op)
        if instead is None:
            self.lowering.single(op)
        else:
            outputs = [self.worker.reserve(value.tensor.bytes) for value in op.results]
            places = map(self.lowering.stored, op.operands)
            given_places = dict(zip(instead.arguments, places, strict=True))
            self.lowering.inner(instead, given_places, outputs).run()
            self.lowering.places.update(zip(op.results, outputs, strict=True))
        found = {self.lowering.places[value] for value in op.results}
        for piece in self.worker.taken[count:]:
            if piece not in found:
                self.worker.taken.remove(piece)
                self.room.give(piece)
        for value in op.results:
            if value.rank == 0:
                self.know(value, self.scalar(value))

    # Scalars.

    def know(self, value: Value, register: Register) -> None:
        self.lowering.known[value] = given(register)

    def scalar(self, value: Value) -> Register:
        """The register of a scalar."""
        _, emitter = self.lowering.open([value], [], 1)
        return emitter.value(value, ())

    # Windows of memory, for one element at a time.

    def registers(self, layout: OneElement, element: Callable[[int], Register]) -> list[Register]:
        return [element(0)]

    def index(self, layout: OneElement, number: int) -> Sequence[Affine]:
        return layout.index

    def held(self, layout: OneElement, number: int) -> llvm.Value | None:
        return None if layout.mask is None else layout.mask.value

    def owner(self, layout: OneElement) -> None:
        """Each element is one thread's."""

    def base(self, memory: Value) -> llvm.Value:
        return self.memory[memory]

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Elements share nothing."""
        return compute()

    def load(self, op: Op) -> None:
        memory, tile = op.operands[0], op.result
        offsets = [self.integer(value) for value in op.offsets[: memory.rank]]

        def read(layout: OneElement, row: Register | None = None) -> Register:
            return loaded(self, _ElementAccess(self, op, layout, offsets, row))[0]

        if op.name == "tile_load" and memory in self.facts.inputs and not self.shares:
            # Nobody writes there: a formula.
            self.lowering.known[tile] = lambda at, width, mask: read(OneElement(at, mask))
        else:
            place = self.worker.reserve(tile.tensor.bytes)
            rows = [op.operands[1]] if op.name == "tile_gather" else []
            self.worker.begin([self.all_of(memory)], [], 0)
            step, emitter = self.lowering.open(rows, [place], tile.tensor.size)
            with step.each(tile.tensor.size) as at:
                index = delinear(emitter.indexer, at, tile.dims, 1)
                row = emitter.value(rows[0], [index[op.axis]]) if rows else None
                element = read(OneElement(index), row)
                emitter.store(step.pointers[-1], element, tile.element, at)
            self.worker.end(step, 0)
            self.lowering.places[tile] = place
        if tile.rank == 0:
            self.know(tile, self.scalar(tile))

    def store(self, op: Op) -> None:
        memory, tile = op.operands[:2]
        if not memory.tensor.size or not tile.tensor.size:
            return
        offsets = [self.integer(value) for value in op.offsets[: memory.rank]]
        rows = [op.operands[2]] if op.name == "tile_scatter" else []
        masks = [op.operands[-1]] if not rows and op.masked else []
        values = [tile, *rows, *masks]
        step, emitter = self.lowering.open(values, [self.all_of(memory)], tile.tensor.size)
        with step.each(tile.tensor.size) as at:
            index = delinear(emitter.indexer, at, tile.dims, 1)
            row = emitter.value(rows[0], [index[op.axis]]) if rows else None
            access = _ElementAccess(self, op, OneElement(index), offsets, row)
            wanted = [emitter.value(mask, index) for mask in masks]
            write(access, [emitter.value(tile, index)], wanted)
        self.worker.end(step, 0)

    # Control flow: carried tiles lie in memory of their own, carried scalars are registers.

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A region inside: what is made there is gone behind it."""
        places, known = dict(self.lowering.places), dict(self.lowering.known)
        count = len(self.worker.taken)
        yield
        self.worker.release(count)
        self.lowering.places, self.lowering.known = places, known

    def carried(self, op: Op) -> _Buffers:
        return _Buffers(self, op)

    def ahead(self, op: Op) -> None:
        """Nothing runs ahead of a loop here."""


class _Buffers:
    """The values that a loop or a branch gives: tiles in memory of their own, scalars in registers.
    See `evaluator.CarriedRegisters`."""

    def __init__(self, code: Resident, op: Op) -> None:
        self.code, self.lowering, self.worker = code, code.lowering, code.worker
        self.buffers = [self.worker.reserve(v.tensor.bytes) if v.rank else None for v in op.results]
        self.registers: list[Register] = []

    def start(self, values: Sequence[Value]) -> list[llvm.Value]:
        found = self._scalars(values)
        for value, buffer in zip(values, self.buffers, strict=True):
            places = self.lowering.places
            if buffer is not None and places.get(value) != buffer and value.tensor.size:
                self.lowering.loop([(value, buffer)])
        return found

    def again(self, values: Sequence[Value]) -> list[llvm.Value]:
        """All are computed before the first of them takes another's place."""
        found = self._scalars(values)
        moves: list[tuple[Place, MemoryPiece, int]] = []
        for value, buffer in zip(values, self.buffers, strict=True):
            if buffer is None or self.lowering.places.get(value) == buffer:
                continue
            source = self.lowering.stored(value)
            if source in self.buffers:
                copy = self.worker.reserve(value.tensor.bytes)
                updates.copy(self.worker, source, copy, value.tensor.bytes)
                source = copy
            moves.append((source, buffer, value.tensor.bytes))
        for source, buffer, size in moves:
            updates.copy(self.worker, source, buffer, size)
        return found

    def bind(self, values: Sequence[Value], found: Sequence[llvm.Value]) -> None:
        left = iter(unflat(found, self.registers))
        for value, buffer in zip(values, self.buffers, strict=True):
            if buffer is None:
                self.code.know(value, next(left))
            else:
                self.lowering.places[value] = buffer

    def _scalars(self, values: Sequence[Value]) -> list[llvm.Value]:
        self.registers = [self.code.scalar(value) for value in values if not value.rank]
        return flat(self.registers)
