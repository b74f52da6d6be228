"""Scatters: each device writes what falls into its block, and drops the rest."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Op, Value
from ....hlo.sharding import SUM, Mesh
from ....hlo.types import I64
from .local import rebuilt
from .partitioner import Axes, Partitioner
from .reductions import identity, once


def scatter_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Nothing; None where windows that move span a cut dim, or data of others is needed."""
    for factor, cut in zip(factors.factors, axes, strict=True):
        if cut and factor.kind not in (FactorKind.PASS, FactorKind.REDUCTION):
            return None
    for dim, held in enumerate(factors.operands[0]):
        spanned = dim not in o.inserted_window_dims
        if spanned and any(axes[n] and factors.factors[n].placed for n in held):
            return None
    return 0.0


def lower_scatter(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`scatter`: positions count from the block's first element. Where the updates are cut, the
    results are unreduced: the first part has the inputs, the others the identity."""
    factors = p.factors(o)
    count = len(operands) // 2
    reduction = SUM
    parts: Axes = ()
    for factor, axes in zip(factors.factors, p.axes(o), strict=True):
        if axes and factor.kind is FactorKind.REPLICATE:
            raise p.refuse(o, f"a dim is cut by {axes} that every device needs", "leave it whole")
        if axes and factor.kind is FactorKind.REDUCTION:
            reduction, parts = factor.reduction, (*parts, *axes)
    for dim, axes in enumerate(p.cuts(o.operands[0])):
        placed = any(factors.factors[n].placed for n in factors.operands[0][dim])
        if axes and placed and dim not in o.inserted_window_dims:
            raise p.refuse(o, f"its windows span dim {dim}, which is cut", "leave it whole")
    inputs = [once(p, value, reduction, parts) for value in operands[:count]]
    indices = _moved(p, o, operands[count])
    neutral = identity(reduction, operands[count + 1].element)
    updates = [p.masked(o, number, neutral) for number in range(count + 1, 2 * count + 1)]
    return rebuilt(p, o, [*inputs, indices, *updates], o.attributes)


def _moved(p: Partitioner, o: Op, indices: Value) -> Value:
    """The indices, each component that is along a cut dim counted from the block's begin."""
    b, cuts = p.b, p.cuts(o.operands[0])
    named = [(n, dim) for n, dim in enumerate(o.scatter_dims_to_operand_dims)]
    moving = [(n, dim) for n, dim in named if cuts[dim] and dim in o.inserted_window_dims]
    if not moving:
        return indices
    indices = b.convert(indices, I64)
    dims = indices.dims
    wide = (*dims, 1) if o.index_vector_dim == len(dims) else dims
    found = b.reshape(indices, wide)
    numbers = b("iota", type=found.tensor, iota_dimension=o.index_vector_dim)
    for component, dim in moving:
        offset = b.convert(p.offset(o.operands[0], dim), I64)
        own = b.compare("EQ", numbers, b.constant(component, found.tensor))
        less = b("subtract", found, b.broadcast(offset, wide, ()))
        found = b("select", own, less, found)
    return b.reshape(found, dims)
