"""Checks of what planners claim, by other means than theirs and without their code.

`check_plan` takes a plan as it will run. It finds who needs which bytes when by following values
backwards along all ways that control can take, and holds the stored lives, offsets, aliases and
the bound against that. `check_order_bound` takes a graph of tasks as plain data and a claim that
every order of them needs some bytes; each value of the claim is checked by reachability.

Whatever is wrong is a CompilerBug that names the step or task, and the buffers or values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from ..hlo.errors import CompilerBug
from ..specs.generated import plan_pb2

# Plans.


class ReusedPlace(NamedTuple):
    """A value that lives at bytes [offset, offset + bytes) of output buffer number `owner` from
    step `first` to step `last`, before the output itself is written."""

    owner: int
    offset: int
    bytes: int
    first: int
    last: int


class Peak(NamedTuple):
    """Why the arena cannot be smaller than `bytes`: these arena buffers are live at one step."""

    step: int
    buffers: tuple[int, ...]
    bytes: int


def peak_of(plan: plan_pb2.Plan) -> Peak:
    """The certificate that a plan stores: its peak step, and who lives there by stored lives."""
    step = plan.memory.peak_step
    live = [n for n, buffer in enumerate(plan.buffers) if _arena(buffer) and _lives(buffer, step)]
    return Peak(step, tuple(live), sum(_bytes(plan, number) for number in live))


def check_plan(
    plan: plan_pb2.Plan,
    results: Mapping[int, int],
    reused: Sequence[ReusedPlace] = (),
    peak: Peak | None = None,
    parts: Mapping[int, Mapping[int, int]] | None = None,
) -> None:
    """Raise CompilerBug unless the plan's memory is right.

    results: of each step that runs a kernel, how many of its arguments, the last ones, it writes.
    parts: of each step that writes a result in part, the operand that holds the rest, by result.
    reused: the values that live in outputs.
    peak: the certificate of the bound; None: the one that the plan stores.
    """
    needs = _Needs(plan, results, reused)
    _check_parts(plan, results, parts or {})
    _check_lives(plan, needs)
    _check_offsets(plan)
    if plan.formulas:
        _check_above(plan, needs)
    _check_reused(plan, needs)
    _check_donated(plan, needs)
    _check_bound(plan, needs, peak_of(plan) if peak is None else peak)


class _Needs:
    """Which values are needed when. A value is a buffer's number, or behind these that of a value
    in an output; sets of values are bits. `hull` has the first and last step at which a value is
    touched or holds what is read later."""

    def __init__(
        self, plan: plan_pb2.Plan, results: Mapping[int, int], reused: Sequence[ReusedPlace]
    ) -> None:
        self.plan, self.reused = plan, reused
        self.places: dict[tuple[int, int], list[int]] = {}
        for number, place in enumerate(reused):
            self.places.setdefault((place.owner, place.offset), []).append(number)
        self.own = {*range(len(plan.buffers))} - {place.owner for place in reused}
        self.reads = [0] * len(plan.steps)
        self.writes = [0] * len(plan.steps)
        for number, step in enumerate(plan.steps):
            action = step.WhichOneof("action")
            if action == "run":
                arguments = [self.value(number, argument) for argument in step.run.arguments]
                inputs = len(arguments) - results.get(number, 0)
                for value in arguments[:inputs]:
                    self.reads[number] |= 1 << value
                for value in arguments[inputs:]:
                    self.writes[number] |= 1 << value
                if step.run.HasField("scratch"):
                    self.writes[number] |= 1 << self.value(number, step.run.scratch)
            elif action == "branch_if_false":
                self.reads[number] = 1 << self.value(number, step.branch_if_false.condition)
            elif action == "switch":
                self.reads[number] = 1 << self.value(number, step.switch.index)
            elif action in ("exchange", "collective"):
                moved = getattr(step, action)
                self.reads[number] = 1 << self.value(number, moved.operand)
                self.writes[number] = 1 << self.value(number, moved.result)
                if action == "exchange" and moved.HasField("scratch"):
                    self.writes[number] |= 1 << self.value(number, moved.scratch)
        self.next = [self.following(number) for number in range(len(plan.steps))]
        self.after = [0] * len(plan.steps)
        self.before = [0] * (len(plan.steps) + 1)
        self.before[-1] = sum(1 << number for number in dict.fromkeys(plan.outputs))
        self.flow()
        self.hull = self.hulls()

    def value(self, step: int, argument: plan_pb2.Argument) -> int:
        """What an argument of a step is."""
        buffer, offset = argument.buffer, argument.offset
        if not offset and buffer in self.own:
            return buffer
        for number in self.places.get((buffer, offset), ()):
            if self.reused[number].first <= step <= self.reused[number].last:
                return len(self.plan.buffers) + number
        if offset or buffer >= len(self.plan.buffers):
            raise CompilerBug(
                f"step {step} points at byte {offset} of buffer {buffer}, where nothing lives"
            )
        return buffer

    def following(self, number: int) -> list[int]:
        """The steps that may come next; the number of steps is the end."""
        step = self.plan.steps[number]
        action = step.WhichOneof("action")
        if action == "jump":
            found = [step.jump.target]
        elif action == "switch":
            found = [*step.switch.targets]
        elif action == "branch_if_false":
            found = [number + 1, step.branch_if_false.target]
        else:
            found = [number + 1]
        if any(target > len(self.plan.steps) for target in found):
            raise CompilerBug(f"step {number} goes on behind the last step")
        return found

    def flow(self) -> None:
        """What is needed before and after each step, backwards until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number in range(len(self.plan.steps) - 1, -1, -1):
                after = 0
                for target in self.next[number]:
                    after |= self.before[target]
                before = self.reads[number] | after & ~self.writes[number]
                self.after[number] = after
                if before != self.before[number]:
                    self.before[number] = before
                    changed = True

    def hulls(self) -> dict[int, tuple[int, int]]:
        held = [
            before | reads | writes
            for before, reads, writes in zip(self.before, self.reads, self.writes, strict=False)
        ]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for ends, numbers in ((first, range(len(held))), (last, range(len(held) - 1, -1, -1))):
            seen = 0
            for number in numbers:
                for value in _bits(held[number] & ~seen):
                    ends[value] = number
                seen |= held[number]
        return {value: (begin, last[value]) for value, begin in first.items()}

    def name(self, value: int) -> str:
        count = len(self.plan.buffers)
        if value < count:
            return f"buffer {value}"
        place = self.reused[value - count]
        return f"the value placed at byte {place.offset} of buffer {place.owner}"


