"""Which other annotation would remove a communication: found by trying, so that it is known.

    for number, suggestion in suggest(found, choice).items():
        print(number, suggestion)

For each annotation from which a row follows: left out, its axis left out, its axis on another dim.
Each trial propagates and chooses anew; what it says is what the program with it sends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

from ...hlo.graph import Module, Op, Value, arguments
from ...hlo.regions import rewritten
from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding
from ...hlo.types import TensorType
from .choice import ShardingChoice, choose
from .communications import INNER, MANUAL, CommunicationSite, communications
from .explanation import Explanation, ExplanationRow, spec_of
from .interconnect import USUAL, Interconnect
from .propagated import Propagated, propagate
from .provenance import ARGUMENT, WEIGHT, Annotation, Provenance
from .rotations import pads_for_slices

TRIALS = 32
"""Other annotations that are tried for one program, the largest communications' first."""

_Site = tuple[str, int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Suggestion:
    """An annotation instead of the one that the program has.

    name: of the argument or weight, else where the constraint stands. spec: what to say of it, as
    `--shard` takes it; empty where the annotation is to be left out. removes: the rows that are
    gone then, by number. bytes: how many a device receives more in a step, negative where fewer.
    held: how many bytes more of arguments and weights it holds. price: how much dearer the step is
    in all, work and memory included, in bytes received. module: the program that says so.
    """

    annotation: Annotation | None
    name: str
    spec: str
    removes: tuple[int, ...]
    bytes: float
    held: int
    price: float
    module: Module

    @property
    def option(self) -> str:
        """The option of the commands that says it; empty where it is said in the program."""
        named = self.annotation is None or self.annotation.kind in (ARGUMENT, WEIGHT)
        return f"--shard {quote(f'{self.name}={self.spec}')}" if named and self.spec else ""

    def facts(self) -> dict[str, Any]:
        """All but the program, as JSON values."""
        said = self.annotation
        return {
            "text": str(self), "option": self.option, "removes": list(self.removes),
            "annotation": None if said is None else said.id, "spec": self.spec,
            "bytes": self.bytes, "held": self.held, "price": self.price,
        }  # fmt: skip

    def __str__(self) -> str:
        said = self.annotation
        now = "" if said is None else f" instead of {said.sharding}"
        what = f"{self.name} as {self.spec}{now}" if self.spec else f"{self.name} left open{now}"
        return what + (f" ({said.id})" if said is not None else "")


@dataclass(frozen=True, eq=False)
class _Edit:
    """Another sharding of an argument, or of what a constraint gives; None: no annotation."""

    target: Value | Op
    annotation: Annotation | None
    sharding: Sharding | None


def suggest(
    found: Propagated,
    choice: ShardingChoice,
    explanation: Explanation,
    interconnect: Interconnect = USUAL,
    trials: int = TRIALS,
) -> Mapping[int, Suggestion]:
    """For each row, by number, the annotation that removes it with the fewest bytes received in
    all; one by which a device holds more of the arguments only where no other saves bytes. Rows
    that no trial removes have none."""
    tried = _Trials(found, choice, interconnect)
    edits = tried.edits(explanation.rows)[:trials]
    best: dict[int, Suggestion] = {}
    for edit in edits:
        suggestion = tried.run(edit)
        if suggestion is None:
            continue
        for number in suggestion.removes:
            if number not in best or _order(suggestion) < _order(best[number]):
                best[number] = suggestion
    return best


def _order(suggestion: Suggestion) -> tuple[bool, bool, float, int]:
    return suggestion.bytes >= 0, suggestion.held > 0, suggestion.bytes, suggestion.held


class _Trials:
    def __init__(
        self, found: Propagated, choice: ShardingChoice, interconnect: Interconnect
    ) -> None:
        self.found, self.choice, self.interconnect = found, choice, interconnect
        self.provenance = Provenance(found, choice.decided)
        self.targets: dict[Annotation, Value | Op] = {}
        for target, annotation in self.provenance.stated.items():
            self.targets.setdefault(annotation, target)
        rows = communications(choice.module, interconnect)
        self.sites = _sites(found.module, choice, rows)
        self.bytes = sum(row.total for row in rows)
        self.held = _held(found)

    def edits(self, rows: Sequence[ExplanationRow]) -> list[_Edit]:
        """What to try, each once; the largest rows' first."""
        found: dict[tuple[Value | Op, Sharding | None], _Edit] = {}
        for row in sorted(rows, key=lambda row: -row.communication.total):
            for edit in self._of(row):
                found.setdefault((edit.target, edit.sharding), edit)
        return list(found.values())

    def _of(self, row: ExplanationRow) -> Iterator[_Edit]:
        for reason in (*row.after, *row.before):
            annotation = reason.annotation
            target = None if annotation is None else self.targets.get(annotation)
            if target is None or annotation is None:
                continue
            step = reason.steps[0]
            value = target.results[0] if isinstance(target, Op) else target
            sharding = value.tensor.sharding if isinstance(value.type, TensorType) else None
            if sharding is None or step.dim is None:
                continue
            for other in _elsewhere(self.provenance.mesh, value, sharding, step.dim):
                yield _Edit(target, annotation, other)
            yield _Edit(target, annotation, None)
        value = next(iter(self.choice.decided.origins.get(row.communication.value, ())), None)
        plan = row.communication.plan
        if value is None or value.op is not None or plan is None:
            return
        if value in self.provenance.names and value not in self.provenance.stated:
            yield _Edit(value, None, replace(plan.target, unreduced=()))

    def run(self, edit: _Edit) -> Suggestion | None:
        """What the program sends with another annotation; None where it removes nothing."""
        module = _edited(self.found.module, edit)
        found = pads_for_slices(propagate(module))
        choice = choose(found)
        rows = communications(choice.module, self.interconnect)
        gone = edit.target if isinstance(edit.target, Op) and edit.sharding is None else None
        before = list(self.found.module.body.walk())
        if len(list(found.module.body.walk())) != len(before) - (gone is not None):
            return None
        skipped = before.index(gone) if gone is not None else len(before)
        left = Counter(_sites(found.module, choice, rows, skipped))
        removed: list[int] = []
        for number, site in enumerate(self.sites):
            if left[site] > 0:
                left[site] -= 1
            else:
                removed.append(number)
        if not removed:
            return None
        spec = "" if edit.sharding is None else spec_of(edit.sharding)
        return Suggestion(
            edit.annotation, self.name(edit), spec, tuple(removed),
            sum(row.total for row in rows) - self.bytes, _held(found) - self.held,
            choice.price - self.choice.price, module,
        )  # fmt: skip

    def name(self, edit: _Edit) -> str:
        said = edit.annotation
        if said is not None:
            if said.kind in (ARGUMENT, WEIGHT):
                return said.name
            return f"the {said.kind}" + (f" at {said.place}" if said.place else f" {said.name}")
        assert isinstance(edit.target, Value)
        return self.provenance.names[edit.target].removeprefix("argument ")


def _elsewhere(mesh: Mesh, value: Value, sharding: Sharding, dim: int) -> Iterator[Sharding]:
    """The minor axis of a dim left out, or on another dim that it divides."""
    if not sharding.dims[dim].axes:
        return
    *kept, axis = sharding.dims[dim].axes
    dims = list(sharding.dims)
    dims[dim] = replace(dims[dim], axes=tuple(kept))
    for other, size in enumerate(value.dims):
        cuts: tuple[Axis, ...] = (*dims[other].axes, axis)
        if other != dim and size and size % math.prod(map(mesh.size, cuts)) == 0:
            moved = DimSharding(cuts, dims[other].open, dims[other].priority)
            yield replace(sharding, dims=(*dims[:other], moved, *dims[other + 1 :]))
    yield replace(sharding, dims=tuple(dims))


def _edited(module: Module, edit: _Edit) -> Module:
    body = module.body
    if isinstance(edit.target, Value):
        types = [
            value.tensor.with_sharding(edit.sharding) if value is edit.target else value.type
            for value in body.arguments
        ]
        own = arguments(types)
        renamed = dict(zip(body.arguments, own, strict=True))
        return module.with_main(rewritten(body, renamed, lambda b, op, mapping: False, own))

    def change(b: Any, op: Op, mapping: dict[Value, Value]) -> bool:
        if op is not edit.target:
            return False
        operand = mapping.get(op.operands[0], op.operands[0])
        if edit.sharding is None:
            mapping[op.results[0]] = operand
        else:
            kind = op.results[0].tensor.with_sharding(edit.sharding)
            new = Op(op.definition, [operand], op.attributes, (), (kind,), op.origin)
            mapping[op.results[0]] = b.append(new).result
        return True

    return module.with_main(rewritten(body, {}, change, body.arguments))


def _sites(
    module: Module,
    choice: ShardingChoice,
    rows: Sequence[CommunicationSite],
    skipped: int | None = None,
) -> list[_Site]:
    """Where each row is, by numbers of operations: what makes the value, or sends inside of it.
    skipped: an operation's number that another program has besides."""
    numbers: dict[Value, tuple[int, int]] = {}
    for number, value in enumerate(module.body.arguments):
        numbers[value] = -1, number
    for place, op in enumerate(module.body.walk()):
        place += skipped is not None and place >= skipped
        numbers.update((value, (place, n)) for n, value in enumerate(op.results))
        for region in op.regions:
            numbers.update((value, (place, ~n)) for n, value in enumerate(region.arguments))
    found: list[_Site] = []
    for row in rows:
        if row.kind == MANUAL:  # no annotation changes what is inside
            found.append((MANUAL, 0, 0))
            continue
        value = row.value
        while value.op is not None and choice.decided.uses.get(value.op):
            value = value.op.operands[0]
        origin = next(iter(choice.decided.origins[value]))
        found.append((INNER if row.kind == INNER else "", *numbers[origin]))
    return found


def _held(found: Propagated) -> int:
    """Bytes of a device's blocks of all arguments and weights."""
    body, total = found.module.body, 0
    weights = [
        op.results[0]
        for op in body.walk()
        if op.name == "sharding_constraint"
        and op.operands[0].op is not None
        and op.operands[0].op.name == "weight"
    ]
    for value in (*body.arguments, *weights):
        if isinstance(value.type, TensorType):
            sharding = found.shardings[value]
            mesh = found.module.meshes[sharding.mesh]
            size = math.prod(sharding.local_dims(mesh, value.dims))
            total += size * value.element.bits // 8
    return total
