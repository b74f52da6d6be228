"""Structural names of operations and regions: equal keys compute equal values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hlo.graph import Op, Region, Value

Key = tuple[Any, ...]


def frozen(value: Any) -> Any:
    """A hashable twin of an attribute value; 1, 1.0 and True stay different."""
    kind = value.__class__
    if kind is dict:
        return tuple((key, frozen(value[key])) for key in sorted(value))
    if kind is tuple:
        return tuple(frozen(part) for part in value)
    if kind is float or kind is bool:
        return kind, repr(value)
    return value


class Keys:
    """Computes keys; those of regions and the questions about effects are remembered."""

    def __init__(self) -> None:
        self._regions: dict[Region, Key] = {}
        self._effects: dict[Op, bool] = {}
        self._captures: dict[Region, tuple[Value, ...]] = {}
        # By identity: operations that differ in their operands alone share their attributes.
        self._attributes: dict[int, tuple[Any, Key]] = {}

    def op(self, op: Op) -> Key | None:
        """The key of an operation; None if it must not be merged with an equal one."""
        return self.of(op, op.operands)

    def of(self, op: Op, operands: tuple[Value, ...]) -> Key | None:
        """The same for the operation on other operands."""
        if op.definition.distinct or self.has_effects(op):
            return None
        if op.definition.commutative and len(operands) == 2:
            first, second = operands
            if id(first) > id(second):
                operands = (second, first)
        parts = self._parts(op.attributes)
        key: Key = (op.definition.name, operands, parts, op.result_types)
        if op.regions:
            key += tuple(self.region(region) for region in op.regions)
        return key

    def attributes(self, op: Op) -> Key:
        """The attributes of an operation, hashable."""
        return self._parts(op.attributes)

    def _parts(self, attributes: Mapping[str, Any]) -> Key:
        if not attributes:
            return ()
        known = self._attributes.get(id(attributes))
        if known is None:
            parts = tuple((name, frozen(attributes[name])) for name in sorted(attributes))
            known = self._attributes[id(attributes)] = attributes, parts
        return known[1]

    def region(self, region: Region) -> Key:
        """Equal for regions that differ in nothing but the identity of their own values."""
        known = self._regions.get(region)
        if known is None:
            local: dict[Value, Any] = {
                value: ("argument", value.index) for value in region.arguments
            }
            rows = []
            for number, op in enumerate(region.ops):
                operands = tuple(local.get(value, value) for value in op.operands)
                parts = self._parts(op.attributes)
                nested = tuple(self._nested(inner, local) for inner in op.regions)
                rows.append((op.definition.name, operands, parts, op.result_types, nested))
                for value in op.results:
                    local[value] = (number, value.index)
            results = tuple(local.get(value, value) for value in region.results)
            known = (region.argument_types, tuple(rows), results)
            self._regions[region] = known
        return known

    def _nested(self, region: Region, outer: dict[Value, Any]) -> Any:
        # A nested region that uses values of the region around it has no key of its own.
        if any(value in outer for value in self.captures(region)):
            return region
        return self.region(region)

    def has_effects(self, op: Op) -> bool:
        """Whether the operation does more than compute its results."""
        if not op.regions:
            return op.definition.effects
        known = self._effects.get(op)
        if known is None:
            inside = (inner for region in op.regions for inner in region.ops)
            known = op.definition.effects or any(self.has_effects(inner) for inner in inside)
            self._effects[op] = known
        return known

    def captures(self, region: Region) -> tuple[Value, ...]:
        """`region.captures()`, computed once."""
        known = self._captures.get(region)
        if known is None:
            known = self._captures[region] = tuple(region.captures())
        return known
