"""What loops do for an element, for who cuts them."""

from __future__ import annotations

from collections.abc import Iterable

from ....hlo.graph import Op, Region
from ....workers import kernel_pays
from ...plain.frame import cost, weight


def for_several(region: Region, elements: int, moved: float) -> bool:
    """Whether several workers take part in a kernel that computes so many elements."""
    return kernel_pays(cost(region) * elements / 8, moved)


def operations(ops: Iterable[Op]) -> tuple[int, int, int]:
    """Simple operations, divisions and functions of an element."""
    kinds = [op.definition.cost_class for op in ops]
    simple = sum(weight(op) == 1 for op in ops)
    return simple, kinds.count("division"), kinds.count("transcendental")
