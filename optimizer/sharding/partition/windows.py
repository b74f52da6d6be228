"""Operations that read windows of dims that are cut: slice, pad, reverse, reduce_window,
convolution. Each device fetches what its windows read, once for all dims of an operand, and runs
the operation on that, with padding of its own.

`reading` says what is fetched, for the lowering and for what it costs (`inner.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Op, Value
from ....hlo.ops.clauses import per_dim
from ....hlo.ops.convolution import window_attributes
from ....hlo.sharding import Mesh
from ....hlo.types import I32
from .halo import (
    Axes,
    DimWindow,
    HaloPiece,
    PartitionedDim,
    Reading,
    Routes,
    kept,
    mirrored,
    read_along,
    received,
    routes_of,
    transfers_of,
)
from .local import rebuilt
from .partitioner import Partitioner, sharding_of


@dataclass
class Fetched:
    """What is read of one operand: a line for each dim; `readings`, by dim, where windows walk."""

    lines: list[PartitionedDim]
    readings: dict[int, Reading] = field(default_factory=dict)
    windows: dict[int, DimWindow] = field(default_factory=dict)


def fetching(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> Fetched | None:
    """What each device reads of the first operand, and of all that lie as it does; None where the
    factors cannot be cut so."""
    if any(axes[number] for number in factors.of_kind(FactorKind.REPLICATE)):
        return None
    if o.name == "convolution" and not _grouped(o, factors, axes, mesh):
        return None
    walks = _WINDOWS[o.name](o)
    dims = o.operands[0].dims
    found = Fetched([])
    for dim, (size, held) in enumerate(zip(dims, factors.operands[0], strict=True)):
        cut = [number for number in held if axes[number]]
        window = walks.get(dim)
        moving = [n for n in cut if _moves(o, factors, n, dim)]
        if not _nested(factors, held, axes, mesh):
            return None
        if not moving:
            found.lines.append(kept(mesh, size, tuple(a for n in cut for a in axes[n])))
            continue
        if len(moving) < len(cut) or window is None:
            return None
        if window == MIRRORED:
            found.lines.append(mirrored(mesh, size, axes[cut[0]]))
            continue
        kinds = [factors.factors[n].kind for n in cut]
        along = [axes[n] for n in cut if factors.factors[n].kind is FactorKind.PERMUTATION]
        inside = [axes[n] for n in cut if factors.factors[n].kind is FactorKind.REDUCTION]
        if len(along) + len(inside) != len(cut):
            return None
        major = kinds[0] is FactorKind.PERMUTATION
        read = read_along(
            mesh, size, window, along[0] if along else (), inside[0] if inside else (), major
        )
        found.lines.append(read.line)
        found.readings[dim], found.windows[dim] = read, window
    return found


def _grouped(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> bool:
    """Whether the blocks of a convolution's kernel and result hold whole groups."""
    if max(o.feature_group_count, o.batch_group_count) > 1:
        major = factors.operands[1][o.kernel_output_feature_dimension][0]
        if factors.factors[major].size % mesh.parts(axes[major]):
            return False
    tensors = (*factors.operands[1], *factors.results[0])
    return all(_nested(factors, held, axes, mesh) for held in tensors)


def _moves(o: Op, factors: Factors, number: int, dim: int) -> bool:
    """Whether a cut of that factor changes what is read along a dim of the first operand."""
    factor = factors.factors[number]
    if factor.kind is FactorKind.REDUCTION:  # of a convolution: the kernel's places
        return factor.placed
    return factor.kind is not FactorKind.PASS


def _nested(factors: Factors, held: Sequence[int], axes: Sequence[Axes], mesh: Mesh) -> bool:
    """Whether blocks of a dim of several factors are whole numbers of the minor ones."""
    if len(held) < 2:
        return True
    for place, number in enumerate(held):
        size, parts = factors.factors[number].size, mesh.parts(axes[number])
        if parts > 1 and size % parts:
            return False
        if parts < size and any(axes[minor] for minor in held[place + 1 :]):
            return False
    return True


# What windows each operation has, by dim of its first operand.

MIRRORED = DimWindow(-1, -1)
"""In place of a window: the dim is read from its other end."""


def _slice_windows(o: Op) -> dict[int, DimWindow]:
    bounds = zip(o.result.dims, o.start_indices, o.strides, strict=True)
    return {d: DimWindow(n, 1, step, -start) for d, (n, start, step) in enumerate(bounds)}


