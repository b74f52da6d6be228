"""One row of elements, folded by a group of threads.

The row is cut into segments, one per warp (or per group of lanes); a segment into chunks of
`width` neighbours per lane, so that every access of a warp is contiguous. Short rows are straight
code: all chunks are read at once, and what is read stays in registers for later passes. Long rows
are loops, several chunks per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ....hlo.deciding import surely_at_most
from ... import llvm
from ...llvm.elements import Pair, Register
from ...llvm.index import CONSECUTIVE, SAME, Affine, LoopAxis, of_axis
from ...plain.monoid import Reduction, flat, unflat
from .groups import ThreadGroup, selected
from .head import FusionEntry

# Gives a reduction's inputs, in the types it accumulates in, at a place of the row.
Read = Callable[[Reduction, Affine, int], list[Register]]


class ThreadRow:
    """Places of a row of `count` elements for one thread of a group.

    `width` divides count. A thread has `chunks` vectors; if `copies` is not 0, a loop takes so many
    per turn; it is not where a call decides `count`. `parts` groups share the row; this one is
    number `number` (i32).
    """

    def __init__(
        self,
        part: FusionEntry,
        group: ThreadGroup,
        count: int,
        width: int,
        copies: int = 0,
        parts: int = 1,
        number: llvm.Value | None = None,
    ) -> None:
        self.part, self.group, self.count, self.width = part, group, count, width
        self.f, self.scopes, self.copies = part.function, part.scopes, copies
        self.segments = parts * group.warps
        self.base = None if parts == 1 or number is None else part.function.mul(number, group.warps)
        self.stride = group.lanes * width
        self.chunks = -(-count // (self.segments * self.stride))
        self.length = self.chunks * self.stride
        f = self.f
        segment = group.warp if self.base is None else f.add(self.base, group.warp)
        self.begin = f.mul(segment, self.length)
        self.first = f.add(self.begin, f.mul(group.lane, width))
        self.even = self.segments * self.length == count
        self._known: dict[int, tuple[Affine, llvm.Value | None]] = {}

    def axis(self, value: llvm.Value) -> Affine:
        lanes = CONSECUTIVE if self.width > 1 else SAME
        return of_axis(LoopAxis(value, self.count, lanes, self.scopes.depth, self.width))

    def places(self) -> Iterator[tuple[Affine, llvm.Value | None]]:
        """Loops over the thread's vectors, or runs through them: each one's place and, where not
        all lanes have it, whether this one has (what the place shows instead may be read)."""
        if not self.copies:
            for chunk in range(self.chunks):
                yield self.place(chunk)
            return
        with self.main() as turns:
            yield from ((place, None) for place in turns)
        if self.ragged:
            with self.rest() as (place, guard):
                yield place, guard

    def place(self, chunk: int) -> tuple[Affine, llvm.Value | None]:
        """A vector of straight code."""
        if chunk not in self._known:
            inside = (self.segments - 1) * self.length + (chunk + 1) * self.stride <= self.count
            if inside:
                at = self.axis(self.first) + chunk * self.stride
                self._known[chunk] = at.within(0, self.count - 1), None
            else:
                self._known[chunk] = self.guarded(self.f.add(self.first, chunk * self.stride))
        return self._known[chunk]

    def guarded(self, at: llvm.Value) -> tuple[Affine, llvm.Value]:
        """A place that may lie behind the row's end."""
        f = self.f
        last = f.min(at, self.count - self.width, signed=False)
        return self.axis(last), f.compare("ult", at, self.count)

    # Loops.

    @property
    def ragged(self) -> bool:
        """Whether turns of several chunks leave any."""
        return not self.even or self.chunks % self.copies != 0

    def left(self) -> llvm.Value:
        """Elements of this thread's segment, i32."""
        f = self.f
        if self.even:
            return f.constant("i32", self.length)
        return f.max(f.min(f.sub(self.count, self.begin), self.length), 0)

    @contextmanager
    def main(
        self, carried: Sequence[llvm.Value] = (), update: Callable[..., None] | None = None
    ) -> Iterator[list[Affine]]:
        """A loop over the chunks that are whole, `copies` per turn."""
        full = self.f.udiv(self.left(), self.stride)
        self.whole = self.f.mul(self.f.udiv(full, self.copies), self.copies)
        with self.scopes.loop(
            llvm.constant("i32", 0), self.whole, self.copies, carried, extent=self.chunks
        ) as (_, loop):
            self.turn = loop
            at = self.f.add(self.first, self.f.mul(loop.index, self.stride))
            base = self.axis(at)
            steps = (base + copy * self.stride for copy in range(self.copies))
            yield [step.within(0, self.count - 1) for step in steps]

    @contextmanager
    def rest(
        self, carried: Sequence[llvm.Value] = (), begin: llvm.Operand | None = None
    ) -> Iterator[tuple[Affine, llvm.Value]]:
        """A loop over the chunks behind those of `main`, or from `begin` on."""
        f = self.f
        chunks = f.udiv(f.add(self.left(), self.stride - 1), self.stride)
        first = self.whole if begin is None else f.lift(begin, "i32")
        with self.scopes.loop(first, chunks, 1, carried, extent=self.chunks) as (_, loop):
            self.turn = loop
            self.chunk = loop.index
            yield self.guarded(f.add(self.first, f.mul(loop.index, self.stride)))

    # Folds.

    def fold(self, reductions: Sequence[Reduction], read: Read) -> list[list[Register]]:
        """The row's elements joined, in every thread of the group; initial values are not in."""
        values = self.totals(reductions, read)
        warps = None
        present = -(-self.count // self.length)
        if self.group.warps > 1 and not surely_at_most(self.segments, present):
            warps = self.f.constant("i32", present)
            if self.base is not None:
                warps = self.f.sub(warps, self.base)
        return self.group.join(reductions, values, warps)

    def totals(self, reductions: Sequence[Reduction], read: Read) -> list[list[Register]]:
        """The elements of this warp's segment joined, in all its lanes."""
        values: list[list[Register]] = [[] for _ in reductions]
        free = [n for n, reduction in enumerate(reductions) if reduction.single is not None]
        if free:
            found = self._free([reductions[n] for n in free], read)
            for n, own in zip(free, found, strict=True):
                values[n] = self.group.across_lanes(reductions[n], own, self.group.lanes)
        for n, reduction in enumerate(reductions):
            if reduction.single is None:
                values[n] = self._ordered(reduction, read)
        return values

    def _free(self, reductions: Sequence[Reduction], read: Read) -> list[list[Register]]:
        """Bodies whose operands may change places: one scalar per thread."""
        f, width = self.f, self.width
        if not self.copies:
            found = []
            for reduction in reductions:
                parts = []
                for place, guard in self.places():
                    value = read(reduction, place, width)
                    parts.append(self.masked(reduction, value, guard))
                found.append(reduction.across(f, self.tree(reduction, parts), width))
            return found
        like = [
            register
            for reduction in reductions
            for _ in range(self.copies)
            for register in reduction.identity(width)
        ]
        with self.main(flat(like)) as places:
            loop = self.turn
            carried = unflat(loop.carried, like)
            updated = []
            for number, reduction in enumerate(reductions):
                for copy, place in enumerate(places):
                    total = carried[number * self.copies + copy]
                    value = read(reduction, place, width)
                    updated += reduction.combine(f, [total], value, width)
            loop.carry(*flat(updated))
        values = unflat(loop.results, like)
        sums = [
            self.tree(reduction, [[one] for one in values[n * self.copies : (n + 1) * self.copies]])
            for n, reduction in enumerate(reductions)
        ]
        if self.ragged:
            like = [register for registers in sums for register in registers]
            with self.rest(flat(like)) as (place, guard):
                loop = self.turn
                carried = unflat(loop.carried, like)
                updated = []
                for total, reduction in zip(carried, reductions, strict=True):
                    value = self.masked(reduction, read(reduction, place, width), guard)
                    updated += reduction.combine(f, [total], value, width)
                loop.carry(*flat(updated))
            sums = [[one] for one in unflat(loop.results, like)]
        return [
            reduction.across(f, total, width)
            for reduction, total in zip(reductions, sums, strict=True)
        ]

    def masked(
        self, reduction: Reduction, value: list[Register], guard: llvm.Value | None
    ) -> list[Register]:
        if guard is None:
            return value
        return reduction.masked(self.f, self.f.splat(guard, self.width), value, self.width)

    def tree(self, reduction: Reduction, parts: list[list[Register]]) -> list[Register]:
        """Vectors joined pair by pair."""
        while len(parts) > 1:
            single = parts[len(parts) & ~1 :]
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [reduction.combine(self.f, a, b, self.width) for a, b in pairs] + single
        return parts[0]

    def _ordered(self, reduction: Reduction, read: Read) -> list[Register]:
        """A body whose operands keep their order: chunk after chunk, joined in each warp."""
        f = self.f
        if not self.copies:
            total: list[Register] = []
            for chunk in range(self.chunks):
                place, guard = self.place(chunk)
                value = self.chunk_value(reduction, read, place, guard, chunk)
                if not total:
                    total = value
                    continue
                both = reduction.combine(f, total, value, 1)
                if guard is None:
                    total = both
                else:
                    start = f.add(self.begin, chunk * self.stride)
                    total = selected(f, f.compare("ult", start, self.count), both, total)
            return total
        place, guard = self.guarded(self.first)
        start = self.chunk_value(reduction, read, place, None if self.even else guard, 0)
        with self.rest(flat(start), 1) as (place, guard):
            loop, chunk = self.turn, self.chunk
            carried = unflat(loop.carried, start)
            last = None if self.even else guard
            value = self.chunk_value(reduction, read, place, last, chunk)
            loop.carry(*flat(reduction.combine(f, carried, value, 1)))
        return unflat(loop.results, start)

    def chunk_value(
        self,
        reduction: Reduction,
        read: Read,
        place: Affine,
        guard: llvm.Value | None,
        chunk: llvm.Operand,
    ) -> list[Register]:
        """The elements of one chunk joined in order, in all lanes."""
        f, width = self.f, self.width
        value = read(reduction, place, width)
        while width > 1:
            width //= 2
            left = [halved(f, one, 0, width) for one in value]
            right = [halved(f, one, 1, width) for one in value]
            value = reduction.combine(f, left, right, width)
        present = None
        if guard is not None:
            start = f.add(self.begin, f.mul(f.lift(chunk, "i32"), self.stride))
            left_over = f.max(f.sub(self.count, start), 0)
            present = f.udiv(f.add(left_over, self.width - 1), self.width)
        return self.group.across_lanes(reduction, value, self.group.lanes, present)


def halved(f: llvm.Function, value: Register, first: int, width: int) -> Register:
    """Every second lane of a vector, from lane `first` on."""
    lanes = range(first, 2 * width, 2)
    if isinstance(value, Pair):
        return Pair(f.shuffle(value.real, None, lanes), f.shuffle(value.imaginary, None, lanes))
    return f.shuffle(value, None, lanes)
