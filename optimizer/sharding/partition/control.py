"""Operations with regions of the program, and those that say how values lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....hlo.graph import Op, Value
from ....hlo.sharding import Axis
from ....hlo.types import TensorType
from ..lowering import lower
from ..reshard import plan_reshard
from .partitioner import Axes, Partitioner, sharding_of
from .reductions import once


def lower_control(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`while`, `if`, `case`: the same on blocks. Their values lie alike on every way."""
    regions = [p.region(region) for region in o.regions]
    types = [p.local(result.type) for result in o.results]
    return p.b.op(o.name, operands, o.attributes, regions, types).results


def lower_identity(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """What says something about values, and computes nothing."""
    return operands[: len(o.results)]


def lower_constraint(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`sharding_constraint`: the cheapest way from the operand's sharding to the result's. Of a
    value that becomes unreduced, the first device along these axes keeps it. A whole weight that is
    cut is the block of one."""
    source, target = sharding_of(o.operands[0].tensor), sharding_of(o.result.tensor)
    fresh: Axes = tuple(axis for axis in target.unreduced if axis not in source.unreduced)
    kept: tuple[Axis, ...] = tuple(axis for axis in target.unreduced if axis not in fresh)
    kind = o.operands[0].tensor
    made = o.operands[0].op
    becomes_cut = any(dim.axes for dim in target.dims) and not any(d.axes for d in source.dims)
    if made is not None and made.name == "weight" and becomes_cut and not target.unreduced:
        return [p.weight(made.weight, o.result.tensor)]
    size = max(kind.element.bits // 8, 1)
    plan = plan_reshard(
        p.mesh, kind.dims, size, source, replace(target, unreduced=kept), p.interconnect
    )
    found = lower(plan, p.b, operands[0], p.channels, p.interconnect)
    return [once(p, found, target.reduction, fresh)]


def lower_manual(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`sdy.manual_computation`: its body, which is written for blocks."""
    body = o.regions[0]
    for value, argument in zip(operands, body.arguments, strict=True):
        kind = p.local(argument.type)
        if isinstance(kind, TensorType) and kind.dims != value.dims:
            raise p.refuse(
                o, f"it takes blocks of {kind}, but gets {value.type}",
                "shard its operands as its in_shardings say",
            )  # fmt: skip
        p.values[argument] = value
    p.run(body)
    return [p.values[value] for value in body.results]
