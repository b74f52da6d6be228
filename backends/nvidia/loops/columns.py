"""Columns of elements, folded by the threads of a block: lanes run along what is kept.

A block is `across` threads times `down` threads: the former take `width` neighbouring columns
each, the latter divide the column's elements, one after the other where a body's operands may
change places (so that small rows are read side by side), else in stretches. What they have is
joined in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ... import llvm
from ...llvm.elements import Register
from ...llvm.index import CONSECUTIVE, SAME, Affine, LoopAxis, of_axis
from ...plain.monoid import Reduction, flat, unflat
from ..atoms import ACCESS_BYTES
from ..frame import barrier
from ..target import WARP
from .groups import restored, selected, stored
from .head import FusionEntry
from .threads import joined

# Gives a reduction's inputs at (a vector of columns, an element of them).
Read = Callable[[Reduction, Affine, Affine, int], list[Register]]

BLOCK = 256  # threads
LEAST = 4  # elements of a column that a thread takes at least


@dataclass(frozen=True)
class ColumnCut:
    """`across` and `down` threads of a block; `width` columns of a thread; `parts` blocks that
    divide a column; `copies` elements of a column that a turn of the loop reads."""

    width: int
    across: int
    down: int
    parts: int
    copies: int

    @property
    def threads(self) -> int:
        return max(WARP, self.across * self.down)


def choose(columns: int, length: int, width: int, busy: int, copies: int, split: bool) -> ColumnCut:
    """The cut of `columns` columns of `length` elements, for `busy` threads; `split`: whether
    several blocks may divide a column."""
    vectors = columns // width
    down = 1
    while down < BLOCK and length >= 2 * LEAST * down:
        if down >= BLOCK // WARP and vectors >= WARP:
            break
        if vectors * down >= busy:
            break
        down *= 2
    across = 1
    while across < BLOCK // down and across < vectors:
        across *= 2
    while across * down < WARP:
        across *= 2
    parts = 1
    threads = -(-vectors // across) * across * down
    if split and threads < busy:
        parts = max(1, min(-(-2 * busy // threads), length // (4 * LEAST * down)))
        share = -(-length // (parts * down))
        parts = -(-length // (share * down))
    return ColumnCut(width, across, down, parts, copies)


class ColumnCode:
    """The code of one thread. `totals` gives the vectors of its columns, complete in the threads
    for which `first` holds; `place` is where its columns begin, `present` whether they exist."""

    def __init__(self, part: FusionEntry, columns: int, length: int, cut: ColumnCut) -> None:
        self.part, self.cut, self.length = part, cut, length
        self.f, self.scopes = part.function, part.scopes
        f = self.f
        vectors = columns // cut.width
        grid = -(-vectors // cut.across)
        self.blocks = grid * cut.parts
        number = part.block
        self.number: llvm.Value = llvm.constant("i32", 0)
        if cut.parts > 1:
            self.number = f.udiv(number, grid)
            number = f.sub(number, f.mul(self.number, grid))
        self.line = f.udiv(part.thread, cut.across)
        lane = f.land(part.thread, cut.across - 1)
        vector = f.add(f.mul(number, cut.across), lane)
        self.lane = lane
        self.present: llvm.Value | None = None
        if vectors % cut.across:
            self.present = f.compare("ult", vector, vectors)
            vector = f.min(vector, vectors - 1, signed=False)
        at = f.mul(vector, cut.width)
        lanes = CONSECUTIVE if cut.width > 1 else SAME
        self.place = of_axis(LoopAxis(at, columns, lanes, self.scopes.depth, cut.width))
        self.share = -(-length // (cut.parts * cut.down))  # of one thread, at most
        self.segments = -(-length // self.share)  # that have elements

    def first(self) -> llvm.Value | None:
        """Whether this thread has the totals; None: every one."""
        found = self.present
        if self.cut.down > 1:
            top = self.f.compare("eq", self.line, 0)
            found = top if found is None else self.f.land(found, top)
        return found

    def totals(self, reductions: Sequence[Reduction], read: Read) -> list[list[Register]]:
        """The columns' elements joined; initial values are not in."""
        found = []
        free = [one for one in reductions if one.single is not None]
        values = iter(self.free(free, read)) if free else iter(())
        for reduction in reductions:
            own = next(values) if reduction.single is not None else self.ordered(reduction, read)
            found.append(self.join(reduction, own))
        return found

    # One thread's elements.

    def free(self, reductions: Sequence[Reduction], read: Read) -> list[list[Register]]:
        """Every `down`-th element of a part, several accumulators each."""
        f, cut = self.f, self.cut
        begin = f.mul(self.number, self.share * cut.down)
        ahead = f.add(begin, self.line)
        count: llvm.Value = f.constant("i32", self.share)
        if self.share * cut.down * cut.parts != self.length:
            end = f.min(f.add(begin, self.share * cut.down), self.length)
            count = f.max(f.sub(end, ahead), 0)
            count = f.udiv(f.add(count, cut.down - 1), cut.down)
        copies = min(cut.copies, self.share) if isinstance(self.share, int) else cut.copies
        whole = f.mul(f.udiv(count, copies), copies)
        like = [
            register
            for one in reductions
            for _ in range(copies)
            for register in one.identity(cut.width)
        ]
        zero = llvm.constant("i32", 0)

        def at(turn: llvm.Value) -> Affine:
            place = f.add(ahead, f.mul(turn, cut.down))
            return of_axis(LoopAxis(place, self.length, SAME, self.scopes.depth))

        with self.scopes.loop(zero, whole, copies, flat(like), extent=self.share) as (_, loop):
            base = at(loop.index)
            carried = unflat(loop.carried, like)
            updated: list[Register] = []
            for n, one in enumerate(reductions):
                for copy in range(copies):
                    place = (base + copy * cut.down).within(0, self.length - 1)
                    value = read(one, self.place, place, cut.width)
                    updated += one.combine(f, [carried[n * copies + copy]], value, cut.width)
            loop.carry(*flat(updated))
        values = unflat(loop.results, like)
        sums = [
            self.tree(one, [[v] for v in values[n * copies : (n + 1) * copies]])
            for n, one in enumerate(reductions)
        ]
        if isinstance(count.number, int) and count.number % copies == 0:
            return sums
        like = [register for registers in sums for register in registers]
        with self.scopes.loop(whole, count, 1, flat(like), extent=self.share) as (_, loop):
            place = at(loop.index)
            carried = unflat(loop.carried, like)
            updated = []
            for one, total in zip(reductions, carried, strict=True):
                value = read(one, self.place, place, cut.width)
                updated += one.combine(f, [total], value, cut.width)
            loop.carry(*flat(updated))
        return [[one] for one in unflat(loop.results, like)]

    def tree(self, reduction: Reduction, parts: list[list[Register]]) -> list[Register]:
        while len(parts) > 1:
            single = parts[len(parts) & ~1 :]
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [reduction.combine(self.f, a, b, self.cut.width) for a, b in pairs] + single
        return parts[0]

    def segment(self) -> llvm.Value:
        """The number of this thread's stretch of the column."""
        return self.f.add(self.f.mul(self.number, self.cut.down), self.line)

    def ordered(self, reduction: Reduction, read: Read) -> list[Register]:
        """A stretch of neighbours, in their order; of a thread that has none, the last element."""
        f, width = self.f, self.cut.width
        begin = f.mul(self.segment(), self.share)
        end = f.min(f.add(begin, self.share), self.length)
        first = f.min(begin, self.length - 1)
        place = of_axis(LoopAxis(first, self.length, SAME, self.scopes.depth))
        start = read(reduction, self.place, place, width)
        after = f.add(begin, 1)
        with self.scopes.loop(after, end, 1, flat(start), extent=self.length) as (at, loop):
            carried = unflat(loop.carried, start)
            value = read(reduction, self.place, at, width)
            loop.carry(*flat(reduction.combine(f, carried, value, width)))
        return unflat(loop.results, start)

    # All threads of a block.

    def join(self, reduction: Reduction, values: list[Register]) -> list[Register]:
        """The values of all threads down a block, in the first of them."""
        f, cut = self.f, self.cut
        if cut.down == 1:
            return values
        kinds = [stored(f, one).type for one in flat(values)]
        offsets = [[self.part.shared(n) for n in self.pieces(kind)] for kind in kinds]
        alone = self.segments == cut.parts * cut.down or reduction.single is not None
        distance = 1
        while distance < cut.down:
            low = f.land(self.line, 2 * distance - 1)
            with self.scopes.branch(f.compare("eq", low, distance)):
                for one, places in zip(flat(values), offsets, strict=True):
                    self.put(places, stored(f, one))
            barrier(f)
            here = f.compare("eq", low, 0)
            branch = f.if_else(here)
            with branch.then():
                line = f.add(self.line, distance)
                other = [
                    restored(f, self.get(places, kind, line), one.type)
                    for one, places, kind in zip(flat(values), offsets, kinds, strict=True)
                ]
                partner = unflat(other, values)
                both = reduction.combine(f, values, partner, cut.width)
                if not alone:
                    right = f.add(self.segment(), distance)
                    inside = f.splat(f.compare("ult", right, self.segments), cut.width)
                    both = selected(f, inside, both, values)
                branch.give(*flat(both))
            with branch.otherwise():
                branch.give(*flat(values))
            values = unflat(branch.results, values)
            distance *= 2
        return values

    # Vectors in shared memory, in pieces of one access, so that lanes lie side by side.

    def pieces(self, kind: str) -> list[int]:
        """Bytes of shared memory for each piece of a vector of that type."""
        size = llvm.lanes_of(kind) * max(1, llvm.bits_of(kind) // 8)
        count = max(1, size // ACCESS_BYTES)
        return [size // count * self.cut.across * self.cut.down] * count

    def put(self, offsets: Sequence[int], value: llvm.Value) -> None:
        f, lanes = self.f, value.lanes // len(offsets)
        size = lanes * max(1, llvm.bits_of(value.type) // 8)
        for number, offset in enumerate(offsets):
            part = value
            if len(offsets) > 1:
                part = f.shuffle(value, None, range(number * lanes, (number + 1) * lanes))
            f.store(part, self.slot(offset, size, self.line), align=size)

    def get(self, offsets: Sequence[int], kind: str, line: llvm.Value) -> llvm.Value:
        lanes = llvm.lanes_of(kind) // len(offsets)
        size = lanes * max(1, llvm.bits_of(kind) // 8)
        piece = llvm.vector(lanes, llvm.element_of(kind))
        places = [self.slot(offset, size, line) for offset in offsets]
        return joined(self.f, [self.f.load(piece, place, align=size) for place in places])

    def slot(self, offset: int, size: int, line: llvm.Value) -> llvm.Value:
        f = self.f
        number = f.add(f.mul(line, self.cut.across), self.lane)
        at = f.mul(f.cast("zext", number, "i64"), size)
        return f.pointer(self.part.at(offset), at, "i8")
