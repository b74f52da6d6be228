"""Which steps native code walks in one go."""

from __future__ import annotations

from girih.runtime.distributed.stretches import stretches
from girih.specs.generated import plan_pb2


def steps(*words: str) -> list[plan_pb2.Step]:
    """ "run", "exchange", "branch 4", "jump 0"."""
    found = []
    for word in words:
        action, _, target = word.partition(" ")
        step = plan_pb2.Step()
        if action == "branch":
            step.branch_if_false.target = int(target)
        elif action == "jump":
            step.jump.target = int(target)
        else:
            getattr(step, action).SetInParent()
        found.append(step)
    return found


def test_a_loop_without_exchanges_is_part_of_a_stretch():
    given = steps("run", "branch 4", "run", "jump 1", "run", "exchange", "run")
    assert stretches(given) == [(0, 5), (6, 7)]


def test_jumps_of_a_loop_with_an_exchange_stand_alone():
    given = steps("run", "branch 6", "run", "exchange", "run", "jump 1", "run")
    assert stretches(given) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_plan_of_exchanges_has_no_stretch():
    assert stretches(steps("exchange", "exchange")) == []