def _check_parts(
    plan: plan_pb2.Plan, results: Mapping[int, int], parts: Mapping[int, Mapping[int, int]]
) -> None:
    """What a step writes in part lies where the operand does that holds the rest."""
    for number, rests in parts.items():
        arguments = plan.steps[number].run.arguments
        first = len(arguments) - results[number]
        for result, operand in rests.items():
            if arguments[first + result] != arguments[operand]:
                raise CompilerBug(
                    f"step {number} writes a part of result {result}, but operand {operand}, which "
                    "holds the rest, lies elsewhere"
                )


def _check_lives(plan: plan_pb2.Plan, needs: _Needs) -> None:
    """Everything is written before it is read, nothing of the caller's is written, and stored
    lives are long enough, and no longer but to the end of a loop."""
    given = {n for n, b in enumerate(plan.buffers) if b.place in (plan_pb2.INPUT, plan_pb2.WEIGHT)}
    for value in _bits(needs.before[0]):
        if value not in given:
            readers = [n for n, reads in enumerate(needs.reads) if reads >> value & 1]
            where = f"step {readers[0]} reads it" if readers else "it is returned"
            raise CompilerBug(f"{needs.name(value)} is not written on all ways, but {where}")
    constant = sum(1 << number for number in given)
    for number, writes in enumerate(needs.writes):
        for value in _bits(writes & constant):
            raise CompilerBug(f"step {number} writes buffer {value}, which is the caller's")
    loops = [
        (target, number)
        for number, targets in enumerate(needs.next)
        for target in targets
        if target <= number
    ]
    for value, (first, last) in needs.hull.items():
        if value >= len(plan.buffers):
            stored = needs.reused[value - len(plan.buffers)]
            begin, end = stored.first, stored.last
        elif _arena(plan.buffers[value]):
            begin, end = plan.buffers[value].first_step, plan.buffers[value].last_step
        else:
            continue
        if first < begin or last > end:
            wrong = first if first < begin else last
            raise CompilerBug(
                f"step {wrong} needs {needs.name(value)}, whose stored life is {begin} to {end}"
            )
        latest = max([last, *(stop for start, stop in loops if start <= last <= stop)])
        if begin < first or end > latest:
            raise CompilerBug(
                f"{needs.name(value)} is needed from step {first} to {last}, but its stored life "
                f"is {begin} to {end}"
            )


