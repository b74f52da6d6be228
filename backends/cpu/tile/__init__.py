"""Kernels of tile functions: `emit(kernel_call, target)`."""

from __future__ import annotations

from ....hlo.deciding import current
from ....hlo.graph import Op
from ..codegen import KernelCode, Target
from .driver import Driver
from .parting import Undecided

__all__ = ["emit"]


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a kernel_call; its tiles are those of the grid."""
    decisions = current()
    guards = {} if decisions is None else dict(decisions.guards)
    try:
        return Driver(op, target).emit()
    except Undecided:
        assert decisions is not None
        decisions.guards.clear()
        decisions.guards.update(guards)
        return Driver(op, target, parted=False).emit()
