"""Algorithms along a dim that is cut, in place of a gather: the largest of a row, running totals.

Each device does its block, and what the devices then send each other does not grow with the dim.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ....hlo.factors import Factors
from ....hlo.graph import Op, Value
from ....hlo.ops import numerics
from ....hlo.ops.bodies import NO_FUNCTIONS, is_liftable, lifted
from ....hlo.ops.reduction import inits_of
from ....hlo.ops.windows import absorbs_padding, running
from ....hlo.sharding import Mesh
from ....hlo.types import I32, Element, TensorType
from .halo import Axes, block_of
from .local import rebuilt
from .partitioner import Partitioner
from .windows import halos, lower_windows_of_reduction, window_bytes

# The k largest: those of the blocks are candidates, which every device orders.


def _row(factors: Factors, axes: Sequence[Axes]) -> Axes:
    held = factors.operands[0][-1]
    return axes[held[0]] if held else ()


def top_k_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Values and indices of the candidates of the other devices. The operand alone is cut along
    the row."""
    results = factors.results[0][-1]
    if results and axes[results[0]]:
        return None
    cut = _row(factors, axes)
    kind, parts = o.operand.tensor, mesh.parts(cut)
    if parts == 1:
        return 0.0
    rows = math.prod(
        block_of(size, mesh.parts(axes[held[0]]) if held else 1)
        for size, held in zip(kind.dims[:-1], factors.operands[0][:-1], strict=True)
    )
    count = min(o.k, block_of(kind.dims[-1], parts))
    return float((parts - 1) * rows * count * (kind.dtype.itemsize + I32.dtype.itemsize))


def _least(element: Element) -> np.ndarray[Any, Any]:
    """What is never larger than another element; among equal ones the first is taken, and what lies
    beyond the end comes last."""
    dtype = element.dtype
    if numerics.is_float(dtype):
        with np.errstate(all="ignore"):
            return np.asarray(-np.asarray(np.nan, dtype))
    return np.asarray(False if dtype.kind == "b" else np.iinfo(dtype).min, dtype)


def lower_top_k(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """Candidates lie in the order of their blocks, so that a stable sort keeps the first of equal
    ones, as `chlo.top_k` does."""
    cut = p.cuts(o.operand)[-1]
    if not cut:
        return rebuilt(p, o, operands, o.attributes)
    if 0 in o.results[0].dims:
        kinds = [p.local(result.type) for result in o.results]
        return [p.b.constant(0, kind) for kind in kinds if isinstance(kind, TensorType)]
    b, last = p.b, o.operand.rank - 1
    block = p.ended(o.operand, operands[0], b.constant(_least(o.operand.element)), (last,))
    size = block.dims[last]
    values, numbers = b.op("chlo.top_k", [block], {"k": min(o.k, size)}).results
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
    if found is None:
        return None
    dim, backward = found
    held = factors.operands[0][dim]
    cut = axes[held[0]] if held else ()
    if not cut or not is_liftable(o.regions[0], NO_FUNCTIONS):
        return None
    if not absorbs_padding(o, inits_of(o)):
        return None
    return dim, backward, cut


def reduction_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Of a running total the totals of the other blocks; of other windows their halo."""
    found = _total(o, factors, axes)
    if found is None:
        return window_bytes(o, factors, axes, mesh)
    dims = o.operands[0].dims
    sizes = (
        1 if d == found[0] else block_of(size, mesh.parts(axes[held[0]]) if held else 1)
        for d, (size, held) in enumerate(zip(dims, factors.operands[0], strict=True))
    )
    each = sum(value.tensor.dtype.itemsize for value in o.results)
    return float((mesh.parts(found[2]) - 1) * math.prod(sizes) * each)


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
    b, count = p.b, len(operands) // 2
    values, inits = operands[:count], operands[count:]
    size, rank = values[0].dims[dim], values[0].rank
    if backward:  # what lies behind the end would be in every total
        values = [
            p.ended(value, block, init, (dim,))
            for value, block, init in zip(o.operands[:count], values, inits, strict=True)
        ]
    windows = tuple(size if d == dim else 1 for d in range(rank))
    edge = (0, size - 1) if backward else (size - 1, 0)
    padding = tuple(edge if d == dim else (0, 0) for d in range(rank))
    facts = {**o.attributes, "window_dimensions": windows, "padding": padding}
    own = rebuilt(p, o, [*values, *inits], facts)
    starts = [b.convert(init, value.element) for init, value in zip(inits, own, strict=True)]
    totals = [
        _before(p, p.all_gather(_end(p, value, dim, backward), dim, cut), start, found)
        for value, start in zip(own, starts, strict=True)
    ]
    body = p.body(o.regions[0])
    facts = {"dimensions": (dim,)}
    rest = b.op("reduce", [*totals, *starts], facts, [body]).results
    others = tuple(d for d in range(rank) if d != dim)
    spread = [b.broadcast(value, own[0].dims, others) for value in rest]
    return lifted(b, body, [*spread, *own]) or ()


def _end(p: Partitioner, value: Value, dim: int, backward: bool) -> Value:
    """The total of the whole block."""
    at = 0 if backward else value.dims[dim] - 1
    return p.b(
        "slice", value, start_indices=tuple(at if d == dim else 0 for d in range(value.rank)),
        limit_indices=tuple(at + 1 if d == dim else n for d, n in enumerate(value.dims)),
        strides=(1,) * value.rank,
    )  # fmt: skip


def _before(p: Partitioner, totals: Value, start: Value, found: tuple[int, bool, Axes]) -> Value:
    """The totals of the blocks before this device's, the initial value for the others."""
    b, (dim, backward, cut) = p.b, found
    numbers = b("iota", type=totals.tensor.with_element(I32), iota_dimension=dim)
    here = b.broadcast(p.index(cut), totals.dims, ())
    before = b.compare("GT" if backward else "LT", numbers, here)
    return b("select", before, totals, b.broadcast(start, totals.dims, ()))
