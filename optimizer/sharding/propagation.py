"""Every tensor's sharding, from a few that are annotated.

Three loops, each to its fixed point, in the Shardy dialect's order (openxla/shardy):

1. user priorities: dims of a later priority are closed and empty, and their axes barred from the
   tensor, until it is their turn;
2. five stages of operations, each with those of the stages before: elementwise ones, reshapes,
   transposes and edges whose operands have no other uses; all of these; factors that pass;
   broadcasts forward; the rest (`OpPriority`);
3. a stack of steps: each is seen as tensors that cut factors, axes are agreed on and given to the
   tensors, and the steps that a changed tensor concerns are put on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...hlo.factors import FactorKind, Factors
from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding
from .aggressive import propagate_aggressive
from .basic import BACKWARD, BOTH, FORWARD, NONE
from .network import Link, Network, NetworkStep, OpPriority, ShardingPlace, identity
from .parts import Part, Parts, contains, of_axes
from .projection import TensorFactors, project, unproject

STAGES = 5

Strategy = Callable[
    [Sequence[TensorFactors], Sequence[TensorFactors], Sequence[int], Sequence[int], bool],
    list[bool],
]


class Came(NamedTuple):
    """An axis that a step adds to a dim of a tensor: from which dim of which other tensor."""

    dim: int
    part: Part
    tensor: int
    from_dim: int


class Change(NamedTuple):
    """The sharding that a step gives to one of its tensors."""

    tensor: int
    sharding: Sharding
    came: tuple[Came, ...]


@dataclass(frozen=True)
class PropagationOrder:
    """What is done: by default all of it; `last`: the last user priority whose dims are seen. Tests
    compare the loops one by one."""

    strategy: Strategy = propagate_aggressive
    stages: bool = True
    priorities: bool = True
    last: int | None = None


EVERYTHING = PropagationOrder()


class ShardingPropagation:
    """One run over a network; changes its places."""

    def __init__(self, network: Network, order: PropagationOrder = EVERYTHING) -> None:
        self.network, self.order = network, order
        self.shardings: dict[Sharding, Sharding] = {}
        self.changes: dict[tuple[object, ...], tuple[Change, ...]] = {}
        self.directions: dict[tuple[int, OpPriority, bool, int], tuple[int, ...]] = {}
        self.results = [
            NetworkStep("result", [tensor], [], network.rule(identity(tensor.place.dims)))
            for tensor, _ in network.results
        ]
        self.visits = 0
        self.crowded = {id(step): step.crowded for step in network.steps}

    def _one(self, sharding: Sharding | None) -> Sharding | None:
        """The same object for equal shardings, so that a memo can go by identity."""
        return None if sharding is None else self.shardings.setdefault(sharding, sharding)

    def run(self) -> None:
        """Propagate until nothing changes."""
        places = self.network.places
        for place in places:
            place.sharding = self._one(place.sharding)
        if not self.order.priorities:
            self._link_stated(None)
            self._stages()
            return
        originals = [(p, p.sharding) for p in places if p.sharding is not None]
        priorities = {_priority(dim) for _, sharding in originals for dim in sharding.dims}
        for place, sharding in originals:
            place.sharding = self._one(self._first(sharding))
        self._link_stated(0)
        self._stages()
        for priority in sorted(priorities - {0}):
            if self.order.last is not None and priority > self.order.last:
                break
            for place, sharding in originals:
                if any(_priority(dim) == priority for dim in sharding.dims):
                    assert place.sharding is not None
                    place.sharding = self._one(_raised(place.sharding, sharding, priority))
            self._link_stated(priority)
            self._stages()

    def _first(self, sharding: Sharding) -> Sharding:
        """What is seen of it at first: dims of later priorities empty and closed, and their axes
        barred."""
        late = [axis for dim in sharding.dims if _priority(dim) for axis in dim.axes]
        dims = [
            DimSharding() if _priority(dim) else DimSharding(dim.axes, dim.open)
            for dim in sharding.dims
        ]
        names = self.network.meshes[sharding.mesh].names
        barred = sorted(
            (*sharding.replicated, *late), key=lambda axis: (names.index(axis.name), axis.before)
        )
        return replace(sharding, dims=tuple(dims), replicated=tuple(barred))

    def _link_stated(self, priority: int | None) -> None:
        """Note which axes are there because an annotation says so, in dims of that priority; None:
        in all."""
        for place in self.network.places:
            if place.stated is None:
                continue
            mesh = self.network.meshes[place.stated.mesh]
            for dim, links in zip(place.stated.dims, place.links, strict=True):
                if priority in (None, _priority(dim)):
                    known = {link.part for link in links}
                    parts = of_axes(mesh, dim.axes)
                    links.extend(Link(part) for part in parts if part not in known)

    def _stages(self) -> None:
        for stage in range(STAGES) if self.order.stages else (STAGES - 1,):
            self._share_results()
            self._settle(stage)
            self._share_results()

    def _share_results(self) -> None:
        """What is stated of the program's results goes to the values that it returns."""
        for step, (tensor, stated) in zip(self.results, self.network.results, strict=True):
            assert step.rule is not None
            rule, places = step.rule, [tensor.place, stated]
            found = self._changes(rule, (BOTH,) * len(rule.factors), False, places)
            for change in found:
                self._set(step, places, change)

    def _settle(self, stage: int) -> None:
        """Visit all steps in order, and after a change those that it concerns, until it is done."""
        stack = self.network.steps[::-1]
        waiting = set(map(id, stack))
        while stack:
            step = stack.pop()
            waiting.discard(id(step))
            self.visits += 1
            for concerned in self._visit(step, stage):
                if concerned is not step and id(concerned) not in waiting:
                    waiting.add(id(concerned))
                    stack.append(concerned)

    def _visit(self, step: NetworkStep, stage: int) -> list[NetworkStep]:
        """Propagate through one step; the steps that its changes concern."""
        assert step.rule is not None
        places = [None if x is None else x.place for x in (*step.operands, *step.results)]
        if all(place is None or place.sharding is None for place in places):
            return []
        directions = self._directions(step, stage)
        if not any(directions):
            return []
        concerned: list[NetworkStep] = []
        elementwise = step.op_priority is OpPriority.ELEMENTWISE
        for change in self._changes(step.rule, directions, elementwise, places, step):
            concerned.extend(self._set(step, places, change))
        return concerned

    def _set(
        self, step: NetworkStep, places: Sequence[ShardingPlace | None], change: Change
    ) -> list[NetworkStep]:
        place = places[change.tensor]
        assert place is not None
        sharding = change.sharding
        if step.outward is not None and change.tensor == len(step.operands):
            sharding = step.outward(sharding)
        place.sharding = self._one(sharding)
        for came in change.came:
            place.links[came.dim].append(Link(came.part, step, places[came.tensor], came.from_dim))
        concerned = [*place.concerns]
        for member in place.group:
            if member is not place:
                member.sharding = place.sharding
                for came in change.came:
                    member.links[came.dim].append(Link(came.part, None, place, came.dim))
                concerned.extend(member.concerns)
        return concerned

    def _changes(
        self,
        rule: Factors,
        directions: tuple[int, ...],
        elementwise: bool,
        places: Sequence[ShardingPlace | None],
        step: NetworkStep | None = None,
    ) -> tuple[Change, ...]:
        seen = [None if place is None else place.sharding for place in places]
        if step is not None and step.inward is not None:
            own = seen[-1]
            seen[-1] = None if own is None else self._one(step.inward(own))
        key = (id(rule), directions, elementwise, *map(id, seen))
        found = self.changes.get(key)
        if found is None:
            found = step_changes(
                rule, directions, elementwise, seen, self.network.meshes, self.order.strategy
            )
            self.changes[key] = found
        return found

    def _directions(self, step: NetworkStep, stage: int) -> tuple[int, ...]:
        """In which directions axes go along each factor, at a stage."""
        assert step.rule is not None
        if step.allowed is not None:
            return (step.allowed,) * len(step.rule.factors)
        key = (id(step.rule), step.op_priority, self.crowded[id(step)], stage)
        found = self.directions.get(key)
        if found is None:
            found = tuple(
                NONE if factor.blocked else direction(step.op_priority, factor.kind, key[2], stage)
                for factor in step.rule.factors
            )
            self.directions[key] = found
        return found


