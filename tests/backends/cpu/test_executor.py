"""The native executor and the CPU runtime with hand-written kernels: threads, loops, branches."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from girih.backends import llvm
from girih.backends.cpu import codegen, executor
from girih.hlo.errors import UserError
from girih.runtime.devices import cpu
from girih.specs.generated import plan_pb2

from .kernels import add_buffers, add_run, build

F32 = "float"


def axpy(name: str = "axpy", factor: float = 2.0, chunk: int = 64) -> tuple[str, str]:
    """out[i] = factor * x[i] + y[i]; a tile is `chunk` elements."""
    module = codegen.host_target().module()
    f = module.kernel(name)
    args, begin, end, _ = f.arguments
    x, y, out = (f.load("ptr", f.pointer(args, i, "ptr")) for i in range(3))
    with f.for_range(f.mul(begin, chunk), f.mul(end, chunk), 16) as loop:
        a, b = (f.load("<16 x float>", f.pointer(p, loop.index, F32)) for p in (x, y))
        scaled = f.mul(a, factor)
        f.store(f.add(scaled, b), f.pointer(out, loop.index, F32))
    f.ret()
    return module.text(), name


def count_down(name: str = "count_down") -> tuple[str, str]:
    """counter -= 1 (i32); flag = counter > 0 (i8); add 1 to every element of the state."""
    module = codegen.host_target().module()
    f = module.kernel(name)
    args, begin, end, _ = f.arguments
    counter, flag = (f.load("ptr", f.pointer(args, i, "ptr")) for i in range(2))
    with f.for_range(begin, end):
        value = f.sub(f.load("i32", counter), 1)
        f.store(value, counter)
        f.store(f.cast("zext", f.compare("sgt", value, 0), "i8"), flag)
    f.ret()
    return module.text(), name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_run_steps(threads: int) -> None:
    plan, image = build([axpy()])
    x = np.arange(1024, dtype=np.float32)
    y, out = x[::-1].copy(), np.empty_like(x)
    a, b = add_buffers(plan, plan_pb2.INPUT, [x, y])
    (c,) = add_buffers(plan, plan_pb2.OUTPUT, [out])
    temporary = len(plan.buffers)
    plan.buffers.add(place=plan_pb2.ARENA, offset=4096, bytes=x.nbytes)
    plan.memory.arena_bytes = 4096 + x.nbytes
    add_run(plan, 0, [a, b, temporary], 16, wait=False)
    add_run(plan, 0, [temporary, a, c], 16, parallel=False)
    variant = cpu.CpuVariant(plan, image, {}, threads)
    assert variant.threads == threads
    context = variant.context()
    for _ in range(200):
        out[:] = 0
        cpu.run(context, [x, y], [out])
        np.testing.assert_array_equal(out, 2 * (2 * x + y) + x)
    events = cpu.run(context, [x, y], [out], profile=True)
    assert {event.step for event in events} == {0, 1}
    assert len([event for event in events if event.step == 1]) == 1
    assert {event.worker for event in events} <= set(range(threads))
    assert len(events) == len({(event.step, event.worker) for event in events})
    assert all(event.begin >= 0 and event.duration >= 0 for event in events)
    assert cpu.run(context, [x, y], [out]) == []


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("trips", [1, 5, 3000])
def test_loop_and_switch(threads: int, trips: int) -> None:
    plan, image = build([axpy(), count_down(), axpy("axpy3", 3.0)])
    x = np.ones(512, np.float32)
    weight = np.full(512, 0.5, np.float32)
    state, counter, choice = (
        np.zeros(512, np.float32),
        np.array(trips, np.int32),
        np.array(0, np.int32),
    )
    (i_x, i_choice) = add_buffers(plan, plan_pb2.INPUT, [x, choice])
    (i_state, i_counter) = add_buffers(plan, plan_pb2.OUTPUT, [state, counter])
    i_flag = len(plan.buffers)
    plan.buffers.add(place=plan_pb2.ARENA, offset=0, bytes=1)
    plan.buffers.add(place=plan_pb2.WEIGHT, weight="half", bytes=weight.nbytes)
    plan.memory.arena_bytes = 64
    # 0: count down; 1: leave if 0 was reached; 2: state = 2 * x + state; 3: back to 0
    add_run(plan, 1, [i_counter, i_flag], 1, parallel=False)
    branch = plan.steps.add().branch_if_false
    branch.condition.buffer, branch.target, branch.wait = i_flag, 4, True
    add_run(plan, 0, [i_x, i_state, i_state], 8)
    plan.steps.add().jump.target = 0
    # 4: by choice: 0 -> twice the weight, else (also out of range) three times
    switch = plan.steps.add().switch
    switch.index.buffer, switch.wait = i_choice, True
    switch.targets.extend([5, 7])
    add_run(plan, 0, [i_flag + 1, i_state, i_state], 8)
    plan.steps.add().jump.target = 8
    add_run(plan, 2, [i_flag + 1, i_state, i_state], 8)
    variant = cpu.CpuVariant(plan, image, {"half": weight}, threads)
    for value, factor in ((0, 2), (1, 3), (7, 3), (-1, 3)):
        state[:], counter[...], choice[...] = 0, trips, value
        cpu.run(variant.context(), [x, choice], [state, counter])
        assert counter == 0
        np.testing.assert_array_equal(state, 2 * (trips - 1) * x + factor * weight)


def test_concurrent_calls_and_forks() -> None:
    plan, image = build([axpy()])
    x = np.arange(4096, dtype=np.float32)
    a, b = add_buffers(plan, plan_pb2.INPUT, [x, x])
    (c,) = add_buffers(plan, plan_pb2.OUTPUT, [x])
    add_run(plan, 0, [a, b, c], 64)
    variant = cpu.CpuVariant(plan, image, {}, 2)
    failures: list[int] = []

    def call() -> None:
        context, out = variant.context(), np.empty_like(x)
        for turn in range(100):
            out[:] = -1
            cpu.run(context, [x, x], [out])
            if not np.array_equal(out, 3 * x):
                failures.append(turn)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    child = os.fork()
    if child == 0:  # the child has no workers of its parent and makes its own
        call()
        os._exit(1 if failures else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_machine_is_checked() -> None:
    plan, image = build([axpy()])
    plan.features.append("avx1024")
    with pytest.raises(UserError, match="avx1024"):
        cpu.CpuVariant(plan, image, {})
    plan.features.pop()
    plan.triple = "riscv64-unknown-linux-gnu"
    with pytest.raises(UserError, match="riscv64"):
        cpu.CpuVariant(plan, image, {})


def test_small_programs_stay_on_one_thread() -> None:
    plan, image = build([axpy()])
    x = np.arange(64, dtype=np.float32)
    a, b = add_buffers(plan, plan_pb2.INPUT, [x, x])
    (c,) = add_buffers(plan, plan_pb2.OUTPUT, [x])
    add_run(plan, 0, [a, b, c], 64)
    plan.steps[0].run.flops = 100
    assert cpu.CpuVariant(plan, image, {}, 2).threads == 1
    assert llvm.vector(1, "float") == "float"


def test_aarch64_reads_a_counter_that_user_space_may_read() -> None:
    """The virtual one, CNTVCT_EL0: LLVM could read another one, or nothing."""
    target = codegen.level_target("neon")
    made = codegen.compile_object(executor.emit(target), target)
    words = [int.from_bytes(made[at : at + 4], "little") for at in range(0, len(made) - 3, 4)]
    assert sum(word & ~31 == 0xD53BE040 for word in words) >= 4  # mrs x?, cntvct_el0
