"""`select_and_scatter` along dims that are cut: each device looks at the windows over its block.

It fetches what these read, and what they scatter; where a window's choice falls into another block,
nothing is written. Windows that lie in blocks need nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ....hlo.build import Builder, build_region
from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Op, Value
from ....hlo.ops.clauses import per_dim
from ....hlo.ops.decomposed import inlined
from ....hlo.sharding import Mesh
from ....hlo.types import I1, I32, TensorType
from .halo import Axes, PartitionedDim, kept
from .local import rebuilt
from .partitioner import Partitioner
from .windows import fetch, fetched_bytes

NOTHING, ELSEWHERE = -1, -2
"""In place of a place in the block: no element of the tensor, and one of another block."""


class _SelectionWindow(NamedTuple):
    size: int
    stride: int
    padding: tuple[int, int]


class _DimRead(NamedTuple):
    """What a device reads along one dim: of the operand, of the source."""

    operand: PartitionedDim
    source: PartitionedDim
    walks: bool  # the dim is cut, and windows walk along it


def _windows(o: Op) -> list[_SelectionWindow]:
    rank = o.operand.rank
    sizes, strides = (
        per_dim(values, rank, 1) for values in (o.window_dimensions, o.window_strides)
    )
    padding = per_dim(o.padding, rank, (0, 0))
    return [_SelectionWindow(*window) for window in zip(sizes, strides, padding, strict=True)]


def _read(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> list[_DimRead] | None:
    if any(axes[number] for number in factors.of_kind(FactorKind.REPLICATE)):
        return None
    found: list[_DimRead] = []
    for dim, (window, held) in enumerate(zip(_windows(o), factors.operands[0], strict=True)):
        cut = tuple(axis for number in held for axis in axes[number])
        size, count = o.operand.dims[dim], o.source.dims[dim]
        own, source = kept(mesh, size, cut), kept(mesh, count, cut)
        moves = any(factors.factors[n].kind is not FactorKind.PASS for n in held)
        if cut and moves:
            found.append(_over(own, source, window))
        else:
            found.append(_DimRead(own, source, False))
    return found


def _over(own: PartitionedDim, source: PartitionedDim, window: _SelectionWindow) -> _DimRead:
    """The windows over each block, the elements that they read."""
    size, count, low = own.size, source.size, window.padding[0]
    spans: list[tuple[int, int]] = []
    for start, end in own.reads:
        first = max(-(-(start + low - window.size + 1) // window.stride), 0)
        last = min((end - 1 + low) // window.stride + 1, count)
        spans.append((first, last) if start < end and first < last else (0, 0))
    most = max(last - first for first, last in spans)
    reach = (most - 1) * window.stride + window.size if most else 0
    starts = tuple(first * window.stride - low for first, _ in spans)
    reads: list[tuple[int, int]] = []
    for (first, last), start in zip(spans, starts, strict=True):
        end = start + (last - first - 1) * window.stride + window.size
        inside = max(start, 0), min(end, size)
        reads.append(inside if first < last and inside[0] < inside[1] else (0, 0))
    firsts = tuple(first for first, _ in spans)
    return _DimRead(
        PartitionedDim(size, own.axes, own.block, starts, tuple(reads), reach),
        PartitionedDim(count, source.axes, source.block, firsts, tuple(spans), most),
        True,
    )


def selection_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """What devices lack of the operand, and of the source."""
    if _read(o, factors, axes, mesh) is None:
        return None
    return sum(selection_halos(o, factors, axes, mesh).values(), 0.0)


def selection_halos(
    o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> Mapping[Hashable, float]:
    """What is fetched from other devices -> the bytes of it that a device receives."""
    found = _read(o, factors, axes, mesh)
    if found is None:
        return {}
    return {
        **fetched_bytes([o.operand], [read.operand for read in found], mesh),
        **fetched_bytes([o.source], [read.source for read in found], mesh),
    }


def lower_selection(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    found = _read(o, p.factors(o), p.axes(o), p.mesh)
    if found is None:
        raise p.refuse(o, "its factors are cut in a way that has no halo", "leave them whole")
    walked = [dim for dim, read in enumerate(found) if read.walks]
    nested = all(
        found[dim].operand.stays and found[dim].source.stays
        and found[dim].source.size % found[dim].source.block == 0
        and found[dim].operand.size % found[dim].operand.block == 0
        for dim in walked
    )  # fmt: skip
    if nested:
        return rebuilt(p, o, operands, o.attributes)
    value, source, init = operands
    block = value.dims
    value = fetch(p, value, [read.operand for read in found], None)
    source = fetch(p, source, [read.source for read in found], None)
    places = _places(p, o, found, value.dims, block)
    chosen = _chosen(p, o, found, value, places, source.dims)
    for dim in walked:  # windows that are none of the tensor's
        line = found[dim].source
        count = p.of_part(line.axes, [last - first for first, last in line.reads])
        numbers = p.b("iota", type=chosen.tensor, iota_dimension=dim)
        exists = p.b.compare("LT", numbers, p.b.broadcast(count, chosen.dims, ()))
        nowhere = p.b.constant(NOTHING, chosen.tensor)
        chosen = p.b("select", exists, chosen, nowhere)
    return [_scattered(p, o, chosen, source, init, block)]


def _places(
    p: Partitioner, o: Op, found: Sequence[_DimRead], dims: Sequence[int], block: Sequence[int]
) -> Value:
    """For each element that is read its number in the block, row by row."""
    b = p.b
    kind = TensorType(tuple(dims), I32)
    total = b.constant(0, kind)
    own, real = b.constant(True, kind.with_element(I1)), b.constant(True, kind.with_element(I1))
    for dim, read in enumerate(found):
        line = read.operand
        numbers = b("iota", type=kind, iota_dimension=dim)
        if read.walks:
            offsets = [start - part * line.block for part, start in enumerate(line.starts)]
            offset = p.of_part(line.axes, offsets)
            numbers = b("add", numbers, b.broadcast(offset, kind.dims, ()))
            before = b.compare("GE", numbers, b.constant(0, kind))
            behind = b.compare("LT", numbers, b.constant(block[dim], kind))
            own = b("and", own, b("and", before, behind))
        if line.axes:
            parts = range(len(line.starts))
            ends = (
                p.of_part(line.axes, [end - part * line.block for part in parts])
                for end in (0, line.size)
            )
            low, high = (b.broadcast(end, kind.dims, ()) for end in ends)
            inside = b("and", b.compare("GE", numbers, low), b.compare("LT", numbers, high))
            real = b("and", real, inside)
        total = b("add", b("multiply", total, b.constant(block[dim], kind)), numbers)
    elsewhere, nothing = b.constant(ELSEWHERE, kind), b.constant(NOTHING, kind)
    return b("select", real, b("select", own, total, elsewhere), nothing)


def _chosen(
    p: Partitioner, o: Op, found: Sequence[_DimRead], value: Value, places: Value,
    dims: Sequence[int],
) -> Value:  # fmt: skip
    """The place of the element that each window selects."""
    b, select = p.b, p.body(o.regions[0])
    scalar, place = TensorType((), value.element), TensorType((), I32)

    def body(b: Builder, x: Value, i: Value, y: Value, j: Value) -> Sequence[Value]:
        nothing = b.constant(np.int32(NOTHING))
        (first,) = inlined(b, select, [x, y])
        stays = b("and", first, b.compare("NE", i, nothing))
        stays = b("or", stays, b.compare("EQ", j, nothing))
        return [b("select", stays, x, y), b("select", stays, i, j)]

    windows = _windows(o)
    facts = {
        "window_dimensions": tuple(window.size for window in windows),
        "window_strides": tuple(window.stride for window in windows),
        "padding": tuple(
            (0, 0) if read.walks else window.padding
            for window, read in zip(windows, found, strict=True)
        ),
    }
    starts = [b.constant(0, scalar), b.constant(np.int32(NOTHING))]
    region = build_region([scalar, place] * 2, body)
    kinds = [scalar.with_dims(dims), place.with_dims(dims)]
    return b.op("reduce_window", [value, places, *starts], facts, [region], kinds).results[1]


def _scattered(
    p: Partitioner, o: Op, chosen: Value, source: Value, init: Value, block: Sequence[int]
) -> Value:
    """The block: the initial value everywhere, what is scattered to it where it was chosen."""
    b = p.b
    size = int(np.prod(block, dtype=np.int64))
    whole = b.broadcast(init, (size,), ())
    count = chosen.tensor.size
    facts = {
        "update_window_dims": (), "inserted_window_dims": (0,),
        "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
    }  # fmt: skip
    operands = [whole, b.reshape(chosen, (count, 1)), b.reshape(source, (count,))]
    found = b.op("scatter", operands, facts, [p.body(o.regions[1])]).result
    return b.reshape(found, tuple(block))
