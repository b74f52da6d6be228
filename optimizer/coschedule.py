"""Orders in which several steps can run at a time: list scheduling by longest path.

Workers take the first step of a task range that is ready, so the order of steps is their schedule,
and memory that is used again orders steps that nothing else does. `makespan` knows those edges too.
How many workers there are is known when a program is loaded; orders are made for `WORKERS`.

Within a stretch of steps that nothing jumps between, a step moves only past steps that touch no
memory of its own. What every worker runs for itself goes behind what does not need it, since it
ends a task range.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from .machine import Sync
from .schedule import Buffer, CopyStep, RunStep, Schedule, reads, writes
from .tasks import Wait, Waits

WORKERS = 2
GAIN = 0.05  # of the makespan: what is predicted to gain less is left as it is


class StepTime(NamedTuple):
    """Seconds of a step on one worker; the tiles that several may share, 1: none."""

    alone: float
    tiles: int

    def shared(self, workers: int) -> float:
        """Seconds on several workers, each of which takes whole tiles."""
        return self.alone * -(-self.tiles // workers) / self.tiles


def stretches(schedule: Schedule) -> list[tuple[int, int]]:
    """(first, behind the last) of the steps in a row that run kernels, nothing between them."""
    starts = set(schedule.labels.values())
    found: list[tuple[int, int]] = []
    begin = 0
    for number in range(len(schedule.steps) + 1):
        runs = number < len(schedule.steps) and isinstance(
            schedule.steps[number], RunStep | CopyStep
        )
        if (not runs or number in starts) and begin < number:
            found.append((begin, number))
            begin = number
        if not runs:
            begin = number + 1
    return found


Before = dict[int, set[int]]  # of each step of a stretch, as `dependences` says


class Listed(NamedTuple):
    """The numbers of all steps in a new order; free: no step was held back by where it stood."""

    numbers: tuple[int, ...]
    free: bool


def listed(
    schedule: Schedule,
    depends: Mapping[tuple[int, int], Before],
    times: Mapping[int, StepTime],
    each: frozenset[int],
    reach: int,
) -> Listed:
    """An order by longest path, in which no step comes before one that stood more than `reach`
    steps before it. depends: of each stretch of the schedule."""
    order, free = [*range(len(schedule.steps))], True
    for (first, last), before in depends.items():
        order[first:last], all_free = _by_longest_path(
            range(first, last), before, times, each, reach
        )
        free &= all_free
    return Listed((*order,), free)


def reordered(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """The same steps in another order, in which labels keep their places."""
    return replace(schedule, steps=[schedule.steps[number] for number in order], lives=None)


def dependences(schedule: Schedule, first: int, last: int) -> dict[int, set[int]]:
    """Of each step of a stretch those before it that touch its memory, one of both writing."""
    writers: dict[Buffer, int] = {}
    readers: dict[Buffer, list[int]] = {}
    before: dict[int, set[int]] = {}
    for number in range(first, last):
        step = schedule.steps[number]
        read, written = _memories(reads(step)), _memories(writes(step))
        own = {writers[buffer] for buffer in (*read, *written) if buffer in writers}
        for buffer in written:
            own.update(readers.pop(buffer, ()))
            writers[buffer] = number
        for buffer in read:
            if buffer not in written:
                readers.setdefault(buffer, []).append(number)
        before[number] = own
    return before


def _memories(buffers: Sequence[Buffer]) -> list[Buffer]:
    """An output stands for what it replaces."""
    return [buffer.replaces or buffer for buffer in buffers]


def _by_longest_path(
    steps: Sequence[int],
    before: Mapping[int, set[int]],
    times: Mapping[int, StepTime],
    each: frozenset[int],
    reach: int,
) -> tuple[list[int], bool]:
    after: dict[int, list[int]] = {number: [] for number in steps}
    for number in steps:
        for other in sorted(before[number]):
            after[other].append(number)
    path: dict[int, float] = {}
    for number in reversed(steps):
        path[number] = times[number].alone + max((path[n] for n in after[number]), default=0.0)
    waiting = {number: len(before[number]) for number in steps}
    ready = [number for number in steps if not waiting[number]]
    clocks = [(0.0, worker) for worker in range(WORKERS)]
    begun: dict[int, float] = dict.fromkeys(ready, 0.0)  # when all before a step is complete
    order: list[int] = []
    free = True
    lowest = 0  # position of the first step that has no place yet
    placed: set[int] = set()
    while ready:
        while steps[lowest] in placed:
            lowest += 1
        now, worker = heapq.heappop(clocks)
        near = [number for number in ready if number - steps[lowest] <= reach]
        free &= len(near) == len(ready)
        number = min(
            near or [min(ready)],
            key=lambda n: (n in each, max(begun[n], now), -path[n], n),
        )
        ready.remove(number)
        placed.add(number)
        order.append(number)
        end = max(now, begun[number]) + times[number].alone
        heapq.heappush(clocks, (now if number in each else end, worker))
        for other in after[number]:
            waiting[other] -= 1
            begun[other] = max(begun.get(other, 0.0), end)
            if not waiting[other]:
                ready.append(other)
    return order, free


def soonest(
    depends: Mapping[tuple[int, int], Before],
    at: Mapping[int, int],
    times: Mapping[int, StepTime],
    each: frozenset[int],
    sync: Sync,
) -> float:
    """`makespan` of an order in which no memory is used again, and what workers do for themselves
    takes no time: where memory is placed, it takes longer. depends: of each stretch, in another
    order of its steps; at: where they stand; times and each: by that."""
    ideal = Waits([], {}, set())
    for (first, last), before in depends.items():
        if not each.issuperset(range(first, last)):
            ideal.ranges.append((first, last - first))
        for number, others in before.items():
            if at[number] not in each:
                own = sorted({at[other] for other in others} - each)
                ideal.waits[at[number]] = [Wait(other, 1) for other in own]
    free = {number: StepTime(0.0, 1) for number in each}
    return makespan(ideal, {**times, **free}, WORKERS, sync)


def makespan(waits: Waits, times: Mapping[int, StepTime], workers: int, sync: Sync) -> float:
    """Seconds in which workers run each task range once, one after the other."""
    total = 0.0
    for first, count in waits.ranges:
        steps = range(first, first + count)
        total += _range_time(steps, waits, times, workers, sync) + sync.barrier
    return total


class _Running:
    """A step under way: seconds of work that are left, and how many workers take part."""

    def __init__(self, time: StepTime) -> None:
        self.time, self.left, self.workers = time, time.alone, 1

    def joined(self) -> None:
        """One more worker takes tiles; who waits for the step waits for half of its last one."""
        self.workers += 1
        self.left += self.workers * self.time.alone / self.time.tiles / 2


def _range_time(
    steps: range,
    waits: Waits,
    times: Mapping[int, StepTime],
    workers: int,
    sync: Sync,
) -> float:
    """As workers do it: each begins the first step that is ready, or helps with the first one that
    is under way and has a tile for it. Those who complete a step together meet at its end."""
    waiting: dict[int, int] = {}
    after: dict[int, list[int]] = {}
    for number in steps:
        own = [w.step for w in waits.waits.get(number, ()) if w.step in steps and w.threshold]
        waiting[number] = len(own)
        for other in own:
            after.setdefault(other, []).append(number)
    ready = [number for number in steps if not waiting[number]]
    heapq.heapify(ready)
    running: dict[int, _Running] = {}
    free, now = workers, 0.0
    while ready or running:
        while ready and free:
            number = heapq.heappop(ready)
            running[number] = _Running(times[number])
            free -= 1
        for number in sorted(running) if free else ():
            one = running[number]
            while free and one.workers < one.time.tiles:
                one.joined()
                free -= 1
        passed, number = min((one.left / one.workers, n) for n, one in running.items())
        for one in running.values():
            one.left -= passed * one.workers
        complete = running.pop(number)
        free += complete.workers
        if number in after:
            passed += sync.counter if complete.workers == 1 else sync.barrier
        now += passed
        for other in after.get(number, ()):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    return now


def barrier_time(
    barriers: Sequence[bool], times: Mapping[int, StepTime], workers: int, sync: Sync
) -> float:
    """Seconds of the same where steps wait for all before them: what runs between two barriers is
    shared as well as it can be, and the others wait for half of the last tile."""
    total = work = longest = last = 0.0
    for number, waits in enumerate(barriers):
        if waits:
            total += max(work / workers + last, longest) + sync.barrier
            work = longest = last = 0.0
        if number in times:
            time = times[number]
            work += time.alone
            longest = max(longest, time.shared(min(workers, time.tiles)))
            last = time.alone / time.tiles / 2
    return total + max(work / workers + last, longest)
