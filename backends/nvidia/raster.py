"""The place of a tile in a grid that is walked in some order, as code."""

from __future__ import annotations

from collections.abc import Sequence

from ...optimizer.tiles.raster import Raster
from .. import llvm


def places(
    f: llvm.Function, number: llvm.Value, sizes: Sequence[int], order: Raster | None = None
) -> list[llvm.Value]:
    """The place along each axis of the tile that is the `number`-th (i32); row-major by default."""
    order = order or Raster(tuple(range(len(sizes))))
    found: dict[int, llvm.Value] = {}
    axes = list(order.axes)
    if order.together:
        rows, columns = axes[-2:]
        both = sizes[rows] * sizes[columns]
        inner = f.urem(number, both) if len(axes) > 2 else number
        found |= _grouped(f, inner, rows, columns, sizes, order.together)
        number = f.udiv(number, both) if len(axes) > 2 else number
        axes = axes[:-2]
    for axis in reversed(axes):
        outermost = axis == axes[0]
        found[axis] = number if outermost else f.urem(number, sizes[axis])
        number = number if outermost else f.udiv(number, sizes[axis])
    return [found[axis] for axis in range(len(sizes))]


def _grouped(
    f: llvm.Function, number: llvm.Value, rows: int, columns: int, sizes: Sequence[int], most: int
) -> dict[int, llvm.Value]:
    """Some rows of tiles are walked down before the next column."""
    whole = most * sizes[columns]
    group, rest = f.udiv(number, whole), f.urem(number, whole)
    start = f.mul(group, most)
    height = llvm.constant("i32", most)
    if sizes[rows] % most:
        height = f.min(f.sub(f.constant("i32", sizes[rows]), start), most)
    return {rows: f.add(start, f.urem(rest, height)), columns: f.udiv(rest, height)}
