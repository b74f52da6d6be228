"""Folds along dims that are cut: each device folds its block, the result is unreduced.

Where an unreduced value is no such fold (products, the largest with its index), the devices gather
what each has found, and fold that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Op, Value
from ....hlo.ops import numerics
from ....hlo.ops.reduction import inits_of
from ....hlo.ops.windows import absorbs_padding
from ....hlo.sharding import MAX, SUM, Mesh
from ....hlo.types import Element
from .local import rebuilt
from .partitioner import Axes, Partitioner, blocks_of


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


def _gathered(factors: Factors, axes: Sequence[Axes]) -> Axes:
    """The axes of dims whose folds have to be gathered."""
    return tuple(axis for n in factors.of_kind(FactorKind.REPLICATE) for axis in axes[n])


def reduce_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """What the other devices have found, where that is gathered. Initial values are then in it more
    than once, which has to change nothing."""
    cut = _gathered(factors, axes)
    if not cut:
        return 0.0
    if not absorbs_padding(o, inits_of(o)) or any(
        axes[n] for n in factors.of_kind(FactorKind.REDUCTION)
    ):
        return None
    found = 0
    for value, dims in zip(o.results, factors.results, strict=True):
        sizes = (
            blocks_of(mesh, size, [axis for n in held for axis in axes[n]])
            for size, held in zip(value.dims, dims, strict=True)
        )
        found += math.prod(sizes) * value.tensor.dtype.itemsize
    return float((mesh.parts(cut) - 1) * found)


def lower_reduce(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`reduce`: the first part of a cut sum takes the initial value, others begin at 0."""
    gathered = _gathered(p.factors(o), p.axes(o))
    if gathered:
        return _lower_gathered(p, o, operands, gathered)
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


def _lower_gathered(p: Partitioner, o: Op, operands: list[Value], axes: Axes) -> Sequence[Value]:
    b, count = p.b, len(operands) // 2
    inits = operands[count:]
    values = [
        p.ended(value, block, init)
        for value, block, init in zip(o.operands[:count], operands[:count], inits, strict=True)
    ]
    own = rebuilt(p, o, [*values, *inits], o.attributes)
    lines = [b.reshape(value, (1, *value.dims)) for value in own]
    everyone = [p.all_gather(value, 0, axes) for value in lines]
    starts = [b.convert(init, value.element) for init, value in zip(inits, own, strict=True)]
    return rebuilt(p, o, [*everyone, *starts], {**o.attributes, "dimensions": (0,)})


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
