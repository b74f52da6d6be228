"""The runtime's way over a GPU, on a driver that does everything as late as it may."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.hlo.signature import Signature
from girih.runtime.devices import cuda
from girih.runtime.devices.arrays import DeviceArray
from girih.runtime.dlpack import CUDA, StridedTensor, make_capsule, read_tensor
from girih.specs.generated import plan_pb2

from .fakes import adding_program
from .gpu_fakes import FakeGpu, PlanOf, add, add_one, flat

ONES = np.ones(4, np.float32)
COUNT = np.arange(4, dtype=np.float32)


def two_steps() -> PlanOf:
    """y = (x + 1) + x, through the arena."""
    plan = PlanOf().inputs(x=16).outputs(y=16).buffer("t", plan_pb2.ARENA, 16, offset=64)
    return plan.run("add_one", "x", "t").run("add", "t", "x", "y").results("y")


def gpu(**options: Any) -> FakeGpu:
    return FakeGpu(add_one=add_one, add=add, **options)


def test_arrays_of_the_host_go_there_and_back():
    program = two_steps().program(flat(1, 1), gpu())
    assert program(COUNT)[0].tolist() == (2 * COUNT + 1).tolist()
    assert program(ONES)[0].tolist() == [3.0] * 4
    assert program.target == "nvidia:sm_90a"


def test_two_calls_in_a_row_do_not_share_staging_memory():
    """The first call's copy is still under way when the second one begins."""
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    first = program.on_device(COUNT)
    second = program.on_device(ONES)
    assert second[0].numpy().tolist() == [3.0] * 4
    assert first[0].numpy().tolist() == (2 * COUNT + 1).tolist()


def test_large_arrays_are_copied_without_staging(monkeypatch):
    from girih.runtime.devices import gpu_context

    monkeypatch.setattr(gpu_context, "_PINNED", 0)
    device = gpu()
    assert two_steps().program(flat(1, 1), device)(COUNT)[0].tolist() == (2 * COUNT + 1).tolist()
    assert not device.pinned


def test_scratch_numbers_and_several_launches():
    def fill(gpu: FakeGpu, y: int, scratch: int, number: int) -> None:
        gpu.floats(scratch, 4)[...] = number

    def take(gpu: FakeGpu, y: int, scratch: int, number: int) -> None:
        gpu.floats(y, 4)[...] = gpu.floats(scratch, 4) * number

    plan = PlanOf().outputs(y=16).run("fill", "y", scratch=16, numbers=(7,)).results("y")
    second = plan.plan.kernels[0].launches.add()
    second.CopyFrom(plan.plan.kernels[0].launches[0])
    second.entry = "take"
    program = plan.program(flat(0, 1), FakeGpu(fill=fill, take=take))
    assert program()[0].tolist() == [49.0] * 4


