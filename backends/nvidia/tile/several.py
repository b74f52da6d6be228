"""Tilings of several operations around products, for architectures without warp groups.

What a group's tile functions cost on a GPU follows from few things: rows that fill a matrix
instruction, the whole last dim in one tile so that nothing is computed twice, and tiles enough for
all multiprocessors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ....hlo.graph import Op, Value
from ....optimizer.tiles.build import Group, build_kernel
from ....optimizer.tiles.streaming import Stream
from ....optimizer.tiles.write import Unwritable
from ..frame import Unfit
from ..target import Architecture, Target
from . import kernel
from .analysis import Facts

_ROWS = (64, 32, 16)
_STEPS = (64, 32)  # of the dim that is walked
_WIDEST = 256  # of the last dim, that a tile holds whole


def connected(
    group: Group,
    operands: Sequence[Value],
    name: str,
    ways: Sequence[Stream | None],
    target: Target,
) -> Op | None:
    """The tile function of a group with products along a dim that is walked, in tiles that suit a
    GPU; None where there is none."""
    dims = group.roots[0].dims
    walks = [way for way in ways if way is not None and way.extent > max(_STEPS)]
    products = sum(op.name == "dot_general" for op in group.ops)
    if products < 2 or not walks or len(dims) < 2 or dims[-1] > _WIDEST:
        return None
    for stream, rows, step in itertools.product(walks, _rows(dims, target.architecture), _STEPS):
        sizes = (*(1 for _ in dims[:-2]), min(rows, dims[-2]), dims[-1])
        try:
            op = build_kernel(group, operands, sizes, name, stream, step)
            if len(Facts(op).products) == products:
                kernel.lowered(op, target)
                return op
        except (Unwritable, Unfit):
            continue
    return None


def _rows(dims: Sequence[int], architecture: Architecture) -> list[int]:
    """Rows of a tile: the most that leave no multiprocessor idle come first."""

    def tiles(rows: int) -> int:
        return math.prod(dims[:-2]) * -(-dims[-2] // rows)

    busy = [rows for rows in _ROWS if tiles(rows) >= architecture.multiprocessors]
    return [*busy, *(rows for rows in reversed(_ROWS) if rows not in busy)]
