"""Every kernel of the GPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ...hlo.build import make_op
from ...hlo.graph import Op, Region, arguments
from ...optimizer.cost.blocks import BlockCounter, LargestGrain
from ...optimizer.fusable import CONTRACTIONS
from ...optimizer.overwriting import may_overwrite
from ...optimizer.tiles.depths import with_split_depths
from ...optimizer.windows import NONE, Windows, opened
from ..llvm import elementwise
from ..plain.single import as_region, check
from . import apart, foreign, images, plain, tile
from .frame import Unfit, is_fixed, require_fixed
from .launch import KernelCode
from .loops import windows
from .loops.emitters import FUSIONS, OPERATIONS
from .pipeline import contraction as products
from .pipeline import emit as pipeline
from .target import Target
from .tile import contraction, resident, split
from .turned import turned


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none."""
    check(op, "nvidia")
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
        return _fused(kind_of(op), region, target, op.definition.flops(op), pairs, within)
    except Unfit as reason:
        notes = (f"a thread for each element: {reason}",)
        return plain.emit(region, target, op.definition.flops(op), pairs, notes, within)


def _fused(
    kind: str,
    region: Region,
    target: Target,
    flops: float,
    pairs: frozenset[tuple[int, int]],
    within: Windows = NONE,
) -> KernelCode:
    """The kernel of a fusion's region, on windows of what it is given; Unfit if no emitter takes
    it."""
    if kind in FUSIONS:
        return FUSIONS[kind](region, target, flops, within)
    if kind != "contract":
        return plain.emit(region, target, flops, pairs, (), within)
    if within:
        raise Unfit("a contraction on windows of arrays")
    with suppress(Unfit):
        require_fixed(region)
        return windows.depthwise(region, target, flops)
    better = images.prepared(region) if is_fixed(region) else None
    if better is not None:
        notes = ("a convolution's operands are laid anew",)
        taken = frozenset(result for _, result in pairs)
        names, kernel = CONTRACTIONS, _parts(target, pairs)
        return apart.emit(better[0], names, kernel, taken, flops, notes, better[1])
    try:
        require_fixed(region)
        return _turned(region, target, flops, pairs)
    except Unfit:
        pass  # as its operands lie
    try:
        return _contraction(op_of(region), region, target, bool(pairs))
    except Unfit as reason:
        if len(region.ops) == 1:
            raise
        return apart_from(region, target, flops, pairs, str(reason))


def apart_from(
    region: Region, target: Target, flops: float, pairs: frozenset[tuple[int, int]], reason: str
) -> KernelCode:
    """A contraction, and what stands around it, as kernels of their own."""
    notes = (f"operands, product and what follows apart: {reason}",)
    taken = frozenset(result for _, result in pairs)
    kernel = _parts(target, pairs)
    return apart.emit(region, CONTRACTIONS, kernel, taken, flops, notes)


def _parts(target: Target, pairs: frozenset[tuple[int, int]]) -> apart.Emit:
    """What emits the parts of a contraction that is done apart."""

    def kernel(kind: str, part: Region) -> KernelCode:
        # Operands of the type of a result may be where it is written.
        same = {
            (n, m)
            for n, value in enumerate(part.arguments)
            for m, root in enumerate(part.results)
            if pairs and kind != "product" and value.type is root.type
        }
        if kind == "contract":
            return _contraction(op_of(part), part, target, bool(same))
        try:
            whole = "contract" if kind == "product" else kind
            return _fused(whole, part, target, 0.0, frozenset(same))
        except Unfit as unfit:
            notes = (f"a thread for each element: {unfit}",)
            return plain.emit(part, target, 0.0, frozenset(same), notes)

    return kernel


def _turned(
    region: Region, target: Target, flops: float, pairs: frozenset[tuple[int, int]]
) -> KernelCode:
    """A contraction behind copies of operands that its instructions cannot read as they lie."""
    found = turned(region, target)
    if found is None:
        raise Unfit("no operand lies wrong")
    notes = ("operands are copied first: the product cannot read them well as they lie",)
    taken = frozenset(result for _, result in pairs)
    return apart.emit_after(*found, _parts(target, pairs), taken, flops, notes)


def op_of(region: Region) -> Op:
    """A fusion around a region, on operands of its own."""
    operands = arguments(region.argument_types)
    kind = {"kind": "contract"}
    return make_op("fusion", operands, kind, (region,), region.result_types, check=False)


def _contraction(op: Op, region: Region, target: Target, shares: bool) -> KernelCode:
    """Hopper's pipeline takes a product where it can, else a block of threads each tile; the sum in
    parts where its tiles leave the machine idle."""
    notes: tuple[str, ...] = ()
    split_depths = with_split_depths(region)
    if split_depths is not region:
        op, region = op_of(split_depths), split_depths
    if target.architecture.warpgroups:
        try:
            plan = products.plan(op, region, target)
            if not shares:
                cut = _in_parts(region, target, LargestGrain, products.emit)
                if cut is not None:
                    return cut
            return pipeline.code_of(plan, target)
        except Unfit as unfit:
            notes = (f"not in Hopper's pipeline: {unfit}",)
    code = None if shares else _in_parts(region, target, BlockCounter, contraction.emit)
    code = code or contraction.emit(op, region, target, shares)
    return replace(code, notes=(*code.notes, *notes))


def _in_parts(
    region: Region,
    target: Target,
    kind: type[BlockCounter],
    emit_one: Callable[[Op, Region, Target], KernelCode],
) -> KernelCode | None:
    """The contraction with its sum in parts; None where that is no better, or not possible."""
    parts = split.parts_of(region, target.machine, kind)
    if parts == 1:
        return None
    rest = _parts(target, frozenset())
    try:
        return split.emit(
            region, parts, target, lambda part: emit_one(op_of(part), part, target),
            lambda part: rest("loop", part),
        )  # fmt: skip
    except Unfit:
        return None


def _tiled(op: Op, target: Target) -> KernelCode:
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
        code = resident.emit(op, target, shares)
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
    if op.name in CONTRACTIONS:
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
