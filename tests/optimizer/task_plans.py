"""Random plans with task ranges, and what of them is in order by brute force: ways through a plan,
loops walked up to three times, with an instance for each time that a step is come to."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from girih.optimizer.tasks import TaskStep, Touch, waits_of
from girih.specs.generated import plan_pb2

BUFFERS, UNIT = 7, 64
_MOST_TURNS, _MOST_WAYS = 3, 60


def random_plan(seed: int) -> tuple[plan_pb2.Plan, dict[int, int]]:
    """A plan with waits, and how many arguments each of its steps writes."""
    draw = random.Random(seed)
    plan = plan_pb2.Plan(arena_alignment=UNIT)
    for _ in range(BUFFERS):  # some lie over each other, as places that are used again do
        size = draw.choice((1, 1, 2)) * UNIT
        plan.buffers.add(place=plan_pb2.ARENA, offset=draw.randrange(6) * UNIT, bytes=size)
    plan.kernels.add(name="kernel")
    results: dict[int, int] = {}

    def runs(count: int) -> None:
        for _ in range(count):
            results[len(plan.steps)] = 1
            run = plan.steps.add().run
            run.tiles = 1
            for _ in range(draw.randrange(1, 4)):
                run.arguments.add(buffer=draw.randrange(BUFFERS))

    def control(depth: int) -> None:
        runs(draw.randrange(3))
        for _ in range(draw.randrange(1, 3)):
            begin = len(plan.steps)
            branch = plan.steps.add().branch_if_false
            branch.condition.buffer = draw.randrange(BUFFERS)
            runs(draw.randrange(1, 4))
            if depth:
                control(depth - 1)
            if draw.random() < 0.6:
                plan.steps.add().jump.target = begin
            branch.target = len(plan.steps)
            runs(draw.randrange(3))

    control(int(draw.random() < 0.4))
    _fill(plan, results)
    return plan, results


def _fill(plan: plan_pb2.Plan, results: dict[int, int]) -> None:
    steps = [_task_step(plan, number, results) for number in range(len(plan.steps))]
    waits = waits_of(steps, most=5)
    counters: dict[int, int] = {}
    for first, count in waits.ranges:
        plan.ranges.add(first=first, steps=count)
        for number in range(first, first + count):
            counters[number] = len(counters)
            plan.steps[number].run.signal = len(counters)
            plan.steps[number].run.wait = number in waits.barriers
    for number, own in waits.waits.items():
        message = _action(plan, number)
        for wait in own:
            message.waits.add(counter=counters[wait.step], threshold=wait.threshold)


def _action(plan: plan_pb2.Plan, number: int) -> plan_pb2.Run:
    step = plan.steps[number]
    return getattr(step, step.WhichOneof("action") or "")


def _touches(plan: plan_pb2.Plan, number: int, results: dict[int, int]) -> list[Touch]:
    step = plan.steps[number]
    if step.WhichOneof("action") == "run":
        numbers = [argument.buffer for argument in step.run.arguments]
        reads = len(numbers) - results[number]
    elif step.WhichOneof("action") == "branch_if_false":
        numbers, reads = [step.branch_if_false.condition.buffer], 1
    else:
        return []
    found: list[Touch] = []
    for place, one in enumerate(numbers):
        buffer = plan.buffers[one]
        found.append(Touch("arena", buffer.offset, buffer.offset + buffer.bytes, place >= reads))
    return found


def _task_step(plan: plan_pb2.Plan, number: int, results: dict[int, int]) -> TaskStep:
    action = plan.steps[number].WhichOneof("action")
    kinds = {"run": "run", "branch_if_false": "branch", "jump": "jump"}
    return TaskStep(kinds[action], _touches(plan, number, results), _next(plan, number))  # type: ignore[arg-type,index]


def _next(plan: plan_pb2.Plan, number: int) -> list[int]:
    step = plan.steps[number]
    if step.WhichOneof("action") == "jump":
        return [step.jump.target]
    if step.WhichOneof("action") == "branch_if_false":
        return [number + 1, step.branch_if_false.target]
    return [number + 1]


def _ways(plan: plan_pb2.Plan) -> Iterator[list[int]]:
    """The steps of every way through the plan, in which no step comes more than three times, short
    ones first."""
    open_ways: list[list[int]] = [[0]]
    while open_ways:
        way = open_ways.pop()
        if way[-1] == len(plan.steps):
            yield way[:-1]
            continue
        if way.count(way[-1]) <= _MOST_TURNS:
            open_ways += [[*way, target] for target in _next(plan, way[-1])]


def is_safe(plan: plan_pb2.Plan, results: dict[int, int]) -> bool:
    """Whether every two steps of every way that touch the same bytes are in order, one of them
    writing, and nothing waits for ever."""
    touches = [_touches(plan, number, results) for number in range(len(plan.steps))]
    return all(_way_is_safe(plan, way, touches) for way in islice(_ways(plan), _MOST_WAYS))


def _way_is_safe(plan: plan_pb2.Plan, way: Sequence[int], touches: list[list[Touch]]) -> bool:
    home = {
        n: r for r, one in enumerate(plan.ranges) for n in range(one.first, one.first + one.steps)
    }
    owner = {plan.steps[n].run.signal - 1: n for n in home}
    if len(owner) < len(home):
        return False
    turns = [0] * len(plan.ranges)
    instances: dict[int, list[int]] = {}  # of each step: positions in the way
    before: list[int] = []  # of each position: those that are complete when it begins, as bits
    base = 0  # what every worker that has come here has seen complete
    for place, number in enumerate(way):
        message = _action(plan, number)
        if number in home and number == plan.ranges[home[number]].first:
            turns[home[number]] += 1
        everything = (1 << place) - 1
        if getattr(message, "wait", False):
            base = everything
        known = base
        for wait in getattr(message, "waits", ()):
            step = owner.get(wait.counter)
            if step is None:
                return False
            count = turns[home[step]] - 1 + wait.threshold
            if count > len(instances.get(step, ())):
                return False  # nobody counts that before this begins
            for one in instances.get(step, [])[: max(count, 0)]:
                known |= 1 << one | before[one]
        if plan.steps[number].WhichOneof("action") == "branch_if_false":
            base = known = known if message.waits else everything
        for other in range(place):
            runs = plan.steps[way[other]].WhichOneof("action") == "run"
            clash = any(
                a.begin < b.end and b.begin < a.end and (a.write or b.write)
                for a in touches[number]
                for b in touches[way[other]]
            )
            if runs and clash and not known >> other & 1:
                return False
        before.append(known)
        instances.setdefault(number, []).append(place)
    return True
