"""What all threads of a block do together: operations from memory to memory, one after another.

Tiles that no thread has a rule for in registers (a sort, a scatter, a reduction with a body of its
own) lie in memory instead, and the shared plain kernels run there: the threads take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from ....hlo.graph import Op, Region, Value
from ....hlo.ops.windows import running
from ... import llvm
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Override, given
from ...llvm.index import SAME, Affine, LoopAxis, Scopes, delinear, linear, of_axis
from ...plain.monoid import Reduction, flat, unflat
from ...plain.probe import dummy
from ...plain.single import as_region, explained
from ..frame import Entry, shuffle
from ..loops.groups import across_lanes, restored, selected, stored
from ..plain.region import RegionLowering
from ..plain.work import OperationCode, Place, Worker
from ..target import WARP
from ..windows import load
from .shared import Hazards, MemoryPiece

if TYPE_CHECKING:
    from .emitter import Emitter

SLOT = 8  # bytes of one partial result
LEAST = 4  # elements that a thread of a reduction takes at least


class Room(Protocol):
    """Hands out memory."""

    def take(self, size: int) -> MemoryPiece: ...

    def give(self, piece: MemoryPiece) -> None: ...


class BlockWideStep(OperationCode):
    """An operation of all threads of a block."""

    def __init__(self, entry: Entry, pointers: Sequence[llvm.Value]) -> None:
        self.entry, self.function, self.pointers = entry, entry.function, pointers
        self.scopes = Scopes(entry.function)
        self.thread = entry.thread()

    @contextmanager
    def each(self, count: int) -> Iterator[Affine]:
        with self.turns(count, self.entry.threads) as (_, element):
            yield of_axis(LoopAxis(element, count, SAME, self.scopes.depth))

    @contextmanager
    def turns(self, count: int, threads: int) -> Iterator[tuple[llvm.Value, llvm.Value]]:
        f, scopes = self.function, self.scopes
        thread = f.cast("zext", self.thread, "i64")
        with ExitStack() as stack:
            if min(count, threads) < self.entry.threads:
                below = f.compare("ult", thread, min(count, threads))
                stack.enter_context(scopes.branch(below))
            element = thread
            if count > threads:
                loop = scopes.loop(thread, count, threads, extent=count, at_least_once=True)
                element = stack.enter_context(loop)[1].index
            yield thread, element


class BlockWorker(Worker):
    """The threads of a block. Places are pieces of memory: `pointer` gives their addresses; `take`
    and `give` hand out memory for what lies between operations."""

    def __init__(
        self,
        entry: Entry,
        hazards: Hazards,
        arena: Room,
        pointer: Callable[[MemoryPiece], llvm.Value],
    ) -> None:
        self.entry, self.unit, self.hazards = entry, entry.unit, hazards
        self.arena, self.pointer = arena, pointer
        self.taken: list[MemoryPiece] = []

    def reserve(self, size: int) -> MemoryPiece:
        piece = self.arena.take(max(1, size))
        self.taken.append(piece)
        return piece

    def release(self, count: int = 0) -> None:
        """Gives back what was reserved, but for the first `count` pieces."""
        while len(self.taken) > count:
            self.arena.give(self.taken.pop())

    def alone(self, place: Place) -> bool:
        return True

    def threads(self, count: int) -> int:
        return min(count, self.entry.threads)

    def begin(self, reads: Sequence[Place], writes: Sequence[Place], threads: int) -> BlockWideStep:
        del threads
        for piece in reads:
            assert isinstance(piece, MemoryPiece)
            self.hazards.read(piece)
        for piece in writes:
            assert isinstance(piece, MemoryPiece)
            self.hazards.write(piece)
        return BlockWideStep(self.entry, [self.pointer(piece) for piece in (*reads, *writes)])  # type: ignore[arg-type]

    def end(self, step: OperationCode, threads: int) -> None:
        """Who reads it waits: hazards know."""


class BlockWideLowering(RegionLowering):
    """Operations of a block; reductions and running totals by all its threads."""

    work: BlockWorker

    def inner(
        self, region: Region, places: dict[Value, Place], outputs: Sequence[Place]
    ) -> BlockWideLowering:
        return BlockWideLowering(self.work, region, places, outputs)

    def single(self, op: Op) -> None:
        sized = all(value.tensor.size for value in (*op.operands, *op.results))
        if sized and (op.name == "reduce" or op.name == "reduce_window" and running(op)):
            outputs = [self.output(value, alone=len(self.region.ops) == 1) for value in op.results]
            (_ReductionTree if op.name == "reduce" else _Totals)(self, op, outputs).run()
            self.places.update(zip(op.results, outputs, strict=True))
        else:
            super().single(op)


class _ReductionTree:
    """One reduce: stretches of elements by threads, threads by lanes, lanes by warps; earlier
    elements are always on the left."""

    def __init__(self, lowering: BlockWideLowering, op: Op, outputs: Sequence[Place]) -> None:
        self.lowering, self.op, self.outputs = lowering, op, outputs
        self.work = lowering.work
        self.reduction = Reduction(op)
        self.dims = self.reduction.inputs[0].dims
        self.over = sorted(op.dimensions)
        self.kept = [d for d in range(len(self.dims)) if d not in self.over]
        self.results = math.prod(self.dims[d] for d in self.kept)
        self.length = math.prod(self.dims[d] for d in self.over)

    def run(self) -> None:
        threads = self.work.entry.threads
        lanes = parts = 1
        while lanes < WARP and 2 * lanes * self.results <= threads and 2 * lanes <= self.length:
            lanes *= 2
        while lanes == WARP and 2 * lanes * parts * self.results <= threads:
            if 2 * LEAST * lanes * parts > self.length:
                break
            parts *= 2
        if parts > 1:
            self.divided(parts)
            return
        step, emitter = self.open(self.op.operands, self.outputs)
        self.fold(
            step, self.results, self.length, lanes, self.read(emitter), self.sink(step, emitter)
        )
        self.work.end(step, threads)

    def open(
        self, values: Sequence[Value], writes: Sequence[Place]
    ) -> tuple[BlockWideStep, ElementEmitter]:
        step, emitter = self.lowering.open(values, writes, 0)
        assert isinstance(step, BlockWideStep)
        return step, emitter

    def divided(self, parts: int) -> None:
        """Several warps have a part each of a result; then the parts are joined."""
        threads = self.work.entry.threads
        share = -(-self.length // parts)
        parts = -(-self.length // share)
        likes = [dummy(element) for element in self.reduction.elements]
        kinds = [value.type for value in flat(likes)]
        places = [self.work.reserve(SLOT * self.results * parts) for _ in kinds]
        step, emitter = self.open(self.op.operands, places)
        f, whole = step.function, self.read(emitter)
        targets = step.pointers[-len(places) :]

        def left(at: Affine) -> llvm.Value:
            number = emitter.indexer.divide(at, parts, 1)[1]
            begin = emitter.indexer.scalar(number * share)
            return f.min(f.sub(llvm.constant("i64", self.length), begin), share)

        def part(at: Affine, element: Affine) -> list[Register]:
            result, number = emitter.indexer.divide(at, parts, 1)
            return whole(result, (number * share + element).within(0, self.length - 1))

        def keep(at: Affine, values: list[Register]) -> None:
            place = emitter.indexer.scalar(at)
            for value, pointer in zip(flat(values), targets, strict=True):
                f.store(stored(f, value), f.pointer(pointer, place, "i64"), align=SLOT)

        self.fold(step, self.results * parts, share, WARP, part, keep, left)
        self.work.end(step, threads)
        sources = self.work.begin(places, (), threads).pointers
        step, emitter = self.open(self.reduction.initial, self.outputs)

        def joined(at: Affine, element: Affine) -> list[Register]:
            place = emitter.indexer.scalar(at * parts + element)
            found = []
            for kind, pointer in zip(kinds, sources, strict=True):
                raw = f.load("i8" if kind == "i1" else kind, f.pointer(pointer, place, "i64"))
                found.append(restored(f, raw, kind))
            return unflat(found, likes)

        lanes = 1
        while 2 * lanes <= min(parts, WARP):
            lanes *= 2
        self.fold(step, self.results, parts, lanes, joined, self.sink(step, emitter))
        self.work.end(step, threads)

    def fold(
        self,
        step: BlockWideStep,
        results: int,
        length: int,
        lanes: int,
        read: Callable[[Affine, Affine], list[Register]],
        sink: Callable[[Affine, list[Register]], None],
        left: Callable[[Affine], llvm.Value] | None = None,
    ) -> None:
        """`lanes` lanes have each result; `left`: how many of up to `length` elements it has."""
        f, scopes, reduction = step.function, step.scopes, self.reduction
        threads, total = step.entry.threads, results * lanes
        # An odd number: lanes that follow each other read from different banks.
        stretch = -(-length // lanes) | 1
        thread = f.cast("zext", step.thread, "i64")
        with scopes.loop(0, total, threads, extent=total, at_least_once=True) as (_, turn):
            number = f.add(turn.index, thread)
            result = f.min(f.udiv(number, lanes), results - 1, signed=False)
            at = of_axis(LoopAxis(result, results, SAME, scopes.depth))
            count = left(at) if left is not None else llvm.constant("i64", length)
            begin = f.mul(f.land(number, lanes - 1), stretch)
            first = f.min(begin, f.sub(count, 1))
            own = read(at, of_axis(LoopAxis(first, length, SAME, scopes.depth)))
            present: llvm.Value | None = None
            if left is not None or stretch * (lanes - 1) >= length:
                if reduction.single is not None:
                    held = f.compare("ult", begin, count)
                    own = selected(f, held, own, reduction.identity(1))
                else:
                    have = f.udiv(f.add(count, stretch - 1), stretch)
                    present = f.cast("trunc", have, "i32")
            end = f.min(f.add(begin, stretch), count)
            after = f.add(begin, 1)
            with scopes.loop(after, end, 1, flat(own), extent=length) as (element, loop):
                carried = unflat(loop.carried, own)
                loop.carry(*flat(reduction.combine(f, carried, read(at, element), 1)))
            own = unflat(loop.results, own)
            own = across_lanes(f, step.thread, reduction, own, lanes, present)
            wanted = f.compare("ult", number, total)
            if lanes > 1:
                wanted = f.land(wanted, f.compare("eq", f.land(number, lanes - 1), 0))
            with scopes.branch(wanted):
                sink(at, own)

    def read(self, emitter: ElementEmitter) -> Callable[[Affine, Affine], list[Register]]:
        """The inputs' elements by the numbers of a result and of an element that it covers."""

        def found(result: Affine, element: Affine) -> list[Register]:
            index = [Affine((), 0)] * len(self.dims)
            for place, group in ((result, self.kept), (element, self.over)):
                parts = delinear(emitter.indexer, place, [self.dims[d] for d in group], 1)
                for d, one in zip(group, parts, strict=True):
                    index[d] = one
            registers = [emitter.value(value, index) for value in self.reduction.inputs]
            return self.reduction.read(emitter.function, registers)

        return found

    def sink(
        self, step: BlockWideStep, emitter: ElementEmitter
    ) -> Callable[[Affine, list[Register]], None]:
        """Stores results: initial values joined in, rounded."""
        f, reduction = emitter.function, self.reduction
        targets = step.pointers[-len(self.outputs) :]

        def finish(at: Affine, values: list[Register]) -> None:
            if not all(map(reduction.is_neutral, reduction.initial)):
                first = [emitter.value(value, ()) for value in reduction.initial]
                values = reduction.combine(f, reduction.read(f, first), values, 1)
            finished = reduction.finished(f, values)
            for value, register, pointer in zip(self.op.results, finished, targets, strict=True):
                emitter.store(pointer, register, value.element, at)

        return finish


