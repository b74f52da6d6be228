"""One call at a time on a GPU: its walk over a plan's steps, on a workspace's stream and memory."""

from __future__ import annotations

import itertools
import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hlo.errors import CompilerBug
from .arrays import DeviceArray, DeviceLog, DeviceView, memory_of
from .driver import Condition, Counters, GraphNode, Simulator, is_simulator
from .gpu_steps import (
    ArgumentTable,
    Choose,
    Jump,
    KernelStep,
    Mapped,
    Parameter,
    Started,
    TurnCounts,
    chosen,
)
from .graph_nodes import GraphNodes, Sets, sizes_of
from .launches import ARENA, CALL, SCRATCH, WEIGHTS, aligned
from .regions import Region, StepRange
from .resources import DeviceMemory, Moment, Stream, order
from .simulated_steps import Mark as _Mark
from .simulated_steps import SimulatedSteps
from .workspace import Workspace

if TYPE_CHECKING:
    from .exchanges import Collect, Communicate
    from .nvidia import NvidiaVariant, Opened

_DIRECT = 16  # alignment of memory that kernels read as it is
_PINNED = 32 << 20  # bytes of a context's staging memory; larger arrays are copied without it
_KEPT = 64  # sets of addresses that a launch keeps its parameters for
_NUMBERS = itertools.count()  # of contexts
_WHOLE = -1  # where the graph of all steps begins, among stretches

Array = np.ndarray[Any, Any]
Argument = Array | DeviceView


class GpuEvent(NamedTuple):
    """One executed step: when it began, in microseconds from the first, for how long it ran, and
    what a simulator counted, in all and by line of source."""

    step: int
    kernel: str
    worker: int
    begin: float
    duration: float
    counters: Counters = {}
    lines: Mapping[str, Counters] = {}


class _Cell:
    """One launch of a step, encoded for the addresses of a call; what was encoded for the sets of
    addresses that came last is kept. Most launches use no argument and no result."""

    def __init__(
        self,
        launch: Any,  # Started, or Sets
        encode: Callable[[Any, Sequence[int]], Any],
        fixed: Collection[int],
    ) -> None:
        self.launch, self.encode = launch, encode
        self.moving = tuple(base for base in launch.bases if base not in fixed)
        self.known: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    def at(self, bases: Sequence[int]) -> Any:
        """The launch as the driver prepared it."""
        key = tuple([bases[base] for base in self.moving])
        prepared = self.known.get(key)
        if prepared is None:
            if len(self.known) >= _KEPT:
                self.known.popitem(last=False)
            prepared = self.known[key] = self.encode(self.launch, bases)
        elif self.moving:
            self.known.move_to_end(key)
        return prepared


class _Launches:
    """The launches of steps without a branch between them."""

    def __init__(self, position: int, cells: Sequence[_Cell], nodes: Sequence[GraphNode]) -> None:
        self.cells, self.nodes = cells, nodes
        self.key = position, *(cell.launch.name for cell in cells)
        self.moving = tuple(dict.fromkeys(base for cell in cells for base in cell.moving))

    def start(
        self, space: Workspace, context: int, bases: Sequence[int], at_once: bool = False
    ) -> None:
        """All of them, on the workspace's stream; `context`: what has the sizes; at_once: as of
        `workspace.Stretch`."""
        key = context, *[bases[base] for base in self.moving]
        stretch = space.stretch(self.key)

        def launches() -> list[Any]:
            return [cell.at(bases) for cell in self.cells]

        stretch.start(key, launches, self.nodes, space.stream.handle, at_once)


