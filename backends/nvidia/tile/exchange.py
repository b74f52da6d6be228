"""A tile in another layout, through rows of shared memory without bank conflicts."""

from __future__ import annotations

from ....hlo.graph import Value
from ...llvm import elements
from . import matrix
from .analysis import Source
from .emitter import Emitter
from .scope import Tile
from .shared import CHUNK
from .spread import Spread

WORTH = 1024  # elements of a tile whose stores are worth an exchange


def rows_of(value: Value) -> Source | None:
    """The value as rows; None if it has more than two dims that are not 1, or none."""
    large = [d for d, n in enumerate(value.dims) if n != 1]
    if len(large) != 2 or value.element.is_complex:
        return None
    return Source(value, value, None, *large)


def exchanged(e: Emitter, source: Source, spread: Spread) -> Tile:
    """The registers of a value in a layout, all of it written to shared memory before."""
    f, value = e.f, source.value
    size = value.element.itemsize
    rows = matrix.staged(e, source, size)
    e.block.hazards.read(rows.piece)
    first, second = matrix.axes(source)
    thread = matrix.thread_part(e, rows, spread, first, second, size)
    width = spread.vector(CHUNK // size)
    kind = elements.memory_type(f, value.element)
    tile: Tile = [None] * spread.count
    for number in range(0, spread.count, width):
        place = spread.places[number]
        if place is None:
            continue
        at = matrix.place_of(e, rows, thread, rows.offset(place[first], place[second] * size))
        raw = f.load(f"<{width} x {kind}>" if width > 1 else kind, at, align=width * size)
        for lane in range(width):
            one = f.extract(raw, lane)
            tile[number + lane] = elements.widen(f, one, value.element)
    return tile


def stored(e: Emitter, value: Value, spread: Spread) -> Spread:
    """The layout that a value is stored in: its own, or one of 16-byte accesses where its own has
    narrow ones; its registers are known to the scope then."""
    size = value.element.itemsize
    source = rows_of(value)
    wide = e.assignment.blocked(value.dims)
    narrow = spread.vector(CHUNK // size) * size < 8
    if source is None or not narrow or value.tensor.size < WORTH:
        return spread
    if wide.vector(CHUNK // size) * size < CHUNK or e.scope.tile(value, wide) is not None:
        return spread
    e.scope.tiles.setdefault(value, {})[wide] = exchanged(e, source, wide)
    return wide
