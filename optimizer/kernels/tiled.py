"""How regions around one contraction are tiled best: the question of all choices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hlo.deciding import estimating
from ...hlo.graph import Op, Region
from ..cost.blocks import BlockCounter, LargestGrain
from ..cost.estimate import Tiling
from ..machine import Limitation, Machine
from ..tiles.build import TileGroup
from ..tiles.contraction import others, tilings
from ..tiles.tilings import BLOCK_TILINGS, LARGEST_TILINGS, contraction_group
from ..tiles.write import Unwritable
from .convolution_form import sums_one_feature
from .operand_layout import misread

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities

TRIES = 8  # tilings that a kernel bears


class Tiled(NamedTuple):
    """What counts for the best tiling of a region as one kernel, and the seconds of that."""

    kind: type[BlockCounter]
    seconds: float


class Tilings:
    """Of regions, each judged once, on a machine that has these capabilities."""

    def __init__(self, machine: Machine, capabilities: Capabilities) -> None:
        self.machine, self.capabilities = machine, capabilities
        self.known: dict[Region, Tiled | Limitation] = {}
        self.groups: dict[Region, tuple[TileGroup, Op]] = {}
        self.plans: dict[tuple[Region, type[BlockCounter]], list[Tiling]] = {}

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
            _, main = self._group(region)
        except Unwritable as unwritable:
            return replace(found, reason=str(unwritable))
        for kind in self.kinds(main):
            try:
                found = Tiled(kind, self._tilings(region, kind)[0].time)
            except Unwritable as unwritable:
                if isinstance(found, Limitation):
                    found = replace(found, reason=str(unwritable))
            if isinstance(found, Tiled) and found.seconds < math.inf:
                break
        return found

    @estimating()
    def listed(self, region: Region) -> dict[str, Any]:
        """What a fusion of such a region says of its tilings (`optimizer/tiles/tilings.py`)."""
        if sums_one_feature(region) and all(value.tensor.is_static for value in region.results):
            return {BLOCK_TILINGS: ()}
        units = [unit for main in contractions(region) for unit in self.capabilities.units_of(main)]
        kinds = {BLOCK_TILINGS: BlockCounter}
        if any(unit.asynchronous for unit in units):
            kinds[LARGEST_TILINGS] = LargestGrain
        return {name: self._listed(region, kind) for name, kind in kinds.items()}

    def _listed(self, region: Region, kind: type[BlockCounter]) -> tuple[Any, ...] | str:
        try:
            plans = self._tilings(region, kind)[:TRIES]
            group, main = self._group(region)
            # Over taps nothing is read that has to be computed first, and nothing too large.
            if plans[0].time == math.inf or any(v.op is not None for v in main.operands):
                plans += others(group, main, self.machine, kind)[:TRIES]
        except Unwritable as unwritable:
            return str(unwritable)
        return tuple((plan.way, plan.step, *plan.sizes) for plan in plans)

    def _group(self, region: Region) -> tuple[TileGroup, Op]:
        if region not in self.groups:
            self.groups[region] = contraction_group(region)
        return self.groups[region]

    def _tilings(self, region: Region, kind: type[BlockCounter]) -> list[Tiling]:
        if (region, kind) not in self.plans:
            self.plans[region, kind] = tilings(*self._group(region), self.machine, kind)
        return self.plans[region, kind]

    def kinds(self, main: Op) -> list[type[BlockCounter]]:
        """What counts for a contraction: units of the largest grain where they read it."""
        units = [unit for unit in self.capabilities.units_of(main) if unit.asynchronous]
        dot = main.name == "dot_general"
        largest = any(not dot or not misread(main, unit) for unit in units)
        return [LargestGrain, BlockCounter] if largest else [BlockCounter]


def contractions(region: Region) -> list[Op]:
    """The products and convolutions of a region."""
    return [op for op in region.ops if op.definition.pattern == "contract"]
