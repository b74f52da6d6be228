"""Why a program's devices send what they send: `explain(found, choice)`.

    for row in explain(found, choice).rows:
        print(row)

Rows are those of `communications`, each with the annotations from which its two sides follow and
the ways on which they came there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Op, Region, Value
from ...hlo.sharding import Axis, Mesh, Sharding
from ...hlo.types import TensorType
from .choice import ShardingChoice, Way
from .communications import MANUAL, RESHARD, CommunicationSite, communications
from .interconnect import USUAL, Interconnect
from .moves import EXCHANGE
from .propagated import Propagated
from .provenance import Annotation, Provenance, Reason, place_of
from .reshard import ReshardPlan, plan_reshard

ALTERNATIVES = 2
"""Ways to compute an operation that a row lists, and of each operation that are compared."""


@dataclass(frozen=True)
class ShardingNeed:
    """Who needs the value as it lies afterwards: the operation, its file:line, and the annotation
    that it is, if it is one."""

    name: str
    place: str
    annotation: Annotation | None = None

    def __str__(self) -> str:
        said = "" if self.annotation is None else f" ({self.annotation.id})"
        return f"{self.name}{said}" + (f" at {self.place}" if self.place else "")


@dataclass(frozen=True)
class Alternative:
    """Another way, and how many bytes more (or, negative, fewer) a device would receive in a step.

    work: how much dearer the step would be in all, computing and memory included, in bytes
    received; None where only the way of sending differs. seconds: of sending, in that case.
    """

    text: str
    bytes: float
    work: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class ExplanationRow:
    """One communication, and why it is there.

    of, place: what makes the value, and its file:line. needs: who wants it otherwise. before,
    after: why each axis that comes or goes is there. moves: what sends, in order. Everything else
    is as in `communication`.
    """

    communication: CommunicationSite
    of: str
    place: str
    needs: tuple[ShardingNeed, ...]
    before: tuple[Reason, ...]
    after: tuple[Reason, ...]
    moves: tuple[str, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Those from which the row follows, by number."""
        reasons = (reason.annotation for reason in (*self.before, *self.after))
        found = {*reasons, *(need.annotation for need in self.needs)} - {None}
        return tuple(sorted((a for a in found if a is not None), key=lambda a: a.number))

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {
            **self.communication.facts(),
            "of": f"{self.place}: {self.of}" if self.place else self.of,
            "operation": self.of,
            "annotations": [annotation.id for annotation in self.annotations],
            "needed_by": [str(need) for need in self.needs],
            "why": [_reason(reason) for reason in self.before],
            "why_afterwards": [_reason(reason) for reason in self.after],
            "moves": list(self.moves),
            "alternatives": [asdict(other) for other in self.alternatives],
        }

    def __str__(self) -> str:
        lines = [str(self.communication)]
        lines += [f"  it is {reason}" for reason in self.before]
        lines += [f"  it is needed {reason}" for reason in self.after]
        lines += [f"  is needed by {need}" for need in self.needs]
        return "\n".join(lines)


@dataclass(frozen=True)
class Held:
    """An argument or a result of the program: how it lies, and a device's block of it, in bytes
    (without what pads the last one)."""

    name: str
    type: TensorType
    sharding: Sharding
    annotation: Annotation | None
    bytes: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """`rows`: the communications of a program, in its order. `annotations`: all of them, by number.
    `arguments`, `results`: what each device holds."""

    mesh: Mesh
    rows: tuple[ExplanationRow, ...]
    annotations: tuple[Annotation, ...]
    arguments: tuple[Held, ...]
    results: tuple[Held, ...]

    @property
    def bytes(self) -> float:
        """Bytes that a device receives in one step, the mean of all."""
        return sum(row.communication.total for row in self.rows)

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {
            "mesh": dict(self.mesh.axes),
            "bytes": self.bytes,
            "annotations": [{"id": a.id, **asdict(a)} for a in self.annotations],
            "arguments": [_held(held) for held in self.arguments],
            "results": [_held(held) for held in self.results],
            "communications": [row.facts() for row in self.rows],
        }


def explain(
    found: Propagated, choice: ShardingChoice, interconnect: Interconnect = USUAL
) -> Explanation:
    """Every communication of a program that is decided, and why it is there."""
    explainer = _Explainer(found, choice, interconnect)
    rows = communications(choice.module, interconnect)
    return Explanation(
        explainer.provenance.mesh,
        tuple(map(explainer.row, rows)),
        explainer.provenance.annotations,
        *explainer.held(),
    )


