"""Where the elements of a tile live in a warp group: as accumulators of wgmma.

One tile of 64 x 8 says it all: others are repeats of it (`layouts.Repeated`), so a thread's rows
and columns are those that it has of this tile, again and again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ....hlo.graph import Op
from ....optimizer.asynchronous.roles import through
from ....optimizer.asynchronous.work import COLUMN, Roles, is_row
from .. import layouts
from ..layouts import LANE_BITS, LinearLayout

TILE = layouts.wgmma_accumulator(8)


def _own(dimension: int) -> tuple[int, ...]:
    return tuple(sorted({place[dimension] for place in TILE.registers}))


ROWS, COLUMNS = _own(0), _own(1)  # of a tile, that the first thread has


def rows(size: int) -> int:
    """Rows of a tile of so many that a thread has."""
    return size // TILE.shape[0] * len(ROWS)


def columns(size: int) -> int:
    return size // TILE.shape[1] * len(COLUMNS)


def row(i: int) -> int:
    """How far a thread's i-th row is from its first."""
    return i // len(ROWS) * TILE.shape[0] + ROWS[i % len(ROWS)]


def column(j: int) -> int:
    return j // len(COLUMNS) * TILE.shape[1] + COLUMNS[j % len(COLUMNS)]


def place(coordinates: tuple[int, ...]) -> tuple[int, int]:
    """Which row and which column of a thread stand so far from its first element."""
    at, across = coordinates
    i = at // TILE.shape[0] * len(ROWS) + ROWS.index(at % TILE.shape[0])
    j = across // TILE.shape[1] * len(COLUMNS) + COLUMNS.index(across % TILE.shape[1])
    return i, j


def copies(with_rows: bool, with_columns: bool) -> int:
    """Bits of a thread's number in its warp group that reach other copies of what has no rows, or
    no columns."""
    value = TILE
    for dimension, kept in ((1, with_columns), (0, with_rows)):
        value = value if kept else value.slice(dimension)
    return value.copies("lane") | value.copies("warp") << LANE_BITS


@functools.cache
def order(own_rows: int, own_columns: int) -> tuple[tuple[int, int], ...]:
    """(row, column) of each accumulator of a thread with so many of them."""
    shape = own_rows // len(ROWS) * TILE.shape[0], own_columns // len(COLUMNS) * TILE.shape[1]
    tiles = layouts.wgmma_accumulator_tiles(shape[1], shape[0])
    return tuple(place(tiles.coordinates(n)) for n in range(tiles.registers))


@functools.cache
def left_words(depth: int, bits: int) -> tuple[tuple[int, int], ...]:
    """(row, column) of the first element of each word that a thread gives a product as its left
    operand of registers, 64 rows and one step of `depth`."""
    value = layouts.wgmma_a(depth, bits)
    return tuple(place(one) for one in value.registers[:: 32 // bits])


def chunk(width: int, elements: int) -> tuple[LinearLayout, LinearLayout]:
    """Accumulators of 64 rows and `width` columns, and the swizzled tile of the copy engine, rows
    of `width * elements` bytes, that they are staged in."""
    made = layouts.wgmma_accumulator(width)
    return made, layouts.swizzled(made.shape, elements, width * elements)


@dataclass(frozen=True)
class FragmentLayout:
    """A tile in the registers of a warp group that has `group` of its rows (0: one thread alone,
    which has no tiles but numbers). Each dim has a role: what has no rows is the same in all rows,
    what has no columns the same in all columns."""

    dims: tuple[int, ...]
    roles: Roles
    group: int

    @cached_property
    def rows(self) -> int:
        """Rows of a thread."""
        return rows(self.group) if self.group and any(map(is_row, self.roles)) else 1

    @cached_property
    def columns(self) -> int:
        """Columns of a thread."""
        sizes = zip(self.dims, self.roles, strict=True)
        return next((columns(size) for size, role in sizes if role == COLUMN), 1)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The row and the column of each register: in the order of accumulators where it has
        both."""
        if self.rows > 1 and self.columns > 1:
            return order(self.rows, self.columns)
        return tuple((i, j) for i in range(self.rows) for j in range(self.columns))

    def vector(self, most: int) -> int:
        """See `evaluator.RegisterLayout`."""
        return len(COLUMNS) if most >= len(COLUMNS) and self.roles[-1:] == (COLUMN,) else 1

    @cached_property
    def copies(self) -> int:
        """Bits of a thread's number in its warp group that reach copies."""
        return copies(any(map(is_row, self.roles)), COLUMN in self.roles)

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {place: number for number, place in enumerate(self.places)}

    def register(self, i: int, j: int) -> int:
        """The register of a row and a column of a thread."""
        return self._numbers[min(i, self.rows - 1), min(j, self.columns - 1)]

    def operand(self, op: Op) -> tuple[FragmentLayout, Sequence[int]]:
        """See `evaluator.RegisterLayout`; also of the operand of a reduction."""
        source = op.operands[0]
        found = FragmentLayout(source.dims, through(op, self.roles, False), self.group)
        return found, [found.register(*place) for place in self.places]
