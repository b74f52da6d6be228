"""Every kernel of the GPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from ...hlo.errors import UnsupportedError
from ...hlo.graph import Op, Region
from ...optimizer.schedule import may_overwrite
from ..llvm import elementwise
from ..plain.single import as_region, check
from . import foreign, plain, tile
from .frame import Unfit
from .launch import KernelCode
from .loops import loop, reduce, rows
from .target import Target
from .tile import contraction

_KINDS = {"loop": loop.emit, "rows": rows.emit, "reduce": reduce.emit}


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none."""
    check(op, "nvidia")
    if op.name == "foreign_call":
        return foreign.emit(op, target)
    if op.name == "kernel_call":
        return _tiled(op, target)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    kind, flops = kind_of(op), op.definition.flops(op)
    notes: tuple[str, ...] = ()
    try:
        if kind == "contract" and _summed(region):
            return contraction.emit(op, region, target, bool(shared(op)))
        if kind in _KINDS:
            return _KINDS[kind](region, target, flops)
    except Unfit as reason:
        notes = (f"a thread for each element: {reason}",)
    return plain.emit(region, target, flops, shared(op), notes)


def _summed(region: Region) -> bool:
    """Whether its contractions are products that sum anything."""
    products = [op for op in region.ops if op.name in contraction.CONTRACTIONS]
    return all(
        op.name == "dot_general"
        and op.lhs_contracting_dimensions
        and all(value.tensor.size for value in (*op.operands, op.result))
        for op in products
    )


def _tiled(op: Op, target: Target) -> KernelCode:
    try:
        return tile.emit(op, target, bool(shared(op)))
    except Unfit as reason:
        place = f"{op.origin[0]}: " if op.origin else ""
        raise UnsupportedError(f"{place}{op.kernel}: target nvidia: {reason}") from reason


def kind_of(op: Op) -> str:
    """The kind of a fusion, or the one that a single operation would be."""
    if op.name == "fusion":
        return op.kind
    if op.name in contraction.CONTRACTIONS:
        return "contract"
    if op.name == "reduce":
        return "reduce"
    return "loop" if elementwise.supports(op) else "opaque"


def shared(op: Op) -> frozenset[tuple[int, int]]:
    """The operands and results that the schedule may give one piece of memory."""
    return frozenset(
        (operand, result)
        for operand in range(len(op.operands))
        for result in range(len(op.results))
        if may_overwrite(op, operand, result)
    )
