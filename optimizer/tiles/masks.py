"""Masks that say what a load says already.

A tile that reaches over the edge of a tensor is masked before it is summed over. Where it is a
window of memory that has only been turned or reshaped, the load has put the same number there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...hlo.build import Builder
from ...hlo.graph import Op, Value, constant_of
from ...hlo.regions import rewritten


def without_masks(kernel: Op) -> Op:
    """The kernel_call without selects that choose between a window and what it is filled with."""
    found = {op for op in kernel.regions[0].walk() if op.name == "select" and _is_filled(op)}
    if not found:
        return kernel

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op not in found:
            return False
        tile = op.operands[1]
        mapping[op.result] = mapping.get(tile, tile)
        return True

    body, *others = kernel.regions
    return kernel.with_operands(kernel.operands, [rewritten(body, {}, change), *others])


def _is_filled(select: Op) -> bool:
    mask, tile, other = select.operands
    load, places = _window(tile)
    splat = constant_of(other)
    if load is None or splat is None or not splat.is_splat or mask.dims != tile.dims:
        return False
    if complex(splat.splat_value) != complex(load.fill):
        return False
    memory = load.operands[0]
    for part in _conjuncts(mask):
        edge = _edge(part)
        if edge is None:
            return False
        dim, offset, bound = edge
        place = places.get(dim)
        if place is None or load.offsets[place] is not offset:
            return False
        if bound is not None and memory.dims[place] != bound:
            return False
    return True


def _window(tile: Value) -> tuple[Op | None, dict[int, int]]:
    """The load that a tile comes from, and which of its dims each of the tile's is."""
    places = {d: d for d in range(tile.rank)}
    while tile.op is not None and tile.op.definition.views == "once":
        source = tile.op.operands[0]
        if tile.op.name == "transpose":
            step = dict(enumerate(tile.op.permutation))
        else:
            step = {
                d: s
                for d, size in enumerate(tile.dims)
                for s, other in enumerate(source.dims)
                if size == other != 1
                and math.prod(tile.dims[d + 1 :]) == math.prod(source.dims[s + 1 :])
            }
        places = {d: step[place] for d, place in places.items() if place in step}
        tile = source
    found = tile.op if tile.op is not None and tile.op.name == "tile_load" else None
    return found, places


def _conjuncts(mask: Value) -> Iterator[Value]:
    if mask.op is not None and mask.op.name == "and":
        for operand in mask.op.operands:
            yield from _conjuncts(operand)
    else:
        yield mask


def _edge(mask: Value) -> tuple[int, Value, int | None] | None:
    """(dim, offset, bound) of a mask that says: offset + index along dim < bound; bound is None
    where it says that this is not below 0."""
    op = mask.op
    if op is None or op.name != "compare":
        return None
    index, limit = op.operands[0].op, constant_of(op.operands[1])
    if index is None or index.name != "add" or limit is None or not limit.is_splat:
        return None
    iota, spread = (value.op for value in index.operands)
    if iota is None or iota.name != "iota" or spread is None or spread.name != "broadcast_in_dim":
        return None
    if spread.operands[0].rank:
        return None
    number = int(limit.splat_value)
    if op.comparison_direction == "LT":
        return iota.iota_dimension, spread.operands[0], number
    if op.comparison_direction == "GE" and number == 0:
        return iota.iota_dimension, spread.operands[0], None
    return None
