"""Sizes that were left open: what a kernel of certain sizes does, and a search that only counts.

No size is ever measured. `work` reads facts off the tile function; `choose` walks from one start
through sizes twice and half as large, as long as the given score gets better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...hlo.errors import UserError
from ...hlo.graph import Op, Region
from ...hlo.tiling import TILE_OPS, trips

SMALLEST, LARGEST = 8, 1 << 14
STARTS = (256, 64, 16, 1024)
MOST_BUILDS = 28


class TileWork(NamedTuple):
    """What all tiles of a kernel do together; bytes are those of windows, flops have padding.

    footprint: bytes of all tiles that one run of the body makes. steps: windows that are moved.
    """

    tiles: int
    dot_flops: float
    other_flops: float
    loaded: int
    stored: int
    tile_bytes: int
    memory: int
    footprint: int
    steps: int


def work(op: Op) -> TileWork:
    """The facts that a cost model needs, from the operations and how often each runs."""
    dots = others = 0.0
    loaded = stored = moved = steps = 0
    for inner, count in trips(op):
        if inner.name in ("tile_load", "tile_gather"):
            loaded += count * inner.result.tensor.bytes
            steps += count
        elif inner.name in ("tile_store", "tile_scatter"):
            stored += count * inner.operands[1].tensor.bytes
            steps += count
        elif inner.name not in TILE_OPS and inner.results and inner.results[0].rank:
            flops = inner.definition.flops(inner) * count
            if inner.name == "dot_general":
                dots += flops
            else:
                others += flops
                moved += count * inner.results[0].tensor.bytes
    tiles = 1
    for size in op.grid:
        tiles *= size
    memory = sum(value.tensor.bytes for value in (*op.operands, *op.results))
    footprint = _footprint(op.regions[0])
    return TileWork(tiles, dots, others, loaded, stored, moved, memory, footprint, steps)


def _footprint(region: Region) -> int:
    total = 0
    for op in region.ops:
        if op.name not in ("constant", "reshape", "broadcast_in_dim"):
            total += sum(value.tensor.bytes for value in op.results)
        if op.name in ("tile_for", "if"):
            total += max(map(_footprint, op.regions))
    return total


def choose(
    names: Sequence[str], build: Callable[[Mapping[str, int]], Op], score: Callable[[Op], float]
) -> dict[str, int]:
    """The sizes with the lowest score of those that were tried; a pure function of its arguments.

    Sizes that the kernel refuses are left out; UserError if it refuses all of them.
    """
    known: dict[tuple[int, ...], float] = {}
    refused: list[UserError] = []

    def rated(sizes: tuple[int, ...]) -> float:
        if sizes not in known:
            try:
                known[sizes] = score(build(dict(zip(names, sizes, strict=True))))
            except UserError as error:
                refused.append(error)
                known[sizes] = float("inf")
        return known[sizes]

    best = min(((start,) * len(names) for start in STARTS), key=rated)
    if rated(best) == float("inf"):
        raise refused[0]
    improved = True
    while improved and len(known) < MOST_BUILDS:
        improved = False
        for number in range(len(names)):
            for larger in (True, False):
                next_best = _moved(best, number, larger)
                while next_best is not None and len(known) < MOST_BUILDS:
                    if rated(next_best) >= rated(best):
                        break
                    best, improved = next_best, True
                    next_best = _moved(best, number, larger)
    return dict(zip(names, best, strict=True))


def _moved(sizes: tuple[int, ...], number: int, larger: bool) -> tuple[int, ...] | None:
    size = sizes[number] * 2 if larger else sizes[number] // 2
    if not SMALLEST <= size <= LARGEST:
        return None
    return (*sizes[:number], size, *sizes[number + 1 :])
