"""Reads and writes at computed positions along dims that are cut: each device does what falls into
its block. Reads are then unreduced sums, of which the others hold zeros; writes move nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ....hlo.factors import FactorKind
from ....hlo.graph import Op, Value
from ....hlo.ops.indexing import batch_places
from ....hlo.types import I32, I64, TensorType
from .local import rebuilt
from .partitioner import Partitioner


def lower_dynamic_slice(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`dynamic_slice`: a window of at most the wanted size inside of the block, moved to its place
    among zeros."""
    b, value = p.b, operands[0]
    cuts, kept = p.cuts(o.operand), p.cuts(o.result)
    if any(axes and held for axes, held in zip(cuts, kept, strict=True)) and any(
        axes and size != whole
        for axes, size, whole in zip(kept, o.slice_sizes, o.operand.dims, strict=True)
    ):
        raise p.refuse(o, "a dim of which it takes a part is cut in the result", "leave it whole")
    sizes, starts, shifts = [], [], []
    for dim, (axes, size) in enumerate(zip(cuts, o.slice_sizes, strict=True)):
        start = operands[1 + dim]
        if not axes or size == o.operand.dims[dim]:  # a whole dim begins at 0
            sizes.append(value.dims[dim] if axes else size)
            starts.append(start)
            shifts.append(None)
            continue
        length = min(size, value.dims[dim])
        here = _local_start(p, o.operand, dim, start, size)
        clamped = _clamped(p, here, 0, value.dims[dim] - length)
        sizes.append(length)
        starts.append(clamped)
        shifts.append(b("subtract", here, clamped))
    starts, shifts = _alike(p, starts), list(shifts)
    found = b("dynamic_slice", value, *starts, slice_sizes=tuple(sizes))
    if not any(shifts):
        return [found]
    edges = tuple(0 if s is None else n for s, n in zip(shifts, o.slice_sizes, strict=True))
    found = _padded(p, found, edges)
    moved = [
        b.constant(np.int32(0)) if s is None else b("add", s, b.constant(np.int32(edge)))
        for s, edge in zip(shifts, edges, strict=True)
    ]
    kind = p.local(o.result.type)
    assert isinstance(kind, TensorType)
    return [b("dynamic_slice", found, *moved, slice_sizes=kind.dims)]


