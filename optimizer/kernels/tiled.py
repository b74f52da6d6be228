"""How regions around one contraction are tiled best: the question of all choices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...hlo.deciding import estimating
from ...hlo.graph import Op, Region
from ..cost.blocks import BlockCounter, LargestGrain
from ..machine import Limitation, Machine
from ..tiles.contraction import contraction_group, tilings
from ..tiles.write import Unwritable
from .operand_layout import misread

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


class Tiled(NamedTuple):
    """What counts for the best tiling of a region as one kernel, and the seconds of that."""

    kind: type[BlockCounter]
    seconds: float


class Tilings:
    """Of regions, each judged once, on a machine that has these capabilities."""

    def __init__(self, machine: Machine, capabilities: Capabilities) -> None:
        self.machine, self.capabilities = machine, capabilities
        self.known: dict[Region, Tiled | Limitation] = {}

    def best(self, region: Region) -> Tiled | Limitation:
        """The best tiling of a region as one kernel."""
        if region not in self.known:
            with estimating():
                self.known[region] = self._best(region)
        return self.known[region]

    def _best(self, region: Region) -> Tiled | Limitation:
        dtype = next((op.operands[0].element.name for op in contractions(region)), "")
        found: Tiled | Limitation = Limitation(self.capabilities.target, dtype, "")
        try:
            group, main = contraction_group(region)
        except Unwritable as unwritable:
            return replace(found, reason=str(unwritable))
        for kind in self.kinds(main):
            try:
                found = Tiled(kind, tilings(group, main, self.machine, kind)[0].time)
            except Unwritable as unwritable:
                if isinstance(found, Limitation):
                    found = replace(found, reason=str(unwritable))
            if isinstance(found, Tiled) and found.seconds < math.inf:
                break
        return found

    def kinds(self, main: Op) -> list[type[BlockCounter]]:
        """What counts for a contraction: units of the largest grain where they read it."""
        units = [unit for unit in self.capabilities.units_of(main) if unit.asynchronous]
        dot = main.name == "dot_general"
        largest = any(not dot or not misread(main, unit) for unit in units)
        return [LargestGrain, BlockCounter] if largest else [BlockCounter]


def contractions(region: Region) -> list[Op]:
    """The products and convolutions of a region."""
    return [op for op in region.ops if op.definition.pattern == "contract"]
