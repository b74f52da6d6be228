"""Operations that are the same on blocks: all factors that are cut pass, or are reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....hlo.factors import FactorKind
from ....hlo.graph import Op, Value
from ....hlo.sharding import SUM
from .partitioner import Partitioner


def lower_local(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """The operation on blocks; UnsupportedError where a cut factor needs more than that."""
    for factor, axes in zip(p.factors(o).factors, p.axes(o), strict=True):
        if axes and (factor.kind is not FactorKind.PASS or factor.placed):
            raise p.refuse(
                o, f"nothing lowers it where a dim that does not pass is cut by {axes}",
                "leave that dim whole",
            )  # fmt: skip
    return rebuilt(p, o, operands, o.attributes)


def rebuilt(
    p: Partitioner, o: Op, operands: Sequence[Value], attributes: Mapping[str, Any]
) -> Sequence[Value]:
    """The operation with other operands and attributes, results of its blocks' types."""
    regions = o.regions if o.definition.sealed else [p.body(region) for region in o.regions]
    types = [p.local(result.type) for result in o.results]
    return p.b.op(o.name, operands, attributes, regions, types).results


def lower_product(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """A sum of products: what is cut along a summed dim is left unreduced."""
    for factor, axes in zip(p.factors(o).factors, p.axes(o), strict=True):
        summed = factor.kind is FactorKind.REDUCTION and factor.reduction == SUM
        if axes and not (summed or factor.kind is FactorKind.PASS):
            raise p.refuse(o, f"a dim is cut by {axes} that is not summed", "leave it whole")
    found = [p.masked(o, number, 0) for number in range(len(operands))]
    return rebuilt(p, o, found, o.attributes)


def lower_broadcast(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`broadcast`: its new dims as large as they are in a block."""
    kind = p.local(o.result.type)
    mapped = range(len(o.broadcast_sizes), o.result.rank)
    return [p.b("broadcast_in_dim", *operands, type=kind, broadcast_dimensions=tuple(mapped))]


def lower_dynamic_broadcast(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`dynamic_broadcast_in_dim` of known sizes."""
    kind = p.local(o.result.type)
    mapped = tuple(o.broadcast_dimensions)
    return [p.b("broadcast_in_dim", operands[0], type=kind, broadcast_dimensions=mapped)]
