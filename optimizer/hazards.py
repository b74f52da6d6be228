"""Where the buffers of a schedule lie, and which steps touch what others are not done with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ..hlo.deciding import largest
from .memory import Interval, Placement, bounded, place
from .output_reuse import Reused, lives, reuse_outputs
from .schedule import Buffer, Schedule, live_ranges


@dataclass
class BufferPlaces:
    """Where a schedule's buffers lie, but for those that each worker has. lives: of those of the
    arena, and of those within outputs; kept: for how many steps more their memory is; spans: of
    steps that run together the first and the last one, so that memory is kept for all of them;
    offsets: of those in the arena."""

    lives: Mapping[Buffer, tuple[int, int]]
    reused: Mapping[Buffer, Reused]
    kept: int = 0
    offsets: Mapping[Buffer, int] = field(default_factory=dict)
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def held(self, life: tuple[int, int]) -> tuple[int, int]:
        """The first and the last step for which the memory of a buffer that lives so is kept."""
        first, last = life
        last += self.kept
        return self.spans.get(first, (first, first))[0], self.spans.get(last, (last, last))[1]

    def span(self, buffer: Buffer) -> tuple[object, int, int]:
        """Its memory, begin and end in it."""
        if buffer in self.reused:
            owner, begin = self.reused[buffer]
            return (owner.place, owner.index), begin, begin + max(buffer.bytes, 1)
        if buffer.place == "arena":
            begin = self.offsets[buffer]
            return "arena", begin, begin + max(largest(buffer.bytes), 1)
        if buffer.place == "weight":
            return buffer.weight, 0, 1
        buffer = buffer.replaces or buffer  # it may have the same memory
        return (buffer.place, buffer.index), 0, max(largest(buffer.bytes), 1)


def places(
    schedule: Schedule,
    own: Mapping[Buffer, int],
    kept: int = 0,
    spans: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> BufferPlaces:
    """The places of a schedule's buffers without offsets, and without what is each worker's own.

    kept: for how many steps more than it lives the memory of a buffer is kept. spans: as of
    `BufferPlaces`.
    """
    found = BufferPlaces({}, {}, kept, spans=spans)
    if not kept and not spans:
        ranges, reused = lives(schedule)
    else:
        ranges = live_ranges(schedule)
        reused = reuse_outputs(schedule, {b: found.held(life) for b, life in ranges.items()})
    found.lives = {buffer: life for buffer, life in ranges.items() if buffer not in own}
    found.reused = {b: where for b, where in reused.items() if b not in own}
    return found


def in_arena(found: BufferPlaces, nodes: int) -> Placement:
    """Gives arena buffers their offsets; nodes: states that searches may go through. What is proven
    is of the lives, not of what is kept longer."""
    buffers = [buffer for buffer in found.lives if buffer not in found.reused]
    intervals = [Interval(largest(b.bytes), *found.lives[b]) for b in buffers]
    longer = [Interval(size, *found.held((first, last))) for size, first, last in intervals]
    placement = place(longer, nodes=nodes)
    found.offsets = dict(zip(buffers, placement.offsets, strict=True))
    return bounded(placement, intervals) if found.kept or found.spans else placement


class _Touched(NamedTuple):
    """A buffer that a step reads or writes, and where it lies: what it is a part of, bytes."""

    buffer: Buffer
    span: tuple[object, int, int]
    write: bool


class Hazards:
    """Tells which steps have to wait: those that touch what an unfinished step touches. Any worker
    may run any step, so that holds between steps that one worker runs alone as well. `interfering`:
    arena buffers that are not waited for only because they do not overlap."""

    def __init__(self, found: BufferPlaces) -> None:
        self.places = found
        self.pending: list[_Touched] = []
        self.forced = False
        self.interfering: dict[Buffer, set[Buffer]] = {}

    def unknown(self) -> None:
        """Control may come from elsewhere: the next step waits."""
        self.forced = True

    def step(self, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> bool:
        """Record a step; whether it has to wait."""
        touched = [_Touched(b, self.span(b), False) for b in reads]
        touched += [_Touched(b, self.span(b), True) for b in writes]
        pairs = [(a, b) for a in touched for b in self.pending if a.write or b.write]
        wait = self.forced or any(_overlap(one.span, other.span) for one, other in pairs)
        if wait:
            self.pending, self.forced = [], False
        else:
            for one, other in pairs:
                if one.span[0] == other.span[0] == "arena":
                    self.interfering.setdefault(one.buffer, set()).add(other.buffer)
                    self.interfering.setdefault(other.buffer, set()).add(one.buffer)
        self.pending += touched
        return wait

    def span(self, buffer: Buffer) -> tuple[object, int, int]:
        arena = buffer.place == "arena" and buffer not in self.places.reused
        if arena and buffer not in self.places.offsets:
            return buffer, 0, 1  # of each worker
        return self.places.span(buffer)


def _overlap(left: tuple[object, int, int], right: tuple[object, int, int]) -> bool:
    return left[0] == right[0] and left[1] < right[2] and right[1] < left[2]
