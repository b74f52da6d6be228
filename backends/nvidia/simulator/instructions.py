"""All instructions that the simulator knows: the rooms, and the table made of them."""

from __future__ import annotations

from functools import cache

from . import (
    barriers,
    comparisons,
    conversions,
    floats,
    integers,
    memory_instructions,
    moves,
    packed,
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
    barriers,
)


@cache
def table() -> dict[str, Entry]:
    return collect(ROOMS)