def test_weights_are_uploaded_once():
    plan = PlanOf().inputs(x=16).outputs(y=16).buffer("w", plan_pb2.WEIGHT, 16, weight="bias")
    device = gpu()
    program = (
        plan.run("add", "x", "w", "y").results("y").program(flat(1, 1), device, {"bias": COUNT})
    )
    assert program(ONES)[0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert program(COUNT)[0].tolist() == (2 * COUNT).tolist()
    assert device.log.count("upload") == 3


def test_weights_that_are_not_there():
    plan = PlanOf().outputs(y=16).buffer("w", plan_pb2.WEIGHT, 16, weight="bias").results("y")
    with pytest.raises(UserError, match="no weight 'bias'"):
        plan.program(flat(0, 1), gpu())
    with pytest.raises(UserError, match="has 8 bytes, the plan needs 16"):
        plan.program(flat(0, 1), gpu(), {"bias": COUNT[:2]})


def test_results_that_no_kernel_computes():
    """A weight, an argument, and another result."""
    plan = PlanOf().inputs(x=16).outputs(y=16).buffer("w", plan_pb2.WEIGHT, 16, weight="bias")
    plan.run("add_one", "x", "y").results("y", "w", "x", "y")
    program = plan.program(flat(1, 4), gpu(), {"bias": 5 * ONES})
    for results in (program(COUNT), [r.numpy() for r in program.on_device(COUNT)]):
        assert [result.tolist() for result in results] == [
            (COUNT + 1).tolist(), [5.0] * 4, COUNT.tolist(), (COUNT + 1).tolist(),
        ]  # fmt: skip


def test_empty_arguments_and_results():
    plan = PlanOf().inputs(x=0).outputs(y=0).results("y")
    program = plan.program(flat(1, 1, (0, 3)), gpu())
    assert program(np.empty((0, 3), np.float32))[0].shape == (0, 3)
    assert program.on_device(np.empty((0, 3), np.float32))[0].numpy().shape == (0, 3)


# Control flow.


def countdown(gpu: FakeGpu, n: int, condition: int) -> None:
    gpu.words(n)[...] -= 1
    gpu.at(condition, 1)[0] = gpu.words(n)[0] >= 0


def loop() -> PlanOf:
    """while n-- > 0: y += 1, with the counter in the arena."""
    plan = PlanOf().inputs(x=16, n=4).outputs(y=16)
    plan.buffer("i", plan_pb2.ARENA, 4).buffer("c", plan_pb2.ARENA, 1, offset=64)
    plan.run("copy", "n", "i", numbers=(1,)).run("copy", "x", "y", numbers=(4,))
    plan.run("countdown", "i", "c").branch("c", 6).run("grow", "y").jump(2)
    return plan.results("y")


def copy(gpu: FakeGpu, source: int, target: int, words: int) -> None:
    gpu.words(target, words)[...] = gpu.words(source, words)


def grow(gpu: FakeGpu, y: int) -> None:
    gpu.floats(y, 4)[...] += 1


@pytest.mark.parametrize(
    ("graphs", "schedule"),
    [(False, ""), (True, ""), (True, "launches"), (True, "host"), (True, "graph")],
)
def test_a_loop(graphs, schedule):
    device = FakeGpu(graphs, countdown=countdown, copy=copy, grow=grow)
    signature = Signature.plain([((4,), "f32"), ((), "i32")], [((4,), "f32")])
    plan = loop()
    plan.plan.schedule = schedule
    program = plan.program(signature, device)
    for count in (3, 0, 7, 5):
        assert program(COUNT, np.int32(count))[0].tolist() == (COUNT + count).tolist()
    events = program.events
    assert (events["graph_launches"] == 0) == (not graphs or schedule == "launches")
    if schedule == "graph":  # the result is all that the host gets
        assert events == {
            "launches": 0, "graph_launches": 4, "nodes": 4 * 8, "edges": 4 * 6,
            "copies_to_host": 4, "synchronisations": 4,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("graphs", "schedule"), [(False, ""), (True, ""), (True, "launches"), (True, "graph")]
)
@pytest.mark.parametrize("turns", [0, 1, 5])
def test_turns_that_are_known_are_not_read_back(graphs, schedule, turns):
    device = FakeGpu(graphs, countdown=countdown, copy=copy, grow=grow)
    signature = Signature.plain([((4,), "f32"), ((), "i32")], [((4,), "f32")])
    plan = loop()
    plan.plan.schedule = schedule
    known = plan.plan.steps[3].branch_if_false.known
    known.turns, known.here = turns, True
    program = plan.program(signature, device)
    for _ in range(3):
        assert program(COUNT, np.int32(turns))[0].tolist() == (COUNT + turns).tolist()
    assert program.events["copies_to_host"] == program.events["synchronisations"] == 3


def test_turns_that_follow_each_other_know_which_of_them_is_the_last():
    """Of a loop of 5 turns, two of which are steps of their own, inside of one of 3."""
    plan = PlanOf().inputs(x=16).outputs(y=16).buffer("c", plan_pb2.ARENA, 1)
    plan.run("copy", "x", "y", numbers=(4,)).branch("c", 9).branch("c", 7).run("grow", "y")
    plan.branch("c", 7).run("grow", "y").jump(2).run("grow", "y").jump(1).results("y")
    for step, turns, here in ((1, 3, True), (2, 3, False), (4, 2, True)):
        known = plan.plan.steps[step].branch_if_false.known
        known.turns, known.here = turns, here
    program = plan.program(flat(1, 1), FakeGpu(copy=copy, grow=grow))
    for _ in range(2):
        assert program(COUNT)[0].tolist() == (COUNT + 3 * (5 + 1)).tolist()
    assert program.events["copies_to_host"] == 2


def test_a_schedule_that_was_chosen_by_price_is_left_with_a_warning():
    signature = Signature.plain([((4,), "f32"), ((), "i32")], [((4,), "f32")])
    plan, device = loop(), FakeGpu(countdown=countdown, copy=copy, grow=grow)
    device.conditional = False
    plan.plan.schedule = "graph"
    plan.plan.prices.add(schedule="graph", seconds=1e-6)
    with pytest.warns(UserWarning, match="the host decides"):
        found = plan.program(signature, device)(COUNT, np.int32(2))[0]
    assert found.tolist() == (COUNT + 2).tolist()


def test_a_driver_without_conditional_nodes_lets_the_host_decide():
    signature = Signature.plain([((4,), "f32"), ((), "i32")], [((4,), "f32")])
    for required in (False, True):
        plan, device = loop(), FakeGpu(countdown=countdown, copy=copy, grow=grow)
        device.conditional = False
        plan.plan.schedule, plan.plan.schedule_required = "graph", required
        program = plan.program(signature, device)
        if required:
            with pytest.raises(
                UserError, match="strict: Fake: its driver has no graphs that decide"
            ):
                program(COUNT, np.int32(2))
        else:
            with pytest.warns(UserWarning, match="the host decides, schedule 'host'"):
                assert program(COUNT, np.int32(2))[0].tolist() == (COUNT + 2).tolist()


def test_a_schedule_that_this_runtime_does_not_know():
    plan = two_steps()
    plan.plan.schedule = "upside down"
    with pytest.raises(UserError, match="asks for the schedule 'upside down'; compile it again"):
        plan.program(flat(1, 1), gpu())(COUNT)


@pytest.mark.parametrize("schedule", ["host", "graph"])
@pytest.mark.parametrize(("index", "expected"), [(0, 10), (1, 20), (2, 30), (-1, 30), (99, 30)])
def test_a_switch_takes_the_last_target_where_the_index_is_none(index, expected, schedule):
    def put(gpu: FakeGpu, y: int, number: int) -> None:
        gpu.floats(y, 4)[...] = number

    plan = PlanOf().inputs(i=4).outputs(y=16).switch("i", 1, 3, 5)
    plan.run("put", "y", numbers=(10,)).jump(6).run("put", "y", numbers=(20,)).jump(6)
    plan.run("put", "y", numbers=(30,)).results("y").plan.schedule = schedule
    signature = Signature.plain([((), "i32")], [((4,), "f32")])
    program = plan.program(signature, FakeGpu(put=put))
    assert program(np.int32(index))[0].tolist() == [expected] * 4


# Graphs.


def test_a_stretch_is_recorded_at_its_second_run():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    for turn in range(4):
        assert program(COUNT + turn)[0].tolist() == (2 * (COUNT + turn) + 1).tolist()
    assert [entry for entry in device.log if entry.startswith(("launch", "replay"))] == [
        "launch", "launch", "replay 2", "replay 2", "replay 2",
    ]  # fmt: skip


def test_a_graph_takes_the_addresses_of_each_call():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    given = [Foreign(device, COUNT), Foreign(device, ONES)]
    for _ in range(3):
        assert program(given[0])[0].tolist() == (2 * COUNT + 1).tolist()
        assert program(given[1])[0].tolist() == [3.0] * 4
    # The second call makes a graph, the third tells it other addresses; then one comes again.
    assert device.log.count("graph of 2") == 2 and device.log.count("replay 2") == 5
    assert device.log.count("rebind 0") == 1


def test_results_that_are_kept_need_no_graph_of_their_own():
    """Each lies somewhere else; only the launch that stores it is told."""
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    x = Foreign(device, COUNT)
    kept = [program.on_device(x)[0] for _ in range(6)]
    assert len({result.address for result in kept}) == 6
    for result in kept:
        assert result.numpy().tolist() == (2 * COUNT + 1).tolist()
    log = device.log
    assert log.count("graph of 2") == 1 and log.count("replay 2") == 5
    assert [entry for entry in log if entry.startswith("rebind")] == ["rebind 1"] * 4


def test_one_launch_is_no_graph():
    device = gpu()
    plan = PlanOf().inputs(x=16).outputs(y=16).run("add_one", "x", "y").results("y")
    program = plan.program(flat(1, 1), device)
    for _ in range(3):
        program(COUNT)
    assert "replay 1" not in device.log


def test_a_graph_that_cannot_be_made_leaves_nothing():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    program(COUNT)
    device.graph = lambda *_: (_ for _ in ()).throw(UserError("no graph"))  # type: ignore
    with pytest.raises(UserError, match="no graph"):
        program(COUNT)
    del device.graph


# Arrays on the device.


class Foreign:
    """An array of another library: `__cuda_array_interface__`, filled on a stream of its own."""

    def __init__(self, device: FakeGpu, values: np.ndarray, shift: int = 0, **interface: Any):
        self.stream = device.create_stream()
        with device:
            self.address = device.allocate(values.nbytes + shift, self.stream) + shift
            device.upload(self.address, values, self.stream)
        self.__cuda_array_interface__ = {
            "shape": values.shape, "typestr": values.dtype.str, "data": (self.address, False),
            "version": 3, "stream": self.stream, **interface,
        }  # fmt: skip


class Exporting:
    """The same through DLPack."""

    def __init__(self, device: FakeGpu, values: np.ndarray, ordinal: int = 0):
        self.array, self.device, self.ordinal = Foreign(device, values), device, ordinal
        self.values, self.streams = values, []

    def __dlpack_device__(self):
        return CUDA, self.ordinal

    def __dlpack__(self, *, stream: int):
        self.streams.append(stream)
        event = self.device.record(self.array.stream)
        self.device.wait(stream, event)
        where = (CUDA, self.ordinal)
        tensor = StridedTensor(
            self.array.address, self.values.shape, None, self.values.dtype, where
        )
        return make_capsule(tensor, self)


def test_arrays_of_the_device_are_read_in_place_and_in_order():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    for kind in (Foreign, Exporting):
        given = kind(device, COUNT)
        device.log.clear()
        (result,) = program.on_device(given)
        assert "upload" not in device.log and "copy" not in device.log
        assert result.numpy().tolist() == (2 * COUNT + 1).tolist()
        assert program(given)[0].tolist() == (2 * COUNT + 1).tolist()


def test_results_stay_on_the_device_and_are_arguments_again():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    (once,) = program.on_device(COUNT)
    assert isinstance(once, DeviceArray) and once.nbytes == 16 and once.device == "cuda:0"
    assert "f" in repr(once) and "cuda:0" in repr(once)
    device.log.clear()
    (twice,) = program.on_device(once)
    assert "upload" not in device.log and "download" not in device.log
    assert twice.numpy().tolist() == (2 * (2 * COUNT + 1) + 1).tolist()
    with pytest.raises(TypeError, match=r"x\.numpy\(\)"):
        np.asarray(once)


def test_an_argument_is_kept_until_kernels_have_read_it():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    (once,) = program.on_device(COUNT)
    (twice,) = program.on_device(once)
    given = Exporting(device, COUNT)
    seen = weakref.ref(given)
    (other,) = program.on_device(given)
    del once, given
    gc.collect()
    assert seen() is not None
    assert twice.numpy().tolist() == (2 * (2 * COUNT + 1) + 1).tolist()
    assert other.numpy().tolist() == (2 * COUNT + 1).tolist()
    program.on_device(COUNT)
    gc.collect()
    assert seen() is None


def test_a_chain_of_calls_keeps_no_results():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    (value,) = program.on_device(COUNT)
    value.numpy()
    held = len(device.memory)
    for _ in range(20):
        (value,) = program.on_device(value)
        value.numpy()
        for stream in list(device.streams):
            device.synchronize(stream)
    assert len(device.memory) <= held + 2


def test_misaligned_memory_is_copied():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    given = Foreign(device, COUNT, shift=4)
    device.log.clear()
    assert program(given)[0].tolist() == (2 * COUNT + 1).tolist()
    assert "copy" in device.log


def test_arrays_that_are_refused():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    (elsewhere,) = two_steps().program(flat(1, 1), gpu()).on_device(COUNT)
    cases = {
        "not C-contiguous": Foreign(device, COUNT, strides=(8,)),
        r"got float32\[2\]": Foreign(device, COUNT[:2]),
        r"got int32\[4\]": Foreign(device, COUNT.astype(np.int32)),
        "on cuda:3": Exporting(device, COUNT, ordinal=3),
        "another device": elsewhere,
    }
    for words, value in cases.items():
        with pytest.raises(UserError, match=words):
            program(value)


def test_a_library_reads_results_in_the_order_of_its_stream():
    device = gpu()
    (result,) = two_steps().program(flat(1, 1), device).on_device(COUNT)
    theirs = device.create_stream()
    tensor = read_tensor(result.__dlpack__(stream=theirs))
    assert (tensor.shape, tensor.strides, tensor.dtype) == ((4,), (1,), np.float32)
    assert result.__dlpack_device__() == (CUDA, 0)
    result.__dlpack__(stream=theirs, dl_device=(CUDA, 0), copy=False, max_version=(1, 1))
    for wish in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="handed out where it is"):
            result.__dlpack__(stream=theirs, **wish)
    device.synchronize(theirs)
    assert device.floats(tensor.address, 4).tolist() == (2 * COUNT + 1).tolist()