def _check_offsets(plan: plan_pb2.Plan) -> None:
    """Arena buffers are aligned, within the arena, and apart from those that live with them."""
    size, alignment = plan.memory.arena_bytes, plan.arena_alignment
    events: list[tuple[int, int, int]] = []
    for number, buffer in enumerate(plan.buffers):
        if not _arena(buffer):
            continue
        if buffer.offset % alignment or buffer.offset + buffer.bytes > size:
            raise CompilerBug(
                f"buffer {number}, {buffer.bytes} bytes at {buffer.offset}, is not aligned to "
                f"{alignment} or ends behind the arena's {size} bytes"
            )
        events.append((buffer.first_step, 1, number))
        events.append((buffer.last_step + 1, 0, number))
    live: list[tuple[int, int]] = []  # offset, number: disjoint, so neighbours tell everything
    for step, begins, number in sorted(events):
        offset = plan.buffers[number].offset
        place = bisect_left(live, (offset, number))
        if not begins:
            del live[place]
            continue
        live.insert(place, (offset, number))
        near = live[max(place - 1, 0) : place + 2]
        for (_, left), (right_offset, right) in pairwise(near):
            lower = plan.buffers[left]
            if lower.offset + max(lower.bytes, 1) > right_offset:
                raise CompilerBug(f"buffers {left} and {right} overlap at step {step}")


def _check_above(plan: plan_pb2.Plan, needs: _Needs) -> None:
    """Where calls decide sizes: buffers that live together, or that are touched by steps which do
    not wait for each other, are kept apart at all sizes, since one is above the other."""
    arena = [number for number, buffer in enumerate(plan.buffers) if _arena(buffer)]
    below: dict[int, int] = {}
    for number in sorted(arena, key=lambda n: plan.buffers[n].offset):
        found = 0
        for other in plan.buffers[number].above:
            if other not in below:
                raise CompilerBug(f"buffer {number} is above buffer {other}, which is not below it")
            found |= below[other] | 1 << other
        below[number] = found

    def check(one: int, other: int, why: str) -> None:
        if not (below[one] >> other | below[other] >> one) & 1:
            raise CompilerBug(f"nothing keeps buffers {other} and {one} apart, {why}")

    for place, number in enumerate(arena):
        buffer = plan.buffers[number]
        for other in arena[:place]:
            beside = plan.buffers[other]
            if beside.first_step <= buffer.last_step and buffer.first_step <= beside.last_step:
                check(number, other, "which live together")
    mask = sum(1 << number for number in arena)
    reads = writes = 0  # of the steps that the next one need not have waited for
    for number, step in enumerate(plan.steps):
        action = step.WhichOneof("action")
        if action is not None and getattr(getattr(step, action), "wait", False):
            reads = writes = 0
        own, made = needs.reads[number], needs.writes[number]
        for one in _bits(own & writes | made & (reads | writes)):
            raise CompilerBug(f"step {number} does not wait for buffer {one}")
        for one in _bits((own | made) & mask):
            for other in _bits((reads | writes if made >> one & 1 else writes) & mask):
                check(one, other, f"and step {number} does not wait")
        reads, writes = reads | own, writes | made


def _check_reused(plan: plan_pb2.Plan, needs: _Needs) -> None:
    """Reused values lie inside outputs that are the caller's alone, are gone before these are
    written, and are apart from each other."""
    living: dict[int, list[ReusedPlace]] = {}  # by owner, what is there at the step that is reached
    for place in sorted(needs.reused, key=lambda one: one.first):
        owner = plan.buffers[place.owner]
        if owner.place != plan_pb2.OUTPUT or owner.HasField("replaces"):
            raise CompilerBug(f"buffer {place.owner} is no output whose memory could be reused")
        if place.offset % plan.arena_alignment or place.offset + place.bytes > owner.bytes:
            raise CompilerBug(
                f"{place.bytes} bytes at byte {place.offset} of buffer {place.owner} are not "
                f"aligned, or not inside its {owner.bytes} bytes"
            )
        first = needs.hull.get(place.owner, (len(plan.steps), 0))[0]
        if first <= place.last:
            raise CompilerBug(
                f"step {first} needs buffer {place.owner}, whose memory is reused up to step "
                f"{place.last}"
            )
        beside = [one for one in living.get(place.owner, ()) if one.last >= place.first]
        living[place.owner] = [*beside, place]
        for other in beside:
            end, other_end = (one.offset + max(one.bytes, 1) for one in (place, other))
            if other.offset < end and place.offset < other_end:
                raise CompilerBug(
                    f"two values in buffer {place.owner} overlap at step "
                    f"{max(place.first, other.first)}"
                )


