"""Products and convolutions of a fusion as tile functions for the pipeline, in the tile that suits
the machine best."""

from __future__ import annotations

from ....hlo.graph import Op, Region
from ....optimizer.cost.blocks import LargestGrain
from ....optimizer.tiles.contraction import calls
from ..frame import first_that_fits
from ..launch import KernelCode
from ..target import NvidiaTarget
from .configuration import PipelineConfiguration
from .emit import code_of, plan_of


def emit(op: Op, region: Region, target: NvidiaTarget) -> KernelCode:
    """The kernel of a fusion around one product; Unfit, with the reason, where it is none for the
    pipeline."""
    return code_of(plan(op, region, target), target)


def plan(op: Op, region: Region, target: NvidiaTarget) -> PipelineConfiguration:
    """What `emit` would run."""
    found = calls(op.operands, region, target.machine, LargestGrain)
    return first_that_fits(found, lambda call: plan_of(call, target))