def test_a_result_outlives_the_array_that_was_handed_out():
    device = gpu()
    (result,) = two_steps().program(flat(1, 1), device).on_device(COUNT)
    capsule = result.__dlpack__(stream=1)
    address = read_tensor(capsule).address
    del result
    gc.collect()
    device.synchronize(1)
    assert device.floats(address, 4).tolist() == (2 * COUNT + 1).tolist()
    interface = two_steps().program(flat(1, 1), device).on_device(ONES)[0].__cuda_array_interface__
    assert interface["shape"] == (4,) and interface["typestr"] == "<f4"


def test_memory_is_given_back():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    for _ in range(20):
        program.on_device(program.on_device(COUNT)[0])
    del program
    gc.collect()
    for stream in list(device.streams):
        device.synchronize(stream)
    assert not device.memory
    assert device.events == 0


def test_work_under_way_outlives_the_program():
    device = gpu()
    plan = PlanOf().inputs(x=16).outputs(y=16).buffer("w", plan_pb2.WEIGHT, 16, weight="bias")
    plan.run("add", "x", "w", "y").results("y")
    program = plan.program(flat(1, 1), device, {"bias": COUNT})
    (result,) = program.on_device(ONES)
    del program
    gc.collect()
    assert result.numpy().tolist() == (COUNT + 1).tolist()
    assert "unload" in device.log


