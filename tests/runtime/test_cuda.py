"""The driver of CUDA on bindings that only write down what they are asked."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from girih.hlo.errors import CompilerBug, UserError
from girih.runtime.devices import cuda
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.driver import (
    Code,
    LaunchConfiguration,
    OutOfMemory,
    TensorMapBox,
    chain,
)

SUCCESS = SimpleNamespace(name="CUDA_SUCCESS")


ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}


class Names:
    """An enumeration that has every name; a name's value is itself, or a number for flags."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._values.get(name, name)


class Bindings:
    """Records (name, arguments) of calls; `gives`: name -> what a call gives, `fails`: name ->
    the error's name."""

    CUresult = Names(CUDA_SUCCESS=SUCCESS)
    CUdevice_attribute = Names()
    CUfunction_attribute = Names()
    CUjit_option = Names()
    CUlaunchAttributeID = Names()
    CUkernelNodeAttrID = Names()
    CUtensorMapDataType = Names()
    CUtensorMapInterleave = Names()
    CUtensorMapSwizzle = Names()
    CUtensorMapL2promotion = Names()
    CUtensorMapFloatOOBfill = Names()
    CUmemPool_attribute = Names()
    CUstream_flags = Names(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = Names(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)
    cuuint32_t = cuuint64_t = int

    def __init__(self, **gives: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails = {"cuFuncGetParamInfo": "CUDA_ERROR_NOT_SUPPORTED"}
        self.gives: dict[str, Any] = {
            "cuDriverGetVersion": 13000, "cuDeviceGetCount": 2, "cuDeviceGet": 5,
            "cuDeviceGetName": b"NVIDIA H100\0  ", "cuDevicePrimaryCtxRetain": 77,
            "cuDeviceGetDefaultMemPool": 88, "cuStreamCreate": 9, "cuEventCreate": 10,
            "cuModuleGetFunction": 11, "cuModuleLoadDataEx": 12, "cuMemAllocAsync": 1 << 40,
            "cuEventElapsedTime": 0.25, "cuGraphInstantiate": 14, "cuGraphCreate": 15,
            "cuGraphAddKernelNode": 16,
            "cuFuncGetAttribute": 48 << 10,
            **gives,
        }  # fmt: skip

    def CUlaunchConfig(self) -> Any:  # noqa: N802
        return SimpleNamespace(numAttrs=0)

    def CUDA_KERNEL_NODE_PARAMS(self) -> Any:  # noqa: N802
        return SimpleNamespace()

    def CUkernelNodeAttrValue(self) -> Any:  # noqa: N802
        return SimpleNamespace(clusterDim=SimpleNamespace())

    def CUlaunchAttribute(self) -> Any:  # noqa: N802
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))

    def cuGetErrorString(self, error: Any) -> Any:  # noqa: N802
        return SUCCESS, b"it went wrong"

    def cuMemGetInfo(self) -> Any:  # noqa: N802
        return SUCCESS, 100, 1000

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in self.fails:
                return self.fails[name], None
            if name == "cuFuncSetAttribute":
                self.gives["cuFuncGetAttribute"] = arguments[2]
            if name == "cuDeviceGetAttribute":
                attribute = arguments[0].removeprefix("CU_DEVICE_ATTRIBUTE_")
                return SUCCESS, ATTRIBUTES.get(attribute, 1)
            return (SUCCESS, self.gives[name]) if name in self.gives else (SUCCESS,)

        return call

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def bindings(monkeypatch):
    made = Bindings()
    monkeypatch.setattr(cuda, "_bindings", lambda: made)
    cuda._start.cache_clear()
    cuda._open.cache_clear()
    yield made
    cuda._start.cache_clear()
    cuda._open.cache_clear()


@pytest.fixture
def driver(bindings):
    (found,) = cuda.find_gpus(1)
    return found


