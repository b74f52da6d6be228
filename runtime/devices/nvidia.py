"""Runs a plan on an NVIDIA GPU, or on a simulated one: whatever speaks `Driver`.

A `NvidiaVariant` is immutable and shared: module and weights are loaded once, at the first call. A
`NvidiaContext` holds what one call at a time needs: a stream, the arena with the scratch of kernels
behind it, and memory for arguments that come from the host. Launches follow each other on the
stream; a branch waits for all of them, because the host reads its condition. Stretches without
branches are recorded as graphs at the second call with the same addresses.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...hlo.errors import UserError
from ...specs.generated import plan_pb2
from .architectures import architecture_of, name_of, target_for
from .arrays import DeviceArray, View, borrow
from .driver import Code, Counters, Driver, OutOfMemory
from .launches import (
    ARENA,
    CALL,
    SCRATCH,
    WEIGHTS,
    Choose,
    Jump,
    Mapped,
    Parameter,
    Program,
    Where,
    Work,
    aligned,
    check_device,
    decode,
)
from .resources import Memory, Moment, Stream, finally_do, order
from .timeline import memory_need

_DIRECT = 16  # alignment of memory that kernels read as it is
_PINNED = 32 << 20  # bytes of a context's staging memory; larger arrays are copied without it
_BINDINGS = 4  # sets of addresses that a context keeps launches and graphs for
_PENDING = 8  # calls that a context has under way before it waits for the first of them

Array = np.ndarray[Any, Any]
Argument = Array | View


class Event(NamedTuple):
    """One executed step: when it began, in microseconds from the first, for how long it ran, and
    what the driver counted."""

    step: int
    kernel: str
    worker: int
    begin: float
    duration: float
    counters: Counters = {}


class NvidiaVariant:
    """A plan with its code and weights for one device; shared by any number of contexts.

    image: PTX text. cubins: architecture -> machine code. find_driver: called once, at the first
    use; a UserError of it says why there is no device.
    """

    def __init__(
        self,
        plan: plan_pb2.Plan,
        image: bytes | memoryview,
        weights: Mapping[str, Array],
        cubins: Mapping[str, Any],
        find_driver: Callable[[], Driver],
    ) -> None:
        self.plan = plan
        self.program = decode(plan, weights)
        self.used = frozenset(_bases(self.program))
        self.overwritten = frozenset(where.base for where in self.program.results)
        self._image, self._cubins, self._weights = image, cubins, weights
        self._find_driver = find_driver
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    def open(self) -> _Opened:
        """The device with code and weights on it."""
        with self._lock:
            if self._opened is None:
                driver = self._find_driver()
                code = choose_code(self.plan.target, self._image, self._cubins, driver)
                try:
                    with driver:
                        self._opened = _Opened(self, driver, code, self._weights)
                except OutOfMemory as error:
                    raise self.too_large(error) from None
            return self._opened

    def context(self) -> NvidiaContext:
        """A new context; contexts are independent, one call at a time each."""
        opened = self.open()
        try:
            with opened.driver:
                return NvidiaContext(self, opened)
        except OutOfMemory as error:
            raise self.too_large(error) from None

    def borrow(self, value: Any) -> View:
        """The memory of an array on the device; ValueError says why it cannot be taken."""
        opened = self.open()
        with opened.driver:
            return borrow(value, opened.driver, opened.arrivals.handle)

    def too_large(self, error: OutOfMemory) -> UserError:
        """The error for a device that is too small, with what the program needs."""
        return UserError(
            f"the GPU has no {error.size / 1e6:.1f} MB left: {error.free / 1e6:.1f} MB of "
            f"{error.total / 1e6:.1f} MB are free. {memory_need(self.plan, self.program)}"
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


class _Opened:
    """A variant's code and weights on a device."""

    def __init__(
        self, variant: NvidiaVariant, driver: Driver, code: Code, weights: Mapping[str, Array]
    ) -> None:
        program = variant.program
        check_device(program, driver.limits, driver.name)
        self.driver, self.code = driver, code
        self.arrivals = Stream(driver)  # what other libraries' arrays are waited for on
        self.entries: dict[Any, Any] = {}
        starts = [start for step in program.steps for start in _starts(step)]
        if starts:
            self.module = driver.load(code)
            finally_do(self, driver, driver.unload, self.module)
        for start in starts:
            if start not in self.entries:
                self.entries[start] = driver.entry(self.module, start)
        self.weights: Memory | None = None
        if program.weight_bytes:
            self.weights = Memory(self.arrivals, program.weight_bytes)
            for name, offset in program.weights.items():
                if weights[name].nbytes:
                    address = self.weights.address + offset
                    driver.upload(address, weights[name], self.arrivals.handle)
            driver.synchronize(self.arrivals.handle)


