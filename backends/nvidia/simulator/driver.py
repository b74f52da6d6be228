"""A GPU that is simulated: the `Driver` of runtime/devices/driver.py on `launch`.

Streams are in order because everything is done at once. Memory that has no defined contents holds
0xFF bytes: the runtime fills the arena, results and scratch so before they are used, and buffers
when they die. Memory that was given back is never handed out again, so its use is a fault.
"""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ....hlo.errors import CompilerBug, UserError
from ..target import Architecture
from .launch import launch, parse, resident_blocks
from .memory import GlobalMemory
from .report import Report
from .syntax import Module
from .tensor_maps import encode_tensor_map
from .windows import Window

MEMORY_BYTES = 8 << 30  # of a simulated device: a mistake shall not take all of the host's
_CLUSTER = 16
_POISON = 0xFF


class Limits(NamedTuple):
    """What one launch may ask of the device."""

    shared_bytes: int
    cluster: int
    threads: int = 1024
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    multiprocessors: int = 0


class Counted(NamedTuple):
    """What was counted in a launch, in all and by line of source."""

    total: dict[str, int]
    lines: dict[str, dict[str, int]]


class SimulatedGpu:
    """One simulated device. `mode` and `seed`: see `launch`; `out_of_memory`: the runtime's error
    class for memory that is lacking (size, free, total)."""

    graphs = False
    conditional = True
    cooperative = True
    simulated = True
    ordinal = 0

    def __init__(
        self,
        architecture: Architecture,
        out_of_memory: type[Exception],
        mode: str = "lazy",
        seed: int = 0,
    ) -> None:
        self.identity = os.urandom(16)
        self.name = f"a simulated {architecture.name}"
        self.capability = divmod(architecture.version, 10)
        self.limits = Limits(
            architecture.shared_bytes,
            _CLUSTER if architecture.clusters else 1,
            multiprocessors=architecture.multiprocessors,
        )
        self.mode, self.seed = mode, seed
        self._drawn = random.Random(seed)
        self.memory = GlobalMemory()
        self._out_of_memory = out_of_memory
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> SimulatedGpu:
        return self

    def __exit__(self, *_: object) -> None:
        """Every thread may use it."""

    # Memory.

    def allocate(self, size: int, stream: Any) -> int:
        with self._lock:
            free = MEMORY_BYTES - sum(self._sizes.values())
            if size > free:
                raise self._out_of_memory(size, free, MEMORY_BYTES)
            try:
                address = self.memory.allocate(size)
            except MemoryError:
                raise self._out_of_memory(size, free, MEMORY_BYTES) from None
            self._sizes[address] = size
        return address

    def free(self, address: int, stream: Any) -> None:
        with self._lock:
            self.memory.free(address)
            del self._sizes[address]

    def host_memory(self, size: int) -> np.ndarray[Any, Any]:
        return np.empty(size, np.uint8)

    def free_host_memory(self, memory: np.ndarray[Any, Any]) -> None:
        """The host's own collection does it."""

    def mapped_memory(self, size: int) -> tuple[np.ndarray[Any, Any], int]:
        with self._lock:
            address = self.memory.allocate(size)
        return self.span(address, size), address

    def upload(self, address: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        self.span(address, source.nbytes)[...] = source.reshape(-1).view(np.uint8)

    def download(self, target: np.ndarray[Any, Any], address: int, stream: Any) -> None:
        target.reshape(-1).view(np.uint8)[...] = self.span(address, target.nbytes)

    def copy(self, target: int, source: int, size: int, stream: Any) -> None:
        self.span(target, size)[...] = self.span(source, size)

    def fill(self, address: int, size: int, stream: Any) -> None:
        self.span(address, size)[...] = _POISON

    def span(self, address: int, size: int) -> np.ndarray[Any, Any]:
        """Memory of the device, uint8, which it shares."""
        with self._lock:
            found = self.memory.span(address, size) if size else np.empty(0, np.uint8)
        if found is None:
            raise CompilerBug(f"{size} bytes at {address:#x} are outside the simulated memory")
        return found

    # Order: all is done when a call returns.

    def create_stream(self) -> int:
        return 0

    def destroy_stream(self, stream: Any) -> None:
        """Nothing was made."""

    def synchronize(self, stream: Any) -> None:
        """Nothing is under way."""

    def drain(self) -> None:
        """Nothing is under way."""

    def record(self, stream: Any, timed: bool = False) -> float:
        return perf_counter()

    def wait(self, stream: Any, event: Any) -> None:
        """It has come."""

    def settle(self, event: Any) -> None:
        """It has come."""

    def has_come(self, event: Any) -> bool:
        return True

    def elapsed(self, begin: float, end: float) -> float:
        return 1e6 * (end - begin)

    def destroy_event(self, event: Any) -> None:
        """It is a number."""

    # Work.

    def load(self, code: Any) -> Module:
        if not code.is_ptx:
            raise CompilerBug("machine code cannot be simulated")
        try:
            return parse(bytes(code.data).decode())
        except UnicodeDecodeError as error:
            raise UserError(f"the program's PTX is no text ({error})") from error

    def unload(self, module: Module) -> None:
        """Modules are shared."""

    def entry(self, module: Module, start: Any) -> tuple[Module, str]:
        if start.entry not in module.entries:
            raise UserError(f"the program's code has no entry {start.entry!r}; compile it again")
        return module, start.entry

    def resident(self, entry: tuple[Module, str], start: Any) -> int:
        threads = start.block[0] * start.block[1] * start.block[2]
        return resident_blocks(entry[0].target, threads, start.shared_bytes)

    def tensor_map(self, box: Any, address: int) -> bytes:
        return encode_tensor_map(
            box.element, address, box.dims, box.strides, box.box, box.steps or None,
            swizzle=box.swizzle,
        )  # fmt: skip

    def prepare(self, entry: tuple[Module, str], start: Any, arguments: Sequence[bytes]) -> Any:
        return entry, start, tuple(arguments)

    def launch(self, prepared: Any, stream: Any) -> None:
        """Starts it on all memory that there is."""
        self._run(prepared, None, False)

    def simulate(self, prepared: Any, windows: Sequence[Any], count: bool) -> Any:
        """Runs it; see runtime/devices/driver.py. Gives totals, and counts by line."""
        report = self._run(prepared, [Window(*window) for window in windows], count)
        return Counted({"instructions": report.instructions, **report.counters}, report.lines)

    def _run(self, prepared: Any, windows: Sequence[Window] | None, count: bool) -> Report:
        (module, entry), start, arguments = prepared
        with self._lock:
            report = launch(
                module,
                entry,
                start.grid,
                start.block,
                arguments,
                self.memory,
                cluster=start.cluster,
                shared_bytes=start.shared_bytes,
                mode=self.mode,
                seed=self.seed,
                counters=count,
                windows=windows,
                cooperative=start.cooperative,
            )
        for fault in report.faults:
            warnings.warn(str(fault), stacklevel=2)
        return report

    def choose(self, ready: Sequence[int]) -> int:
        """The last one, or, with a seed, any."""
        return self._drawn.choice(ready) if self.seed else max(ready)

    def graph(self, launches: Sequence[Any], nodes: Sequence[Any]) -> Any:
        raise CompilerBug("a simulated GPU has no graphs")

    def rebind(self, graph: Any, number: int, prepared: Any) -> None:
        raise CompilerBug("a simulated GPU has no graphs")

    def replay(self, graph: Any, stream: Any) -> None:
        raise CompilerBug("a simulated GPU has no graphs")

    def destroy_graph(self, graph: Any) -> None:
        raise CompilerBug("a simulated GPU has no graphs")
