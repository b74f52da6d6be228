"""How the steps of a schedule share the workers of a CPU: by counters, in an order made for that,
or by barriers in the order that needs least memory.

Counters are taken where a loop has scalars that every worker can compute for itself, and where the
time in which workers are done is predicted to be shorter by `GAIN`. Of several orders the one is
taken that is predicted to be fastest, if it gains as much over the given one, and if its arena is
larger than its bound by the part `overlap` at most, or by what a core's own cache hardly notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..specs.generated import plan_pb2
from ..workers import step_pays
from .coschedule import (
    GAIN,
    WORKERS,
    Before,
    StepTime,
    barrier_time,
    dependences,
    listed,
    makespan,
    reordered,
    soonest,
    stretches,
)
from .cost.model import step_seconds
from .hazards import BufferPlaces, Hazards, in_arena, places
from .machine import Machine, Sync
from .memory import Placement
from .schedule import BranchStep, Buffer, JumpStep, Schedule, SwitchStep, reads, writes
from .tasks import MOST_WAITS, TaskStep, Touch, waits_of
from .worker_memory import WorkerMemory, worker_memory

# How many steps a step may be ahead of where it stood, and for how many steps more than a value
# lives its memory is kept, so that steps which come next need not wait for its last readers.
_ANY = 1 << 30
FREEDOMS = ((8, 0), (8, 1), (_ANY, 0), (_ANY, 1), (_ANY, 2), (_ANY, 4), (_ANY, 8))
MANY = 400  # steps, from which on fewer of them are tried
_UNNOTICED = 0.25  # of the cache of a core: so much more memory costs no time


def task_steps(
    schedule: Schedule,
    found: BufferPlaces,
    own: WorkerMemory,
    scratch: Mapping[int, Buffer] = MappingProxyType({}),
) -> list[TaskStep]:
    """The steps as plain data; scratch: memory that steps have for themselves alone."""
    labels, known = schedule.labels, dict[Buffer, tuple[object, int, int]]()
    steps: list[TaskStep] = []
    for number, step in enumerate(schedule.steps):
        kind, following = "run", [number + 1]
        if isinstance(step, JumpStep):
            kind, following = "jump", [labels[step.target]]
        elif isinstance(step, BranchStep):
            kind = "branch"
            following.append(labels[step.target])
        elif isinstance(step, SwitchStep):
            kind = "branch"
            following = [labels[target] for target in step.targets]
        if number in own.steps:
            kind = "each" if kind == "run" else "jump"
        touches = [(b, False) for b in reads(step)] + [(b, True) for b in writes(step)]
        touches += [(scratch[number], True)] if number in scratch else []
        shared = [(b, write) for b, write in touches if b not in own.offsets]
        known.update({b: found.span(b) for b, _ in shared if b not in known})
        spans = [Touch(*known[b], write) for b, write in shared]
        steps.append(TaskStep(kind, spans, following))
    return steps


def step_time(machine: Machine, flops: float, moved: float, tiles: int) -> StepTime:
    """How long a step takes; tiles: how many of them workers may take."""
    divided = max(tiles, 1) if step_pays(flops, moved) else 1
    return StepTime(step_seconds(machine, flops, moved), divided)


def count_runs(
    plan: plan_pb2.Plan,
    schedule: Schedule,
    found: BufferPlaces,
    own: WorkerMemory,
    scratch: Mapping[int, Buffer] = MappingProxyType({}),
    most: int = MOST_WAITS,
) -> None:
    """Puts the runs of a plan into task ranges, with counters and waits in place of barriers.

    scratch: as of `task_steps`. most: waits of a step, beyond which it is a barrier.
    """
    steps = task_steps(schedule, found, own, scratch)
    waits = waits_of(steps, entries(schedule, own), most)
    counters: dict[int, int] = {}
    for first, count in waits.ranges:
        plan.ranges.add(first=first, steps=count)
        for number in range(first, first + count):
            counters[number] = len(counters)
            run = plan.steps[number].run
            run.signal = len(counters)
    for number, step in enumerate(plan.steps):
        action = step.WhichOneof("action")
        if action is None or action == "jump":
            continue
        message = getattr(step, action)
        message.wait = number in waits.barriers
        message.each = number in own.steps
        for wait in waits.waits.get(number, ()):
            message.waits.add(counter=counters[wait.step], threshold=wait.threshold)
    plan.worker_bytes = own.bytes


class Counted(NamedTuple):
    """order: numbers of the given steps in the new schedule."""

    schedule: Schedule
    order: Sequence[int]
    own: WorkerMemory
    kept: int


def counted(
    schedule: Schedule,
    times: Mapping[int, StepTime],
    cheap: Callable[[int], bool],
    machine: Machine,
    overlap: float,
) -> Counted | None:
    """How counters serve the schedule best; None where barriers do.

    times: of the steps that run kernels. cheap: as of `worker_memory`. overlap: the part by which
    the arena may be larger than its bound.
    """
    sync = machine.sync
    own = worker_memory(schedule, cheap)
    given = _tried(schedule, own, times, sync, [*range(len(schedule.steps))])
    met = barrier_time(_barriers(given), times, WORKERS, sync)
    depends = {
        (first, last): dependences(schedule, first, last) for first, last in stretches(schedule)
    }
    if not own.steps and _least(depends, times) > (1 - GAIN) * met:
        return None
    bound = given.placement.bound_bytes
    room = max(overlap * bound, machine.levels[1].capacity * _UNNOTICED) if overlap else 0
    best = given
    orders: dict[int, _TriedOrder] = {}  # by how many steps a step may be ahead
    free = False
    tried = {(tuple(range(len(schedule.steps))), 0)}
    for reach, asked in FREEDOMS if len(schedule.steps) < MANY else FREEDOMS[1:4:2]:
        if reach not in orders and free:  # an order of less freedom is this one
            orders[reach] = [*orders.values()][-1]
        elif reach not in orders:
            numbers, free = listed(schedule, depends, times, own.steps, reach)
            orders[reach] = _order(schedule, depends, own, times, sync, numbers)
        made, kept = orders[reach], asked if overlap else 0
        # Memory is kept longer for the time alone.
        most = (1 - GAIN) * best.time if kept > best.kept else best.time
        key = made.numbers, kept
        if key in tried or made.soonest > (most if own.steps else min(most, (1 - GAIN) * met)):
            continue
        tried.add(key)
        trial = _tried(made.schedule, made.own, made.times, sync, made.numbers, kept)
        if trial.placement.arena_bytes > bound + room:
            continue
        if trial.time < (1 - GAIN) * best.time or _fewer(trial, best):
            best = trial
    if best.time > (1 - GAIN) * met and not own.steps:
        return None
    return Counted(best.schedule, best.order, best.own, best.kept)


class _TriedOrder(NamedTuple):
    """An order of a schedule's steps, by their numbers in the given one. soonest: the seconds that
    it takes at least."""

    schedule: Schedule
    numbers: tuple[int, ...]
    own: WorkerMemory
    times: Mapping[int, StepTime]
    soonest: float


def _order(
    schedule: Schedule,
    depends: Mapping[tuple[int, int], Before],
    own: WorkerMemory,
    times: Mapping[int, StepTime],
    sync: Sync,
    numbers: tuple[int, ...],
) -> _TriedOrder:
    new, steps = reordered(schedule, numbers), own.steps
    each = frozenset(number for number, old in enumerate(numbers) if old in steps)
    moved = {number: times[old] for number, old in enumerate(numbers) if old in times}
    at = {old: number for number, old in enumerate(numbers)}
    least = soonest(depends, at, moved, each, sync)
    return _TriedOrder(new, numbers, own._replace(steps=each), moved, least)


class _Trial(NamedTuple):
    """What an order comes to."""

    schedule: Schedule
    order: Sequence[int]
    own: WorkerMemory
    found: BufferPlaces
    placement: Placement
    waits: int
    time: float
    kept: int


def _tried(
    schedule: Schedule,
    own: WorkerMemory,
    times: Mapping[int, StepTime],
    sync: Sync,
    order: Sequence[int],
    kept: int = 0,
) -> _Trial:
    found = places(schedule, own.offsets, kept)
    placement = in_arena(found, 0)
    waits = waits_of(task_steps(schedule, found, own), entries(schedule, own))
    time = makespan(waits, times, WORKERS, sync)
    count = len(waits.ranges) + sum(map(len, waits.waits.values()))
    return _Trial(schedule, order, own, found, placement, count, time, kept)


def _fewer(trial: _Trial, given: _Trial) -> bool:
    """Whether an order has fewer waits, and loses neither time nor memory."""
    larger = trial.placement.arena_bytes > given.placement.arena_bytes
    return trial.waits < given.waits and trial.time <= given.time and not larger


def entries(schedule: Schedule, own: WorkerMemory) -> set[int]:
    """Steps of each worker before loops: all wait there, so no turn waits for what is before."""
    begins = {
        schedule.labels[s.target] for s in schedule.steps if isinstance(s, JumpStep) and s.back
    }
    return {begin - 1 for begin in begins if begin - 1 in own.steps}


def _least(depends: Mapping[tuple[int, int], Before], times: Mapping[int, StepTime]) -> float:
    """Seconds in which workers can be done at best, whatever memory is used again."""
    total = 0.0
    for (first, last), before in depends.items():
        end: dict[int, float] = {}
        for number in range(first, last):
            begin = max((end[other] for other in before[number]), default=0.0)
            end[number] = begin + times[number].shared(min(WORKERS, times[number].tiles))
        work = sum(times[number].alone for number in range(first, last))
        total += max(work / WORKERS, *end.values())
    return total


def _barriers(trial: _Trial) -> list[bool]:
    """Which steps of an order would wait for all before them."""
    hazards, starts = Hazards(trial.found), set(trial.schedule.labels.values())
    waits: list[bool] = []
    for number, step in enumerate(trial.schedule.steps):
        if number in starts:
            hazards.unknown()
        decided = not isinstance(step, JumpStep)
        waits.append(decided and hazards.step(reads(step), writes(step)))
    return waits