class _Bound:
    """Launches, and graphs of them, for one set of addresses; by number of their step."""

    def __init__(self, driver: Driver) -> None:
        self.launches: dict[int, list[Any]] = {}
        self.seen: set[int] = set()
        self.graphs: dict[int, Any] = {}
        self.driver = driver

    def keep(self, step: int, graph: Any) -> None:
        self.graphs[step] = graph
        finally_do(self, self.driver, self.driver.destroy_graph, graph)


class NvidiaContext:
    """The stream and the memory of one call at a time."""

    def __init__(self, variant: NvidiaVariant, opened: _Opened) -> None:
        program = variant.program
        self.variant, self.opened, self.driver = variant, opened, opened.driver
        self.stream = Stream(self.driver)
        self.arena_bytes = aligned(variant.plan.memory.arena_bytes)
        self.memory = Memory(self.stream, self.arena_bytes + program.scratch_bytes)
        self._arguments: dict[int, Memory] = {}  # by base: what comes from or goes to the host
        self._bound: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()
        self._pinned: dict[int, Array] | None = None
        self._uploaded: Moment | None = None  # then the pinned memory may be written again
        self._pending: deque[tuple[Moment, list[Any]]] = deque()

    # A call.

    def run(
        self, inputs: Sequence[Argument], outputs: Sequence[Array], profile: bool
    ) -> list[Event]:
        """Reads the inputs and fills the outputs, which are the host's."""
        addresses = self._upload(inputs)
        first = CALL + len(inputs)
        for index, output in enumerate(outputs):
            used = first + index in self.variant.used
            addresses.append(self._own(first + index, output.nbytes) if used else 0)
        bases = self._bases(addresses)
        events = self._execute(bases, profile)
        staged = []
        for index, (output, where) in enumerate(
            zip(outputs, self.variant.program.results, strict=True)
        ):
            if output.nbytes:
                pinned = self._staging(first + index)
                flat = _flat(output) if pinned is None else pinned
                self.driver.download(flat, bases[where.base] + where.offset, self.stream.handle)
                if pinned is not None:
                    staged.append((output, pinned))
        self.driver.synchronize(self.stream.handle)
        for output, pinned in staged:
            _flat(output)[...] = pinned
        return events

    def run_on_device(
        self, inputs: Sequence[Argument], gives: Sequence[tuple[tuple[int, ...], Any]]
    ) -> list[DeviceArray]:
        """Results of these shapes and types in the device's memory; returns before they are
        filled."""
        addresses = self._upload(inputs)
        first = CALL + len(inputs)
        program, results = self.variant.program, []
        for number, (shape, dtype) in enumerate(gives):
            base = program.results[number].base
            given = inputs[base - CALL] if CALL <= base < first else None
            if isinstance(given, View) and given.given:
                memory = given
            else:
                memory = Memory(self.stream, program.outputs[number])
            results.append(DeviceArray(memory, shape, dtype))
            addresses.append(memory.address)
        bases = self._bases(addresses)
        self._execute(bases, profile=False)
        for result, where in zip(results, program.results, strict=True):
            source = bases[where.base] + where.offset
            if source != result.address and result.nbytes:
                self.driver.copy(result.address, source, result.nbytes, self.stream.handle)
        for result in results:
            result.filled(self.driver, self.stream.handle)
        self._keep([*inputs, *results])
        return results

    # Memory.

    def _bases(self, addresses: Sequence[int]) -> list[int]:
        """Addresses by base."""
        weights = self.opened.weights
        bases = [0] * CALL
        bases[ARENA] = self.memory.address
        bases[SCRATCH] = self.memory.address + self.arena_bytes
        bases[WEIGHTS] = 0 if weights is None else weights.address
        return [*bases, *addresses]

    def _own(self, base: int, size: int) -> int:
        """The address of this context's own memory for an argument or a result."""
        if base not in self._arguments:
            self._arguments[base] = Memory(self.stream, size)
        return self._arguments[base].address

    def _upload(self, inputs: Sequence[Argument]) -> list[int]:
        """Where each input lies on the device, copied there if it has to be."""
        driver, stream = self.driver, self.stream.handle
        if self._uploaded is not None:
            driver.settle(self._uploaded.event)
            self._uploaded = None
        addresses, staged, borrowed = [], False, False
        for base, value in enumerate(inputs, CALL):
            if base not in self.variant.used:
                addresses.append(0)
            elif isinstance(value, View):
                if not borrowed:
                    borrowed = True
                    order(driver, self.opened.arrivals.handle, stream)
                keeps = base in self.variant.overwritten and not value.given
                if keeps or value.address % _DIRECT:
                    addresses.append(self._own(base, value.nbytes))
                    driver.copy(addresses[-1], value.address, value.nbytes, stream)
                else:
                    addresses.append(value.address)
            else:
                addresses.append(self._own(base, value.nbytes))
                if value.nbytes:
                    pinned = self._staging(base)
                    if pinned is not None:
                        pinned[...] = _flat(value)
                        staged = True
                    source = value if pinned is None else pinned
                    driver.upload(addresses[-1], source, stream)
        if staged:
            self._uploaded = Moment(driver, stream)
        return addresses

    def _staging(self, base: int) -> Array | None:
        """The pinned memory through which an argument or a result goes; None for large ones."""
        if self._pinned is None:
            sizes = (*self.variant.program.inputs, *self.variant.program.outputs)
            places, end = {}, 0
            for number, size in enumerate(sizes, CALL):
                if number in self.variant.used and end + aligned(size) <= _PINNED:
                    places[number] = end, size
                    end += aligned(size)
            block = self.driver.host_memory(end) if end else np.empty(0, np.uint8)
            if end:
                finally_do(self, self.driver, self.driver.free_host_memory, block)
            self._pinned = {n: block[at : at + size] for n, (at, size) in places.items()}
        return self._pinned.get(base)

    def _keep(self, values: Sequence[Any]) -> None:
        """Keep what kernels under way read and write until they are done."""
        self._pending.append((Moment(self.driver, self.stream.handle), list(values)))
        if len(self._pending) > _PENDING:
            done, _ = self._pending.popleft()
            self.driver.settle(done.event)

    # Steps.

    def _execute(self, bases: list[int], profile: bool) -> list[Event]:
        """Walk the steps; returns when all is on the stream, or, with `profile`, done."""
        key = tuple(bases)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _Bound(self.driver)
            if len(self._bound) > _BINDINGS:
                self._bound.popitem(last=False)
        self._bound.move_to_end(key)
        steps, driver, stream = self.variant.program.steps, self.driver, self.stream.handle
        if driver.simulated:
            self._poison(bases)
        marks: list[tuple[int, Any, Any, Counters]] = []
        position = 0
        while position < len(steps):
            step = steps[position]
            if isinstance(step, Choose):
                position = step.targets[self._read(bases, step)]
            elif isinstance(step, Jump):
                position = step.target
            else:
                end = position
                while end < len(steps) and isinstance(steps[end], Work):
                    end += 1
                if profile or driver.simulated:
                    marks += [self._step(bases, bound, at, profile) for at in range(position, end)]
                elif not self._replay(bases, bound, position, end):
                    for at in range(position, end):
                        for prepared in self._prepared(bases, bound, at):
                            driver.launch(prepared, stream)
                position = end
        return self._events(marks) if profile else []

    def _step(
        self, bases: list[int], bound: _Bound, at: int, profile: bool
    ) -> tuple[int, Any, Any, Counters]:
        """One step by itself: its number, the events around it and what was counted."""
        driver, stream = self.driver, self.stream.handle
        step = self.variant.program.steps[at]
        assert isinstance(step, Work)
        if driver.simulated and self.variant.program.scratch_bytes:
            driver.fill(bases[SCRATCH], self.variant.program.scratch_bytes, stream)
        counters: dict[str, int] = {}
        begin = driver.record(stream, timed=True)
        try:
            for prepared in self._prepared(bases, bound, at):
                for name, count in (driver.launch(prepared, stream, profile) or {}).items():
                    counters[name] = counters.get(name, 0) + count
        except UserError as error:  # a fault that a simulator found
            place = f"{step.origin}: " if step.origin else ""
            raise UserError(f"{place}kernel {step.kernel}: {error}") from error
        end = driver.record(stream, timed=True)
        if driver.simulated:
            for offset, size in step.dead:
                driver.fill(bases[ARENA] + offset, size, stream)
        return at, begin, end, counters

    def _replay(self, bases: list[int], bound: _Bound, first: int, end: int) -> bool:
        """Run a stretch of steps as a graph; False where it has none yet, and shall run by itself.

        The first run is no recording: it is when a driver loads the code of its kernels.
        """
        driver, stream = self.driver, self.stream.handle
        if not driver.captures:
            return False
        if first not in bound.graphs:
            launches = [p for at in range(first, end) for p in self._prepared(bases, bound, at)]
            if first not in bound.seen or len(launches) < 2:
                bound.seen.add(first)
                return False
            driver.begin_capture(stream)
            try:
                for prepared in launches:
                    driver.launch(prepared, stream)
            finally:
                graph = driver.end_capture(stream)
            bound.keep(first, graph)
        driver.replay(bound.graphs[first], stream)
        return True

    def _prepared(self, bases: list[int], bound: _Bound, at: int) -> list[Any]:
        """The launches of a step with the bytes of their parameters."""
        known = bound.launches.get(at)
        if known is None:
            step = self.variant.program.steps[at]
            assert isinstance(step, Work)
            known = bound.launches[at] = [
                self.driver.prepare(
                    self.opened.entries[start],
                    start,
                    [self._bytes(one, bases) for one in parameters],
                )
                for start, parameters in step.launches
            ]
        return known

    def _bytes(self, parameter: Parameter, bases: list[int]) -> bytes:
        if isinstance(parameter, bytes):
            return parameter
        if isinstance(parameter, Mapped):
            where = parameter.where
            return self.driver.tensor_map(parameter.box, bases[where.base] + where.offset)
        return struct.pack("<Q", bases[parameter.base] + parameter.offset)

    def _read(self, bases: list[int], step: Choose) -> int:
        """Which target a branch takes: waits for the stream, and copies one number."""
        target = np.zeros(4, np.uint8)
        address = bases[step.where.base] + step.where.offset
        self.driver.download(target[: step.size], address, self.stream.handle)
        self.driver.synchronize(self.stream.handle)
        if step.size == 1:
            return int(target[0] != 0)
        value, last = int(target.view(np.int32)[0]), len(step.targets) - 1
        return value if 0 <= value <= last else last

    def _poison(self, bases: list[int]) -> None:
        """Overwrite what a call finds undefined."""
        if self.arena_bytes:
            self.driver.fill(bases[ARENA], self.arena_bytes, self.stream.handle)
        first = CALL + len(self.variant.program.inputs)
        for base, size in enumerate(self.variant.program.outputs, first):
            if size and base in self.variant.used:
                self.driver.fill(bases[base], size, self.stream.handle)

    def _events(self, marks: list[tuple[int, Any, Any, Counters]]) -> list[Event]:
        driver, found = self.driver, []
        driver.synchronize(self.stream.handle)
        for at, begin, end, counters in marks:
            since = driver.elapsed(marks[0][1], begin)
            took = driver.elapsed(begin, end)
            step = self.variant.program.steps[at]
            assert isinstance(step, Work)
            found.append(Event(at, step.kernel, 0, since, took, counters))
        for _, begin, end, _ in marks:
            driver.destroy_event(begin)
            driver.destroy_event(end)
        return found


