"""Kernels of tile functions: `emit(kernel_call, target)`."""

from __future__ import annotations

from ....hlo.graph import Op
from ..codegen import KernelCode, Target
from .driver import Driver

__all__ = ["emit"]


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a kernel_call; its tiles are those of the grid."""
    return Driver(op, target).emit()
