"""fft: axis after axis, several lines at once, in f64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ....hlo.deciding import at_hint, surely_at_most
from ....hlo.graph import Op
from ....hlo.symbols import SymbolicDim, maximum
from ... import llvm
from ...llvm.elements import Pair
from ...llvm.elementwise import ElementEmitter
from ...llvm.index import Affine, LoopAxis, of_axis
from ...llvm.target import KernelCode, Target
from ..frame import tile_range
from .frame import frame_of
from .open_transform import transform, work_length
from .transform import Planes

Read = Callable[[llvm.Value], Pair]
Write = Callable[[llvm.Value, Pair], None]


def emit(op: Op, target: Target) -> KernelCode:
    """A tile transforms some elements of the batch, so many that there are lines for a vector."""
    if not op.type.size or not op.operands[0].tensor.size:
        return frame_of(op, target)[0].finish(0, 0.0)
    return _Fft(op, target).emit()


class _Fft:
    def __init__(self, op: Op, target: Target) -> None:
        self.op = op
        self.frame, self.emitter = frame_of(op, target)
        self.f = self.frame.function
        self.lengths = tuple(op.fft_length)
        source, result, rank = op.operands[0], op.result, len(self.lengths)
        self.before = source.dims[source.rank - rank :]
        self.after = result.dims[result.rank - rank :]
        self.batch = math.prod(source.dims[: source.rank - rank])
        self.lanes = target.lanes("double")
        likely = [at_hint(n) for n in self.lengths]
        fewest = min(math.prod(likely) // max(1, n) for n in likely) or 1
        self.group = -(-self.lanes // fewest)  # elements of the batch in a tile
        if not isinstance(self.batch, SymbolicDim):
            self.group = min(self.batch, self.group)
        self.scratch = 0

    def reserve(self, size: int) -> Planes:
        place = self.f.pointer(self.frame.scratch, self.scratch, "i8")
        self.scratch += -(-16 * size // 64) * 64
        return Planes(place, size)

    def emit(self) -> KernelCode:
        f, frame, scopes = self.f, self.frame, self.frame.scopes
        group, batch, buffers = self.group, self.batch, self.buffers()
        tiles = -(-batch // group)
        with (
            tile_range(frame, 0, tiles) as (low, high),
            scopes.loop(low, high, extent=tiles) as (_, loop),
        ):
            # The last tile begins early enough to be whole: results are the same twice.
            if surely_at_most(group, batch):
                self.elements(f.min(f.mul(loop.index, group), batch - group), buffers)
            else:  # one by one where the call has fewer
                with scopes.branch(f.compare("sge", f.constant("i64", batch), group)):
                    self.elements(f.min(f.mul(loop.index, group), batch - group), buffers)
                self.group, before, self.scratch = 1, self.scratch, 0
                buffers = self.buffers()
                with (
                    scopes.branch(f.compare("slt", f.constant("i64", batch), group)),
                    scopes.loop(0, batch, extent=batch) as (_, each),
                ):
                    self.elements(each.index, buffers)
                self.scratch = maximum(before, self.scratch)
        work = self.op.definition.flops(self.op)
        return frame.finish(tiles, work, scratch=self.scratch, work=work)

    def buffers(self) -> list[Planes]:
        """Where results of axes lie that others follow."""
        sizes = [math.prod(dims) * self.group for dims in (self.before, self.after, self.lengths)]
        return [self.reserve(maximum(*sizes)) for _ in range(min(len(self.lengths) - 1, 2))]

    def elements(self, first: llvm.Value, buffers: Sequence[Planes]) -> None:
        """Transforms a group of elements of the batch, axis after axis."""
        f, rank = self.f, len(self.lengths)
        inverse = self.op.fft_type in ("IFFT", "IRFFT")
        # Real results come from the last axis at the end, real inputs go through it first.
        order = list(range(rank)) if self.op.fft_type == "IRFFT" else list(range(rank))[::-1]
        read = self.reader(f.mul(first, math.prod(self.before)))
        dims = list(self.before)
        for number, axis in enumerate(order):
            made = list(dims)
            made[axis] = self.after[axis]
            if number == rank - 1:
                write = self.writer(f.mul(first, math.prod(self.after)))
                following = read
            else:
                buffer = buffers[number % 2]
                write, following = _stores(f, buffer), _loads(f, buffer)
            self.axis(read, write, dims, axis, made[axis], inverse)
            read, dims = following, made

    def axis(
        self, read: Read, write: Write, dims: list[int], axis: int, made: int, inverse: bool
    ) -> None:
        """All lines along one axis of the group, of which the first `made` outputs are kept."""
        f, have, length = self.f, dims[axis], self.lengths[axis]
        inner = math.prod(dims[axis + 1 :])
        count = self.group * math.prod(dims[:axis]) * inner
        lines = self.lanes if surely_at_most(self.lanes, count) else 1
        size = work_length(length) * lines
        data, spare = self.reserve(size), self.reserve(size)
        scale = self.share(length) if inverse else 1.0
        # Where lines lie beside each other, their entries are met in the order of memory.
        together = inner % lines == 0
        with f.for_range(0, -(-count // lines)) as group:
            start = f.min(f.mul(group.index, lines), count - lines)
            with self.entries(start, lines, inner, have, length, together) as (base, k, place):
                data.store(f, place, self.mirrored(read, base, k, inner, have, length))
            found = transform(
                f, length, lines, self.lanes, data, spare, 1 if inverse else -1, self.reserve
            )
            with self.entries(start, lines, inner, made, made, together) as (base, k, place):
                value = Pair(*(f.mul(part, scale) for part in found.load(f, place)))
                write(f.add(base, f.mul(k, inner)), value)

    def share(self, length: int) -> llvm.Operand:
        """1 / length"""
        if not isinstance(length, SymbolicDim):
            return 1.0 / length
        number = self.f.cast("sitofp", self.f.constant("i64", length), "double")
        return self.f.div(llvm.constant("double", 1.0), number)

    @contextmanager
    def entries(
        self,
        start: llvm.Value,
        lines: int,
        inner: int,
        stored: int,
        used: int,
        together: bool,
    ) -> Iterator[tuple[llvm.Value, llvm.Value, llvm.Value]]:
        """For each line from `start` on and each of its `used` entries: where the line begins among
        lines of `stored` entries, the entry's number, and its place side by side."""
        f = self.f

        def base(number: llvm.Value) -> llvm.Value:
            outer = f.udiv(number, inner)
            within = f.sub(number, f.mul(outer, inner))
            return f.add(f.mul(outer, stored * inner), within)

        if together:
            first = base(start)
            with f.for_range(0, used) as k, f.for_range(0, lines) as line:
                place = f.add(f.mul(k.index, lines), line.index)
                yield f.add(first, line.index), k.index, place
        else:
            with f.for_range(0, lines) as line:
                begin = base(f.add(start, line.index))
                with f.for_range(0, used) as k:
                    yield begin, k.index, f.add(f.mul(k.index, lines), line.index)

    def mirrored(
        self, read: Read, base: llvm.Value, k: llvm.Value, inner: int, have: int, length: int
    ) -> Pair:
        """Entry k of a line; beyond half a spectrum, the conjugate of its mirror image."""
        f = self.f
        if have == length:
            return read(f.add(base, f.mul(k, inner)))
        flip = f.compare("sge", k, have)
        place = f.select(flip, f.sub(length, k), k)
        value = read(f.add(base, f.mul(place, inner)))
        return Pair(value.real, f.select(flip, f.neg(value.imaginary), value.imaginary))

    def reader(self, offset: llvm.Value) -> Read:
        """Elements of the operand as f64 pairs."""
        f, emitter, source = self.f, self.emitter, self.op.operands[0]

        def read(at: llvm.Value) -> Pair:
            value = emitter.load(self.frame.pointers[0], source.element, self.place(offset, at))
            parts = (
                value if isinstance(value, Pair) else Pair(value, llvm.constant(value.type, 0.0))
            )
            return Pair(*(f.cast("fpext", part, "double") for part in parts))

        return read

    def writer(self, offset: llvm.Value) -> Write:
        """Elements of the result, rounded."""
        f, element = self.f, self.op.result.element
        kind = "double" if element.itemsize // (2 if element.is_complex else 1) == 8 else "float"

        def write(at: llvm.Value, value: Pair) -> None:
            parts = [f.cast("fptrunc", part, kind) for part in value]
            register = Pair(*parts) if element.is_complex else parts[0]
            self.emitter.store(self.frame.outputs[0], register, element, self.place(offset, at))

        return write

    def place(self, offset: llvm.Value, at: llvm.Value) -> Affine:
        emitter: ElementEmitter = self.emitter
        return of_axis(LoopAxis(self.f.add(offset, at), 1 << 40, depth=emitter.scopes.depth))


def _loads(f: llvm.Function, buffer: Planes) -> Read:
    return lambda at: buffer.load(f, at)


def _stores(f: llvm.Function, buffer: Planes) -> Write:
    return lambda at, value: buffer.store(f, at, value)
