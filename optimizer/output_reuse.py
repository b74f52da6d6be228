"""Reuse of output buffers: values that are dead before an output is first written live in it.

A caller's output lies idle until the step that writes it, but for one that may have the memory of a
donated argument. `reuse_outputs` gives arena buffers whose lives end before that a place inside it,
so that they need no memory of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from .memory import ALIGNMENT, rounded
from .schedule import Buffer, JumpStep, Schedule, live_ranges, touched

Reused = tuple[Buffer, int]  # the output, and bytes from its start
Range = tuple[int, int]  # first and last step


def lives(schedule: Schedule) -> tuple[Mapping[Buffer, Range], Mapping[Buffer, Reused]]:
    """The lives of a schedule's arena buffers, and where those stand that live in outputs."""
    if schedule.lives is None:
        ranges = live_ranges(schedule)
        # Where calls decide sizes, what fits into an output at one size does not at another.
        reused = reuse_outputs(schedule, ranges) if schedule.decisions is None else {}
        schedule.lives = ranges, reused
    return schedule.lives


def reuse_outputs(schedule: Schedule, ranges: Mapping[Buffer, Range]) -> dict[Buffer, Reused]:
    """Where arena buffers (`ranges` has their lives) stand in outputs; others stay in the arena.

    Largest first, so that what remains needs the least; of equal ones the earlier, or the later
    where that needs less.
    """
    outputs = _idle(schedule)
    latest = max(outputs.values(), default=0)
    sizes = {b: b.bytes for b, (_, last) in ranges.items() if last < latest and b.bytes}
    early = _reused(outputs, ranges, sizes, 1)
    if len(set(sizes.values())) == len(sizes):
        return early
    late = _reused(outputs, ranges, sizes, -1)
    return late if _peak(ranges, late) < _peak(ranges, early) else early


def _peak(ranges: Mapping[Buffer, Range], reused: Mapping[Buffer, Reused]) -> int:
    """The most bytes that live at one step in the arena."""
    changes: dict[int, int] = {}
    for buffer, (first, last) in ranges.items():
        if buffer not in reused:
            size = rounded(buffer.bytes, ALIGNMENT)
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


def _reused(
    outputs: Mapping[Buffer, int],
    ranges: Mapping[Buffer, Range],
    sizes: Mapping[Buffer, int],
    turn: int,
) -> dict[Buffer, Reused]:
    """sizes: of those that may live in outputs. turn: 1 where of equal buffers the earlier is
    first, -1 where the later is."""
    reused: dict[Buffer, Reused] = {}
    left = sorted(sizes, key=lambda b: (-sizes[b], *(turn * step for step in ranges[b])))
    for output, idle in outputs.items():
        placed, others = _Placed(output.bytes), []
        for buffer in left:
            size, life = sizes[buffer], ranges[buffer]
            offset = placed.offset(size, life) if life[1] < idle else -1
            if offset < 0:
                others.append(buffer)
            else:
                reused[buffer] = output, offset
                placed.add(life, offset, size)
        left = others
    return reused


class _Placed:
    """What stands in one output: (first and last step, first byte, bytes). For `size` bytes more:
    the steps, as bits, at which there is no room beside one of these alone, and the others."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.places: list[tuple[int, int, int, int]] = []
        self.size, self.steps = -1, 0
        self.others: list[tuple[int, int, int, int]] = []

    def offset(self, size: int, life: Range) -> int:
        """The lowest one at which nothing lives at the same time; -1: none."""
        if size != self.size:
            self.size, self.steps, self.others = size, 0, []
            for place in self.places:
                self._count(place)
        if size > self.room or self.steps & _bits(*life):
            return -1
        offset, whole = 0, rounded(size, ALIGNMENT)
        for low, high in sorted(
            (begin, begin + rounded(other, ALIGNMENT))
            for first, last, begin, other in self.others
            if first <= life[1] and last >= life[0]
        ):
            if low - offset >= whole:
                break
            offset = max(offset, high)
        return offset if offset + size <= self.room else -1

    def add(self, life: Range, offset: int, size: int) -> None:
        """Places what was asked for last."""
        self.places.append((*life, offset, size))
        self._count(self.places[-1])

    def _count(self, place: tuple[int, int, int, int]) -> None:
        first, last, _, other = place
        needed = min(rounded(other, ALIGNMENT) + self.size, rounded(self.size, ALIGNMENT) + other)
        if needed > self.room:  # below it or above it
            self.steps |= _bits(first, last)
        else:
            self.others.append(place)


def _bits(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


def _idle(schedule: Schedule) -> dict[Buffer, int]:
    """The outputs with memory of their own, and the step that first touches each, with the loop
    around it; largest output first."""
    first: dict[Buffer, int] = {}
    marks = {one.saved for one in schedule.undo if one.rows}  # nothing else may look like them
    for number, step in enumerate(schedule.steps):
        for buffer in touched(step):
            own = buffer.place == "output" and buffer.replaces is None
            if own and buffer.index not in marks:
                first.setdefault(buffer, number)
    loops = [
        (schedule.labels[step.target], number)
        for number, step in enumerate(schedule.steps)
        if isinstance(step, JumpStep) and step.back
    ]
    for buffer, start in first.items():
        around = [begin for begin, end in loops if begin <= start <= end]
        first[buffer] = min([start, *around])
    return dict(sorted(first.items(), key=lambda item: (-item[0].bytes, item[0].index)))
