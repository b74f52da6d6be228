"""Every kernel of the GPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from dataclasses import replace

from ...hlo.graph import NOTE, Op, Region
from ...optimizer.kernels.convolution_form import sums_one_feature
from ...optimizer.overwriting import may_overwrite
from ...optimizer.windows import NONE, Windows, opened
from ..llvm import elementwise
from ..plain.single import as_region, check
from . import foreign, plain, tile
from .capabilities import capabilities
from .frame import Unfit, is_fixed, require_fixed
from .launch import KernelCode
from .loops import windows
from .loops.emitters import FUSIONS, OPERATIONS
from .pipeline import contraction as products
from .pipeline import emit as pipeline
from .target import NvidiaTarget
from .tile import contraction, memory_tiles


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none."""
    check(op, "nvidia")
    code, note = _emit(op, target), op.attributes.get(NOTE)
    return code if note is None else replace(code, notes=(note, *code.notes))


def _emit(op: Op, target: NvidiaTarget) -> KernelCode:
    if op.name == "foreign_call":
        return foreign.emit(op, target)
    if op.name == "kernel_call":
        return _tiled(op, target)
    pairs = shared(op)
    op, within = opened(op)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    try:
        if op.name in OPERATIONS:
            require_fixed(region)
            return OPERATIONS[op.name](op, target)
        return _fused(op, region, target, pairs, within)
    except Unfit as reason:
        notes = (f"a thread for each element: {reason}",)
        return plain.emit(region, target, op.definition.flops(op), pairs, notes, within)


def _fused(
    op: Op,
    region: Region,
    target: NvidiaTarget,
    pairs: frozenset[tuple[int, int]],
    within: Windows = NONE,
) -> KernelCode:
    """The kernel of a fusion's region, on windows of what it is given; Unfit if no emitter takes
    it."""
    kind, flops = kind_of(op), op.definition.flops(op)
    if kind in FUSIONS:
        return FUSIONS[kind](region, target, flops, within)
    if kind != "contract":
        return plain.emit(region, target, flops, pairs, (), within)
    if within:
        raise Unfit("a contraction on windows of arrays")
    if sums_one_feature(region) and is_fixed(region):
        return windows.depthwise(region, target, flops)
    return _contraction(op, region, target, bool(pairs))


def _contraction(op: Op, region: Region, target: NvidiaTarget, shares: bool) -> KernelCode:
    """Hopper's pipeline takes what it has a unit for where it can, else a block of threads each
    tile."""
    notes: tuple[str, ...] = ()
    able = capabilities(target.architecture)
    mains = [main for main in region.ops if main.definition.pattern == "contract"]
    if any(unit.asynchronous for main in mains for unit in able.units_of(main)):
        try:
            return products.emit(op, region, target)
        except Unfit as unfit:
            notes = (f"not in Hopper's pipeline: {unfit}",)
    code = contraction.emit(op, region, target, shares)
    return replace(code, notes=(*code.notes, *notes))


def _tiled(op: Op, target: NvidiaTarget) -> KernelCode:
    """A tile function: in the pipeline, with tiles in registers, or with tiles in memory."""
    notes: tuple[str, ...] = ()
    shares = bool(shared(op))
    if target.architecture.warpgroups and not shares:
        try:
            return pipeline.emit(op, target)
        except Unfit as reason:
            if _narrow(op.regions[0]):
                notes = (f"not in Hopper's pipeline: {reason}",)
    try:
        code = tile.emit(op, target, shares)
    except Unfit as reason:
        code = memory_tiles.emit(op, target, shares)
        notes = (f"tiles in memory: {reason}",)
    return replace(code, notes=(*code.notes, *notes))


def _narrow(region: Region) -> bool:
    """Whether it has products that Hopper's matrix units would do at once."""
    return any(
        op.name == "dot_general" and op.operands[0].element.is_float
        and op.operands[0].element.bits <= 16
        for op in region.walk()
    )  # fmt: skip


def kind_of(op: Op) -> str:
    """The kind of a fusion, or the one that a single operation would be."""
    if op.name == "fusion":
        return op.kind
    if op.definition.pattern == "contract" and op.name != "dot":  # a dot_general by now
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
