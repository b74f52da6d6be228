"""Products whose depth is several dims of memory that a reshape has merged.

A walk goes along one dim. Where heads and their features become one summed dim, as before the
projection behind attention, the product is written over both, and each of them can be walked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value, arguments


def with_split_depths(region: Region) -> Region:
    """The region with its products over the dims that reshapes have merged; an argument that is the
    other side gets the same dims, so that its type, not its bytes, is another one. Itself if there
    is no such product."""
    for dot in region.ops:
        if dot.name == "dot_general":
            for side in (0, 1):
                found = _split(region, dot, side)
                if found is not None:
                    return found
    return region


def _split(region: Region, dot: Op, side: int) -> Region | None:
    """The region with one product over the dims behind the reshape of its operand `side`."""
    merged, other = dot.operands[side], dot.operands[1 - side]
    depths = _depths(dot)
    if merged.op is None or merged.op.name != "reshape" or merged.op not in region.ops:
        return None
    if len(depths[0]) != 1 or dot.lhs_batching_dimensions:
        return None
    (depth,), (across,) = depths[side], depths[1 - side]
    source = merged.op.operands[0]
    parts = _parts(source.dims, merged.dims, depth)
    if len(parts) < 2 or other.owner is not region:
        return None
    if len(region.uses[other]) != 1 or any(value is other for value in region.results):
        return None
    kept = [n for d, n in enumerate(source.dims) if d not in parts]
    if [n for n in kept if n != 1] != [
        n for d, n in enumerate(merged.dims) if d != depth if n != 1
    ]:
        return None
    sizes = [source.dims[d] for d in parts]
    dims = (*other.dims[:across], *sizes, *other.dims[across + 1 :])
    types = [a.tensor.with_dims(dims) if a is other else a.type for a in region.arguments]
    own = arguments(types)
    mapping: dict[Value, Value] = dict(zip(region.arguments, own, strict=True))
    b = Builder(check=False)
    for op in region.ops:
        b.origin = op.origin
        if op is dot:
            operands = [mapping[other], mapping[other]]
            operands[side] = mapping[source]
            summed = [range(across, across + len(parts))] * 2
            summed[side] = parts  # type: ignore[call-overload]
            attributes = {
                **op.attributes,
                "lhs_contracting_dimensions": tuple(summed[0]),
                "rhs_contracting_dimensions": tuple(summed[1]),
            }
            rows = [
                [n for d, n in enumerate(v.dims) if d not in taken]
                for v, taken in zip(operands, summed, strict=True)
            ]
            kind = op.type.with_dims((*rows[0], *rows[1]))
            product = b("dot_general", *operands, type=kind, **attributes)
            mapping[op.result] = b.reshape(product, op.result.dims)
        else:
            new = op.with_operands([mapping.get(v, v) for v in op.operands])
            b.append(new)
            mapping.update(zip(op.results, new.results, strict=True))
    results = [mapping[value] for value in region.results]
    needed = _needed(b.ops, results)
    return Region(own, [op for op in b.ops if op in needed], results)


def _depths(dot: Op) -> tuple[Sequence[int], Sequence[int]]:
    return dot.lhs_contracting_dimensions, dot.rhs_contracting_dimensions


def _parts(source: Sequence[int], target: Sequence[int], dim: int) -> list[int]:
    """The dims of the source that one dim of a reshape's result is made of; [] if they are others'
    as well."""
    if 0 in source:
        return []
    behind, size = math.prod(target[dim + 1 :]), target[dim]
    parts: list[int] = []
    for d in reversed(range(len(source))):
        below = math.prod(source[d + 1 :])
        if source[d] == 1 or below * source[d] <= behind or below >= behind * size:
            continue
        if below < behind or below * source[d] > behind * size:
            return []
        parts.insert(0, d)
    return parts if math.prod(source[d] for d in parts) == size else []


def _needed(ops: Sequence[Op], results: Sequence[Value]) -> set[Op]:
    needed: set[Op] = set()
    wanted = {value.op for value in results}
    for op in reversed(ops):
        if op in wanted:
            needed.add(op)
            wanted.update(value.op for value in op.operands)
    return needed
