"""What the code of one region of a tile function knows of its values."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....hlo.graph import Op, Value
from ...llvm.elements import Register
from ..layouts import LinearLayout
from .distributed_layout import DistributedLayout
from .shared import MemoryPiece, PaddedTile

Tile = list[Register | None]  # by register; None outside of the tile


@dataclass
class RegionScope:
    """What the code of one region knows; regions inside see it through `outer`."""

    outer: RegionScope | None = None
    scalars: dict[Value, Register] = field(default_factory=dict)
    tiles: dict[Value, dict[DistributedLayout, Tile]] = field(default_factory=dict)
    shared: dict[Value, MemoryPiece] = field(default_factory=dict)
    # In layouts that somebody asked for, and ("ring") all stages of a ring.
    staged: dict[tuple[Value, LinearLayout | str], PaddedTile] = field(default_factory=dict)
    rings: dict[Value, PaddedTile] = field(default_factory=dict)  # stages that a ring has filled
    last: dict[Op, list[Value]] = field(default_factory=dict)

    def ring(self, value: Value) -> PaddedTile | None:
        scope: RegionScope | None = self
        while scope is not None:
            if value in scope.rings:
                return scope.rings[value]
            scope = scope.outer
        return None

    def scalar(self, value: Value) -> Register | None:
        scope: RegionScope | None = self
        while scope is not None:
            if value in scope.scalars:
                return scope.scalars[value]
            scope = scope.outer
        return None

    def tile(self, value: Value, layout: DistributedLayout) -> Tile | None:
        scope: RegionScope | None = self
        while scope is not None:
            found = scope.tiles.get(value, {}).get(layout)
            if found is not None:
                return found
            scope = scope.outer
        return None

    def any_tile(self, value: Value) -> tuple[DistributedLayout, Tile] | None:
        scope: RegionScope | None = self
        while scope is not None:
            if value in scope.tiles:
                return next(iter(scope.tiles[value].items()))
            scope = scope.outer
        return None

    def piece(self, value: Value) -> MemoryPiece | None:
        scope: RegionScope | None = self
        while scope is not None:
            if value in scope.shared:
                return scope.shared[value]
            scope = scope.outer
        return None

    def stage(self, key: tuple[Value, LinearLayout | str]) -> PaddedTile | None:
        scope: RegionScope | None = self
        while scope is not None:
            if key in scope.staged:
                return scope.staged[key]
            scope = scope.outer
        return None
