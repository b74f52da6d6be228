"""Which steps a step waits for: the places COUNTER and BARRIER of a plan's edges.

A step is a range of tasks, its tiles. `waits_of` takes steps as plain data, what memory each
touches and where control may go from it, and finds *task ranges*, runs in a row that nothing jumps
between, and for each run the runs that have to be complete before it begins: one that writes what
it reads (the edge of a value), or one that touches memory that it writes (the edge of a place that
is used again). Each run has a counter of its complete runs; since every turn of a loop is counted,
the edge to the turn before is a wait for one run fewer. What follows from other waits is left out,
and where more would be left than meeting costs, the step waits for all before it: a barrier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

MOST_WAITS = 16  # of a step; looking at as many counters costs as much as meeting


class Touch(NamedTuple):
    """Bytes [begin, end) of a memory that a step reads or writes."""

    memory: object
    begin: int
    end: int
    write: bool


class TaskStep(NamedTuple):
    """A step: a "run" of a kernel, "each" where every worker runs it for itself, a "branch" that
    workers take alike, a "jump" (or a branch that each decides for itself), or a step where all
    "meet". next: where control goes on; the number of steps is the end."""

    kind: Literal["run", "each", "branch", "jump", "meet"]
    touches: Sequence[Touch]
    next: Sequence[int]


class Wait(NamedTuple):
    """For a run of `step`: of this turn of its range (threshold 1), or only of the turns before."""

    step: int
    threshold: int


class Waits(NamedTuple):
    """ranges: (first step, steps) of each task range. waits: of runs and branches. barriers: runs
    that wait for all earlier steps."""

    ranges: list[tuple[int, int]]
    waits: dict[int, list[Wait]]
    barriers: set[int]


def waits_of(
    steps: Sequence[TaskStep], entries: Iterable[int] = (), most: int = MOST_WAITS
) -> Waits:
    """The ranges and waits of steps; no step has more than `most` waits, and `entries` wait for
    all."""
    barriers = {*entries}
    touched = _cells(steps)
    while True:
        ranges = task_ranges(steps, barriers)
        needed = _Flow(steps, touched, barriers).run()
        waits = _reduced(steps, ranges, needed)
        crowded = {n for n, own in waits.items() if len(own) > most and steps[n].kind == "run"}
        if not crowded:
            return Waits(ranges, waits, barriers)
        barriers |= crowded


def task_ranges(steps: Sequence[TaskStep], barriers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs in a row: a barrier, or where control may come from elsewhere, begins another one."""
    cuts = {*barriers, *_joins(steps)}
    found: list[tuple[int, int]] = []
    begin = 0
    for number in range(len(steps) + 1):
        runs = number < len(steps) and steps[number].kind == "run"
        if (not runs or number in cuts) and begin < number:
            found.append((begin, number - begin))
            begin = number
        if not runs:
            begin = number + 1
    return found


def _joins(steps: Sequence[TaskStep]) -> set[int]:
    """Where control may come from elsewhere than the step before."""
    return {t for number, step in enumerate(steps) for t in step.next if t != number + 1}


Cells = list[tuple[int, bool]]
State = dict[int, tuple[int, int]]  # of a cell: writers, and readers since, as bits


def _cells(steps: Sequence[TaskStep]) -> list[Cells]:
    """What each step touches, in numbers of cells, which no touch has a part of; whether it
    writes them."""
    edges: dict[object, set[int]] = {}
    for step in steps:
        for touch in step.touches:
            edges.setdefault(touch.memory, set()).update((touch.begin, touch.end))
    starts = {memory: sorted(ends) for memory, ends in edges.items()}
    first: dict[object, int] = {}
    count = 0
    for memory, ends in starts.items():
        first[memory], count = count, count + len(ends)
    found: list[Cells] = []
    for step in steps:
        cells: dict[int, bool] = {}
        for memory, begin, end, write in step.touches:
            ends, base = starts[memory], first[memory]
            for cell in range(bisect_left(ends, begin), bisect_left(ends, end)):
                cells[base + cell] = cells.get(base + cell, False) or write
        found.append([*cells.items()])
    return found


