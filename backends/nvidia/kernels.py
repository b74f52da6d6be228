"""Every kernel of the GPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from ...hlo.graph import Op
from ...optimizer.schedule import may_overwrite
from ..plain.single import as_region, check
from . import foreign, plain
from .launch import KernelCode
from .target import Target


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none."""
    check(op, "nvidia")
    if op.name == "foreign_call":
        return foreign.emit(op, target)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    return plain.emit(region, target, op.definition.flops(op), shared(op))


def shared(op: Op) -> frozenset[tuple[int, int]]:
    """The operands and results that the schedule may give one piece of memory."""
    return frozenset(
        (operand, result)
        for operand in range(len(op.operands))
        for result in range(len(op.results))
        if may_overwrite(op, operand, result)
    )
