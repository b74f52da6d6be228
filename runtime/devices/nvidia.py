"""Runs a plan on an NVIDIA GPU, or on a simulated one: whatever speaks `Driver`.

A `NvidiaVariant` is immutable and shared: module and weights are loaded once, at the first call. A
`NvidiaContext` (gpu_context.py) is for one call at a time; its workspace (workspace.py) is a
stream, the arena (behind it the scratch of kernels, where an old plan has none for them in it), and
memory for arguments that come from the host. Launches follow each other on the stream; a branch
waits for all of them, because the host reads its condition. Stretches without branches and
exchanges are graphs from the second call on: one each, which takes the addresses and the sizes of a
call. Copies from and to the host stand around them: few, and large ones hold up the host anyway.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...hlo.errors import UserError
from ...specs.generated import plan_pb2
from ..distributed.started import own_rank
from ..distributed.together import Together
from ..timeline import memory_need
from .architectures import architecture_of, name_of, target_for
from .arrays import DeviceArray, DeviceLog, DeviceView, borrow
from .driver import Code, Driver, OutOfMemory
from .events import EventLog
from .gpu_context import Argument, Array, GpuEvent, NvidiaContext
from .gpu_steps import Choose, Jump, KernelStep, Started
from .launches import LaunchProgram, Step, aligned, check_device, decode
from .regions import regions
from .resources import DeviceMemory, Stream, finally_do
from .workspace import Workspaces


class NvidiaVariant:
    """A plan with its code and weights for one device; shared by any number of contexts.

    image: PTX text. cubins: architecture -> machine code. find_driver: called once, at the first
    use; a UserError of it says why there is no device. shared: module and weights on the device,
    for all plans that run them. facts, comm_timeout: of several processes, as of `CpuVariant`.
    sizes: the values of the plan's formulas.
    """

    def __init__(
        self,
        plan: plan_pb2.Plan,
        image: bytes | memoryview,
        weights: Mapping[str, Array],
        cubins: Mapping[str, Any],
        find_driver: Callable[[], Driver],
        shared: dict[str, Any] | None = None,
        facts: Mapping[str, bytes] | None = None,
        comm_timeout: float | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        self.plan = plan
        self.spaces: Workspaces | None = None
        self.facts, self.comm_timeout = dict(facts or {}), comm_timeout
        self.context_bytes = aligned(plan.memory.arena_bytes)
        self.program = decode(plan, weights, own_rank() if plan.processes else 0, sizes)
        stored = sum(array.nbytes for array in weights.values())
        self.padding_bytes = self.program.weight_bytes - stored
        results = [where.base for where in self.program.results]
        self.used = frozenset([*results, *(b for step in self.program.steps for b in _bases(step))])
        self.ends = _stretches(self.program.steps)
        self.overwritten = frozenset(results)
        outputs = [plan.buffers[index] for index in plan.outputs]
        self.replaces = {
            number: buffer.replaces
            for number, buffer in enumerate(outputs)
            if buffer.HasField("replaces")
        }
        self._image, self._cubins, self._weights = image, cubins, weights
        self._find_driver = find_driver
        self._shared = {} if shared is None else shared
        if sizes:
            self.spaces = spaces = self._shared.setdefault("spaces", Workspaces())
            spaces.most = max(spaces.most, self.context_bytes)
        self._lock: threading.Lock = self._shared.setdefault("lock", threading.Lock())
        self._opened: Opened | None = None
        self.log = EventLog()

    def open(self) -> Opened:
        """The device with code and weights on it."""
        with self._lock:
            if self._opened is None:
                loaded: Loaded | None = self._shared.get("loaded")
                driver = self._find_driver() if loaded is None else loaded.driver
                check_device(self.program, driver.limits, driver.name)
                together = self._joined(driver)
                try:
                    with driver:
                        if loaded is None:
                            code = choose_code(self.plan.target, self._image, self._cubins, driver)
                            loaded = Loaded(driver, code, self.program, self._weights)
                            self._shared["loaded"] = loaded
                        self._opened = Opened(self, loaded, together)
                except OutOfMemory as error:
                    raise self.too_large(error) from None
            return self._opened

    def _joined(self, driver: Driver) -> Together | None:
        """The processes that run the plan; UserError where they are not those that it is for."""
        if not self.plan.processes:
            return None
        return Together(self.plan, self.program.steps, driver, self.facts, self.comm_timeout)

    def received(self) -> dict[str, int]:
        """Bytes that other processes have sent to this one so far, by operation."""
        together = None if self._opened is None else self._opened.together
        return {} if together is None else dict(together.received)

    def events(self) -> dict[str, int]:
        """What all calls so far have asked the device for, as of `EventLog`."""
        return self.log.read()

    def context(self) -> NvidiaContext:
        """A new context; contexts are independent, one call at a time each."""
        opened = self.open()
        try:
            with opened.driver:
                return NvidiaContext(self, opened)
        except OutOfMemory as error:
            raise self.too_large(error) from None

    def borrow(self, value: Any) -> DeviceView:
        """The memory of an array on the device; ValueError says why it cannot be taken."""
        opened = self.open()
        with opened.driver:
            return borrow(value, opened.driver, opened.arrivals.handle)

    def too_large(self, error: OutOfMemory) -> UserError:
        """The error for a device that is too small, with what the program needs."""
        program = self.program
        parts = {
            "weights": program.weight_bytes,
            "temporaries": self.plan.memory.arena_bytes,
            "scratch": program.scratch_bytes,
            "arguments": sum(program.inputs),
            "results": sum(program.outputs),
        }
        return UserError(
            f"the GPU has no {error.size / 1e6:.1f} MB left: {error.free / 1e6:.1f} MB of "
            f"{error.total / 1e6:.1f} MB are free. {memory_need(self.plan, parts)}"
        )


def choose_code(
    target: str, image: bytes | memoryview, cubins: Mapping[str, Any], driver: Driver
) -> Code:
    """The machine code that the device runs, else PTX that its driver compiles; UserError if
    neither is for it."""
    for name in () if driver.simulated else sorted(cubins, reverse=True):
        found = architecture_of(f"nvidia:{name}")
        if found is not None and found.runs_binary_on(driver.capability):
            return Code(cubins[name], found, is_ptx=False)
    architecture = architecture_of(target)
    if architecture is None:
        raise UserError(f"the plan is for {target!r}, which is no target of NVIDIA")
    if not architecture.compiles_for(driver.capability):
        raise UserError(
            f"the program is compiled for {architecture}, {driver.name} is "
            f"{name_of(driver.capability)}; add code for it: girih retarget FILE --add "
            f"{target_for(driver.capability)}"
        )
    return Code(image, architecture, is_ptx=True)


class Loaded:
    """Code and weights on a device, for all plans of one image and of the same weights."""

    def __init__(
        self, driver: Driver, code: Code, program: LaunchProgram, weights: Mapping[str, Array]
    ) -> None:
        self.driver, self.code = driver, code
        self.arrivals = Stream(driver)  # what other libraries' arrays are waited for on
        self.users: list[Stream] = []  # of contexts: what may still run its kernels
        self.weights: DeviceMemory | None = None
        if program.weight_bytes:
            self.weights = DeviceMemory(self.arrivals, program.weight_bytes)
            for name, offset in program.weights.items():
                if weights[name].nbytes:
                    address = self.weights.address + offset
                    driver.upload(address, weights[name], self.arrivals.handle)
            driver.synchronize(self.arrivals.handle)

    @functools.cached_property
    def module(self) -> Any:
        """The code, loaded when a plan first starts some of it."""
        made = self.driver.load(self.code)
        finally_do(self, self.driver, _unload, self.driver, made, self.users)
        return made


class Opened:
    """A variant's entries in the code on a device, and what it shares with others there; together:
    the processes that run it, None for one."""

    def __init__(self, variant: NvidiaVariant, loaded: Loaded, together: Together | None) -> None:
        self.loaded, self.driver, self.together = loaded, loaded.driver, together
        self.arrivals, self.weights = loaded.arrivals, loaded.weights
        self.events = variant.log
        self.schedule = _schedule(variant.plan, variant.program.steps, loaded.driver)
        self.region = regions(variant.program.steps) if self.schedule == "graph" else None
        self.persistent: Started | None = None
        starts = [start for step in variant.program.steps for start in _starts(step)]
        if self.schedule == "persistent" and variant.program.persistent is not None:
            self.persistent = variant.program.persistent
            starts.append(self.persistent.start)
        self.entries: dict[Any, Any] = {}
        for start in starts:
            if start not in self.entries:
                self.entries[start] = self.driver.entry(loaded.module, start)
        if self.persistent is not None:
            self.persistent = self._fitted(self.persistent)

    def _fitted(self, launch: Started) -> Started:
        """A persistent launch with as many blocks as the device holds at most; UserError where it
        holds none."""
        start = launch.start
        entry = self.entries[start]
        most = self.driver.resident(entry, start)
        if most < 1:
            raise UserError(
                f"schedule='persistent': {self.driver.name} holds no block of {start.block[0]} "
                f"threads with {start.shared_bytes} bytes of shared memory; compile it for this "
                "device, or with schedule='host'"
            )
        fitted = start._replace(grid=(min(start.grid[0], most), 1, 1))
        self.entries[fitted] = entry
        return launch._replace(start=fitted)

    def add_user(self, stream: Stream) -> None:
        """Code and weights stay until the work is done that the stream has then."""
        self.loaded.users.append(stream)
        if self.weights is not None:
            self.weights.read_by(stream)


def _schedule(plan: plan_pb2.Plan, steps: Sequence[Step], driver: Driver) -> str:
    """How the device runs a plan; a warning, or UserError, where it lacks what that asks for."""
    wanted = plan.schedule
    if wanted not in ("", "launches", "host", "graph", "persistent"):
        raise UserError(f"the plan asks for the schedule {wanted[:40]!r}; compile it again")
    decides = any(isinstance(step, Choose) for step in steps)
    able = driver.simulated or (driver.graphs and (driver.conditional or not decides))
    lacks = ""
    if wanted == "persistent" and not (driver.cooperative and plan.HasField("persistent")):
        lacks = f"{driver.name}: it has no cooperative launches"
    elif wanted == "graph" and not able:
        lacks = (
            f"{driver.name}: its driver has no graphs that decide in loops and branches (CUDA 12.3 "
            "has)"
        )
    if not lacks:
        return wanted or "host"
    if plan.schedule_required:
        raise UserError(f"strict: {lacks}; install a newer one, or compile with schedule='host'")
    warnings.warn(f"{lacks}: the host decides, schedule 'host'", stacklevel=2)
    return "host"


def _unload(driver: Driver, module: Any, users: Sequence[Stream]) -> None:
    for stream in users:
        driver.synchronize(stream.handle)
    driver.unload(module)


def run(
    context: NvidiaContext, inputs: Sequence[Argument], outputs: Sequence[Array], profile: bool
) -> list[GpuEvent]:
    """`NvidiaContext.run`, where memory that is lacking is the user's to know."""
    try:
        with context.driver:
            context.enter()
            events = context.run(inputs, outputs, profile)
            context.leave()
            return events
    except OutOfMemory as error:
        raise context.variant.too_large(error) from None


