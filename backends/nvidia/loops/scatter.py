"""scatter: updates of one place are applied in their order, those of different places at once.

The places that the indices give are sorted with their positions; then, for each place and element
of the window, one thread applies all its updates. So any body is right, with the bits of a
sequential run. Windows must not overlap unless they are the same: scattered dims have windows of
one element.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

from ....hlo.graph import Op
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Register
from ...llvm.elementwise import scalar_region
from ...llvm.index import ZERO, Affine, LoopAxis, delinear, linear, of_axis
from ...plain.monoid import flat, unflat
from ...plain.opaque.scatter import pinned, place_of, windowed_dims
from ...plain.single import as_region
from ..atoms import ACCESS_BYTES
from ..frame import GRID, Parameter, blocks
from ..launch import KernelCode
from ..target import NvidiaTarget
from .head import FusionEntry, FusionKernel, nothing
from .sort import FLAT, Record, Segments, Store, merge_launches, sort_segments

_OUTSIDE = 2**32 - 1  # the place of updates that are left out
_KINDS = ["i64"]  # of a record: the place above the position


class _Places:
    """Records of places are different, so their order is that of the numbers."""

    def __init__(self, part: FusionEntry) -> None:
        self.f = part.function

    def before(self, line: llvm.Value, other: Record, own: Record, left: llvm.Value) -> llvm.Value:
        return self.f.compare("ult", other[0], own[0])


def refusal(op: Op, target: NvidiaTarget) -> str:
    """Why a scatter has no kernel here, "" if it has one."""
    if not op.results[0].tensor.size:
        return ""
    updates = op.operands[len(op.operands) // 2 + 1]
    lines = [n for d, n in enumerate(updates.dims) if d not in op.update_window_dims]
    moved = set(op.scatter_dims_to_operand_dims) - set(op.inserted_window_dims)
    if moved and math.prod(lines) > 1:
        return "windows that may overlap in part"
    if op.operands[0].tensor.size >= _OUTSIDE or updates.tensor.size > GRID:
        return "more elements than 32 bits count"
    return ""


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a scatter."""
    region = as_region(op)
    if not op.results[0].tensor.size:
        return nothing(region, target, 0.0)
    return _Scatter(region.ops[0], FusionKernel(region, target)).emit()


