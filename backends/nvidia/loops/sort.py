"""sort: stable merges by rank.

Each level merges neighbouring runs of `size` records: an element's place is its place in its own
run plus the number of the other run's elements that stand before it, which a binary search counts.
So every element is a thread's, any comparator will do, and a level costs one barrier. Up to SEGMENT
records are sorted in shared memory by a block; longer lines go on with a launch per level in global
memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ....hlo.graph import Op
from ... import llvm
from ...llvm.elements import Register
from ...llvm.elementwise import Override
from ...llvm.index import LoopAxis, of_axis
from ...plain.opaque.frame import lazy_region
from ...plain.opaque.order import Key, key_bits, key_of
from ...plain.single import as_region
from ..frame import GRID, Parameter, barrier, blocks
from ..launch import KernelCode
from ..target import WARP, NvidiaTarget
from .head import FusionEntry, FusionKernel, nothing

SEGMENT = 2048  # records that a block sorts
THREADS = 512  # of such a block, at most
FLAT = 256  # threads of a block of a level in global memory

Record = list[llvm.Value]


@dataclass(frozen=True)
class Lines:
    """Lines of an array along a dimension: `count` of them, `length` elements `stride` apart."""

    count: int
    length: int
    stride: int

    @staticmethod
    def of(dims: Sequence[int], dimension: int) -> Lines:
        length = dims[dimension] if dims else 1
        stride = math.prod(dims[dimension + 1 :])
        return Lines(math.prod(dims) // length, length, stride)

    def place(self, f: llvm.Function, line: llvm.Value, position: llvm.Value) -> llvm.Value:
        """Where an element of a line lies, i64."""
        wide, at = f.cast("zext", line, "i64"), f.cast("zext", position, "i64")
        if self.stride == 1:
            return f.add(f.mul(wide, self.length), at)
        outer = f.udiv(wide, self.stride)
        inner = f.sub(wide, f.mul(outer, self.stride))
        base = f.add(f.mul(outer, self.length * self.stride), inner)
        return f.add(base, f.mul(at, self.stride))


class Comparing(Protocol):
    """Says which records of an entry's code stand before others."""

    f: llvm.Function

    def before(
        self, line: llvm.Value, other: Record, own: Record, left: llvm.Value
    ) -> llvm.Value: ...


class SortOrder:
    """How records are made and compared in one entry; a record ends with a position (i32).

    With a key of 32 bits, a record is one i64: the key above the position. With one of 64 bits, it
    is the key and the position; else the position alone, and the comparator reads the operands.
    """

    def __init__(self, part: FusionEntry, op: Op, lines: Lines, key: Key | None) -> None:
        self.part, self.op, self.lines, self.key = part, op, lines, key
        self.f, self.emitter = part.function, part.emitter()

    @staticmethod
    def kinds(key: Key | None) -> list[str]:
        """The types of a record's components."""
        if key is None:
            return ["i32"]
        return ["i64"] if key_bits(key.value.element) == 32 else ["i64", "i32"]

    def load(self, number: int, line: llvm.Value, position: llvm.Value) -> Register:
        """An element of an operand."""
        value = self.op.operands[number]
        at = self.lines.place(self.f, line, position)
        axis = LoopAxis(at, value.tensor.size, depth=self.part.scopes.depth)
        pointer = self.part.pointers[number]
        return self.emitter.load(pointer, value.element, of_axis(axis))

    def record(self, line: llvm.Value, position: llvm.Value) -> Record:
        """The record of a position of a line."""
        if self.key is None:
            return [position]
        f = self.f
        word = self.key.words(f, lambda number, width: self.load(number, line, position), 1)
        if llvm.bits_of(word.type) == 64:
            return [word, position]
        high = f.shl(f.cast("zext", word, "i64"), 32)
        return [f.lor(high, f.cast("zext", position, "i64"))]

    def position(self, record: Record) -> llvm.Value:
        return self.f.cast("trunc", record[-1], "i32")

    def before(self, line: llvm.Value, other: Record, own: Record, left: llvm.Value) -> llvm.Value:
        """Whether another run's record stands before the own one; `left`: whether the own run is
        the earlier one, whose records come first among equals."""
        f = self.f
        if self.key is None:
            after = self.less(line, own, other)
            return f.select(left, self.less(line, other, own), f.lnot(after))
        if len(own) == 1:
            return f.compare("ult", other[0], own[0])
        same = f.land(f.compare("eq", other[0], own[0]), f.compare("ult", other[1], own[1]))
        return f.lor(f.compare("ult", other[0], own[0]), same)

    def less(self, line: llvm.Value, left: Record, right: Record) -> llvm.Value:
        """The comparator."""

        def given(number: int, record: Record) -> Override:
            return lambda index, width, mask: self.load(number, line, record[-1])

        loads = [
            given(number, record)
            for number in range(len(self.op.operands))
            for record in (left, right)
        ]
        (result,) = lazy_region(self.f, self.op.regions[0], loads, 1)
        assert isinstance(result, llvm.Value)
        return result


