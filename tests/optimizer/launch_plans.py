"""Plans of GPUs for generated programs, whose kernels have launches and no code, and what of them
is in order by brute force: every two steps that may both be under way, each found by a search of
its own along control, or along what a launch follows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from girih.backends.nvidia import target_of
from girih.hlo.errors import UserError
from girih.hlo.graph import Op
from girih.optimizer.certify import ReusedPlace
from girih.optimizer.machine import Residency
from girih.optimizer.merges import Merging
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import Order
from girih.optimizer.persistent import Persistence
from girih.optimizer.plan import KernelFacts, Planner
from girih.optimizer.schedule import schedule
from girih.specs.generated import plan_pb2

from .control_programs import Program

MACHINE = target_of("nvidia:sm_90a").machine
MOST = Residency(2048, 32, 65536, 228 << 10, 1 << 10)
RESIDENT, PARAMETERS = 132, 32 << 10
THREADS = 64, 128, 256
_ALIGNMENT = 64  # of a tensor map in a table


class Case(NamedTuple):
    """A plan, how many arguments each of its steps writes, what lives in outputs, and how many
    blocks the device holds."""

    plan: plan_pb2.Plan
    results: dict[int, int]
    inside: Sequence[ReusedPlace] = ()
    resident: int = 0


def planned(seed: int, realisation: str) -> Case | None:
    """The plan of a generated program for a "graph", with "merged" launches, or "persistent"; None
    where nothing can be merged."""
    steps = schedule(Order()(Fuse()(Program(seed).module())))
    merging = Merging(MACHINE, MOST, PARAMETERS, forced=True, overlap=1.0)
    several = realisation != "merged"

    def facts(key: str, op: Op) -> KernelFacts:
        drawn = random.Random(f"{seed} {key}")
        scratch = drawn.choice((0, 0, 64, 256))
        count = len(op.operands) + len(op.results)
        many = 1 + (several and not drawn.randrange(6))
        launches = [_launch(drawn, count, scratch, not several) for _ in range(many)]
        return KernelFacts(1, scratch, 1e6, 1e5, False, launches=tuple(launches))

    planner = Planner(
        steps, "nvidia:sm_90a", facts, merging=merging if realisation == "merged" else None,
        persistence=Persistence(RESIDENT, PARAMETERS) if realisation == "persistent" else None,
    )  # fmt: skip
    try:
        plan = planner.run()
    except UserError:
        return None
    return Case(plan, planner.results(), planner.reused_places(), RESIDENT)


def _launch(drawn: random.Random, slots: int, scratch: int, maps: bool) -> plan_pb2.Launch:
    """A launch of some blocks, whose arguments are memory, scratch, and perhaps numbers, and a map
    of memory for copies."""
    launch = plan_pb2.Launch(
        entry="kernel", grid=(drawn.randrange(1, 9), drawn.choice((1, 2)), 1),
        block=(drawn.choice(THREADS), 1, 1), shared_bytes=drawn.choice((0, 1 << 10, 8 << 10)),
    )  # fmt: skip
    for slot in range(slots):
        launch.arguments.add().memory.slot = slot
    if scratch:
        launch.arguments.add().memory.scratch = True
    if maps and drawn.random() < 0.2:
        launch.arguments.add().tensor_map.memory.slot = 0
    if drawn.random() < 0.5:
        launch.arguments.add().immediate = bytes(drawn.choice((4, 8)))
    return launch


class Bytes(NamedTuple):
    """Bytes of a memory that a step reads or writes."""

    memory: object
    begin: int
    end: int
    write: bool


def touched(case: Case) -> list[list[Bytes]]:
    """Of each step."""
    return [[*_touched(case, number)] for number in range(len(case.plan.steps))]


def _touched(case: Case, number: int) -> Iterator[Bytes]:
    step = case.plan.steps[number]
    if step.HasField("run"):
        first = len(step.run.arguments) - case.results[number]
        for place, argument in enumerate(step.run.arguments):
            yield _bytes(case, number, argument, place >= first)
        if step.run.HasField("scratch"):
            yield _bytes(case, number, step.run.scratch, True)
    elif step.HasField("branch_if_false"):
        yield _bytes(case, number, step.branch_if_false.condition, False)
    elif step.HasField("switch"):
        yield _bytes(case, number, step.switch.index, False)


def _bytes(case: Case, number: int, argument: Any, write: bool) -> Bytes:
    buffer = case.plan.buffers[argument.buffer]
    memory, begin, size = (buffer.place, 0), argument.offset, buffer.bytes
    if buffer.place == plan_pb2.ARENA:
        begin += buffer.offset
    elif buffer.place == plan_pb2.WEIGHT:
        memory = buffer.place, buffer.weight
    elif buffer.place == plan_pb2.OUTPUT and buffer.HasField("replaces"):
        memory = plan_pb2.INPUT, buffer.replaces
    else:
        memory = buffer.place, buffer.index
    for one in case.inside:
        if (one.owner, one.offset) == (argument.buffer, argument.offset):
            size = one.bytes if one.first <= number <= one.last else size
    return Bytes(memory, begin, begin + size, write)


def clash(one: Sequence[Bytes], other: Sequence[Bytes]) -> bool:
    """Whether two steps touch the same bytes, one of them writing."""
    return any(
        a.memory == b.memory and a.begin < b.end and b.begin < a.end and (a.write or b.write)
        for a in one
        for b in other
    )


def following(plan: plan_pb2.Plan, number: int) -> list[int]:
    """Where control goes on from a step; the number of steps is the end."""
    step = plan.steps[number]
    if step.HasField("jump"):
        return [step.jump.target]
    if step.HasField("switch"):
        return [*step.switch.targets]
    further = [step.branch_if_false.target] if step.HasField("branch_if_false") else []
    return [number + 1, *further]


# A graph, with merged launches.


def launches_are_safe(case: Case) -> bool:
    """Whether everything that a GPU starts between two decisions begins after what it needs is
    complete, in every order that its waits allow; each merged launch starts all its steps, with
    blocks and arguments of their own, and one that it starts with is begun with it."""
    plan, touches = case.plan, touched(case)
    if not all(_launches_right(plan, merge) for merge in plan.merges):
        return False
    node = [*range(len(plan.steps))]  # of each step, the first one of its launch
    for merge in plan.merges:
        numbers = sorted(one.step for one in merge.steps)
        if any(node[number] != number for number in numbers):
            return False
        if numbers != [*range(numbers[0], numbers[0] + len(numbers))]:
            return False
        if set(numbers[1:]) & _targets(plan):
            return False
        for number in numbers:
            node[number] = numbers[0]
    counted = {step.run.signal - 1: n for n, step in enumerate(plan.steps) if step.run.signal}
    if len(counted) < sum(step.run.signal > 0 for step in plan.steps):
        return False
    runs = [step.HasField("run") for step in plan.steps]
    for late in range(len(plan.steps)):
        early = late - 1 if runs[late] else -1
        behind = _needed(plan, late, node, counted) if runs[late] else set()
        if node[late] in behind:
            return False
        while early >= 0 and runs[early]:
            if node[early] not in behind and clash(touches[late], touches[early]):
                return False
            early -= 1
    return True


def _targets(plan: plan_pb2.Plan) -> set[int]:
    """Where control may come to from elsewhere than the step before."""
    return {t for n in range(len(plan.steps)) for t in following(plan, n) if t != n + 1}


def _needed(
    plan: plan_pb2.Plan, late: int, node: Sequence[int], counted: dict[int, int]
) -> set[int]:
    """The launches, by their first steps, that are complete before a step's begins because of what
    it waits for; itself, where it waits for ever."""
    found: set[int] = set()
    searched: set[int] = set()
    asked = [node[late]]
    while asked:
        launch = asked.pop()
        searched.add(launch)
        for number in (n for n, first in enumerate(node) if first == launch):
            run = plan.steps[number].run
            others = [(counted.get(wait.counter), wait.threshold) for wait in run.waits]
            if (run.wait and number != launch) or any(step is None for step, _ in others):
                return {node[late]}
            now = {step for step, threshold in others if threshold and step is not None}
            if any(step in _range_behind(plan, number) or node[step] == launch for step in now):
                return {node[late]}
            before, direct = number - 1, set()  # what stands before these runs in a row is complete
            while before >= 0 and plan.steps[before].HasField("run"):
                direct |= {node[before]} if run.wait or before in now else set()
                before -= 1
            found |= direct
            asked += direct - searched
    return found


def _range_behind(plan: plan_pb2.Plan, number: int) -> range:
    """A step and those behind it in its task range, which runs of this turn cannot wait for."""
    for one in plan.ranges:
        if one.first <= number < one.first + one.steps:
            return range(number, one.first + one.steps)
    return range(0)


def _launches_right(plan: plan_pb2.Plan, merge: plan_pb2.Merge) -> bool:
    """Whether blocks and arguments of a merged launch are its steps'."""
    end, cells = 0, []
    if len(merge.steps) < 2:
        return False
    for one in merge.steps:
        if one.step >= len(plan.steps) or not plan.steps[one.step].HasField("run"):
            return False
        launches = plan.kernels[plan.steps[one.step].run.kernel].launches
        if len(launches) != 1:
            return False
        x, y, z = launches[0].grid
        if (one.first_block, one.blocks) != (end, x * y * z):
            return False
        end += one.blocks
        threads, arguments = launches[0].block[0], launches[0].arguments
        if threads > merge.threads or launches[0].shared_bytes > merge.shared_bytes:
            return False
        if threads < merge.threads and any(one.HasField("tensor_map") for one in arguments):
            return False  # all threads of the block are counted
        if [*launches[0].cluster][:1] != ([merge.cluster] if merge.cluster else []):
            return False
        sizes = [_size(argument) for argument in arguments]
        if len(sizes) != len(one.places):
            return False
        cells += zip(one.places, sizes, strict=True)
    return _apart(cells, merge.table_bytes)


