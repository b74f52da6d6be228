"""Every kernel of the GPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from dataclasses import replace

from ...hlo.errors import UnsupportedError
from ...hlo.graph import Op, Region
from ...optimizer.schedule import may_overwrite
from ..llvm import elementwise
from ..plain.single import as_region, check
from . import foreign, plain, tile
from .frame import Unfit
from .launch import KernelCode
from .loops.emitters import FUSIONS, OPERATIONS
from .pipeline import contraction as products
from .pipeline import emit as pipeline
from .target import Target
from .tile import contraction


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
        if kind == "contract":
            return _contraction(op, region, target)
        if kind in FUSIONS:
            return FUSIONS[kind](region, target, flops)
        if op.name in OPERATIONS:
            return OPERATIONS[op.name](op, target)
    except Unfit as reason:
        notes = (f"a thread for each element: {reason}",)
    return plain.emit(region, target, flops, shared(op), notes)


def _contraction(op: Op, region: Region, target: Target) -> KernelCode:
    """Hopper's pipeline takes a product where it can, else a block of threads each tile."""
    shares, reason = bool(shared(op)), "no tile of its result stands alone"
    notes: tuple[str, ...] = ()
    if target.architecture.warpgroups and not shares:
        try:
            return products.emit(op, region, target)
        except Unfit as unfit:
            notes = (f"not in Hopper's pipeline: {unfit}",)
    for call in contraction.calls(op, region, target):
        try:
            code = tile.emit(call, target, shares)
            return replace(code, notes=(*code.notes, *notes))
        except Unfit as unfit:
            reason = str(unfit)
    raise Unfit(reason)


def _tiled(op: Op, target: Target) -> KernelCode:
    """A tile function, in the pipeline or in general; UnsupportedError if it has no form."""
    notes: tuple[str, ...] = ()
    shares = bool(shared(op))
    if target.architecture.warpgroups and not shares:
        try:
            return pipeline.emit(op, target)
        except Unfit as reason:
            if any(inner.name == "dot_general" for inner in op.regions[0].walk()):
                notes = (f"not in Hopper's pipeline: {reason}",)
    try:
        code = tile.emit(op, target, shares)
    except Unfit as reason:
        place = f"{op.origin[0]}: " if op.origin else ""
        raise UnsupportedError(f"{place}{op.kernel}: target nvidia: {reason}") from reason
    return replace(code, notes=(*code.notes, *notes))


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