def _check_donated(plan: plan_pb2.Plan, needs: _Needs) -> None:
    """An output that may have an argument's memory is written when nobody needs that any more."""
    taken: set[int] = set()
    for number, output in enumerate(plan.buffers):
        if not output.HasField("replaces"):
            continue
        given = plan.inputs[output.replaces] if output.replaces < len(plan.inputs) else -1
        if output.place != plan_pb2.OUTPUT or given < 0 or given in taken:
            raise CompilerBug(f"buffer {number} cannot replace argument {output.replaces}")
        if plan.buffers[given].bytes != output.bytes:
            raise CompilerBug(f"buffer {number} replaces buffer {given}, which has other bytes")
        taken.add(given)
        both = 1 << number | 1 << given
        for step, (before, after) in enumerate(zip(needs.before, needs.after, strict=False)):
            if before & both == both or (needs.writes[step] >> number & after >> given) & 1:
                raise CompilerBug(
                    f"buffer {number} replaces buffer {given}, which is needed after step {step}"
                )


def _check_bound(plan: plan_pb2.Plan, needs: _Needs, peak: Peak) -> None:
    """The certificate's buffers live at its step and add up, and the plan claims no more."""
    for number in peak.buffers:
        buffer = plan.buffers[number]
        if not _arena(buffer) or number not in needs.hull or not _lives(buffer, peak.step):
            raise CompilerBug(f"buffer {number} does not live at the peak, step {peak.step}")
    total = sum(_bytes(plan, number) for number in peak.buffers)
    if len(set(peak.buffers)) != len(peak.buffers) or total != peak.bytes:
        raise CompilerBug(f"the buffers at step {peak.step} do not add up to {peak.bytes} bytes")
    memory = plan.memory
    # What a search has excluded is above the live bytes, and certified by nothing but a new search.
    exhausted = memory.placement_proof != "proven by bound" and memory.lower_bound_bytes > total
    if memory.lower_bound_bytes != total and not exhausted:
        raise CompilerBug(
            f"the plan claims a bound of {memory.lower_bound_bytes} bytes, but {total} are live at "
            f"step {peak.step}"
        )
    proven = memory.arena_bytes == memory.lower_bound_bytes
    if proven != memory.placement_proof.startswith("proven"):
        raise CompilerBug(f"the plan says '{memory.placement_proof}' of {memory.arena_bytes} bytes")


def _arena(buffer: plan_pb2.Buffer) -> bool:
    return buffer.place == plan_pb2.ARENA


def _lives(buffer: plan_pb2.Buffer, step: int) -> bool:
    return buffer.first_step <= step <= buffer.last_step


