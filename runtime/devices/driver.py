"""What a GPU's device asks of its driver: CUDA's (cuda.py), or a simulator's.

Streams, events, modules and graphs are the driver's own objects. A stream works in order; calls
that name one return at once where the driver can. Sizes are bytes, addresses are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from .architectures import Architecture

Bytes = np.ndarray[Any, Any]
Counters = Mapping[str, int]


class OutOfMemory(Exception):  # noqa: N818  # a signal to the device, which knows what needs it
    """The driver has no such memory; `free` and `total` are bytes of the device."""

    def __init__(self, size: int, free: int, total: int) -> None:
        super().__init__(f"no {size} bytes")
        self.size, self.free, self.total = size, free, total


class Limits(NamedTuple):
    """What one launch may ask of a device."""

    shared_bytes: int  # dynamic shared memory of a block
    cluster: int  # blocks
    threads: int = 1024  # of a block
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    multiprocessors: int = 0  # of the device; 0: unknown


class Code(NamedTuple):
    """A module: PTX text, or a cubin of one architecture."""

    data: bytes | memoryview
    architecture: Architecture
    is_ptx: bool

    def __str__(self) -> str:
        return f"{'PTX' if self.is_ptx else 'the cubin'} for {self.architecture}"


class LaunchConfiguration(NamedTuple):
    """How an entry is started: extents x, y, z of blocks, threads and a cluster's blocks."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    cooperative: bool = False  # all blocks are resident together, or it is not started


class TensorMapBox(NamedTuple):
    """A tensor map but for its address; see specs/plan.proto, `LaunchTensorMap`."""

    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...] = ()


class Condition(NamedTuple):
    """A launch that sets the condition of conditional nodes with number `handle`: whether what
    `size` bytes at `address` say is `arm` of so many `arms`; never, where `address` is 0. A byte
    says 0 or 1, four bytes are an i32, which means the last arm where it is out of range."""

    handle: int
    address: int
    size: int
    arm: int
    arms: int


class GraphNode(NamedTuple):
    """A node of a graph, which begins when the nodes `after` are done, which stand before it. It
    starts launch number `launch`; or, if it has a `handle`, its body if that one's condition holds,
    and, of a `loop`, again as long as it does."""

    after: tuple[int, ...]
    launch: int = -1
    handle: int = -1
    loop: bool = False
    body: tuple[GraphNode, ...] = ()


def chain(count: int) -> list[GraphNode]:
    """So many launches, one after the other."""
    return [GraphNode(tuple(range(n - 1, n)) if n else (), n) for n in range(count)]


class LaunchArray(NamedTuple):
    """An array that a launch may touch: `name` says whose it is; `itemsize` in bytes."""

    address: int
    nbytes: int
    name: str
    type: str  # "f32[4,8]"
    dims: tuple[int, ...]
    itemsize: int


class Counted(NamedTuple):
    """What a simulator counted in one launch, in all and by line of source ("model.py:9")."""

    total: Counters
    lines: Mapping[str, Counters]


