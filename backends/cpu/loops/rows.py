"""`rows` fusions: reductions over trailing dims with what surrounds them, one row per tile.

A row is worked on in passes: each pass reads the row once and computes all reductions that depend
on earlier passes only; the last passes compute the roots. What costs more to compute again than to
read is kept in scratch between passes. The order of additions depends on the rows' shape and the
machine's description alone, never on how many workers there are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ....hlo.deciding import at_hint, larger, surely_at_most
from ....hlo.graph import Region, Value
from ....hlo.symbols import SymbolicDim
from ....optimizer.cuts.loops import LoopBlocking, LoopPass, LoopShape, likely
from ....optimizer.fusable import outer_rank
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...llvm.elementwise import Mask, Override, splat
from ...llvm.index import CONSECUTIVE, GENERAL, Affine, LoopAxis, delinear, linear, of_axis
from ...llvm.target import KernelCode
from ...plain.frame import (
    Frame,
    computable,
    cost,
    lanes_for,
    read_bytes,
    steps,
    tile_range,
)
from ...plain.monoid import Reduction, flat, unflat
from ...plain.passes import RowPass, cone, plan
from ..codegen import Target
from ..machines import cuts_of
from .work import for_several, operations

MAXIMUM_STRAIGHT = 500  # instructions, roughly, of a short row without loops


class _RowsEmitter:
    def __init__(
        self, region: Region, target: Target, outer: int, cut: LoopBlocking | None = None
    ) -> None:
        self.region, self.target, self.outer = region, target, outer
        self.frame = Frame(target, region.argument_types, region.result_types)
        self.f = self.frame.function
        self.emitter = self.frame.emitter(region)
        self.rows = region.results[0].dims[:outer]
        self.width = lanes_for(target, region)
        self.passes = plan(region, outer, self.straight)
        self.cut = cut or cuts_of(target).of_loop(self.shape)
        if self.cut.lanes != self.width:
            self.width = self.cut.lanes
            self.passes = plan(region, outer, self.straight)
        self.scratch = 0
        self.masks: dict[int, Mask] = {}
        self.lane_axis: dict[int, Affine] = {}
        self.saved: dict[Value, llvm.Value] = {}

    def emit(self, flops: float) -> KernelCode:
        """The whole kernel: a loop over rows, the passes inside."""
        tiles = math.prod(self.rows)
        counts = {math.prod(step.inner) for step in self.passes}
        for count in sorted(count for count in counts if self.straight(count)):
            rest = count % self.lanes(count)
            if rest:
                mask = self.f.tail_mask(llvm.constant("i64", rest), self.lanes(count))
                self.masks[count] = Mask(mask, 0, some=True)
        if any(root.tensor.size == 0 for root in self.region.results):
            tiles = 0
        if tiles:
            with tile_range(self.frame, 0, tiles) as (low, high):
                scopes = self.frame.scopes
                with scopes.loop(low, high, extent=tiles) as (row, _):
                    # Nothing that belongs to one row may move out of the loop over rows.
                    self.emitter.base = scopes.depth
                    self.row = delinear(self.emitter.indexer, row, self.rows, 1)
                    for step in self.passes:
                        self.run(step)
        biggest = max((at_hint(math.prod(step.inner)) for step in self.passes), default=1)
        work = cost(self.region) * biggest * at_hint(tiles) / 8
        return self.frame.finish(tiles, flops, scratch=self.scratch, work=work)

    # Passes.

    @functools.cached_property
    def shape(self) -> LoopShape:
        """What decides how the kernel is cut."""
        region, target = self.region, self.target
        full = lanes_for(target, region)
        saved: set[Value] = set()
        steps = []
        for step in self.passes:
            count = math.prod(step.inner)
            ops = cone(step.targets(region), saved)
            every = {value for op in ops for value in op.operands} | set(step.targets(region))
            loaded = [
                value
                for value in every
                if value.rank > self.outer
                and math.prod(value.dims[self.outer :]) != 1
                and (value.op is None or value in saved)
            ]
            stored = len(step.saves) + len(step.roots)
            work = operations([*ops, *(r.op for r in step.reductions)])
            widths = [1 << bit for bit in range(full.bit_length())]
            straight = frozenset(n for n in widths if self.straight(count, n))
            steps.append(LoopPass(
                likely(count), work, len(loaded) + stored, 0.0, len(step.reductions),
                straight,
            ))  # fmt: skip
            saved.update(step.saves)
        read = sum(read_bytes(value, region) for value in region.arguments)
        written = float(at_hint(sum(root.tensor.bytes for root in region.results)))
        rows = likely(math.prod(self.rows))
        several = for_several(region, rows * max(step.count for step in steps), read + written)
        element = max(root.element.itemsize for root in region.results)
        return LoopShape(
            "rows", rows, tuple(steps), float(read), written, element, full,
            target.vector_registers, target.vector_bits == 512, several,
        )  # fmt: skip

    def straight(self, count: int, width: int | None = None) -> bool:
        """Whether a row is short enough for code without loops, its values staying in registers."""
        if isinstance(count, SymbolicDim):
            return False
        width = self.lanes(count, width)
        vectors = -(-count // width)
        fits = count % width == 0 or target_masks(self.target)
        work = vectors * (2 + cost(self.region))
        return fits and count > 1 and vectors <= 8 and work <= MAXIMUM_STRAIGHT

    def lanes(self, count: int, width: int | None = None) -> int:
        """Lanes for a short row: no more than twice what is needed."""
        width = width or self.width
        while width >= 2 * count and width > 1:
            width //= 2
        return width

    def chunks(self, count: int) -> list[tuple[Affine, Mask | None]]:
        """The vectors of a short row."""
        width = self.lanes(count)
        base = self.lane_axis.get(count)
        if base is None:
            zero = llvm.constant("i64", 0)
            axis = LoopAxis(zero, count, CONSECUTIVE, self.frame.scopes.depth, width)
            base = self.lane_axis[count] = of_axis(axis)
        return [
            (base + place, self.masks[count] if count - place < width else None)
            for place in range(0, count, width)
        ]

    def run(self, step: RowPass) -> None:
        count = math.prod(step.inner)
        for value in step.saves:
            size = -(-count * llvm.bits_of(elements.register_type(value.element)) // 8)
            size = larger(size, count) * (2 if value.element.is_complex else 1)
            size = -(-size // 64) * 64 + 64  # the last vector may read past the end
            self.saved[value] = self.f.pointer(self.frame.scratch, self.scratch, "i8")
            self.scratch += size
        recognised = [r for r in step.reductions if r.single is not None]
        others = [r for r in step.reductions if r.single is None]
        if recognised:
            self.reduce(step, recognised, count)
        for reduction in others:
            self.fold(step, reduction, count)
        if step.roots:
            self.finish(step, count)
        for value in step.saves:
            self.emitter.overrides[value] = self.reload(value, step.inner)

    def index(self, step: RowPass, j: Affine, width: int) -> tuple[Affine, ...]:
        return (*self.row, *delinear(self.emitter.indexer, j, step.inner, width))

    def reduce(self, step: RowPass, reductions: Sequence[Reduction], count: int) -> None:
        """All recognised reductions of a pass, several accumulators each."""
        f, scopes = self.f, self.frame.scopes
        if self.straight(count):
            return self.reduce_straight(step, reductions, count)
        width, hint = self.width, at_hint(count)
        while width > 1 and width > hint:
            width //= 2
        unroll = power_of_two(min(self.cut.accumulators, hint // width))
        start = [r.identity(width) for r in reductions for _ in range(unroll)]
        like = [register for registers in start for register in registers]
        values: list[Register] = like
        stride = width * unroll
        whole = count - count % stride
        if whole:
            lanes = CONSECUTIVE if width > 1 else 0
            with scopes.loop(
                0, whole, stride, flat(like), extent=count, lanes=lanes, multiple=stride
            ) as (j, loop):
                carried = unflat(loop.carried, like)
                updated: list[Register] = list(carried)
                for copy in range(unroll):
                    at = self.index(step, j + copy * width, width)
                    self.save(step, at, width, None)
                    for number, reduction in enumerate(reductions):
                        place = number * unroll + copy
                        read = self.read(reduction, at, width, None)
                        (updated[place],) = reduction.combine(f, [carried[place]], read, width)
                loop.carry(*flat(updated))
            values = unflat(loop.results, like)
        sums = [
            self.joined(reduction, values[n * unroll : (n + 1) * unroll], width)
            for n, reduction in enumerate(reductions)
        ]
        if whole != count:
            sums = self.rest(step, reductions, sums, whole, count, width)
        for reduction, total in zip(reductions, sums, strict=True):
            scalar = reduction.across(f, [total], total_lanes(total))
            self.conclude(reduction, scalar)

    def reduce_straight(self, step: RowPass, reductions: Sequence[Reduction], count: int) -> None:
        """Reductions of a short row: what is read stays known for later passes."""
        width = self.lanes(count)
        for reduction in reductions:
            values: list[Register] = []
            for place, mask in self.chunks(count):
                at = self.index(step, place, width)
                read = self.read(reduction, at, width, mask)
                if mask is not None:
                    read = reduction.masked(self.f, mask.value, read, width)
                values.extend(read)
            total = self.joined(reduction, values, width)
            self.conclude(reduction, reduction.across(self.f, [total], width), False)

    def joined(self, reduction: Reduction, parts: Sequence[Register], width: int) -> Register:
        """Accumulators of one reduction in a fixed tree."""
        values = list(parts)
        while len(values) > 1:
            single = values[len(values) & ~1 :]
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [reduction.combine(self.f, [a], [b], width)[0] for a, b in pairs] + single
        return values[0]

    def rest(
        self,
        step: RowPass,
        reductions: Sequence[Reduction],
        sums: list[Register],
        whole: int,
        count: int,
        width: int,
    ) -> list[Register]:
        """What the main loop leaves: masked vectors, or single elements."""
        f, scopes = self.f, self.frame.scopes
        masks = self.target.vector_bits == 512 and width > 1
        if not masks and width > 1:
            sums = [
                reduction.across(f, [total], width)[0]
                for reduction, total in zip(reductions, sums, strict=True)
            ]
            width = 1
        lanes = CONSECUTIVE if width > 1 else 0
        with scopes.loop(
            whole, count, width, flat(sums), extent=count, lanes=lanes, multiple=width
        ) as (j, loop):
            mask = None
            if masks:
                left = f.sub(f.lift(count, "i64"), loop.index)
                mask = Mask(f.tail_mask(left, width, shifted=True), scopes.depth, some=True)
            carried = unflat(loop.carried, sums)
            at = self.index(step, j, width)
            self.save(step, at, width, mask)
            updated: list[Register] = []
            for reduction, total in zip(reductions, carried, strict=True):
                read = self.read(reduction, at, width, mask)
                if mask is not None:
                    read = reduction.masked(f, mask.value, read, width)
                updated.extend(reduction.combine(f, [total], read, width))
            loop.carry(*flat(updated))
        return unflat(loop.results, sums)

    def fold(self, step: RowPass, reduction: Reduction, count: int) -> None:
        """A reduction with another body: in the order of the elements."""
        f, scopes = self.f, self.frame.scopes
        start = self.initial(reduction)
        first = 0
        if surely_at_most(16 * self.width, count):
            start, first = self.fold_segments(step, reduction, start, count)
        with scopes.loop(first, count, 1, flat(start), extent=count) as (j, loop):
            at = self.index(step, j, 1)
            read = self.read(reduction, at, 1, None)
            loop.carry(*flat(reduction.combine(f, unflat(loop.carried, start), read, 1)))
        self.publish(reduction, unflat(loop.results, start))

    def fold_segments(
        self, step: RowPass, reduction: Reduction, start: list[Register], count: int
    ) -> tuple[list[Register], int]:
        """Each lane folds a segment of neighbours; then the segments are joined in order."""
        f, scopes = self.f, self.frame.scopes
        width = self.width
        length = count // width
        segments = llvm.vector_constant("i32", [lane * length for lane in range(width)])
        axis = LoopAxis(segments, count - length + 1, GENERAL, scopes.depth)

        def read(k: Affine) -> list[Register]:
            at = self.index(step, (of_axis(axis) + k).within(0, count - 1), width)
            return self.read(reduction, at, width, None)

        first = read(Affine((), 0))
        with scopes.loop(1, length, 1, flat(first), extent=length) as (k, loop):
            carried = unflat(loop.carried, first)
            loop.carry(*flat(reduction.combine(f, carried, read(k), width)))
        values = unflat(loop.results, first)
        for lane in range(width):
            part = unflat([f.extract(value, lane) for value in flat(values)], start)
            start = reduction.combine(f, start, part, 1)
        return start, length * width

    # Elements and results.

    def read(
        self, reduction: Reduction, at: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> list[Register]:
        registers = [self.emitter.value(value, at, width, mask) for value in reduction.inputs]
        return reduction.read(self.f, registers)

    def initial(self, reduction: Reduction) -> list[Register]:
        registers = [self.emitter.value(value, (), 1) for value in reduction.initial]
        return [
            register if value.element is element else reduction.read(self.f, [register])[0]
            for register, value, element in zip(
                registers, reduction.initial, reduction.elements, strict=True
            )
        ]

    def conclude(self, reduction: Reduction, scalar: list[Register], started: bool = True) -> None:
        """Joins the initial value and makes the result known; started: at the identity."""
        joined = reduction.is_identity if started else reduction.is_neutral
        if not all(map(joined, reduction.initial)):
            scalar = reduction.combine(self.f, self.initial(reduction), scalar, 1)
        self.publish(reduction, scalar)

    def publish(self, reduction: Reduction, scalar: Sequence[Register]) -> None:
        rounded = reduction.finished(self.f, scalar)
        for result, register in zip(reduction.op.results, rounded, strict=True):
            self.emitter.overrides[result] = self.given(register)

    def given(self, register: Register) -> Override:
        return lambda index, width, mask: splat(self.f, register, width)

    def save(self, step: RowPass, at: tuple[Affine, ...], width: int, mask: Mask | None) -> None:
        """Keeps what later passes need again."""
        for value in step.saves:
            register = self.emitter.value(value, at, width, mask)
            place = linear(at[self.outer :], step.inner)
            for part, raw in enumerate(flat([register])):
                if raw.element == "i1":
                    raw = self.f.cast("zext", raw, "i8")
                base = self.part(value, part, step.inner)
                self.emitter._store(base, raw, raw.element, place, mask)

    def reload(self, value: Value, inner: Sequence[int]) -> Override:
        """Reads a kept value; lanes past the row's end read the padding of the scratch."""
        kind = elements.register_type(value.element)
        raw_kind = "i8" if kind == "i1" else kind
        parts = 2 if value.element.is_complex else 1

        def read(index: Sequence[Affine], width: int, mask: Mask | None) -> Register:
            del mask
            place = linear(index[self.outer :], inner)
            found = []
            for part in range(parts):
                base = self.part(value, part, inner)
                raw = self.emitter._load(base, raw_kind, place, width, None)
                found.append(self.f.compare("ne", raw, 0) if kind == "i1" else raw)
            return elements.Pair(*found) if parts == 2 else found[0]

        return read

    def part(self, value: Value, number: int, inner: Sequence[int]) -> llvm.Value:
        if not number:
            return self.saved[value]
        kind = elements.register_type(value.element)
        return self.f.pointer(self.saved[value], math.prod(inner), kind)

    def finish(self, step: RowPass, count: int) -> None:
        """Computes and stores roots of one shape."""
        roots = [self.region.results[number] for number in step.roots]
        if self.straight(count):
            width = self.lanes(count)
            for place, mask in self.chunks(count):
                self.store(step, roots, self.index(step, place, width), width, mask)
            return
        width, hint = self.width, likely(count)
        if self.target.vector_bits < 512 or count == 1:
            while width > hint:
                width //= 2
        unroll = max(1, min(self.cut.unroll, hint // width))
        for j, lanes, copies, mask in steps(
            self.frame.scopes, self.target, 0, count, count, width, unroll
        ):
            for copy in range(copies):
                self.store(step, roots, self.index(step, j + copy * lanes, lanes), lanes, mask)

    def store(
        self,
        step: RowPass,
        roots: Sequence[Value],
        at: tuple[Affine, ...],
        width: int,
        mask: Mask | None,
    ) -> None:
        registers = [self.emitter.value(root, at, width, mask) for root in roots]
        for number, root, register in zip(step.roots, roots, registers, strict=True):
            place = linear(at, root.dims)
            pointer = self.frame.outputs[number]
            self.emitter.store(pointer, register, root.element, place, width, mask)


def power_of_two(limit: int) -> int:
    """The largest power of two up to the limit, at least 1."""
    return 1 << max(0, limit.bit_length() - 1)


def target_masks(target: Target) -> bool:
    """Whether single lanes can be loaded and stored."""
    return target.vector_bits == 512


def total_lanes(register: Register) -> int:
    return flat([register])[0].lanes


def takes(region: Region) -> bool:
    """Whether `emit` has a kernel for the region of a `rows` fusion."""
    empty = any(math.prod(op.operands[0].dims) == 0 for op in region.ops if op.operands)
    return outer_rank(region) is not None and not empty and computable(region)


def shape_of(region: Region, target: Target) -> LoopShape:
    """What decides how the kernel is cut."""
    outer = outer_rank(region)
    assert outer is not None
    return _RowsEmitter(region, target, outer).shape


def emit(
    region: Region, target: Target, flops: float, cut: LoopBlocking | None = None
) -> KernelCode:
    """The kernel of a `rows` fusion's region that it takes. `cut`: how many lanes, and vectors of a
    turn."""
    outer = outer_rank(region)
    assert outer is not None
    return _RowsEmitter(region, target, outer, cut).emit(flops)
