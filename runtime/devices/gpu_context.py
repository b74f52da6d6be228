"""One call at a time on a GPU: its stream, its memory, its walk over a plan's steps."""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hlo.errors import UserError
from .arrays import DeviceArray, View, memory_of
from .driver import Counted, Counters, Driver, Simulator, Window, is_simulator
from .launches import (
    ARENA,
    CALL,
    SCRATCH,
    WEIGHTS,
    Choose,
    Jump,
    Mapped,
    Parameter,
    Work,
    aligned,
)
from .resources import Memory, Moment, Stream, finally_do, order

if TYPE_CHECKING:
    from .nvidia import NvidiaVariant, Opened

_DIRECT = 16  # alignment of memory that kernels read as it is
_PINNED = 32 << 20  # bytes of a context's staging memory; larger arrays are copied without it
_BINDINGS = 4  # sets of addresses that a context keeps launches for

Array = np.ndarray[Any, Any]
Argument = Array | View
Bound = dict[int, list[Any]]  # the launches of each step, for one set of addresses


class Event(NamedTuple):
    """One executed step: when it began, in microseconds from the first, for how long it ran, and
    what a simulator counted, in all and by line of source."""

    step: int
    kernel: str
    worker: int
    begin: float
    duration: float
    counters: Counters = {}
    lines: Mapping[str, Counters] = {}


class _Graph:
    """A stretch of steps as a graph; `launches`: what it holds now."""

    def __init__(self, driver: Driver, launches: list[Any]) -> None:
        self.driver, self.launches = driver, launches
        self.handle = driver.graph(launches)
        finally_do(self, driver, driver.destroy_graph, self.handle)

    def replay(self, launches: list[Any], stream: Any) -> None:
        """Starts it with other parameters, where some have changed."""
        for number, (old, new) in enumerate(zip(self.launches, launches, strict=True)):
            if old is not new:
                self.driver.rebind(self.handle, number, new)
                self.launches[number] = new
        self.driver.replay(self.handle, stream)


