"""A region as launches: one per operation that is no element formula, and one for the roots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ....hlo.deciding import estimating
from ....hlo.graph import Op, Region, Value
from ....optimizer.windows import NONE, Windows
from ...llvm.elementwise import ElementEmitter, Override, supports
from ...llvm.index import delinear
from ...plain.opaque import EMITTERS
from ...plain.single import explained, missing
from ..frame import Unit
from ..launch import KernelCode, KernelMemory
from ..target import NvidiaTarget
from . import opaque, products, reductions, updates
from .work import KernelWork, OperationCode, Place, Worker

Shared = frozenset[tuple[int, int]]  # (operand, result) that may lie in the same memory


def fits(region: Region) -> dict[Op, Region] | str:
    """What operations without code of their own become; or why a region has no kernel."""
    found: dict[Op, Region] = {}
    pending = list(reversed(region.ops))
    while pending:
        op = pending.pop()
        if supports(op) or op.name in RULES or op.name in EMITTERS:
            continue
        simpler = explained(op)
        if simpler is None:
            return str(missing(op, "nvidia"))
        found[op] = simpler
        pending.extend(reversed(simpler.ops))
    return found


def emit(
    region: Region,
    target: NvidiaTarget,
    flops: float,
    shared: Shared = frozenset(),
    windows: Windows = NONE,
    simpler: Mapping[Op, Region] | None = None,
) -> KernelCode:
    """The kernel of a region, whose arguments and results are the kernel's operands and results.

    shared: pairs of an operand and a result that may be one piece of memory; then every element of
    the operand is only read for the same element of the result.
    windows: the operands and results that begin inside of what is given for them.
    simpler: what `fits` gives of it.
    """
    unit = Unit(target)
    count = len(region.arguments)
    slots = {operand for operand, _ in shared} | {count + result for _, result in shared}
    types = [value.tensor for value in region.arguments]
    work = KernelWork(unit, frozenset(slots), types, windows)
    places = {value: KernelMemory(slot) for slot, value in enumerate(region.arguments)}
    outputs = [KernelMemory(count + number) for number in range(len(region.results))]
    RegionLowering(work, region, places, outputs, simpler=simpler).run()
    read = [value for value in region.arguments if value in region.uses]
    with estimating():
        moved = float(sum(value.tensor.bytes for value in (*read, *region.results)))
    return unit.code(work.launches, flops, moved, scratch=work.scratch)


class RegionLowering:
    """The operations of a region whose arguments lie at `places`, or in registers (`known`);
    results go to `outputs`."""

    def __init__(
        self,
        work: Worker,
        region: Region,
        places: Mapping[Value, Place],
        outputs: Sequence[Place],
        known: Mapping[Value, Override] | None = None,
        simpler: Mapping[Op, Region] | None = None,
    ) -> None:
        self.work, self.region, self.outputs = work, region, outputs
        self.places, self.known = dict(places), dict(known or {})
        self.simpler = simpler or {}

    def inner(
        self, region: Region, places: Mapping[Value, Place], outputs: Sequence[Place]
    ) -> RegionLowering:
        """Of a region of simpler operations."""
        return RegionLowering(self.work, region, places, outputs, simpler=self.simpler)

    def run(self) -> None:
        for op in self.region.ops:
            if not supports(op):
                self.single(op)
        left: dict[tuple[int, ...], list[tuple[Value, Place]]] = {}
        for value, memory in zip(self.region.results, self.outputs, strict=True):
            if self.places.get(value) != memory:
                left.setdefault(value.dims, []).append((value, memory))
        for pairs in left.values():
            self.loop(pairs)

    # Operations.

    def single(self, op: Op) -> None:
        """An operation that is no formula of elements."""
        outputs = [self.output(value, alone=len(self.region.ops) == 1) for value in op.results]
        if op.name in RULES:
            RULES[op.name](self, op, outputs)
        elif op.name in EMITTERS:
            operands = [self.stored(value) for value in op.operands]
            opaque.launch(self.work, op, operands, outputs)
        else:
            simpler = self.simpler.get(op) or explained(op)
            if simpler is None:
                raise missing(op, "nvidia")
            operands = [self.stored(value) for value in op.operands]
            places = dict(zip(simpler.arguments, operands, strict=True))
            self.inner(simpler, places, outputs).run()
        self.places.update(zip(op.results, outputs, strict=True))

    def output(self, value: Value, alone: bool) -> Place:
        """Where an operation's result is written: the kernel's result, where it is one that no
        operand shares, else scratch."""
        for root, memory in zip(self.region.results, self.outputs, strict=True):
            if root is value and (alone or self.work.alone(memory)):
                return memory
        return self.work.reserve(value.tensor.bytes)

    def stored(self, value: Value) -> Place:
        """The memory of a value; one that was a formula is computed now."""
        if value not in self.places:
            memory = self.work.reserve(value.tensor.bytes)
            self.loop([(value, memory)])
            self.places[value] = memory
        return self.places[value]

    # Steps.

    def leaves(self, values: Iterable[Value]) -> list[Value]:
        """The values in memory that formulas of these values read."""
        found: dict[Value, None] = {}
        stack, seen = list(values), set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.places:
                found[value] = None
            elif value.op is not None and value not in self.known:
                stack.extend(value.op.operands)
        return list(found)

    def open(
        self, values: Iterable[Value], writes: Sequence[Place], count: int
    ) -> tuple[OperationCode, ElementEmitter]:
        """A step of `count` threads that can compute those values: the last of its pointers are
        what it writes."""
        leaves = self.leaves(values)
        reads = [self.places[value] for value in leaves]
        step = self.work.begin(reads, writes, count)
        nothing = Region((), (), ())
        emitter = ElementEmitter(step.function, nothing, (), self.known, scopes=step.scopes)
        for value, pointer in zip(leaves, step.pointers, strict=False):
            emitter.bind(value, pointer)
        return step, emitter

    def loop(self, pairs: Sequence[tuple[Value, Place]]) -> None:
        """Stores values of one shape, a thread per element."""
        values = [value for value, _ in pairs]
        count = values[0].tensor.size
        if not count:
            return
        step, emitter = self.open(values, [memory for _, memory in pairs], count)
        targets = step.pointers[-len(pairs) :]
        with step.each(count) as at:
            index = delinear(emitter.indexer, at, values[0].dims, 1)
            registers = [emitter.value(value, index) for value in values]
            for value, register, pointer in zip(values, registers, targets, strict=True):
                emitter.store(pointer, register, value.element, at)
        self.work.end(step, count)


# Operations that are no formulas of elements, with code of their own here.
RULES: dict[str, Callable[[RegionLowering, Op, Sequence[Place]], None]] = {
    "reduce": reductions.reduce,
    "dot_general": lambda lowering, op, outputs: products.contraction(lowering, op, outputs[0]),
    "convolution": lambda lowering, op, outputs: products.contraction(lowering, op, outputs[0]),
    "dynamic_update_slice": lambda lowering, op, outputs: updates.slice_update(
        lowering, op, outputs[0]
    ),
    "scatter": updates.scatter,
}
