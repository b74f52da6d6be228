"""top_k: the few largest of a long row, found in one pass over it; rows are the tiles.

What is larger than the k-th largest so far goes into a buffer; a full buffer is sorted and cut to k
again. Short rows are sorted as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....hlo.deciding import at_hint, surely_at_most
from ....hlo.graph import Op, arguments
from ....hlo.symbols import minimum
from ....hlo.types import TensorType
from ... import llvm
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter
from ...llvm.index import CONSECUTIVE, SAME, LoopAxis, of_axis
from ...llvm.target import KernelCode, Target
from ..frame import Frame, lanes_for_types, tile_range
from .frame import frame_of
from .order import FEW, Key, Records, fill, key_bits

LEAST = 256  # records of a buffer


def emit(op: Op, target: Target) -> KernelCode:
    """values, positions = the k largest of each row."""
    frame, emitter = frame_of(op, target)
    x, k = op.operands[0], op.k
    length, rows = x.dims[-1], math.prod(x.dims[:-1])
    if not k or not rows:
        return frame.finish(0, 0.0)
    records = Records(frame.function, key_bits(x.element), target.vector_bits)
    width = lanes_for_types(target, [x.element])
    width = width if at_hint(length) >= width else 1
    most = -(-max(LEAST, 4 * k) // width) * width
    short = surely_at_most(length, max(FEW[records.bits], most))
    capacity = length if short else minimum(length, most)
    f, scopes = frame.function, frame.scopes
    first = frame.scratch
    second = f.pointer(first, records.room(capacity), "i8")
    counts = f.pointer(second, records.room(capacity), "i8")
    (one,) = arguments([TensorType((), x.element)])
    row = _TopRow(frame, emitter, op, Key(one, (one,), True), records, width, capacity)
    with tile_range(frame, 0, rows) as (low, high), scopes.loop(low, high, extent=rows) as (
        _, loop,
    ):  # fmt: skip
        row.base = f.mul(loop.index, length)
        fill(records, row.key, row.load, first, capacity, width)
        if capacity == length:
            order = records.sort(first, second, counts, length)
        else:
            order = row.select(first, second, counts)
        with f.for_range(0, k) as each:
            position = records.position(f.load(records.kind, records.at(order, each.index)))
            to = f.add(f.mul(loop.index, k), each.index)
            place = of_axis(LoopAxis(to, op.results[0].tensor.size, depth=scopes.depth))
            number = f.cast("trunc", position, "i32")
            values = (row.load(0, position, 1), number)
            for pointer, result, value in zip(frame.outputs, op.results, values, strict=True):
                emitter.store(pointer, value, result.element, place)
    scratch = 2 * records.room(capacity) + records.counts_room()
    return frame.finish(rows, 0.0, scratch=scratch, work=4.0 * at_hint(x.tensor.size))


@dataclass
class _TopRow:
    """The row that starts at element `base`."""

    frame: Frame
    emitter: ElementEmitter
    op: Op
    key: Key
    records: Records
    width: int
    capacity: int
    base: llvm.Value = llvm.constant("i64", 0)  # noqa: RUF009  constants are immutable

    def load(self, number: int, position: llvm.Value, lanes: int) -> Register:
        """Elements from a position of the row on."""
        operand = self.op.operands[number]
        kind = CONSECUTIVE if lanes > 1 else SAME
        at = self.frame.function.add(self.base, position)
        axis = LoopAxis(at, operand.tensor.size, kind, self.frame.scopes.depth)
        pointer = self.frame.pointers[number]
        return self.emitter.load(pointer, operand.element, of_axis(axis), lanes)

    def select(self, first: llvm.Value, second: llvm.Value, counts: llvm.Value) -> llvm.Value:
        """Where the k first records lie in order, after all elements behind the first `capacity`.

        An element is a candidate if its key is less than the k-th: of equal ones the first stays.
        """
        f, records, k = self.frame.function, self.records, self.op.k
        length = self.op.operands[0].dims[-1]
        buffer = f.alloca(records.kind, self.width)

        def cut(count: llvm.Operand) -> llvm.Value:
            """Sorts the buffer; the k-th key."""
            order = f.call("spread", "ptr", first, second, counts, f.lift(count, "i64"))
            with f.for_range(0, k) as each:
                record = f.load(records.kind, records.at(order, each.index))
                f.store(record, records.at(first, each.index))
            return records.word(f.load(records.kind, records.at(first, k - 1)))

        records.define_spread()
        limit = cut(self.capacity)
        count: llvm.Value = llvm.constant("i64", k)
        rest = self.capacity + (length - self.capacity) // self.width * self.width
        for begin, end, lanes in ((self.capacity, rest, self.width), (rest, length, 1)):
            if begin == end:
                continue
            with f.for_range(begin, end, lanes, [count, limit]) as loop:
                held, bound = loop.carried
                words = self.key.words(
                    f, lambda n, width, at=loop.index: self.load(n, at, width), lanes
                )
                less = f.compare("ult", words, f.splat(bound, lanes))
                some = less
                if lanes > 1:
                    some = f.intrinsic("llvm.vector.reduce.or", less.type, less, returns="i1")
                branch = f.if_else(some)
                with branch.then():
                    f.store(records.packed(words, loop.index), buffer)
                    with f.for_range(0, lanes, 1, [held]) as each:
                        record = f.load(records.kind, records.at(buffer, each.index))
                        f.store(record, records.at(first, each.carried[0]))
                        fits = f.compare("ult", records.word(record), bound)
                        each.carry(f.add(each.carried[0], f.cast("zext", fits, "i64")))
                    (now,) = each.results
                    full = f.if_else(f.compare("sgt", now, self.capacity - self.width))
                    with full.then():
                        full.give(llvm.constant("i64", k), cut(now))
                    with full.otherwise():
                        full.give(now, bound)
                    branch.give(*full.results)
                with branch.otherwise():
                    branch.give(held, bound)
                loop.carry(*branch.results)
            count, limit = loop.results
        cut(count)
        return first
