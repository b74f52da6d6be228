"""All steps as one launch: what a device makes of it, and plans that say wrong things of it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.runtime.devices.gpu_steps import ArgumentTable
from girih.runtime.devices.launches import decode
from girih.runtime.devices.persistent_launch import MEETING, STOP, Meeting
from girih.runtime.devices.resources import Stream
from girih.specs.generated import plan_pb2

from .gpu_fakes import FakeGpu, PlanOf, add_one, flat


def two_steps() -> PlanOf:
    """y = (x + 1) + 1."""
    plan = PlanOf().inputs(x=16).outputs(y=16).buffer("t", plan_pb2.ARENA, 16).results("y")
    plan.run("add_one", "x", "t").run("add_one", "t", "y")
    plan.plan.schedule = "persistent"
    one = plan.plan.persistent
    one.entry, one.threads, one.blocks, one.table_bytes = "whole", 32, 200, 256
    one.steps.add(places=(64, 72))
    one.steps.add(places=(128, 136))
    one.barriers.append(1)
    return plan


def whole(gpu: FakeGpu, table: bytes) -> None:
    meeting, flag = struct.unpack_from("<QQ", table)
    assert not gpu.at(meeting, 8).any() and not gpu.at(flag, 4).any()
    for begin in (64, 128):
        add_one(gpu, *struct.unpack_from("<QQ", table, begin))


class Cooperative(FakeGpu):
    """A device that holds 7 blocks at a time."""

    cooperative = True
    holds = 7

    def has_come(self, event: Any) -> bool:
        event[0].run(event[1])
        return True

    def prepare(self, entry: Any, start: Any, arguments: Any) -> Any:
        self.log.append(f"{start.grid[0]} blocks, {start.cooperative}")
        return super().prepare(entry, start, arguments)


X = np.arange(4, dtype=np.float32)


def test_the_table_of_arguments():
    found = decode(two_steps().plan, {}).persistent
    assert found is not None and found.start.cooperative and found.start.grid == (200, 1, 1)
    (table,) = found.parameters
    assert isinstance(table, ArgumentTable) and [place for place, _ in table.cells] == [
        0, 8, 64, 72, 128, 136,
    ]  # fmt: skip
    assert {MEETING, STOP} <= {*found.bases}
    assert decode(PlanOf().inputs(x=16).plan, {}).persistent is None


def test_one_launch_of_as_many_blocks_as_are_resident():
    gpu = Cooperative(whole=whole, add_one=add_one)
    program = two_steps().program(flat(1, 1), gpu)
    for turn in range(3):
        assert program(X + turn)[0].tolist() == (X + turn + 2).tolist()
    assert program.on_device(X)[0].numpy().tolist() == (X + 2).tolist()
    assert program.events["launches"] == 4 and program.events["copies_to_host"] == 3
    assert gpu.log.count("launch") == 4 and "7 blocks, True" in gpu.log
    # A profile is of the steps, one by one.
    assert [event.step for event in program.profile(X).events] == [0, 1]


def test_a_device_that_holds_no_block():
    gpu = Cooperative(whole=whole, add_one=add_one)
    gpu.holds = 0
    with pytest.raises(UserError, match="Fake holds no block of 32 threads with 0 bytes"):
        two_steps().program(flat(1, 1), gpu)(X)


@pytest.mark.parametrize("strict", [False, True])
def test_a_driver_without_cooperative_launches(strict):
    plan, gpu = two_steps(), FakeGpu(whole=whole, add_one=add_one)
    plan.plan.schedule_required = strict
    program = plan.program(flat(1, 1), gpu)
    if strict:
        with pytest.raises(UserError, match="strict: Fake: it has no cooperative launches"):
            program(X)
        return
    with pytest.warns(UserWarning, match="Fake: it has no cooperative launches: the host decides"):
        assert program(X)[0].tolist() == (X + 2).tolist()


def _few(plan: Any) -> None:
    del plan.persistent.steps[1:]


def _shared_place(plan: Any) -> None:
    plan.persistent.steps[1].places[0] = 68


def _header(plan: Any) -> None:
    plan.persistent.steps[0].places[0] = 8


def _far(plan: Any) -> None:
    plan.persistent.table_bytes = 128


def _narrow(plan: Any) -> None:
    plan.kernels[0].launches[0].block[0] = 64


def _none(plan: Any) -> None:
    plan.persistent.blocks = 0


def _many(plan: Any) -> None:
    plan.persistent.table_bytes = 1 << 16


def _missing(plan: Any) -> None:
    plan.persistent.steps[0].places.pop()


@pytest.mark.parametrize(
    "change", [_few, _shared_place, _header, _far, _narrow, _none, _many, _missing]
)
def test_plans_that_contradict_themselves(change):
    plan = two_steps().plan
    change(plan)
    with pytest.raises(UserError, match="damaged|malformed|compile it again|plan"):
        decode(plan, {})


def test_what_interrupts_a_wait_stops_the_blocks():
    gpu = Cooperative()
    with gpu:
        meeting = Meeting(gpu, Stream(gpu))
        gpu.drain()
        gpu.at(meeting.address, 8)[...] = 3  # blocks that wait
        seen: list[int] = []

        def interrupted(event: Any) -> bool:
            raise KeyboardInterrupt

        gpu.has_come = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            meeting.wait(lambda stream: seen.append(int(meeting.flag[0])))
        gpu.drain()
        assert seen == [1] and not meeting.flag.any() and not gpu.at(meeting.address, 8).any()
