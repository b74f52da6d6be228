"""What a decided program sends: each communication with its bytes, its line, and why it is there.

    for row in communications(decided):
        print(row)

A reshard is a `sharding_constraint` whose operand lies in another way; a reduction is one that ends
a value which is unreduced. What operations send inside of them (halos, boxes) is `inner`; the
collectives that the user wrote into a manual computation are `manual`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...hlo.conflicts import sharding_of
from ...hlo.factors import FactorKind
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.groups import Groups
from ...hlo.ops.manual import mesh_of
from ...hlo.sharding import Mesh
from ...hlo.types import unsharded
from ..counters import counters, turns
from .inner import inner_bytes, shareable
from .interconnect import USUAL, Interconnect, seconds, slowest
from .partition.partitioner import axes_of_factors
from .reshard import ReshardPlan, plan_reshard

RESHARD, REDUCTION, INNER, MANUAL = "reshard", "reduction", "inner", "manual"


@dataclass(frozen=True, eq=False)
class CommunicationSite:
    """One place of a decided program where devices send.

    op: the `sharding_constraint`, the operation that sends inside, or the collective. plan: of a
    reshard or a reduction. bytes: what a device receives each time, the mean of all devices. times:
    how often a step of the program does it; None where data decides. axes: the mesh axes along
    which. seconds: what the interconnect says that it takes each time.
    """

    number: int
    kind: str
    op: Op
    plan: ReshardPlan | None
    bytes: float
    times: int | None
    axes: tuple[str, ...]
    seconds: float

    @property
    def value(self) -> Value:
        """The value that lies in another way afterwards; of others the result."""
        return self.op.results[0] if self.plan is None else self.op.operands[0]

    @property
    def total(self) -> float:
        """Bytes that a device receives in one step; where data decides how often, those of once."""
        return self.bytes * (1 if self.times is None else self.times)

    @property
    def collectives(self) -> tuple[str, ...]:
        """Kinds of the moves that send, in order."""
        if self.plan is None:
            return (self.op.name,)
        return tuple(move.kind for move in self.plan.moves if any(move.received))

    @property
    def made(self) -> str:
        """What makes the value, with its place in the user's program."""
        op = self.value.op
        return "an argument" if op is None else f"{op.place}{op.name}"

    @property
    def source(self) -> str:
        """How the value lies before; empty without a plan."""
        return "" if self.plan is None else str(self.plan.source)

    @property
    def target(self) -> str:
        """How it lies afterwards; empty without a plan."""
        return "" if self.plan is None else str(self.plan.target)

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {
            "number": self.number, "kind": self.kind, "of": self.made,
            "for": self.op.place.removesuffix(": "), "type": str(unsharded(self.value.type)),
            "from": self.source, "to": self.target, "collectives": list(self.collectives),
            "axes": list(self.axes), "bytes": self.bytes, "times": self.times,
            "seconds": self.seconds,
        }  # fmt: skip

    def __str__(self) -> str:
        ways = "" if self.plan is None else f"{self.plan.source} -> {self.plan.target}, "
        often = {None: ", as often as data says", 1: ""}.get(self.times, f", {self.times} times")
        return (
            f"#{self.number} {self.kind} of {self.made}: {ways}{', '.join(self.collectives)} "
            f"along {', '.join(self.axes)}: {self.bytes:.12g} bytes a device{often}"
        )


def communications(
    decided: Module, interconnect: Interconnect = USUAL
) -> tuple[CommunicationSite, ...]:
    """All of them, in the order of the program.

    decided: at level DECIDED. Their `total` bytes are those that `interpret_parallel` counts over
    the partitioned program, but where data decides how often a loop turns or which way is taken.
    """
    found: list[CommunicationSite] = []
    shared: set[Hashable] = set()
    homes = dict(_homes(decided.body))
    for op, times in walk_turns(decided.body):
        if op.name == "sdy.manual_computation":
            found += _in_manual(op.regions[0], mesh_of(op.mesh), times, len(found), interconnect)
            continue
        if op.name == "sharding_constraint":
            row = _of(decided, op, times, len(found), interconnect)
        else:
            row = _inside(decided, op, times, len(found), shared, homes[op], interconnect)
        if row is not None:
            found.append(row)
    return tuple(found)