def test_devices(bindings):
    first, second = cuda.find_gpus()
    assert (first.name, first.capability, second.ordinal) == ("NVIDIA H100", (9, 0), 1)
    assert first.limits.shared_bytes == 232448 and first.limits.cluster == 16
    assert cuda.find_gpus(1) == [second]
    assert bindings.asked("cuInit") == [(0,)]
    with pytest.raises(UserError, match="device 2: this process sees GPUs 0 to 1"):
        cuda.find_gpus(2)


@pytest.mark.parametrize(
    ("fails", "gives", "words"),
    [
        ({"cuInit": "CUDA_ERROR_NO_DEVICE"}, {}, "finds no GPU .*CUDA_VISIBLE_DEVICES"),
        ({"cuInit": "CUDA_ERROR_SYSTEM"}, {}, "cannot be used: CUDA_ERROR_SYSTEM .it went wrong."),
        ({}, {"cuDriverGetVersion": 11080}, "knows CUDA 11.8, girih needs 12.0; install a newer"),
        ({}, {"cuDeviceGetCount": 0}, "finds no GPU"),
    ],
)
def test_machines_without_a_usable_gpu(bindings, fails, gives, words):
    bindings.fails, bindings.gives = fails, bindings.gives | gives
    with pytest.raises(UserError, match=words):
        cuda.find_gpus()


def test_a_driver_that_cannot_be_loaded(bindings, monkeypatch):
    def missing(flags: int) -> Any:
        raise RuntimeError("libcuda.so.1 is not there\nand more")

    monkeypatch.setattr(bindings, "cuInit", missing, raising=False)
    with pytest.raises(UserError, match=r"no NVIDIA driver can be loaded \(libcuda.so.1 is not"):
        cuda.find_gpus()


def test_without_cuda_python():
    cuda._bindings.cache_clear()
    try:
        cuda._bindings()
    except UserError as error:
        assert "pip install 'girih[cuda]'" in str(error)
    finally:
        cuda._bindings.cache_clear()


def test_memory(bindings, driver):
    assert driver.allocate(100, 9) == 1 << 40
    data = np.arange(3, dtype=np.int16)
    driver.upload(1 << 40, data, 9)
    driver.download(data, 1 << 40, 9)
    driver.copy(5, 6, 7, 9)
    driver.free(1 << 40, 9)
    assert bindings.calls[-5:] == [
        ("cuMemAllocAsync", (100, 9)),
        ("cuMemcpyHtoDAsync", (1 << 40, data.ctypes.data, 6, 9)),
        ("cuMemcpyDtoHAsync", (data.ctypes.data, 1 << 40, 6, 9)),
        ("cuMemcpyDtoDAsync", (5, 6, 7, 9)),
        ("cuMemFreeAsync", (1 << 40, 9)),
    ]
    block = ctypes.create_string_buffer(64)
    bindings.gives["cuMemHostAlloc"] = ctypes.addressof(block)
    pinned = driver.host_memory(64)
    pinned[...] = 7
    assert block.raw == b"\7" * 64
    driver.free_host_memory(pinned)
    assert bindings.asked("cuMemFreeHost") == [(ctypes.addressof(block),)]


def test_too_little_memory(bindings, driver):
    bindings.fails["cuMemAllocAsync"] = bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(OutOfMemory) as caught:
        driver.allocate(12345, 9)
    assert (caught.value.size, caught.value.free, caught.value.total) == (12345, 100, 1000)


