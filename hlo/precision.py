"""What a contraction of f32 may read its operands as: the source's dot algorithm, or a mark.

StableHLO's dot algorithm says it for products (`lhs_precision_type` and its companions); the mark
`girih.operands` says it for convolutions, which have no algorithm, and for products in kernels.
`matmul_precision` sets them.
"""

from __future__ import annotations

from typing import Any

from .graph import Op
from .types import F32

OPERANDS = "girih.operands"
"""The attribute of a contraction whose operands may be rounded: "tf32", 11 significant bits."""

TF32 = "tf32"
_ALGORITHM = {
    "lhs_precision_type": TF32, "rhs_precision_type": TF32, "accumulation_type": "f32",
    "lhs_component_count": 1, "rhs_component_count": 1, "num_primitive_operations": 1,
    "allow_imprecise_accumulation": False,
}  # fmt: skip


def is_f32(op: Op) -> bool:
    """Whether it is a contraction of f32 that gives f32."""
    values = (*op.operands[:2], *op.results[:1])
    return op.definition.pattern == "contract" and all(value.element is F32 for value in values)


def algorithm(op: Op) -> tuple[str, int] | None:
    """(what both operands are rounded to, products that make one) of the source's dot algorithm;
    None where it has none, or operands of two kinds."""
    left, right = (op.attributes.get(f"{side}_precision_type", "none") for side in ("lhs", "rhs"))
    if left == "none" or left != right:
        return None
    return str(left), int(op.attributes.get("num_primitive_operations", 1))


def may_use_tf32(op: Op) -> bool:
    """Whether the operands of a contraction of f32 may be rounded to 11 significant bits, in any
    direction, before they are multiplied and summed in f32."""
    if not is_f32(op):
        return False
    return op.attributes.get(OPERANDS) == TF32 or algorithm(op) == (TF32, 1)


def with_tf32(op: Op) -> dict[str, Any]:
    """The attributes of a contraction, and that its operands may be rounded to tf32."""
    return {**op.attributes, **(_ALGORITHM if op.name == "dot_general" else {OPERANDS: TF32})}


def operand_facts(op: Op) -> dict[str, str]:
    """The attributes that another contraction of the same operands has to have for `may_use_tf32`
    to say the same of it."""
    return {OPERANDS: TF32} if may_use_tf32(op) else {}
