"""Constants, iotas, what is computed of them, and broadcast scalars: one for each use.

They cost nothing to make again, so that one use says nothing about how another is cut. Scalars,
which nothing cuts, stay shared.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...hlo.graph import Module, Op, Region, Value

_VIEWS = frozenset({"broadcast_in_dim", "broadcast", "reshape", "slice"})


def constants_per_use(module: Module) -> Module:
    """The same program, in which each use of a constant expression has its own; those of scalars
    are shared. The entry's values are what is rewritten."""
    return module.with_main(_Copies().region(module.body, {}))


class _Copies:
    """`copies`: for each value, as it is in the old program, that uses copy: what was made of the
    operation that computes it, which stands where that stood. `groups`: the groups that it is in,
    and its copies are."""

    def __init__(self) -> None:
        self.constants: set[Value] = set()
        self.copies: dict[Value, list[Op]] = {}
        self.groups: dict[Value, list[Op]] = {}

    def region(self, region: Region, outer: Mapping[Value, Value]) -> Region:
        values = dict(outer)
        ops: list[list[Op]] = []
        for op in region.ops:
            constant = self._is_constant(op)
            if constant:
                self.constants.add(op.result)
            spread = op.name == "broadcast_in_dim" and not op.operands[0].rank
            if (constant or spread) and op.result.rank:
                self.copies[op.result] = []
                ops.append(self.copies[op.result])
                users = [user for user, _ in region.uses.get(op.result, ())]
                self.groups[op.result] = [u for u in users if u and u.name == "sharding_group"]
                continue
            if op.name == "sharding_group" and op.operands[0] in self.copies:
                continue
            operands = [self._own(value, values, {}) for value in op.operands]
            bodies = [
                body
                if op.definition.isolated or op.definition.sealed
                else self.region(body, values)
                for body in op.regions
            ]
            new = op.with_operands(operands, bodies)
            values.update(zip(op.results, new.results, strict=True))
            ops.append([new])
        results = [self._own(value, values, {}) for value in region.results]
        flat = [op for some in ops for op in some]
        if len(flat) == len(region.ops) and all(map(_is, flat, region.ops)):
            return region
        return Region(region.arguments, flat, results)

    def _is_constant(self, op: Op) -> bool:
        if op.definition.known:
            return True
        kept = op.definition.pattern == "elementwise" and not op.definition.effects
        return (
            (kept or op.name in _VIEWS)
            and len(op.results) == 1
            and all(value in self.constants for value in op.operands)
        )

    def _own(self, value: Value, values: Mapping[Value, Value], made: dict[Value, Value]) -> Value:
        """The value for one use: a copy of what it is computed by, or what it became. `made`: what
        was copied for the same use."""
        if value not in self.copies:
            return values.get(value, value)
        if value not in made:
            op = value.op
            assert op is not None
            operands = [self._own(v, values, made) for v in op.operands]
            new = Op(op.definition, operands, op.attributes, (), op.result_types, op.origin)
            self.copies[value].append(new)
            for group in self.groups[value]:
                copy = Op(group.definition, new.results, group.attributes, (), (), group.origin)
                self.copies[value].append(copy)
            made[value] = new.result
        return made[value]


def _is(left: object, right: object) -> bool:
    return left is right
