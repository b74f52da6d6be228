"""Which emitters of this folder take what; each raises `Unfit` where it does not."""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.graph import Op, Region
from ..launch import KernelCode
from ..target import Target
from . import loop, reduce, rows, scan, scatter, sort, top

# By a fusion's kind.
FUSIONS: dict[str, Callable[[Region, Target, float], KernelCode]] = {
    "loop": loop.emit,
    "rows": rows.emit,
    "reduce": reduce.emit,
}

# By the name of a single operation.
OPERATIONS: dict[str, Callable[[Op, Target], KernelCode]] = {
    "sort": sort.emit,
    "chlo.top_k": top.emit,
    "reduce_window": scan.emit,
    "scatter": scatter.emit,
}
