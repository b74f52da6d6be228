"""Where each edge of a compiled program lies, and what that costs (`girih dump --places`).

An edge is a value on its way from what computes it to what reads it, a turn of a loop on its way to
the next one, or a predicate on its way to the branch that it decides. The places are ordered: the
further an edge lies from the arithmetic, the more its bytes and its meetings cost, and the more
freely its two ends can be scheduled.

Within a kernel the optimizer decides between REG and SCRATCH by what reads the value: each element
where it is made, or several at other times. An emitter may still keep a small tile in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from typing import Any

from ..hlo.deciding import at_hint
from ..hlo.graph import Op, Region, Value
from ..hlo.tiling import TILE_OPS, trips
from .cost.model import home, level_of, rates
from .machine import Machine
from .plan import kernel_kind


class EdgePlace(IntEnum):
    """The nearest first."""

    REG = auto()  # elements in registers
    SCRATCH = auto()  # tiles in a core's nearest memory
    CLUSTER = auto()  # shared memory of neighbouring multiprocessors
    COUNTER = auto()  # memory; the reader waits for a counter of the writer's
    BARRIER = auto()  # memory; all workers meet
    LAUNCH = auto()  # memory; the reader is another launch or node of a graph
    HOST = auto()  # the host reads it, and decides


@dataclass(frozen=True)
class Edge:
    """kind: "data", "turn" (a loop's carried value) or "predicate". bytes: of all that passes in
    one run of both ends. count: edges alike between the same ends."""

    kind: str
    source: str
    target: str
    bytes: int
    place: EdgePlace
    others: tuple[EdgePlace, ...]  # where it could lie as well
    tile: int = 0  # bytes that lie in SCRATCH at a time
    count: int = 1


def seconds(edge: Edge, place: EdgePlace, machine: Machine) -> float:
    """What an edge costs at a place: its bytes, written and read, and one meeting."""
    if place == EdgePlace.REG:
        return 0.0
    if place == EdgePlace.SCRATCH:
        level = int(level_of(machine, edge.tile or edge.bytes))
    else:
        level = int(home(machine, edge.bytes))
    executors = machine.executors
    moved = sum(
        edge.bytes / (rates(machine, executors, kind)[level] * executors)
        for kind in ("write", "read")
    )
    return float(moved) + edge.count * meeting(place, machine)


def meeting(place: EdgePlace, machine: Machine) -> float:
    """Seconds from the end of what writes to the begin of what reads, beside moving the bytes."""
    sync = machine.sync
    fill, poll = 0.0, 0.0
    if machine.blocks is not None:
        fill, poll = machine.blocks.fill, machine.blocks.poll
    return {
        EdgePlace.COUNTER: sync.counter,
        EdgePlace.BARRIER: sync.barrier,
        EdgePlace.LAUNCH: sync.step + fill if machine.blocks is not None else sync.dispatch,
        EdgePlace.HOST: poll + sync.dispatch + fill,
    }.get(place, 0.0)


def runner_up(edge: Edge, machine: Machine) -> EdgePlace | None:
    """The cheapest of the other places."""
    return min(edge.others, key=lambda place: seconds(edge, place, machine), default=None)


def edges(plan: Any, kernels: Mapping[str, Op]) -> list[Edge]:
    """The edges of a plan, and those within its kernels (by name), in program order; edges alike
    are one. A kernel that several steps run has its own edges once for each."""
    found: dict[Edge, Edge] = {}
    for one in (*_between(plan), *_within(plan, kernels)):
        key = replace(one, bytes=0, tile=0)
        known = found.get(key)
        if known is not None:
            one = replace(one, bytes=known.bytes + one.bytes, count=known.count + one.count)
        found[key] = one
    return [*found.values()]


# Between the steps of a plan.


def _between(plan: Any) -> Iterator[Edge]:
    names = [_name(plan, step) for step in plan.steps]
    order = _PlanOrder(plan)
    writers: dict[int, int] = {}  # the last one, by buffer
    begins = {
        step.jump.target: number
        for number, step in enumerate(plan.steps)
        if step.WhichOneof("action") == "jump" and step.jump.target <= number
    }
    later = _written_later(plan, begins)
    for number, step in enumerate(plan.steps):
        read, written = _touched(step)
        decides = step.WhichOneof("action") in ("branch_if_false", "switch")
        for buffer in dict.fromkeys(read):
            bytes = _size(plan, buffer)
            kind = "predicate" if decides else "data"
            if buffer in writers:
                writer = writers[buffer]
                place, others = order.place(writer, number, kind, [*range(writer + 1, number + 1)])
                yield Edge(kind, names[writer], names[number], bytes, place, others)
            if (number, buffer) in later:
                writer, begin, end = later[number, buffer]
                way = [*range(writer + 1, end), *range(begin, number + 1)]
                place, others = order.place(writer, number, kind, way)
                yield Edge("turn", names[writer], names[number], bytes, place, others)
        writers.update(dict.fromkeys(written, number))


def _written_later(
    plan: Any, begins: Mapping[int, int]
) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Of (step, buffer) the step that writes in the turn before what this one reads, and where that
    loop begins and ends."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for begin, end in begins.items():
        last: dict[int, int] = {}
        for number in range(begin, end):
            last.update(dict.fromkeys(_touched(plan.steps[number])[1], number))
        fresh: set[int] = set()
        for number in range(begin, end):
            read, written = _touched(plan.steps[number])
            for buffer in read:
                if buffer in last and buffer not in fresh:
                    found.setdefault((number, buffer), (last[buffer], begin, end))
            fresh.update(written)
    return found


class _PlanOrder:
    """What orders the steps of a plan."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.counted = plan, bool(plan.ranges)
        self.on_gpu = plan.target.partition(":")[0] == "nvidia"

    def place(
        self, writer: int, reader: int, kind: str, way: Sequence[int]
    ) -> tuple[EdgePlace, tuple[EdgePlace, ...]]:
        """Where an edge between two steps lies, and where else it could. way: the steps from behind
        the one up to the other."""
        steps = self.plan.steps
        if self.on_gpu:
            decides = (EdgePlace.HOST,) if kind == "predicate" else ()
            if self.plan.HasField("persistent"):
                return EdgePlace.BARRIER, (EdgePlace.LAUNCH, *decides)
            if decides and self.plan.schedule != "graph":
                return EdgePlace.HOST, (EdgePlace.LAUNCH, EdgePlace.BARRIER)
            return EdgePlace.LAUNCH, (EdgePlace.BARRIER, *decides)
        action = steps[reader].WhichOneof("action")
        message = getattr(steps[reader], action)
        if message.each and getattr(steps[writer], steps[writer].WhichOneof("action")).each:
            return EdgePlace.REG, (EdgePlace.COUNTER, EdgePlace.BARRIER)
        if not self.counted:
            return EdgePlace.BARRIER, (EdgePlace.COUNTER,)
        met = any(map(self.meets, way))
        chosen = EdgePlace.BARRIER if met else EdgePlace.COUNTER
        return chosen, (EdgePlace.COUNTER if met else EdgePlace.BARRIER,)

    def meets(self, number: int) -> bool:
        """Whether all workers meet before a step."""
        step = self.plan.steps[number]
        action = step.WhichOneof("action")
        return action not in (None, "jump") and getattr(step, action).wait


def _touched(step: Any) -> tuple[list[int], list[int]]:
    """The buffers that a step reads, and those that it writes."""
    action = step.WhichOneof("action")
    if action == "run":
        buffers = [one.buffer for one in step.run.arguments]
        return buffers[: step.run.operands], buffers[step.run.operands :]
    if action == "branch_if_false":
        return [step.branch_if_false.condition.buffer], []
    if action == "switch":
        return [step.switch.index.buffer], []
    if action in ("exchange", "collective"):
        message = getattr(step, action)
        return [message.operand.buffer], [message.result.buffer]
    return [], []


def _name(plan: Any, step: Any) -> str:
    action = step.WhichOneof("action")
    if action == "run":
        return plan.kernels[step.run.kernel].name
    return {"branch_if_false": "branch"}.get(action, str(action))


def _size(plan: Any, number: int) -> int:
    return int(plan.buffers[number].bytes)


# Within kernels.


def _within(plan: Any, kernels: Mapping[str, Op]) -> Iterator[Edge]:
    runs: dict[str, int] = {}
    for step in plan.steps:
        if step.WhichOneof("action") == "run":
            name = plan.kernels[step.run.kernel].name
            runs[name] = runs.get(name, 0) + 1
    away = EdgePlace.LAUNCH if plan.target.partition(":")[0] == "nvidia" else EdgePlace.BARRIER
    for name, op in kernels.items():
        for one in _of_kernel(name, op, away):
            yield from [one] * runs.get(name, 0)


def _of_kernel(name: str, op: Op, away: EdgePlace) -> Iterator[Edge]:
    """away: where the value would lie if the kernel were two."""
    if kernel_kind(op) == "opaque" or not op.regions:
        return
    counts = dict(trips(op)) if op.name == "kernel_call" else {}
    inside = set(op.regions[0].walk())
    for region in (op.regions[0], *_loops(op.regions[0])):
        kept = _read_again(region)
        for inner in region.ops:
            for value in dict.fromkeys(inner.operands):
                made = value.op
                if made is None or made not in inside or not _is_element(value, made):
                    continue
                scratch = value in kept or inner.definition.pattern == "contract"
                place = EdgePlace.SCRATCH if scratch else EdgePlace.REG
                other = EdgePlace.REG if scratch else EdgePlace.SCRATCH
                bytes = int(at_hint(value.tensor.bytes)) * counts.get(made, 1)
                others = (away,) if scratch else (other, away)
                yield Edge(
                    "data", f"{name}: {made.name}", inner.name, bytes, place, others,
                    int(at_hint(value.tensor.bytes)) if counts else 0,
                )  # fmt: skip
        yield from _carried(name, region, counts, away)


def _carried(
    name: str, region: Region, counts: Mapping[Op, int], away: EdgePlace
) -> Iterator[Edge]:
    """What loops of tiles carry from turn to turn."""
    for op in region.ops:
        if op.name != "tile_for":
            continue
        body = op.regions[0]
        turns = max((counts.get(inner, 1) for inner in body.ops), default=1)
        for value in body.results:
            if value.tensor.rank:
                size = int(at_hint(value.tensor.bytes))
                made = value.op.name if value.op is not None else "argument"
                yield Edge(
                    "turn", f"{name}: {made}", op.name, size * turns,
                    EdgePlace.SCRATCH, (away,), size,
                )  # fmt: skip


def _loops(region: Region) -> Iterator[Region]:
    for op in region.ops:
        if op.name == "tile_for" or op.definition.pattern == "control":
            for body in op.regions:
                yield body
                yield from _loops(body)


def _is_element(value: Value, made: Op) -> bool:
    """Whether it is an edge: no constant, no scalar of addresses, and nothing that only loads."""
    return bool(value.tensor.rank) and made.name != "constant" and made.name not in TILE_OPS


def _read_again(region: Region) -> set[Value]:
    """The values that are read by a reduction and by what depends on that: whole rows are kept."""
    behind: dict[Value, set[Op]] = {}  # the reductions that a value depends on
    kept: set[Value] = set()
    readers: dict[Value, list[Op]] = {}
    for op in region.ops:
        sources = set[Op]().union(*(behind.get(value, set()) for value in op.operands))
        for value in op.operands:
            for other in readers.get(value, ()):
                if other in sources:
                    kept.add(value)
            if op.definition.pattern == "reduce":
                readers.setdefault(value, []).append(op)
        own = sources | {op} if op.definition.pattern == "reduce" else sources
        behind.update(dict.fromkeys(op.results, own))
    return kept