def test_an_array_may_be_changed_once_the_call_has_returned(monkeypatch):
    """Also one that is not copied through staging memory, and is pinned by its owner."""
    from girih.runtime.devices import gpu_context

    monkeypatch.setattr(gpu_context, "_PINNED", 0)
    device = gpu()
    theirs = device.host_memory(16).view(np.float32)
    theirs[...] = COUNT
    (result,) = two_steps().program(flat(1, 1), device).on_device(theirs)
    theirs[...] = 100
    assert result.numpy().tolist() == (2 * COUNT + 1).tolist()


# Donation.


def in_place() -> tuple[PlanOf, Signature]:
    """x += 1 where x is donated, as older plans do it."""
    plan = PlanOf().inputs(x=16).run("grow", "x").results("x")
    return plan, flat(1, 1).donating({0: 0})


def replacing() -> tuple[PlanOf, Signature]:
    """y = x + 1, where y may have the memory of x."""
    plan = PlanOf().inputs(x=16).buffer("y", plan_pb2.OUTPUT, 16, replaces=0)
    return plan.run("add_one", "x", "y").results("y"), flat(1, 1).donating({0: 0})


@pytest.mark.parametrize("made", [in_place, replacing])
def test_donated_memory(made):
    plan, signature = made()
    device = gpu(grow=grow)
    program = plan.program(signature, device)
    x = COUNT.copy()
    assert program(x)[0].tolist() == (COUNT + 1).tolist() and x.tolist() == COUNT.tolist()
    given = Foreign(device, COUNT)
    (kept,) = program.on_device(given)
    assert kept.address != given.address and kept.numpy().tolist() == (COUNT + 1).tolist()
    (same,) = program.on_device(given, donate=True)
    assert same.address == given.address and same.numpy().tolist() == (COUNT + 1).tolist()
    assert device.floats(given.address, 4).tolist() == (COUNT + 1).tolist()


