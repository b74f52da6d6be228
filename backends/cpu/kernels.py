"""Every kernel of the CPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from collections.abc import Callable

from ...hlo.graph import Op, Region
from ...optimizer.windows import opened
from ..llvm import elementwise
from ..plain import composite, opaque, product, windows
from ..plain.single import as_region, check, explained, missing, single
from . import contract, foreign, lapack, tile
from .codegen import KernelCode, Target
from .contract.blocking import Blocking
from .loops import loop, reduce, rows

_OPAQUE = {**opaque.EMITTERS, **lapack.EMITTERS}


def emit(op: Op, target: Target, blocking: Blocking | None = None) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none.
    `blocking`: how a product is cut, where that is not left to the cost model."""
    check(op, "cpu")
    if op.name == "kernel_call":
        return tile.emit(op, target)
    if op.name == "foreign_call":
        return foreign.emit(op, target)
    inside = opened(op)
    if inside.windows:
        return windows.placed(emit(inside.op, target, blocking), inside, target)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    kind = op.attributes.get("kind", "") if op.name == "fusion" else kind_of(op)
    if kind == "contract":
        return _contraction(op, region, target, blocking)
    rule = _KINDS.get(kind)
    if rule is not None:
        return rule(region, target, op.definition.flops(op))
    alone = single(op)
    own = _OPAQUE.get(alone.name)
    if own is not None:
        return own(alone, target)
    simpler = explained(alone)
    if simpler is None:
        raise missing(alone, "cpu")
    return composite.emit(simpler, target, alone.definition.flops(alone))


def _contraction(op: Op, region: Region, target: Target, blocking: Blocking | None) -> KernelCode:
    """Blocked products; complex ones are reductions, with what follows them one after another."""
    dots = [inner for inner in region.ops if inner.name == "dot_general"]
    if not any(dot.result.element.is_complex for dot in dots):
        return contract.emit(op, target, blocking)
    if len(region.ops) > 1:
        return composite.emit(region, target, op.definition.flops(op))
    return reduce.emit(product.as_reduction(region), target, op.definition.flops(op))


def is_contraction(op: Op) -> bool:
    """Whether `emit` makes blocked products of an operation."""
    return (op.attributes.get("kind") if op.name == "fusion" else kind_of(op)) == "contract"


def kind_of(op: Op) -> str:
    """The fusion kind that a single operation would be."""
    if op.name in ("dot_general", "convolution"):
        return "contract"
    if op.name == "reduce":
        return "reduce"
    if op.name in _OPAQUE:
        return "opaque"
    return "loop" if elementwise.supports(op) else "opaque"


_KINDS: dict[str, Callable[[Region, Target, float], KernelCode]] = {
    "loop": loop.emit,
    "rows": rows.emit,
    "reduce": reduce.emit,
}
