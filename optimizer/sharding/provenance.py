"""Why a value of a decided program is cut by an axis: the way back to the annotation that said so.

    reason = Provenance(found, choice.decided).why(value, 0, Axis("model"))

Propagation knows the way of each axis that it gave (`Propagated.chain`). Where the choice let a
value lie in another way, the axis came from a neighbour: an operand or a result of the same
operation that holds the same factor; or of another factor, where the choice let the axis cut that
one instead. The shortest such way leads to a value that lies as propagation said.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...hlo.conflicts import sharding_of
from ...hlo.factors import FactorKind, Factors
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.sharding import Axis, Sharding
from ...hlo.types import TensorType
from .decide import Decided, Use
from .parts import Part, of_axes, overlap, to_axes
from .propagated import Propagated

ARGUMENT, WEIGHT, CONSTRAINT, RESULT, MANUAL = (
    "argument", "weight", "constraint", "result", "manual region",
)  # fmt: skip
_ASIDE = 100  # steps of the same factor that one to another factor is worth

_FAR = 10_000  # and one to a value that the axis does not cut
_NOWHERE = -1  # the dim there

_Place = tuple[Value, int | None, Part]  # the dim is None where the value is unreduced


@dataclass(frozen=True)
class Annotation:
    """What the user said of one value.

    number: in the order of the program, from 0. kind: argument, weight, constraint, result or
    manual region. name: of an argument, weight or result; else of the operation. place: file:line,
    empty where the program does not say. sharding: in Shardy's words.
    """

    number: int
    kind: str
    name: str
    place: str
    sharding: str

    @property
    def id(self) -> str:
        """What rows call it."""
        return f"a{self.number}"

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        return f"{self.id}, {self.kind} {self.name}{where}: {self.sharding}"


class ProvenanceStep(NamedTuple):
    """`axis` cuts dim `dim` of a value (None: the value is unreduced over it), which `value`, an
    operation or an argument, makes at `place` (file:line, or empty). Of a manual computation `axis`
    is empty."""

    value: str
    place: str
    dim: int | None
    axis: str

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        if not self.axis:
            return f"{self.value}{where}"
        how = "unreduced over" if self.dim is None else f"dim {self.dim} by"
        return f"{self.value}{where}: {how} {self.axis}"


@dataclass(frozen=True)
class Reason:
    """Why an axis cuts a dim of a value (None: why the value is unreduced over it, or why a manual
    computation sends along it): the way from the annotation to the value, both included."""

    dim: int | None
    axis: str
    annotation: Annotation | None
    steps: tuple[ProvenanceStep, ...]

    @property
    def how(self) -> str:
        """What the reason is of, in words that follow `it is`."""
        if self.dim is not None:
            return f"cut in dim {self.dim} by {self.axis}"
        manual = self.annotation is not None and self.annotation.kind == MANUAL
        return f"{'sent by hand along' if manual else 'unreduced over'} {self.axis}"

    def __str__(self) -> str:
        return f"{self.how}: {self.annotation or 'no annotation'}"


class Provenance:
    """Of one decided program."""

    def __init__(self, found: Propagated, decided: Decided) -> None:
        self.found, self.decided = found, decided
        self.mesh = next(iter(decided.module.meshes.values()))
        name = next((s.mesh for s in found.shardings.values()), None)
        if name is not None:
            self.mesh = decided.module.meshes[name]
        self.names = _names(found.module)
        self.stated = dict(_annotations(found.module, self.names))
        self.owners = {r: op for op in found.module.body.walk() for r in op.regions}
        self.demands: dict[Value, Annotation] = {}
        for op, said in self.stated.items():
            for value in op.operands if isinstance(op, Op) else ():
                self.demands.setdefault(value, said)
        self.users: dict[Value, list[Op]] = {}
        for op in decided.module.body.walk():
            for value in dict.fromkeys(op.operands):
                self.users.setdefault(value, []).append(op)
        self._known: dict[_Place, Reason] = {}
        self._factors: dict[Op, Factors | None] = {}
        self._cuts: dict[tuple[Value, Part], list[int | None]] = {}
        self._manual: dict[Op, Op] = {}  # of the decided program -> the computation that it is in
        for op in decided.module.body.walk():
            if op.name == "sdy.manual_computation":
                self._manual.update((inner, op) for inner in op.regions[0].walk())

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """All of the program, by number."""
        return tuple(dict.fromkeys(self.stated.values()))

    def made(self, value: Value) -> str:
        """What makes a value, of the decided program or the propagated one."""
        while value.op is not None and self.decided.uses.get(value.op):
            value = value.op.operands[0]
        value = next(iter(self.decided.origins.get(value, ())), value)
        if value in self.names:
            return self.names[value]
        if value.op is None:
            return "a value that a region gets"
        return f"weight {value.op.weight}" if value.op.name == "weight" else value.op.name

    def place(self, value: Value) -> str:
        """file:line of what makes a value; of an argument the first use's."""
        while value.op is not None and self.decided.uses.get(value.op):
            value = value.op.operands[0]
        if value.op is not None and value.op.place:
            return place_of(value.op)
        return next((place_of(op) for op in self.users.get(value, ()) if op.place), "")

    def demanded(self, use: Use) -> Annotation | None:
        """The annotation that a use is: a constraint, or a manual computation."""
        user = use[0]
        return None if isinstance(user, Region) else self.stated.get(user)

    def why(self, value: Value, dim: int | None, axis: Axis) -> Reason:
        """The way on which an axis came to a dim of a value of the decided program; dim None: to
        its unreduced axes."""
        (part,) = of_axes(self.mesh, [axis])
        start = (value, dim, part)
        if start not in self._known:
            self._known[start] = self._searched(start)
        return self._known[start]

    def inside(self, op: Op, axis: str) -> Reason:
        """Why an operation in a manual computation sends along an axis: it was written so."""
        while op in self._manual:
            op = self._manual[op]
        same = next((one.op for v in op.results for one in self.decided.origins.get(v, ())), None)
        annotation = None if same is None else self.stated.get(same)
        return Reason(None, axis, annotation, (ProvenanceStep(op.name, place_of(op), None, ""),))

    def _searched(self, start: _Place, far: bool = False) -> Reason:
        """far: also by values that the axis does not cut, where the choice divides work that every
        device would do otherwise."""
        shown = str(to_axes(self.mesh, [start[2]])[0]).replace('"', "")
        heap: list[tuple[int, int, _Place]] = [(0, 0, start)]
        before: dict[tuple[Value, int | None], _Place | None] = {start[:2]: None}
        costs = {start[:2]: 0}
        done: set[tuple[Value, int | None]] = set()
        count = 0
        while heap:
            cost, _, place = heapq.heappop(heap)
            if place[:2] in done:
                continue
            done.add(place[:2])
            said = self._said(place)
            if said is not None:
                annotation, steps = said
                back: _Place | None = before[place[:2]]
                while back is not None:
                    steps.append(self._step(back))
                    back = before[back[:2]]
                return Reason(start[1], shown, annotation, _without_repeats(steps))
            for price, other in self._near(place, far):
                total = cost + price
                if total < costs.get(other[:2], total + 1):
                    costs[other[:2]], before[other[:2]] = total, place
                    count += 1
                    heapq.heappush(heap, (total, count, other))
        if not far:
            return self._searched(start, far=True)
        return Reason(start[1], shown, None, (self._step(start),))

    def _step(self, place: _Place) -> ProvenanceStep:
        value, dim, part = place
        if dim == _NOWHERE:
            return ProvenanceStep(self.made(value), self.place(value), None, "")
        axis = str(to_axes(self.mesh, [part])[0]).replace('"', "")
        at = "" if value.op is None else self.place(value)
        return ProvenanceStep(self.made(value), at, dim, axis)

    def _said(self, place: _Place) -> tuple[Annotation | None, list[ProvenanceStep]] | None:
        """The annotation, and the way from it, where propagation or a use says that it is so."""
        value, dim, part = place
        if dim == _NOWHERE:
            return None
        same = [*self.decided.origins.get(value, ())]
        if value.op is not None:
            same += filter(None, map(self._required, self.decided.uses.get(value.op, ())))
        for one in same:
            said = self.found.shardings.get(one)
            if said is None:
                continue
            cuts = said.unreduced if dim is None else said.dims[dim].axes
            held = zip(cuts, of_axes(self.mesh, cuts), strict=True)
            axis = next((axis for axis, other in held if overlap(other, part)), None)
            if axis is not None:
                return self._chain(one, dim, axis)
        return None

    def _required(self, use: Use) -> Value | None:
        """The value of the propagated program that lies as a use without a choice wants it."""
        user, number = use
        if isinstance(user, Region):
            owner = self.owners.get(user)
            if owner is None:
                return user.results[number]
            if owner.name != "while":
                return owner.results[number] if number < len(owner.results) else None
            return user.arguments[number] if user is owner.regions[1] else None
        if user.name == "sharding_constraint":
            return user.results[0]
        return user.regions[1].arguments[number] if user.name == "while" else None

    def _chain(
        self, value: Value, dim: int | None, axis: Axis
    ) -> tuple[Annotation | None, list[ProvenanceStep]]:
        if dim is None:
            return self.stated.get(value), [
                ProvenanceStep(self.made(value), self.place(value), None, "")
            ]
        annotation: Annotation | None = None
        steps: list[ProvenanceStep] = []
        for hop in self.found.chain(value, dim, axis):
            at = "" if hop.value.op is None else place_of(hop.value.op)
            cut = str(hop.axis).replace('"', "")
            steps.append(ProvenanceStep(self.made(hop.value), at, hop.dim, cut))
            annotation = self.stated.get(hop.value)
            if hop.op is not None:
                annotation = self.stated.get(hop.op, annotation)
            if annotation is None:  # what takes a value may say it
                annotation = self.demands.get(hop.value)
        return annotation, steps[::-1]

    def _near(self, place: _Place, far: bool) -> Iterator[tuple[int, _Place]]:
        """Where the axis is in the operations that make or use the value."""
        value, dim, part = place
        ops = [] if value.op is None else [value.op]
        for op in (*ops, *self.users.get(value, ())):
            values = (*op.operands, *op.results)
            if op not in self._factors:
                reshard = op.name == "sharding_constraint"
                self._factors[op] = None if reshard else op.definition.divide(op)
            factors = self._factors[op]
            for number, other in enumerate(values):
                if not isinstance(other.type, TensorType):
                    continue
                held = self._held(other, part)
                if far and not held:
                    yield _FAR, (other, _NOWHERE, part)
                for there in held:
                    if other is value and there == dim:
                        continue
                    if dim == _NOWHERE:
                        alike = False
                    elif factors is None:
                        alike = there == dim
                    elif there is None:
                        alike = dim is None
                    else:
                        own = _factors_at(factors, values, value, dim, len(op.operands))
                        alike = bool(own.intersection(factors.tensors[number][there]))
                    yield (1 if alike else _ASIDE), (other, there, part)

    def _held(self, value: Value, part: Part) -> list[int | None]:
        """The dims of a decided value that a part of an axis cuts."""
        key = value, part
        if key not in self._cuts:
            sharding = sharding_of(value)
            dims = () if sharding is None else sharding.dims
            pending = () if sharding is None else sharding.unreduced
            ways = [*enumerate(dim.axes for dim in dims), (None, pending)]
            self._cuts[key] = [
                number
                for number, axes in ways
                if any(overlap(other, part) for other in of_axes(self.mesh, axes))
            ]
        return self._cuts[key]


