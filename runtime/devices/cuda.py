"""CUDA's driver through cuda-python, imported only when a program for a GPU is run.

Handles are numbers. Memory comes from the device's default pool, in the order of streams; streams
do not wait for the default stream of other libraries. A device's primary context is used, which
frameworks in the same process share.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...hlo.errors import CompilerBug, UserError
from ...hlo.types import element_type
from .architectures import Architecture, target_for
from .conditions import PTX as CONDITION_PTX
from .conditions import SINCE as CONDITIONAL_SINCE
from .conditions import START, condition_arguments
from .driver import (
    Bytes,
    Code,
    Condition,
    GraphNode,
    LaunchConfiguration,
    Limits,
    OutOfMemory,
    TensorMapBox,
)

OLDEST = 12000  # CUDA 12.0 knows clusters and tensor maps
_LOG = 1 << 16
_TYPES = "CU_TENSOR_MAP_DATA_TYPE_"
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_DEVICE_MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP
_PORTABLE_CLUSTER = 8
_ASSIGN_DEFAULT = 1  # CU_GRAPH_COND_ASSIGN_DEFAULT: conditions do not hold when a graph begins
_LARGE_CLUSTERS = ((9, 0), (10, 0))  # GPUs that take 16 blocks
_REMEDY = "run the program on a machine with an NVIDIA GPU"

# Element types whose bits the copy engine only moves, by size.
_BY_SIZE = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}
_FLOATS = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64"}


def find_gpus(number: int | None = None) -> list[CudaDriver]:
    """All GPUs that this process may use, or the one with that number; UserError if there is none,
    with what to do."""
    count = _start()
    if number is not None:
        if not 0 <= number < count:
            raise UserError(f"device {number}: this process sees GPUs 0 to {count - 1}")
        return [_open(number)]
    return [_open(ordinal) for ordinal in range(count)]


def own_gpu(place: int) -> CudaDriver:
    """The GPU of process number `place` of this machine: the one that it is shown alone, else the
    one with that number; UserError where there are fewer."""
    count = _start()
    if count > 1 and place >= count:
        raise UserError(
            f"process {place} of this machine finds {count} GPUs; start as many processes on a "
            "machine as it has GPUs"
        )
    return _open(place if count > 1 else 0)


@functools.cache
def _bindings() -> Any:
    """cuda-python's binding of the driver."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UserError(
            f"cuda-python is not installed ({error}); pip install 'girih[cuda]'"
        ) from error
    return driver


@functools.cache
def _start() -> int:
    """Initialise CUDA; how many GPUs there are, at least one."""
    cuda = _bindings()
    try:
        error = cuda.cuInit(0)[0]
    except Exception as missing:  # the binding's own types differ between its versions
        reason = (str(missing) or type(missing).__name__).splitlines()[0]
        raise UserError(f"no NVIDIA driver can be loaded ({reason}); {_REMEDY}") from missing
    names = cuda.CUresult
    if error == names.CUDA_ERROR_NO_DEVICE:
        raise UserError(
            f"the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES may hide them); {_REMEDY}"
        )
    if error != names.CUDA_SUCCESS:
        raise UserError(f"the NVIDIA driver cannot be used: {_text(cuda, error)}; {_REMEDY}")
    version = _call("cuDriverGetVersion")
    if version < OLDEST:
        raise UserError(
            f"the NVIDIA driver knows CUDA {_version(version)}, girih needs {_version(OLDEST)}; "
            "install a newer driver"
        )
    count = _call("cuDeviceGetCount")
    if not count:
        raise UserError(f"the NVIDIA driver finds no GPU; {_REMEDY}")
    return count


@functools.cache
def _open(ordinal: int) -> CudaDriver:
    return CudaDriver(ordinal)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def _encode_map() -> Any:
    """cuTensorMapEncodeTiled itself. It demands a map at a multiple of 64 bytes; the bindings keep
    theirs wherever they lie, so it gets memory of ours."""
    pointer, *_ = _call("cuGetProcAddress", b"cuTensorMapEncodeTiled", OLDEST, 0)
    words = ctypes.c_void_p
    number = ctypes.c_int
    kinds = (words, number, ctypes.c_uint32, words, words, words, words, words, *[number] * 4)
    return ctypes.CFUNCTYPE(number, *kinds)(int(pointer))


