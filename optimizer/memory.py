"""Offsets: every arena buffer gets a place in one block of memory.

Small pure planners behind one signature; the one with the smallest arena wins. The bound is the
largest sum of bytes that are live at one step: no placing of the same order can need less. Where
none reaches it, a search (offsets.py) does, or proves that nothing can, or stops after a number
of states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

from .offsets import search

ALIGNMENT = 64
SEARCH_NODES = 12_000  # states of all searches for one plan: about a second at 600 buffers
BY_BOUND, BY_EXHAUSTION = "proven by bound", "proven by exhaustion"


class Interval(NamedTuple):
    """A buffer to place: bytes, first and last step (inclusive)."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """`offsets[i]` of interval i; the arena's size; the proven lower bound for aligned buffers;
    the largest sum of live bytes, without alignment; the step at which most aligned bytes live;
    the states that searches went through.

    The bound is the largest sum of aligned live bytes, or more where a search has shown that less
    than more is not enough."""

    offsets: tuple[int, ...]
    arena_bytes: int
    bound_bytes: int
    strategy: str
    live_bytes: int = 0
    peak_step: int = 0
    exhausted: bool = False
    nodes: int = 0
    kept: bool = False  # memory longer than it is needed

    @property
    def proven(self) -> bool:
        """Whether no placing of this order can be smaller."""
        return self.arena_bytes == self.bound_bytes

    @property
    def proof(self) -> str:
        """How it is known that no placing of this order can be smaller, or that it is not."""
        if not self.proven and self.kept:
            return "not proven, larger so that steps overlap"
        if not self.proven:
            return f"not proven, stopped after {self.nodes} nodes"
        return BY_EXHAUSTION if self.exhausted else BY_BOUND


Order = Callable[[Sequence[Interval]], Sequence[int]]


def by_size(intervals: Sequence[Interval]) -> Sequence[int]:
    """Largest first."""
    return sorted(range(len(intervals)), key=lambda i: (-intervals[i].bytes, intervals[i].first, i))


def by_lifetime(intervals: Sequence[Interval]) -> Sequence[int]:
    """Longest life first."""
    return sorted(
        range(len(intervals)),
        key=lambda i: (intervals[i].first - intervals[i].last, -intervals[i].bytes, i),
    )


def by_area(intervals: Sequence[Interval]) -> Sequence[int]:
    """Largest bytes x life first."""
    return sorted(
        range(len(intervals)),
        key=lambda i: (
            -intervals[i].bytes * (intervals[i].last - intervals[i].first + 1), i,
        ),
    )  # fmt: skip


def by_start(intervals: Sequence[Interval]) -> Sequence[int]:
    """Earliest first, as a run-time allocator would."""
    return sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -intervals[i].bytes, i))


STRATEGIES: Mapping[str, Order] = {
    "size": by_size, "area": by_area, "lifetime": by_lifetime, "start": by_start,
}  # fmt: skip


def rounded(size: int, alignment: int = ALIGNMENT) -> int:
    return -(-size // alignment) * alignment


def place(
    intervals: Sequence[Interval], alignment: int = ALIGNMENT, nodes: int = SEARCH_NODES
) -> Placement:
    """The best placement of all strategies; where none is proven, of searches through `nodes`
    states in all."""
    padded = [Interval(rounded(max(i.bytes, 1), alignment), i.first, i.last) for i in intervals]
    (step, bound), live = peak(padded), live_bound(intervals)
    best: Placement | None = None
    for name, order in STRATEGIES.items():
        offsets = best_fit(padded, order(padded))
        arena = max((o + i.bytes for o, i in zip(offsets, padded, strict=True)), default=0)
        if best is None or arena < best.arena_bytes:
            best = Placement(tuple(offsets), arena, bound, name, live, step)
        if best.proven:
            break
    assert best is not None
    return best if best.proven else searched(padded, best, nodes)


def bounded(placement: Placement, intervals: Sequence[Interval]) -> Placement:
    """A placement of intervals that were made longer, with what is known of these: no less than
    their bound is possible, and more may be needed."""
    padded = [Interval(rounded(max(i.bytes, 1)), i.first, i.last) for i in intervals]
    step, bound = peak(padded)
    live = live_bound(intervals)
    return replace(
        placement, bound_bytes=bound, live_bytes=live, peak_step=step, exhausted=False, kept=True
    )


def searched(intervals: Sequence[Interval], best: Placement, nodes: int) -> Placement:
    """A smaller placement than `best`, or one that is known to be smallest, if searches of `nodes`
    states find one: at the bound first, then halving what is open."""
    unit = gcd(*(interval.bytes for interval in intervals))  # of every pushed-down offset
    capacity = lowest = best.bound_bytes  # below `lowest` there is nothing, or it was not found
    while lowest < best.arena_bytes and best.nodes < nodes:
        outcome = search(intervals, capacity, -(-(nodes - best.nodes) // 2))
        best = replace(best, nodes=best.nodes + outcome.nodes)
        if outcome.offsets is None:
            lowest = capacity + unit
            if outcome.exhausted:
                best = replace(best, bound_bytes=lowest, exhausted=True)
        else:
            arena = max(o + i.bytes for o, i in zip(outcome.offsets, intervals, strict=True))
            best = replace(best, offsets=outcome.offsets, arena_bytes=arena, strategy="search")
        capacity = lowest + (best.arena_bytes - lowest) // unit // 2 * unit
    return best


def live_bound(intervals: Sequence[Interval]) -> int:
    """Largest sum of live bytes over all steps."""
    return peak(intervals)[1]


def peak(intervals: Sequence[Interval]) -> tuple[int, int]:
    """The first step at which most bytes live, and how many; (0, 0) if there are none."""
    changes: dict[int, int] = {}
    for size, first, last in intervals:
        changes[first] = changes.get(first, 0) + size
        changes[last + 1] = changes.get(last + 1, 0) - size
    live = most = found = 0
    for step in sorted(changes):
        live += changes[step]
        if live > most:
            most, found = live, step
    return found, most


def best_fit(intervals: Sequence[Interval], order: Sequence[int]) -> list[int]:
    """Each buffer in turn goes into the smallest gap that holds it among those live with it."""
    offsets = [-1] * len(intervals)
    placed: list[int] = []
    for index in order:
        size, first, last = intervals[index]
        spans = sorted(
            (offsets[other], offsets[other] + intervals[other].bytes)
            for other in placed
            if intervals[other].first <= last and first <= intervals[other].last
        )
        best, best_gap, top = -1, -1, 0
        for start, end in spans:
            gap = start - top
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = top, gap
            top = max(top, end)
        offsets[index] = best if best >= 0 else top
        placed.append(index)
    return offsets