class Store:
    """Records in memory, component by component."""

    def __init__(self, f: llvm.Function, kinds: Sequence[str], bases: Sequence[llvm.Value]) -> None:
        self.f, self.kinds, self.bases = f, kinds, bases

    def get(self, at: llvm.Value) -> Record:
        wide = self.f.cast("zext", at, "i64")
        return [
            self.f.load(kind, self.f.pointer(base, wide, kind))
            for kind, base in zip(self.kinds, self.bases, strict=True)
        ]

    def put(self, at: llvm.Value, record: Record) -> None:
        wide = self.f.cast("zext", at, "i64")
        for kind, base, value in zip(self.kinds, self.bases, record, strict=True):
            self.f.store(value, self.f.pointer(base, wide, kind))


def merged(
    order: Comparing,
    line: llvm.Value,
    source: Store,
    first: llvm.Value,
    place: llvm.Value,
    length: llvm.Operand,
    size: llvm.Value,
    rounds: llvm.Operand,
) -> tuple[llvm.Value, Record]:
    """Where the record at `place` of the line that begins at `first` goes, when runs of `size`
    (i32, a power of two) are merged, and the record. `rounds`: 1 + log2(size)."""
    f = order.f
    start = f.land(place, f.neg(f.mul(size, 2)))
    left = f.compare("eq", f.land(place, size), 0)
    other = f.select(left, f.add(start, size), start)
    there = f.max(f.min(f.sub(length, other), size), 0)
    own = source.get(f.add(first, place))
    zero = llvm.constant("i32", 0)
    with f.for_range(zero, f.lift(rounds, "i32"), 1, [zero, size], at_least_once=True) as loop:
        count, step = loop.carried
        further = f.add(count, step)
        inside = f.compare("ule", further, there)
        # What lies behind the run's end is not asked for: the own record stands in for it.
        at = f.select(inside, f.sub(f.add(other, further), 1), place)
        ahead = order.before(line, source.get(f.add(first, at)), own, left)
        taken = f.land(inside, ahead)
        loop.carry(f.select(taken, further, count), f.lshr(step, 1))
    count = loop.results[0]
    within = f.land(place, f.sub(size, 1))
    return f.add(f.add(start, within), count), own