def _size(argument: Any) -> int:
    if argument.HasField("immediate"):
        return len(argument.immediate)
    return 128 if argument.HasField("tensor_map") else 8


def _apart(cells: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether cells (place, bytes) are aligned, and no byte of a table is two cells'."""
    owner: dict[int, int] = {}
    for number, (place, count) in enumerate(cells):
        if place + count > size or place % min(count, _ALIGNMENT):
            return False
        for byte in range(place, place + count):
            if owner.setdefault(byte, number) != number:
                return False
    return True


# A persistent launch.


def persistent_is_safe(case: Case) -> bool:
    """Whether no block can be in a step while another one is in one that touches the same bytes,
    one of both writing; blocks and arguments are right, and each loop that decides can be stopped.
    """
    plan, touches = case.plan, touched(case)
    said, barriers = plan.persistent, set(plan.persistent.barriers)
    if not 0 < said.blocks <= case.resident or len(said.steps) != len(plan.steps):
        return False
    cells = [(0, 8), (8, 8)]
    for step, own in zip(plan.steps, said.steps, strict=True):
        sizes = [8] if step.HasField("branch_if_false") or step.HasField("switch") else []
        for launch in plan.kernels[step.run.kernel].launches if step.HasField("run") else ():
            x, y, z = launch.block
            if x > said.threads or y * z > 1 or launch.cluster:
                return False
            if launch.shared_bytes > said.shared_bytes:
                return False
            sizes += [_size(argument) for argument in launch.arguments]
        if len(sizes) != len(own.places):
            return False
        cells += zip(own.places, sizes, strict=True)
    if not _apart(cells, said.table_bytes):
        return False
    for early in range(len(plan.steps)):
        for late in _together(plan, early, barriers):
            if clash(touches[early], touches[late]):
                return False
    return all(_stops(plan, number, barriers) for number in range(len(plan.steps)))


def _together(plan: plan_pb2.Plan, early: int, barriers: set[int]) -> set[int]:
    """The steps in which a block may be while another one still is in a step."""
    found: set[int] = set()
    asked = following(plan, early)
    while asked:
        number = asked.pop()
        if number < len(plan.steps) and number not in barriers and number not in found:
            found.add(number)
            asked += following(plan, number)
    return found


def _stops(plan: plan_pb2.Plan, number: int, barriers: set[int]) -> bool:
    """Whether blocks that come back to a branch may have been asked to leave at it."""
    step = plan.steps[number]
    if number in barriers or not (step.HasField("branch_if_false") or step.HasField("switch")):
        return True
    first = [back for back in range(number, len(plan.steps)) if plan.steps[back].HasField("jump")]
    return not any(plan.steps[back].jump.target <= number for back in first)
