"""The order in which the tiles of a grid are walked, so that neighbours find what they read in the
cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Raster:
    """`axes` of a grid, slowest first. So many tiles along the last but one (`together`; 0: one)
    are walked down before the next one along the last."""

    axes: tuple[int, ...]
    together: int = 0


def raster(
    rank: int, lefts: Collection[int], rights: Collection[int], together: int
) -> Raster:  # fmt: skip
    """The order for products whose left and right operands depend on these axes: blocks of rows by
    columns, so that both panels are read again soon. Row-major where it is no such product."""
    rows = [axis for axis in range(rank) if axis in lefts and axis not in rights]
    columns = [axis for axis in range(rank) if axis in rights and axis not in lefts]
    if len(rows) != 1 or len(columns) != 1:
        return Raster(tuple(range(rank)))
    rest = [axis for axis in range(rank) if axis not in (*rows, *columns)]
    return Raster((*rest, rows[0], columns[0]), together)
