"""Tile functions of fixed sizes, in which bounds are numbers like others."""

from __future__ import annotations

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from ...hlo.ops.tile import INDEX
from ...hlo.regions import rewritten


def with_numbers(kernel: Op) -> Op:
    """The kernel_call with constants in place of bounds that no call decides."""
    found = {
        op
        for op in kernel.regions[0].walk()
        if op.name == "tile_bound" and isinstance(op.size, int)
    }
    if not found:
        return kernel

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op not in found:
            return False
        mapping[op.result] = b.constant(op.size, INDEX)
        return True

    body, *others = kernel.regions
    return kernel.with_operands(kernel.operands, [rewritten(body, {}, change), *others])
