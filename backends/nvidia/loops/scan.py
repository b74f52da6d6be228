"""reduce_window whose windows are prefixes or suffixes: running totals.

A line belongs to a warp or a block. Each warp folds its segment of the line, what stands before a
segment comes from shared memory, and the warp goes through its segment again, chunk by chunk, with
the total so far. Where lines are few and long, several blocks divide each: a launch before folds
their parts into scratch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.graph import Op
from ....hlo.ops.windows import running
from ... import llvm
from ...llvm.elements import Register
from ...llvm.index import SAME, Affine, LoopAxis, delinear, linear, of_axis
from ...plain.monoid import Reduction, flat, unflat
from ...plain.single import as_region
from ..atoms import ACCESS_BYTES
from ..frame import Parameter, blocks, shuffle
from ..launch import KernelCode
from ..target import WARP, NvidiaTarget
from . import rows
from .groups import ThreadGroup, lane_of, selected
from .head import FusionEntry, FusionKernel, nothing
from .line import ThreadRow
from .partials import Partials
from .row_code import THREADS

COPIES = 4  # chunks of a turn of the first pass


def refusal(op: Op, target: NvidiaTarget) -> str:
    """Why a reduce_window has no kernel here, "" if it has one."""
    found = running(op)
    if found is None:
        return "windows that are neither prefixes nor suffixes"
    dims, (dimension, _) = op.results[0].dims, found
    if math.prod(dims[dimension + 1 :]) > 1 and _lines(dims, dimension) >= _busy(target):
        return "enough lines for a thread each"
    return ""


def _lines(dims: Sequence[int], dimension: int) -> int:
    return math.prod(size for d, size in enumerate(dims) if d != dimension)


def _busy(target: NvidiaTarget) -> int:
    """Threads that keep the machine busy."""
    return target.architecture.multiprocessors * rows.BUSY


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a reduce_window that is a running total."""
    found = running(op)
    assert found is not None
    if not op.results[0].tensor.size:
        return nothing(as_region(op), target, 0.0)
    return _Scan(op, target, *found).emit()