def lower_dynamic_update_slice(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`dynamic_update_slice`: of a window inside of the block, what the update reaches is new."""
    b, value, update = p.b, operands[0], operands[1]
    placed = [
        bool(axes) and size != whole
        for axes, size, whole in zip(p.cuts(o.operand), o.update.dims, o.operand.dims, strict=True)
    ]
    if not any(placed):
        return rebuilt(p, o, operands, o.attributes)
    sizes = tuple(min(n, c) for n, c in zip(update.dims, value.dims, strict=True))
    starts, moved, shifts = [], [], []
    for dim, there in enumerate(placed):
        start = operands[2 + dim]
        if there:
            here = _local_start(p, o.operand, dim, start, o.update.dims[dim])
            start = _clamped(p, here, 0, value.dims[dim] - sizes[dim])
            shift = b("subtract", start, here)
            shifts.append((dim, shift))
            moved.append(b("add", shift, b.constant(np.int32(sizes[dim]))))
        else:
            moved.append(b.constant(np.int32(0)))
        starts.append(start)
    starts = _alike(p, starts)
    edges = tuple(n if there else 0 for n, there in zip(sizes, placed, strict=True))
    new = b("dynamic_slice", _padded(p, update, edges), *moved, slice_sizes=sizes)
    old = b("dynamic_slice", value, *starts, slice_sizes=sizes)
    numbers = TensorType(sizes, I32)
    reached: list[Value] = []
    for dim, shift in shifts:
        row = b("add", b("iota", type=numbers, iota_dimension=dim), b.broadcast(shift, sizes, ()))
        reached.append(b.compare("GE", row, b.constant(0, numbers)))
        reached.append(b.compare("LT", row, b.constant(update.dims[dim], numbers)))
    inside = functools.reduce(functools.partial(b, "and"), reached)
    return [b("dynamic_update_slice", value, b("select", inside, new, old), *starts)]


def lower_gather(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """`gather`: positions along dims that are cut count from the block's first element."""
    b, value, indices = p.b, *operands
    factors = p.factors(o)
    cuts, sizes = p.cuts(o.operand), list(o.slice_sizes)
    found_hits: list[Value] = []
    axis = o.index_vector_dim
    for dim, axes in enumerate(cuts):
        if not axes:
            continue
        kinds = {factors.factors[n].kind for n in factors.operands[0][dim]}
        if FactorKind.REPLICATE in kinds:
            raise p.refuse(o, f"it takes a part of dim {dim}, which is cut", "leave it whole")
        if FactorKind.REDUCTION not in kinds:
            if dim not in o.operand_batching_dims:
                sizes[dim] = value.dims[dim]
            continue
        if indices.element is not I64:
            indices = b.convert(indices, I64)
        length = value.dims[dim]
        offset = b.convert(p.offset(o.operand, dim), I64)
        if dim not in o.start_index_map:  # always element 0
            found_hits.append(b.compare("EQ", offset, b.constant(np.int64(0))))
            continue
        component = o.start_index_map.index(dim)
        shifted, here = _shifted(p, indices, axis, component, offset, o.operand.dims[dim] - 1)
        indices = shifted
        found_hits.append(
            b(
                "and", b.compare("GE", here, b.constant(0, here.tensor)),
                b.compare("LT", here, b.constant(length, here.tensor)),
            )
        )  # fmt: skip
    found = rebuilt(p, o, [value, indices], {**o.attributes, "slice_sizes": tuple(sizes)})
    if not found_hits:
        return found
    (result,) = found
    places = batch_places(o, o.result.rank, o.offset_dims)
    order = sorted(places, key=lambda d: places[d])  # result dims in the order of indices' dims
    for hit in found_hits:
        mapped = order if hit.rank else ()
        spread = b.broadcast(hit, result.dims, mapped)
        result = b("select", spread, result, b.constant(0, result.tensor))
    return [result]


def _shifted(
    p: Partitioner, indices: Value, axis: int, component: int, offset: Value, last: int
) -> tuple[Value, Value]:
    """Indices with one component clamped and counted from `offset`; and that component alone."""
    b = p.b
    if axis == indices.rank:
        indices_as = b.reshape(indices, (*indices.dims, 1))
    else:
        indices_as = indices
    dims = indices_as.dims
    clamped = _clamped(p, indices_as, 0, last)
    moved = b("subtract", clamped, b.broadcast(offset, dims, ()))
    numbers = b("iota", type=indices_as.tensor, iota_dimension=axis)
    own = b.compare("EQ", numbers, b.constant(component, indices_as.tensor))
    shifted = b.reshape(b("select", own, moved, indices_as), indices.dims)
    starts = tuple(component if d == axis else 0 for d in range(len(dims)))
    limits = tuple(component + 1 if d == axis else size for d, size in enumerate(dims))
    one = b("slice", moved, start_indices=starts, limit_indices=limits, strides=(1,) * len(dims))
    return shifted, b.reshape(one, dims[:axis] + dims[axis + 1 :])


def _local_start(p: Partitioner, value: Value, dim: int, start: Value, size: int) -> Value:
    """Where a window begins in this device's block, i32: before it, in it or behind it."""
    clamped = p.b.convert(_clamped(p, start, 0, value.dims[dim] - size), I32)
    return p.b("subtract", clamped, p.offset(value, dim))


def _clamped(p: Partitioner, value: Value, low: int, high: int) -> Value:
    scalar = TensorType((), value.element)
    limit = min(high, np.iinfo(value.element.dtype).max)
    return p.b("clamp", p.b.constant(low, scalar), value, p.b.constant(limit, scalar))


def _alike(p: Partitioner, starts: Sequence[Value]) -> list[Value]:
    """Starts of one element type."""
    kinds = {start.element for start in starts}
    return list(starts) if len(kinds) <= 1 else [p.b.convert(start, I64) for start in starts]


def _padded(p: Partitioner, value: Value, edges: tuple[int, ...]) -> Value:
    """With so many zeros before and behind each dim."""
    zero = p.b.constant(0, TensorType((), value.element))
    return p.b(
        "pad", value, zero, edge_padding_low=edges, edge_padding_high=edges,
        interior_padding=(0,) * value.rank,
    )  # fmt: skip
