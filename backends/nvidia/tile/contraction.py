"""Products and convolutions of a fusion as tile functions of blocks, in the tile that suits the
machine best."""

from __future__ import annotations

from ....hlo.graph import Op, Region
from ....optimizer.cost.blocks import BlockCounter
from ....optimizer.tiles.contraction import calls
from ....optimizer.tiles.write import Unwritable
from ..frame import Unfit
from ..launch import KernelCode
from ..target import Target
from . import kernel


def emit(op: Op, region: Region, target: Target, shares: bool = False) -> KernelCode:
    """The kernel of a fusion around one contraction; Unfit where it has no tile function."""
    reason = "no tile of its result stands alone"
    try:
        for call in calls(op.operands, region, target.machine, BlockCounter):
            try:
                return kernel.emit(call, target, shares)
            except Unfit as unfit:
                reason = str(unfit)
    except Unwritable as unwritable:
        reason = str(unwritable)
    raise Unfit(reason)