def run(
    context: NvidiaContext, inputs: Sequence[Argument], outputs: Sequence[Array], profile: bool
) -> list[Event]:
    """`NvidiaContext.run`, where memory that is lacking is the user's to know."""
    try:
        with context.driver:
            return context.run(inputs, outputs, profile)
    except OutOfMemory as error:
        raise context.variant.too_large(error) from None


def run_on_device(
    context: NvidiaContext,
    inputs: Sequence[Argument],
    gives: Sequence[tuple[tuple[int, ...], Any]],
) -> list[DeviceArray]:
    """`NvidiaContext.run_on_device`, likewise."""
    try:
        with context.driver:
            return context.run_on_device(inputs, gives)
    except OutOfMemory as error:
        raise context.variant.too_large(error) from None


def _flat(array: Array) -> Array:
    """The bytes of a C-contiguous array, which they share."""
    return array.reshape(-1).view(np.uint8)


def _starts(step: Any) -> list[Any]:
    return [launch.start for launch in step.launches] if isinstance(step, Work) else []


def _bases(program: Program) -> Iterator[int]:
    """Every base that the program's steps or results lie behind."""
    for step in program.steps:
        if isinstance(step, Choose):
            yield step.where.base
        for launch in step.launches if isinstance(step, Work) else ():
            for one in launch.parameters:
                if isinstance(one, Mapped):
                    yield one.where.base
                elif isinstance(one, Where):
                    yield one.base
    yield from (where.base for where in program.results)