def run_on_device(
    context: NvidiaContext,
    inputs: Sequence[Argument],
    gives: Sequence[tuple[tuple[int, ...], Any]],
    begin: Callable[[], None] = lambda: None,
    log: DeviceLog | None = None,
    saved: Sequence[int] = (),
) -> list[DeviceArray]:
    """`NvidiaContext.run_on_device`, likewise."""
    try:
        with context.driver:
            context.enter()
            results = context.run_on_device(inputs, gives, begin, log, saved)
            context.leave()
            return results
    except OutOfMemory as error:
        raise context.variant.too_large(error) from None


def _starts(step: Any) -> list[Any]:
    return [launch.start for launch in step.launches] if isinstance(step, KernelStep) else []


def _bases(step: Step) -> Iterator[int]:
    """Every base that a step's memory lies behind."""
    if isinstance(step, Choose):
        yield step.where.base
    elif not isinstance(step, Jump | KernelStep):
        yield from step.bases
    for launch in step.launches if isinstance(step, KernelStep) else ():
        yield from launch.bases


def _stretches(steps: Sequence[Step]) -> list[int]:
    """For each step, where the steps end that run kernels from it on without a branch."""
    ends = [len(steps)] * len(steps)
    for at in reversed(range(len(steps))):
        if not isinstance(steps[at], KernelStep):
            ends[at] = at
        elif at + 1 < len(steps):
            ends[at] = ends[at + 1]
    return ends
