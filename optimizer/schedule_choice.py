"""How a GPU runs a plan where the user leaves that open: by price.

The plan says what each way is predicted to take. The host decides, unless a graph with conditional
nodes is predicted to be faster by more than the prediction may be wrong; never where a loop may be
without an end, since nothing ends such a graph but the process. A persistent launch has a price and
is not taken: what blocks lose by waiting for each other is measured on no GPU yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..specs.generated import plan_pb2
from .cost.merging import ERROR, LaunchWork, seconds_of
from .cost.schedules import TURNS, Decisions, LaunchPrice, Stretch, schedule_seconds
from .machine import Machine, Residency

_DECIDES = "branch_if_false", "switch"


def choose_schedule(
    plan: plan_pb2.Plan,
    works: Mapping[int, LaunchWork],
    waiting: Collection[int],
    machine: Machine,
    most: Residency,
) -> None:
    """Sets a plan's `prices`, and its `schedule` where that is not the host's.

    works: of each of its kernels. waiting: the steps before which all blocks of a persistent launch
    would meet. machine: one that runs blocks of threads.
    """
    if plan.processes or machine.blocks is None:
        return
    times = _times(plan)
    kernels = {
        number: LaunchPrice(
            len(plan.kernels[number].launches),
            float(seconds_of([work], work.needs.resident(most), machine)),
            float(seconds_of([work], 1.0, machine)),
            min(1.0, work.blocks / machine.executors),
        )
        for number, work in works.items()
    }
    begin = machine.sync.step + machine.blocks.fill
    stretches = [*_stretches(plan, times, kernels, waiting, begin)]
    decided = [n for n, step in enumerate(plan.steps) if step.WhichOneof("action") in _DECIDES]
    read = [n for n in decided if not _known(plan.steps[n])]
    decisions = Decisions(
        sum(times[n] for n in decided), sum(times[n] for n in read),
        sum(times[n] for n in decided if n in waiting),
    )  # fmt: skip
    found = schedule_seconds(stretches, decisions, machine)
    if any(plan.merges):
        found["merged"] = found.pop("host")
    for name, seconds in sorted(found.items(), key=lambda item: item[1]):
        plan.prices.add(schedule=name, seconds=float(f"{seconds:.4g}"))
    others = min(found.get("host", found.get("merged", 0.0)), found["launches"])
    if found["graph"] < (1 - ERROR) * others and not _may_be_endless(plan):
        plan.schedule = "graph"


def _known(step: Any) -> bool:
    return step.WhichOneof("action") == "branch_if_false" and step.branch_if_false.HasField("known")


def _loops(plan: plan_pb2.Plan) -> list[range]:
    """The steps of each loop, with the jump back."""
    jumps = [(n, step.jump) for n, step in enumerate(plan.steps) if step.HasField("jump")]
    return [range(jump.target, n + 1) for n, jump in jumps if jump.target <= n]


def _leaving(plan: plan_pb2.Plan, loop: range) -> list[Any]:
    """The branches that end a loop."""
    steps = [plan.steps[n] for n in loop if plan.steps[n].HasField("branch_if_false")]
    return [one.branch_if_false for one in steps if one.branch_if_false.target >= loop.stop]


def _may_be_endless(plan: plan_pb2.Plan) -> bool:
    return any(not one.HasField("known") for loop in _loops(plan) for one in _leaving(plan, loop))


def _times(plan: plan_pb2.Plan) -> list[float]:
    """How often each step is come to: arms of a branch are as likely as each other."""
    times = [0.0] * (len(plan.steps) + 1)
    times[0] = 1.0
    turns = [1.0] * (len(plan.steps) + 1)
    loops = _loops(plan)
    for loop in loops:
        ends = _leaving(plan, loop)
        known = ends and all(one.HasField("known") for one in ends)
        count = sum(one.known.turns for one in ends) if known else TURNS
        for number in loop:  # each turn of those that follow each other is a part of them
            turns[number] *= max(count / max(len(ends), 1), 1.0)
    for number, step in enumerate(plan.steps):
        kind, now = step.WhichOneof("action"), times[number]
        if kind == "jump":
            ahead = [step.jump.target] if step.jump.target > number else []
        elif kind == "switch":
            ahead = [*step.switch.targets]
        elif kind == "branch_if_false" and not any(
            number in loop and step.branch_if_false.target >= loop.stop for loop in loops
        ):
            ahead = [number + 1, step.branch_if_false.target]
        else:
            ahead = [number + 1]
            if kind == "branch_if_false":
                times[step.branch_if_false.target] += now
        for target in ahead:
            times[target] += now / len(ahead)
    return [one * turn for one, turn in zip(times, turns, strict=True)]


def _stretches(
    plan: plan_pb2.Plan,
    times: Sequence[float],
    kernels: Mapping[int, LaunchPrice],
    waiting: Collection[int],
    begin: float,
) -> list[Stretch]:
    """Runs in a row, as far as control comes to one from the other."""
    targets = {step.jump.target for step in plan.steps if step.HasField("jump")}
    cuts = [n for n, step in enumerate(plan.steps) if not step.HasField("run") or n in targets]
    found: list[Stretch] = []
    for before, end in pairwise([-1, *cuts, len(plan.steps)]):
        kind = plan.steps[before].WhichOneof("action") if before >= 0 else ""
        first = before + (kind != "run")
        if first < end:
            prices = _prices(plan, range(first, end), kernels, waiting, begin)
            read = before < 0 or (kind in _DECIDES and not _known(plan.steps[before]))
            found.append(Stretch(prices, times[first], read))
    return found


def _prices(
    plan: plan_pb2.Plan,
    steps: range,
    kernels: Mapping[int, LaunchPrice],
    waiting: Collection[int],
    begin: float,
) -> list[LaunchPrice]:
    """begin: seconds until a launch runs, which those of a merged one count."""
    counted = {plan.steps[n].run.signal: n for n in steps}
    heads = {
        one.step: (merge, min(other.step for other in merge.steps))
        for merge in plan.merges
        for one in merge.steps
    }
    found: list[LaunchPrice] = []
    for number in steps:
        run = plan.steps[number].run
        after = [counted.get(wait.counter + 1, number) for wait in run.waits if wait.threshold]
        places = {one - steps.start for one in after if one < number}
        if run.wait:
            places = {*range(number - steps.start)}
        price = kernels[run.kernel]
        if number in heads:
            merge, head = heads[number]
            seconds = max(0.0, merge.seconds - begin) if head == number else 0.0
            price = price._replace(launches=int(head == number), seconds=seconds)
            places |= {head - steps.start} - {number - steps.start}
        found.append(price._replace(after=sorted(places), meets=number in waiting))
    return found
