"""Lending: values that are gone before an output is first written live in the output's memory.

A caller's output lies idle until the step that writes it, but for one that may have the memory of a
donated argument. `lend` gives arena buffers whose lives
end before that a place inside it, so that they need no memory of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from .memory import ALIGNMENT, rounded
from .schedule import Buffer, JumpStep, Schedule, touched

Lent = tuple[Buffer, int]  # the output, and bytes from its start
Range = tuple[int, int]  # first and last step


def lend(schedule: Schedule, ranges: Mapping[Buffer, Range]) -> dict[Buffer, Lent]:
    """Where arena buffers (`ranges` has their lives) stand in outputs; others stay in the arena.

    Largest first, so that what remains needs the least.
    """
    lent: dict[Buffer, Lent] = {}
    for output, idle in _idle(schedule).items():
        fitting = [b for b, (_, last) in ranges.items() if last < idle and b not in lent]
        fitting.sort(key=lambda b: (-b.bytes, ranges[b]))
        placed: list[tuple[Range, int, int]] = []  # life, first byte, last byte + 1
        for buffer in fitting:
            offset = _gap(buffer, ranges[buffer], placed)
            if buffer.bytes and offset + buffer.bytes <= output.bytes:
                lent[buffer] = output, offset
                end = offset + rounded(buffer.bytes, ALIGNMENT)
                placed.append((ranges[buffer], offset, end))
    return lent


def _idle(schedule: Schedule) -> dict[Buffer, int]:
    """The outputs with memory of their own, and the step that first touches each, with the loop
    around it; largest output first."""
    first: dict[Buffer, int] = {}
    for number, step in enumerate(schedule.steps):
        for buffer in touched(step):
            if buffer.place == "output" and buffer.replaces is None:
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


def _gap(buffer: Buffer, life: Range, placed: list[tuple[Range, int, int]]) -> int:
    """The lowest offset at which nothing lives at the same time."""
    size, offset = rounded(buffer.bytes, ALIGNMENT), 0
    busy = sorted(
        (first, last) for (begin, end), first, last in placed if begin <= life[1] and life[0] <= end
    )
    for first, last in busy:
        if first - offset >= size:
            break
        offset = max(offset, last)
    return offset