class _Scan:
    def __init__(self, op: Op, target: NvidiaTarget, dimension: int, backward: bool) -> None:
        region = as_region(op)
        self.op, self.dimension, self.backward = region.ops[0], dimension, backward
        self.kernel = FusionKernel(region, target)
        self.reduction = Reduction(self.op, backward)
        self.dims = self.op.results[0].dims
        self.length = self.dims[dimension]
        self.others = [size for d, size in enumerate(self.dims) if d != dimension]
        self.lines, self.busy = _lines(self.dims, dimension), _busy(target)
        stride = math.prod(self.dims[dimension + 1 :])
        kinds = [value.element for value in (*self.reduction.inputs, *self.op.results)]
        widest = ACCESS_BYTES // max(kind.itemsize for kind in kinds)
        self.width = math.gcd(widest, self.length) if stride == 1 else 1
        self.warps = 1
        while self.warps < rows.LONGEST and (
            self.length > WARP * self.warps * rows.KEPT
            or (self.lines * WARP * self.warps < self.busy)
            and self.length > WARP * self.warps * self.width
        ):
            self.warps *= 2
        threads = WARP * self.warps
        self.parts = 1
        if self.lines * threads < self.busy and self.length > threads * rows.KEPT:
            wanted = -(-2 * self.busy // (self.lines * threads))
            parts = max(1, min(wanted, self.length // (threads * rows.KEPT)))
            chunks = -(-self.length // (parts * threads * self.width))
            self.parts = -(-self.length // (chunks * threads * self.width))
        self.each = 1 if self.warps > 1 else THREADS // WARP

    def emit(self) -> KernelCode:
        extra: list[Parameter] = []
        if self.parts > 1:
            self.partials = Partials(self.kernel, [self.reduction], self.lines * self.parts)
            extra = [self.partials.parameter]
            self.part_totals(extra)
        part = self.kernel.entry("scan", WARP * self.warps * self.each, extra)
        _ScanPass(self, part).scan()
        part.finish(blocks(self.lines, self.each) * self.parts)
        return self.kernel.finish(self.op.definition.flops(self.op))

    def part_totals(self, extra: Sequence[Parameter]) -> None:
        """The first launch: every part of a line folded."""
        part = self.kernel.entry("totals", WARP * self.warps, extra)
        one = _ScanPass(self, part)
        (total,) = one.line.fold([self.reduction], one.read)
        with part.scopes.branch(part.function.compare("eq", part.thread, 0)):
            place = one.place * self.parts + of_axis(LoopAxis(one.number, self.parts))
            self.partials.put(one.emitter, part.extra[0], place, [total])
        part.finish(self.lines * self.parts)


class _ScanPass:
    """One launch: `place` is the thread's line and `number` its part, i32."""

    def __init__(self, scan: _Scan, part: FusionEntry) -> None:
        self.scan_of, self.part = scan, part
        self.f, self.scopes = part.function, part.scopes
        f = self.f
        self.emitter = part.emitter()
        self.group = ThreadGroup(part, WARP, scan.warps)
        self.number: llvm.Value = llvm.constant("i32", 0)
        block = part.block
        if scan.parts > 1:
            self.number = f.urem(block, scan.parts)
            block = f.udiv(block, scan.parts)
        self.present: llvm.Value | None = None
        if scan.each > 1:
            block = f.add(f.mul(block, scan.each), f.udiv(part.thread, WARP))
            if scan.lines % scan.each:
                self.present = f.compare("ult", block, scan.lines)
                block = f.min(block, scan.lines - 1, signed=False)
        self.place = of_axis(LoopAxis(block, scan.lines, SAME, self.scopes.depth))
        self.at = delinear(self.emitter.indexer, self.place, scan.others, 1)
        number = self.number if scan.parts > 1 else None
        self.line = ThreadRow(part, self.group, scan.length, scan.width, COPIES, scan.parts, number)

    def index(self, place: Affine) -> tuple[Affine, ...]:
        scan = self.scan_of
        if scan.backward:
            place = (place * -1 + (scan.length - 1)).within(0, scan.length - 1)
        at = list(self.at)
        at.insert(scan.dimension, place)
        return tuple(at)

    def read(self, reduction: Reduction, place: Affine, width: int) -> list[Register]:
        at = self.index(place)
        registers = [self.emitter.value(value, at, width) for value in reduction.inputs]
        return reduction.read(self.f, registers)

    def initial(self) -> list[Register]:
        reduction = self.scan_of.reduction
        registers = [self.emitter.value(value, ()) for value in reduction.initial]
        return reduction.read(self.f, registers)

    def before(self) -> list[Register]:
        """What stands before this warp's segment, initial values first."""
        f, reduction = self.f, self.scan_of.reduction
        total = self.initial()
        if self.scan_of.parts > 1:
            total = self.earlier_parts(total)
        if self.group.warps == 1:
            return total
        (own,) = self.line.totals([reduction], self.read)
        (offsets,) = self.group.publish([own])
        zero = llvm.constant("i32", 0)
        with f.for_range(zero, self.group.warp, 1, flat(total)) as loop:
            carried = unflat(loop.carried, total)
            other = self.group.published(own, offsets, loop.index)
            loop.carry(*flat(reduction.combine(f, carried, other, 1)))
        return unflat(loop.results, total)

    def earlier_parts(self, total: list[Register]) -> list[Register]:
        scan = self.scan_of
        zero = llvm.constant("i32", 0)
        with self.scopes.loop(zero, self.number, 1, flat(total), extent=scan.parts) as (at, loop):
            carried = unflat(loop.carried, total)
            place = self.place * scan.parts + at
            other = scan.partials.get(self.emitter, self.part.extra[0], place, scan.reduction)
            loop.carry(*flat(scan.reduction.combine(self.f, carried, other, 1)))
        return unflat(loop.results, total)

    def scan(self) -> None:
        """Goes through the segment with the running total."""
        f, line = self.f, self.line
        total = self.before()
        chunks = f.udiv(f.add(line.left(), line.stride - 1), line.stride)
        zero = llvm.constant("i32", 0)
        with self.scopes.loop(zero, chunks, 1, flat(total), extent=line.chunks) as (_, loop):
            carried = unflat(loop.carried, total)
            at = f.add(line.first, f.mul(loop.index, line.stride))
            place, guard = line.guarded(at)
            inside: llvm.Value | None = None if line.even else guard
            if self.present is not None:
                inside = self.present if inside is None else f.land(inside, self.present)
            results, following = self.chunk(carried, place)
            if inside is None:
                self.store(results, place)
            else:
                with self.scopes.branch(inside):
                    self.store(results, place)
            loop.carry(*flat(following))

    def chunk(
        self, carried: list[Register], place: Affine
    ) -> tuple[list[list[Register]], list[Register]]:
        """The running totals of a lane's elements, and the total after the chunk. What lies behind
        the line's end counts as elements, whose totals nobody uses."""
        f, reduction, width = self.f, self.scan_of.reduction, self.line.width
        vectors = self.read(reduction, place, width)
        own: list[list[Register]] = []
        for lane in range(width):
            value = lane_of(vectors, lane, f)
            own.append(reduction.combine(f, own[-1], value, 1) if own else value)
        through = own[-1]
        lane, distance = self.group.lane, 1
        while distance < WARP:
            other = unflat([shuffle(f, "up", one, distance) for one in flat(through)], through)
            has = f.compare("uge", lane, distance)
            through = selected(f, has, reduction.combine(f, other, through, 1), through)
            distance *= 2
        ahead = unflat([shuffle(f, "up", one, 1) for one in flat(through)], through)
        joined = reduction.combine(f, carried, ahead, 1)
        prefix = selected(f, f.compare("eq", lane, 0), carried, joined)
        whole = unflat([shuffle(f, "idx", one, WARP - 1) for one in flat(through)], through)
        following = reduction.combine(f, carried, whole, 1)
        return [reduction.combine(f, prefix, one, 1) for one in own], following

    def store(self, results: list[list[Register]], place: Affine) -> None:
        f, scan, width = self.f, self.scan_of, self.line.width
        at = self.index(place)
        finished = [scan.reduction.finished(f, one) for one in results]
        for number, value in enumerate(scan.op.results):
            parts = [one[number] for one in finished]
            register = packed(f, parts) if width > 1 else parts[0]
            pointer = self.part.outputs[number]
            offset = linear(at, scan.dims)
            self.emitter.store(pointer, register, value.element, offset, width)


def packed(f: llvm.Function, registers: Sequence[Register]) -> Register:
    """A vector of scalar registers."""
    columns = zip(*(flat([one]) for one in registers), strict=True)
    vectors = []
    for column in columns:
        total = llvm.poison(llvm.vector(len(column), column[0].type))
        for lane, value in enumerate(column):
            total = f.insert(total, value, lane)
        vectors.append(total)
    return unflat(vectors, [registers[0]])[0]
