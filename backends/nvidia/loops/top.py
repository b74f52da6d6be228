"""top_k: blocks sort segments of a row and keep the first k of each, as often as it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....hlo.graph import Op, arguments
from ....hlo.types import TensorType
from ... import llvm
from ...llvm.index import LoopAxis, of_axis
from ...plain.opaque.order import Key
from ...plain.single import as_region
from ..frame import GRID, Parameter
from ..launch import KernelCode
from ..target import NvidiaTarget
from .head import FusionEntry, nothing
from .sort import SEGMENT, Lines, Record, Segments, Sorter, SortOrder, sort_segments
from .threads import ThreadEmitter


def refusal(op: Op, target: NvidiaTarget) -> str:
    """Why a top_k has no kernel here, "" if it has one."""
    x = op.operands[0]
    if not op.results[0].tensor.size:
        return ""
    if x.dims[-1] > SEGMENT and 2 * op.k > SEGMENT:
        return f"more than {SEGMENT // 2} results of a long row"
    return "more elements than 32 bits count" if x.tensor.size > GRID else ""


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a top_k: values, positions = the k largest of each row."""
    x, k = op.operands[0], op.k
    if not op.results[0].tensor.size:
        return nothing(as_region(op), target, 0.0)
    rows, length = math.prod(x.dims[:-1]), x.dims[-1]
    (one,) = arguments([TensorType((), x.element)])
    sorter = Sorter(op, target, Key(one, (one,), True))
    op, kernel = sorter.op, sorter.kernel
    lines = Lines(rows, length, 1)
    given: list[Parameter] = []
    count, number = length, 0
    while True:
        segments = Segments(rows, count)
        # Every segment but a line's last one hands on k records.
        rest = count - (segments.parts - 1) * segments.size
        following = (segments.parts - 1) * min(k, segments.size) + min(k, rest)
        last = segments.parts == 1
        taken = [] if last else sorter.buffer(rows * following)
        part = kernel.entry(f"top{number}", segments.threads, [*given, *taken])
        order = SortOrder(part, op, lines, sorter.key)
        top = _Top(part, order, sorter, count, following, len(given), k)
        source = top.kept if given else order.record
        sink = top.result if last else top.keep
        sort_segments(part, order, segments, sorter.kinds, source, sink, k)
        part.finish(segments.blocks)
        if last:
            return kernel.finish(op.definition.flops(op))
        given, count, number = taken, following, number + 1


@dataclass(frozen=True)
class _Top:
    """Where one launch of a top_k reads records and writes them."""

    part: FusionEntry
    order: SortOrder
    sorter: Sorter
    count: int
    following: int
    first: int  # number of the parameters of the records written
    k: int

    @property
    def emitter(self) -> ThreadEmitter:
        return self.order.emitter

    def kept(self, line: llvm.Value, place: llvm.Value) -> Record:
        f = self.part.function
        return self.sorter.store(self.part, 0).get(f.add(f.mul(line, self.count), place))

    def keep(self, line: llvm.Value, place: llvm.Value, record: Record) -> None:
        f = self.part.function
        at = f.add(f.mul(line, self.following), place)
        self.sorter.store(self.part, self.first).put(at, record)

    def result(self, line: llvm.Value, place: llvm.Value, record: Record) -> None:
        f, op = self.part.function, self.sorter.op
        position = self.order.position(record)
        at = f.add(f.mul(f.cast("zext", line, "i64"), self.k), f.cast("zext", place, "i64"))
        axis = LoopAxis(at, op.results[0].tensor.size, depth=self.part.scopes.depth)
        value = self.order.load(0, line, position)
        self.emitter.store(self.part.outputs[0], value, op.results[0].element, of_axis(axis))
        number: llvm.Value = position
        self.emitter.store(self.part.outputs[1], number, op.results[1].element, of_axis(axis))