# Errors.


def test_too_little_memory_says_what_is_needed_when():
    plan = two_steps().buffer("large", plan_pb2.ARENA, 3 << 20, offset=256, element_type="f32")
    big = plan.plan.buffers[-1]
    big.dims.extend((1024, 768))
    big.first_step, big.last_step = 1, 1
    plan.plan.kernels[1].origins.add(file="/home/me/model.py", line=41, name="encoder.layer.3")
    with pytest.raises(UserError) as caught:
        plan.program(flat(1, 1), gpu(memory=1 << 20))(COUNT)
    said = str(caught.value)
    assert "the GPU has no 3.1 MB left: 1.0 MB of 1.0 MB are free" in said
    assert "largest at step 1, kernel add_1 (model.py:41 (encoder.layer.3)): 3.1 MB" in said
    assert "f32[1024,768] 3.1 MB (steps 1 to 1)" in said


def test_too_little_memory_for_an_argument():
    device = gpu(memory=600)
    program = two_steps().program(flat(1, 1), device)
    with pytest.raises(UserError, match="arguments 0.0 MB"):
        assert [program.on_device(COUNT) for _ in range(40)]


def test_a_kernel_that_asks_for_more_than_the_device_has():
    plan = two_steps()
    plan.plan.kernels[0].launches[0].shared_bytes = 1 << 20
    with pytest.raises(UserError, match="needs 1048576 bytes of shared memory, Fake gives"):
        plan.program(flat(1, 1), gpu())(COUNT)
    plan = two_steps()
    plan.plan.kernels[0].launches[0].cluster.extend((16, 1, 1))
    plan.plan.kernels[0].launches[0].grid[0] = 16
    with pytest.raises(UserError, match="clusters of 16 blocks, Fake takes at most 8"):
        plan.program(flat(1, 1), gpu())(COUNT)


