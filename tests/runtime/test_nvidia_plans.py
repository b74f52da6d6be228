"""Plans for a GPU that contradict themselves are refused before anything is launched."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from girih.hlo.errors import UserError
from girih.runtime.devices.gpu_steps import Choose, KernelStep, Mapped
from girih.runtime.devices.launches import ARENA, CALL, SCRATCH, decode
from girih.runtime.timeline import Timeline
from girih.specs.generated import plan_pb2

from .gpu_fakes import PlanOf


def mapped() -> PlanOf:
    """A kernel with a tensor map over its operand, scratch and a number; a branch and a switch."""
    plan = PlanOf().inputs(x=1024, c=4).outputs(y=64)
    plan.buffer("t", plan_pb2.ARENA, 64, offset=128).results("y")
    plan.run("copy", "x", "y", "t", scratch=64, numbers=(1,))
    box = plan.plan.kernels[0].launches[0].arguments.add().tensor_map
    box.element_type, box.swizzle = "bf16", 32
    box.dims.extend((16, 32))
    box.strides.extend((32,))
    box.box.extend((16, 8))
    return plan.branch("c", 2).switch("c", 3, 3)


def test_what_a_plan_says():
    program = decode(mapped().plan, {})
    work, branch, switch = program.steps
    assert (
        isinstance(work, KernelStep) and isinstance(branch, Choose) and isinstance(switch, Choose)
    )
    assert (branch.size, branch.targets) == (1, (2, 2))
    assert (switch.size, switch.targets) == (4, (3, 3))
    ((start, parameters, _),) = work.launches
    assert (start.grid, start.block, start.cluster) == ((1, 1, 1), (32, 1, 1), (1, 1, 1))
    x, y, _, scratch, number, box = parameters
    assert (x, y, scratch, number) == ((CALL, 0), (CALL + 2, 0), (SCRATCH, 0), b"\1\0\0\0")
    assert isinstance(box, Mapped) and box.where == (CALL, 0) and box.box.dims == (16, 32)
    assert work.dead == ((128, 64),)
    assert program.scratch_bytes == 64 and program.inputs == (1024, 4)


def test_scratch_in_the_arena():
    plan = mapped().plan
    plan.steps[0].run.scratch.buffer = 3
    program = decode(plan, {})
    work = program.steps[0]
    assert isinstance(work, KernelStep) and program.scratch_bytes == 0
    assert work.launches[0].parameters[3] == work.scratch == (ARENA, 128)
    for buffer, bytes in ((0, 64), (3, 65)):  # no arena; too small
        plan.steps[0].run.scratch.buffer, plan.kernels[0].scratch_bytes = buffer, bytes
        with pytest.raises(UserError, match="malformed"):
            decode(plan, {})


def test_offsets_add_up():
    plan = mapped().plan
    plan.steps[0].run.arguments[0].offset = 64
    plan.kernels[0].launches[0].arguments[0].memory.offset = 32
    plan.kernels[0].launches[0].arguments[5].tensor_map.dims[1] = 30
    work = decode(plan, {}).steps[0]
    assert isinstance(work, KernelStep)
    assert work.launches[0].parameters[0] == (CALL, 96)


def _set(path: str, value: Any) -> Any:
    """A change of one field: "kernels.0.name"."""

    def change(plan: Any) -> None:
        *parents, name = path.split(".")
        at = plan
        for part in parents:
            at = at[int(part)] if part.isdecimal() else getattr(at, part)
        if name.isdecimal():
            at[int(name)] = value
        elif isinstance(value, list):
            del getattr(at, name)[:]
            getattr(at, name).extend(value)
        else:
            setattr(at, name, value)

    return change


LAUNCH = "kernels.0.launches.0"
MAP = f"{LAUNCH}.arguments.5.tensor_map"
FAULTS = {
    "no grid": _set(f"{LAUNCH}.grid", []),
    "an empty grid": _set(f"{LAUNCH}.grid.1", 0),
    "a wide grid": _set(f"{LAUNCH}.grid.1", 65536),
    "a large block": _set(f"{LAUNCH}.block", [32, 33, 1]),
    "a deep block": _set(f"{LAUNCH}.block", [1, 1, 65]),
    "a cluster that does not fit the grid": _set(f"{LAUNCH}.cluster", [2, 1, 1]),
    "a cluster of two numbers": _set(f"{LAUNCH}.cluster", [1, 1]),
    "a large cluster": _set(f"{LAUNCH}.cluster", [32, 1, 1]),
    "a slot that is not there": _set(f"{LAUNCH}.arguments.0.memory.slot", 3),
    "a parameter outside": _set(f"{LAUNCH}.arguments.0.memory.offset", 1025),
    "outside the scratch": _set(f"{LAUNCH}.arguments.3.memory.offset", 65),
    "a parameter without a value": lambda plan: plan.kernels[0].launches[0].arguments.add(),
    "too many parameters": _set(f"{LAUNCH}.arguments.4.immediate", bytes(40000)),
    "an unknown element": _set(f"{MAP}.element_type", "q7"),
    "a box of six dims": _set(f"{MAP}.dims", [1] * 6),
    "a box without dims": _set(f"{MAP}.dims", []),
    "too few strides": _set(f"{MAP}.strides", []),
    "a stride that is no multiple of 16": _set(f"{MAP}.strides.0", 40),
    "a box that is too wide": _set(f"{MAP}.box.1", 257),
    "an empty box": _set(f"{MAP}.box.0", 0),
    "a row of 20 bytes": _set(f"{MAP}.box.0", 10),
    "a row wider than the swizzle": _set(f"{MAP}.box.0", 24),
    "an unknown swizzle": _set(f"{MAP}.swizzle", 48),
    "too few steps": _set(f"{MAP}.steps", [1]),
    "a step of 9": _set(f"{MAP}.steps", [1, 9]),
    "steps along a row": _set(f"{MAP}.steps", [2, 1]),
    "a map that starts between": _set(f"{MAP}.memory.offset", 8),
    "more rows than memory": _set(f"{MAP}.dims.1", 33),
    "a buffer that is not there": _set("steps.0.run.arguments.0.buffer", 99),
    "a kernel that is not there": _set("steps.0.run.kernel", 9),
    "an argument outside": _set("steps.0.run.arguments.0.offset", 1 << 40),
    "a condition outside": _set("steps.1.branch_if_false.condition.offset", 4),
    "a jump outside": _set("steps.1.branch_if_false.target", 9),
    "an index outside": _set("steps.2.switch.index.offset", 1),
    "nowhere to go": _set("steps.2.switch.targets", []),
    "a switch outside": _set("steps.2.switch.targets", [0, 4]),
    "a step without action": lambda plan: plan.steps.add(),
    "a buffer outside the arena": _set("buffers.3.offset", 1 << 40),
    "a wide output": _set("buffers.2.bytes", 1 << 40),
    "a place that is none": _set("buffers.0.place", 9),
    "an input that is not there": _set("buffers.0.index", 7),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_that_contradicts_itself(fault):
    plan = mapped().plan
    FAULTS[fault](plan)
    if fault == "a wide output":  # the signature's business: the results' sizes come from it
        plan.buffers.add(place=plan_pb2.OUTPUT, bytes=1 << 41)
    with pytest.raises(UserError, match="malformed"):
        decode(plan, {})


def test_damaged_plans_are_refused_or_understood():
    """Bytes of a plan are changed at random; nothing but a UserError may come of it."""
    drawn, data = random.Random(7), mapped().plan.SerializeToString()
    understood = refused = 0
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(drawn.randint(1, 3)):
            changed[drawn.randrange(len(changed))] = drawn.randrange(256)
        try:
            plan = plan_pb2.Plan.FromString(bytes(changed))
        except DecodeError:
            continue
        try:
            decode(plan, {})
            understood += 1
        except UserError:
            refused += 1
    assert understood > 100 and refused > 100


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((10_000, 30_000, 5_000, 40_000), (4, [10_000, 40_000])),
        ((1, 300, 1, 700), (2, [1, 300, 1])),  # as they lie: 256 + 512 + 256, before 256 + 768
    ],
)
def test_where_temporaries_are_largest(sizes, expected):
    plan = plan_pb2.Plan(arena_alignment=256)
    lives = (0, 4), (1, 2), (2, 3), (4, 5)
    plan.steps.extend([plan_pb2.Step()] * 6)
    for (first, last), size in zip(lives, sizes, strict=True):
        plan.buffers.add(place=plan_pb2.ARENA, bytes=size, first_step=first, last_step=last)
    line = Timeline(plan)
    live = sorted(row.buffer for row in line.rows())
    assert (line.peak, [plan.buffers[number].bytes for number in live]) == expected
    assert Timeline(plan_pb2.Plan()).live == [0]


def test_every_weight_has_a_place_of_its_own():
    plan = PlanOf().outputs(y=16).results("y")
    for name, size in (("a", 10), ("b", 300), ("a", 10)):
        plan.buffer(name, plan_pb2.WEIGHT, size, weight=name)
    weights = {"a": np.zeros(10, np.uint8), "b": np.zeros(300, np.uint8)}
    program = decode(plan.plan, weights)
    assert program.weights == {"a": 0, "b": 256} and program.weight_bytes == 256 + 512
