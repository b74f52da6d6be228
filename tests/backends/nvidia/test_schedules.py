"""All ways to run a program give the same bits; `benchmarks/schedules.py` tries more programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import girih
from girih.compilation import take_schedule
from girih.hlo.errors import UserError
from girih.options import SCHEDULES
from girih.runtime.program import Program
from girih.simulated import simulated_gpu
from girih.specs.generated import plan_pb2

from ...optimizer.control_programs import Program as Generated

CALLS = (2,)  # numbers of turns


def outputs(seed: int) -> Iterator[tuple[str, Any, Mapping[str, int]]]:
    """Of a generated program by each schedule and target: results of some calls, and the event log.
    Steps of a GPU run in the order that is farthest from theirs, and, by "graph", in some other."""
    made = Generated(seed)
    module = made.module()
    calls = [made.arguments(number) for number in CALLS]
    for target in ("ptx-sim", "cpu"):
        for schedule in SCHEDULES if target == "ptx-sim" else ("auto", "launches"):
            options = girih.Options(schedule=schedule, cache="off")
            try:
                program = girih.compile(module, target=target, options=options)
            except UserError as error:  # of a program all of whose kernels need each other
                if "independent of each other" not in str(error):
                    raise
                assert schedule == "merged"
                continue
            yield f"{target} {schedule}", [program(*one) for one in calls], program.events
            if schedule == "graph":
                driver = simulated_gpu(program.target)
                driver.seed = seed + 1
                program = Program(program.parts, program.target, driver=driver)
                yield f"{target} drawn", [program(*one) for one in calls], program.events


def check(seed: int) -> None:
    """AssertionError where results differ within a target, or from the interpreter's."""
    made = Generated(seed)
    wanted = [girih.interpret(made.module(), made.arguments(number)) for number in CALLS]
    first: dict[str, Any] = {}
    for name, found, events in outputs(seed):
        target, _, schedule = name.partition(" ")
        same = first.setdefault(target, found)
        for one, other, exact in zip(found, same, wanted, strict=True):
            for left, right, reference in zip(one, other, exact, strict=True):
                np.testing.assert_array_equal(left, right, err_msg=f"{seed}: {name}")
                np.testing.assert_allclose(left, reference, rtol=1e-4, atol=1e-5)
        if schedule in ("graph", "drawn", "persistent"):
            results, kind = len(CALLS) * len(wanted[0]), ("graph_launches", "launches")
            one, none = kind if schedule != "persistent" else kind[::-1]
            assert events[one] == len(CALLS) and not events[none], (seed, events)
            assert events["copies_to_host"] == results, (seed, events)


@pytest.mark.parametrize("seed", range(4))
def test_all_schedules_give_the_same_bits(seed):
    check(seed)


@pytest.mark.parametrize(
    ("target", "schedule"), [("cpu", "graph"), ("cpu:avx2", "host"), ("null", "launches")]
)
def test_a_schedule_that_a_target_has_not(target, schedule):
    module, options = Generated(0).module(), girih.Options(schedule=schedule, cache="off")
    with pytest.raises(
        UserError, match=f"schedule='{schedule}' is none of its ways to run"
    ) as said:
        girih.compile(module, target=target, options=options)
    assert "leave it out" in str(said.value)


def test_a_schedule_that_there_is_not():
    with pytest.raises(ValueError, match="schedule must be one of auto, launches, host, graph"):
        girih.Options(schedule="fastest")


def test_merged_kernels_are_one_launch():
    """Of all steps but those that need others; what was merged is predicted to gain."""
    made = Generated(2)
    events = {}
    for schedule in ("host", "merged"):
        options = girih.Options(schedule=schedule, cache="off")
        program = girih.compile(made.module(), target="ptx-sim", options=options)
        program(*made.arguments(0))
        events[schedule] = program.events["launches"]
        merged = sum(len(merge.steps) - 1 for merge in program.plan.merges)
        assert (schedule == "merged") == (merged > 0)
        found = program.profile(*made.arguments(0))
        assert len(found.events) == program.events["launches"] - events[schedule]
    assert events["merged"] < events["host"]


def test_workers_meet_where_the_schedule_is_launches():
    module = Generated(1).module()
    plans = {
        name: girih.compile(module, options=girih.Options(schedule=name, cache="off")).plan
        for name in ("auto", "launches")
    }
    assert plans["auto"].ranges and not plans["launches"].ranges


def test_where_processes_exchange_no_graph_is_the_whole_program():
    """The first exchange is named, by its line."""
    plan = plan_pb2.Plan()
    step = plan.steps.add().exchange
    step.part_of, step.origin.file, step.origin.line = "all_gather", "model.py", 7
    take_schedule(plan, girih.Options(schedule="host"))
    with pytest.raises(UserError, match=r"^model.py:7: schedule='graph': .*\(all_gather\)"):
        take_schedule(plan, girih.Options(schedule="graph"))
