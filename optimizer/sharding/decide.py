"""A program with its shardings written into it: types say how each tensor lies where it is made,
and `sharding_constraint` brings it to where it is used in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...hlo import ops
from ...hlo.graph import Module, Op, Origin, Region, Value, arguments
from ...hlo.sharding import replicated
from ...hlo.types import TensorType, Type
from .candidates import CandidateState, Lying
from .propagated import Propagated, retyped

_Reached = dict[tuple[Value, Lying], Value]
Use = tuple[Op | Region, int]  # an operand by its number; of a region, a result


@dataclass(frozen=True, eq=False)
class Decided:
    """`module`: the program at level DECIDED. `origins`: the values of the propagated program that
    one of its values is. `uses`: who asked for what a `sharding_constraint` brings, in the
    propagated program."""

    module: Module
    origins: Mapping[Value, Sequence[Value]]
    uses: Mapping[Op, Sequence[Use]]


def decided(
    found: Propagated,
    fixed: Mapping[Value, Lying],
    wanted: Mapping[Use, Lying],
    states: Mapping[Op, CandidateState],
) -> Decided:
    """The program at level DECIDED, and how it follows from the propagated one.

    fixed: how arguments of regions lie, and results that are not chosen. wanted: how operands of
    such operations, and results of regions, have to lie. states: of all other operations.
    """
    mesh = next((s.mesh for s in found.shardings.values()), next(iter(found.module.meshes)))
    writer = _DecisionWriter(fixed, wanted, states, mesh)
    module = found.module.with_main(writer.region(found.module.body, {}, {}))
    return Decided(module, writer.origins, writer.uses)


class _DecisionWriter:
    def __init__(
        self,
        fixed: Mapping[Value, Lying],
        wanted: Mapping[Use, Lying],
        states: Mapping[Op, CandidateState],
        mesh: str,
    ) -> None:
        self.fixed, self.wanted, self.states, self.mesh = fixed, wanted, states, mesh
        self.constraint = ops.find("sharding_constraint")
        self.origins: dict[Value, list[Value]] = {}
        self.uses: dict[Op, list[Use]] = {}

    def region(self, region: Region, outer: Mapping[Value, Value], reached: _Reached) -> Region:
        """reached: what was brought already, by value and how it lies."""
        own = arguments([_typed(v.type, self.fixed[v]) for v in region.arguments])
        values = {**outer, **dict(zip(region.arguments, own, strict=True))}
        self.note(region.arguments, own)
        reached, made = dict(reached), list[Op]()
        for op in region.ops:
            self.op(op, values, reached, made)
        results = [
            self.brought(
                values[value], self.wanted[region, number], reached, made, _origin(value),
                (region, number),
            )
            for number, value in enumerate(region.results)
        ]  # fmt: skip
        return Region(own, made, results)

    def note(self, values: Sequence[Value], copies: Sequence[Value]) -> None:
        """Which value is written as which."""
        for value, copy in zip(values, copies, strict=True):
            self.origins.setdefault(copy, []).append(value)

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
            result = self.brought(operands[0], needs[0], reached, made, op.origin, (op, 0))
            values[op.results[0]] = result
            self.note(op.results, [result])
            return
        operands = [
            self.brought(value, need, reached, made, op.origin, (op, number))
            for number, (value, need) in enumerate(zip(operands, needs, strict=True))
        ]
        if op.definition.flow:
            regions = [self.region(body, values, reached) for body in op.regions]
        elif not op.definition.sealed:
            regions = [retyped(body, self.whole, values) for body in op.regions]
        types = [_typed(v.type, how) for v, how in zip(op.results, lying, strict=True)]
        new = Op(op.definition, operands, op.attributes, regions, types, op.origin)
        values.update(zip(op.results, new.results, strict=True))
        self.note(op.results, new.results)
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
        use: Use,
    ) -> Value:
        """The value, lying as it has to for a use."""
        if need is None or not isinstance(value.type, TensorType) or value.type.sharding == need:
            return value
        key = (value, need)
        if key not in reached:
            kind = value.type.with_sharding(need)
            new = Op(self.constraint, [value], {}, (), (kind,), origin)
            made.append(new)
            reached[key] = new.results[0]
        result = reached[key]
        if result.op is not None:
            self.uses.setdefault(result.op, []).append(use)
        return result


def _origin(value: Value) -> tuple[Origin, ...]:
    return value.op.origin if value.op is not None else ()


def _typed(kind: Type, lying: Lying) -> Type:
    if lying is None or not isinstance(kind, TensorType):
        return kind
    return kind.with_sharding(lying)