def direction(priority: OpPriority, kind: FactorKind, crowded: bool, stage: int) -> int:
    """Where axes go along a factor; each stage allows what those before it do."""
    found = NONE
    if not crowded or stage >= 1:
        if priority in (OpPriority.ELEMENTWISE, OpPriority.PASSAGE):
            return BOTH
        if priority is OpPriority.SLICE:
            found = FORWARD
    early = BACKWARD if priority is OpPriority.BROADCAST else BOTH
    if stage >= 4:
        return BOTH
    if stage == 3 or stage == 2 and kind is FactorKind.PASS:
        found |= early
    return found


def _priority(dim: DimSharding) -> int:
    return dim.priority or 0


def _raised(now: Sharding, original: Sharding, priority: int) -> Sharding:
    """With the dims of that priority as they were annotated, their axes no longer barred."""
    dims: list[DimSharding] = []
    freed: set[Axis] = set()
    for dim, stated in zip(now.dims, original.dims, strict=True):
        if _priority(stated) == priority:
            dim = DimSharding(stated.axes, stated.open)
            freed.update(stated.axes)
        dims.append(dim)
    barred = tuple(axis for axis in now.replicated if axis not in freed)
    return replace(now, dims=tuple(dims), replicated=barred)


def common_mesh(
    shardings: Sequence[Sharding | None], meshes: Mapping[str, Mesh]
) -> tuple[str, Mesh] | None:
    """The one mesh that they lie on, whatever its name; a mesh without axes agrees with any."""
    name, mesh = "", None
    for sharding in shardings:
        if sharding is None:
            continue
        other = meshes[sharding.mesh]
        if mesh is None or not (mesh.axes or mesh.device_ids):
            name, mesh = sharding.mesh, other
        elif (other.axes or other.device_ids) and other != mesh:
            return None
    if mesh is None or (mesh.device_ids and not mesh.axes):
        return None
    return name, mesh


