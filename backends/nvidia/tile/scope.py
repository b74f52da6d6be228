"""What the code of one region of a tile function knows of its values."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....hlo.graph import Op, Value
from ...llvm.elements import Register
from ..evaluator import ValueScope
from ..layouts import LinearLayout
from .distributed_layout import DistributedLayout
from .shared import MemoryPiece, PaddedTile

Tile = list[Register | None]  # by register; None outside of the tile
Key = tuple[Value, LinearLayout | str]


@dataclass
class RegionScope(ValueScope[DistributedLayout, Tile]):
    """What the code of one region knows, also of shared memory."""

    shared: dict[Value, MemoryPiece] = field(default_factory=dict)
    # In layouts that somebody asked for, and ("ring") all stages of a ring.
    staged: dict[Key, PaddedTile] = field(default_factory=dict)
    rings: dict[Value, PaddedTile] = field(default_factory=dict)  # stages that a ring has filled
    last: dict[Op, list[Value]] = field(default_factory=dict)

    def ring(self, value: Value) -> PaddedTile | None:
        return next((one.rings[value] for one in self.chain() if value in one.rings), None)

    def piece(self, value: Value) -> MemoryPiece | None:
        return next((one.shared[value] for one in self.chain() if value in one.shared), None)

    def stage(self, key: Key) -> PaddedTile | None:
        return next((one.staged[key] for one in self.chain() if key in one.staged), None)
