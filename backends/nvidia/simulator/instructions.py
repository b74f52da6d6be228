"""All instructions that the simulator knows: the rooms, and the table made of them."""

from __future__ import annotations

from functools import cache

from . import (
    block_barriers,
    bulk,
    clusters,
    comparisons,
    conversions,
    copies,
    floats,
    integers,
    matrix,
    matrix_memory,
    mbarriers,
    memory_instructions,
    moves,
    packed,
    tensor_maps,
    warpgroups,
    warps,
)
from .table import Entry, collect

ROOMS = (
    integers,
    floats,
    packed,
    comparisons,
    conversions,
    moves,
    memory_instructions,
    warps,
    block_barriers,
    matrix,
    matrix_memory,
    mbarriers,
    copies,
    bulk,
    tensor_maps,
    warpgroups,
    clusters,
)


@cache
def table() -> dict[str, Entry]:
    return collect(ROOMS)