class NvidiaContext:
    """One call at a time. `space`: its stream and memory; of a program whose calls decide its
    sizes, from `enter` to `leave`."""

    space: Workspace

    def __init__(self, variant: NvidiaVariant, opened: Opened) -> None:
        program, shared = variant.program, variant.spaces is not None
        self.variant, self.opened, self.driver = variant, opened, opened.driver
        self.arena_bytes = aligned(variant.plan.memory.arena_bytes)
        self.number = next(_NUMBERS)
        if not shared:
            self.space = Workspace(opened, self.arena_bytes + program.scratch_bytes)
        self._fixed = fixed = (WEIGHTS,) if shared else (ARENA, SCRATCH, WEIGHTS)
        self._cells = [
            [_Cell(launch, self._encode, fixed) for launch in step.launches]
            if isinstance(step, KernelStep)
            else []
            for step in program.steps
        ]
        self._stretches: dict[int, _Launches] = {}  # by first step
        self._persistent: _Cell | None = None
        if opened.persistent is not None:
            self._persistent = _Cell(opened.persistent, self._encode, fixed)
        self._places: dict[int, tuple[int, int]] | None = None  # in the staging memory, by base
        self._staged = 0  # bytes of it
        # Where processes exchange, waits have deadlines.
        self._together = opened.together
        self._waiting = None if self._together is None else self._together.waiting()
        self.events = opened.events
        waits = self.driver if self._waiting is None else self._waiting
        self._synchronize, self._settle = waits.synchronize, waits.settle

    @property
    def stream(self) -> Stream:
        """What the current call's work is on."""
        return self.space.stream

    def enter(self) -> None:
        """Take a workspace for a call, where those of all sizes take turns."""
        if self.variant.spaces is not None:
            self.space = self.variant.spaces.take(self.opened)

    def leave(self) -> None:
        """Give it back; what a failing call has used is not given back."""
        if self.variant.spaces is not None:
            self.variant.spaces.free.append(self.space)
            del self.space

    # A call.

    def run(
        self, inputs: Sequence[Argument], outputs: Sequence[Array], profile: bool
    ) -> list[GpuEvent]:
        """Reads the inputs and fills the outputs, which are the host's."""
        addresses = self._upload(inputs, wait=False)
        first = CALL + len(inputs)
        for index, output in enumerate(outputs):
            argument = self.variant.replaces.get(index)
            if argument is not None and CALL + argument in self.space.arguments:
                addresses.append(self.space.own(CALL + argument, self._room(output.nbytes)))
                continue
            used = first + index in self.variant.used
            addresses.append(
                self.space.own(first + index, self._room(output.nbytes)) if used else 0
            )
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
                self.events.add(copies_to_host=1)
                if pinned is not None:
                    staged.append((output, pinned))
        self._wait()
        for output, pinned in staged:
            _flat(output)[...] = pinned
        return events

    def run_on_device(
        self,
        inputs: Sequence[Argument],
        gives: Sequence[tuple[tuple[int, ...], Any]],
        begin: Callable[[], None] = lambda: None,
        log: DeviceLog | None = None,
        saved: Sequence[int] = (),
    ) -> list[DeviceArray]:
        """Results of these shapes and types in the device's memory; returns before they are
        filled. begin: called before the first kernel starts, when all is allocated. log: memory for
        what comes behind the results; saved: which of it says what is there."""
        addresses = self._upload(inputs, wait=True)
        first = CALL + len(inputs)
        program, results = self.variant.program, []
        for number, (shape, dtype) in enumerate(gives):
            base = program.results[number].base
            argument = self.variant.replaces.get(number, base - CALL if base < first else -1)
            given = inputs[argument] if argument >= 0 else None
            if isinstance(given, DeviceView) and given.given:
                memory = given
            else:
                memory = DeviceMemory(self.stream, self._room(program.outputs[number]))
            results.append(DeviceArray(memory, shape, dtype))
            addresses.append(memory.address)
        if log is not None:
            addresses += log.cleared(self.driver, self.stream, saved)
        bases = self._bases(addresses)
        begin()
        self._execute(bases, profile=False)
        for result, where in zip(results, program.results, strict=log is None):
            source = bases[where.base] + where.offset
            if source != result.address and result.nbytes:
                self.driver.copy(result.address, source, result.nbytes, self.stream.handle)
        for result in results:
            result.filled(self.driver, self.stream.handle, self._settle)
        self._keep(inputs)
        return results

    # Memory.

    def _room(self, size: int) -> int:
        """Bytes for an array of so many. Where calls decide sizes, lanes that are masked read the
        first access of arrays that may have no element."""
        return size if size or self.variant.spaces is None else _DIRECT

    def _bases(self, addresses: Sequence[int]) -> list[int]:
        """Addresses by base."""
        weights = self.opened.weights
        bases = [0] * CALL
        bases[ARENA] = self.space.memory.address
        bases[SCRATCH] = self.space.memory.address + self.arena_bytes
        bases[WEIGHTS] = 0 if weights is None else weights.address
        return [*bases, *addresses]

    def _upload(self, inputs: Sequence[Argument], wait: bool) -> list[int]:
        """Where each input lies on the device, copied there if it has to be; with `wait`, arrays of
        the host may be changed then."""
        driver, space = self.driver, self.space
        stream = space.stream.handle
        if space.uploaded is not None:
            self._settle(space.uploaded.event)
            space.uploaded = None
        addresses: list[int] = []
        staged = direct = borrowed = False
        for base, value in enumerate(inputs, CALL):
            if base not in self.variant.used:
                addresses.append(0)
            elif isinstance(value, DeviceView):
                if not borrowed:
                    borrowed = True
                    order(driver, self.opened.arrivals.handle, stream)
                keeps = base in self.variant.overwritten and not value.given
                if keeps or value.address % _DIRECT or self._room(value.nbytes) != value.nbytes:
                    addresses.append(space.own(base, self._room(value.nbytes)))
                    driver.copy(addresses[-1], value.address, value.nbytes, stream)
                else:
                    addresses.append(value.address)
            else:
                addresses.append(space.own(base, self._room(value.nbytes)))
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
            space.uploaded = uploaded = Moment(driver, stream)
            if direct and wait:  # the owner of an array may have pinned it
                self._settle(uploaded.event)
        return addresses

    def _staging(self, base: int) -> Array | None:
        """The pinned memory through which an argument or a result goes; None for large ones."""
        if self._places is None:
            sizes = (*self.variant.program.inputs, *self.variant.program.outputs)
            places, end = {}, 0
            for number, size in enumerate(sizes, CALL):
                if number in self.variant.used and end + aligned(size) <= _PINNED:
                    places[number] = end, size
                    end += aligned(size)
            self._places, self._staged = places, end
        if base not in self._places:
            return None
        at, size = self._places[base]
        return self.space.staged(self._staged)[at : at + size]

    def _keep(self, inputs: Sequence[Argument]) -> None:
        """Keep what kernels under way read and write until they are done."""
        pending = self.space.pending
        while pending and self.driver.has_come(pending[0][0].event):
            pending.popleft()
        foreign = []
        for view in inputs:
            if isinstance(view, DeviceView):
                memory = memory_of(view)
                if isinstance(memory, DeviceMemory):
                    memory.read_by(self.stream)
                else:
                    foreign.append(memory)
        if foreign:
            pending.append((Moment(self.driver, self.stream.handle), foreign))

    # Steps.

    def _execute(self, bases: list[int], profile: bool) -> list[GpuEvent]:
        """Walk the steps; returns when all is on the stream, or, with `profile`, done."""
        steps, driver = self.variant.program.steps, self.driver
        if driver.simulated:
            self._poison(bases)
        marks: list[_Mark] = []
        position, turns = 0, TurnCounts()
        if self.opened.region is not None and not profile:
            self._whole(bases, self.opened.region)
            return []
        if self._persistent is not None and not profile:
            self._one_launch(bases, self._persistent)
            return []
        while position < len(steps):
            step = steps[position]
            if isinstance(step, Choose):
                value = turns.value(position, step)
                if value is None:
                    value = self._read(bases, step)
                elif is_simulator(driver):
                    self._simulated(driver, bases).confirm(step, value)
                position = step.targets[value]
            elif isinstance(step, Jump):
                position = step.target
            elif not isinstance(step, KernelStep):
                self._communicate(bases, step)
                position += 1
            else:
                end = self.variant.ends[position]
                if is_simulator(driver):
                    self.events.add(launches=sum(map(len, self._cells[position:end])))
                    marks += self._simulated(driver, bases).stretch(position, end, profile)
                elif profile or self.opened.schedule == "launches":
                    marks += [self._step(bases, at, profile) for at in range(position, end)]
                else:
                    self._launches(position, end).start(self.space, self.number, bases)
                position = end
        return self._events(marks) if profile else []

    def _communicate(self, bases: list[int], step: Communicate | Collect) -> None:
        """What this process does together with others, on the stream."""
        if self._together is None or self._waiting is None:
            raise CompilerBug("a program of one process communicates")
        self._together.communicate(step, bases, self.stream.handle, self._waiting)
        if self.driver.simulated:
            for offset, size in step.dead:
                self.driver.fill(bases[ARENA] + offset, size, self.stream.handle)

    def _launches(self, begin: int, end: int) -> _Launches:
        """The launches of a stretch."""
        found = self._stretches.get(begin)
        if found is None:
            found = self._graph(begin, (StepRange(begin, end),))
        return found

    def _graph(self, begin: int, region: Region) -> _Launches:
        """The launches of a region, as nodes of a graph."""
        made = GraphNodes(self.variant.program.steps, region, self._cells.__getitem__, self._sets)
        found = self._stretches[begin] = _Launches(begin, made.launches, made.nodes)
        return found

    def _sets(self, sets: Sets) -> _Cell:
        """What sets a condition."""

        def at(sets: Sets, bases: Sequence[int]) -> Condition:
            where = sets.where
            address = 0 if where is None else bases[where.base] + where.offset
            return sets.condition._replace(address=address)

        return _Cell(sets, at, self._fixed)

    def _whole(self, bases: list[int], region: Region) -> None:
        """All steps as one graph, from the first call on."""
        found = self._stretches.get(_WHOLE) or self._graph(_WHOLE, region)
        if is_simulator(self.driver):
            self._simulated(self.driver, bases).region(region)
            nodes, edges = sizes_of(found.nodes)
            self.events.add(graph_launches=1, nodes=nodes, edges=edges)
        else:
            found.start(self.space, self.number, bases, at_once=True)

    def _one_launch(self, bases: list[int], cell: _Cell) -> None:
        """All steps as one cooperative launch."""
        meeting = self.space.meeting
        prepared = cell.at([*bases, meeting.flag_address, meeting.address])
        self.events.add(launches=1)
        if is_simulator(self.driver):
            self._simulated(self.driver, bases).persistent(prepared, meeting)
        else:
            self.driver.launch(prepared, self.stream.handle)

    def _simulated(self, driver: Simulator, bases: list[int]) -> SimulatedSteps:
        """What simulates steps of a call."""

        def launches(at: int) -> list[Any]:
            return [cell.at(bases) for cell in self._cells[at]]

        return SimulatedSteps(
            driver, self.stream.handle, self.variant.program.steps, launches, bases,
            in_order=self.opened.schedule == "launches", room=self._room,
        )  # fmt: skip

    def _step(self, bases: list[int], at: int, timed: bool) -> _Mark:
        """One step by itself: its number, and where it is timed the events around it."""
        driver, stream = self.driver, self.stream.handle
        launches = [cell.at(bases) for cell in self._cells[at]]
        self.events.add(launches=len(launches))
        begin = driver.record(stream, timed=True) if timed else None
        for prepared in launches:
            driver.launch(prepared, stream)
        return _Mark(at, begin, driver.record(stream, timed=True) if timed else None)

    def _encode(self, launch: Started, bases: Sequence[int]) -> Any:
        """A launch with the bytes of its parameters."""
        arguments = [self._bytes(one, bases) for one in launch.parameters]
        start = launch.on(self.driver.limits.multiprocessors)
        return self.driver.prepare(self.opened.entries[launch.start], start, arguments)

    def _bytes(self, parameter: Parameter, bases: Sequence[int]) -> bytes:
        if isinstance(parameter, bytes):
            return parameter
        if isinstance(parameter, Mapped):
            where = parameter.where
            return self.driver.tensor_map(parameter.box, bases[where.base] + where.offset)
        if isinstance(parameter, ArgumentTable):
            table = bytearray(parameter.size)
            for place, cell in parameter.cells:
                data = self._bytes(cell, bases)
                table[place : place + len(data)] = data
            return bytes(table)
        return struct.pack("<Q", bases[parameter.base] + parameter.offset)

    def _wait(self) -> None:
        """Return when all of the call's work so far is done."""
        self.events.add(synchronisations=1)
        if self._persistent is None:
            self._synchronize(self.stream.handle)
        else:
            self.space.meeting.wait(self._synchronize)

    def _read(self, bases: list[int], step: Choose) -> int:
        """Which target a branch takes: waits for the stream, and copies one number."""
        found = np.zeros(step.size, np.uint8)
        address = bases[step.where.base] + step.where.offset
        self.driver.download(found, address, self.stream.handle)
        self.events.add(copies_to_host=1)
        self._wait()
        return chosen(found, len(step.targets))

    def _poison(self, bases: list[int]) -> None:
        """Overwrite what a call finds undefined."""
        if self.arena_bytes:
            self.driver.fill(bases[ARENA], self.arena_bytes, self.stream.handle)
        first = CALL + len(self.variant.program.inputs)
        for base, size in enumerate(self.variant.program.outputs, first):
            replaced = self.variant.replaces.get(base - first)
            if replaced is not None and bases[base] == bases[CALL + replaced]:
                continue
            if size and base in self.variant.used:
                self.driver.fill(bases[base], size, self.stream.handle)

    def _events(self, marks: list[_Mark]) -> list[GpuEvent]:
        driver, found = self.driver, []
        self._wait()
        for at, begin, end, counted in marks:
            since = driver.elapsed(marks[0][1], begin)
            took = driver.elapsed(begin, end)
            step = self.variant.program.steps[at]
            assert isinstance(step, KernelStep)
            if not step.copies and step.launches:
                found.append(GpuEvent(step.step, step.kernel, 0, since, took, *counted))
        for _, begin, end, _ in marks:
            driver.destroy_event(begin)
            driver.destroy_event(end)
        return found


def _flat(array: Array) -> Array:
    """The bytes of a C-contiguous array, which they share."""
    return array.reshape(-1).view(np.uint8)
