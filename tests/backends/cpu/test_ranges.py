"""Task ranges with hand-written kernels: steps in any order that waits allow, loops whose scalars
are each worker's own, counters that wrap around, and wait tables that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.runtime.devices import cpu
from girih.specs.generated import plan_pb2

from .kernels import add_buffers, add_run, build
from .test_executor import axpy, count_down

SIZE = 1024


def ranged(plan: plan_pb2.Plan, first: int, waits: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Makes the steps from `first` on a task range; of each, the steps that it waits for, with the
    threshold. Counters have their steps' numbers."""
    plan.ranges.add(first=first, steps=len(waits))
    for number, own in enumerate(waits, first):
        run = plan.steps[number].run
        run.signal, run.wait = number + 1, False
        for step, threshold in own:
            run.waits.add(counter=step, threshold=threshold)


def diamond() -> tuple[plan_pb2.Plan, bytes]:
    """out = 2 * (2 x + y) + (2 y + x), the two sums beside each other, then out = 2 y + out."""
    plan, image = build([axpy()])
    x = np.zeros(SIZE, np.float32)
    a, b = add_buffers(plan, plan_pb2.INPUT, [x, x])
    (c,) = add_buffers(plan, plan_pb2.OUTPUT, [x])
    left, right = len(plan.buffers), len(plan.buffers) + 1
    for number in range(2):
        plan.buffers.add(place=plan_pb2.ARENA, offset=4 * SIZE * number, bytes=4 * SIZE)
    plan.memory.arena_bytes = 8 * SIZE
    add_run(plan, 0, [a, b, left], 16)
    add_run(plan, 0, [b, a, right], 16, parallel=False)
    add_run(plan, 0, [left, right, c], 16)
    add_run(plan, 0, [b, c, c], 16)
    ranged(plan, 0, [[], [], [(0, 1), (1, 1)], [(2, 1)]])
    return plan, image


def loop(trips: int) -> tuple[plan_pb2.Plan, bytes, list[np.ndarray]]:
    """state = 2 x + state, then twice that in another place, so many times less one."""
    plan, image = build([axpy(), count_down(), axpy("copy", 1.0, chunk=16)])
    x, state, twice = (np.zeros(SIZE, np.float32) for _ in range(3))
    (i_x,) = add_buffers(plan, plan_pb2.INPUT, [x])
    i_state, i_twice = add_buffers(plan, plan_pb2.OUTPUT, [state, twice])
    i_trips, i_zero, i_count, i_flag = range(3, 7)
    plan.buffers.add(place=plan_pb2.WEIGHT, weight="trips", bytes=64)
    plan.buffers.add(place=plan_pb2.WEIGHT, weight="zero", bytes=64)
    plan.buffers.add(place=plan_pb2.WORKER, offset=0, bytes=64)
    plan.buffers.add(place=plan_pb2.WORKER, offset=64, bytes=1)
    plan.worker_bytes = 128
    # 0: count = trips (in bits of floats, which adding zeros keeps); 1: count down
    add_run(plan, 2, [i_trips, i_zero, i_count], 1)
    add_run(plan, 1, [i_count, i_flag], 1)
    for number in range(2):
        plan.steps[number].run.each, plan.steps[number].run.wait = True, False
    branch = plan.steps.add().branch_if_false
    branch.condition.buffer, branch.target, branch.each = i_flag, 6, True
    add_run(plan, 0, [i_x, i_state, i_state], 16)
    add_run(plan, 0, [i_state, i_state, i_twice], 16)
    plan.steps.add().jump.target = 1
    ranged(plan, 3, [[(4, 0)], [(3, 1)]])
    return plan, image, [np.full(16, trips, np.int32), np.zeros(16, np.int32)]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_steps_begin_when_what_they_need_is_complete(threads: int) -> None:
    plan, image = diamond()
    x = np.arange(SIZE, dtype=np.float32)
    y, out = x[::-1].copy(), np.empty_like(x)
    context = cpu.CpuVariant(plan, image, {}, threads).context()
    for _ in range(300):
        out[:] = 0
        cpu.run(context, [x, y], [out])
        np.testing.assert_array_equal(out, 2 * y + 2 * (2 * x + y) + (2 * y + x))
    events = cpu.run(context, [x, y], [out], profile=True)
    assert {event.step for event in events} == {0, 1, 2, 3}
    assert len([event for event in events if event.step == 1]) == 1  # one worker alone
    assert len(events) == len({(event.step, event.worker) for event in events})


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("trips", [1, 2, 2000])
def test_a_loop_whose_scalars_each_worker_has(threads: int, trips: int) -> None:
    plan, image, (count, zero) = loop(trips)
    x, state, twice = (np.ones(SIZE, np.float32) for _ in range(3))
    variant = cpu.CpuVariant(plan, image, {"trips": count, "zero": zero}, threads)
    context = variant.context()
    for _ in range(3):
        state[:] = twice[:] = 0
        cpu.run(context, [x], [state, twice])
        np.testing.assert_array_equal(state, np.full_like(x, 2 * (trips - 1)))
        np.testing.assert_array_equal(twice, 3 * state)


