"""Every kernel of the CPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from collections.abc import Callable

from ...hlo.build import Builder
from ...hlo.errors import CompilerBug, UnsupportedError
from ...hlo.graph import Op, Region, arguments
from ...hlo.types import TensorType
from ..llvm import arithmetic, elementwise
from ..plain import composite, opaque, product
from . import contract, lapack, tile
from .codegen import KernelCode, Target
from .contract.blocking import Blocking
from .loops import loop, reduce, rows

_OPAQUE = {**opaque.EMITTERS, **lapack.EMITTERS}

# Operations that no kernel computes, and why.
LIMITATIONS = {
    "uniform_quantize": "quantised values are integers before kernels are made",
    "uniform_dequantize": "quantised values are integers before kernels are made",
    "get_dimension_size": "static sizes are folded before kernels are made",
    "set_dimension_size": "sizes that change at run time have no kernels yet",
    "dynamic_reshape": "shapes must be constants",
    "dynamic_broadcast_in_dim": "shapes must be constants",
    "dynamic_iota": "shapes must be constants",
}


def emit(op: Op, target: Target, blocking: Blocking | None = None) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none.
    `blocking`: how a product is cut, where that is not left to the cost model."""
    _check(op)
    if op.name == "kernel_call":
        return tile.emit(op, target)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    kind = op.attributes.get("kind", "") if op.name == "fusion" else kind_of(op)
    if kind == "contract":
        return _contraction(op, region, target, blocking)
    rule = _KINDS.get(kind)
    if rule is not None:
        return rule(region, target, op.definition.flops(op))
    single = _single(op)
    own = _OPAQUE.get(single.name)
    if own is not None:
        return own(single, target)
    simpler = _explained(single)
    if simpler is None:
        reason = LIMITATIONS.get(single.name)
        raise UnsupportedError(f"{arithmetic.unsupported(single)}{f': {reason}' if reason else ''}")
    return composite.emit(simpler, target, single.definition.flops(single))


def _contraction(op: Op, region: Region, target: Target, blocking: Blocking | None) -> KernelCode:
    """Blocked products; complex ones are reductions, with what follows them one after another."""
    dots = [inner for inner in region.ops if inner.name == "dot_general"]
    if not any(dot.result.element.is_complex for dot in dots):
        return contract.emit(op, target, blocking)
    if len(region.ops) > 1:
        return composite.emit(region, target, op.definition.flops(op))
    return reduce.emit(product.as_reduction(region), target, op.definition.flops(op))


def _explained(op: Op) -> Region | None:
    """The region of simpler operations that the room gives for this one."""
    builder = Builder()
    values = builder.arguments([value.type for value in op.operands])
    found = op.definition.decompose(builder, op, *values)
    return None if found is None else builder.region(found)


def _single(op: Op) -> Op:
    """The operation itself, or the only one inside a fusion."""
    if op.name != "fusion":
        # Each operand is an argument of the kernel, also where one value stands twice.
        return as_region(op).ops[0]
    ops = op.regions[0].ops
    if len(ops) != 1 or ops[0].operands != op.regions[0].arguments:
        raise CompilerBug(f"an opaque kernel must hold one operation, not {len(ops)}")
    return ops[0]


def as_region(op: Op) -> Region:
    """The operation alone in a region."""
    own = arguments([value.type for value in op.operands])
    single = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
    return Region(own, (single,), single.results)


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


def _check(op: Op) -> None:
    for value in (*op.operands, *op.results):
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            place = f"{op.origin[0]}: " if op.origin else ""
            raise UnsupportedError(
                f"{place}{op.name}: target cpu needs static tensors, not {value.type}"
            )


_KINDS: dict[str, Callable[[Region, Target, float], KernelCode]] = {
    "loop": loop.emit,
    "rows": rows.emit,
    "reduce": reduce.emit,
}