def test_an_entry_that_is_not_there():
    with pytest.raises(UserError, match="no entry 'add'"):
        two_steps().program(flat(1, 1), FakeGpu(add_one=add_one))(COUNT)


def test_a_program_for_the_host_has_no_device_memory():
    ones = np.ones((2, 3), np.float32)
    with pytest.raises(UserError, match="has no memory of its own"):
        adding_program().on_device(ones, ones)


# What a call did.


def test_profile():
    profile = two_steps().program(flat(1, 1), gpu()).profile(COUNT)
    assert [event.kernel for event in profile.events] == ["add_one_0", "add_1"]
    assert [event.begin for event in profile.events] == [0.0, 1.0]
    assert [dict(kernel.counters) for kernel in profile.kernels()] == [{}] * 2  # a GPU counts none
    assert profile.lines() == {}
    assert profile.outputs[0].tolist() == (2 * COUNT + 1).tolist()


def test_prepare_reads_its_inputs_anew():
    program = two_steps().program(flat(1, 1), gpu())
    x = COUNT.copy()
    call = program.prepare(x)
    assert call()[0].tolist() == (2 * COUNT + 1).tolist()
    x[...] = 1
    assert call()[0].tolist() == [3.0] * 4


# Several GPUs.


def test_another_gpu(monkeypatch):
    first, second = gpu(), gpu()
    asked = []
    monkeypatch.setattr(cuda, "find_gpus", lambda number: asked.append(number) or [second])
    program = two_steps().program(flat(1, 1), first)
    other = program.with_device(1)
    assert other(COUNT)[0].tolist() == (2 * COUNT + 1).tolist()
    assert asked == [1] and other.reason == "device 1 was asked for"
    assert "launch" in second.log and "launch" not in first.log
    assert program(COUNT)[0].tolist() == (2 * COUNT + 1).tolist()
    assert "launch" in first.log
    with pytest.raises(UserError, match="runs on no GPU"):
        adding_program().with_device(0)


