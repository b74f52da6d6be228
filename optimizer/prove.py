"""Proves of a plan with task ranges that its waits order what has to be ordered.

Shares no code with tasks.py, which finds the waits, nor with what places buffers. Along all ways
that control can take it follows what a worker knows to be complete: of each step that was walked
last, which steps were complete when it began. Then every two steps that touch the same bytes, one
of them writing, have to be in order wherever one can come after the other: so values are there
when they are read, and memory is used again when nobody needs what it held. Waits name runs that
stand before in the order of the walk, so that no two wait for each other, and every counter is one
step's.

Whatever is wrong is a CompilerBug that names the steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..hlo.errors import CompilerBug
from ..specs.generated import plan_pb2
from .certify import ReusedPlace
from .prove_merges import check_merges
from .prove_persistent import check_persistent

BIT = 1  # of step number 0


def prove(
    plan: plan_pb2.Plan,
    results: Mapping[int, int],
    inside: Sequence[ReusedPlace] = (),
    resident: int = 0,
) -> None:
    """Raise CompilerBug unless the waits of a plan with task ranges, what it merges, and its
    persistent launch are right; nothing is asked of plans without.

    results: of each step that runs a kernel, how many of its arguments, the last ones, it writes.
    inside: the values that live in outputs. resident: blocks that the device holds at a time.
    """
    if not (plan.ranges or plan.worker_bytes or plan.merges or plan.HasField("persistent")):
        return
    program = _Program(plan, results, inside)
    if plan.HasField("persistent"):
        check_persistent(plan, program.after, program.accesses, _overlap, resident)
        if not plan.ranges:
            return
    meets = [program.meets(number) for number in range(program.count)]
    check_merges(plan, program.after, program.accesses, _overlap, program.waits, meets)
    _check_own(program)
    known = _Knowledge(program).run()
    _check_order(program, known)


class _Access(NamedTuple):
    memory: object
    begin: int
    end: int
    write: bool


class _Program:
    """The plan as this file looks at it. home: the range of each step, -1: none. after: where
    control goes on. waits: (step, threshold) of each step. accesses: what others may touch too."""

    def __init__(
        self, plan: plan_pb2.Plan, results: Mapping[int, int], inside: Sequence[ReusedPlace]
    ) -> None:
        self.plan, self.results = plan, results
        # What lives at a byte of an output, by its first step.
        self.inside: dict[tuple[int, int], list[ReusedPlace]] = {}
        for place in sorted(inside, key=lambda one: one.first):
            self.inside.setdefault((place.owner, place.offset), []).append(place)
        self.count = len(plan.steps)
        self.home = [-1] * self.count
        owner: dict[int, int] = {}
        for number, one in enumerate(plan.ranges):
            for step in range(one.first, one.first + one.steps):
                run = plan.steps[step].run if step < self.count else None
                if run is None or not run.signal or run.each or self.home[step] >= 0:
                    raise CompilerBug(f"step {step} is no task of range {number} alone")
                if owner.setdefault(run.signal, step) != step:
                    raise CompilerBug(f"steps {owner[run.signal]} and {step} have one counter")
                if run.wait and step != one.first:
                    raise CompilerBug(f"step {step} is a barrier within range {number}")
                self.home[step] = number
        self.first = [one.first for one in plan.ranges]
        self.after = [self._after(number) for number in range(self.count)]
        self.waits = [self._waits(number, owner) for number in range(self.count)]
        self.accesses = [self._accesses(number) for number in range(self.count)]

    def action(self, number: int) -> Any:
        step = self.plan.steps[number]
        name = step.WhichOneof("action")
        if name is None:
            raise CompilerBug(f"step {number} does nothing")
        return getattr(step, name)

    def kind(self, number: int) -> str:
        return self.plan.steps[number].WhichOneof("action") or ""

    def meets(self, number: int) -> bool:
        """Whether all earlier steps are complete before this one."""
        meeting = self.kind(number) in ("exchange", "collective")
        return meeting or getattr(self.action(number), "wait", False)

    def _after(self, number: int) -> list[int]:
        action, kind = self.action(number), self.kind(number)
        if kind == "jump":
            found = [action.target]
        elif kind == "switch":
            found = [*action.targets]
        else:
            found = [number + 1]
            if kind == "branch_if_false":
                found.append(action.target)
        for target in found:
            if target > self.count:
                raise CompilerBug(f"step {number} goes on behind the last step")
            if target == self.count:
                continue
            inside = self.home[target] >= 0
            on = target == number + 1 and self.home[number] == self.home[target]
            if inside and not on and target != self.first[self.home[target]]:
                raise CompilerBug(f"step {number} leads into the middle of a task range")
        return found

    def _waits(self, number: int, owner: Mapping[int, int]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for wait in getattr(self.action(number), "waits", ()):
            step = owner.get(wait.counter + 1)
            if step is None or wait.threshold > 1:
                raise CompilerBug(f"step {number} waits for what no counter counts")
            same = self.home[number] >= 0 and self.home[number] == self.home[step]
            if same and wait.threshold and step >= number:
                raise CompilerBug(f"step {number} waits for step {step}, which comes after it")
            found.append((step, wait.threshold))
        if found and self.kind(number) == "run" and self.home[number] < 0:
            raise CompilerBug(f"step {number} waits for counters outside of task ranges")
        return found

    def _accesses(self, number: int) -> list[_Access]:
        action, kind = self.action(number), self.kind(number)
        if kind == "jump":
            return []
        if kind == "run":
            reads = len(action.arguments) - self.results.get(number, 0)
            found = [(one, place >= reads) for place, one in enumerate(action.arguments)]
        elif kind == "branch_if_false":
            found = [(action.condition, False)]
        elif kind == "switch":
            found = [(action.index, False)]
        else:
            found = [(action.operand, False), (action.result, True)]
        if kind == "run" and action.HasField("scratch"):
            found.append((action.scratch, True))
        return [self._access(number, argument, write) for argument, write in found]

    def _access(self, number: int, argument: Any, write: bool) -> _Access:
        buffer = self.plan.buffers[argument.buffer]
        begin = buffer.offset + argument.offset
        memory: object = buffer.place
        if buffer.place == plan_pb2.INPUT:
            memory = "argument", buffer.index
        elif buffer.place == plan_pb2.OUTPUT:  # it may have the memory of what it replaces
            memory = "result", buffer.index
            if buffer.HasField("replaces"):
                memory = "argument", buffer.replaces
        elif buffer.place == plan_pb2.WEIGHT:
            memory = "weight", buffer.weight
        here = self.inside.get((argument.buffer, argument.offset), ())
        behind = bisect_right(here, number, key=lambda one: one.first)
        size = buffer.bytes
        if behind and number <= here[behind - 1].last:
            size = here[behind - 1].bytes
        elif argument.offset:
            raise CompilerBug(f"step {number} points at a byte where nothing lives")
        return _Access(memory, begin, begin + max(size, 1), write)


def _check_own(program: _Program) -> None:
    """Memory of workers is written by steps that each of them runs, and these read nothing that
    others write."""
    written = {
        access.memory
        for accesses in program.accesses
        for access in accesses
        if access.write and access.memory != plan_pb2.WORKER
    }
    for number, accesses in enumerate(program.accesses):
        each = getattr(program.action(number), "each", False)
        for access in accesses:
            own = access.memory == plan_pb2.WORKER
            if own and access.write and not each:
                raise CompilerBug(f"step {number} writes one worker's memory alone")
            if each and not own and (access.write or access.memory in written):
                raise CompilerBug(f"step {number} of each worker touches what others write")
            if own and not each and program.kind(number) != "run":
                raise CompilerBug(f"step {number} decides in one worker's memory")


def _overlap(left: _Access, right: _Access) -> bool:
    same = left.memory == right.memory
    return same and left.begin < right.end and right.begin < left.end


class _Knowledge:
    """What is complete when a step begins: `run` gives for each step the steps all of whose runs so
    far are complete, as bits; a step that has not run is."""

    def __init__(self, program: _Program) -> None:
        self.program = program
        self.all = (BIT << program.count) - 1
        self.known = [0] * program.count
        # Where a stretch begins: of each step what was complete when it ran last; of the worker.
        self.states: dict[int, tuple[dict[int, int], int]] = {}

    def run(self) -> list[int]:
        program = self.program
        starts = {0} | {t for n, after in enumerate(program.after) for t in after if t != n + 1}
        self.states[0] = {}, self.all
        changed = {0}
        while changed:
            number = min(changed)
            changed.discard(number)
            for target, state in self._stretch(number, starts):
                if target < program.count and self._meet(target, state):
                    changed.add(target)
        return self.known

    def _stretch(
        self, number: int, starts: set[int]
    ) -> Iterator[tuple[int, tuple[dict[int, int], int]]]:
        """Walks from a start to the next one; the states that leave it, and where to."""
        program = self.program
        before, worker = self.states[number]
        walked = 0  # in this stretch: what was known of these before is over
        own: dict[int, int] = {}
        while True:
            if program.meets(number):
                worker = self.all
            known = worker
            for step, threshold in program.waits[number]:
                same = program.home[step] == program.home[number]
                if threshold and step in own:
                    known |= _since(own[step], walked, step) | BIT << step
                elif threshold or (same and step >= number):
                    known |= before.get(step, 0) & ~walked | BIT << step
            self.known[number] = known
            kind = program.kind(number)
            if kind == "run" and program.home[number] < 0 and not program.action(number).each:
                raise CompilerBug(f"step {number} stands in no task range")
            if kind in ("branch_if_false", "switch") and not program.action(number).each:
                # Without waits of its own it waits for all.
                worker = known if program.waits[number] else self.all
            if program.home[number] >= 0:
                bit = BIT << number
                walked |= bit
                worker &= ~bit
                own[number] = known & ~bit
            following = program.after[number]
            leaving = [t for t in following if t != number + 1 or t in starts]
            if leaving or number + 1 not in following:
                state = {s: told & ~walked for s, told in before.items() if s not in own}
                state |= {s: _since(told, walked, s) for s, told in own.items()}
                for target in leaving:
                    yield target, (state, worker)
            number += 1
            if number in starts or number not in following or number >= program.count:
                return

    def _meet(self, target: int, state: tuple[dict[int, int], int]) -> bool:
        """Only what all ways know is known; whether that is less than before."""
        told, worker = state
        if target not in self.states:
            self.states[target] = dict(told), worker
            return True
        before, before_worker = self.states[target]
        # Of a step that has not run on a way, that way knows what its worker does.
        after = {
            step: (before.get(step, 0) | before_worker) & (told.get(step, 0) | worker)
            for step in {**before, **told}
        }
        if after == before and before_worker & worker == before_worker:
            return False
        self.states[target] = after, before_worker & worker
        return True


def _since(known: int, walked: int, step: int) -> int:
    """Of what was known when a step began, what still holds: those behind it have run again."""
    return known & ~(walked >> step + 1 << step + 1)


def _check_order(program: _Program, known: Sequence[int]) -> None:
    """Steps that touch the same bytes, one of them writing, are in order."""
    cells = _Cells(program)
    earlier = _earlier(program)
    doubtful: dict[int, int] = {}  # of a step, those after it of which `_Knowledge` cannot say
    for number, accesses in enumerate(program.accesses):
        conflicts = 0
        for access in accesses:
            if access.memory != plan_pb2.WORKER:
                conflicts |= cells.conflicts(access)
        for other in _bits(conflicts & earlier[number] & ~known[number]):
            doubtful[other] = doubtful.get(other, 0) | BIT << number
    for other, numbers in doubtful.items():
        for number in _bits(_unknown_on_a_way(program, other, numbers)):
            raise CompilerBug(
                f"step {number} may begin before step {other} is complete, and both touch the "
                "same memory"
            )


class _Cells:
    """Bytes between any two places where what tasks touch begins or ends: of each of these cells
    of a memory, which tasks write and which touch it, as bits. Branches and meetings are in order
    by the walk; what is each worker's own, too."""

    def __init__(self, program: _Program) -> None:
        self.edges: dict[object, list[int]] = {}
        tasks = [n for n in range(program.count) if program.home[n] >= 0]
        found: dict[object, set[int]] = {}
        for number in tasks:
            for memory, begin, end, _ in program.accesses[number]:
                found.setdefault(memory, set()).update((begin, end))
        self.edges = {memory: sorted(edges) for memory, edges in found.items()}
        self.writers = {memory: [0] * len(edges) for memory, edges in self.edges.items()}
        self.touching = {memory: [0] * len(edges) for memory, edges in self.edges.items()}
        for number in tasks:
            for access in program.accesses[number]:
                for cell in self.of(access):
                    self.touching[access.memory][cell] |= BIT << number
                    if access.write:
                        self.writers[access.memory][cell] |= BIT << number

    def of(self, access: _Access) -> range:
        """The cells of a memory that bytes have a part of."""
        edges = self.edges.get(access.memory, [])
        first = max(bisect_right(edges, access.begin) - 1, 0)
        return range(first, bisect_left(edges, access.end))

    def conflicts(self, access: _Access) -> int:
        """The tasks, as bits, that touch the same bytes, one of both writing."""
        if access.memory not in self.edges:
            return 0
        bits, found = (self.touching if access.write else self.writers)[access.memory], 0
        for cell in self.of(access):
            found |= bits[cell]
        return found


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def _unknown_on_a_way(program: _Program, target: int, asked: int) -> int:
    """Of the asked steps, as bits, those that may begin before all runs so far of `target` are
    complete, found way by way: a state is a set of steps of which each, once it is complete, began
    after them. Where ways meet, all of their sets are kept; `_Knowledge` loses there that it may be
    another step on each way."""
    always = BIT << program.count  # every worker has seen it
    valid = [
        sum(BIT << q for q in {q for q, t in waits if t or _comes_after(program, q, number)})
        for number, waits in enumerate(program.waits)
    ]
    branches = [
        program.kind(number) in ("branch_if_false", "switch") and not program.action(number).each
        for number in range(program.count)
    ]
    matters = _matters(program, asked, valid, branches)
    states: dict[int, set[int]] = {0: {always}}
    changed = [0]
    unknown = 0
    while changed:
        number = changed.pop()
        after: set[int] = set()
        meets = program.meets(number)
        for seen in states[number]:
            known = meets or seen & (always | valid[number])
            if not known:
                unknown |= BIT << number
            if meets or (branches[number] and (known or not program.waits[number])):
                seen |= always
            if number == target:
                seen = BIT << number
            elif known and program.home[number] >= 0:
                seen |= BIT << number
            after.add(seen)
        for following in program.after[number]:
            if following < program.count:
                before = states.setdefault(following, set())
                # Who has seen it needs to know no more.
                new = {always if one & always else one & matters[following] for one in after}
                kept = _least(before | new)
                if kept != before:
                    states[following] = kept
                    changed.append(following)
    return unknown & asked


