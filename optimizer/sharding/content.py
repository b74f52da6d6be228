"""Which operations are cut alike: those with equal content."""

from __future__ import annotations

from collections.abc import Hashable

from ...hlo.graph import Op, Region, Value, constant_of


def content(op: Op) -> Hashable | None:
    """Equal for operations of which each can be cut as the other, at the same price; None where
    that cannot be told.

    Elements of a constant do not matter, but inside of bodies and to bodies that start from them.
    """
    facts = tuple(sorted((k, v) for k, v in op.attributes.items() if k != "value"))
    key: Hashable = (op.name, tuple(value.type for value in (*op.operands, *op.results)), facts)
    if op.regions:
        bodies = tuple(_body(region, {}) for region in op.regions)
        if None in bodies:
            return None
        key = (key, bodies, tuple(map(constant_of, op.operands)))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _body(region: Region, outer: dict[Value, int]) -> Hashable | None:
    """None for one that uses values from outside of the operation."""
    numbers = dict(outer)
    for value in region.arguments:
        numbers[value] = len(numbers)
    found: list[Hashable] = [region.argument_types]
    for op in region.ops:
        if any(value not in numbers for value in op.operands):
            return None
        bodies = tuple(_body(inner, numbers) for inner in op.regions)
        if None in bodies:
            return None
        operands = tuple(numbers[value] for value in op.operands)
        found.append(
            (op.name, operands, op.result_types, tuple(sorted(op.attributes.items())), bodies)
        )
        for value in op.results:
            numbers[value] = len(numbers)
    if any(value not in numbers for value in region.results):
        return None
    return (*found, tuple(numbers[value] for value in region.results))