class NvidiaContext:
    """The stream and the memory of one call at a time."""

    def __init__(self, variant: NvidiaVariant, opened: Opened) -> None:
        program = variant.program
        self.variant, self.opened, self.driver = variant, opened, opened.driver
        self.stream = Stream(self.driver)
        opened.add_user(self.stream)
        self.arena_bytes = aligned(variant.plan.memory.arena_bytes)
        self.memory = Memory(self.stream, self.arena_bytes + program.scratch_bytes)
        self._arguments: dict[int, Memory] = {}  # by base: what comes from or goes to the host
        self._bound: OrderedDict[tuple[int, ...], Bound] = OrderedDict()
        self._graphs: dict[int, _Graph | None] = {}  # by first step; None: it has run once
        # By step and the addresses that it uses: most steps use no argument and no result.
        self._launches: dict[tuple[int, tuple[int, ...]], list[Any]] = {}
        self._pinned: dict[int, Array] | None = None
        self._uploaded: Moment | None = None  # then the pinned memory may be written again
        self._pending: deque[tuple[Moment, list[Any]]] = deque()  # other libraries' arrays

    # A call.

    def run(
        self, inputs: Sequence[Argument], outputs: Sequence[Array], profile: bool
    ) -> list[Event]:
        """Reads the inputs and fills the outputs, which are the host's."""
        addresses = self._upload(inputs, wait=False)
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
        addresses = self._upload(inputs, wait=True)
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
        self._keep(inputs)
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

    def _upload(self, inputs: Sequence[Argument], wait: bool) -> list[int]:
        """Where each input lies on the device, copied there if it has to be; with `wait`, arrays of
        the host may be changed then."""
        driver, stream = self.driver, self.stream.handle
        if self._uploaded is not None:
            driver.settle(self._uploaded.event)
            self._uploaded = None
        addresses: list[int] = []
        staged = direct = borrowed = False
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
                    if pinned is None:
                        direct = True
                        driver.upload(addresses[-1], value, stream)
                    else:
                        staged = True
                        pinned[...] = _flat(value)
                        driver.upload(addresses[-1], pinned, stream)
        if staged or direct:
            self._uploaded = uploaded = Moment(driver, stream)
            if direct and wait:  # the owner of an array may have pinned it
                driver.settle(uploaded.event)
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
                finally_do(self, self.driver, _free_pinned, self.stream, block)
            self._pinned = {n: block[at : at + size] for n, (at, size) in places.items()}
        return self._pinned.get(base)

    def _keep(self, inputs: Sequence[Argument]) -> None:
        """Keep what kernels under way read and write until they are done."""
        while self._pending and self.driver.has_come(self._pending[0][0].event):
            self._pending.popleft()
        foreign = []
        for view in inputs:
            if isinstance(view, View):
                memory = memory_of(view)
                if isinstance(memory, Memory):
                    memory.read_by(self.stream)
                else:
                    foreign.append(memory)
        if foreign:
            self._pending.append((Moment(self.driver, self.stream.handle), foreign))

    # Steps.

    def _execute(self, bases: list[int], profile: bool) -> list[Event]:
        """Walk the steps; returns when all is on the stream, or, with `profile`, done."""
        key = tuple(bases)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = {}
            if len(self._bound) > _BINDINGS:
                self._bound.popitem(last=False)
        self._bound.move_to_end(key)
        steps, driver, stream = self.variant.program.steps, self.driver, self.stream.handle
        if driver.simulated:
            self._poison(bases)
        marks: list[tuple[int, Any, Any, Counted]] = []
        position = 0
        while position < len(steps):
            step = steps[position]
            if isinstance(step, Choose):
                position = step.targets[self._read(bases, step)]
            elif isinstance(step, Jump):
                position = step.target
            else:
                end = self.variant.ends[position]
                if profile or driver.simulated:
                    marks += [self._step(bases, bound, at, profile) for at in range(position, end)]
                elif not self._replay(bases, bound, position, end):
                    for at in range(position, end):
                        for prepared in self._prepared(bases, bound, at):
                            driver.launch(prepared, stream)
                position = end
        return self._events(marks) if profile else []

    def _step(
        self, bases: list[int], bound: Bound, at: int, profile: bool
    ) -> tuple[int, Any, Any, Counted]:
        """One step by itself: its number, the events around it and what was counted."""
        driver, stream = self.driver, self.stream.handle
        step = self.variant.program.steps[at]
        assert isinstance(step, Work)
        if driver.simulated and self.variant.program.scratch_bytes:
            driver.fill(bases[SCRATCH], self.variant.program.scratch_bytes, stream)
        counted = Counted({}, {})
        begin = driver.record(stream, timed=True)
        if is_simulator(driver):
            counted = self._simulate(driver, step, self._prepared(bases, bound, at), bases, profile)
        else:
            for prepared in self._prepared(bases, bound, at):
                driver.launch(prepared, stream)
        end = driver.record(stream, timed=True)
        if driver.simulated:
            for offset, size in step.dead:
                driver.fill(bases[ARENA] + offset, size, stream)
        return at, begin, end, counted

    def _simulate(
        self, driver: Simulator, step: Work, launches: Sequence[Any], bases: list[int], count: bool
    ) -> Counted:
        """Runs a step's launches; UserError for a fault, which begins with the line that it is in
        and names the line that the kernel is for."""
        counters: dict[str, int] = {}
        lines: dict[str, dict[str, int]] = {}
        windows = self._windows(bases, step)
        try:
            for prepared in launches:
                counted = driver.simulate(prepared, windows, count)
                _add(counters, counted.total)
                for line, counts in counted.lines.items():
                    _add(lines.setdefault(line, {}), counts)
        except UserError as error:
            line = getattr(error, "source", "")
            place = f"{line or step.origin}: " if line or step.origin else ""
            called = f" of {step.origin}" if line and step.origin not in ("", line) else ""
            raise UserError(f"{place}kernel {step.kernel}{called}: {error}") from error
        return Counted(counters, lines)

    def _windows(self, bases: list[int], step: Work) -> list[Window]:
        """What a step's kernel may touch."""
        found = [
            Window(bases[one.where.base] + one.where.offset, *one[1:])
            for one in step.arrays
            if one.nbytes
        ]
        if step.scratch_bytes:
            kind = f"{step.scratch_bytes} bytes"
            found.append(
                Window(bases[SCRATCH], step.scratch_bytes, "the kernel's scratch", kind, (), 0)
            )
        return found

    def _replay(self, bases: list[int], bound: Bound, first: int, end: int) -> bool:
        """Run a stretch of steps as a graph; False where it has none yet, and shall run by itself.

        The first run makes none: it is when a driver loads the code of its kernels. A stretch has
        one graph, whose launches take the addresses of each call.
        """
        if not self.driver.graphs:
            return False
        launches = [p for at in range(first, end) for p in self._prepared(bases, bound, at)]
        graph = self._graphs.get(first)
        if graph is None:
            if first not in self._graphs or len(launches) < 2:
                self._graphs[first] = None
                return False
            graph = self._graphs[first] = _Graph(self.driver, launches)
        graph.replay(launches, self.stream.handle)
        return True

    def _prepared(self, bases: list[int], bound: Bound, at: int) -> list[Any]:
        """The launches of a step with the bytes of their parameters."""
        known = bound.get(at)
        if known is None:
            key = at, tuple(bases[base] for base in self.variant.step_bases[at])
            known = self._launches.get(key)
            if known is None:
                step = self.variant.program.steps[at]
                assert isinstance(step, Work)
                known = [
                    self.driver.prepare(
                        self.opened.entries[start],
                        start,
                        [self._bytes(one, bases) for one in parameters],
                    )
                    for start, parameters in step.launches
                ]
                if len(self._launches) >= _BINDINGS * len(self.variant.program.steps):
                    self._launches.pop(next(iter(self._launches)))
                self._launches[key] = known
            bound[at] = known
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

    def _events(self, marks: list[tuple[int, Any, Any, Counted]]) -> list[Event]:
        driver, found = self.driver, []
        driver.synchronize(self.stream.handle)
        for at, begin, end, counted in marks:
            since = driver.elapsed(marks[0][1], begin)
            took = driver.elapsed(begin, end)
            step = self.variant.program.steps[at]
            assert isinstance(step, Work)
            found.append(Event(at, step.kernel, 0, since, took, *counted))
        for _, begin, end, _ in marks:
            driver.destroy_event(begin)
            driver.destroy_event(end)
        return found


def _add(total: dict[str, int], counts: Counters) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


def _free_pinned(stream: Stream, block: Array) -> None:
    stream.driver.synchronize(stream.handle)
    stream.driver.free_host_memory(block)


def _flat(array: Array) -> Array:
    """The bytes of a C-contiguous array, which they share."""
    return array.reshape(-1).view(np.uint8)
