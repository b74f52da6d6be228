"""What takes longer on a CPU than its element type leads one to expect."""

from __future__ import annotations

from ...hlo.deciding import estimating
from ...hlo.graph import Op
from ...hlo.types import BF16, F32
from .codegen import Target
from .contract.pairs import supports

# Multiplications per element of the larger operand; with fewer, reading is what takes time.
_REUSE = 16


@estimating()
def slow(op: Op, target: Target) -> str:
    """Why a contraction of narrow floats takes longer than the same one of f32: the target has no
    arithmetic for them, and widens them; "" where it does not (1.2 to 2.6 times for products of
    f16 and bf16, but 0.5 to 0.8 for a matrix and a vector, which are read in less time)."""
    if op.definition.pattern != "contract":
        return ""
    operands = [value.tensor for value in op.operands[:2]]
    element = operands[0].element
    if any(x.element is not element for x in operands) or not element.is_float:
        return ""
    if element.bits >= F32.bits or (element is BF16 and supports(target, "bf16", "bf16")):
        return ""
    products = op.definition.flops(op) / 2
    if products < _REUSE * max(x.size for x in operands):
        return ""
    return (
        f"the CPU has no products of {element.name}: they take longer than those of f32, "
        "which they are widened to"
    )