class _Flow:
    """Follows control until nothing changes: who wrote each cell last, and who read it since."""

    def __init__(
        self, steps: Sequence[TaskStep], touched: Sequence[Cells], barriers: set[int]
    ) -> None:
        self.steps, self.touched, self.barriers = steps, touched, barriers
        self.needed = [0] * len(steps)
        self.states: dict[int, State] = {0: {}}  # where control may come from several steps

    def run(self) -> list[int]:
        """The runs that each step needs, as bits."""
        joins = {0, *_joins(self.steps)}
        changed = {0}
        while changed:
            start = min(changed)
            changed.discard(start)
            state = dict(self.states[start])
            number = start
            while number < len(self.steps):
                state = self._step(number, state)
                following = [t for t in self.steps[number].next if t < len(self.steps)]
                for target in following:
                    if (target in joins or target != number + 1) and self._join(target, state):
                        changed.add(target)
                number += 1
                if number in joins or number not in following:
                    break
        return self.needed

    def _join(self, target: int, state: State) -> bool:
        """Adds what one way brings to a step; whether that is new."""
        known = self.states.get(target)
        if known is None:
            self.states[target] = dict(state)
            return True
        new = False
        for cell, (writers, readers) in state.items():
            before = known.get(cell, (0, 0))
            after = before[0] | writers, before[1] | readers
            if after != before:
                known[cell], new = after, True
        return new

    def _step(self, number: int, state: State) -> State:
        kind = self.steps[number].kind
        if kind == "meet" or number in self.barriers:
            state = {}
        needed = 0
        for cell, write in self.touched[number]:
            writers, readers = state.get(cell, (0, 0))
            needed |= writers | readers if write else writers
        self.needed[number] |= needed
        if kind == "branch" and needed:  # every worker has seen them complete
            state = {c: (w & ~needed, r & ~needed) for c, (w, r) in state.items()}
        elif kind == "run":
            for cell, write in self.touched[number]:
                writers, readers = state.get(cell, (0, 0))
                state[cell] = (1 << number, 0) if write else (writers, readers | 1 << number)
        return state


def _reduced(
    steps: Sequence[TaskStep], ranges: Sequence[tuple[int, int]], needed: Sequence[int]
) -> dict[int, list[Wait]]:
    """The waits of every step without those that follow from others."""
    home = [-1] * len(steps)
    for number, (first, count) in enumerate(ranges):
        home[first : first + count] = [number] * count
    turn: dict[int, int] = {}  # of a run, the runs of its range before it that it follows
    direct: dict[int, int] = {}
    for number, bits in enumerate(needed):
        if steps[number].kind not in ("run", "branch"):
            continue
        before = 0
        if home[number] >= 0:
            first = ranges[home[number]][0]
            before = bits & (1 << number) - (1 << first)
        direct[number], covered = _maximal(before, turn)
        turn[number] = covered
    waits: dict[int, list[Wait]] = {}
    others: dict[int, int] = {}  # of a run, what it follows of other turns and ranges
    for number, own in direct.items():
        elsewhere = needed[number]
        if home[number] >= 0:
            first, count = ranges[home[number]]
            elsewhere &= ~((1 << number) - (1 << first))
        inherited = 0
        for step in _bits(own):
            inherited |= others.get(step, 0)
        kept, covered = _maximal(elsewhere & ~inherited, turn)
        others[number] = inherited | covered
        found = [Wait(step, 1) for step in _bits(own)]
        found += [Wait(step, int(home[step] != home[number])) for step in _bits(kept)]
        if found:
            waits[number] = sorted(found)
    return waits


def _maximal(bits: int, before: dict[int, int]) -> tuple[int, int]:
    """Of some runs those that none of the others follows; all that they follow, with themselves."""
    kept = covered = 0
    for step in reversed([*_bits(bits)]):
        if not covered >> step & 1:
            kept |= 1 << step
            covered |= 1 << step | before.get(step, 0)
    return kept, covered


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit
