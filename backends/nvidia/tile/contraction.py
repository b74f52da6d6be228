"""Products and convolutions of a fusion as tile functions of blocks, in the tile that suits the
machine best."""

from __future__ import annotations

from ....hlo.graph import Op, Region
from ....optimizer.cost.blocks import BlockCounter
from ....optimizer.tiles.contraction import calls
from ..frame import first_that_fits
from ..launch import KernelCode
from ..target import NvidiaTarget
from . import kernel


def emit(op: Op, region: Region, target: NvidiaTarget, shares: bool = False) -> KernelCode:
    """The kernel of a fusion around one contraction; Unfit where it has no tile function."""
    found = calls(op.operands, region, target.machine, BlockCounter)
    return first_that_fits(found, lambda call: kernel.emit(call, target, shares))
