"""When the program of one device computes and when it sends: what communication hides behind work.

    found = timeline(local, costs)
    print(found)  # each call with when it begins and ends, and how long the device waits for it

One operation computes at a time, in the order of the program, and one call is on the device's link
at a time, in the order in which calls are issued. An operation that communicates by itself holds
the device until it ends; what `async_start` begins holds it at `async_done`, from there on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...hlo.graph import Module, Op, Region, Value
from ...hlo.groups import process_groups
from ...hlo.ops.collectives import Collective, members
from ...hlo.ops.exchange import Exchange, transfers
from ...hlo.ops.rooted import CollectivePermute, ProcessNumber
from ...hlo.sharding import Mesh
from ...hlo.types import TensorType
from ..counters import counters, turns
from .interconnect import USUAL, Interconnect, Link, seconds, slowest

MAXIMUM_TURNS = 64
"""Turns of a loop that a timeline walks; the rest take as long as the last of them."""


@dataclass(frozen=True)
class DeviceRates:
    """Operations and bytes of memory per second. The default is a round figure of an accelerator,
    that of `candidates.py`, measured on none."""

    flops: float = 400e12
    memory: float = 3e12

    def seconds(self, op: Op) -> float:
        """One execution of an operation that computes. What moves no bytes of its own once it is
        fused with its neighbours takes nothing; an elementwise operation writes its results."""
        pattern = op.definition.pattern
        if pattern in ("index", "source"):
            return 0.0
        values = op.results if pattern == "elementwise" else (*op.operands, *op.results)
        moved = sum(map(_bytes, values))
        return max(op.definition.flops(op) / self.flops, moved / self.memory)


Kernel = Callable[[Op], float]


@dataclass(frozen=True)
class Costs:
    """Seconds of the operations of one device's program.

    mesh: whose devices the program's partitions are. kernel: seconds of an operation that computes,
    from a model or measured.
    """

    mesh: Mesh
    interconnect: Interconnect = USUAL
    kernel: Kernel = DeviceRates().seconds
    _known: dict[Op, float] = field(default_factory=dict, compare=False, repr=False)

    def seconds(self, op: Op) -> float:
        """One execution; of a loop all of its turns, of a choice the longest way."""
        found = self._known.get(op)
        if found is None:
            if sends(op):
                found = self.call(op)
            elif op.definition.flow:
                found = _Clock(self).alone(op)
            else:
                found = self.kernel(op)
            self._known[op] = found
        return found

    def call(self, op: Op) -> float:
        """One call of an operation that communicates."""
        return seconds(self.link(op), messages(op), op.definition.traffic(op, self.mesh.devices))

    def link(self, op: Op) -> Link:
        """The link along the axes in which those differ that send to each other."""
        places = {device: place for place, device in enumerate(self._order)}
        axes: set[str] = set()
        for group in _groups(op, self.mesh.devices):
            grids = [self.mesh.coordinates(places[number]) for number in group]
            axes.update(name for name in grids[0] if len({grid[name] for grid in grids}) > 1)
            if axes and not isinstance(op.definition, CollectivePermute | Exchange):
                break  # groups are alike
        return slowest(map(self.interconnect.link, sorted(axes)))

    @cached_property
    def _order(self) -> tuple[int, ...]:
        return self.mesh.device_ids or tuple(range(self.mesh.devices))


def costs_of(module: Module, interconnect: Interconnect = USUAL) -> Costs:
    """The modelled costs of a program of one device, for as many devices as it says. Without a mesh
    of so many in the module they stand along one axis, which has the usual link."""
    count = int(module.attributes.get("mhlo.num_partitions", 1))
    found = (mesh for mesh in module.meshes.values() if mesh.static and mesh.devices == count)
    return Costs(next(found, Mesh((("", count),))), interconnect)


def sends(op: Op) -> bool:
    """Whether processes send to each other in an operation, itself and at once."""
    return isinstance(op.definition, Collective)


def messages(op: Op) -> int:
    """The most messages that a device gets in one call of `op`, which `sends`."""
    room = op.definition
    if isinstance(room, CollectivePermute):
        return 1
    if isinstance(room, Exchange):
        pairs = {(t.source, t.target) for t in transfers(op) if t.source != t.target}
        return max(Counter(target for _, target in pairs).values(), default=0)
    count = room.size(op) - 1 if isinstance(room, Collective) else 0
    return 2 * count if op.name == "all_reduce" else count


@dataclass(frozen=True)
class TimelineCall:
    """One call on a timeline, in seconds from the beginning of the program.

    issued: when the program starts it; begin, end: when it is on the link; waited: how long the
    device stands still for it.
    """

    op: Op
    issued: float
    begin: float
    end: float
    waited: float

    @property
    def duration(self) -> float:
        return self.end - self.begin

    @property
    def hidden(self) -> float:
        """Seconds in which the device computes meanwhile."""
        return max(self.duration - self.waited, 0.0)

    def __str__(self) -> str:
        us = [second * 1e6 for second in (self.begin, self.end, self.hidden, self.waited)]
        when = "{:.1f} to {:.1f} us, {:.1f} hidden, {:.1f} waited for".format(*us)
        return f"{self.op.place}{self.op.name}: {when}"


@dataclass(frozen=True)
class Timeline:
    """seconds: the program, `computing` of which it computes. calls: in order, those of a loop turn
    by turn, the first MAXIMUM_TURNS of them."""

    seconds: float
    computing: float
    calls: tuple[TimelineCall, ...]

    def __str__(self) -> str:
        total = f"{self.seconds * 1e6:.1f} us, {self.computing * 1e6:.1f} of them computing"
        return "\n".join([*map(str, self.calls), total])


def timeline(module: Module, costs: Costs) -> Timeline:
    """The timeline of a program of one device, at level INLINED."""
    clock = _Clock(costs)
    clock.region(module.body)
    return Timeline(clock.now, clock.computing, tuple(sorted(clock.calls, key=lambda c: c.begin)))


class _Clock:
    """now: when the device is free; link: when its link is."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.now = self.link = self.computing = 0.0
        self.calls: list[TimelineCall] = []
        self.pending: dict[Value, TimelineCall] = {}

    def alone(self, op: Op) -> float:
        """Seconds of one operation with regions."""
        self.op(op)
        return self.now

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        if op.name == "async_start":
            (inner,) = op.regions[0].ops
            if sends(inner):
                self.pending[op.result] = self.issue(inner)
            else:
                self.compute(inner)
        elif op.name == "async_done":
            call = self.pending.pop(op.operands[0], None)
            if call is not None:
                self.wait(call)
        elif sends(op):
            self.wait(self.issue(op))
        elif op.name == "while":
            self.loop(op)
        elif op.definition.flow == "branch":
            self.choice(op)
        elif not isinstance(op.definition, ProcessNumber):
            self.compute(op)

    def compute(self, op: Op) -> None:
        spent = self.costs.seconds(op)
        self.now += spent
        self.computing += spent

    def issue(self, op: Op) -> TimelineCall:
        begin = max(self.now, self.link)
        self.link = begin + self.costs.seconds(op)
        return TimelineCall(op, self.now, begin, self.link, 0.0)

    def wait(self, call: TimelineCall) -> None:
        waited = max(call.end - self.now, 0.0)
        self.now += waited
        self.calls.append(TimelineCall(call.op, call.issued, call.begin, call.end, waited))

    def loop(self, op: Op) -> None:
        count = turns(op, counters(op))
        count = 1 if count is None else count  # data decides: what one turn takes
        condition, body = op.regions
        before = self.now, self.computing
        for _ in range(min(count, MAXIMUM_TURNS)):
            before = self.now, self.computing
            self.region(condition)
            self.region(body)
        more = max(count - MAXIMUM_TURNS, 0)
        spent = self.now - before[0]
        self.now += more * spent
        self.link += more * spent
        self.computing += more * (self.computing - before[1])
        self.region(condition)

    def choice(self, op: Op) -> None:
        ways: list[_Clock] = []
        for body in op.regions:
            way = _Clock(self.costs)
            way.now, way.link, way.computing = self.now, self.link, self.computing
            way.region(body)
            ways.append(way)
        longest = max(ways, key=lambda way: way.now)
        self.now, self.link, self.computing = longest.now, longest.link, longest.computing
        self.calls += longest.calls


def _groups(op: Op, devices: int) -> Iterator[tuple[int, ...]]:
    """The devices that send to each other, group by group."""
    room = op.definition
    if isinstance(room, CollectivePermute):
        yield from op.source_target_pairs
    elif isinstance(room, Exchange):
        yield from ((t.source, t.target) for t in transfers(op))
    else:
        assert isinstance(room, Collective)
        groups = members(op) or (tuple(range(devices)),)
        yield from process_groups(room.strategy(op), groups, 1, devices)


def _bytes(value: Value) -> int:
    """Bytes of a tensor's block; 0 of what is none."""
    kind = value.type
    return kind.bytes if isinstance(kind, TensorType) and kind.is_static else 0
