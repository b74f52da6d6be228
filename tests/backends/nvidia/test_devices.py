"""Whole programs through the runtime: on a simulated GPU, and on a real one where there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia.simulator.driver import SimulatedGpu
from girih.hlo.errors import UserError
from girih.runtime.devices import cuda
from girih.runtime.devices.architectures import target_for
from girih.runtime.devices.arrays import DeviceArray

LOOP = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<i32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %a = %x) : tensor<i32>, tensor<4xf32>
   cond { %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %p : tensor<i1> }
   do { %one = stablehlo.constant dense<1> : tensor<i32>
     %j = stablehlo.add %i, %one : tensor<i32>
     %s = stablehlo.sine %a : tensor<4xf32>
     %b = stablehlo.add %a, %s : tensor<4xf32>
     stablehlo.return %j, %b : tensor<i32>, tensor<4xf32> }
  return %0#1, %0#0 : tensor<4xf32>, tensor<i32>
}"""
CASE = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %0 = "stablehlo.case"(%n) ({
     %a = stablehlo.sine %x : tensor<4xf32>
     stablehlo.return %a : tensor<4xf32> }, {
     %a = stablehlo.negate %x : tensor<4xf32>
     stablehlo.return %a : tensor<4xf32> }, {
     stablehlo.return %x : tensor<4xf32> }) : (tensor<i32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
KEPT = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<2xf32>) {
  %c = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %a = stablehlo.sine %x : tensor<4xf32>
  return %x, %a, %c : tensor<4xf32>, tensor<4xf32>, tensor<2xf32>
}"""
CHAIN = """
func.func @main(%x: tensor<64x32xf32>) -> tensor<32x32xf32> {
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
  %d = stablehlo.dot_general %t, %x, contracting_dims = [1] x [0]
      : (tensor<32x64xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
  %s = "stablehlo.sort"(%d) <{dimension = 1 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1> }) : (tensor<32x32xf32>) -> tensor<32x32xf32>
  return %s : tensor<32x32xf32>
}"""
X = np.array([1, 2, -3, 0.5], np.float32)
WIDE = np.random.default_rng(3).normal(size=(64, 32)).astype(np.float32)


@pytest.fixture(scope="module", params=["simulated", "real"])
def compiled(request) -> Callable[[str], Any]:
    """Compiles StableHLO for the device."""
    if request.param == "simulated":
        return lambda text: girih.compile(text, target="ptx-sim:sm_80")
    try:
        gpu = cuda.find_gpus()[0]
    except UserError as error:
        pytest.skip(str(error))
    return lambda text: girih.compile(text, target=target_for(gpu.capability))


def expected(text: str, *inputs: Any) -> list[np.ndarray]:
    return girih.interpret(girih.import_model(text), [np.array(x) for x in inputs])


@pytest.mark.parametrize("text", [LOOP, CASE, KEPT], ids=["loop", "case", "kept"])
def test_control_flow_and_results_that_nothing_computes(compiled, text):
    program = compiled(text)
    for count in (0, 1, 2, 5):
        inputs = X, np.int32(count)
        for found in (program(*inputs), [r.numpy() for r in program.on_device(*inputs)]):
            for one, other in zip(found, expected(text, *inputs), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)


TABLE = np.linspace(-1, 1, 100, dtype=np.float32).reshape(4, 25)
SIZED = {
    "arena": (CHAIN, (WIDE,)),
    "weights": (lambda x: (x @ TABLE + TABLE[0], x @ TABLE[:, :3]), (WIDE[:, :4],)),
}


@pytest.mark.parametrize("name", SIZED)
def test_memory_is_what_the_device_allocates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of every request; who has no temporaries asks for one byte, as none cannot be had."""
    source, inputs = SIZED[name]
    sizes: list[int] = []
    allocate = SimulatedGpu.allocate

    def counted(gpu: SimulatedGpu, size: int, stream: Any) -> int:
        sizes.append(size)
        return allocate(gpu, size, stream)

    monkeypatch.setattr(SimulatedGpu, "allocate", counted)
    program = girih.compile(source, *inputs, target="ptx-sim", options=girih.Options(cache="off"))
    program(*inputs)
    memory = program.memory
    assert sum(sizes) == memory.allocated_bytes + (not memory.context_bytes)
    assert (memory.padding_bytes > 0) == (name != "arena") and memory.scratch_bytes == 0


def test_several_kernels_again_and_again(compiled):
    """The second call records graphs where the device has them, later ones replay them."""
    program = compiled(CHAIN)
    for scale in (1, 2, 3, 4):
        wanted = expected(CHAIN, scale * WIDE)[0]
        np.testing.assert_allclose(program(scale * WIDE)[0], wanted, rtol=1e-4, atol=1e-3)
    once = program.on_device(WIDE)
    assert isinstance(once[0], DeviceArray)
    np.testing.assert_allclose(once[0].numpy(), program(WIDE)[0])


def test_threads(compiled):
    program, found = compiled(CHAIN), {}

    def call(scale: int) -> None:
        found[scale] = [program(scale * WIDE)[0] for _ in range(3)]

    threads = [threading.Thread(target=call, args=(scale,)) for scale in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scale in (1, 2):
        wanted = expected(CHAIN, scale * WIDE)[0]
        for one in found[scale]:
            np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-3)


def test_a_bundle_and_its_profile(compiled, tmp_path):
    program = compiled(CHAIN)
    program.save(tmp_path / "chain.girih")
    try:
        loaded = girih.load(tmp_path / "chain.girih")
    except UserError:
        loaded = girih.load(tmp_path / "chain.girih", simulate=True)
    profile = loaded.profile(WIDE)
    assert len(profile.events) >= 2 and all(event.duration > 0 for event in profile.events)
    np.testing.assert_allclose(profile.outputs[0], program(WIDE)[0])


def test_torch_reads_results_and_gives_arguments(compiled):
    """Without a copy; torch's memory on a GPU only where there is one."""
    torch = pytest.importorskip("torch")
    program = compiled(CHAIN)
    if not torch.cuda.is_available():
        found = program(torch.from_numpy(WIDE))[0]
    else:
        given = torch.from_numpy(WIDE).cuda()
        (result,) = program.on_device(given)
        found = torch.from_dlpack(result).cpu().numpy()
        with pytest.raises(UserError, match="not C-contiguous"):
            program(given.t().contiguous().t())
    np.testing.assert_allclose(found, expected(CHAIN, WIDE)[0], rtol=1e-4, atol=1e-3)