class Driver(Protocol):
    """One device. Its methods may be called from any thread, inside `with driver:`, which makes the
    device the thread's current one and gives the thread back as it was."""

    name: str  # "NVIDIA H100 80GB HBM3"
    ordinal: int
    capability: tuple[int, int]
    limits: Limits
    graphs: bool  # launches can be started several at once
    conditional: bool  # graphs may have conditional nodes
    cooperative: bool  # launches may be cooperative
    simulated: bool  # takes PTX only; memory without defined contents shall be overwritten: `fill`

    @property
    def identity(self) -> bytes:
        """16 bytes that no other device has."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...

    # Memory.

    def allocate(self, size: int, stream: Any) -> int:
        """The address of memory that the stream's later work may use; OutOfMemory."""
        ...

    def free(self, address: int, stream: Any) -> None:
        """Give memory back once the stream's earlier work is done."""
        ...

    def host_memory(self, size: int) -> Bytes:
        """Memory of the host, uint8, that copies need not stage."""
        ...

    def free_host_memory(self, memory: Bytes) -> None: ...

    def mapped_memory(self, size: int) -> tuple[Bytes, int]:
        """Memory of the host, uint8, that kernels see while they run, and its address there; given
        back as `host_memory` is."""
        ...

    def upload(self, address: int, source: Bytes, stream: Any) -> None:
        """From a C-contiguous array of the host, which may be changed once the stream is done; at
        once where it is no `host_memory`."""
        ...

    def download(self, target: Bytes, address: int, stream: Any) -> None: ...

    def copy(self, target: int, source: int, size: int, stream: Any) -> None: ...

    def fill(self, address: int, size: int, stream: Any) -> None:
        """Overwrite with the byte 0xFF, which makes every float NaN."""
        ...

    # Order.

    def create_stream(self) -> Any: ...

    def destroy_stream(self, stream: Any) -> None: ...

    def synchronize(self, stream: Any) -> None:
        """Return when the stream's work is done; an error of any of it is raised here at last."""
        ...

    def drain(self) -> None:
        """Return when all work of all streams is done, other libraries' too."""
        ...

    def record(self, stream: Any, timed: bool = False) -> Any:
        """A new event: all of the stream's work until now."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """The stream's later work waits for the event. `stream` may be another library's."""
        ...

    def settle(self, event: Any) -> None:
        """Return when the event has come."""
        ...

    def has_come(self, event: Any) -> bool: ...

    def elapsed(self, begin: Any, end: Any) -> float:
        """Microseconds between two timed events that have come."""
        ...

    def destroy_event(self, event: Any) -> None: ...

    # Work.

    def load(self, code: Code) -> Any:
        """A module; UserError with the log where the driver's compiler refuses PTX."""
        ...

    def unload(self, module: Any) -> None: ...

    def entry(self, module: Any, start: LaunchConfiguration) -> Any:
        """An entry of a module that can be started so; UserError where there is none."""
        ...

    def resident(self, entry: Any, start: LaunchConfiguration) -> int:
        """How many blocks of an entry, started so, the device holds at a time."""
        ...

    def tensor_map(self, box: TensorMapBox, address: int) -> bytes:
        """The 128 bytes of a tensor map over memory at this address."""
        ...

    def prepare(self, entry: Any, start: LaunchConfiguration, arguments: Sequence[bytes]) -> Any:
        """A start of an entry with the bytes of each of its parameters."""
        ...

    def launch(self, prepared: Any, stream: Any) -> None:
        """Start it."""
        ...

    def graph(self, launches: Sequence[Any], nodes: Sequence[GraphNode]) -> Any:
        """Nodes as a graph that is started at once; `launches`: what they start, prepared, or a
        `Condition` of one of its conditional nodes. Nodes that nothing orders may run together."""
        ...

    def rebind(self, graph: Any, number: int, prepared: Any) -> None:
        """Launch `number` of the graph takes these parameters in later replays, and starts so many
        blocks of the same entry."""
        ...

    def replay(self, graph: Any, stream: Any) -> None: ...

    def destroy_graph(self, graph: Any) -> None: ...


class Simulator(Driver, Protocol):
    """A driver that simulates its device."""

    def span(self, address: int, size: int) -> Bytes:
        """Memory of the device as the host sees it."""
        ...

    def choose(self, ready: Sequence[int]) -> int:
        """Which of the steps that may run next does."""
        ...

    def simulate(self, prepared: Any, windows: Sequence[LaunchArray], count: bool) -> Counted:
        """Run it, which may touch the `windows` alone; UserError for a fault, whose `source` is the
        line of source that it is in, or ""."""
        ...


def is_simulator(driver: Driver) -> TypeGuard[Simulator]:
    """Whether the device is simulated."""
    return driver.simulated
