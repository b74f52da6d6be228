"""A program with its shardings written into it: types say how each tensor lies where it is made,
and `sharding_constraint` brings it to where it is used in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...hlo import ops
from ...hlo.graph import Module, Op, Origin, Region, Value, arguments
from ...hlo.sharding import replicated
from ...hlo.types import TensorType, Type
from .candidates import Lying, State
from .propagated import Propagated, retyped

_Reached = dict[tuple[Value, Lying], Value]


def decided(
    found: Propagated,
    fixed: Mapping[Value, Lying],
    wanted: Mapping[tuple[Op | Region, int], Lying],
    states: Mapping[Op, State],
) -> Module:
    """The program at level DECIDED.

    fixed: how arguments of regions lie, and results that are not chosen. wanted: how operands of
    such operations, and results of regions, have to lie. states: of all other operations.
    """
    mesh = next((s.mesh for s in found.shardings.values()), next(iter(found.module.meshes)))
    writer = _Writer(fixed, wanted, states, mesh)
    return found.module.with_main(writer.region(found.module.body, {}, {}))


class _Writer:
    def __init__(
        self,
        fixed: Mapping[Value, Lying],
        wanted: Mapping[tuple[Op | Region, int], Lying],
        states: Mapping[Op, State],
        mesh: str,
    ) -> None:
        self.fixed, self.wanted, self.states, self.mesh = fixed, wanted, states, mesh
        self.constraint = ops.find("sharding_constraint")

    def region(self, region: Region, outer: Mapping[Value, Value], reached: _Reached) -> Region:
        """reached: what was brought already, by value and how it lies."""
        own = arguments([_typed(v.type, self.fixed[v]) for v in region.arguments])
        values = {**outer, **dict(zip(region.arguments, own, strict=True))}
        reached, made = dict(reached), list[Op]()
        for op in region.ops:
            self.op(op, values, reached, made)
        results = [
            self.brought(values[value], self.wanted[region, number], reached, made, _origin(value))
            for number, value in enumerate(region.results)
        ]
        return Region(own, made, results)

    def op(self, op: Op, values: dict[Value, Value], reached: _Reached, made: list[Op]) -> None:
        operands = [values[value] for value in op.operands]
        if op.name == "sharding_group":
            made.append(Op(op.definition, operands, op.attributes, (), (), op.origin))
            return
        state = self.states.get(op)
        regions: Sequence[Region] = op.regions
        if state is None:
            needs = [self.wanted.get((op, n)) for n in range(len(operands))]
            lying = [self.fixed[value] for value in op.results]
        else:
            needs, lying = list(state.operands), list(state.results)
        if op.name == "sharding_constraint":
            result = self.brought(operands[0], needs[0], reached, made, op.origin)
            values[op.results[0]] = result
            return
        operands = [
            self.brought(value, need, reached, made, op.origin)
            for value, need in zip(operands, needs, strict=True)
        ]
        if op.name in ("while", "case", "if"):
            regions = [self.region(body, values, reached) for body in op.regions]
        elif not op.definition.sealed:
            regions = [retyped(body, self.whole, values) for body in op.regions]
        types = [_typed(v.type, how) for v, how in zip(op.results, lying, strict=True)]
        new = Op(op.definition, operands, op.attributes, regions, types, op.origin)
        values.update(zip(op.results, new.results, strict=True))
        made.append(new)

    def whole(self, value: Value) -> Type:
        """Of a value inside of an operation: an element, or a block."""
        if not isinstance(value.type, TensorType):
            return value.type
        return value.type.with_sharding(replicated(self.mesh, value.rank))

    def brought(
        self,
        value: Value,
        need: Lying,
        reached: _Reached,
        made: list[Op],
        origin: tuple[Origin, ...],
    ) -> Value:
        """The value, lying as it has to."""
        if need is None or not isinstance(value.type, TensorType) or value.type.sharding == need:
            return value
        key = (value, need)
        if key not in reached:
            kind = value.type.with_sharding(need)
            new = Op(self.constraint, [value], {}, (), (kind,), origin)
            made.append(new)
            reached[key] = new.results[0]
        return reached[key]


def _origin(value: Value) -> tuple[Origin, ...]:
    return value.op.origin if value.op is not None else ()


def _typed(kind: Type, lying: Lying) -> Type:
    if lying is None or not isinstance(kind, TensorType):
        return kind
    return kind.with_sharding(lying)