def step_changes(
    rule: Factors,
    directions: tuple[int, ...],
    elementwise: bool,
    shardings: Sequence[Sharding | None],
    meshes: Mapping[str, Mesh],
    strategy: Strategy,
) -> tuple[Change, ...]:
    """What an operation of that rule makes of its tensors' shardings."""
    common = common_mesh(shardings, meshes)
    if common is None:
        return ()
    name, mesh = common
    sizes = [factor.size for factor in rule.factors]
    tensors = [
        project(dims, sharding, sizes, mesh)
        for dims, sharding in zip(rule.tensors, shardings, strict=True)
    ]
    before = [{n: cut.axes for n, cut in tensor.factors.items()} for tensor in tensors]
    count = len(rule.operands)
    changed = strategy(tensors[:count], tensors[count:], sizes, directions, elementwise)
    changes: list[Change] = []
    for number, dims in enumerate(rule.tensors):
        if not changed[number]:
            continue
        old = shardings[number]
        new = unproject(dims, tensors[number], old, sizes, mesh, name)
        if new == old or (old is None and not any(dim.axes for dim in new.dims)):
            continue
        came = _came(rule, number, tensors[number], before)
        changes.append(Change(number, new, came))
    return tuple(changes)


def _came(
    rule: Factors, number: int, tensor: TensorFactors, before: Sequence[Mapping[int, Parts]]
) -> tuple[Came, ...]:
    """From which tensors the axes come that a step has added to one."""
    found: list[Came] = []
    for dim, factors in enumerate(rule.tensors[number]):
        for factor in factors:
            cut = tensor.factors.get(factor)
            had = before[number].get(factor, ())
            for part in () if cut is None else cut.axes:
                if part in had:
                    continue
                for other, axes in enumerate(before):
                    theirs = axes.get(factor, ())
                    if other != number and any(contains(one, part) for one in theirs):
                        from_dim = _dim_of(rule, other, factor)
                        found.append(Came(dim, part, other, from_dim))
                        break
    return tuple(found)


def _dim_of(rule: Factors, tensor: int, factor: int) -> int:
    dims = rule.tensors[tensor]
    return next(number for number, factors in enumerate(dims) if factor in factors)