def walk_turns(region: Region, times: int | None = 1) -> Iterator[tuple[Op, int | None]]:
    """The operations of a region, and how often each runs where the region runs `times` times;
    None where data decides."""
    for op in region.ops:
        yield op, times
        if op.name == "sdy.manual_computation" or op.definition.sealed:
            continue
        inner = times if op.name != "while" else None
        if op.name == "while" and times is not None:
            count = turns(op, counters(op))
            inner = None if count is None else times * count
        elif op.definition.flow == "branch":
            inner = None
        for body in op.regions:
            yield from walk_turns(body, inner)


def _in_manual(
    region: Region, mesh: Mesh, times: int | None, number: int, interconnect: Interconnect
) -> list[CommunicationSite]:
    """The collectives of a body that is written for one device; those inside of it too."""
    found: list[CommunicationSite] = []
    for op, often in walk_turns(region, times):
        if op.name == "sdy.manual_computation":
            found += _in_manual(op.regions[0], mesh, often, number + len(found), interconnect)
            continue
        size = op.definition.traffic(op, mesh.devices)
        if size:
            axes = _differing(mesh, op.definition.partners(op, mesh.devices))
            spent = _spent(axes, size, interconnect)
            row = CommunicationSite(number + len(found), MANUAL, op, None, size, often, axes, spent)
            found.append(row)
    return found


def _differing(mesh: Mesh, groups: Groups) -> tuple[str, ...]:
    """The axes along which the members of some group stand in different places."""
    ids = mesh.device_ids or range(mesh.devices)
    places = {device: mesh.coordinates(place) for place, device in enumerate(ids)}
    return tuple(
        name
        for name in mesh.names
        if any(len({places[device][name] for device in group}) > 1 for group in groups)
    )


def _of(
    decided: Module, op: Op, times: int | None, number: int, interconnect: Interconnect
) -> CommunicationSite | None:
    kind = op.operands[0].tensor
    source, target = kind.sharding, op.results[0].tensor.sharding
    assert source is not None and target is not None
    mesh = decided.meshes[source.mesh]
    kept = tuple(a for a in target.unreduced if a in source.unreduced)
    size = max(kind.element.bits // 8, 1)
    plan = plan_reshard(
        mesh, kind.dims, size, source, replace(target, unreduced=kept), interconnect
    )
    if not any(plan.received):
        return None
    folded = any(axis not in target.unreduced for axis in source.unreduced)
    names = dict.fromkeys(axis.name for move in plan.moves for axis in move.axes)
    return CommunicationSite(
        number, REDUCTION if folded else RESHARD, op, plan, plan.mean, times, tuple(names),
        plan.seconds,
    )  # fmt: skip


def _homes(region: Region) -> Iterator[tuple[Op, int]]:
    """A number of its region for each operation."""
    for op in region.ops:
        yield op, id(region)
        for body in op.regions:
            yield from _homes(body)


def _inside(
    decided: Module,
    op: Op,
    times: int | None,
    number: int,
    shared: set[Hashable],
    home: int,
    interconnect: Interconnect,
) -> CommunicationSite | None:
    """shared: what was fetched before, with its region's number; `home` is that of `op`."""
    factors = op.definition.divide(op)
    name = next((s.mesh for s in map(sharding_of, (*op.operands, *op.results)) if s), None)
    if factors is None or name is None:
        return None
    mesh = decided.meshes[name]
    axes = axes_of_factors(op, factors, mesh)
    size = inner_bytes(op, factors, axes, mesh) or 0.0
    for fetched, part in shareable(op, factors, axes, mesh).items():
        size -= part if (home, fetched) in shared else 0.0
        shared.add((home, fetched))
    if not size:
        return None
    sends = (FactorKind.PERMUTATION, FactorKind.REPLICATE)
    names = dict.fromkeys(
        axis.name
        for cut, factor in zip(axes, factors.factors, strict=True)
        if factor.kind in sends or (factor.kind is FactorKind.REDUCTION and factor.placed)
        for axis in cut
    )
    return CommunicationSite(
        number, INNER, op, None, size, times, tuple(names), _spent(names, size, interconnect)
    )


def _spent(axes: Iterable[str], size: float, interconnect: Interconnect) -> float:
    """Seconds of one call along these axes, in which a device gets one message of `size` bytes."""
    return seconds(slowest(map(interconnect.link, axes)), 1, size)