def _text(cuda: Any, error: Any) -> str:
    """An error's name and meaning."""
    _, meaning = cuda.cuGetErrorString(error)
    said = meaning.decode() if isinstance(meaning, bytes) else str(meaning)
    return f"{getattr(error, 'name', error)} ({said})"


def _call(name: str, *arguments: Any) -> Any:
    """The result of a function of the driver; OutOfMemory, else a CompilerBug for what fails."""
    cuda = _bindings()
    error, *results = getattr(cuda, name)(*arguments)
    if error != cuda.CUresult.CUDA_SUCCESS:
        if error == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory(0, *cuda.cuMemGetInfo()[1:])
        raise CompilerBug(
            f"{name} failed: {_text(cuda, error)}; an error of a kernel may show late, running the "
            "program with simulate=True tells which one it is"
        )
    return results[0] if len(results) == 1 else results or None


class CudaDriver:
    """One GPU; the `Driver` of runtime/devices/driver.py."""

    graphs = True
    simulated = False

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._cuda = cuda = _bindings()
        self._device = _call("cuDeviceGet", ordinal)
        name = _call("cuDeviceGetName", 256, self._device)
        self.name = name.split(b"\0")[0].decode()  # what follows is not defined
        major = self._attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = self._attribute("COMPUTE_CAPABILITY_MINOR")
        self.capability = major, minor
        cluster = 16 if self.capability in _LARGE_CLUSTERS else _PORTABLE_CLUSTER
        self.limits = Limits(
            self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            cluster if self._attribute("CLUSTER_LAUNCH") else 1,
            multiprocessors=self._attribute("MULTIPROCESSOR_COUNT"),
        )
        if not self._attribute("MEMORY_POOLS_SUPPORTED"):
            raise UserError(f"{self.name} has no memory pools here; {_REMEDY}")
        self._context = _call("cuDevicePrimaryCtxRetain", self._device)
        self._process = os.getpid()
        self._parameters: dict[int, list[int] | None] = {}  # of entries, in bytes
        self.cooperative = bool(self._attribute("COOPERATIVE_LAUNCH"))
        known = hasattr(cuda, "cuGraphConditionalHandleCreate")
        self.conditional = known and _call("cuDriverGetVersion") >= CONDITIONAL_SINCE
        self._condition: int | None = None  # the entry that sets conditions
        # Memory that is given back stays in the pool: the next call takes it again.
        self._pool = pool = _call("cuDeviceGetDefaultMemPool", self._device)
        threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        _call("cuMemPoolSetAttribute", pool, threshold, cuda.cuuint64_t(2**64 - 1))

    @property
    def identity(self) -> bytes:
        name = "cuDeviceGetUuid"  # cuda-python 12 has a second version of it, 13 that one alone
        newest = f"{name}_v2" if hasattr(self._cuda, f"{name}_v2") else name
        return bytes(_call(newest, self._device).bytes)

    def _attribute(self, name: str) -> int:
        which = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return _call("cuDeviceGetAttribute", which, self._device)

    def __enter__(self) -> CudaDriver:
        if os.getpid() != self._process:
            raise UserError(
                "CUDA does not work in a process that was forked after its first use; start "
                "processes with multiprocessing's 'spawn', or fork before the first call"
            )
        _call("cuCtxPushCurrent", self._context)
        return self

    def __exit__(self, *_: object) -> None:
        _call("cuCtxPopCurrent")

    # Memory.

    def allocate(self, size: int, stream: int) -> int:
        try:
            return int(_call("cuMemAllocAsync", size, stream))
        except OutOfMemory:
            # What was given back lies in the pool, in pieces or until a stream's work is done.
            self.drain()
            _call("cuMemPoolTrimTo", self._pool, 0)
        try:
            return int(_call("cuMemAllocAsync", size, stream))
        except OutOfMemory as error:
            raise OutOfMemory(size, error.free, error.total) from None

    def free(self, address: int, stream: int) -> None:
        _call("cuMemFreeAsync", address, stream)

    def host_memory(self, size: int) -> Bytes:
        address = int(_call("cuMemHostAlloc", size, 0))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_host_memory(self, memory: Bytes) -> None:
        _call("cuMemFreeHost", memory.ctypes.data)

    def mapped_memory(self, size: int) -> tuple[Bytes, int]:
        address = int(_call("cuMemHostAlloc", size, _DEVICE_MAPPED))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        return memory, int(_call("cuMemHostGetDevicePointer", address, 0))

    def upload(self, address: int, source: Bytes, stream: int) -> None:
        _call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, stream)

    def download(self, target: Bytes, address: int, stream: int) -> None:
        _call("cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, stream)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        _call("cuMemcpyDtoDAsync", target, source, size, stream)

    def fill(self, address: int, size: int, stream: int) -> None:
        _call("cuMemsetD8Async", address, 0xFF, size, stream)

    # Order.

    def create_stream(self) -> int:
        flags = self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(_call("cuStreamCreate", int(flags)))

    def destroy_stream(self, stream: int) -> None:
        _call("cuStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        _call("cuStreamSynchronize", stream)

    def drain(self) -> None:
        _call("cuCtxSynchronize")

    def record(self, stream: int, timed: bool = False) -> int:
        flags = self._cuda.CUevent_flags
        flag = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
        event = int(_call("cuEventCreate", int(flag)))
        try:
            _call("cuEventRecord", event, stream)
        except BaseException:
            _call("cuEventDestroy", event)
            raise
        return event

    def wait(self, stream: int, event: int) -> None:
        _call("cuStreamWaitEvent", stream, event, 0)

    def settle(self, event: int) -> None:
        _call("cuEventSynchronize", event)

    def has_come(self, event: int) -> bool:
        return self._cuda.cuEventQuery(event)[0] != self._cuda.CUresult.CUDA_ERROR_NOT_READY

    def elapsed(self, begin: int, end: int) -> float:
        return 1e3 * _call("cuEventElapsedTime", begin, end)

    def destroy_event(self, event: int) -> None:
        _call("cuEventDestroy", event)

    # Work.

    def load(self, code: Code) -> int:
        cuda = self._cuda
        log, errors = bytearray(_LOG), bytearray(_LOG)
        options = cuda.CUjit_option
        wanted = {
            options.CU_JIT_INFO_LOG_BUFFER: log,
            options.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: _LOG,
            options.CU_JIT_ERROR_LOG_BUFFER: errors,
            options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG,
            options.CU_JIT_GENERATE_LINE_INFO: 1,  # for profilers; the code is the same
        }
        image = bytes(code.data) + (b"\0" if code.is_ptx else b"")
        keys, values = list(wanted), list(wanted.values())
        error, module = cuda.cuModuleLoadDataEx(image, len(keys), keys, values)
        if error != cuda.CUresult.CUDA_SUCCESS:
            said = errors.split(b"\0")[0].decode(errors="replace").strip()
            raise UserError(
                f"the driver of {self.name} refuses {code}: {_text(cuda, error)}"
                f"{'; its log: ' if said else ''}{said}; a newer driver may take it, or machine "
                f"code for this GPU: girih retarget FILE --add {target_for(self.capability)}"
            )
        return int(module)

    def unload(self, module: int) -> None:
        _call("cuModuleUnload", module)

    def entry(self, module: int, start: LaunchConfiguration) -> int:
        cuda = self._cuda
        error, function = cuda.cuModuleGetFunction(module, start.entry.encode())
        if error != cuda.CUresult.CUDA_SUCCESS:
            raise UserError(f"the program's code has no entry {start.entry!r}; compile it again")
        attributes = cuda.CUfunction_attribute
        which = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        # Another start of the same entry may have asked for more.
        if start.shared_bytes > _call("cuFuncGetAttribute", which, function):
            _call("cuFuncSetAttribute", function, which, start.shared_bytes)
        if np.prod(start.cluster) > _PORTABLE_CLUSTER:
            which = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _call("cuFuncSetAttribute", function, which, 1)
        self._parameters[int(function)] = self._parameter_sizes(function)
        return int(function)

    def _parameter_sizes(self, function: Any) -> list[int] | None:
        """The bytes of each parameter of an entry; None where the driver does not tell (before CUDA
        12.4)."""
        cuda, sizes = self._cuda, []
        while True:
            try:
                error, *found = cuda.cuFuncGetParamInfo(function, len(sizes))
            except Exception:  # the binding's own types differ between its versions
                return None
            if error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE:  # there is no such parameter
                return sizes
            if error != cuda.CUresult.CUDA_SUCCESS:
                return None
            sizes.append(int(found[1]))

    def resident(self, entry: int, start: LaunchConfiguration) -> int:
        threads, name = int(np.prod(start.block)), "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return _call(name, entry, threads, start.shared_bytes) * self.limits.multiprocessors

    def tensor_map(self, box: TensorMapBox, address: int) -> bytes:
        cuda, rank = self._cuda, len(box.dims)
        swizzle = f"CU_TENSOR_MAP_SWIZZLE_{f'{box.swizzle}B' if box.swizzle else 'NONE'}"
        block = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        made = -(-ctypes.addressof(block) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        error = cuda.CUresult(
            _encode_map()(
                made,
                int(getattr(cuda.CUtensorMapDataType, f"{_TYPES}{_map_type(box.element)}")),
                rank,
                address,
                (ctypes.c_uint64 * rank)(*box.dims),
                (ctypes.c_uint64 * rank)(*box.strides),  # of one dim there is none
                (ctypes.c_uint32 * rank)(*box.box),
                (ctypes.c_uint32 * rank)(*(box.steps or (1,) * rank)),
                int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
                int(getattr(cuda.CUtensorMapSwizzle, swizzle)),
                int(cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
                int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            )
        )
        if error != cuda.CUresult.CUDA_SUCCESS:
            raise CompilerBug(
                f"cuTensorMapEncodeTiled failed: {_text(cuda, error)}, of {box} at {address:#x}"
            )
        return ctypes.string_at(made, _MAP_BYTES)

    def prepare(self, entry: int, start: LaunchConfiguration, arguments: Sequence[bytes]) -> Any:
        cuda, wanted, given = self._cuda, self._parameters.get(entry), [*map(len, arguments)]
        if wanted is not None and wanted != given:
            raise CompilerBug(
                f"kernel {start.entry} takes parameters of {wanted} bytes, its plan gives {given}"
            )
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = start.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = start.block
        config.sharedMemBytes = start.shared_bytes
        attributes = []
        if start.cluster != (1, 1, 1):
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = attribute.value
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = start.cluster
            attributes.append(attribute)
        if start.cooperative:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        offsets, end = [], 0
        for argument in arguments:
            offsets.append(end)
            end += -(-len(argument) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        block = ctypes.create_string_buffer(end + _MAP_ALIGNMENT)
        first = -(-ctypes.addressof(block) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        for offset, argument in zip(offsets, arguments, strict=True):
            ctypes.memmove(first + offset, argument, len(argument))
        pointers = (ctypes.c_void_p * (len(offsets) + 1))(*(first + at for at in offsets))
        return _Prepared(config, entry, ctypes.addressof(pointers), (block, pointers), [])

    def launch(self, prepared: _Prepared, stream: int) -> None:
        prepared.config.hStream = stream
        _call("cuLaunchKernelEx", prepared.config, prepared.entry, prepared.pointers, 0)

    def graph(self, launches: Sequence[Any], nodes: Sequence[GraphNode]) -> _CudaGraph:
        made = _CudaGraph(_call("cuGraphCreate", 0), {}, {})
        try:
            self._fill(made, made.graph, launches, nodes)
            return made._replace(executable=_call("cuGraphInstantiate", made.graph, 0))
        except BaseException:
            _call("cuGraphDestroy", made.graph)
            raise

    def _fill(
        self, made: _CudaGraph, graph: Any, launches: Sequence[Any], nodes: Sequence[GraphNode]
    ) -> None:
        """Adds nodes to a graph, which is the one that is made, or a body in it."""
        added: list[Any] = []
        for node in nodes:
            before = [added[other] for other in node.after]
            if node.handle < 0:
                prepared = self._settled(made, launches[node.launch])
                parameters = self._parameters_of(prepared)
                one = _call("cuGraphAddKernelNode", graph, before, len(before), parameters)
                if prepared.config.numAttrs:
                    self._set_cluster(one, prepared.config.attrs[0].value.clusterDim)
                made.nodes[node.launch] = one
            else:
                one, body = self._add_conditional(made, graph, before, node)
                self._fill(made, body, launches, node.body)
            added.append(one)

    def _add_conditional(
        self, made: _CudaGraph, graph: Any, before: list[Any], node: GraphNode
    ) -> tuple[Any, Any]:
        """A conditional node, and the graph that is its body."""
        cuda, given = self._cuda, self._cuda.CUgraphNodeParams()
        kinds = cuda.CUgraphConditionalNodeType
        given.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        given.conditional.handle = self._handle(made, node.handle)
        given.conditional.type = (
            kinds.CU_GRAPH_COND_TYPE_WHILE if node.loop else kinds.CU_GRAPH_COND_TYPE_IF
        )
        given.conditional.size, given.conditional.ctx = 1, self._context
        # cuda-python 12 has the form with data of edges as a second one, 13 that one alone.
        name = "cuGraphAddNode"
        newest = f"{name}_v2" if hasattr(cuda, f"{name}_v2") else name
        one = _call(newest, graph, before, None, len(before), given)
        return one, given.conditional.phGraph_out[0]

    def _handle(self, made: _CudaGraph, number: int) -> Any:
        """The handle of a conditional node; all are the whole graph's."""
        if number not in made.handles:
            name, default = "cuGraphConditionalHandleCreate", _ASSIGN_DEFAULT
            made.handles[number] = _call(name, made.graph, self._context, 0, default)
        return made.handles[number]

    def _settled(self, made: _CudaGraph, launch: Any) -> _Prepared:
        """A launch, where it sets a condition as one of the kernel that does it."""
        if not isinstance(launch, Condition):
            return launch
        if self._condition is None:
            code = Code(CONDITION_PTX, Architecture(8, 0), is_ptx=True)
            self._condition = self.entry(self.load(code), START)
        handle = int(self._handle(made, launch.handle))
        return self.prepare(self._condition, START, condition_arguments(launch, handle))

    def _set_cluster(self, node: Any, extent: Any) -> None:
        value = self._cuda.CUkernelNodeAttrValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = extent.x, extent.y, extent.z
        which = self._cuda.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        _call("cuGraphKernelNodeSetAttribute", node, which, value)

    def _parameters_of(self, prepared: _Prepared) -> Any:
        """A launch as a node of a graph takes it, made once."""
        if prepared.node:
            return prepared.node[0]
        config = prepared.config
        made = self._cuda.CUDA_KERNEL_NODE_PARAMS()
        made.func, made.kernelParams = prepared.entry, prepared.pointers
        made.sharedMemBytes = config.sharedMemBytes
        made.gridDimX, made.gridDimY, made.gridDimZ = (
            config.gridDimX, config.gridDimY, config.gridDimZ,
        )  # fmt: skip
        made.blockDimX, made.blockDimY, made.blockDimZ = (
            config.blockDimX, config.blockDimY, config.blockDimZ,
        )  # fmt: skip
        prepared.node.append(made)
        return made

    def rebind(self, graph: _CudaGraph, number: int, prepared: Any) -> None:
        node, parameters = graph.nodes[number], self._parameters_of(self._settled(graph, prepared))
        _call("cuGraphExecKernelNodeSetParams", graph.executable, node, parameters)

    def replay(self, graph: _CudaGraph, stream: int) -> None:
        _call("cuGraphLaunch", graph.executable, stream)

    def destroy_graph(self, graph: _CudaGraph) -> None:
        _call("cuGraphExecDestroy", graph.executable)
        _call("cuGraphDestroy", graph.graph)


class _Prepared(NamedTuple):
    """A launch: `pointers` is the address of those to its parameters, `kept` what they lie in,
    `node` holds its form for graphs once there is one."""

    config: Any
    entry: int
    pointers: int
    kept: Any
    node: list[Any]


class _CudaGraph(NamedTuple):
    """A graph that can be started, and what it was made of: its nodes name what is changed, handles
    conditions."""

    graph: Any
    nodes: dict[int, Any]  # by launch
    handles: dict[int, Any]
    executable: Any = None


def _map_type(element: str) -> str:
    """CUDA's name of an element type for tensor maps: floats by theirs, others by their size."""
    if element in _FLOATS:
        return _FLOATS[element]
    return _BY_SIZE[element_type(element).dtype.itemsize]