class _Explainer:
    def __init__(
        self, found: Propagated, choice: ShardingChoice, interconnect: Interconnect
    ) -> None:
        self.found, self.choice, self.interconnect = found, choice, interconnect
        self.provenance = Provenance(found, choice.decided)

    def row(self, sent: CommunicationSite) -> ExplanationRow:
        why = self.provenance.why
        value, op, plan = sent.value, sent.op, sent.plan
        before: list[Reason] = []
        after: list[Reason] = []
        moves: list[str] = []
        needs = [ShardingNeed(op.name, place_of(op))]
        if sent.kind == MANUAL:
            before = [self.provenance.inside(op, axis) for axis in sent.axes]
        elif plan is None:
            for operand in dict.fromkeys(op.operands):
                before += [why(operand, dim, axis) for dim, axis in _along(operand, sent.axes)]
        else:
            other = op.results[0]
            before = [why(value, *cut) for cut in _changing(plan.source, plan.target)]
            after = [why(other, *cut) for cut in _changing(plan.target, plan.source)]
            needs = list(dict.fromkeys(map(self.need, self.choice.decided.uses[op])))
            moves = [str(move) for move in plan.moves]
        return ExplanationRow(
            sent, self.provenance.made(value), self.provenance.place(value), tuple(needs),
            tuple(before), tuple(after), tuple(moves), tuple(self.alternatives(sent)),
        )  # fmt: skip

    def need(self, use: tuple[Op | Region, int]) -> ShardingNeed:
        user, number = use
        if not isinstance(user, Region):
            return ShardingNeed(user.name, place_of(user), self.provenance.demanded(use))
        owner = self.provenance.owners.get(user)
        if owner is not None:
            return ShardingNeed(owner.name, place_of(owner))
        value = user.results[number]
        place = "" if value.op is None else place_of(value.op)
        return ShardingNeed(f"result {number}", place, self.provenance.stated.get(value))

    def alternatives(self, sent: CommunicationSite) -> list[Alternative]:
        """The other way to send; the next best ways to compute what makes the value and what
        needs it."""
        found: list[Alternative] = []
        times = 1 if sent.times is None else sent.times
        plan = sent.plan
        if plan is not None and sent.kind == RESHARD:
            found += _other_plans(plan, times, self.interconnect)
        origins = self.choice.decided.origins
        made = [one.op for one in origins.get(sent.value, ()) if one.op is not None]
        used = [user for user, _ in self.choice.decided.uses.get(sent.op, ())]
        ops = [op for op in dict.fromkeys((*made, *used)) if isinstance(op, Op)]
        ways = [(op, way) for op in ops for way in self.choice.others(op)[:ALTERNATIVES]]
        ways.sort(key=lambda one: one[1].price)
        return found + [
            Alternative(_computed(op, way), way.bytes, way.price) for op, way in ways[:ALTERNATIVES]
        ]

    def held(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        body, signature = self.found.module.body, self.found.module.signature
        names = [f"result[{n}]" for n in range(len(body.results))]
        if signature is not None:
            names = [result.path for result in signature.results]
        arguments = [
            (self.provenance.names[value].removeprefix("argument "), value)
            for value in body.arguments
        ]
        results = list(zip(names, body.results, strict=True))
        given, gives = (
            tuple(
                self.one_held(name, value)
                for name, value in values
                if isinstance(value.type, TensorType)
            )
            for values in (arguments, results)
        )
        return given, gives

    def one_held(self, name: str, value: Value) -> Held:
        sharding = self.found.shardings[value]
        kind = value.tensor
        count = 1
        for size in sharding.local_dims(self.provenance.mesh, kind.dims):
            count *= size
        said = self.provenance.stated.get(value)
        return Held(
            name,
            TensorType(kind.dims, kind.element),
            sharding,
            said,
            count * kind.element.bits // 8,
        )


def _other_plans(plan: ReshardPlan, times: int, interconnect: Interconnect) -> list[Alternative]:
    """Collectives alone where the plan has an exchange, else one exchange."""
    if all(move.kind != EXCHANGE for move in plan.moves):
        other, text = sum(plan.least) / len(plan.least), "what is missing, each element once"
        return [Alternative(text, times * (other - plan.mean))] if other != plan.mean else []
    try:
        chain = plan_reshard(
            plan.mesh, plan.dims, plan.itemsize, plan.source, plan.target, interconnect, False
        )
    except UserError:
        return []
    text = ", ".join(move.kind for move in chain.moves if any(move.received))
    return [Alternative(text, times * (chain.mean - plan.mean), seconds=times * chain.seconds)]


def _computed(op: Op, way: Way) -> str:
    """A way to compute an operation, as a user says shardings."""
    given, gives = (
        " and ".join(spec_of(lying) for lying in ways if lying is not None) or "nothing"
        for ways in (way.state.operands, way.state.results)
    )
    place = place_of(op)
    return f"{f'{place}: ' if place else ''}{op.name} of {given} gives {gives}"


def spec_of(sharding: Sharding) -> str:
    """A sharding as `--shard` takes it: `data,-`; unreduced axes are added in words."""
    dims = ["+".join(str(a).replace('"', "") for a in dim.axes) or "-" for dim in sharding.dims]
    pending = ", ".join(str(axis).replace('"', "") for axis in sharding.unreduced)
    text = ",".join(dims) or "a scalar"
    return f"{text} (unreduced over {pending})" if pending else text


def _changing(one: Sharding, other: Sharding) -> list[tuple[int | None, Axis]]:
    """The axes of one sharding that are not in the same place of the other."""
    found: list[tuple[int | None, Axis]] = []
    for dim, (here, there) in enumerate(zip(one.dims, other.dims, strict=True)):
        same = 0
        while same < min(len(here.axes), len(there.axes)) and here.axes[same] == there.axes[same]:
            same += 1
        found += [(dim, axis) for axis in here.axes[same:]]
    return found + [(None, axis) for axis in one.unreduced if axis not in other.unreduced]


def _along(value: Value, names: Sequence[str]) -> list[tuple[int | None, Axis]]:
    """Where axes of these names cut a value."""
    sharding = value.tensor.sharding if isinstance(value.type, TensorType) else None
    dims = () if sharding is None else sharding.dims
    return [(n, axis) for n, dim in enumerate(dims) for axis in dim.axes if axis.name in names]


def _reason(reason: Reason) -> dict[str, Any]:
    said = reason.annotation
    return {
        "dim": reason.dim,
        "axis": reason.axis,
        "annotation": None if said is None else said.id,
        "how": reason.how,
        "chain": [str(step) for step in reason.steps],
    }


def _held(held: Held) -> dict[str, Any]:
    return {
        "name": held.name, "type": str(held.type), "sharding": str(held.sharding),
        "annotation": None if held.annotation is None else held.annotation.id,
        "bytes": held.bytes,
    }  # fmt: skip