def _matters(
    program: _Program, asked: int, valid: Sequence[int], branches: Sequence[bool]
) -> list[int]:
    """Where control comes to each step, the steps, as bits, of which it may matter to the asked
    ones, or to a branch, what is known when they are complete."""
    found = [0] * program.count
    changed = True
    while changed:
        changed = False
        for number in reversed(range(program.count)):
            later = 0
            for target in program.after[number]:
                later |= found[target] if target < program.count else 0
            own = BIT << number
            if later & own or asked & own or branches[number]:
                later = later & ~own | valid[number]
            if later != found[number]:
                found[number], changed = later, True
    return found


def _comes_after(program: _Program, step: int, number: int) -> bool:
    """Whether a step stands in the range of another one, and not before it."""
    return program.home[step] == program.home[number] >= 0 and step >= number


_MOST_WAYS = 64


def _least(sets: set[int]) -> set[int]:
    """Those of some sets, as bits, that hold none of the others; what all have if they are many."""
    kept = {one for one in sets if not any(other & one == other != one for other in sets)}
    if len(kept) <= _MOST_WAYS:
        return kept
    common = -1
    for one in kept:
        common &= one
    return {common}


def _earlier(program: _Program) -> list[int]:
    """Of each step, those that may have run before it, as bits."""
    found = [0] * program.count
    changed = True
    while changed:
        changed = False
        for number in range(program.count):
            reach = found[number] | BIT << number
            for target in program.after[number]:
                if target < program.count and found[target] | reach != found[target]:
                    found[target] |= reach
                    changed = True
    return found
