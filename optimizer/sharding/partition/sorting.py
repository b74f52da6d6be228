"""Sorts along a dim that is cut: blocks are compared pair by pair, nobody has the whole row.

A network of comparisons sorts blocks as it sorts elements: of a pair, both devices order the two
blocks together, one keeps the first half and the other the second. Where equal elements can be told
apart, only neighbours are compared, so that they stay in their order; or elements bring their
places along, where that is less to send (many blocks, several operands).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ....hlo.build import Builder, build_region
from ....hlo.factors import Factors
from ....hlo.graph import Op, Region, Value
from ....hlo.ops.decomposed import inlined
from ....hlo.sharding import Mesh
from ....hlo.types import I32, TensorType
from .halo import Axes, HaloPiece, PartitionedDim, Routes, kept, received, routes_of, transfers_of
from .local import rebuilt
from .partitioner import Partitioner

Round = tuple[tuple[int, int], ...]  # pairs of parts, the first of which keeps what comes first


def neighbours(count: int) -> tuple[Round, ...]:
    """The odd-even transposition sort of so many blocks."""
    return tuple(
        tuple((n, n + 1) for n in range(turn % 2, count - 1, 2))
        for turn in range(count if count > 2 else count - 1)
    )


def merging(count: int) -> tuple[Round, ...]:
    """Batcher's merge exchange (Knuth, 5.2.2, algorithm M): fewer pairs, some of them far apart."""
    found: list[Round] = []
    top = 1 << max((count - 1).bit_length() - 1, 0)
    step = top
    while step and count > 1:
        far, rest, distance = top, 0, step
        while True:
            pairs = (n for n in range(count - distance) if n & step == rest)
            found.append(tuple((n, n + distance) for n in pairs))
            if far == step:
                break
            far, rest, distance = far // 2, step, far - step
        step //= 2
    return tuple(filter(None, found))


def _row(o: Op) -> int:
    return o.dimension % o.inputs[0].rank


def _alike(o: Op) -> bool:
    """Whether equal elements cannot be told apart: one operand, ordered by all of its bits."""
    region = o.regions[0]
    if len(o.inputs) != 1 or len(region.ops) != 1 or region.results != region.ops[0].results:
        return False
    (compare,) = region.ops
    if compare.name != "compare" or {*compare.operands} != {*region.arguments}:
        return False
    element = o.inputs[0].element
    return element.is_integer or (element.is_float and compare.compare_type == "TOTALORDER")


