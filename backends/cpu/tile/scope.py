"""What the code of one block of a tile function knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ....hlo.graph import Value
from ... import llvm
from .nests import NestView


class ValuePlace(NamedTuple):
    """Where a value lies: row-major by itself, or as a view. `own`: in a slot of its own."""

    pointer: llvm.Value
    view: NestView | None = None
    own: bool = False


@dataclass
class BlockScope:
    """What the code of one block knows. Blocks inside start from a copy."""

    places: dict[Value, ValuePlace] = field(default_factory=dict)
    registers: dict[Value, llvm.Value] = field(default_factory=dict)
    owned: dict[Value, list[int]] = field(default_factory=dict)  # slots that end with the block
    wanted: dict[Value, ValuePlace] = field(default_factory=dict)  # where results have to lie

    def inner(self, wanted: dict[Value, ValuePlace] | None = None) -> BlockScope:
        return BlockScope(dict(self.places), dict(self.registers), {}, dict(wanted or {}))


Finish = Callable[[BlockScope], None]
