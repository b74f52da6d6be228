"""Buffers that each worker has of its own: the scalars of a loop, which every worker computes for
itself, so that nobody waits for a counter, a condition or where a slice begins.

A buffer is one of these if it is small, a loop touches it, and all steps that write it are cheap
and read nothing but such buffers and what nothing writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from .memory import rounded
from .schedule import BranchStep, Buffer, JumpStep, Schedule, SwitchStep, reads, touched, writes

MOST_BYTES = 64  # of a buffer
_ALIGNMENT = 8
_GIVEN = ("weight", "input")


class WorkerMemory(NamedTuple):
    """offsets: of the buffers, in each worker's memory of `bytes`. steps: those that every worker
    runs for itself, and branches that it decides for itself."""

    offsets: Mapping[Buffer, int]
    bytes: int
    steps: frozenset[int]


def worker_memory(schedule: Schedule, cheap: Callable[[int], bool]) -> WorkerMemory:
    """cheap: whether a step that runs a kernel takes no longer than to wait for another worker."""
    own = _candidates(schedule)
    written = {b for step in schedule.steps for b in writes(step)}
    changed = True
    while changed and own:
        changed = False
        for number, step in enumerate(schedule.steps):
            results = writes(step)
            if own.isdisjoint(results):
                continue
            alone = all(b in own or (b.place in _GIVEN and b not in written) for b in reads(step))
            if not (alone and own.issuperset(results) and cheap(number)):
                own.difference_update(results)
                changed = True
    offsets: dict[Buffer, int] = {}
    end = 0
    steps: set[int] = set()
    for number, step in enumerate(schedule.steps):
        decides = isinstance(step, BranchStep | SwitchStep) and not own.isdisjoint(reads(step))
        if decides or not own.isdisjoint(writes(step)):
            steps.add(number)
        for buffer in touched(step):
            if buffer in own and buffer not in offsets:
                offsets[buffer] = end
                end = rounded(end + max(int(buffer.bytes), 1), _ALIGNMENT)
    return WorkerMemory(offsets, end, frozenset(steps))


def _candidates(schedule: Schedule) -> set[Buffer]:
    """The small buffers of the arena that loops touch."""
    inside: set[int] = set()
    for number, step in enumerate(schedule.steps):
        if isinstance(step, JumpStep) and step.back:
            inside.update(range(schedule.labels[step.target], number + 1))
    return {
        buffer
        for number in inside
        for buffer in touched(schedule.steps[number])
        if buffer.place == "arena" and buffer.bytes <= MOST_BYTES
    }
