"""Wrong twins of plans: what schedules say is changed in one place, by chance. `tried` asks brute
force and the proof about each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from girih.hlo.errors import CompilerBug
from girih.optimizer.prove import prove
from girih.specs.generated import plan_pb2

from .launch_plans import Case, launches_are_safe, persistent_is_safe, planned
from .task_plans import UNIT, is_safe, random_plan

Mutation = Callable[[plan_pb2.Plan, random.Random], None]


def _waiting(plan: plan_pb2.Plan) -> list[Any]:
    found = [getattr(step, step.WhichOneof("action") or "") for step in plan.steps]
    return [one for one in found if getattr(one, "waits", ())]


def drop(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A wait, or a barrier, is left out."""
    barriers = [step.run for step in plan.steps if step.run.wait]
    waiting = _waiting(plan)
    if barriers and (not waiting or draw.random() < 0.3):
        draw.choice(barriers).wait = False
    elif waiting:
        own = draw.choice(waiting).waits
        del own[draw.randrange(len(own))]


def threshold(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A wait is for another run."""
    if waiting := _waiting(plan):
        wait = draw.choice(draw.choice(waiting).waits)
        wait.threshold = 1 - wait.threshold


def counter(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A wait is for another step."""
    if waiting := _waiting(plan):
        draw.choice(draw.choice(waiting).waits).counter = draw.randrange(len(plan.steps))


def signal(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """Two steps count on each other's counters."""
    counted = [step.run for step in plan.steps if step.run.signal]
    if len(counted) > 1:
        one, other = draw.sample(counted, 2)
        one.signal, other.signal = other.signal, one.signal


def share(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A buffer lies where it did not: over another one, perhaps."""
    if arena := [buffer for buffer in plan.buffers if buffer.place == plan_pb2.ARENA]:
        places = {one.offset + by for one in arena for by in (-UNIT, 0, UNIT)}
        draw.choice(arena).offset = draw.choice([place for place in sorted(places) if place >= 0])


def argument(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A step reads or writes what another one does."""
    runs = [step.run for step in plan.steps if step.run.arguments]
    one, other = draw.choice(runs), draw.choice(runs)
    draw.choice(one.arguments).CopyFrom(draw.choice(other.arguments))


def target(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """Control goes on elsewhere, one or two steps from there."""
    actions = [getattr(step, step.WhichOneof("action") or "") for step in plan.steps]
    if leading := [one for one in actions if hasattr(one, "target")]:
        one = draw.choice(leading)
        one.target = min(max(0, one.target + draw.choice((-2, -1, 1, 2))), len(plan.steps))


def _number(message: Any, field: str, by: int) -> None:
    """Changes a number that is not negative."""
    setattr(message, field, max(0, getattr(message, field) + by))


def grow(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A launch starts one more step, before or behind its own, with blocks and a table for it."""
    merge = draw.choice(plan.merges)
    numbers = [one.step for one in merge.steps]
    step = draw.choice((min(numbers) - 1, max(numbers) + 1))
    if 0 <= step < len(plan.steps) and plan.steps[step].HasField("run"):
        _add(plan, merge, step)


def pair(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """Two steps that follow each other are one launch more."""
    merged = {one.step for merge in plan.merges for one in merge.steps}
    alone = [n not in merged and step.HasField("run") for n, step in enumerate(plan.steps)]
    if found := [n for n in range(1, len(alone)) if alone[n - 1] and alone[n]]:
        merge, second = plan.merges.add(), draw.choice(found)
        _add(plan, merge, second - 1)
        _add(plan, merge, second)


def _add(plan: plan_pb2.Plan, merge: plan_pb2.Merge, step: int) -> None:
    launch = plan.kernels[plan.steps[step].run.kernel].launches[0]
    x, y, z = launch.grid
    first = sum(one.blocks for one in merge.steps)
    end, count = -(-merge.table_bytes // 8) * 8, len(launch.arguments)
    places = [end + 8 * place for place in range(count)]
    merge.steps.add(step=step, first_block=first, blocks=x * y * z, places=places)
    merge.table_bytes = end + 8 * count
    merge.threads = max(merge.threads, launch.block[0])
    merge.shared_bytes = max(merge.shared_bytes, launch.shared_bytes)


def blocks(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A step has blocks of another one, or too many, or too few; or other steps have its."""
    steps = draw.choice(plan.merges).steps
    one, other = draw.choice(steps), draw.choice(steps)
    if draw.random() < 0.3:
        one.step, other.step = other.step, one.step
    else:
        _number(one, draw.choice(("first_block", "blocks")), draw.choice((-1, 1)))


def launch(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A launch has less for its blocks than one of its steps needs."""
    merge = draw.choice(plan.merges)
    field = draw.choice(("threads", "shared_bytes", "table_bytes", "cluster"))
    _number(merge, field, 2 if field == "cluster" else -draw.choice((8, 32, 256)))


def _places(plan: plan_pb2.Plan) -> list[Any]:
    persistent = plan.persistent.steps
    merged = [one for merge in plan.merges for one in merge.steps]
    return [one for one in (*merged, *persistent) if one.places]


def place(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """An argument lies elsewhere in its table, or nowhere."""
    places = draw.choice(_places(plan)).places
    at = draw.randrange(len(places))
    if draw.random() < 0.1:
        del places[at]
    else:
        places[at] = max(0, places[at] + draw.choice((-64, -8, -4, 4, 8, 64)))


def unmet(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """Blocks do not meet before a step, or before another one instead."""
    if barriers := plan.persistent.barriers:
        at = draw.randrange(len(barriers))
        if draw.random() < 0.5:
            del barriers[at]
        else:
            barriers[at] = max(0, barriers[at] + draw.choice((-1, 1)))


def resident(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """Blocks that are too many or too small, or steps that are not the plan's."""
    said = plan.persistent
    what = draw.choice(("blocks", "threads", "shared_bytes", "table_bytes", "steps"))
    if what == "blocks":
        said.blocks = draw.choice((0, said.blocks + draw.choice((1, 100, 200))))
    elif what == "steps":
        del said.steps[draw.randrange(len(said.steps))]
    else:
        _number(said, what, -draw.choice((8, 64, 512)))


class Kind(NamedTuple):
    """Plans by seed, what is changed of them, and what tells by brute force if they are safe."""

    made: Callable[[int], Case | None]
    mutations: tuple[Mutation, ...]
    safe: Callable[[Case], bool]


COUNTING = drop, threshold, counter, signal, share, argument
KINDS = {
    "counters": Kind(
        lambda seed: Case(*random_plan(seed)), COUNTING, lambda c: is_safe(c.plan, c.results)
    ),
    "graph": Kind(lambda seed: planned(seed, "graph"), COUNTING, launches_are_safe),
    "merged": Kind(
        lambda seed: planned(seed, "merged"),
        (*COUNTING, target, grow, pair, blocks, launch, place), launches_are_safe,
    ),
    "persistent": Kind(
        lambda seed: planned(seed, "persistent"),
        (unmet, share, argument, target, place, resident), persistent_is_safe,
    ),
}  # fmt: skip


class Tried(NamedTuple):
    """What became of a mutant."""

    name: str
    safe: bool
    accepted: bool


def tried(kind: str, seed: int, each: int) -> Iterator[Tried]:
    """The plan of a seed, which is "as made", and `each` mutants by each mutation that change
    something; nothing where there is no plan."""
    case = KINDS[kind].made(seed)
    if case is None:
        return
    yield Tried("as made", KINDS[kind].safe(case), _accepted(case))
    for mutation in KINDS[kind].mutations:
        for number in range(each):
            plan = plan_pb2.Plan()
            plan.CopyFrom(case.plan)
            mutation(plan, random.Random(f"{seed} {number}"))
            if plan != case.plan:
                mutant = case._replace(plan=plan)
                yield Tried(mutation.__name__, KINDS[kind].safe(mutant), _accepted(mutant))


def _accepted(case: Case) -> bool:
    try:
        prove(case.plan, case.results, case.inside, case.resident)
    except CompilerBug:
        return False
    return True
