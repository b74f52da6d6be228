"""The proof of schedules against brute force: plans that are right, and mutants of them."""

from __future__ import annotations

import pytest

import girih
from girih.hlo.errors import CompilerBug
from girih.optimizer.prove import prove
from girih.specs.generated import plan_pb2

from .control_programs import Program
from .schedule_mutants import KINDS, tried
from .task_plans import UNIT

SEEDS = {"counters": range(150), "graph": range(16), "merged": range(12), "persistent": range(14)}


@pytest.mark.parametrize("kind", KINDS)
def test_no_unsafe_mutant_is_accepted(kind: str) -> None:
    """And every plan that was made is; `benchmarks/schedule_mutants.py` tries more of them."""
    unsafe, safe, mutations = 0, 0, set()
    for seed in SEEDS[kind]:
        for name, is_safe, accepted in tried(kind, seed, each=2):
            assert is_safe or not accepted, f"plan {seed}: {name}"
            if name == "as made":
                assert is_safe and accepted, seed
            elif is_safe:
                safe += accepted
            else:
                unsafe += 1
                mutations.add(name)
    assert unsafe > 50 and safe > 5  # mutations do harm, and those that do none are not all refused
    assert mutations == {one.__name__ for one in KINDS[kind].mutations}


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
