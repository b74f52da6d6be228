"""How the steps of a schedule share the workers of a CPU: by counters, in an order made for it, or by
barriers in the order that needs least memory.

Counters are taken where a loop has scalars that every worker can compute for itself, and where the
time in which workers are done is predicted to be shorter by `GAIN`. The order that is taken is the
first of several, of less and less freedom, that gains as much over the given one and whose arena is
larger than its bound by `overlap` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..hlo.deciding import largest
from .coschedule import (
    GAIN,
    WORKERS,
    StepTime,
    barrier_time,
    dependences,
    listed,
    makespan,
    reordered,
    stretches,
)
from .machine import Sync
from .memory import Interval, Placement, place
from .output_reuse import Reused, lives
from .schedule import BranchStep, Buffer, CopyStep, JumpStep, RunStep, Schedule, SwitchStep
from .tasks import TaskStep, Touch, waits_of
from .worker_memory import WorkerMemory, worker_memory

REACHES = (1 << 30, 24, 8)  # how many steps a step may be ahead of where it stood


@dataclass
class Places:
    """Where a schedule's buffers lie, but for those that each worker has. lives: of those of the
    arena, and of those within outputs; offsets: of those in the arena."""

    lives: Mapping[Buffer, tuple[int, int]]
    reused: Mapping[Buffer, Reused]
    offsets: Mapping[Buffer, int] = field(default_factory=dict)

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


def places(schedule: Schedule, own: Mapping[Buffer, int]) -> Places:
    """The places of a schedule's buffers without offsets, and without what is each worker's own."""
    ranges, reused = lives(schedule)
    kept = {buffer: life for buffer, life in ranges.items() if buffer not in own}
    return Places(kept, {b: where for b, where in reused.items() if b not in own})


def in_arena(found: Places, nodes: int) -> Placement:
    """Gives arena buffers their offsets; nodes: states that searches may go through."""
    buffers = [buffer for buffer in found.lives if buffer not in found.reused]
    intervals = [Interval(largest(b.bytes), *found.lives[b]) for b in buffers]
    placement = place(intervals, nodes=nodes)
    found.offsets = dict(zip(buffers, placement.offsets, strict=True))
    return placement


def task_steps(schedule: Schedule, found: Places, own: WorkerMemory) -> list[TaskStep]:
    """The steps as plain data."""
    labels = schedule.labels
    steps: list[TaskStep] = []
    for number, step in enumerate(schedule.steps):
        kind, following = "run", [number + 1]
        reads: Sequence[Buffer] = ()
        writes: Sequence[Buffer] = ()
        if isinstance(step, RunStep):
            reads, writes = step.operands, step.results
        elif isinstance(step, CopyStep):
            reads, writes = [step.source], [step.target]
        elif isinstance(step, JumpStep):
            kind, following = "jump", [labels[step.target]]
        elif isinstance(step, BranchStep):
            kind, reads = "branch", [step.condition]
            following.append(labels[step.target])
        elif isinstance(step, SwitchStep):
            kind, reads = "branch", [step.index]
            following = [labels[target] for target in step.targets]
        if number in own.steps:
            kind = "each" if kind == "run" else "jump"
        touches = [(buffer, False) for buffer in reads] + [(buffer, True) for buffer in writes]
        spans = [Touch(*found.span(b), write) for b, write in touches if b not in own.offsets]
        steps.append(TaskStep(kind, spans, following))
    return steps


class Counted(NamedTuple):
    """order: numbers of the given steps in the new schedule. beside: of each new step, how many
    others may run with it."""

    schedule: Schedule
    order: Sequence[int]
    own: WorkerMemory
    beside: Mapping[int, int]


def counted(
    schedule: Schedule,
    times: Mapping[int, StepTime],
    cheap: Callable[[int], bool],
    sync: Sync,
    overlap: float,
) -> Counted | None:
    """How counters serve the schedule best; None where barriers do.

    times: of the steps that run kernels. cheap: as of `worker_memory`. overlap: the part by which
    the arena may be larger than its bound.
    """
    own = worker_memory(schedule, cheap)
    given = _tried(schedule, own, times, sync, [*range(len(schedule.steps))])
    met = barrier_time(barriers(given.steps), times, WORKERS, sync)
    limit = (1 + overlap) * given.placement.bound_bytes
    if not own.steps and _least(schedule, times) > (1 - GAIN) * met:
        return None
    best = given
    for reach in REACHES:
        order = listed(schedule, times, own.steps, reach)
        own_steps = frozenset(n for n, old in enumerate(order) if old in own.steps)
        moved = {number: times[old] for number, old in enumerate(order) if old in times}
        trial = _tried(
            reordered(schedule, order), own._replace(steps=own_steps), moved, sync, order
        )
        fits = trial.placement.arena_bytes <= limit
        if fits and (trial.time <= (1 - GAIN) * given.time or _fewer(trial, given)):
            best = trial
            break
    if best.time > (1 - GAIN) * met and not own.steps:
        return None
    return Counted(best.schedule, best.order, best.own, best.beside)


class _Trial(NamedTuple):
    """What an order comes to."""

    schedule: Schedule
    order: Sequence[int]
    own: WorkerMemory
    steps: list[TaskStep]
    placement: Placement
    waits: int
    time: float
    beside: Mapping[int, int]


def _tried(
    schedule: Schedule,
    own: WorkerMemory,
    times: Mapping[int, StepTime],
    sync: Sync,
    order: Sequence[int],
) -> _Trial:
    found = places(schedule, own.offsets)
    placement = in_arena(found, 0)
    steps = task_steps(schedule, found, own)
    waits = waits_of(steps, entries(schedule, own))
    time, beside = makespan(waits, times, WORKERS, sync)
    count = len(waits.ranges) + sum(map(len, waits.waits.values()))
    return _Trial(schedule, order, own, steps, placement, count, time, beside)


def _fewer(trial: _Trial, given: _Trial) -> bool:
    """Whether an order has fewer waits and loses no time."""
    return trial.waits < given.waits and trial.time <= given.time


def entries(schedule: Schedule, own: WorkerMemory) -> set[int]:
    """Steps of each worker before loops: where all wait there, no turn waits for what is before."""
    begins = {
        schedule.labels[s.target] for s in schedule.steps if isinstance(s, JumpStep) and s.back
    }
    return {begin - 1 for begin in begins if begin - 1 in own.steps}


def _least(schedule: Schedule, times: Mapping[int, StepTime]) -> float:
    """Seconds in which workers can be done at best, whatever memory is used again."""
    total = 0.0
    for first, last in stretches(schedule):
        end: dict[int, float] = {}
        before = dependences(schedule, first, last)
        for number in range(first, last):
            begin = max((end[other] for other in before[number]), default=0.0)
            end[number] = begin + times[number].shared(min(WORKERS, times[number].tiles))
        work = sum(times[number].alone for number in range(first, last))
        total += max(work / WORKERS, *end.values())
    return total


def barriers(steps: Sequence[TaskStep]) -> list[bool]:
    """Which steps would wait for all before them: those that touch what an unfinished step does,
    one of both writing, and those that control may reach from elsewhere."""
    targets = {t for number, step in enumerate(steps) for t in step.next if t != number + 1}
    pending: dict[object, list[tuple[int, int, bool]]] = {}
    found: list[bool] = []
    for number, step in enumerate(steps):
        forced = number in targets
        waits = forced or any(
            touch.begin < end and begin < touch.end and (touch.write or write)
            for touch in step.touches
            for begin, end, write in pending.get(touch.memory, ())
        )
        if waits:
            pending = {}
        for memory, begin, end, write in step.touches:
            pending.setdefault(memory, []).append((begin, end, write))
        found.append(waits)
    return found