@contextmanager
def turns(part: FusionEntry, items: int) -> Iterator[llvm.Value]:
    """The numbers of a block's items, a few for each thread."""
    f, threads = part.function, part.threads
    zero = llvm.constant("i32", 0)
    rounds = llvm.constant("i32", -(-items // threads))
    with f.for_range(zero, rounds) as loop:
        item = f.add(part.thread, f.mul(loop.index, threads))
        if items % threads:
            with f.if_then(f.compare("ult", item, items)):
                yield item
        else:
            yield item


@dataclass(frozen=True)
class Segments:
    """What blocks sort: `lines` lines of `length` records; `each` lines of a block, or `parts`
    blocks of `size` records of a line."""

    lines: int
    length: int

    @property
    def size(self) -> int:
        return min(self.length, SEGMENT)

    @property
    def parts(self) -> int:
        return -(-self.length // SEGMENT)

    @property
    def each(self) -> int:
        return max(1, min(SEGMENT // 4 // self.size, self.lines)) if self.parts == 1 else 1

    @property
    def blocks(self) -> int:
        return -(-self.lines // self.each) * self.parts

    @property
    def threads(self) -> int:
        items = self.each * self.size
        return min(THREADS, -(-items // WARP) * WARP)


Source = Callable[[llvm.Value, llvm.Value], Record]  # the record at (line, place)
Sink = Callable[[llvm.Value, llvm.Value, Record], None]  # takes the record at (line, place)


class _Items:
    """The items of a block: the records of its segments."""

    def __init__(self, part: FusionEntry, segments: Segments) -> None:
        self.part, self.segments = part, segments
        f, size = part.function, segments.size
        number = part.block
        self.piece: llvm.Value = llvm.constant("i32", 0)  # of its line, where a line is in parts
        if segments.parts > 1:
            line = f.udiv(number, segments.parts)
            self.piece = f.sub(number, f.mul(line, segments.parts))
            number = line
        self.first_line = f.mul(number, segments.each)
        self.begin = f.mul(self.piece, size)
        self.length: llvm.Operand = size
        if segments.length % size:
            self.length = f.min(f.sub(segments.length, self.begin), size)

    @contextmanager
    def each(self) -> Iterator[tuple[llvm.Value, llvm.Value, llvm.Value]]:
        """(item, its line, its place in the segment) of those that exist."""
        f, segments = self.part.function, self.segments
        with turns(self.part, segments.size * segments.each) as item:
            own, place = self._split(item)
            line = f.add(self.first_line, own)
            inside = None
            if segments.lines % segments.each:
                inside = f.compare("ult", line, segments.lines)
            if isinstance(self.length, llvm.Value):
                inside = f.compare("ult", place, self.length)
            if inside is None:
                yield item, line, place
            else:
                with f.if_then(inside):
                    yield item, line, place

    def _split(self, item: llvm.Value) -> tuple[llvm.Value, llvm.Value]:
        """(line in the block, place in the segment)"""
        f, size = self.part.function, self.segments.size
        if self.segments.each == 1:
            return llvm.constant("i32", 0), item
        own = f.udiv(item, size)
        return own, f.sub(item, f.mul(own, size))


def sort_segments(
    part: FusionEntry,
    order: Comparing,
    segments: Segments,
    kinds: Sequence[str],
    source: Source,
    sink: Sink,
    kept: int,
) -> None:
    """The code of a block: reads its segments' records, sorts them in shared memory, hands the
    first `kept` of each on, with their places in the line of the kept ones."""
    f, size = part.function, segments.size
    stores = [
        [part.at(part.shared(llvm.bits_of(kind) // 8 * size * segments.each)) for kind in kinds]
        for _ in range(2)
    ]
    items = _Items(part, segments)
    front = Store(f, kinds, stores[0])
    with items.each() as (item, line, place):
        front.put(item, source(line, f.add(items.begin, place)))
    barrier(f)
    levels = max(0, (size - 1).bit_length())
    zero = llvm.constant("i32", 0)
    final = stores[0]
    if levels:
        pairs = [*stores[0], *stores[1]]
        with f.for_range(zero, llvm.constant("i32", levels), 1, pairs) as loop:
            here, there = loop.carried[: len(kinds)], loop.carried[len(kinds) :]
            run = f.shl(llvm.constant("i32", 1), loop.index)
            with items.each() as (item, line, place):
                first = f.sub(item, place)
                to, record = merged(
                    order, line, Store(f, kinds, here), first, place, items.length, run,
                    f.add(loop.index, 1),
                )  # fmt: skip
                Store(f, kinds, there).put(f.add(first, to), record)
            barrier(f)
            loop.carry(*there, *here)
        final = loop.results[: len(kinds)]
    back = Store(f, kinds, final)
    share = min(kept, size)
    with items.each() as (item, line, place):
        at = f.add(f.mul(items.piece, share), place)
        if share < size:
            with f.if_then(f.compare("ult", place, share)):
                sink(line, at, back.get(item))
        else:
            sink(line, at, back.get(item))


class Sorter:
    """The launches of one operation."""

    def __init__(self, op: Op, target: NvidiaTarget, key: Key | None) -> None:
        self.region = as_region(op)
        self.op, self.key = self.region.ops[0], key
        self.kernel = FusionKernel(self.region, target)
        self.kinds = SortOrder.kinds(key)

    def buffer(self, count: int) -> list[Parameter]:
        """Scratch for so many records, as parameters."""
        return [
            self.kernel.scratch_memory(count * (llvm.bits_of(kind) // 8)) for kind in self.kinds
        ]

    def store(self, part: FusionEntry, first: int) -> Store:
        return Store(part.function, self.kinds, part.extra[first : first + len(self.kinds)])


def refusal(op: Op, target: NvidiaTarget) -> str:
    """Why a sort has no kernel here, "" if it has one."""
    return "more elements than 32 bits count" if op.operands[0].tensor.size > GRID else ""


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a sort."""
    if not op.operands[0].tensor.size:
        return nothing(as_region(op), target, 0.0)
    dims = op.operands[0].dims
    lines = Lines.of(dims, op.dimension % len(dims) if dims else 0)
    total = lines.count * lines.length
    sorter = Sorter(op, target, key_of(op.regions[0]))
    op, kernel = sorter.op, sorter.kernel
    segments = Segments(lines.count, lines.length)
    alone = segments.parts == 1
    buffers = [] if alone else [sorter.buffer(total), sorter.buffer(total)]
    part = kernel.entry("sort", segments.threads, [] if alone else buffers[0])
    order = SortOrder(part, op, lines, sorter.key)

    def moved(order: SortOrder, line: llvm.Value, place: llvm.Value, record: Record) -> None:
        """Stores the elements of a record where it stands."""
        part, position = order.part, order.position(record)
        to = lines.place(part.function, line, place)
        values = [order.load(number, line, position) for number in range(len(op.operands))]
        for value, operand, pointer in zip(values, op.operands, part.outputs, strict=True):
            axis = LoopAxis(to, total, depth=part.scopes.depth)
            order.emitter.store(pointer, value, operand.element, of_axis(axis))

    def sink(line: llvm.Value, place: llvm.Value, record: Record) -> None:
        if alone:
            moved(order, line, place, record)
        else:
            f = part.function
            at = f.add(f.mul(line, lines.length), place)
            sorter.store(part, 0).put(at, record)

    sort_segments(part, order, segments, sorter.kinds, order.record, sink, lines.length)
    part.finish(segments.blocks)
    if not alone:

        def place(
            part: FusionEntry, order: SortOrder, line: llvm.Value, to: llvm.Value, record: Record
        ) -> None:
            moved(order, line, to, record)

        def order_of(part: FusionEntry) -> SortOrder:
            return SortOrder(part, op, lines, sorter.key)

        merge_launches(kernel, sorter.kinds, buffers, lines.count, lines.length, order_of, place)
    return kernel.finish(op.definition.flops(op))


Ordering = TypeVar("Ordering", bound=Comparing)


def merge_launches(
    kernel: FusionKernel,
    kinds: Sequence[str],
    buffers: Sequence[list[Parameter]],
    count: int,
    length: int,
    order_of: Callable[[FusionEntry], Ordering],
    final: Callable[[FusionEntry, Ordering, llvm.Value, llvm.Value, Record], None] | None,
) -> list[Parameter]:
    """A launch per level, for `count` lines of `length` records whose segments are sorted in the
    first of two buffers. The last level hands its records to `final`, if there is one; else they
    lie in the buffer that is returned."""
    total, size = count * length, SEGMENT
    source, target = buffers
    while size < length:
        last = final is not None and 2 * size >= length
        part = kernel.entry(f"merge{size}", FLAT, source if last else [*source, *target])
        order, f = order_of(part), part.function
        item = f.add(f.mul(part.block, FLAT), part.thread)
        with f.if_then(f.compare("ult", item, total)):
            line = f.udiv(item, length)
            first = f.mul(line, length)
            given = Store(f, kinds, part.extra[: len(kinds)])
            to, record = merged(
                order, line, given, first, f.sub(item, first), length,
                llvm.constant("i32", size), size.bit_length(),
            )  # fmt: skip
            if last and final is not None:
                final(part, order, line, to, record)
            else:
                Store(f, kinds, part.extra[len(kinds) :]).put(f.add(first, to), record)
        part.finish(blocks(total, FLAT))
        source, target = target, source
        size *= 2
    return source