def test_flat_arguments_and_results_on_the_device():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    (found,) = program.on_device_flat([Foreign(device, COUNT)])
    assert found.numpy().tolist() == (2 * COUNT + 1).tolist()
    with pytest.raises(UserError, match="has no memory of its own"):
        adding_program().on_device_flat([COUNT, COUNT])


def test_launches_are_encoded_anew_only_where_addresses_changed():
    """Most of a program touches its own memory alone; what was encoded for an array is kept."""
    device = gpu()
    prepared = device.prepare
    encoded: list[str] = []

    def prepare(entry: Any, start: Any, arguments: Any) -> Any:
        encoded.append(start.entry)
        return prepared(entry, start, arguments)

    device.prepare = prepare  # pyright: ignore[reportAttributeAccessIssue]
    plan = PlanOf().inputs(x=16).outputs(y=16)
    for number in range(4):
        plan.buffer(f"t{number}", plan_pb2.ARENA, 16, offset=64 * number)
    plan.run("add_one", "x", "t0").run("add_one", "t0", "t1").run("add_one", "t1", "t2")
    program = plan.run("add", "t2", "t2", "y").results("y").program(flat(1, 1), device)
    sets = [program.on_device(COUNT)[0] for _ in range(9)]
    assert len(encoded) == 4 + 8  # the last launch writes each result
    encoded.clear()
    results = [program.on_device(x)[0] for x in sets]
    assert encoded.count("add_one") == 9 and encoded.count("add") <= 9
    rebound = [entry for entry in device.log if entry.startswith("rebind")]
    assert set(rebound) == {"rebind 0", "rebind 3"}  # the first and the last launch alone
    assert results[0].numpy().tolist() == (2 * (2 * (COUNT + 3) + 3)).tolist()


def test_a_device_with_fewer_multiprocessors_starts_fewer_blocks():
    started: list[Any] = []
    plan = PlanOf().inputs(x=16).outputs(y=16).run("add_one", "x", "y").results("y")
    launch = plan.plan.kernels[0].launches[0]
    launch.grid[0], launch.persistent = 132, True
    launch.cluster.extend((2, 1, 1))
    for count, blocks in ((132, 132), (114, 114), (113, 112), (1, 2), (0, 132), (200, 132)):
        device = gpu()
        device.limits = device.limits._replace(multiprocessors=count)
        prepared = device.prepare

        def prepare(entry: Any, start: Any, arguments: Any, prepared: Any = prepared) -> Any:
            started.append(start)
            return prepared(entry, start, arguments)

        device.prepare = prepare  # pyright: ignore[reportAttributeAccessIssue]
        plan.program(flat(1, 1), device)(ONES)
        assert started[-1].grid == (blocks, 1, 1)


def test_a_reader_whose_stream_is_gone_leaks_nothing():
    device = gpu()
    program = two_steps().program(flat(1, 1), device)
    program(ONES)
    kept = len(device.memory)
    (result,) = program.on_device(COUNT)
    theirs = device.create_stream()
    result.__dlpack__(stream=theirs)
    with device:
        device.destroy_stream(theirs)
    del result
    gc.collect()
    device.drain()
    assert len(device.memory) == kept
