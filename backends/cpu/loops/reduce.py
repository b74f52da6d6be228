"""`reduce` fusions: one pass over the inputs, any dims reduced, producers computed on the fly.

Kept dims are the tiles. If the last dim is kept, lanes run along it and the reduced dims are loops
inside; if it is reduced, lanes are partial results of it, joined in a fixed tree at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ....hlo.deciding import at_hint
from ....hlo.graph import Region
from ....optimizer.cuts.loops import LoopBlocking, LoopPass, LoopShape, likely
from ... import llvm
from ...llvm.elements import Register
from ...llvm.elementwise import Mask
from ...llvm.index import CONSECUTIVE, SAME, Affine, LoopAxis, delinear, linear, of_axis
from ...llvm.target import KernelCode
from ...plain.frame import Frame, computable, cost, lanes_for, read_bytes, tile_range
from ...plain.monoid import Reduction, flat, nested, spread, unflat
from ...plain.probe import collapse, probe
from ..codegen import Target
from ..machines import cuts_of
from .work import for_several, operations

LONG = 1024  # terms that one accumulator of a long sum takes before it is added to the others


def takes(region: Region) -> bool:
    """Whether `emit` has a kernel for the region of a `reduce` fusion: reductions of one shape, no
    operations after."""
    reductions = _reductions(region)
    roots = {result for r in reductions for result in r.op.results}
    shapes = {(r.inputs[0].dims, tuple(sorted(r.op.dimensions))) for r in reductions}
    simple = len(shapes) == 1 and set(region.results) <= roots
    return simple and not nested(reductions) and computable(region)


def emit(
    region: Region, target: Target, flops: float, cut: LoopBlocking | None = None
) -> KernelCode:
    """The kernel of a `reduce` fusion's region that it takes. `cut` says how many lanes and
    accumulators; None: as is predicted best."""
    return _ReduceEmitter(region, target, _reductions(region), cut).emit(flops)


def shape_of(region: Region, target: Target) -> LoopShape:
    """What decides how the kernel is cut."""
    return _ReduceEmitter(region, target, _reductions(region)).shape


def _reductions(region: Region) -> list[Reduction]:
    return [Reduction(op) for op in region.ops if op.name == "reduce"]


class _ReduceEmitter:
    def __init__(
        self,
        region: Region,
        target: Target,
        reductions: list[Reduction],
        cut: LoopBlocking | None = None,
    ) -> None:
        self.region, self.target, self.reductions = region, target, reductions
        self.frame = Frame(target, region.argument_types, region.result_types)
        self.f = self.frame.function
        self.emitter = self.frame.emitter(region)
        self.dims = reductions[0].inputs[0].dims
        self.reduced = frozenset(reductions[0].op.dimensions)
        inputs = [value for r in reductions for value in r.inputs]
        body = Region(region.arguments, region.ops, inputs)
        found = probe(body, (0,) * len(self.dims), self.dims)
        groups = collapse(self.dims, found)
        self.groups = [part for group in groups for part in self.split(group)]
        self.loads = dict.fromkeys(found.loads)
        self.given = cut

    @functools.cached_property
    def cut(self) -> LoopBlocking:
        """How a kernel that reads anything is cut."""
        return self.given or cuts_of(self.target).of_loop(self.shape)

    @property
    def along(self) -> bool:
        """Whether lanes run along a kept dim."""
        last = self.groups[-1] if self.groups else ()
        return bool(last) and not self.kind(last) and self.extent(last) != 1

    @property
    def shape(self) -> LoopShape:
        """What decides how the kernel is cut."""
        region, target = self.region, self.target
        last = next((g for g in reversed(self.groups) if self.kind(g) != self.along), [])
        inner, size = likely(self.extent(last)), likely(math.prod(self.dims))
        kept = likely(math.prod(d for n, d in enumerate(self.dims) if n not in self.reduced))
        moved = gathered = 0.0
        for load in self.loads:
            stride = load.row[last[-1]] if last else 0
            moved += stride in (1, -1)
            gathered += stride not in (0, 1, -1) or not (stride or load.plain)
        one = LoopPass(inner, operations(region.ops), moved, gathered, len(self.reductions))
        read = sum(read_bytes(value, region) for value in region.arguments)
        written = float(at_hint(sum(root.tensor.bytes for root in region.results)))
        several = for_several(region, size, read + written)
        element = max((value.element.itemsize for value in region.arguments), default=1)
        along = self.along
        return LoopShape(
            "columns" if along else "lines", max(1, (kept if along else size) // inner), (one,),
            float(read), written, element, lanes_for(target, region), target.vector_registers,
            target.vector_bits == 512, several, max(1, size // kept),
        )  # fmt: skip

    def split(self, group: list[int]) -> list[list[int]]:
        """A group of dims cut where kept and reduced dims meet; dims of size 1 go anywhere."""
        parts: list[list[int]] = []
        for dim in group:
            if parts and self.kind(parts[-1]) == (dim in self.reduced):
                parts[-1].append(dim)
            else:
                parts.append([dim])
        return parts

    def kind(self, group: Sequence[int]) -> bool:
        """Whether a group is reduced."""
        return bool(group) and group[0] in self.reduced

    def extent(self, group: Sequence[int]) -> int:
        return math.prod(self.dims[d] for d in group)

    def emit(self, flops: float) -> KernelCode:
        size = math.prod(self.dims)
        kept = math.prod(d for n, d in enumerate(self.dims) if n not in self.reduced)
        work = cost(self.region) * at_hint(size) / 8
        if kept == 0:
            return self.frame.finish(0, flops)
        if size == 0:
            return self.frame.finish(self.initial_only(kept), flops)
        if self.along:
            tiles = self.columns()
        else:
            tiles = self.lines()
        return self.frame.finish(tiles, flops, work=work)

    # Index of an input element from positions in each group.

    def index(self, positions: Sequence[Affine], width: int) -> tuple[Affine, ...]:
        at: list[Affine] = []
        for group, position in zip(self.groups, positions, strict=True):
            sizes = [self.dims[d] for d in group]
            at.extend(delinear(self.emitter.indexer, position, sizes, width))
        return tuple(at)

    def result_index(self, at: Sequence[Affine]) -> tuple[Affine, ...]:
        return tuple(one for d, one in enumerate(at) if d not in self.reduced)

    def nest(
        self,
        like: Sequence[Register],
        groups: Sequence[int],
        body: Callable[[dict[int, Affine], list[Register]], list[Register]],
    ) -> list[Register]:
        """Loops over the given groups with accumulators carried through all of them."""
        scopes = self.frame.scopes

        def level(
            position: int, places: dict[int, Affine], values: list[Register]
        ) -> list[Register]:
            if position == len(groups):
                return body(places, values)
            number = groups[position]
            extent = self.extent(self.groups[number])
            with scopes.loop(0, extent, 1, flat(values), extent=extent) as (at, loop):
                carried = unflat(loop.carried, values)
                loop.carry(*flat(level(position + 1, {**places, number: at}, carried)))
            return unflat(loop.results, values)

        return level(0, {}, list(like))

    def start(self, reduction: Reduction, width: int) -> list[Register]:
        """The first accumulator: the identity, or the initial values of an ordered body."""
        if reduction.single is not None:
            return reduction.identity(width)
        return spread(self.f, self.initial(reduction), width)

    def initial(self, reduction: Reduction) -> list[Register]:
        registers = [self.emitter.value(value, (), 1) for value in reduction.initial]
        return reduction.read(self.f, registers)

    def read(
        self, reduction: Reduction, at: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> list[Register]:
        registers = [self.emitter.value(value, at, width, mask) for value in reduction.inputs]
        return reduction.read(self.f, registers)

    def store(
        self,
        reduction: Reduction,
        values: list[Register],
        at: tuple[Affine, ...],
        width: int,
        mask: Mask | None,
    ) -> None:
        identity = all(map(reduction.is_identity, reduction.initial))
        if reduction.single is not None and not identity:
            first = spread(self.f, self.initial(reduction), width)
            values = reduction.combine(self.f, first, values, width)
        values = reduction.finished(self.f, values)
        place = self.result_index(at)
        for result, register in zip(reduction.op.results, values, strict=True):
            for number, root in enumerate(self.region.results):
                if root is result:
                    offset = linear(place, root.dims)
                    pointer = self.frame.outputs[number]
                    self.emitter.store(pointer, register, root.element, offset, width, mask)

    def initial_only(self, kept: int) -> int:
        """Results of reducing nothing."""
        with (
            tile_range(self.frame, 0, kept) as (low, high),
            self.frame.scopes.loop(low, high, extent=kept) as (at, _),
        ):
            for reduction in self.reductions:
                values = reduction.finished(self.f, self.initial(reduction))
                for result, register in zip(reduction.op.results, values, strict=True):
                    for number, root in enumerate(self.region.results):
                        if root is result:
                            pointer = self.frame.outputs[number]
                            self.emitter.store(pointer, register, root.element, at)
        return kept

    # Lanes along a kept dimension.

    def columns(self) -> int:
        """Tiles of some vectors of the last group, per position of the other kept ones."""
        f, scopes = self.f, self.frame.scopes
        inner = self.extent(self.groups[-1])
        outer = [n for n, g in enumerate(self.groups[:-1]) if not self.kind(g)]
        inside = [n for n, g in enumerate(self.groups[:-1]) if self.kind(g)]
        rows = math.prod(self.extent(self.groups[n]) for n in outer)
        width = self.cut.lanes
        masks = self.target.vector_bits == 512
        hint = at_hint(inner)
        while width > 1 and width > hint and not (masks and hint > 1 and width < 2 * hint):
            width //= 2
        copies = max(1, min(self.cut.accumulators, hint // width))
        wide = inner // (width * copies)
        rest_start = wide * width * copies
        rest_width = width if masks and width > 1 else 1
        rest = -(-(inner - rest_start) // rest_width)
        tiles = rows * (wide + rest)
        with (
            tile_range(self.frame, 0, tiles) as (low, high),
            scopes.loop(low, high, extent=tiles) as (_, loop),
        ):
            row = f.udiv(loop.index, wide + rest)
            block = f.sub(loop.index, f.mul(row, wide + rest))
            place = of_axis(LoopAxis(row, rows, SAME, scopes.depth))
            extents = [self.extent(self.groups[n]) for n in outer]
            positions = delinear(self.emitter.indexer, place, extents, 1)
            kept = dict(zip(outer, positions, strict=True))
            with ExitStack() as stack:
                if wide:
                    if rest:
                        stack.enter_context(scopes.branch(f.compare("slt", block, wide)))
                    stride = width * copies
                    begin = f.mul(block, stride)
                    lanes = CONSECUTIVE if width > 1 else SAME
                    at = of_axis(LoopAxis(begin, inner, lanes, scopes.depth, stride))
                    self.column(kept, inside, at, width, copies, None)
            if rest:
                with ExitStack() as stack:
                    if wide:
                        stack.enter_context(scopes.branch(f.compare("sge", block, wide)))
                    begin = f.add(f.mul(f.sub(block, wide), rest_width), rest_start)
                    lanes = CONSECUTIVE if rest_width > 1 else SAME
                    at = of_axis(LoopAxis(begin, inner, lanes, scopes.depth, rest_width))
                    mask = None
                    if rest_width > 1:
                        left = f.sub(f.lift(inner, "i64"), begin)
                        mask = Mask(f.tail_mask(left, rest_width), scopes.depth, some=True)
                    self.column(kept, inside, at, rest_width, 1, mask)
        return tiles

    def column(
        self,
        kept: dict[int, Affine],
        inside: Sequence[int],
        at: Affine,
        width: int,
        copies: int,
        mask: Mask | None,
    ) -> None:
        """All reduced elements of some vectors of columns."""
        last = len(self.groups) - 1
        starts = [[self.start(r, width) for _ in range(copies)] for r in self.reductions]
        like = [one for copy in starts for registers in copy for one in registers]

        def body(places: dict[int, Affine], values: list[Register]) -> list[Register]:
            source = iter(values)
            updated: list[Register] = []
            for reduction, copied in zip(self.reductions, starts, strict=True):
                for copy, registers in enumerate(copied):
                    total = [next(source) for _ in registers]
                    full = {**kept, **places, last: at + copy * width}
                    index = self.index([full[n] for n in range(last + 1)], width)
                    read = self.read(reduction, index, width, mask)
                    updated.extend(reduction.combine(self.f, total, read, width))
            return updated

        source = iter(self.nest(like, inside, body))
        zero = {n: Affine((), 0) for n in inside}
        for reduction, copied in zip(self.reductions, starts, strict=True):
            for copy, registers in enumerate(copied):
                total = [next(source) for _ in registers]
                full = {**kept, **zero, last: at + copy * width}
                index = self.index([full[n] for n in range(last + 1)], width)
                self.store(reduction, total, index, width, mask)

    # Lanes along the last reduced dimension.

    def lines(self) -> int:
        """One tile per kept element."""
        scopes = self.frame.scopes
        outer = [n for n, g in enumerate(self.groups) if not self.kind(g)]
        inside = [n for n, g in enumerate(self.groups) if self.kind(g)]
        tiles = math.prod(self.extent(self.groups[n]) for n in outer)
        with (
            tile_range(self.frame, 0, tiles) as (low, high),
            scopes.loop(low, high, extent=tiles) as (place, _),
        ):
            self.emitter.base = scopes.depth
            extents = [self.extent(self.groups[n]) for n in outer]
            kept = dict(zip(outer, delinear(self.emitter.indexer, place, extents, 1), strict=True))
            for reduction in self.reductions:
                values = self.line(reduction, kept, inside)
                zero = {n: Affine((), 0) for n in inside}
                full = {**kept, **zero}
                index = self.index([full[n] for n in range(len(self.groups))], 1)
                self.store(reduction, values, index, 1, None)
        return tiles

    def line(
        self, reduction: Reduction, kept: dict[int, Affine], inside: Sequence[int]
    ) -> list[Register]:
        """The reduction of one kept element."""
        f = self.f
        if reduction.single is None or not inside:

            def one(places: dict[int, Affine], values: list[Register]) -> list[Register]:
                full = {**kept, **places}
                index = self.index([full[n] for n in range(len(self.groups))], 1)
                return reduction.combine(f, values, self.read(reduction, index, 1, None), 1)

            return self.nest(self.start(reduction, 1), inside, one)
        *loops, last = inside
        extent = self.extent(self.groups[last])
        width = self.cut.lanes
        hint = at_hint(extent)
        while width > 1 and width > hint:
            width //= 2
        copies = 1
        while copies < self.cut.accumulators and 2 * copies * width <= hint:
            copies *= 2
        start = [reduction.identity(width)[0] for _ in range(copies)]
        scalar = reduction.identity(1)

        def body(places: dict[int, Affine], values: list[Register]) -> list[Register]:
            return self.run(reduction, {**kept, **places}, last, values, width, copies)

        *vectors, single = self.nest([*start, *scalar], loops, body)
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [reduction.combine(f, [a], [b], width)[0] for a, b in pairs]
        total = reduction.across(f, vectors, width)
        return reduction.combine(f, total, [single], 1)

    def run(
        self,
        reduction: Reduction,
        places: dict[int, Affine],
        last: int,
        values: list[Register],
        width: int,
        copies: int,
    ) -> list[Register]:
        """One stretch of the last reduced group: vectors, then what is left one by one."""
        f, scopes = self.f, self.frame.scopes
        extent = self.extent(self.groups[last])
        stride = width * copies
        whole = extent - extent % stride
        *vectors, single = values

        def step(at: Affine, total: Register, lanes: int) -> Register:
            full = {**places, last: at}
            index = self.index([full[n] for n in range(len(self.groups))], lanes)
            read = self.read(reduction, index, lanes, None)
            return reduction.combine(f, [total], read, lanes)[0]

        lanes = CONSECUTIVE if width > 1 else SAME

        def stretch(
            begin: llvm.Operand, end: llvm.Operand, parts: list[Register]
        ) -> list[Register]:
            with scopes.loop(
                begin, end, stride, flat(parts), extent=extent, lanes=lanes, multiple=stride
            ) as (at, loop):
                carried = unflat(loop.carried, parts)
                loop.carry(
                    *flat([step(at + n * width, total, width) for n, total in enumerate(carried)])
                )
            return unflat(loop.results, parts)

        if not isinstance(whole, int) or whole > LONG * stride:
            # Long sums of sums of stretches: roundings grow with the number of either alone.
            with scopes.loop(0, whole, LONG * stride, flat(vectors), extent=extent) as (_, loop):
                carried = unflat(loop.carried, vectors)
                end = f.min(f.add(loop.index, LONG * stride), whole)
                fresh = [reduction.identity(width)[0] for _ in carried]
                parts = stretch(loop.index, end, fresh)
                pairs = zip(carried, parts, strict=True)
                loop.carry(*flat([reduction.combine(f, [a], [b], width)[0] for a, b in pairs]))
            vectors = unflat(loop.results, vectors)
        else:
            vectors = stretch(0, whole, vectors)
        if whole != extent:
            with scopes.loop(whole, extent, 1, flat([single]), extent=extent) as (at, loop):
                (total,) = unflat(loop.carried, [single])
                loop.carry(*flat([step(at, total, 1)]))
            (single,) = unflat(loop.results, [single])
        return [*vectors, single]
