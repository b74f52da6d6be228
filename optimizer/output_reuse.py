"""Reuse of output buffers: values that are dead before an output is first written live in it.

A caller's output lies idle until the step that writes it, but for one that may have the memory of a
donated argument. `reuse_outputs` gives arena buffers whose lives end before that a place inside it,
so that they need no memory of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
    early = _reused(outputs, ranges, 1)
    alike = [b.bytes for b in ranges if b.bytes and any(ranges[b][1] < t for t in outputs.values())]
    if len(set(alike)) == len(alike):
        return early
    late = _reused(outputs, ranges, -1)
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
    outputs: Mapping[Buffer, int], ranges: Mapping[Buffer, Range], turn: int
) -> dict[Buffer, Reused]:
    """turn: 1 where of equal buffers the earlier is first, -1 where the later is."""
    reused: dict[Buffer, Reused] = {}
    for output, idle in outputs.items():
        fitting = [b for b, (_, last) in ranges.items() if last < idle and b not in reused]
        fitting.sort(key=lambda b: (-b.bytes, *(turn * step for step in ranges[b])))
        placed = np.empty((4, len(fitting)), np.int64)  # life, first byte, last byte + 1
        count = 0
        for buffer in fitting:
            offset = _gap(buffer, ranges[buffer], placed[:, :count])
            if buffer.bytes and offset + buffer.bytes <= output.bytes:
                reused[buffer] = output, offset
                end = offset + rounded(buffer.bytes, ALIGNMENT)
                placed[:, count] = (*ranges[buffer], offset, end)
                count += 1
    return reused


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


def _gap(buffer: Buffer, life: Range, placed: np.ndarray[Any, Any]) -> int:
    """The lowest offset at which nothing lives at the same time."""
    size, offset = rounded(buffer.bytes, ALIGNMENT), 0
    begins, ends, lows, highs = placed
    busy = (begins <= life[1]) & (ends >= life[0])
    for first, last in sorted(zip(lows[busy].tolist(), highs[busy].tolist(), strict=True)):
        if first - offset >= size:
            break
        offset = max(offset, last)
    return offset
