"""`reduce` fusions: one pass over the inputs, any dims reduced, producers computed on the fly.

If the last dim is reduced, the lanes of a group run along it (`line`); if it is kept, along what is
kept (`columns`). Where there are too few results for the machine, several blocks divide the reduced
elements; their partial results lie in scratch, and a second launch joins them in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ....hlo.deciding import at_hint, common_divisor, estimating, larger, surely_below
from ....hlo.graph import Region
from ....optimizer.windows import NONE, Windows
from ... import llvm
from ...capabilities import vector_width
from ...llvm.elements import Register
from ...llvm.index import SAME, Affine, LoopAxis, delinear, of_axis
from ...plain.frame import computable
from ...plain.monoid import Reduction, nested, spread
from ...plain.probe import collapse, probe
from ..atoms import ACCESS_BYTES
from ..capabilities import ROW_PARTS
from ..frame import Parameter, blocks
from ..launch import KernelCode
from ..target import WARP, NvidiaTarget
from . import columns, rows
from .columns import ColumnCode
from .groups import ThreadGroup
from .head import FusionEntry, FusionKernel, may_be_empty, nothing, unaligned
from .line import ThreadRow
from .partials import Partials
from .row_code import THREADS
from .threads import ThreadEmitter

COPIES = 4  # elements of a column that a turn of a loop reads


def refusal(region: Region, windows: Windows = NONE) -> str:
    """Why a `reduce` fusion's region has no kernel here, "" if it has one: its reductions are of
    one shape, with no operations after them."""
    reductions = _reductions(region)
    results = {result for r in reductions for result in r.op.results}
    shapes = {(r.inputs[0].dims, tuple(sorted(r.op.dimensions))) for r in reductions}
    if len(shapes) != 1 or not set(region.results) <= results:
        return "reductions of several shapes, or operations after them"
    if nested(reductions):
        return "a reduction of a reduction"
    if not computable(region):
        return "an operation that is not computed element by element"
    if not all(root.tensor.size for root in region.results):
        return ""
    ((dims, over),) = shapes
    size = math.prod(dims)
    if not size:
        return "a reduction of nothing"
    length = math.prod(dims[d] for d in over)
    most = larger(math.prod(n for d, n in enumerate(dims) if d not in over), length)
    if not surely_below(size, 2**31) and not surely_below(most, 2**31):
        return "more elements than 32 bits count"
    return unaligned(windows) or may_be_empty(size)


def emit(region: Region, target: NvidiaTarget, flops: float, windows: Windows = NONE) -> KernelCode:
    """The kernel of a `reduce` fusion's region."""
    if not all(root.tensor.size for root in region.results):
        return nothing(region, target, flops)
    return _ReduceKernel(region, target, _reductions(region), windows).emit(flops)


def _reductions(region: Region) -> list[Reduction]:
    return [Reduction(op) for op in region.ops if op.name == "reduce"]


