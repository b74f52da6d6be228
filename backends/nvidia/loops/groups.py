"""Threads that reduce one row together: lanes of a warp, or all warps of a block.

Partial results are joined in a tree that depends on the size of the group alone, and always with
the earlier elements on the left, so that bodies need not commute.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import llvm
from ...llvm import arithmetic
from ...llvm.elements import Pair, Register
from ...plain.monoid import Reduction, flat, unflat
from ..frame import barrier, shuffle
from ..target import WARP
from .head import FusionEntry

_SLOT = 8  # bytes of one partial result in shared memory


class ThreadGroup:
    """`lanes` threads of a warp (a power of two), or `warps` whole warps, which are the block.

    `lane` and `warp` are this thread's numbers in the group, i32. Where there are several warps,
    every thread of the block must take part in `join`.
    """

    def __init__(self, part: FusionEntry, lanes: int, warps: int = 1) -> None:
        self.part, self.f = part, part.function
        self.lanes, self.warps = lanes, warps
        f = self.f
        self.lane = f.land(part.thread, lanes - 1)
        self.warp = f.lshr(part.thread, 5) if warps > 1 else llvm.constant("i32", 0)

    @property
    def size(self) -> int:
        return self.lanes * self.warps

    def across_lanes(
        self,
        reduction: Reduction,
        values: Sequence[Register],
        lanes: int,
        present: llvm.Value | None = None,
    ) -> list[Register]:
        """The values of `lanes` lanes joined, see `across_lanes`."""
        return across_lanes(self.f, self.part.thread, reduction, values, lanes, present)

    def join(
        self,
        reductions: Sequence[Reduction],
        values: Sequence[Sequence[Register]],
        warps: llvm.Value | None = None,
    ) -> list[list[Register]]:
        """The values of all warps of the group joined, in each thread. `warps`: how many of them,
        the first ones, have one (i32; None: all)."""
        found = [list(own) for own in values]
        if self.warps == 1 or not reductions:
            return found
        places = self.publish(found)
        source = self.f.land(self.part.thread, self.warps - 1)
        return [
            self.across_lanes(one, self.published(own, offsets, source), self.warps, warps)
            for one, own, offsets in zip(reductions, found, places, strict=True)
        ]

    def publish(self, values: Sequence[Sequence[Register]]) -> list[list[int]]:
        """Puts every warp's values into shared memory; where they begin, by component."""
        f = self.f
        size = _SLOT * self.warps
        places = [[self.part.shared(size) for _ in flat(own)] for own in values]
        with self.part.scopes.branch(f.compare("eq", self.lane, 0)):
            for own, offsets in zip(values, places, strict=True):
                for one, offset in zip(flat(own), offsets, strict=True):
                    f.store(stored(f, one), self.slot(offset, self.warp), align=_SLOT)
        barrier(f)
        return places

    def published(
        self, like: Sequence[Register], offsets: Sequence[int], warp: llvm.Value
    ) -> list[Register]:
        """What a warp published, of the make of `like`."""
        f, parts = self.f, []
        for one, offset in zip(flat(like), offsets, strict=True):
            raw = f.load(_memory(one.type), self.slot(offset, warp), align=_SLOT)
            parts.append(restored(f, raw, one.type))
        return unflat(parts, like)

    def slot(self, offset: int, number: llvm.Value) -> llvm.Value:
        at = self.f.mul(self.f.cast("zext", number, "i64"), _SLOT)
        return self.f.pointer(self.part.at(offset), at, "i8")


def across_lanes(
    f: llvm.Function,
    thread: llvm.Value,
    reduction: Reduction,
    values: Sequence[Register],
    lanes: int,
    present: llvm.Value | None = None,
) -> list[Register]:
    """The values of `lanes` lanes joined, in each of them; `present`: how many of them, the first
    ones, have one (i32; None: all, or the others have what changes nothing). All lanes of the warp
    take part; `thread` is i32."""
    own = list(values)
    lane = f.land(thread, lanes - 1)
    distance = 1
    while distance < lanes:
        other = unflat([shuffle(f, "bfly", one, distance, WARP) for one in flat(own)], own)
        if reduction.single is not None:
            own = reduction.combine(f, own, other, 1)
        else:
            upper = f.compare("ne", f.land(lane, distance), 0)
            left, right = selected(f, upper, other, own), selected(f, upper, own, other)
            both = reduction.combine(f, left, right, 1)
            if present is None:
                own = both
            else:
                first = f.lor(f.land(lane, -2 * distance), distance)
                own = selected(f, f.compare("ult", first, present), both, left)
        distance *= 2
    return own


def selected(
    f: llvm.Function, condition: llvm.Value, yes: Sequence[Register], no: Sequence[Register]
) -> list[Register]:
    """One of two lists of registers of equal make."""
    return [arithmetic.select(f, condition, a, b) for a, b in zip(yes, no, strict=True)]


def _memory(kind: str) -> str:
    return "i8" if llvm.element_of(kind) == "i1" else kind


def stored(f: llvm.Function, value: llvm.Value) -> llvm.Value:
    """A scalar or vector of registers as it lies in shared memory or scratch."""
    return f.cast("zext", value, "i8") if value.element == "i1" else value


def restored(f: llvm.Function, raw: llvm.Value, kind: str) -> llvm.Value:
    return f.compare("ne", raw, 0) if llvm.element_of(kind) == "i1" else raw


def lane_of(values: Sequence[Register], lane: int, f: llvm.Function) -> list[Register]:
    """One lane of vectors."""
    return [
        Pair(f.extract(one.real, lane), f.extract(one.imaginary, lane))
        if isinstance(one, Pair)
        else f.extract(one, lane)
        for one in values
    ]
