"""Which emitters of this folder take what; each raises `Unfit` where it does not."""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.graph import Op, Region
from ....optimizer.windows import Windows
from ..launch import KernelCode
from ..target import NvidiaTarget
from . import loop, reduce, rows, scatter, sort, top, windows

# By a fusion's kind.
FUSIONS: dict[str, Callable[[Region, NvidiaTarget, float, Windows], KernelCode]] = {
    "loop": loop.emit,
    "rows": rows.emit,
    "reduce": reduce.emit,
}

# By the name of a single operation.
OPERATIONS: dict[str, Callable[[Op, NvidiaTarget], KernelCode]] = {
    "sort": sort.emit,
    "chlo.top_k": top.emit,
    "reduce_window": windows.emit,
    "select_and_scatter": windows.select_and_scatter,
    "scatter": scatter.emit,
}