class _ReduceKernel:
    """kept, reduced: groups of dims that run as one, as positions in `groups`."""

    def __init__(
        self, region: Region, target: NvidiaTarget, reductions: list[Reduction], windows: Windows
    ) -> None:
        self.region, self.target, self.reductions = region, target, reductions
        self.kernel = FusionKernel(region, target, windows)
        self.dims = reductions[0].inputs[0].dims
        self.over = frozenset(reductions[0].op.dimensions)
        inputs = [value for r in reductions for value in r.inputs]
        found = probe(
            Region(region.arguments, region.ops, inputs), (0,) * len(self.dims), self.dims
        )
        groups = [part for group in collapse(self.dims, found) for part in self.split(group)]
        self.groups = [group for group in groups if self.extent(group) != 1] or groups[:1]
        self.kept = [group for group in self.groups if not self.kind(group)]
        self.reduced = [group for group in self.groups if self.kind(group)]
        self.columns = math.prod(map(self.extent, self.kept))
        self.length = math.prod(map(self.extent, self.reduced))
        with estimating():
            long = [value for value in region.arguments if value.tensor.size >= self.length]
        self.sizes = [value.element.itemsize for value in long or inputs]

    def split(self, group: list[int]) -> list[list[int]]:
        """A group of dims cut where kept and reduced dims meet; dims of size 1 go anywhere."""
        parts: list[list[int]] = []
        for dim in group:
            if parts and self.dims[dim] == 1:
                continue
            if parts and self.kind(parts[-1]) == (dim in self.over):
                parts[-1].append(dim)
            elif parts and self.extent(parts[-1]) == 1:
                parts[-1] = [dim]
            else:
                parts.append([dim])
        return parts

    def kind(self, group: Sequence[int]) -> bool:
        """Whether a group is reduced."""
        return bool(group) and group[0] in self.over

    def extent(self, group: Sequence[int]) -> int:
        return math.prod(self.dims[d] for d in group)

    def emit(self, flops: float) -> KernelCode:
        if self.groups and not self.kind(self.groups[-1]) and self.columns != 1:
            self.down()
        else:
            self.along()
        return self.kernel.finish(flops)

    # Elements.

    def index(
        self, emitter: ThreadEmitter, kept: Affine, reduced: Affine, width: int
    ) -> tuple[Affine, ...]:
        """The index of an input's element by its numbers among the kept and the reduced ones."""
        at = [Affine((), 0)] * len(self.dims)
        for groups, place in ((self.kept, kept), (self.reduced, reduced)):
            dims = [d for group in groups for d in group]
            found = delinear(emitter.indexer, place, [self.dims[d] for d in dims], width)
            for d, one in zip(dims, found, strict=True):
                at[d] = one
        return tuple(at)

    def read(
        self,
        emitter: ThreadEmitter,
        reduction: Reduction,
        kept: Affine,
        reduced: Affine,
        width: int,
    ) -> list[Register]:
        at = self.index(emitter, kept, reduced, width)
        registers = [emitter.value(value, at, width) for value in reduction.inputs]
        return reduction.read(emitter.function, registers)

    def width(self, group: Sequence[int]) -> int:
        """Neighbours along a group that a thread takes at once."""
        return common_divisor(vector_width(ACCESS_BYTES, self.sizes), self.extent(group))

    def store(
        self,
        part: FusionEntry,
        emitter: ThreadEmitter,
        totals: Sequence[list[Register]],
        place: Affine,
        width: int,
    ) -> None:
        """The results: initial values joined in, rounded."""
        f = part.function
        for reduction, total in zip(self.reductions, totals, strict=True):
            values: Sequence[Register] = total
            if not all(map(reduction.is_neutral, reduction.initial)):
                registers = [emitter.value(value, (), 1) for value in reduction.initial]
                first = spread(f, reduction.read(f, registers), width)
                values = reduction.combine(f, first, values, width)
            values = reduction.finished(f, values)
            for result, register in zip(reduction.op.results, values, strict=True):
                for number, root in enumerate(self.region.results):
                    if root is result:
                        pointer = part.outputs[number]
                        emitter.store(pointer, register, root.element, place, width)

    # The last dim is reduced.

    def along(self) -> None:
        """A group of threads per result, or several groups."""
        width = self.width(self.reduced[-1]) if self.reduced else 1
        cut = rows.choose(self.region, self.columns, self.length, self.target)
        copies = cut.copies(self.length, width)
        parts = 1
        busy = self.target.architecture.multiprocessors * rows.BUSY
        columns, length = at_hint(self.columns), at_hint(self.length)
        if copies and columns * cut.threads < busy:
            cut = replace(cut, warps=min(cut.warps, ROW_PARTS.threads // WARP))
            share = replace(ROW_PARTS, threads=cut.threads).least(width)
            wanted = -(-2 * busy // (columns * cut.threads))
            parts = max(1, min(wanted, length // share))
            copies = cut.copies(-(-self.length // parts), width)
            chunks = -(-length // (parts * cut.threads * width))
            parts = -(-length // (chunks * cut.threads * width))
        each = 1 if cut.warps > 1 else max(1, THREADS // cut.lanes)
        part = self.kernel.entry("reduce", max(WARP, cut.threads * each), self.partial(parts))
        f, scopes = part.function, part.scopes
        emitter = part.emitter()
        group = ThreadGroup(part, cut.lanes, cut.warps)
        number, block = None, part.block
        if parts > 1:
            number = f.udiv(block, self.columns)
            block = f.sub(block, f.mul(number, self.columns))
        kept, present = block, None
        if each > 1:
            kept = f.add(f.mul(block, each), f.udiv(part.thread, cut.lanes))
        if self.columns % each:
            present = f.compare("ult", kept, self.columns)
            kept = f.min(kept, self.columns - 1, signed=False)
        line = ThreadRow(part, group, self.length, width, copies, parts, number)
        place = of_axis(LoopAxis(kept, self.columns, SAME, scopes.depth))

        def read(reduction: Reduction, at: Affine, lanes: int) -> list[Register]:
            return self.read(emitter, reduction, place, at, lanes)

        totals = line.fold(self.reductions, read)
        first = f.compare("eq", f.add(f.mul(group.warp, WARP), group.lane), 0)
        if present is not None:
            first = f.land(first, present)
        with scopes.branch(first):
            if number is None:
                self.store(part, emitter, totals, place, 1)
            else:
                self.keep(part, emitter, totals, place, number)
        part.finish(blocks(self.columns, each) * parts)
        if parts > 1:
            self.rest(parts)

    # The last dim is kept.

    def down(self) -> None:
        """Threads run along the results."""
        width = self.width(self.kept[-1])
        busy = self.target.architecture.multiprocessors * rows.BUSY
        count = at_hint(self.columns)
        while width > 1 and count // width < WARP:
            width //= 2
        cut = columns.choose(count, at_hint(self.length), width, busy, COPIES, True)
        part = self.kernel.entry("reduce", cut.threads, self.partial(cut.parts))
        emitter = part.emitter()
        fold = ColumnCode(part, self.columns, self.length, cut)

        def read(reduction: Reduction, kept: Affine, at: Affine, lanes: int) -> list[Register]:
            return self.read(emitter, reduction, kept, at, lanes)

        totals = fold.totals(self.reductions, read)
        self.conclude(part, emitter, fold, totals)
        if cut.parts > 1:
            self.rest(cut.parts)

    def conclude(
        self,
        part: FusionEntry,
        emitter: ThreadEmitter,
        fold: ColumnCode,
        totals: Sequence[list[Register]],
    ) -> None:
        """Results, or partial ones, of the threads that have them."""
        width = fold.cut.width

        def write() -> None:
            if fold.cut.parts == 1:
                self.store(part, emitter, totals, fold.place, width)
            else:
                self.keep(part, emitter, totals, fold.place, fold.number)

        first = fold.first()
        if first is None:
            write()
        else:
            with part.scopes.branch(first):
                write()
        part.finish(fold.blocks)

    # Partial results, by part and result.

    def partial(self, parts: int) -> list[Parameter]:
        """The parameter of the partial results, where there are any."""
        if parts == 1:
            return []
        self.parts = parts
        self.partials = Partials(self.kernel, self.reductions, parts * self.columns)
        return [self.partials.parameter]

    def keep(
        self,
        part: FusionEntry,
        emitter: ThreadEmitter,
        totals: Sequence[list[Register]],
        place: Affine,
        number: llvm.Value,
    ) -> None:
        at = of_axis(LoopAxis(number, self.parts, SAME, part.scopes.depth)) * self.columns + place
        self.partials.put(emitter, part.extra[0], at, totals)

    def rest(self, parts: int) -> None:
        """The second launch: partial results joined."""
        busy = self.target.architecture.multiprocessors * rows.BUSY
        cut = columns.choose(at_hint(self.columns), parts, 1, busy, COPIES, False)
        part = self.kernel.entry("join", cut.threads, [self.partials.parameter])
        emitter = part.emitter()
        fold = ColumnCode(part, self.columns, parts, cut)

        def read(reduction: Reduction, kept: Affine, at: Affine, lanes: int) -> list[Register]:
            del lanes
            return self.partials.get(emitter, part.extra[0], at * self.columns + kept, reduction)

        self.conclude(part, emitter, fold, fold.totals(self.reductions, read))
