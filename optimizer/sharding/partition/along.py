"""Algorithms along a dim that is cut, in place of a gather: the largest of a row, running totals.

Each device does its block, and what the devices then send each other does not grow with the dim.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ....hlo.build import build_region
from ....hlo.factors import Factors
from ....hlo.graph import Op, Value
from ....hlo.ops.bodies import monoid
from ....hlo.ops.windows import absorbs_padding, running
from ....hlo.sharding import Mesh
from ....hlo.types import I32, TensorType
from .halo import Axes, block_of
from .local import lower_local, rebuilt
from .partitioner import Partitioner
from .windows import halos, lower_windows_of_reduction, window_bytes

# The k largest: those of the blocks are candidates, which every device orders.


def _row(factors: Factors, axes: Sequence[Axes]) -> Axes:
    held = factors.operands[0][-1]
    return axes[held[0]] if held else ()


def top_k_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Values and indices of the candidates of the other devices. The operand alone is cut along
    the row, evenly."""
    results = factors.results[0][-1]
    if results and axes[results[0]]:
        return None
    cut = _row(factors, axes)
    kind, parts = o.operand.tensor, mesh.parts(cut)
    if parts == 1:
        return 0.0
    if kind.dims[-1] % parts:
        return None
    rows = math.prod(
        block_of(size, mesh.parts(axes[held[0]]) if held else 1)
        for size, held in zip(kind.dims[:-1], factors.operands[0][:-1], strict=True)
    )
    count = min(o.k, kind.dims[-1] // parts)
    return float((parts - 1) * rows * count * (kind.dtype.itemsize + I32.dtype.itemsize))


def lower_top_k(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """Candidates lie in the order of their blocks, so that a stable sort keeps the first of equal
    ones, as `chlo.top_k` does."""
    cut = p.cuts(o.operand)[-1]
    if not cut:
        return lower_local(p, o, operands)
    if p.uneven(o.operand, o.operand.rank - 1):
        raise p.refuse(o, f"a row is cut unevenly by {cut}", "cut another dim")
    b, last = p.b, o.operand.rank - 1
    size = operands[0].dims[last]
    values, numbers = b.op("chlo.top_k", operands, {"k": min(o.k, size)}).results
    begin = b("multiply", p.index(cut), b.constant(np.int32(size)))
    numbers = b("add", numbers, b.broadcast(begin, numbers.dims, ()))
    candidates = [p.all_gather(value, last, cut) for value in (values, numbers)]
    places = b.op("chlo.top_k", candidates[:1], {"k": o.k}).results
    grid = [
        b("iota", type=TensorType((*places[1].dims, 1), I32), iota_dimension=d) for d in range(last)
    ]
    indices = b(
        "concatenate", *grid, b.reshape(places[1], (*places[1].dims, 1)), dimension=last + 1
    )
    chosen = b(
        "gather", candidates[1], indices, offset_dims=(),
        collapsed_slice_dims=tuple(range(last + 1)), start_index_map=tuple(range(last + 1)),
        operand_batching_dims=(), start_indices_batching_dims=(), index_vector_dim=last + 1,
        slice_sizes=(1,) * (last + 1), indices_are_sorted=False,
    )  # fmt: skip
    return [places[0], chosen]


# Running totals: those of the block, each folded with the totals of all blocks before it.


def _total(o: Op, factors: Factors, axes: Sequence[Axes]) -> tuple[int, bool, Axes] | None:
    """(dim, from its end, its axes) of a running total along a dim that is cut."""
    found = running(o)
    if found is None or len(o.operands) != 2 or monoid(o.regions[0]) is None:
        return None
    dim, backward = found
    held = factors.operands[0][dim]
    cut = axes[held[0]] if held else ()
    if not cut or not absorbs_padding(o, o.operands[1:]):
        return None
    return dim, backward, cut


def reduction_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Of a running total the totals of the other blocks; of other windows their halo."""
    found = _total(o, factors, axes)
    if found is None:
        return window_bytes(o, factors, axes, mesh)
    kind = o.operands[0].tensor
    sizes = (
        1 if d == found[0] else block_of(size, mesh.parts(axes[held[0]]) if held else 1)
        for d, (size, held) in enumerate(zip(kind.dims, factors.operands[0], strict=True))
    )
    return float((mesh.parts(found[2]) - 1) * math.prod(sizes) * kind.dtype.itemsize)


def reduction_halos(
    o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> Mapping[Hashable, float]:
    """Those of windows that are no running totals."""
    return {} if _total(o, factors, axes) else halos(o, factors, axes, mesh)


def lower_reduce_window(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    found = _total(o, p.factors(o), p.axes(o))
    if found is None:
        return lower_windows_of_reduction(p, o, operands)
    dim, backward, cut = found
    b, (value, init) = p.b, operands
    size, name = value.dims[dim], monoid(o.regions[0])
    assert name is not None
    if backward:  # what lies behind the end would be in every total
        value = _ended(p, o, value, init, dim)
    windows = tuple(size if d == dim else 1 for d in range(value.rank))
    edge = (0, size - 1) if backward else (size - 1, 0)
    padding = tuple(edge if d == dim else (0, 0) for d in range(value.rank))
    facts = {**o.attributes, "window_dimensions": windows, "padding": padding}
    (own,) = rebuilt(p, o, [value, init], facts)
    at = 0 if backward else size - 1
    total = b(
        "slice", own, start_indices=tuple(at if d == dim else 0 for d in range(own.rank)),
        limit_indices=tuple(at + 1 if d == dim else n for d, n in enumerate(own.dims)),
        strides=(1,) * own.rank,
    )  # fmt: skip
    totals = p.all_gather(total, dim, cut)
    numbers = b("iota", type=totals.tensor.with_element(I32), iota_dimension=dim)
    here = b.broadcast(p.index(cut), totals.dims, ())
    before = b.compare("GT" if backward else "LT", numbers, here)
    totals = b("select", before, totals, b.broadcast(init, totals.dims, ()))
    scalar = TensorType((), own.element)
    body = build_region([scalar, scalar], lambda b, x, y: [b(name, x, y)])
    rest = b("reduce", totals, init, regions=(body,), dimensions=(dim,))
    others = tuple(d for d in range(own.rank) if d != dim)
    return [b(name, b.broadcast(rest, own.dims, others), own)]


def _ended(p: Partitioner, o: Op, value: Value, init: Value, dim: int) -> Value:
    source = o.operands[0]
    if not p.uneven(source, dim):
        return value
    b = p.b
    end = b.constant(source.dims[dim], value.tensor.with_element(I32))
    inside = b.compare("LT", p.positions(source, dim), end)
    return b("select", inside, value, b.broadcast(init, value.dims, ()))