class _Totals:
    """One reduce_window of running totals: every lane of a line folds a stretch, lanes hand on what
    stands before, and each goes through its stretch again."""

    def __init__(self, lowering: BlockWideLowering, op: Op, outputs: Sequence[Place]) -> None:
        found = running(op)
        assert found is not None
        self.dimension, self.backward = found
        self.lowering, self.op, self.outputs = lowering, op, outputs
        self.reduction = Reduction(op, self.backward)
        self.dims = op.results[0].dims
        self.length = self.dims[self.dimension]
        self.others = [size for d, size in enumerate(self.dims) if d != self.dimension]

    def run(self) -> None:
        step, emitter = self.lowering.open(self.op.operands, self.outputs, 0)
        assert isinstance(step, BlockWideStep)
        f, scopes, reduction = step.function, step.scopes, self.reduction
        threads, lines = step.entry.threads, math.prod(self.others)
        lanes = 1
        while lanes < WARP and 2 * lanes * lines <= threads and 2 * lanes <= self.length:
            lanes *= 2
        stretch = -(-self.length // lanes) | 1
        thread = f.cast("zext", step.thread, "i64")
        targets = step.pointers[-len(self.outputs) :]
        initial = [emitter.value(value, ()) for value in reduction.initial]
        start = reduction.read(f, initial)
        total = lines * lanes
        with scopes.loop(0, total, threads, extent=total, at_least_once=True) as (_, turn):
            number = f.add(turn.index, thread)
            line = f.min(f.udiv(number, lanes), lines - 1, signed=False)
            others = delinear(
                emitter.indexer, of_axis(LoopAxis(line, lines, SAME, scopes.depth)), self.others, 1
            )

            def index(element: Affine) -> list[Affine]:
                if self.backward:
                    element = element * -1 + (self.length - 1)
                found = list(others)
                found.insert(self.dimension, element.within(0, self.length - 1))
                return found

            def read(element: Affine) -> list[Register]:
                at = index(element)
                registers = [emitter.value(value, at) for value in reduction.inputs]
                return reduction.read(f, registers)

            begin = f.mul(f.land(number, lanes - 1), stretch)
            end = f.min(f.add(begin, stretch), self.length)
            first = of_axis(
                LoopAxis(f.min(begin, self.length - 1), self.length, SAME, scopes.depth)
            )
            through = read(first)
            after = f.add(begin, 1)
            with scopes.loop(after, end, 1, flat(through), extent=self.length) as (element, loop):
                carried = unflat(loop.carried, through)
                loop.carry(*flat(reduction.combine(f, carried, read(element), 1)))
            through = unflat(loop.results, through)
            before = self.before(step, number, lanes, through, start)
            present = f.compare("ult", number, total)
            end = f.select(present, end, begin)
            with scopes.loop(begin, end, 1, flat(before), extent=self.length) as (element, loop):
                carried = unflat(loop.carried, before)
                own = reduction.combine(f, carried, read(element), 1)
                finished = reduction.finished(f, own)
                place = linear(index(element), self.dims)
                for value, one, pointer in zip(self.op.results, finished, targets, strict=True):
                    emitter.store(pointer, one, value.element, place)
                loop.carry(*flat(own))
        self.lowering.work.end(step, threads)

    def before(
        self,
        step: BlockWideStep,
        number: llvm.Value,
        lanes: int,
        through: list[Register],
        start: list[Register],
    ) -> list[Register]:
        """What stands before a lane's stretch, the initial values first."""
        f, reduction = step.function, self.reduction
        lane = f.land(number, lanes - 1)
        distance = 1
        while distance < lanes:
            other = unflat([shuffle(f, "up", one, distance) for one in flat(through)], through)
            has = f.compare("uge", lane, distance)
            through = selected(f, has, reduction.combine(f, other, through, 1), through)
            distance *= 2
        if lanes == 1:
            return start
        ahead = unflat([shuffle(f, "up", one, 1) for one in flat(through)], through)
        joined = reduction.combine(f, start, ahead, 1)
        return selected(f, f.compare("eq", lane, 0), start, joined)


def emit_block_wide(e: Emitter, op: Op) -> None:
    """An operation whose operands and results lie in memory; results are read from there into
    whatever layout they are asked for in."""
    block = e.block
    tiles = [value for value in op.operands if value.rank]
    e.shared(*tiles)
    region = simpler(op) or as_region(op)
    places: dict[Value, Place] = {}
    known: dict[Value, Override] = {}
    for own, value in zip(region.arguments, op.operands, strict=True):
        if value.rank:
            places[own] = e.scope.piece(value)
        else:
            known[own] = given(e.scalar(value))
    worker = BlockWorker(block.entry, block.hazards, block.arena, e.pointer)
    outputs = [worker.arena.take(max(1, value.tensor.bytes)) for value in op.results]
    BlockWideLowering(worker, region, places, outputs, known).run()
    worker.release()
    for value, piece in zip(op.results, outputs, strict=True):
        if value.rank:
            e.scope.shared[value] = piece
            continue
        block.hazards.read(piece)
        e.bind(value, [*load(e.f, e.pointer(piece), value.element, 1, False)])
        block.arena.give(piece)


def simpler(op: Op) -> Region | None:
    """What to do instead: of running totals to which padding adds, which no pass has seen in a tile
    function."""
    return explained(op) if op.name == "reduce_window" else None
