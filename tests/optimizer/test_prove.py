"""The proof of task ranges against brute force: plans that are right, and mutants of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import girih
from girih.hlo.errors import CompilerBug
from girih.optimizer.prove import prove
from girih.specs.generated import plan_pb2

from .control_programs import Program
from .task_plans import UNIT, is_safe, random_plan

SEEDS = range(150)
MUTANTS = 3  # of each kind and plan


def _waiting(plan: plan_pb2.Plan) -> list[plan_pb2.Run]:
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


def signal(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """Two steps count on each other's counters."""
    counted = [step.run for step in plan.steps if step.run.signal]
    if len(counted) > 1:
        one, other = draw.sample(counted, 2)
        one.signal, other.signal = other.signal, one.signal


def share(plan: plan_pb2.Plan, draw: random.Random) -> None:
    """A buffer lies where it did not."""
    buffer = draw.choice(plan.buffers)
    buffer.offset = draw.randrange(6) * UNIT


@pytest.mark.parametrize("mutate", [drop, threshold, signal, share])
def test_no_unsafe_mutant_is_accepted(
    mutate: Callable[[plan_pb2.Plan, random.Random], None],
) -> None:
    unsafe = accepted = 0
    for seed in SEEDS:
        plan, results = random_plan(seed)
        for number in range(MUTANTS):
            mutant = plan_pb2.Plan()
            mutant.CopyFrom(plan)
            mutate(mutant, random.Random(seed * MUTANTS + number))
            safe = is_safe(mutant, results)
            unsafe += not safe
            try:
                prove(mutant, results)
            except CompilerBug:
                continue
            accepted += 1
            assert safe, f"plan {seed}, mutant {number}"
    assert unsafe > len(SEEDS) / 4  # the mutations do harm
    assert accepted > 5  # and those that do none are not all refused


def test_every_plan_that_was_made_is_right() -> None:
    for seed in SEEDS:
        plan, results = random_plan(seed)
        assert is_safe(plan, results), seed
        prove(plan, results)


@pytest.mark.parametrize("shared", [False, True])
def test_scratch_is_memory_that_its_step_writes(shared: bool) -> None:
    """Two steps that need nothing of each other, on a GPU, whose scratch may be the same."""
    plan = plan_pb2.Plan()
    for at in range(2):
        plan.buffers.add(place=plan_pb2.OUTPUT, index=at, bytes=UNIT)
        place = 0 if shared else at * UNIT
        plan.buffers.add(place=plan_pb2.ARENA, offset=place, bytes=UNIT)
        run = plan.steps.add().run
        run.arguments.add(buffer=2 * at)
        run.scratch.buffer, run.signal = 2 * at + 1, at + 1
    plan.ranges.add(first=0, steps=2)
    if shared:
        with pytest.raises(CompilerBug, match="step 1 may begin before step 0 is complete"):
            prove(plan, {0: 1, 1: 1})
        plan.steps[1].run.waits.add(counter=0, threshold=1)
    prove(plan, {0: 1, 1: 1})


@pytest.mark.parametrize("seed", [194, 227])
def test_plans_of_many_branches_in_loops_are_proven(seed: int) -> None:
    """What orders two steps is another step on each of hundreds of ways."""
    girih.compile(Program(seed).module(), options=girih.Options(cache="off"))
