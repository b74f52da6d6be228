"""PyTorch's type promotion, where a result's own type does not tell the type to compute in."""

from __future__ import annotations

from typing import Any

from ...hlo.graph import Value
from ...hlo.symbols import SymbolicDim
from ...hlo.types import (
    BF16,
    C64,
    C128,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I64,
    UI8,
    ElementType,
    element_type,
)  # fmt: skip

_RANKS = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def promote(left: ElementType, right: ElementType) -> ElementType:
    """The element type of an operation on tensors of both."""
    if left is right:
        return left
    low, high = sorted((left, right), key=lambda e: (_RANKS[e.kind], e.bits))
    if low.kind == "bool":
        return high
    if high.is_complex:
        return C128 if F64 in (low, high) or high is C128 else C64
    if high.is_float:
        return F32 if {low, high} == {F16, BF16} else high
    if low.kind == high.kind:
        return high
    unsigned, signed = (low, high) if low.kind == "uint" else (high, low)
    if unsigned is UI8 and signed is I8:
        return I16
    return signed if signed.bits > unsigned.bits else element_type(f"i{min(64, 2 * unsigned.bits)}")


def scalar_element(value: bool | int | float | complex | SymbolicDim) -> ElementType:
    """The element type that a Python scalar has on its own."""
    if isinstance(value, bool):
        return I1
    if isinstance(value, (int, SymbolicDim)):
        return I64
    return F32 if isinstance(value, float) else C64


def result_element(*operands: Any) -> ElementType:
    """The type that values and Python scalars are computed in together.

    Tensors with dimensions decide; those of rank 0, then scalars, count only where they are of a
    higher category (bool < integer < float < complex).
    """
    levels: list[ElementType | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Value):
            level, element = (0 if operand.rank else 1), operand.element
        else:
            level, element = 2, scalar_element(operand)
        known = levels[level]
        levels[level] = element if known is None else promote(known, element)
    result: ElementType | None = None
    for element in levels:
        if element is None:
            continue
        if result is None:
            result = element
        elif _RANKS[element.kind] > _RANKS[result.kind]:
            # a complex scalar makes a float tensor complex of the same width
            wide = element.is_complex and result is F64
            result = C128 if wide else element
    assert result is not None
    return result
