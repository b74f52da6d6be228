"""Where the elements of a tile live in a warp group: as accumulators of wgmma.

One tile of 64 x 8 says it all: others are repeats of it (`layouts.Repeated`), so sizes need not be
powers of two. Elements are called by how far they are, in rows and columns, from the first one of
the thread.
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
from ..layouts import LinearLayout, MatrixAccess
from ..tile.distributed_layout import copies

TILE = layouts.wgmma_accumulator(8)
Place = tuple[int, ...]  # rows, columns


@functools.cache
def _places(rows: int, columns: int) -> tuple[Place, ...]:
    """Of each register of a thread; 1: of no rows, or no columns."""
    tiles = layouts.wgmma_accumulator_tiles(max(columns, TILE.shape[1]), max(rows, TILE.shape[0]))
    found = map(tiles.coordinates, range(tiles.registers))
    return tuple(dict.fromkeys((row % rows, column % columns) for row, column in found))


@functools.cache
def left_words(depth: int, bits: int) -> tuple[Place, ...]:
    """The first element of each word that a thread gives a product as its left operand of
    registers, 64 rows and one step of `depth`."""
    return layouts.wgmma_a(depth, bits).registers[:: 32 // bits]


def chunk(width: int, elements: int) -> tuple[LinearLayout, MatrixAccess | None, layouts.Addresses]:
    """Accumulators of 64 rows and `width` columns, and how threads get to them in the swizzled tile
    of the copy engine, rows of `width * elements` bytes, that they are staged in."""
    made = layouts.wgmma_accumulator(width)
    place = layouts.swizzled(made.shape, elements, width * elements)
    return made, *layouts.accesses(made, place, elements)


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
        """Rows of the warp group; 1 of what has none."""
        return self.group if self.group and any(map(is_row, self.roles)) else 1

    @cached_property
    def columns(self) -> int:
        sizes = zip(self.dims, self.roles, strict=True)
        return next((size for size, role in sizes if role == COLUMN), 1)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The element of each register, in the order of accumulators."""
        return _places(self.rows, self.columns)

    def vector(self, most: int) -> int:
        """See `evaluator.RegisterLayout`."""
        return 2 if most >= 2 and self.roles[-1:] == (COLUMN,) else 1

    @property
    def tile(self) -> LinearLayout:
        """The tile that repeats, or what the value has of it."""
        tile = TILE
        for dimension, size in ((1, self.columns), (0, self.rows)):
            tile = tile if size > 1 else tile.slice(dimension)
        return tile

    @cached_property
    def copies(self) -> int:
        """Bits of a thread's number in its warp group that reach copies."""
        return copies(self.tile)

    @cached_property
    def _numbers(self) -> dict[Place, int]:
        return {place: number for number, place in enumerate(self.places)}

    def register(self, row: int, column: int) -> int:
        """The register of an element."""
        return self._numbers[row % self.rows, column % self.columns]

    def operand(self, op: Op) -> tuple[FragmentLayout, Sequence[int]]:
        """See `evaluator.RegisterLayout`; also of the operand of a reduction."""
        source = op.operands[0]
        found = FragmentLayout(source.dims, through(op, self.roles, False), self.group)
        return found, [found.register(*place) for place in self.places]
