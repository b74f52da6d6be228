"""Through which operations a value may go before its parts are folded.

A value is unreduced over axes where each device along them has a term of a sum (a candidate for a
maximum, a minimum). What is linear in it gives terms again; the fold may come later, once for all
that has been added up until then.
"""

from __future__ import annotations

from ...hlo.graph import Op, Value, repeated_constant
from ...hlo.sharding import MAX, MIN, SUM

TAKERS = frozenset(("dynamic_slice",))
"""What they take of a dim that each device needs all of is a sum where the dim is cut: a device has
the elements that lie in its block, and zeros for the others."""


def carriers(op: Op, fold: str) -> list[frozenset[int]]:
    """Sets of operands that may be unreduced over an axis together, while the others are not; then
    the results are."""
    everything = frozenset(range(len(op.operands)))
    name = op.name
    if op.definition.moves in ("whole", "part") or name == "concatenate":
        return [everything]
    if name == "select":
        return [frozenset((1, 2))]
    if name == "dynamic_update_slice":
        return [frozenset((0, 1))]
    if op.definition.moves == "indexed":
        return [frozenset((0,))]
    if fold != SUM:
        return [everything] if name == {MAX: "maximum", MIN: "minimum"}[fold] else []
    if op.definition.linear == "together":
        return [everything]
    if op.definition.linear == "separately":
        return [frozenset((0,)), frozenset((1,))]
    if name == "divide" and op.operands[0].element.is_float:
        return [frozenset((0,))]
    if name == "pad" and _is_zero(op.operands[1]):
        return [frozenset((0,))]
    if name == "convert" and _keeps_terms(op):
        return [everything]
    if name == "reduce":
        half = len(op.operands) // 2
        adds = all(inner.name == "add" for inner in op.regions[0].ops)
        if adds and all(map(_is_zero, op.operands[half:])):
            return [frozenset(range(half))]
    return []


def _is_zero(value: Value) -> bool:
    found = repeated_constant(value)
    return found is not None and not found.array.any()


def _keeps_terms(op: Op) -> bool:
    """Whether the sum of converted terms has lost nothing that the converted sum has."""
    source, target = op.operands[0].element, op.result.element
    return source.is_float and target.is_float and target.bits >= source.bits