def _lines(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> list[PartitionedDim]:
    dims = o.inputs[0].dims
    return [
        kept(mesh, size, tuple(a for n in held for a in axes[n]))
        for size, held in zip(dims, factors.operands[0], strict=True)
    ]


def _rounds(o: Op, row: PartitionedDim) -> tuple[tuple[Round, ...], bool]:
    """The pairs of the blocks that have elements, and whether these bring their places along."""
    count = sum(low < high for low, high in row.reads)
    few, stable = merging(count), neighbours(count)
    if _alike(o):
        return few, False
    size = sum(value.tensor.dtype.itemsize for value in o.inputs)
    pairs, more = (sum(map(len, rounds)) for rounds in (few, stable))
    placed = pairs * (size + I32.dtype.itemsize) < more * size
    return (few, True) if placed else (stable, False)


def _routes(lines: Sequence[PartitionedDim], dim: int, pairs: Round) -> Routes:
    """Each of a pair reads the other's elements."""
    row = lines[dim]
    found = list(routes_of(lines))
    partners = {n: m for pair in pairs for n, m in (pair, pair[::-1])}
    parts: list[tuple[HaloPiece, ...]] = []
    for part in range(len(row.starts)):
        other = partners.get(part)
        if other is None:
            parts.append(())
            continue
        low, high = row.reads[other]
        parts.append((HaloPiece(other, 0, 0, high - low),))
    found[dim] = tuple(parts)
    return tuple(found)


def sort_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """The other block of each pair, of every operand."""
    lines, dim = _lines(o, factors, axes, mesh), _row(o)
    cuts = tuple(line.axes for line in lines)
    if not cuts[dim]:
        return 0.0
    rounds, placed = _rounds(o, lines[dim])
    size = sum(value.tensor.dtype.itemsize for value in o.inputs)
    later = sum(received(mesh, cuts, _routes(lines, dim, pairs), size) for pairs in rounds[1:])
    if placed:
        places = I32.dtype.itemsize
        later += sum(received(mesh, cuts, _routes(lines, dim, p), places) for p in rounds)
    return later + sum(first_pairs(o, factors, axes, mesh).values())


def first_pairs(
    o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> Mapping[Hashable, float]:
    """What is exchanged of the operands as they come -> its bytes. Operations of one region that
    exchange the same share it (`Partitioner.exchange`)."""
    lines, dim = _lines(o, factors, axes, mesh), _row(o)
    cuts = tuple(line.axes for line in lines)
    rounds = _rounds(o, lines[dim])[0] if cuts[dim] else ()
    if not rounds:
        return {}
    routes = _routes(lines, dim, rounds[0])
    lengths = tuple(line.length for line in lines)
    return {
        (value, (), lengths, transfers_of(mesh, cuts, routes)): received(
            mesh, cuts, routes, value.tensor.dtype.itemsize
        )
        for value in o.inputs
    }


def sort_calls(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> int:
    """How often devices send one after the other."""
    row = _lines(o, factors, axes, mesh)[_row(o)]
    return len(_rounds(o, row)[0]) if row.axes else 0


def lower_sort(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    lines, dim = _lines(o, p.factors(o), p.axes(o), p.mesh), _row(o)
    row = lines[dim]
    if not row.axes:
        return rebuilt(p, o, operands, o.attributes)
    cuts = tuple(line.axes for line in lines)
    held = [high - low for low, high in row.reads]
    rounds, placed = _rounds(o, row)
    if not rounds:
        return _ordered(p, o, operands, row, held)
    blocks = [*operands, p.positions(o.inputs[0], dim)] if placed else operands
    for pairs in rounds:
        boxes = transfers_of(p.mesh, cuts, _routes(lines, dim, pairs))
        other = [p.exchange(value, value.dims, boxes) for value in blocks]
        first, last = ({pair[n] for pair in pairs} for n in range(2))
        parts = range(len(held))
        is_last = _flag(p, row, [n in last for n in parts])
        both = [
            p.b(
                "concatenate", p.b("select", is_last, theirs, own),
                p.b("select", is_last, own, theirs), dimension=dim,
            )
            for own, theirs in zip(blocks, other, strict=True)
        ]  # fmt: skip
        upper = dict(pairs) | {high: high for _, high in pairs}
        ends = [row.block + (held[upper[n]] if n in upper else 0) for n in parts]
        ordered = _ordered(p, o, both, row, ends)
        starts = [
            p.of_part(row.axes, [row.block if n in last else 0 for n in parts])
            if d == dim
            else p.b.constant(np.int32(0))
            for d in range(len(lines))
        ]
        halves = [
            p.b("dynamic_slice", value, *starts, slice_sizes=own.dims)
            for value, own in zip(ordered, blocks, strict=True)
        ]
        if len(first | last) < len(held):
            active = _flag(p, row, [n in first | last for n in parts])
            halves = [
                p.b("select", active, new, old) for new, old in zip(halves, blocks, strict=True)
            ]
        blocks = halves
    return blocks[: len(operands)]


def _flag(p: Partitioner, row: PartitionedDim, flags: Sequence[bool]) -> Value:
    """An i1 scalar that each part has its own of."""
    number = p.of_part(row.axes, list(map(int, flags)))
    return p.b.compare("NE", number, p.b.constant(np.int32(0)))


def _ordered(
    p: Partitioner, o: Op, values: Sequence[Value], row: PartitionedDim, ends: Sequence[int]
) -> Sequence[Value]:
    """Sorted, of which the first ends[part] elements are some; the others stay behind these. One
    value more than the operation has: the elements' places."""
    b, dim = p.b, _row(o)
    before = p.body(o.regions[0])
    if len(values) > len(o.inputs):
        before = _in_place(before)
    if {*ends} == {values[0].dims[dim]}:
        return b.op("sort", values, o.attributes, [before]).results
    kind = values[0].tensor.with_element(I32)
    numbers = b("iota", type=kind, iota_dimension=dim)
    end = b.broadcast(p.of_part(row.axes, ends), kind.dims, ())
    beyond = b.convert(b.compare("GE", numbers, end), I32)
    found = b.op("sort", [*values, beyond], o.attributes, [_behind(before)])
    return found.results[:-1]


def _in_place(comparator: Region) -> Region:
    """The comparator with one more operand, a place: of equal elements the first comes first."""
    scalars = [*comparator.argument_types, *[TensorType((), I32)] * 2]

    def body(b: Builder, *arguments: Value) -> Sequence[Value]:
        *values, one, other = arguments
        (before,) = inlined(b, comparator, values)
        swapped = [values[n ^ 1] for n in range(len(values))]
        (behind,) = inlined(b, comparator, swapped)
        return [b("or", before, b("and", b("not", behind), b.compare("LT", one, other)))]

    return build_region(scalars, body)


def _behind(comparator: Region) -> Region:
    """The comparator with one more operand, a flag: what has it comes last."""
    scalars = [*comparator.argument_types, *[TensorType((), I32)] * 2]

    def body(b: Builder, *arguments: Value) -> Sequence[Value]:
        *values, one, other = arguments
        (before,) = inlined(b, comparator, values)
        return [b("or", b.compare("LT", one, other), b("and", b.compare("EQ", one, other), before))]

    return build_region(scalars, body)
