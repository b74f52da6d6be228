"""Independent steps of a GPU's plan that are one launch: which ones, in which order of steps, and
what the plan says of it.

Steps of a stretch without branches that are equally deep in its graph of dependences are
independent of each other. Those whose kernels can share a launch are taken together where
`cost/merging.py` says that this is faster, by more than its error, than nodes of a graph without
edges between them, also where some of them could begin earlier; then without the longest of them,
until it is or one is left. They follow each other in the new order, where the last of them stood,
and all their memory is kept while any of them may run; where the arena becomes larger than it may,
steps stay apart.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from ..hlo.errors import UserError
from ..hlo.graph import Op
from ..hlo.types import UI8, TensorType
from ..specs.generated import plan_pb2
from .coschedule import dependences, reordered, stretches
from .cost.merging import (
    BlockNeeds,
    LaunchWork,
    Prices,
    largest,
    prices,
    registers_of,
    work_of,
)
from .hazards import in_arena, places
from .machine import Machine, Residency
from .memory import Placement
from .schedule import Buffer, RunStep, Schedule
from .tiles.tilings import tile_of

ALIGNMENT = 64  # of rows of a table of arguments, as tensor maps need it
_MIXED = 256  # threads of a block, up to which each thread may have all registers that it can
_BODIES = 16  # of one launch: each is code of it
_UNNOTICED = 0.25  # of the second level: so much more memory costs no time
# Why no steps are merged, of programs of one process and of several.
NOT_FIXED = "calls decide sizes", "several processes run the program"


@dataclass(frozen=True)
class Merging:
    """What merges are made for. parameter_bytes: most of an entry's parameters. forced: steps are
    merged wherever they can be. overlap: the part of its bound by which the arena may be larger."""

    machine: Machine
    most: Residency
    parameter_bytes: int
    forced: bool = False
    overlap: float = 0.0


class Candidate(NamedTuple):
    """A step that runs a kernel: its number, what the kernel is known by, its launches, the work of
    all of them. refused: why it cannot be a part of a launch, "" if it can: then it is one."""

    step: int
    key: int
    launches: tuple[Any, ...]  # of plan_pb2.Launch
    work: LaunchWork
    refused: str = ""

    @property
    def launch(self) -> Any:
        """The one launch."""
        (found,) = self.launches
        return found

    @property
    def own_blocks(self) -> bool:
        """Whether the block that it runs in has to be as large as its own: its threads take
        registers from each other, or others would leave them fewer."""
        mapped = any(one.HasField("tensor_map") for one in self.launch.arguments)
        return mapped or bool(self.launch.cluster) or self.threads > _MIXED

    @property
    def threads(self) -> int:
        return self.launch.block[0]

    @property
    def kind(self) -> tuple[int, int]:
        """Candidates of one kind can be one launch: blocks of a cluster, threads; 0: any."""
        cluster = self.launch.cluster[0] if self.launch.cluster else 0
        return cluster, self.threads if self.own_blocks else 0


def refusal(op: Op, launches: Sequence[Any]) -> str:
    """Why a kernel cannot be a part of a launch, "" if it can."""
    if op.name == "foreign_call":
        return "its code was written elsewhere"
    if not launches:
        return "nothing is started for it"
    if len(launches) != 1:
        return f"it is {len(launches)} launches, one after the other"
    (one,) = launches
    if one.block[1] != 1 or one.block[2] != 1 or any(extent != 1 for extent in one.cluster[1:]):
        return "its blocks or clusters are no rows"
    if one.grid_formulas:
        return "calls decide how many blocks it has"
    return ""


def places_of(launch: Any) -> tuple[tuple[int, ...], int]:
    """Where arguments of a launch lie in their row of a table, and the bytes of the row."""
    places, end = [], 0
    for one in launch.arguments:
        kind = one.WhichOneof("value")
        size = len(one.immediate) if kind == "immediate" else 128 if kind == "tensor_map" else 8
        at = -(-end // min(size, ALIGNMENT)) * min(size, ALIGNMENT)
        places.append(at)
        end = at + size
    return tuple(places), -(-end // ALIGNMENT) * ALIGNMENT


def blocks_of(launch: Any) -> int:
    x, y, z = launch.grid
    return x * y * z


def candidate(step: int, op: Op, key: int, facts: Any, merging: Merging) -> Candidate:
    """A step with its kernel. facts: `KernelFacts`."""
    inner = op.regions[0].walk() if op.regions else (op,)
    products = any(one.definition.pattern == "contract" for one in inner)
    launches = facts.launches
    threads = max((one.block[0] * one.block[1] * one.block[2] for one in launches), default=1)
    shared = max((one.shared_bytes for one in launches), default=0)
    needs = BlockNeeds(threads, shared, registers_of(threads, products, merging.most))
    mapped = any(a.HasField("tensor_map") for one in launches for a in one.arguments)
    blocks = max(map(blocks_of, launches), default=1)
    tile = tile_of(op, blocks, mapped) if products else None
    work = work_of(op, facts.flops, facts.bytes, blocks, needs, merging.machine, mapped, tile)
    return Candidate(step, key, launches, work, refusal(op, launches))


class Group(NamedTuple):
    """Steps that are one launch, in the order of their blocks."""

    steps: tuple[Candidate, ...]
    prices: Prices


class EarliestStart(NamedTuple):
    """A step of a level: the seconds after which it can begin, and those that it can wait before
    the end of its stretch comes later."""

    step: int
    begin: float
    slack: float


def levels(schedule: Schedule, time: Callable[[int], float]) -> Iterator[list[EarliestStart]]:
    """The steps that are equally deep in their stretch, of each depth of each stretch; time: the
    seconds of a step, beside which any others may run."""
    for first, last in stretches(schedule):
        before = dependences(schedule, first, last)
        seconds = {number: time(number) for number in before}
        depth: dict[int, int] = {}
        begin: dict[int, float] = {}
        for number, others in before.items():
            depth[number] = 1 + max((depth[other] for other in others), default=-1)
            begin[number] = max((begin[n] + seconds[n] for n in others), default=0.0)
        end = max(begin[number] + seconds[number] for number in before)
        latest = {number: end - seconds[number] for number in before}
        for number in reversed(before):
            for other in before[number]:
                latest[other] = min(latest[other], latest[number] - seconds[other])
        found: dict[int, list[EarliestStart]] = {}
        for number, level in depth.items():
            ready = EarliestStart(number, begin[number], latest[number] - begin[number])
            found.setdefault(level, []).append(ready)
        yield from found.values()


def groups(schedule: Schedule, made: Callable[[int], Candidate], merging: Merging) -> list[Group]:
    """The steps that shall be merged; made: the candidate of a step."""
    known: dict[int, Candidate] = {}
    found: list[Group] = []

    def time(number: int) -> float:
        known[number] = made(number)
        return _alone(known[number], merging)

    for level in levels(schedule, time) if merging.machine.blocks is not None else ():
        kinds: dict[tuple[int, int], list[Candidate]] = {}
        for one in (known[ready.step] for ready in level):
            if not one.refused:
                kinds.setdefault(one.kind, []).append(one)
        ready = {one.step: one for one in level}
        for some in kinds.values():
            parts = _fitting(some, merging) if len(some) > 1 else ()
            found += filter(None, [best(part, ready, merging) for part in parts])
    return found


def _alone(one: Candidate, merging: Merging) -> float:
    """Seconds of a step by itself."""
    return prices([one.work], merging.machine, merging.most).merged


def _fitting(some: Sequence[Candidate], merging: Merging) -> Iterator[list[Candidate]]:
    """Parts of them whose arguments are one table and which have not too many bodies. Equal kernels
    stand together."""
    first = {one.key: n for n, one in reversed([*enumerate(some)])}
    part: list[Candidate] = []
    room, keys = merging.parameter_bytes, set()
    for one in sorted(some, key=lambda c: (first[c.key], c.step)):
        size = places_of(one.launch)[1]
        if part and (size > room or len(keys | {one.key}) > _BODIES):
            yield part
            part, room, keys = [], merging.parameter_bytes, set()
        if size <= room:
            part.append(one)
            room -= size
            keys.add(one.key)
    yield part


def best(
    part: Sequence[Candidate], ready: Mapping[int, EarliestStart], merging: Merging
) -> Group | None:
    """What of it is faster as one launch, although some have to wait for what others need; where
    that is forced, all of it."""
    times = {one.step: _alone(one, merging) for one in part}
    kept = sorted(part, key=lambda one: times[one.step])
    while len(kept) > 1:
        found = prices([one.work for one in kept], merging.machine, merging.most)
        fits = largest([one.work.needs for one in kept]).resident(merging.most) > 0
        begins = max(ready[one.step].begin for one in kept)
        late = max(begins - ready[one.step].begin - ready[one.step].slack for one in kept)
        if fits and (merging.forced or found.gains(max(0.0, late))):
            steps = {one.step for one in kept}
            return Group(_by_length([one for one in part if one.step in steps], times), found)
        kept = kept[: -max(1, len(kept) // 8)]
    return None


def _by_length(part: Sequence[Candidate], times: Mapping[int, float]) -> tuple[Candidate, ...]:
    """Blocks that take longest come first, since the last ones fill what is left."""
    each = {one.key: times[one.step] / one.work.blocks for one in part}
    rank = {key: n for n, key in enumerate(sorted(each, key=lambda key: -each[key]))}
    return tuple(sorted(part, key=lambda one: rank[one.key]))


def order_with(schedule: Schedule, found: Sequence[Group]) -> list[int]:
    """The numbers of all steps in an order in which those of a group follow each other, and others
    stand as they did, as far as that can be."""
    order = [*range(len(schedule.steps))]
    head: dict[int, int] = {}  # of each merged step, the last one of its group
    members: dict[int, list[int]] = {}
    for group in found:
        steps = [one.step for one in group.steps]
        members[max(steps)] = steps
        head.update(dict.fromkeys(steps, max(steps)))
    for first, last in stretches(schedule):
        before = dependences(schedule, first, last)
        waiting: Counter[int] = Counter()
        after: dict[int, list[int]] = {}
        for number, others in before.items():
            node = head.get(number, number)
            for other in {head.get(other, other) for other in others}:
                after.setdefault(other, []).append(node)
                waiting[node] += 1
        ready = sorted({head.get(number, number) for number in before} - {*(+waiting)})
        made: list[int] = []
        while ready:
            node = heapq.heappop(ready)
            made += members.get(node, [node])
            for other in after.get(node, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, other)
        order[first:last] = made
    return order


class Merged(NamedTuple):
    """A schedule whose merged steps follow each other. order: numbers of its steps in the one that
    was given, () where it is that one."""

    schedule: Schedule
    order: Sequence[int] = ()
    groups: Sequence[Group] = ()

    @property
    def at(self) -> dict[int, int]:
        """The place of each step of the given schedule."""
        return {old: number for number, old in enumerate(self.order)}

    @property
    def spans(self) -> dict[int, tuple[int, int]]:
        """Of each merged step the first and the last one of its group."""
        found, at = {}, self.at
        for group in self.groups:
            places = [at[one.step] for one in group.steps]
            found.update(dict.fromkeys(places, (min(places), max(places))))
        return found

    def describe(self, plan: plan_pb2.Plan) -> None:
        """Says in a plan what is merged; entries have no names yet."""
        at = self.at
        for group in sorted(self.groups, key=lambda one: at[one.steps[0].step]):
            _describe(plan, group, at)


def merged(
    schedule: Schedule,
    made: Callable[[int], Candidate],
    scratch: Mapping[int, int],
    merging: Merging,
    why: str = "",
) -> Merged:
    """What is merged of a schedule. made: the candidate of a step that runs a kernel; scratch:
    bytes that steps have for themselves; why: nothing can be. UserError where that is forced and
    nothing is merged."""
    found = [] if why else groups(schedule, made, merging)
    kept = _within_memory(schedule, found, scratch, merging) if found else []
    if merging.forced and not kept:
        _refuse(schedule, made, why, bool(found))
    return _ordered(schedule, kept) if kept else Merged(schedule)


def _ordered(schedule: Schedule, found: Sequence[Group]) -> Merged:
    order = order_with(schedule, found)
    return Merged(reordered(schedule, order), order, found)


def _within_memory(
    schedule: Schedule, found: Sequence[Group], scratch: Mapping[int, int], merging: Merging
) -> list[Group]:
    """The groups with which the arena does not become larger than it may."""

    def placed(some: Sequence[Group]) -> Placement:
        trial = _ordered(schedule, some) if some else Merged(schedule)
        where = places(trial.schedule, {}, spans=trial.spans)
        at, lives = trial.at, dict(where.lives)
        for old, size in scratch.items():
            number = at.get(old, old)
            lives[Buffer("arena", TensorType((size,), UI8))] = number, number
        where.lives = lives
        return in_arena(where, 0)

    alone, unnoticed = placed([]), merging.machine.levels[1].capacity * _UNNOTICED
    grown = max(merging.overlap * alone.bound_bytes, unnoticed) if merging.overlap else 0
    most = alone.arena_bytes + grown
    kept: list[Group] = []

    def add(some: Sequence[Group]) -> None:
        if placed([*kept, *some]).arena_bytes <= most:
            kept.extend(some)
        elif len(some) > 1:
            add(some[: len(some) // 2])
            add(some[len(some) // 2 :])

    add(found)
    return kept


def _describe(plan: plan_pb2.Plan, group: Group, at: Mapping[int, int]) -> None:
    """Adds a group to a plan; at: the new number of each step. Its entry has no name yet."""
    message = plan.merges.add(
        threads=max(one.threads for one in group.steps),
        shared_bytes=max(one.launch.shared_bytes for one in group.steps),
        cluster=group.steps[0].kind[0],
        resident=group.prices.resident, busy=group.prices.busy, seconds=group.prices.merged,
        seconds_of_branches=group.prices.branches, seconds_in_turn=group.prices.in_turn,
    )  # fmt: skip
    rows = [places_of(one.launch) for one in group.steps]
    begins = [*accumulate((size for _, size in rows), initial=0)]
    blocks = [blocks_of(one.launch) for one in group.steps]
    first = [*accumulate(blocks, initial=0)]
    for number, one in enumerate(group.steps):
        message.steps.add(
            step=at[one.step], first_block=first[number], blocks=blocks[number],
            places=[begins[number] + place for place in rows[number][0]],
        )  # fmt: skip
    message.table_bytes = begins[-1]


def _refuse(schedule: Schedule, made: Callable[[int], Candidate], why: str, grown: bool) -> None:
    """UserError that says why nothing of a program can be merged, with the line of what is in the
    way. grown: whether what could be needs more memory than there may be."""
    where, reason = next((s for s in schedule.steps if isinstance(s, RunStep)), None), why
    for level in () if why else levels(schedule, lambda number: 0.0):
        if len(level) > 1:
            where = schedule.steps[level[0].step]
            reason = "independent kernels have blocks of other sizes"
            refused = [one for one in (made(ready.step) for ready in level) if one.refused]
            if grown:
                reason = "merged kernels need more memory than overlap_memory and max_memory allow"
            elif refused:
                where, reason = schedule.steps[refused[0].step], refused[0].refused
                reason = f"a kernel that is independent of others cannot share a launch: {reason}"
            break
    place = where.op.place if isinstance(where, RunStep) else ""
    reason = reason or "no two kernels of the program are independent of each other"
    raise UserError(f"{place}schedule='merged': {reason}; take 'host', or leave it out")