def _pad_windows(o: Op) -> dict[int, DimWindow]:
    edges = zip(o.result.dims, o.edge_padding_low, o.interior_padding, strict=True)
    return {d: DimWindow(n, low=low, base=gap + 1) for d, (n, low, gap) in enumerate(edges)}


def _reverse_windows(o: Op) -> dict[int, DimWindow]:
    return dict.fromkeys(o.dimensions, MIRRORED)


def _reduction_windows(o: Op) -> dict[int, DimWindow]:
    rank = o.operands[0].rank
    strides, base, dilations = (
        per_dim(values, rank, 1)
        for values in (o.window_strides, o.base_dilations, o.window_dilations)
    )
    padding = per_dim(o.padding, rank, (0, 0))
    sizes = zip(o.results[0].dims, o.window_dimensions, strict=True)
    return {
        d: DimWindow(n, size, strides[d], padding[d][0], dilations[d], base[d])
        for d, (n, size) in enumerate(sizes)
    }


def _convolution_windows(o: Op) -> dict[int, DimWindow]:
    strides, padding, base, dilation, reversal = window_attributes(o)
    places = zip(
        o.input_spatial_dimensions, o.kernel_spatial_dimensions, o.output_spatial_dimensions,
        strict=True,
    )  # fmt: skip
    return {
        source: DimWindow(
            o.result.dims[result], o.rhs.dims[kernel], strides[n], padding[n][0], dilation[n],
            base[n], bool(reversal[n]),
        )
        for n, (source, kernel, result) in enumerate(places)
    }  # fmt: skip


_WINDOWS = {
    "slice": _slice_windows,
    "pad": _pad_windows,
    "reverse": _reverse_windows,
    "reduce_window": _reduction_windows,
    "convolution": _convolution_windows,
}


def window_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Bytes that a device receives, mean over devices; None where it cannot be cut so."""
    if fetching(o, factors, axes, mesh) is None:
        return None
    return sum(halos(o, factors, axes, mesh).values(), 0.0)


def halos(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> Mapping[Hashable, float]:
    """What is fetched from other devices -> the bytes of it that a device receives. Operations of
    one region that fetch the same share it (`Partitioner.exchange`)."""
    found = fetching(o, factors, axes, mesh)
    if found is None:
        return {}
    masked = tuple(d for d in _masked(o) if o.operands[0].dims[d] % mesh.parts(found.lines[d].axes))
    count = len(o.operands) // 2 if o.name == "reduce_window" else 1
    return fetched_bytes(o.operands[:count], found.lines, mesh, masked)


def fetched_bytes(
    values: Sequence[Value],
    lines: Sequence[PartitionedDim],
    mesh: Mesh,
    masked: tuple[int, ...] = (),
) -> Mapping[Hashable, float]:
    """What `fetch` brings of values, whose dims in `masked` were masked, -> its bytes."""
    if all(line.local for line in lines):
        return {}
    cuts, routes = tuple(line.axes for line in lines), routes_of(lines)
    lengths = tuple(line.length for line in lines)
    return {
        (value, masked, lengths, transfers_of(mesh, cuts, routes)): received(
            mesh, cuts, routes, value.tensor.dtype.itemsize
        )
        for value in values
    }


def _masked(o: Op) -> tuple[int, ...]:
    """The dims of the first operand of which zeros have to stand behind the end."""
    return (o.input_feature_dimension,) if o.name == "convolution" else ()


# Lowering.


def fetch(
    p: Partitioner, value: Value, lines: Sequence[PartitionedDim], fill: Value | None
) -> Value:
    """What a device reads, from its block `value`. fill: a scalar that stands where nothing of the
    tensor is; None is zero."""
    b, zeros = p.b, False
    if not all(line.stays for line in lines):
        if all(line.local for line in lines):
            value = _shifted(p, value, lines)
        else:
            zeros = True
            boxes = transfers_of(p.mesh, tuple(line.axes for line in lines), routes_of(lines))
            value = p.exchange(value, [line.length for line in lines], boxes)
    if zeros and fill is None:
        return value
    for dim, line in enumerate(lines):
        if not line.outside:
            continue
        numbers = b("iota", type=value.tensor.with_element(I32), iota_dimension=dim)
        low = [first - start for (first, _), start in zip(line.reads, line.starts, strict=True)]
        high = [last - start for (_, last), start in zip(line.reads, line.starts, strict=True)]
        inside = b(
            "and",
            b.compare("GE", numbers, b.broadcast(p.of_part(line.axes, low), value.dims, ())),
            b.compare("LT", numbers, b.broadcast(p.of_part(line.axes, high), value.dims, ())),
        )
        if fill is None:
            other = b.constant(0, value.tensor)
        else:
            other = b.broadcast(fill, value.dims, ())
        value = b("select", inside, value, other)
    return value


def _shifted(p: Partitioner, value: Value, lines: Sequence[PartitionedDim]) -> Value:
    """What lines of a device's own block say: padded so that all of them fit, and cut."""
    offsets = [
        [start - number * line.block for number, start in enumerate(line.starts)] for line in lines
    ]
    low = tuple(max(0, -min(shifts)) for shifts in offsets)
    high = tuple(
        max(0, max(shifts) + line.length - line.block)
        for shifts, line in zip(offsets, lines, strict=True)
    )
    value = _padded(p, value, low, high)
    starts = [
        p.of_part(line.axes, [shift + before for shift in shifts])
        for line, shifts, before in zip(lines, offsets, low, strict=True)
    ]
    sizes = tuple(line.length for line in lines)
    return p.b("dynamic_slice", value, *starts, slice_sizes=sizes)