class _Scatter:
    def __init__(self, op: Op, kernel: FusionKernel) -> None:
        self.op, self.kernel = op, kernel
        count = len(op.operands) // 2
        self.inputs, self.updates = op.operands[:count], op.operands[count + 1 :]
        self.first_update = count + 1
        dims = self.updates[0].dims
        self.scattered = [d for d in range(len(dims)) if d not in op.update_window_dims]
        self.lines = [dims[d] for d in self.scattered]
        self.window = [dims[d] for d in op.update_window_dims]
        self.count, self.size = math.prod(self.lines), math.prod(self.window)

    def emit(self) -> KernelCode:
        self.copy()
        if self.count * self.size:
            if self.count > 1:
                self.apply(self.sorted())
            else:
                self.window_alone()
        return self.kernel.finish(self.op.definition.flops(self.op))

    def copy(self) -> None:
        """The inputs become the results, unless they are one piece of memory."""
        part = self.kernel.entry("copy", FLAT)
        f = part.function
        number = f.add(
            f.mul(f.cast("zext", part.block, "i64"), FLAT), f.cast("zext", part.thread, "i64")
        )
        most = 0
        for value, source, target in zip(self.inputs, part.pointers, part.outputs, strict=False):
            size = value.tensor.bytes
            whole, rest = divmod(size, ACCESS_BYTES)
            most = max(most, whole, rest)
            with f.if_then(f.compare("ne", source, target)):
                for count, kind, first, align in (
                    (whole, "<4 x i32>", 0, ACCESS_BYTES), (rest, "i8", size - rest, 1),
                ):  # fmt: skip
                    if count:
                        with f.if_then(f.compare("ult", number, count)):
                            at = f.add(f.mul(number, align), first)
                            read = f.load(kind, f.pointer(source, at, "i8"), align=align)
                            f.store(read, f.pointer(target, at, "i8"), align=align)
        part.finish(blocks(most, FLAT))

    # Places.

    def index(self, line: Affine, window: Affine) -> tuple[Affine, ...]:
        """The index of an update's element."""
        emitter = self.emitter
        at = [ZERO] * self.updates[0].rank
        for d, one in zip(
            self.scattered, delinear(emitter.indexer, line, self.lines, 1), strict=True
        ):
            at[d] = one
        inner = delinear(emitter.indexer, window, self.window, 1)
        for d, one in zip(self.op.update_window_dims, inner, strict=True):
            at[d] = one
        return tuple(at)

    def sorted(self) -> list[Parameter]:
        """Launches that sort the places; where they lie then."""
        kernel, segments = self.kernel, Segments(1, self.count)
        buffers = [[kernel.scratch_memory(8 * self.count)]]
        if segments.parts > 1:
            buffers.append([kernel.scratch_memory(8 * self.count)])
        part = kernel.entry("places", segments.threads, buffers[0])
        f, scopes = part.function, part.scopes
        self.emitter = part.emitter()

        def source(_: llvm.Value, position: llvm.Value) -> Record:
            line = of_axis(LoopAxis(position, self.count, depth=scopes.depth))
            at = self.index(line, ZERO)
            place, inside = place_of(self.emitter, self.op, at, 1)
            if inside is False:
                key = llvm.constant("i64", _OUTSIDE)
            else:
                key = self.emitter.indexer.scalar(linear(place, self.inputs[0].dims))
                if inside is not None:
                    key = f.select(inside.value, key, _OUTSIDE)
            return [f.lor(f.shl(key, 32), f.cast("zext", position, "i64"))]

        def sink(_: llvm.Value, place: llvm.Value, record: Record) -> None:
            Store(f, _KINDS, part.extra).put(place, record)

        order = _Places(part)
        sort_segments(part, order, segments, _KINDS, source, sink, self.count)
        part.finish(segments.blocks)
        if segments.parts == 1:
            return buffers[0]
        return merge_launches(kernel, _KINDS, buffers, 1, self.count, _Places, None)

    # Updates.

    def apply(self, places: list[Parameter]) -> None:
        """A thread per place and element of the window, all of whose updates are its."""
        op, part = self.op, self.kernel.entry("scatter", FLAT, places)
        f, scopes = part.function, part.scopes
        self.emitter = emitter = part.emitter()
        records = Store(f, _KINDS, part.extra)
        item = f.add(f.mul(part.block, FLAT), part.thread)
        with scopes.branch(f.compare("ult", item, self.count * self.size)):
            slot = f.udiv(item, self.size)
            within = f.sub(item, f.mul(slot, self.size))
            (record,) = records.get(slot)
            key = f.lshr(record, 32)
            (ahead,) = records.get(f.max(f.sub(slot, 1), 0))
            fresh = f.lor(f.compare("eq", slot, 0), f.compare("ne", f.lshr(ahead, 32), key))
            with scopes.branch(f.land(fresh, f.compare("ne", key, _OUTSIDE))):
                window = of_axis(LoopAxis(within, self.size, depth=scopes.depth))
                offset = of_axis(LoopAxis(key, self.inputs[0].tensor.size, depth=scopes.depth))
                inner = delinear(emitter.indexer, window, self.window, 1)
                for d, one in zip(windowed_dims(op), inner, strict=True):
                    offset = offset + one * math.prod(self.inputs[0].dims[d + 1 :])
                values = [
                    emitter.load(pointer, result.element, offset)
                    for pointer, result in zip(part.outputs, op.results, strict=True)
                ]
                end = self.run_end(records, slot, key)
                with scopes.loop(slot, end, 1, flat(values), extent=self.count) as (_, loop):
                    carried = unflat(loop.carried, values)
                    (one,) = records.get(loop.index)
                    position = f.cast("trunc", one, "i32")
                    line = of_axis(LoopAxis(position, self.count, depth=scopes.depth))
                    at = self.index(line, window)
                    loop.carry(*flat(self.combined(carried, at)))
                values = unflat(loop.results, values)
                for pointer, result, value in zip(part.outputs, op.results, values, strict=True):
                    emitter.store(pointer, value, result.element, offset)
        part.finish(blocks(self.count * self.size, FLAT))

    def window_alone(self) -> None:
        """One window, wherever it lies: a thread per element."""
        op, part = self.op, self.kernel.entry("scatter", FLAT)
        f, scopes = part.function, part.scopes
        self.emitter = emitter = part.emitter()
        item = f.add(f.mul(part.block, FLAT), part.thread)
        with scopes.branch(f.compare("ult", item, self.size)):
            at = self.index(ZERO, of_axis(LoopAxis(item, self.size, depth=scopes.depth)))
            place, inside = place_of(emitter, op, at, 1)
            if inside is not False:
                with scopes.branch(inside.value) if inside is not None else nullcontext():
                    offset = linear(pinned(place, scopes.depth, emitter), self.inputs[0].dims)
                    values: list[Register] = [
                        emitter.load(pointer, result.element, offset)
                        for pointer, result in zip(part.outputs, op.results, strict=True)
                    ]
                    values = self.combined(values, at)
                    for pointer, result, value in zip(
                        part.outputs, op.results, values, strict=True
                    ):
                        emitter.store(pointer, value, result.element, offset)
        part.finish(blocks(self.size, FLAT))

    def run_end(self, records: Store, slot: llvm.Value, key: llvm.Value) -> llvm.Value:
        """Behind the last record of the place whose first is at `slot`."""
        f = records.f
        steps = self.count.bit_length()
        zero = llvm.constant("i32", 0)
        step = llvm.constant("i32", 1 << (steps - 1))
        with f.for_range(zero, llvm.constant("i32", steps), 1, [slot, step]) as loop:
            at, step = loop.carried
            further = f.add(at, step)
            inside = f.compare("ult", further, self.count)
            (record,) = records.get(f.select(inside, further, at))
            same = f.land(inside, f.compare("eq", f.lshr(record, 32), key))
            loop.carry(f.select(same, further, at), f.lshr(step, 1))
        return f.add(loop.results[0], 1)

    def combined(self, old: list[Register], at: tuple[Affine, ...]) -> list[Register]:
        """The body's results for what is there and one update."""
        f, op, body = self.emitter.function, self.op, self.op.regions[0]
        new = [self.emitter.value(value, at) for value in self.updates]
        kinds = [argument.element for argument in body.arguments]
        owners = [*op.results, *self.updates]
        given = [
            arithmetic.convert(f, register, value.element, kind)
            for register, value, kind in zip([*old, *new], owners, kinds, strict=True)
        ]
        found = scalar_region(f, body, given, 1)
        return [
            elements.rounded(f, one, result.element) if isinstance(one, llvm.Value) else one
            for one, result in zip(found, op.results, strict=True)
        ]