def _without_repeats(steps: Sequence[ProvenanceStep]) -> tuple[ProvenanceStep, ...]:
    """Values that one operation of the user's makes one after another look the same."""
    return tuple(s for n, s in enumerate(steps) if not n or s != steps[n - 1])


def _factors_at(
    factors: Factors, values: Sequence[Value], value: Value, dim: int | None, operands: int
) -> set[int]:
    """The factors that a dim of a value holds; dim None: those that leave a result unreduced."""
    found: set[int] = set()
    for number, other in enumerate(values):
        if other is not value:
            continue
        if dim is not None:
            found.update(factors.tensors[number][dim])
        elif number >= operands:
            found.update(factors.of_kind(FactorKind.REDUCTION))
    return found


def place_of(op: Op) -> str:
    """file:line of an operation; its name in the framework, or nothing, where that is unknown."""
    place = next((f"{origin.file}:{origin.line}" for origin in op.origin if origin.file), "")
    return place or op.place.removesuffix(": ")


def _names(module: Module) -> dict[Value, str]:
    """The arguments of the entry, as the user calls them."""
    body = module.body
    paths = [f"input[{n}]" for n in range(len(body.arguments))]
    if module.signature is not None:
        paths = [argument.path for argument in module.signature.arguments]
    return {value: f"argument {path}" for value, path in zip(body.arguments, paths, strict=True)}


