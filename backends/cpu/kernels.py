"""Every kernel of the CPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from ...hlo.errors import CompilerBug
from ...hlo.graph import Op, Region
from ...hlo.types import TensorType
from ...optimizer.cuts.choose import Cut, Shape, cut_of
from ...optimizer.cuts.convolutions import ConvolutionCut
from ...optimizer.cuts.loops import LoopBlocking
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
    `blocking`: how a product is cut, where that was measured."""
    check(op, "cpu")
    if op.name == "kernel_call":
        return tile.emit(op, target, emit)
    if op.name == "foreign_call":
        return foreign.emit(op, target)
    inside = opened(op)
    if inside.windows:
        return windows.placed(emit(inside.op, target, blocking), inside, target)
    region, kind = _parts(op)
    cut = cut_of(op)
    if kind == "contract":
        found = blocking or cut
        assert not isinstance(found, LoopBlocking)
        return _contraction(op, region, target, found)
    if kind in _LOOPS:
        return _nest(kind, region, target, op.definition.flops(op), cut)
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


def _nest(
    kind: str, region: Region, target: Target, flops: float, cut: Cut | None = None
) -> KernelCode:
    """Loops over elements; one operation after another where there are none."""
    emitter = _LOOPS[kind]
    if emitter.takes(region):
        return emitter.emit(region, target, flops, cut)
    return _composed(region, target, flops)


def _contraction(
    op: Op, region: Region, target: Target, blocking: Blocking | ConvolutionCut | None
) -> KernelCode:
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


def shape_of(op: Op, target: Target) -> Shape | None:
    """What a kernel does, where it is cut in one way."""
    types = [value.type for value in (*op.operands, *op.results)]
    if op.definition.pattern == "kernel" or not all(isinstance(t, TensorType) for t in types):
        return None
    if any(value.tensor.size == 0 for value in (*op.operands, *op.results)):
        return None
    op = opened(op).op
    region, kind = _parts(op)
    if kind == "contract":
        return contract.cut_by(op, target)
    if kind in _LOOPS and _LOOPS[kind].takes(region):
        return _LOOPS[kind].shape_of(region, target)
    return None


def _parts(op: Op) -> tuple[Region, str]:
    """The region of a kernel, and the kind of fusion that it is or would be."""
    if op.name == "fusion":
        return op.regions[0], op.attributes.get("kind", "")
    return as_region(op), kind_of(op)


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
