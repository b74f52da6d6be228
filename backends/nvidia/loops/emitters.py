"""Which emitters of this folder take what; each says first why it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....hlo.graph import Op, Region
from ....optimizer.windows import Windows
from ..launch import KernelCode
from ..target import NvidiaTarget
from . import loop, reduce, rows, scatter, sort, top, windows


class FusionEmitter(NamedTuple):
    """Kernels of fusions. `refusal`: why one has none, "" where `emit` gives it."""

    refusal: Callable[[Region, Windows], str]
    emit: Callable[..., KernelCode]  # (Region, NvidiaTarget, float, Windows); PARTS of rows


class OperationEmitter(NamedTuple):
    """Kernels of single operations. `refusal`: why one has none, "" where `emit` gives it."""

    refusal: Callable[[Op, NvidiaTarget], str]
    emit: Callable[[Op, NvidiaTarget], KernelCode]


# By a fusion's kind.
FUSIONS = {
    "loop": FusionEmitter(loop.refusal, loop.emit),
    "rows": FusionEmitter(rows.refusal, rows.emit),
    "reduce": FusionEmitter(reduce.refusal, reduce.emit),
}

# By the name of a single operation.
OPERATIONS = {
    "sort": OperationEmitter(sort.refusal, sort.emit),
    "chlo.top_k": OperationEmitter(top.refusal, top.emit),
    "reduce_window": OperationEmitter(lambda op, target: "", windows.emit),
    "select_and_scatter": OperationEmitter(windows.selecting_refusal, windows.select_and_scatter),
    "scatter": OperationEmitter(scatter.refusal, scatter.emit),
}
