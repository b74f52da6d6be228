"""`reshape` of dims that are cut: nothing is sent where blocks of both sides are the same elements.

Where axes do not divide the major of the dims that are merged, or split off (6 heads of 64 in 4
parts), both sides still have intervals of the dims' elements in one line, and each device fetches
what it lacks of its own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

from ....hlo.factors import Dims, FactorKind, Factors
from ....hlo.graph import Op, Value
from ....hlo.sharding import Mesh
from .halo import Axes, PartitionedDim, block_of
from .local import rebuilt
from .partitioner import Partitioner
from .windows import fetch, fetched_bytes

Numbers = list[int]


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[Numbers, Numbers]]:
    """The least runs of dims of both sides that hold equally many elements; none of size 1."""
    sides = [[d for d, size in enumerate(dims) if size != 1] for dims in (before, after)]
    while sides[0] or sides[1]:
        left, right = [sides[0].pop(0)], [sides[1].pop(0)]
        while True:
            ours, theirs = (
                math.prod(dims[d] for d in held) for dims, held in ((before, left), (after, right))
            )
            if ours == theirs:
                break
            if ours < theirs:
                left.append(sides[0].pop(0))
            else:
                right.append(sides[1].pop(0))
        yield left, right


def _lines(
    o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> list[PartitionedDim] | None:
    """What a device reads of each group of the operand's dims, in one line; None where it has no
    interval of it. Groups of which it needs its own block are a line of their own."""
    if any(axes[n] and f.kind is not FactorKind.PASS for n, f in enumerate(factors.factors)):
        return None
    before, after = o.operands[0].dims, o.result.dims
    found: list[PartitionedDim] = []
    if 0 in before:
        return found

    def divides(dims: Dims, held: Sequence[int]) -> bool:
        return all(
            factors.factors[n].size % mesh.parts(axes[n]) == 0
            for d in held
            if len(dims[d]) > 1
            for n in dims[d]
        )

    for left, right in _groups(before, after):
        inputs, outputs = factors.operands[0], factors.results[0]
        if divides(inputs, left) and divides(outputs, right):
            sizes = (
                block_of(before[d], mesh.parts([a for n in inputs[d] for a in axes[n]]))
                for d in left
            )
            size = math.prod(sizes)
            found.append(PartitionedDim(size, (), size, (0,), ((0, size),), size))
            continue
        first = inputs[left[0]][0]
        cut = {n for dims, held in ((inputs, left), (outputs, right)) for d in held for n in dims[d]
               if axes[n]}  # fmt: skip
        if cut != {first} or outputs[right[0]][0] != first:
            return None
        parts, size = mesh.parts(axes[first]), math.prod(before[d] for d in left)
        own, wanted = (
            block_of(dims[held[0]], parts) * (size // dims[held[0]])
            for dims, held in ((before, left), (after, right))
        )
        starts = tuple(part * wanted for part in range(parts))
        reads = tuple((min(start, size), min(start + wanted, size)) for start in starts)
        found.append(PartitionedDim(size, axes[first], own, starts, reads, wanted))
    return found


def reshape_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """What devices lack of their intervals."""
    lines = _lines(o, factors, axes, mesh)
    return None if lines is None else sum(fetched_bytes(o.operands, lines, mesh).values(), 0.0)


def reshape_halos(
    o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> Mapping[Hashable, float]:
    """What is fetched of the operand as it is -> its bytes; nothing where it is reshaped first."""
    lines = _lines(o, factors, axes, mesh) or []
    own = [
        block_of(size, mesh.parts([a for n in held for a in axes[n]]))
        for size, held in zip(o.operands[0].dims, factors.operands[0], strict=True)
    ]
    return fetched_bytes(o.operands, lines, mesh) if own == [n.block for n in lines] else {}


def lower_reshape(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    lines = _lines(o, p.factors(o), p.axes(o), p.mesh)
    if lines is None:
        raise p.refuse(
            o, "a dim that is merged, or split off, is cut by axes that do not divide it",
            "cut another dim",
        )  # fmt: skip
    if all(line.stays for line in lines):
        return rebuilt(p, o, operands, o.attributes)
    flat = p.b.reshape(operands[0], [line.block for line in lines])
    own = p.local(o.result.type)
    return [p.b("reshape", fetch(p, flat, lines, None), type=own)]
