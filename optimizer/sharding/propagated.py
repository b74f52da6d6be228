"""A program, the sharding of each of its tensors, and the way on which every axis came there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...hlo.errors import UserError
from ...hlo.factors import Factors
from ...hlo.graph import Module, Op, Region, Value, arguments
from ...hlo.sharding import Axis, DimSharding, Sharding, replicated
from ...hlo.types import TensorType, Type
from .network import Link, ShardingPlace
from .parts import Part, overlap, to_axes
from .per_use import constants_per_use
from .program import Rule, network_of
from .propagation import EVERYTHING, PropagationOrder, ShardingPropagation


class Hop(NamedTuple):
    """`axis` cuts dim `dim` of `value`, carried there by `op`.

    Where `op` is None and another hop follows, the two values are in one group. The last hop is
    where it is stated: by the value itself, an argument or the result of a `sharding_constraint`,
    or by `op`, a constraint or a manual computation that takes the value.
    """

    value: Value
    dim: int
    axis: Axis
    op: Op | None


@dataclass(frozen=True, eq=False, repr=False)
class Propagated:
    """`module`: the program, in which each use of a constant has its own. `shardings`: of every
    tensor of the entry, all dims closed."""

    module: Module
    shardings: Mapping[Value, Sharding]
    places: Mapping[Value, ShardingPlace]

    def chain(self, value: Value, dim: int, axis: Axis) -> tuple[Hop, ...]:
        """The way of an axis of the dim's, from the value back to the annotation; empty for an
        axis that does not cut it. UserError for one that the mesh does not have."""
        mesh = self.module.meshes[self.shardings[value].mesh]
        part: Part = (axis.name, *mesh.bounds(axis))
        hops: list[Hop] = []
        place: ShardingPlace | None = self.places[value]
        while place is not None:
            link = _link(place, dim, part)
            if link is None:
                break
            part = link.part
            op = None if link.step is None else link.step.source
            hops.append(Hop(value, dim, to_axes(mesh, [part])[0], op))
            place, dim = link.place, link.dim
            if place is not None:
                value = place.source
        return tuple(hops)

    def sharded(self) -> Module:
        """The program at level SHARDED: each tensor's type has its sharding."""
        mesh = next(iter(self.module.meshes))

        def typed(value: Value) -> Type:
            if not isinstance(value.type, TensorType):
                return value.type
            return value.type.with_sharding(
                self.shardings.get(value) or replicated(mesh, value.rank)
            )

        return self.module.with_main(retyped(self.module.body, typed, {}))


def rule_of_room(op: Op) -> Factors | None:
    """The factors of an operation; None where nothing is known, and nothing is propagated."""
    return op.definition.shard(op)


def propagate(
    module: Module, rule: Rule = rule_of_room, order: PropagationOrder = EVERYTHING
) -> Propagated:
    """Shardings of all tensors, from those in the types of arguments and of constraints.

    module: at level INLINED, without dead operations, with at least one mesh whose sizes are known.
    UserError for a tensor or a mesh with open sizes.
    """
    if not module.meshes:
        raise UserError("the program has no mesh; name one, as mesh={'data': 2, 'model': 4}")
    module = constants_per_use(module)
    network, tensors = network_of(module, module.meshes, rule)
    ShardingPropagation(network, order).run()
    stated = (p.stated.mesh for p in network.places if p.stated is not None)
    mesh = next(stated, next(iter(module.meshes)))
    places = {value: tensor.place for value, tensor in tensors.items() if tensor is not None}
    closed: dict[tuple[Sharding | None, int], Sharding] = {}
    shardings: dict[Value, Sharding] = {}
    for value, place in places.items():
        key = (place.sharding, len(place.dims))
        if key not in closed:
            closed[key] = _closed(place, mesh)
        shardings[value] = closed[key]
    return Propagated(module, shardings, places)


def _closed(place: ShardingPlace, mesh: str) -> Sharding:
    found = place.sharding
    if found is None:
        return replicated(mesh, len(place.dims))
    return replace(found, dims=tuple(DimSharding(dim.axes) for dim in found.dims))


def _link(place: ShardingPlace, dim: int, part: Part) -> Link | None:
    """How the first of the part's devices came to be divided there."""
    return next((link for link in place.links[dim] if overlap(link.part, part)), None)


def retyped(region: Region, typed: Callable[[Value], Type], outer: Mapping[Value, Value]) -> Region:
    """A copy of a region with other types of values."""
    fresh = arguments([typed(value) for value in region.arguments])
    values = {**outer, **dict(zip(region.arguments, fresh, strict=True))}
    ops: list[Op] = []
    for op in region.ops:
        bodies: Sequence[Region] = op.regions
        if not op.definition.sealed:
            bodies = [retyped(body, typed, values) for body in op.regions]
        operands = [values[value] for value in op.operands]
        types = [typed(value) for value in op.results]
        new = Op(op.definition, operands, op.attributes, bodies, types, op.origin)
        values.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(fresh, ops, [values[value] for value in region.results])
