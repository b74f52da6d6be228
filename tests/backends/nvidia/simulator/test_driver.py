"""The runtime's whole way on a simulated GPU: what it finds that a GPU would not tell."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from girih.backends.nvidia.simulator.driver import SimulatedGpu
from girih.backends.nvidia.target import target
from girih.hlo.errors import CompilerBug, UserError
from girih.hlo.signature import Signature
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.driver import Code, OutOfMemory
from girih.runtime.program import Program
from girih.simulated import simulated_gpu
from girih.specs.generated import plan_pb2

# y[i] = x[i] + 1, a thread per element; `read` and `write` move where it looks, in bytes.
PTX = """
.version 8.0
.target sm_80
.address_size 64
.file 1 "model.py"
.visible .entry add_one(.param .u64 x, .param .u64 y, .param .u32 read, .param .u32 write)
{{
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<4>;
    .loc 1 41 0
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [read];
    ld.param.u32 %r2, [write];
    mov.u32 %r3, %tid.x;
    shl.b32 %r4, %r3, 2;
    add.s32 %r1, %r1, %r4;
    add.s32 %r2, %r2, %r4;
    cvt.s64.s32 %rd3, %r1;
    cvt.s64.s32 %rd4, %r2;
    add.s64 %rd1, %rd1, %rd3;
    add.s64 %rd2, %rd2, %rd4;
    ld.global.f32 %f1, [%rd1];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd2], %f2;
    ret;
}}
""".replace("{{", "{").replace("}}", "}")
COUNT = np.arange(4, dtype=np.float32)


def plan(steps: list[tuple[str, str, int, int]], target: str = "nvidia:sm_80") -> plan_pb2.Plan:
    """Steps (source, target, read, write) over x, y, t, which is dead after step 1, and u."""
    made = plan_pb2.Plan(format_version="1.2", target=target)
    made.buffers.add(place=plan_pb2.INPUT, bytes=16)
    made.buffers.add(place=plan_pb2.OUTPUT, bytes=16)
    for offset, last in ((0, 1), (64, len(steps))):
        made.buffers.add(place=plan_pb2.ARENA, bytes=16, offset=offset, last_step=last)
    made.memory.arena_bytes = 128
    made.inputs.append(0)
    made.outputs.append(1)
    for number, (source, goal, read, write) in enumerate(steps):
        kernel = made.kernels.add(name=f"step_{number}", scratch_bytes=16)
        kernel.origins.add(file="/home/me/model.py", line=41)
        launch = kernel.launches.add(entry="add_one", grid=(1, 1, 1), block=(4, 1, 1))
        scratch = source == "scratch"
        launch.arguments.add().memory.CopyFrom(plan_pb2.LaunchMemory(slot=0, scratch=scratch))
        launch.arguments.add().memory.slot = 1
        for offset in (read, write):
            launch.arguments.add().immediate = offset.to_bytes(4, "little", signed=True)
        run = made.steps.add().run
        run.kernel, run.tiles = number, 1
        names = ["x", "y", "t", "u"]
        run.arguments.add(buffer=0 if scratch else names.index(source))
        run.arguments.add(buffer=names.index(goal))
    return made


def program(steps: list[tuple[str, str, int, int]]) -> Program:
    signature = Signature.plain([((4,), "f32")], [((4,), "f32")])
    made = plan(steps), PTX.encode()
    driver = simulated_gpu("nvidia:sm_80")
    return Program.from_parts(b"", signature, {"nvidia:sm_80": made}, driver=driver)


def test_a_chain_of_kernels():
    run = program([("x", "t", 0, 0), ("t", "u", 0, 0), ("u", "y", 0, 0)])
    assert run(COUNT)[0].tolist() == (COUNT + 3).tolist()
    (result,) = run.on_device(run.on_device(COUNT)[0])
    assert result.numpy().tolist() == (COUNT + 6).tolist()


@pytest.mark.parametrize(
    "steps",
    [
        [("u", "y", 0, 0)],  # nobody has written it
        [("x", "t", 0, 0), ("x", "u", 0, 0), ("t", "y", 0, 0)],  # dead since the second step
        [("scratch", "y", 0, 0)],
        [("x", "t", 0, 0)],  # the result itself
    ],
)
def test_undefined_memory_is_not_a_number(steps):
    assert np.isnan(program(steps)(COUNT)[0]).all()


def test_memory_of_the_call_before_is_not_left():
    run = program([("u", "y", 0, 0), ("x", "u", 0, 0)])
    for _ in range(2):
        assert np.isnan(run(COUNT)[0]).all()


@pytest.mark.parametrize(("read", "write"), [(4, 0), (-4, 0), (0, 4), (1 << 20, 0)])
def test_an_access_outside_names_kernel_and_line(read, write):
    with pytest.raises(UserError) as caught:
        program([("x", "y", read, write)])(COUNT)
    said = str(caught.value)
    assert "model.py:41" in said and "step_0" in said and "PTX line" in said


def test_a_misaligned_access():
    with pytest.raises(UserError, match="step_0"):
        program([("x", "y", 2, 0)])(COUNT)


def test_a_program_runs_again_after_a_fault():
    run = program([("x", "y", 0, 0)])
    bad = program([("x", "y", 4, 0)])
    with pytest.raises(UserError):
        bad(COUNT)
    assert run(COUNT)[0].tolist() == (COUNT + 1).tolist()


def test_counters_of_a_profile():
    profile = program([("x", "t", 0, 0), ("t", "y", 0, 0)]).profile(COUNT)
    for event in profile.events:
        assert event.counters["instructions"] > 4 * 10
        assert event.counters["global_requests"] == 2 == event.counters["global_sectors"]
    assert [kernel.kernel for kernel in profile.kernels()]
    assert profile.trace()["traceEvents"][-1]["args"]["global_requests"] == 2


def test_memory_that_was_given_back_is_gone():
    driver = simulated_gpu("nvidia:sm_90a")
    address = driver.allocate(64, 0)
    driver.free(address, 0)
    with pytest.raises(CompilerBug, match="outside the simulated memory"):
        driver.fill(address, 64, 0)


def test_a_device_has_an_end(monkeypatch):
    from girih.backends.nvidia.simulator import driver as room

    monkeypatch.setattr(room, "MEMORY_BYTES", 1000)
    driver = SimulatedGpu(target("sm_80").architecture, OutOfMemory)
    kept = driver.allocate(600, 0)
    with pytest.raises(OutOfMemory):
        driver.allocate(500, 0)
    driver.free(kept, 0)
    driver.allocate(900, 0)


def test_what_a_simulated_gpu_is():
    driver = simulated_gpu("nvidia:sm_90a")
    assert driver.capability == (9, 0)
    assert driver.limits[:3] == (227 << 10, 16, 1024) and driver.limits.multiprocessors == 132
    assert simulated_gpu("nvidia:sm_80").limits.cluster == 1
    with pytest.raises(UserError, match="unknown architecture 'sm_33'"):
        simulated_gpu("nvidia:sm_33")


def test_text_that_is_no_ptx():
    driver = simulated_gpu("nvidia:sm_80")
    for data in (b"\xff\xfe", b"hello world"):
        with pytest.raises(UserError):
            driver.load(Code(data, parse_architecture("sm_80"), is_ptx=True))


def test_simulated_memory_is_not_handed_to_libraries():
    (result,) = program([("x", "y", 0, 0)]).on_device(COUNT)
    with pytest.raises(UserError, match="simulated"):
        result.__dlpack__()
    with pytest.raises(UserError, match="simulated"):
        _ = result.__cuda_array_interface__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.numpy().tolist() == (COUNT + 1).tolist()
