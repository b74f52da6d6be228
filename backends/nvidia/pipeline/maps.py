"""Tensor maps of windows, as the copy engine takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.graph import Value
from ....optimizer.asynchronous.work import Panel, box_width
from ..launch import KernelMemory, KernelTensorMap


def panel_map(panel: Panel, share: int = 1) -> KernelTensorMap:
    """The map of one chunk of a panel, of 1 / `share` of its rows."""
    memory = panel.op.operands[0]
    sizes = [panel.sizes[dim] for dim in panel.order]
    sizes[0] = panel.chunk
    sizes[panel.outer_places[-1]] //= share
    steps = [panel.steps[dim] for dim in panel.order]
    return tensor_map(memory, panel.slot, panel.order, panel.swizzle, sizes, steps)


def tensor_map(
    memory: Value,
    slot: int,
    order: Sequence[int],
    swizzle: int,
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> KernelTensorMap:
    """The map of boxes of a row-major array, of `sizes` elements, every so many-th of the array's;
    `order`, `sizes` and `steps` have the fastest dim first."""
    steps = steps or [1] * len(sizes)
    box = tuple(box_width(size, step) for size, step in zip(sizes, steps, strict=True))
    every = tuple(steps) if any(step != 1 for step in steps) else ()
    width = memory.element.bits // 8
    strides = [width * math.prod(memory.dims[dim + 1 :]) for dim in order]
    dims = tuple(memory.dims[dim] for dim in order)
    name = memory.element.name
    return KernelTensorMap(KernelMemory(slot), name, dims, tuple(strides[1:]), box, swizzle, every)
