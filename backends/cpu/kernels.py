"""Every kernel of the CPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from ...hlo.errors import CompilerBug
from ...hlo.graph import Op, Region
from ...optimizer.cuts.products import Blocking
from ...optimizer.windows import opened
from ..llvm import elementwise
from ..llvm.target import KernelCode
from ..plain import composite, opaque, product, windows
from ..plain.single import as_region, check, explained, missing, single
from . import contract, foreign, lapack, tile
from .codegen import Target
from .loops import loop, reduce, rows

_OPAQUE = {**opaque.EMITTERS, **lapack.EMITTERS}
_LOOPS = {"loop": loop, "rows": rows, "reduce": reduce}


def emit(op: Op, target: Target, blocking: Blocking | None = None) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none.
    `blocking`: how a product is cut, where that is not left to the cost model."""
    check(op, "cpu")
    if op.name == "kernel_call":
        return tile.emit(op, target, emit)
    if op.name == "foreign_call":
        return foreign.emit(op, target)
    inside = opened(op)
    if inside.windows:
        return windows.placed(emit(inside.op, target, blocking), inside, target)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    kind = op.attributes.get("kind", "") if op.name == "fusion" else kind_of(op)
    if kind == "contract":
        return _contraction(op, region, target, blocking)
    if kind in _LOOPS:
        return _nest(kind, region, target, op.definition.flops(op))
    alone = single(op)
    own = _OPAQUE.get(alone.name)
    if own is not None:
        return own(alone, target)
    simpler = explained(alone)
    if simpler is None:
        raise missing(alone, "cpu")
    return _composed(simpler, target, alone.definition.flops(alone))


def _composed(region: Region, target: Target, flops: float) -> KernelCode:
    """One operation after another."""
    return composite.emit(region, target, flops, lambda op: emit(op, target))


def _nest(kind: str, region: Region, target: Target, flops: float) -> KernelCode:
    """Loops over elements; one operation after another where there are none."""
    emitter = _LOOPS[kind]
    if emitter.takes(region):
        return emitter.emit(region, target, flops)
    return _composed(region, target, flops)


def _contraction(op: Op, region: Region, target: Target, blocking: Blocking | None) -> KernelCode:
    """Blocked products; complex ones are reductions, or four real ones, with what follows them one
    after another."""
    flops = op.definition.flops(op)
    (found,) = (inner for inner in region.ops if inner.definition.pattern == "contract")
    if found.type.element.is_complex:
        if len(region.ops) > 1:
            return _composed(region, target, flops)
        if found.name == "dot_general":
            return _nest("reduce", product.as_reduction(region), target, flops)
        return _composed(product.real_products(found), target, flops)
    try:
        return contract.emit(op, target, blocking)
    except contract.Uneven as error:
        if op.name != "fusion":
            raise CompilerBug(str(error)) from error
        return _composed(region, target, flops)


def is_contraction(op: Op) -> bool:
    """Whether `emit` makes blocked products of an operation."""
    return (op.attributes.get("kind") if op.name == "fusion" else kind_of(op)) == "contract"


def kind_of(op: Op) -> str:
    """The fusion kind that a single operation would be."""
    if op.definition.pattern == "contract" and not op.definition.alias:
        return "contract"
    if op.name == "reduce":
        return "reduce"
    if op.name in _OPAQUE:
        return "opaque"
    return "loop" if elementwise.supports(op) else "opaque"