def test_an_error_of_a_kernel_says_how_to_find_it(bindings, driver):
    bindings.fails["cuStreamSynchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(CompilerBug, match=r"ILLEGAL_ADDRESS \(it went wrong\).*simulate=True"):
        driver.synchronize(9)


def test_streams_and_events(bindings, driver):
    stream = driver.create_stream()
    event = driver.record(stream, timed=True)
    driver.record(stream)
    driver.wait(stream, event)
    assert driver.elapsed(event, event) == 250.0
    assert bindings.asked("cuStreamCreate") == [(1,)]
    assert bindings.asked("cuEventCreate") == [(0,), (2,)]
    assert bindings.asked("cuStreamWaitEvent") == [(9, 10, 0)]


PTX = Code(b".version 8.3", parse_architecture("sm_90a"), is_ptx=True)
CUBIN = Code(b"\x7fELF", parse_architecture("sm_90a"), is_ptx=False)


def test_modules(bindings, driver):
    assert driver.load(PTX) == driver.load(CUBIN) == 12
    images = [arguments[0] for arguments in bindings.asked("cuModuleLoadDataEx")]
    assert images == [b".version 8.3\0", b"\x7fELF"]
    _, count, keys, values = bindings.asked("cuModuleLoadDataEx")[0]
    assert count == len(keys) == len(values) == 5
    assert dict(zip(keys, values, strict=True))["CU_JIT_GENERATE_LINE_INFO"] == 1


def test_the_log_of_refused_ptx_is_shown(bindings, driver, monkeypatch):
    def refuse(image: bytes, count: int, keys: list[str], values: list[Any]) -> Any:
        log = values[keys.index("CU_JIT_ERROR_LOG_BUFFER")]
        log[:11] = b"line 3: bad"
        return "CUDA_ERROR_INVALID_PTX", None

    monkeypatch.setattr(bindings, "cuModuleLoadDataEx", refuse, raising=False)
    with pytest.raises(UserError, match="refuses PTX for sm_90a: .*its log: line 3: bad; .*sm_90a"):
        driver.load(PTX)


def start(shared: int = 0, cluster: tuple[int, int, int] = (1, 1, 1)) -> LaunchConfiguration:
    return LaunchConfiguration("k", (16, 2, 3), (128, 1, 1), cluster, shared)


def test_entries(bindings, driver):
    assert driver.entry(12, start()) == 11
    driver.entry(12, start(48 << 10))
    assert not bindings.asked("cuFuncSetAttribute")
    for shared in (100_000, 60_000, 120_000):
        driver.entry(12, start(shared))
    which = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert bindings.asked("cuFuncSetAttribute") == [(11, which, 100_000), (11, which, 120_000)]
    driver.entry(12, start(cluster=(16, 1, 1)))
    assert "NON_PORTABLE" in bindings.asked("cuFuncSetAttribute")[-1][1]
    bindings.fails["cuModuleGetFunction"] = "CUDA_ERROR_NOT_FOUND"
    with pytest.raises(UserError, match="has no entry 'k'"):
        driver.entry(12, start())


def test_a_launch_points_to_its_parameters(bindings, driver):
    arguments = [bytes(range(8)), b"\1\2\3\4", bytes(range(128))]
    prepared = driver.prepare(11, start(1024, (2, 1, 1)), arguments)
    driver.launch(prepared, 9)
    ((config, entry, pointers, extra),) = bindings.asked("cuLaunchKernelEx")
    assert (entry, extra, config.hStream, config.sharedMemBytes) == (11, 0, 9, 1024)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (16, 2, 3)
    assert (config.blockDimX, config.numAttrs) == (128, 1)
    cluster = config.attrs[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)
    addresses = (ctypes.c_void_p * 3).from_address(pointers)
    for address, argument in zip(addresses, arguments, strict=True):
        assert ctypes.string_at(address, len(argument)) == argument
        assert address % 64 == 0
    assert driver.prepare(11, start(), []).config.numAttrs == 0


def test_a_cooperative_launch(bindings, driver):
    """Its attribute stands beside that of clusters; blocks that are resident are the driver's."""
    assert driver.cooperative
    one = driver.prepare(11, start()._replace(cooperative=True), []).config
    (attribute,) = one.attrs
    assert (one.numAttrs, attribute.id) == (1, "CU_LAUNCH_ATTRIBUTE_COOPERATIVE")
    assert attribute.value.cooperative == 1
    both = start(0, (2, 1, 1))._replace(cooperative=True)
    assert driver.prepare(11, both, []).config.numAttrs == 2
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    bindings.gives[name] = 3
    assert driver.resident(11, start(100)) == 3 * driver.limits.multiprocessors
    assert bindings.asked(name) == [(11, 128, 100)]


def test_memory_of_the_host_that_kernels_see(bindings, driver):
    block = ctypes.create_string_buffer(8)
    bindings.gives["cuMemHostAlloc"] = ctypes.addressof(block)
    bindings.gives["cuMemHostGetDevicePointer"] = 1 << 41
    memory, address = driver.mapped_memory(8)
    memory[...] = 7
    assert block.raw == bytes([7] * 8) and address == 1 << 41
    assert bindings.asked("cuMemHostAlloc") == [(8, 2)]


def test_tensor_maps(bindings, driver, monkeypatch):
    """The function itself is called, on memory at a multiple of 64 bytes."""
    asked: list[tuple[Any, ...]] = []
    fails = 0

    def encode(made: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        dims, strides, box, steps, *modes = rest
        asked.append(
            (kind, address, *([*values][:rank] for values in (dims, box, steps)), modes[1])
        )
        assert made % 64 == 0 and strides[0] == 128
        ctypes.memmove(made, bytes(range(128)), 128)
        return fails

    kinds = {"CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": 9, "CU_TENSOR_MAP_DATA_TYPE_UINT8": 0}
    swizzles = {"CU_TENSOR_MAP_SWIZZLE_NONE": 0, "CU_TENSOR_MAP_SWIZZLE_128B": 3}
    monkeypatch.setattr(cuda, "_encode_map", lambda: encode)
    monkeypatch.setattr(bindings, "CUtensorMapDataType", Names(**kinds), raising=False)
    monkeypatch.setattr(bindings, "CUtensorMapSwizzle", Names(**swizzles), raising=False)
    for name, member in (
        ("CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE_NONE"),
        ("CUtensorMapL2promotion", "CU_TENSOR_MAP_L2_PROMOTION_L2_256B"),
        ("CUtensorMapFloatOOBfill", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
    ):
        monkeypatch.setattr(bindings, name, Names(**{member: 0}), raising=False)

    class Result:
        CUDA_SUCCESS = SUCCESS

        def __call__(self, number: int) -> Any:
            return SimpleNamespace(name="INVALID") if number else SUCCESS

    monkeypatch.setattr(bindings, "CUresult", Result(), raising=False)
    box = TensorMapBox("bf16", (64, 100), (128,), (64, 32), 128)
    assert driver.tensor_map(box, 4096) == bytes(range(128))
    assert asked[-1] == (9, 4096, [64, 100], [64, 32], [1, 1], 3)
    driver.tensor_map(box._replace(element="i8", swizzle=0), 4096)
    assert asked[-1][0] == 0 and asked[-1][-1] == 0
    driver.tensor_map(box._replace(steps=(1, 2)), 4096)
    assert asked[-1][4] == [1, 2]
    fails = 1
    with pytest.raises(CompilerBug, match="cuTensorMapEncodeTiled failed: INVALID .*0x1000"):
        driver.tensor_map(box, 4096)


def test_graphs(bindings, driver):
    plain, clustered = start(), start(1024, (2, 1, 1))
    launches = [driver.prepare(11, plain, [bytes(8)]), driver.prepare(12, clustered, [b"12345678"])]
    graph = driver.graph(launches, chain(len(launches)))
    first, second = bindings.asked("cuGraphAddKernelNode")
    assert first[:3] == (15, [], 0) and second[:3] == (15, [16], 1)
    node = second[3]
    assert (node.func, node.gridDimX, node.blockDimX, node.sharedMemBytes) == (12, 16, 128, 1024)
    (address,) = (ctypes.c_void_p * 1).from_address(node.kernelParams)
    assert ctypes.string_at(address, 8) == b"12345678"
    ((asked, which, value),) = bindings.asked("cuGraphKernelNodeSetAttribute")
    assert asked == 16 and which.endswith("CLUSTER_DIMENSION") and value.clusterDim.x == 2
    other = driver.prepare(12, clustered, [b"abcdefgh"])  # kept: the driver copies it at once
    driver.rebind(graph, 1, other)
    ((executable, node, changed),) = bindings.asked("cuGraphExecKernelNodeSetParams")
    (address,) = (ctypes.c_void_p * 1).from_address(changed.kernelParams)
    assert (executable, node) == (14, 16) and ctypes.string_at(address, 8) == b"abcdefgh"
    driver.replay(graph, 9)
    driver.destroy_graph(graph)
    assert [name for name, _ in bindings.calls[-3:]] == [
        "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
    ]  # fmt: skip


def test_a_graph_that_is_refused_is_destroyed(bindings, driver):
    bindings.fails["cuGraphInstantiate"] = "CUDA_ERROR_NOT_SUPPORTED"
    with pytest.raises(CompilerBug, match="it went wrong"):
        driver.graph([driver.prepare(11, start(), [])] * 2, chain(2))
    assert bindings.calls[-1] == ("cuGraphDestroy", (15,))


def test_every_name_is_one_of_cuda_python():
    """Where it is installed; it needs no GPU to be asked."""
    real = pytest.importorskip("cuda.bindings.driver")
    text = Path(cuda.__file__).read_text()
    functions = set(re.findall(r'"(cu[A-Z]\w+)"', text)) | set(re.findall(r"cuda\.(cu\w+)", text))
    types = set(re.findall(r"cuda\.(CU\w+)", text))
    assert len(functions) > 30 and len(types) > 10
    assert not [name for name in functions | types if not hasattr(real, name)]
    members = re.findall(r"cuda\.(CU\w+)\.(CU\w*_\w+)\b", text)
    members += [
        ("CUdevice_attribute", f"CU_DEVICE_ATTRIBUTE_{name}")
        for name in re.findall(r'_attribute\("(\w+)"\)', text)
    ]
    members += [
        ("CUtensorMapSwizzle", f"CU_TENSOR_MAP_SWIZZLE_{name}")
        for name in ("NONE", "32B", "64B", "128B")
    ]
    members += [
        ("CUtensorMapDataType", f"CU_TENSOR_MAP_DATA_TYPE_{name}")
        for name in (*cuda._FLOATS.values(), *cuda._BY_SIZE.values())
    ]
    assert len(members) > 20
    assert not [pair for pair in members if not hasattr(getattr(real, pair[0]), pair[1])]


def test_the_pool_is_trimmed_before_memory_is_lacking(bindings, driver, monkeypatch):
    """What was given back may lie in the pool in pieces, or be another stream's still."""
    asked: list[str] = []

    def allocate(size: int, stream: int) -> Any:
        asked.append("allocate")
        fails = "trim" not in asked or size > 1000
        return ("CUDA_ERROR_OUT_OF_MEMORY", None) if fails else (SUCCESS, 1 << 40)

    monkeypatch.setattr(bindings, "cuMemAllocAsync", allocate, raising=False)
    monkeypatch.setattr(
        bindings, "cuMemPoolTrimTo", lambda *_: asked.append("trim") or (SUCCESS,), raising=False
    )
    bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
    assert driver.allocate(100, 9) == 1 << 40
    assert asked == ["allocate", "trim", "allocate"] and bindings.asked("cuCtxSynchronize")
    with pytest.raises(OutOfMemory, match="no 2000 bytes"):
        driver.allocate(2000, 9)


def test_an_event_that_cannot_be_recorded_is_destroyed(bindings, driver):
    bindings.fails["cuEventRecord"] = "CUDA_ERROR_INVALID_HANDLE"
    with pytest.raises(CompilerBug, match="cuEventRecord failed"):
        driver.record(9)
    assert bindings.asked("cuEventDestroy") == [(10,)]
