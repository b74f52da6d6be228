"""A GPU whose kernels are Python functions, and whose work is done as late as its order allows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from girih.hlo.errors import UserError
from girih.hlo.signature import Signature
from girih.runtime.devices.driver import Condition, GraphNode, Limits, OutOfMemory
from girih.runtime.devices.edges import latest_first
from girih.runtime.devices.gpu_steps import chosen
from girih.runtime.program import Program
from girih.specs.generated import plan_pb2

BASE = 1 << 32
Kernel = Callable[..., None]


class Stream:
    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.queue[self.done - 1]()


class FakeGpu:
    """Work is queued and done when somebody waits for it; memory of the host that is pinned is
    read then, other memory at once. `log` names what was done, `kernels` what entries do: they get
    the driver and their parameters, addresses as numbers."""

    simulated = False
    conditional = True
    cooperative = False
    holds = 132  # blocks at a time
    ordinal = 0
    identity = bytes(16)
    name = "Fake"
    capability: tuple[int, int] = (9, 0)
    limits = Limits(227 << 10, 8)

    def __init__(self, graphs: bool = True, memory: int = 1 << 30, **kernels: Kernel) -> None:
        self.graphs, self.total, self.kernels = graphs, memory, kernels
        self.memory: dict[int, np.ndarray] = {}
        self.next = BASE
        self.streams: dict[int, Stream] = {1: Stream()}
        self.pinned: list[np.ndarray] = []
        self.log: list[str] = []
        self.recording: list[Callable[[], None]] | None = None
        self.entered = 0
        self.events, self.made = 0, 16

    def __enter__(self) -> FakeGpu:
        self.entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.entered -= 1

    # Memory.

    def allocate(self, size: int, stream: int) -> int:
        assert self.entered
        used = sum(len(block) for block in self.memory.values())
        if used + size > self.total:
            raise OutOfMemory(size, self.total - used, self.total)
        address, self.next = self.next, self.next + size + 4096 & -256
        self.memory[address] = np.full(size, 0xFF, np.uint8)
        return address

    def free(self, address: int, stream: int) -> None:
        self._later(stream, lambda: self.memory.pop(address))

    def at(self, address: int, size: int) -> np.ndarray:
        for base, block in self.memory.items():
            if base <= address and address + size <= base + len(block):
                return block[address - base : address - base + size]
        raise AssertionError(f"{size} bytes at {address:#x} are no memory of the device")

    def resident(self, entry: Any, start: Any) -> int:
        return self.holds

    def mapped_memory(self, size: int) -> tuple[np.ndarray, int]:
        address = self.allocate(size, 1)
        return self.at(address, size), address

    def host_memory(self, size: int) -> np.ndarray:
        self.pinned.append(np.zeros(size, np.uint8))
        return self.pinned[-1]

    def free_host_memory(self, memory: np.ndarray) -> None:
        self.log.append("free_host_memory")

    def _is_pinned(self, array: np.ndarray) -> bool:
        return any(np.may_share_memory(array, block) for block in self.pinned)

    def upload(self, address: int, source: np.ndarray, stream: int) -> None:
        assert source.flags.c_contiguous
        self.log.append("upload")
        data = source.reshape(-1).view(np.uint8)
        data = data if self._is_pinned(source) else data.copy()
        self._later(stream, lambda: self._write(address, data))

    def _write(self, address: int, data: np.ndarray) -> None:
        self.at(address, len(data))[...] = data

    def download(self, target: np.ndarray, address: int, stream: int) -> None:
        self.log.append("download")
        flat = target.reshape(-1).view(np.uint8)
        assert np.may_share_memory(flat, target)

        def copy() -> None:
            flat[...] = self.at(address, len(flat))

        self._later(stream, copy)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self.log.append("copy")
        self._later(stream, lambda: self._write(target, self.at(source, size).copy()))

    def fill(self, address: int, size: int, stream: int) -> None:
        raise AssertionError("only a simulator poisons")

    # Order.

    def create_stream(self) -> int:
        self.made += 1
        self.streams[self.made] = Stream()
        return self.made

    def destroy_stream(self, stream: int) -> None:
        self.synchronize(stream)
        del self.streams[stream]

    def _later(self, stream: int, work: Callable[[], Any]) -> None:
        assert self.entered
        self.streams[stream].queue.append(work)

    def drain(self) -> None:
        for stream in self.streams.values():
            stream.run(len(stream.queue))

    def synchronize(self, stream: int) -> None:
        self.streams[stream].run(len(self.streams[stream].queue))

    def record(self, stream: int, timed: bool = False) -> Any:
        assert self.entered
        self.events += 1
        return self.streams[stream], len(self.streams[stream].queue), timed

    def wait(self, stream: int, event: Any) -> None:
        self.log.append("wait")
        self._later(stream, lambda: self.settle(event))

    def settle(self, event: Any) -> None:
        event[0].run(event[1])

    def has_come(self, event: Any) -> bool:
        return event[0].done >= event[1]

    def elapsed(self, begin: Any, end: Any) -> float:
        assert begin[2] and end[2]
        return float(end[1] - begin[1])

    def destroy_event(self, event: Any) -> None:
        self.events -= 1

    # Work.

    def load(self, code: Any) -> str:
        assert self.entered
        self.log.append(f"load {code}")
        return "module"

    def unload(self, module: str) -> None:
        self.log.append("unload")

    def entry(self, module: str, start: Any) -> Kernel:
        if start.entry not in self.kernels:
            raise UserError(f"the program's code has no entry {start.entry!r}")
        return self.kernels[start.entry]

    def tensor_map(self, box: Any, address: int) -> bytes:
        return struct.pack("<Q", address).ljust(128, b"\0")

    def prepare(self, entry: Kernel, start: Any, arguments: Sequence[bytes]) -> Any:
        sizes = {4: "<i", 8: "<Q", 128: "<Q120x"}  # others are tables, of several launches
        values = [
            struct.unpack(sizes[len(data)], data)[0] if len(data) in sizes else data
            for data in arguments
        ]
        return lambda: entry(self, *values)

    def launch(self, prepared: Any, stream: int) -> None:
        self.log.append("launch")
        self._later(stream, prepared)

    def graph(self, launches: Sequence[Any], nodes: Sequence[GraphNode]) -> Any:
        self.log.append(f"graph of {len(launches)}")
        return list(launches), nodes

    def rebind(self, graph: Any, number: int, prepared: Any) -> None:
        self.log.append(f"rebind {number}")
        graph[0][number] = prepared

    def replay(self, graph: Any, stream: int) -> None:
        """The last launches first, as far as they need not follow others."""
        launches, nodes = graph
        self.log.append(f"replay {len(launches)}")
        started, holds = list(launches), {}
        self._later(stream, lambda: self._run_nodes(nodes, started, holds))

    def _run_nodes(
        self, nodes: Sequence[GraphNode], launches: Sequence[Any], holds: dict[int, bool]
    ) -> None:
        for number in latest_first([node.after for node in nodes]):
            node = nodes[number]
            if node.handle >= 0:
                again = holds[node.handle]  # of a loop, asked before each turn
                while again:
                    self._run_nodes(node.body, launches, holds)
                    again = node.loop and holds[node.handle]
            elif isinstance(one := launches[node.launch], Condition):
                value = chosen(self.at(one.address, one.size), one.arms) if one.address else -1
                holds[one.handle] = value == one.arm
            else:
                one()

    def destroy_graph(self, graph: Any) -> None:
        self.log.append("destroy_graph")

    # What kernels use.

    def floats(self, address: int, count: int) -> np.ndarray:
        return self.at(address, 4 * count).view(np.float32)

    def words(self, address: int, count: int = 1) -> np.ndarray:
        return self.at(address, 4 * count).view(np.int32)


class PlanOf:
    """Builds a plan: buffers by name, kernels of one launch each."""

    def __init__(self, target: str = "nvidia:sm_90a") -> None:
        self.plan = plan_pb2.Plan(format_version="1.2", target=target)
        self.numbers: dict[str, int] = {}

    def buffer(self, name: str, place: int, size: int, **fields: Any) -> PlanOf:
        self.numbers[name] = len(self.plan.buffers)
        self.plan.buffers.add(place=place, bytes=size, **fields)
        if place == plan_pb2.INPUT:
            self.plan.inputs.append(self.numbers[name])
        if place == plan_pb2.ARENA:
            end = fields.get("offset", 0) + size
            self.plan.memory.arena_bytes = max(self.plan.memory.arena_bytes, end)
        return self

    def inputs(self, **sizes: int) -> PlanOf:
        for index, (name, size) in enumerate(sizes.items()):
            self.buffer(name, plan_pb2.INPUT, size, index=index)
        return self

    def outputs(self, **sizes: int) -> PlanOf:
        for index, (name, size) in enumerate(sizes.items()):
            self.buffer(name, plan_pb2.OUTPUT, size, index=index)
        return self

    def results(self, *names: str) -> PlanOf:
        self.plan.outputs.extend(self.numbers[name] for name in names)
        return self

    def run(
        self,
        entry: str,
        *names: str,
        scratch: int = 0,
        numbers: Sequence[int] = (),
        wait: bool = True,
        after: Sequence[int] = (),
    ) -> PlanOf:
        """A step whose kernel gets the buffers, its scratch if there is any, and numbers; it waits
        for all steps before it, or for those of these numbers."""
        kernel = self.plan.kernels.add(name=f"{entry}_{len(self.plan.kernels)}", kind="loop")
        kernel.scratch_bytes = scratch
        launch = kernel.launches.add(entry=entry, grid=(1, 1, 1), block=(32, 1, 1))
        for slot in range(len(names)):
            launch.arguments.add().memory.slot = slot
        if scratch:
            launch.arguments.add().memory.scratch = True
        for number in numbers:
            launch.arguments.add().immediate = struct.pack("<i", number)
        run = self.plan.steps.add().run
        run.kernel, run.tiles, run.wait = len(self.plan.kernels) - 1, 1, wait
        run.signal = len(self.plan.steps)
        for step in after:
            run.waits.add(counter=step, threshold=1)
        for name in names:
            run.arguments.add(buffer=self.numbers[name])
        return self

    def branch(self, name: str, target: int) -> PlanOf:
        step = self.plan.steps.add().branch_if_false
        step.condition.buffer, step.target = self.numbers[name], target
        return self

    def switch(self, name: str, *targets: int) -> PlanOf:
        step = self.plan.steps.add().switch
        step.index.buffer = self.numbers[name]
        step.targets.extend(targets)
        return self

    def jump(self, target: int) -> PlanOf:
        self.plan.steps.add().jump.target = target
        return self

    def program(
        self,
        signature: Signature,
        driver: Any,
        weights: dict[str, np.ndarray] | None = None,
        image: bytes = b".version 8.3",
    ) -> Program:
        made = (self.plan, image, weights or {})
        target = self.plan.target
        return Program.from_parts(b"", signature, {target: made}, driver=driver)


def add_one(gpu: FakeGpu, x: int, y: int) -> None:
    gpu.floats(y, 4)[...] = gpu.floats(x, 4) + 1


def add(gpu: FakeGpu, x: int, y: int, z: int) -> None:
    gpu.floats(z, 4)[...] = gpu.floats(x, 4) + gpu.floats(y, 4)


def flat(inputs: int, outputs: int, shape: tuple[int, ...] = (4,)) -> Signature:
    """Arguments and results of f32[4]."""
    return Signature.plain([(shape, "f32")] * inputs, [(shape, "f32")] * outputs)
