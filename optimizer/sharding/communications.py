"""What a decided program sends: each communication with its bytes, its line, and why it is there.

    for row in communications(decided):
        print(row)

A reshard is a `sharding_constraint` whose operand lies in another way; a reduction is one that ends
a value which is unreduced. What operations send inside of them (halos, boxes) is `inner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...hlo.conflicts import sharding_of
from ...hlo.errors import UserError
from ...hlo.factors import FactorKind
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.types import unsharded
from ...options import bytes_of
from ..counters import counters, turns
from .inner import inner_bytes
from .interconnect import USUAL, Interconnect
from .partition.partitioner import axes_of_factors
from .reshard import ReshardPlan, plan_reshard

RESHARD, REDUCTION, INNER = "reshard", "reduction", "inner"


@dataclass(frozen=True, eq=False)
class Communication:
    """One place of a decided program where devices send.

    op: the `sharding_constraint`, or the operation that sends inside. plan: of a reshard or a
    reduction. bytes: what a device receives each time, the mean of all devices. times: how often a
    step of the program does it; None where data decides. axes: the mesh axes along which.
    """

    number: int
    kind: str
    op: Op
    plan: ReshardPlan | None
    bytes: float
    times: int | None
    axes: tuple[str, ...]

    @property
    def value(self) -> Value:
        """The value that lies in another way afterwards; of `inner` the result."""
        return self.op.results[0] if self.plan is None else self.op.operands[0]

    @property
    def total(self) -> float:
        """Bytes that a device receives in one step; where data decides how often, those of once."""
        return self.bytes * (1 if self.times is None else self.times)

    @property
    def seconds(self) -> float:
        """What the interconnect says that it takes each time; 0 of `inner`, which is not told."""
        return 0.0 if self.plan is None else self.plan.seconds

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
        """How the value lies before; empty of `inner`."""
        return "" if self.plan is None else str(self.plan.source)

    @property
    def target(self) -> str:
        """How it lies afterwards; empty of `inner`."""
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
) -> tuple[Communication, ...]:
    """All of them, in the order of the program.

    decided: at level DECIDED. Their `total` bytes are those that `interpret_parallel` counts over
    the partitioned program, but where data decides how often a loop turns or which way is taken.
    """
    found: list[Communication] = []
    for op, times in walk_turns(decided.body):
        if op.name == "sdy.manual_computation":
            continue
        row = _of(decided, op, times, len(found), interconnect)
        if row is not None:
            found.append(row)
    return tuple(found)


def require_budget(rows: Sequence[Communication], text: str) -> None:
    """UserError, with the rows, where a device receives more than a budget such as
    `total=64MiB,op=8MiB,count=12,axis.model=32MiB`: in a step, by one communication in a step, how
    many communications there are, and along one mesh axis."""
    for part in text.split(","):
        what, equals, limit = (word.strip() for word in part.partition("="))
        known = what in ("total", "op", "count") or what.startswith("axis.")
        if not equals or not known:
            raise UserError(f"--max-comm: '{part}' is none of total=, op=, count= and axis.NAME=")
        over: Sequence[Communication] = rows
        if what == "count":
            most, found = _count(limit), float(len(rows))
        else:
            most = int(limit) if limit.isdecimal() else bytes_of(limit)
            if what == "op":
                over = [row for row in rows if row.total > most]
            elif what != "total":
                over = [row for row in rows if what.removeprefix("axis.") in row.axes]
            sizes = [row.total for row in over]
            found = max(sizes, default=0.0) if what == "op" else sum(sizes)
        if found > most:
            lines = "\n".join(f"  {row}" for row in over)
            raise UserError(
                f"--max-comm: {what} is {found:.12g}, at most {limit} allowed:\n{lines}"
            )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--max-comm: count is a number, not '{text}'")
    return int(text)


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
        elif op.name in ("case", "if"):
            inner = None
        for body in op.regions:
            yield from walk_turns(body, inner)


def _of(
    decided: Module, op: Op, times: int | None, number: int, interconnect: Interconnect
) -> Communication | None:
    if op.name != "sharding_constraint":
        return _inside(decided, op, times, number)
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
    return Communication(
        number, REDUCTION if folded else RESHARD, op, plan, plan.mean, times, tuple(names)
    )


def _inside(decided: Module, op: Op, times: int | None, number: int) -> Communication | None:
    factors = op.definition.divide(op)
    name = next((s.mesh for s in map(sharding_of, (*op.operands, *op.results)) if s), None)
    if factors is None or name is None:
        return None
    mesh = decided.meshes[name]
    axes = axes_of_factors(op, factors, mesh)
    size = inner_bytes(op, factors, axes, mesh)
    if not size:
        return None
    sends = (FactorKind.PERMUTATION, FactorKind.REPLICATE)
    held = zip(axes, factors.factors, strict=True)
    names = dict.fromkeys(axis.name for cut, factor in held if factor.kind in sends for axis in cut)
    return Communication(number, INNER, op, None, size, times, tuple(names))
