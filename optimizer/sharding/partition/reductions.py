"""Folds along dims that are cut: each device folds its block, the result is unreduced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....hlo.factors import FactorKind
from ....hlo.graph import Op, Value
from ....hlo.ops import numerics
from ....hlo.sharding import MAX, SUM
from ....hlo.types import Element
from .local import rebuilt
from .partitioner import Axes, Partitioner


def identity(reduction: str, element: Element) -> object:
    """What changes nothing where it is added (MAX, MIN: compared) to an element."""
    if reduction == SUM:
        return 0
    if element.kind == "bool":
        return reduction != MAX
    if numerics.is_float(element.dtype):
        return -np.inf if reduction == MAX else np.inf
    low, high = np.iinfo(element.dtype).min, np.iinfo(element.dtype).max
    return low if reduction == MAX else high


def lower_reduce(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`reduce`: the first part of a cut sum takes the initial value, others begin at 0."""
    reduction, axes = _cut(p, o)
    if reduction is None:
        return rebuilt(p, o, operands, o.attributes)
    count = len(operands) // 2
    found = [
        p.masked(o, number, identity(reduction, operands[number].element))
        for number in range(count)
    ]
    found += [once(p, value, reduction, axes) for value in operands[count:]]
    return rebuilt(p, o, found, o.attributes)


def once(p: Partitioner, value: Value, reduction: str, axes: Axes) -> Value:
    """The value on the first of the parts that these axes cut, the identity on the others. What is
    compared may be compared more than once."""
    if reduction != SUM or not axes:
        return value
    b = p.b
    first = b.compare("EQ", p.index(axes), b.constant(np.int32(0)))
    neutral = b.constant(identity(reduction, value.element), value.tensor)
    return b("select", first, value, neutral)


def _cut(p: Partitioner, o: Op) -> tuple[str | None, Axes]:
    """How the factors that are cut are reduced, and all their axes; None where all pass."""
    reduction, found = None, []
    for factor, axes in zip(p.factors(o).factors, p.axes(o), strict=True):
        if not axes or factor.kind is FactorKind.PASS:
            continue
        if factor.kind is not FactorKind.REDUCTION:
            raise p.refuse(o, f"a dim is cut by {axes} that every device needs", "leave it whole")
        reduction = factor.reduction
        found += axes
    return reduction, tuple(found)