def _padded(
    p: Partitioner, value: Value, low: Sequence[int], high: Sequence[int],
    between: Sequence[int] = (), fill: Value | None = None,
) -> Value:  # fmt: skip
    between = tuple(between) or (0,) * value.rank
    if not (any(low) or any(high) or any(between)):
        return value
    scalar = value.tensor.with_dims(())
    return p.b(
        "pad", value, fill or p.b.constant(0, scalar), edge_padding_low=tuple(low),
        edge_padding_high=tuple(high), interior_padding=between,
    )  # fmt: skip


def _aligned(p: Partitioner, value: Value, found: Fetched, fill: Value | None) -> Value:
    """The fetched operand; where the parts' windows begin at different places between elements,
    these places are made, and the windows begin at the first."""
    value = fetch(p, value, found.lines, fill)
    for dim, read in found.readings.items():
        if read.phase is not None:
            continue
        base = found.windows[dim].base
        gaps = tuple(base - 1 if d == dim else 0 for d in range(value.rank))
        high = tuple(read.reach + base if d == dim else 0 for d in range(value.rank))
        value = _padded(p, value, (0,) * value.rank, high, gaps, fill)
        starts = [
            p.of_part(read.line.axes, read.phases) if d == dim else p.b.constant(np.int32(0))
            for d in range(value.rank)
        ]
        sizes = tuple(read.reach if d == dim else n for d, n in enumerate(value.dims))
        value = p.b("dynamic_slice", value, *starts, slice_sizes=sizes)
    return value


def _local_walk(found: Fetched, dim: int, base: int) -> tuple[tuple[int, int], int]:
    """(padding, base) of the local operation along a dim that windows walk."""
    read = found.readings[dim]
    return ((0, 0), 1) if read.phase is None else (read.padding(base), base)


def _fetched(p: Partitioner, o: Op) -> Fetched:
    found = fetching(o, p.factors(o), p.axes(o), p.mesh)
    if found is None:
        raise p.refuse(o, "its factors are cut in a way that has no halo", "leave them whole")
    return found


