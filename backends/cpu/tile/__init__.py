"""Kernels of tile functions.

In: a kernel_call, and what emits the nests that its tiles compute. Out: LLVM IR of one task for
each place of the grid, its tiles in scratch or windows of memory. Imported by `backends/cpu`.
"""

from __future__ import annotations

from ....hlo.deciding import current
from ....hlo.graph import Op
from ...llvm.target import KernelCode
from ..codegen import Target
from .driver import Driver
from .nests import EmitNest
from .parting import Undecided

__all__ = ["emit"]


def emit(op: Op, target: Target, emit_nest: EmitNest) -> KernelCode:
    """The kernel of a kernel_call; its tiles are those of the grid. `emit_nest` makes the kernels
    of what its tiles compute."""
    decisions = current()
    guards = {} if decisions is None else dict(decisions.guards)
    try:
        return Driver(op, target, emit_nest).emit()
    except Undecided:
        assert decisions is not None
        decisions.guards.clear()
        decisions.guards.update(guards)
        return Driver(op, target, emit_nest, parted=False).emit()