def _bytes(plan: plan_pb2.Plan, number: int) -> int:
    """A buffer's bytes as they count in the arena: whole units of the alignment, one at least."""
    unit = plan.arena_alignment
    return max(-(-plan.buffers[number].bytes // unit), 1) * unit


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


# Orders.


class Task(NamedTuple):
    """A task of a graph, as plain numbers.

    reads, makes: values; each value is made by one task at most.
    after: tasks that have to come before for another reason than a value.
    inside: bytes that it needs alone while it runs.
    over: made values that may lie where an operand of as many bytes lies, and these operands.
    gone: operands that are over, if they die here, before what is inside begins.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    after: tuple[int, ...] = ()
    inside: int = 0
    over: tuple[tuple[int, tuple[int, ...]], ...] = ()
    gone: frozenset[int] = frozenset()


class Tasks(NamedTuple):
    """A graph of tasks.

    sizes: bytes of each value. returned: values that are needed when all tasks have run.
    kept: values that are there all the time, as arguments are that are not donated; a value that
        no task makes and that is not kept is there from the start to its last reader.
    at_end: bytes that are needed at the end beside the values that are returned.
    """

    tasks: tuple[Task, ...]
    sizes: tuple[int, ...]
    returned: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    at_end: int = 0


Why = Literal["kept", "made here", "passes", "returned"]


class Forced(NamedTuple):
    """A value that is there whenever the task runs: it is `kept`; `made here`; it `passes`, since
    it is there before and the task or one that follows it reads it; or it is `returned` (at the
    end)."""

    value: int
    why: Why


class OrderBound(NamedTuple):
    """A claim: any order needs `bytes` while `task` runs; None: at the end."""

    task: int | None
    forced: tuple[Forced, ...]
    bytes: int


def check_order_bound(graph: Tasks, bound: OrderBound) -> None:
    """Raise CompilerBug unless every order of the graph needs the claimed bytes."""
    where = "the end" if bound.task is None else f"task {bound.task}"
    values = [forced.value for forced in bound.forced]
    if len(set(values)) != len(values):
        raise CompilerBug(f"the bound at {where} counts a value twice")
    if bound.task is not None and not 0 <= bound.task < len(graph.tasks):
        raise CompilerBug(f"the bound names {where}, which is not there")
    around = None if bound.task is None else _around(graph, bound.task)
    for forced in bound.forced:
        if not _is_forced(graph, around, forced):
            raise CompilerBug(f"value {forced.value} is not '{forced.why}' at {where}")
    live = sum(graph.sizes[value] for value in values)
    live = live + graph.at_end if around is None else _while_running(graph, around, values, live)
    if bound.bytes > live:
        raise CompilerBug(f"{live} bytes are forced at {where}, not {bound.bytes}")


class _Around(NamedTuple):
    """A task; the tasks that have to run before it; the values that those which have to run after
    it read, or that are returned; who makes each value."""

    task: int
    before: set[int]
    later: set[int]
    makers: Mapping[int, int]


def _is_forced(graph: Tasks, around: _Around | None, forced: Forced) -> bool:
    value, why = forced
    if not 0 <= value < len(graph.sizes):
        return False
    if why == "kept":
        return value in graph.kept
    if around is None:
        return why == "returned" and value in graph.returned
    maker = around.makers.get(value)
    if why == "made here":
        return maker == around.task
    needed = value in around.later or value in graph.tasks[around.task].reads
    return why == "passes" and needed and (maker is None or maker in around.before)


def _while_running(graph: Tasks, around: _Around, values: Sequence[int], live: int) -> int:
    """Of `live` bytes of values what a task needs at least: without what may lie in operands that
    nothing after it reads, and with what is inside."""
    task = graph.tasks[around.task]
    dying = {value for value in task.reads if value not in graph.kept | around.later}
    choices = {
        made: [v for v in operands if v in dying and v in values]
        for made, operands in task.over
        if made in values
    }
    for made, operands in choices.items():
        if any(graph.sizes[made] != graph.sizes[value] for value in operands):
            raise CompilerBug(
                f"task {around.task} cannot put value {made} in place of another size"
            )
    taken = _matched(choices)
    live -= sum(graph.sizes[value] for value in taken)
    early = sum(graph.sizes[v] for v in values if v in dying & task.gone and v not in taken)
    return max(live, live - early + task.inside)


def _matched(choices: Mapping[int, Sequence[int]]) -> set[int]:
    """As many operands as can each be the place of another made value."""
    place_of: dict[int, int] = {}

    def move(made: int, tried: set[int]) -> bool:
        for value in choices[made]:
            if value not in tried:
                tried.add(value)
                if value not in place_of or move(place_of[value], tried):
                    place_of[value] = made
                    return True
        return False

    for made in choices:
        move(made, set())
    return set(place_of)


def _around(graph: Tasks, number: int) -> _Around:
    makers = {value: n for n, task in enumerate(graph.tasks) for value in task.makes}
    earlier: list[list[int]] = []
    later: list[list[int]] = [[] for _ in graph.tasks]
    for n, task in enumerate(graph.tasks):
        sources = [*task.after, *(makers[value] for value in task.reads if value in makers)]
        earlier.append(sources)
        for source in sources:
            later[source].append(n)
    read = {value for n in _reached(later, number) for value in graph.tasks[n].reads}
    return _Around(number, _reached(earlier, number), read | graph.returned, makers)


def _reached(edges: Sequence[Sequence[int]], number: int) -> set[int]:
    found: set[int] = set()
    open_tasks = [*edges[number]]
    while open_tasks:
        task = open_tasks.pop()
        if task not in found:
            found.add(task)
            open_tasks += edges[task]
    return found