def _annotations(
    module: Module, names: dict[Value, str]
) -> Iterator[tuple[Value | Op, Annotation]]:
    """By the value and by the operation that has it."""
    body, count = module.body, 0
    for value in body.arguments:
        sharding = value.tensor.sharding if isinstance(value.type, TensorType) else None
        if _says(sharding):
            name = names[value].removeprefix("argument ")
            yield value, Annotation(count, ARGUMENT, name, "", str(sharding))
            count += 1
    results = {value: number for number, value in enumerate(body.results)}
    for op in body.walk():
        if op.name == "sharding_constraint" and _says(op.results[0].tensor.sharding):
            made = op.operands[0].op
            kind, name = CONSTRAINT, op.name
            if made is not None and made.name == "weight":
                kind, name = WEIGHT, module.weights[made.weight].name
            elif op.stated == "result" and op.results[0] in results:
                kind, name = RESULT, str(results[op.results[0]])
            said = str(op.results[0].tensor.sharding)
        elif op.name == "sdy.manual_computation":
            kind, name = MANUAL, op.name
            said = f"manual axes {', '.join(op.manual_axes)}"
        else:
            continue
        annotation = Annotation(count, kind, name, place_of(op), said)
        count += 1
        yield op, annotation
        for value in op.results:
            yield value, annotation


def _says(sharding: Sharding | None) -> bool:
    """Whether it is more than open dims."""
    return sharding is not None and (
        bool(sharding.axes) or any(not dim.open for dim in sharding.dims)
    )
