"""Kernels of `contract` fusions: one dot_general or convolution and what follows it."""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.errors import CompilerBug, UnsupportedError
from ....hlo.graph import Op, Region, arguments
from ..codegen import KernelCode, Target
from .convolution import emit_convolution
from .dot import emit_dot, origin_of
from .packing import packing_for, source_of

__all__ = ["emit", "packing_for", "source_of"]

_EMITTERS: dict[str, Callable[..., tuple[int, int]]] = {
    "convolution": emit_convolution,
    "dot_general": emit_dot,
}


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a contraction, or of a fusion around one."""
    body: Region | None = None
    if op.name == "fusion":
        body = op.regions[0]
    else:
        # On arguments of its own: what is above an operand is no part of this kernel.
        own = arguments([value.type for value in op.operands])
        op = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
    inner = [o for o in (body.ops if body is not None else (op,)) if o.name in _EMITTERS]
    if len(inner) != 1:
        raise CompilerBug(f"a contract kernel must hold one contraction, not {len(inner)}")
    contraction = inner[0]
    values = list(body.arguments) if body is not None else list(op.operands)
    for value in (*op.operands, *op.results):
        if value.element.kind == "quantized":
            raise UnsupportedError(
                f"{origin_of(contraction)}: target cpu: {contraction.name} of {value.element}"
            )
    module = target.module()
    symbol = contraction.name
    if contraction.type.size == 0:
        module.kernel(symbol).ret()
        return KernelCode(module.text(), symbol, 0, 0, 0.0, 0.0, False)
    tiles, scratch = _EMITTERS[contraction.name](module, symbol, contraction, body, values, target)
    moved = sum(value.tensor.bytes for value in (*op.operands, *op.results))
    flops = sum(o.definition.flops(o) for o in (body.ops if body is not None else (op,)))
    return KernelCode(module.text(), symbol, tiles, scratch, flops, float(moved), tiles > 1)