def test_a_call_runs_alone_where_others_have_the_workers() -> None:
    plan, image, (count, zero) = loop(40)
    x, state, twice = (np.ones(SIZE, np.float32) for _ in range(3))
    variant = cpu.CpuVariant(plan, image, {"trips": count, "zero": zero}, 3)
    context = variant.context()
    for busy in (True, False, True):
        state[:] = twice[:] = 0
        with variant.pool().lock if busy else nullcontext():
            cpu.run(context, [x], [state, twice])
        np.testing.assert_array_equal(state, np.full_like(x, 78))
        np.testing.assert_array_equal(twice, 3 * state)


def test_turns_wrap_around() -> None:
    plan, image, (count, zero) = loop(40)
    x, state, twice = (np.ones(SIZE, np.float32) for _ in range(3))
    variant = cpu.CpuVariant(plan, image, {"trips": count, "zero": zero}, 2)
    context = variant.context()
    before = (1 << 32) - 7
    assert context.counting is not None
    words = np.frombuffer(context.counting.memory, np.uint64)
    counters, _, _ = variant.ranges.memory()
    words[: counters // 8] = before << 32  # counters, and the parts of their tiles
    words[counters // 8 + 1] = before
    for _ in range(3):
        state[:] = twice[:] = 0
        cpu.run(context, [x], [state, twice])
        np.testing.assert_array_equal(state, np.full_like(x, 78))
    assert words[counters // 8 + 1] == before + 3 * 39


def _wait(counter: int, threshold: int) -> Callable[[plan_pb2.Plan], object]:
    return lambda plan: plan.steps[1].run.waits.add(counter=counter, threshold=threshold)


def _set(path: str, value: object) -> Callable[[plan_pb2.Plan], None]:
    """Sets a field of step 1's run, or of range 0."""

    def change(plan: plan_pb2.Plan) -> None:
        owner, _, name = path.partition(".")
        target = plan.ranges[0] if owner == "range" else plan.steps[1].run
        setattr(target, name, value)

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (_wait(9, 1), "step 1 waits for 1 runs that counter 9 counts"),
        (_wait(0, 2), "step 1 waits for 2 runs that counter 0 counts"),
        (_wait(1, 1), "step 1 waits for step 1, which comes after it"),
        (_wait(3, 1), "step 1 waits for step 3, which comes after it"),
        (_set("run.signal", 1), "step 1 has another step's counter"),
        (_set("run.signal", 0), "step 1 has no counter in its task range"),
        (_set("run.wait", True), "step 1 waits for all within a task range"),
        (_set("range.steps", 9), "task range 0 does not lie behind the others"),
        (_set("range.steps", 3), "step 3 waits for counters outside of task ranges"),
        (lambda plan: plan.ranges.add(first=2, steps=1), "task range 1 does not lie behind"),
    ],
)
def test_a_corrupt_wait_table_is_refused(
    change: Callable[[plan_pb2.Plan], object], message: str
) -> None:
    plan, image = diamond()
    change(plan)
    if "outside" in message:
        plan.steps[3].run.signal = 0
    with pytest.raises(UserError, match=message):
        cpu.CpuVariant(plan, image, {}, 2)


def test_a_jump_into_a_range_and_another_workers_memory_are_refused() -> None:
    plan, image, (count, zero) = loop(5)
    weights = {"trips": count, "zero": zero}
    plan.steps[5].jump.target = 4
    with pytest.raises(UserError, match="a jump leads to step 4, within a task range"):
        cpu.CpuVariant(plan, image, weights, 2)
    plan.steps[5].jump.target = 1
    plan.steps[2].branch_if_false.each = False
    with pytest.raises(UserError, match="step 2 decides in another's memory"):
        cpu.CpuVariant(plan, image, weights, 2)
    plan.steps[2].branch_if_false.each = True
    plan.worker_bytes = 64
    with pytest.raises(UserError, match="a buffer lies outside its memory"):
        cpu.CpuVariant(plan, image, weights, 2)
