"""Steps that are one launch: how a device starts them, and plans that say wrong things of them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.runtime.devices.gpu_steps import ArgumentTable, KernelStep
from girih.runtime.devices.launches import CALL, decode
from girih.specs.generated import plan_pb2

from .gpu_fakes import FakeGpu, PlanOf, add, add_one, flat


def three_steps() -> PlanOf:
    """t = x + 1 and u = x + 1, merged; y = t + u."""
    plan = PlanOf().inputs(x=16).outputs(y=16).results("y")
    for number, name in enumerate("tu"):
        plan.buffer(name, plan_pb2.ARENA, 16, offset=256 * number)
    plan.run("add_one", "x", "t", wait=False).run("add_one", "x", "u", wait=False)
    plan.run("add", "t", "u", "y", wait=False, after=(0, 1))
    merge = plan.plan.merges.add(entry="both", threads=32, table_bytes=192)
    merge.steps.add(step=0, first_block=0, blocks=1, places=(0, 8))
    merge.steps.add(step=1, first_block=1, blocks=1, places=(64, 72))
    return plan


def both(gpu: FakeGpu, table: bytes) -> None:
    for begin in (0, 64):
        add_one(gpu, *struct.unpack_from("<QQ", table, begin))


def test_the_first_step_starts_all_and_the_others_follow_it():
    first, second, last = decode(three_steps().plan, {}).steps
    assert isinstance(first, KernelStep) and isinstance(second, KernelStep)
    assert isinstance(last, KernelStep)
    ((start, (table,), persistent),) = first.launches
    assert (start.entry, start.grid, start.block) == ("both", (2, 1, 1), (32, 1, 1))
    assert isinstance(table, ArgumentTable) and table.size == 192 and not persistent
    assert [place for place, _ in table.cells] == [0, 8, 64, 72]
    assert table.cells[0][1] == (CALL, 0) and first.merged == 2 and len(first.arrays) == 4
    assert second.launches == () and second.after == (0,) and last.after == (0, 1)


@pytest.mark.parametrize("graphs", [False, True])
def test_merged_steps_run_as_one_launch(graphs):
    gpu = FakeGpu(graphs=graphs, both=both, add=add, add_one=add_one)
    program = three_steps().program(flat(1, 1), gpu)
    x = np.arange(4, dtype=np.float32)
    for turn in range(3):
        assert program(x + turn)[0].tolist() == (2 * (x + turn) + 2).tolist()
    assert gpu.log.count("launch") + gpu.log.count("replay 2") * 2 == 6
    profile = program.profile(x)
    assert [event.step for event in profile.events] == [0, 2]
    assert {one.kernel for one in profile.kernels()} == {"add_one_0+add_one_1", "add_2"}


def _far(plan: Any) -> None:
    plan.merges[0].steps[1].step = 2


def _shared(plan: Any) -> None:
    del plan.merges[0].steps[1].places[:]
    plan.merges[0].steps[1].places.extend((8, 72))


def _waits(plan: Any) -> None:
    plan.steps[1].run.waits.add(counter=0, threshold=1)


def _jump(plan: Any) -> None:
    plan.steps.add().jump.target = 1


def _several(plan: Any) -> None:
    kernel = plan.kernels[0]
    kernel.launches.add().CopyFrom(kernel.launches[0])


FAULTS = {
    "steps that do not follow each other": _far,
    "a step that waits for another": _waits,
    "a barrier between": lambda plan: setattr(plan.steps[1].run, "wait", True),
    "a jump into the middle": _jump,
    "a kernel of two launches": _several,
    "blocks of each other": lambda plan: setattr(plan.merges[0].steps[1], "first_block", 0),
    "more blocks than there are": lambda plan: setattr(plan.merges[0].steps[1], "blocks", 2),
    "fewer threads than a kernel has": lambda plan: setattr(plan.merges[0], "threads", 16),
    "another cluster": lambda plan: setattr(plan.merges[0], "cluster", 2),
    "arguments over each other": _shared,
    "an argument without a place": lambda plan: plan.merges[0].steps[0].places.pop(),
    "a table that is too small": lambda plan: setattr(plan.merges[0], "table_bytes", 72),
    "a table that no entry takes": lambda plan: setattr(plan.merges[0], "table_bytes", 40000),
    "a step that is not there": lambda plan: setattr(plan.merges[0].steps[1], "step", 9),
    "a merge of nothing": lambda plan: plan.merges.add(),
    "a step of two merges": lambda plan: plan.merges.add().CopyFrom(plan.merges[0]),
    "scratch that all kernels have": lambda plan: setattr(plan.kernels[0], "scratch_bytes", 8),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_merges_are_refused(fault):
    plan = three_steps().plan
    decode(plan, {})
    FAULTS[fault](plan)
    with pytest.raises(UserError, match="malformed"):
        decode(plan, {})