def lower_slice(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    found = _fetched(p, o)
    value = _aligned(p, operands[0], found, None)
    starts, limits, strides = list(o.start_indices), list(o.limit_indices), list(o.strides)
    for dim, line in enumerate(found.lines):
        if dim in found.readings:
            starts[dim], limits[dim] = 0, line.length
        elif line.axes:  # it is taken whole
            limits[dim] = line.block
    if tuple(limits) == value.dims and not any(starts) and set(strides) <= {1}:
        return [value]
    return [
        p.b(
            "slice", value, start_indices=tuple(starts), limit_indices=tuple(limits),
            strides=tuple(strides),
        )
    ]  # fmt: skip


def lower_pad(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    found, fill = _fetched(p, o), operands[1]
    value = _aligned(p, operands[0], found, fill)
    low, high = list(o.edge_padding_low), list(o.edge_padding_high)
    between = list(o.interior_padding)
    for dim in found.readings:
        (low[dim], high[dim]), base = _local_walk(found, dim, between[dim] + 1)
        between[dim] = base - 1
    return [_padded(p, value, low, high, between, fill)]


def lower_reverse(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    value = fetch(p, operands[0], _fetched(p, o).lines, None)
    return [p.b("reverse", value, dimensions=o.dimensions)]


def lower_windows_of_reduction(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    found, count, rank = _fetched(p, o), len(operands) // 2, o.operands[0].rank
    values = [
        _aligned(p, value, found, fill)
        for value, fill in zip(operands[:count], operands[count:], strict=True)
    ]
    padding, base = list(per_dim(o.padding, rank, (0, 0))), list(per_dim(o.base_dilations, rank, 1))
    for dim in found.readings:
        padding[dim], base[dim] = _local_walk(found, dim, base[dim])
    attributes = {**o.attributes, "padding": tuple(padding), "base_dilations": tuple(base)}
    return rebuilt(p, o, [*values, *operands[count:]], attributes)


def lower_convolution(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    found, factors, axes = _fetched(p, o), p.factors(o), p.axes(o)
    image = _aligned(p, p.masked(o, 0, 0, _masked(o)), found, None)
    strides, padding, base, dilation, reversal = map(list, window_attributes(o))
    for n, dim in enumerate(o.input_spatial_dimensions):
        if dim in found.readings:
            padding[n], base[n] = _local_walk(found, dim, base[n])
    by_batch = o.batch_group_count > 1
    grouped = "batch_group_count" if by_batch else "feature_group_count"
    groups = o.batch_group_count if by_batch else o.feature_group_count
    if groups > 1:
        major = factors.operands[1][o.kernel_output_feature_dimension][0]
        groups //= p.mesh.parts(axes[major])
    attributes = {
        **o.attributes, "window_strides": tuple(strides), "padding": tuple(map(tuple, padding)),
        "lhs_dilation": tuple(base), "rhs_dilation": tuple(dilation),
        "window_reversal": tuple(reversal), grouped: groups,
    }  # fmt: skip
    return rebuilt(p, o, [image, p.masked(o, 1, 0)], attributes)


# Concatenation: boxes of all operands at once.


def _joining(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> Routes:
    """For each dim and part which pieces of the operands' blocks, one after the other, it reads."""
    along = o.dimension
    routes: list[tuple[tuple[HaloPiece, ...], ...]] = []
    for dim, held in enumerate(factors.results[0]):
        cut = tuple(a for n in held for a in axes[n])
        line = kept(mesh, o.result.dims[dim], cut)
        if dim != along:
            routes += routes_of([line])
            continue
        parts: list[list[HaloPiece]] = [[] for _ in line.starts]
        begin = before = 0  # in the result, in what a device holds of all operands
        for value in o.operands:
            size = value.dims[dim]
            block = kept(mesh, size, cut).block
            for part, (low, high) in enumerate(line.reads):
                first, last = max(low, begin) - begin, min(high, begin + size) - begin
                for source in range(first // block, -(-last // block)) if first < last else ():
                    start = max(first, source * block)
                    stop = min(last, (source + 1) * block)
                    place = before + start - source * block
                    parts[part].append(HaloPiece(source, place, begin + start - low, stop - start))
            begin, before = begin + size, before + block
        routes.append(tuple(map(tuple, parts)))
    return tuple(routes)


def _cuts(factors: Factors, axes: Sequence[Axes]) -> tuple[Axes, ...]:
    return tuple(tuple(a for n in held for a in axes[n]) for held in factors.results[0])


def joining_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    cuts = _cuts(factors, axes)
    if not cuts[o.dimension]:
        return 0.0
    routes = _joining(o, factors, axes, mesh)
    return received(mesh, cuts, routes, o.result.tensor.dtype.itemsize)


def lower_concatenate(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    factors, axes = p.factors(o), p.axes(o)
    cuts = _cuts(factors, axes)
    own = p.b("concatenate", *operands, dimension=o.dimension)
    if not cuts[o.dimension]:
        return [own]
    routes = _joining(o, factors, axes, p.mesh)
    local = sharding_of(o.result.tensor).local_dims(p.mesh, o.result.dims)
    return [p.exchange(own, local, transfers_of(p.mesh, cuts, routes))]
