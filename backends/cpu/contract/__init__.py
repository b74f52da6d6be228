"""Kernels of `contract` fusions: one dot_general or convolution and what follows it.

In: such a fusion, and how it is cut if that is chosen already. Out: its LLVM IR, with packed
panels, register blocks and the epilogue in registers. Imported by `backends/cpu`.
"""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.deciding import at_hint
from ....hlo.errors import CompilerBug
from ....hlo.graph import Op, Region, arguments
from ....optimizer.cuts.convolutions import ConvolutionCut, ConvolutionShape
from ....optimizer.cuts.products import Blocking, ProductShape, at_hints
from ....optimizer.windows import opened
from ...llvm.target import KernelCode
from ..codegen import Target
from . import convolution
from .convolution import emit_convolution
from .dot import Uneven, emit_dot, is_narrow, product_of
from .packing import packing_for
from .product import Product

__all__ = ["Uneven", "cut_by", "emit", "packing_for", "shape_of", "windows_of"]

_EMITTERS: dict[str, Callable[..., tuple[int, int]]] = {
    "convolution": emit_convolution,
    "dot_general": emit_dot,
}


def emit(op: Op, target: Target, blocking: Blocking | ConvolutionCut | None = None) -> KernelCode:
    """The kernel of a contraction, or of a fusion around one; `blocking`, for products that have
    a `shape_of` and convolutions that have a `windows_of`, says how it is cut. Uneven where there
    is none."""
    op, body, contraction = _parts(op)
    ops = body.ops if body is not None else (op,)
    flops = sum(inner.definition.flops(inner) for inner in ops)
    if contraction.type.element.is_complex:
        raise Uneven("no kernel multiplies complex numbers")
    module = target.module()
    symbol = contraction.name
    if contraction.type.size == 0:
        module.kernel(symbol).ret()
        return KernelCode(module.text(), symbol, 0, 0, 0.0, 0.0, False)
    values = list(body.arguments) if body is not None else list(op.operands)
    extra = () if blocking is None else (blocking,)
    tiles, scratch = _EMITTERS[contraction.name](
        module, symbol, contraction, body, values, target, *extra
    )
    read = values if body is None else [value for value in values if value in body.uses]
    moved = at_hint(sum(value.tensor.bytes for value in (*read, *op.results)))
    return KernelCode(
        module.text(),
        symbol,
        tiles,
        scratch,
        flops,
        float(moved),
        tiles != 1,
        sizes=tuple(module.sizes),
    )


def shape_of(op: Op, target: Target) -> ProductShape | None:
    """The shape that blockings are chosen for; None where a contraction is not cut by one."""
    product = _product(op, target)
    return None if product is None else product.shape


def windows_of(op: Op, target: Target) -> ConvolutionShape | None:
    """The shape that cuts of a convolution are chosen for; None where it is not cut by one."""
    op, body, contraction = _parts(op)
    if contraction.name != "convolution" or contraction.type.size == 0:
        return None
    values = list(body.arguments) if body is not None else list(op.operands)
    return convolution.windows_of(contraction, body, values, target)


def cut_by(op: Op, target: Target) -> ProductShape | ConvolutionShape | None:
    """The shape of a contraction that is cut in one way, at the likely sizes; None where it has
    several parts, or instructions for narrow numbers, which divide it by rules."""
    if _parts(op)[2].name != "dot_general":
        return windows_of(op, target)
    product = _product(op, target)
    return None if product is None or is_narrow(product) else at_hints(product.shape)


def _product(op: Op, target: Target) -> Product | None:
    """The blocked product that a `dot_general` is; None where it is none."""
    op, body, contraction = _parts(op)
    if contraction.name != "dot_general" or contraction.type.element.is_complex:
        return None
    if contraction.type.size == 0:
        return None
    values = list(body.arguments) if body is not None else list(op.operands)
    try:
        return product_of(contraction, body, values, target)
    except Uneven:
        return None


def _parts(op: Op) -> tuple[Op, Region | None, Op]:
    """The operation on the windows that it reads and writes, its body if it is a fusion, and the
    contraction."""
    op = opened(op).op
    body: Region | None = None
    if op.name == "fusion":
        body = op.regions[0]
    else:
        # On arguments of its own: what is above an operand is no part of this kernel.
        own = arguments([value.type for value in op.operands])
        op = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
    ops = body.ops if body is not None else (op,)
    found = [inner for inner in ops if inner.name in _EMITTERS]
    if len(found) != 1:
        raise CompilerBug(f"a contract kernel must hold one contraction, not {len(found)}")
    return op, body, found[0]
