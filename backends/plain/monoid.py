"""What a reduction accumulates: recognised single operations in vectors, other bodies in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Region, Value, constant_of
from .. import llvm
from ..llvm import arithmetic, elements
from ..llvm.elements import Pair, Register
from ..llvm.elementwise import scalar_region, splat


def body_operation(body: Region) -> Op | None:
    """The one operation of a body that combines its two arguments; None for other bodies."""
    if len(body.ops) != 1 or len(body.arguments) != 2 or len(body.results) != 1:
        return None
    op = body.ops[0]
    if not op.definition.associative or body.results[0] is not op.results[0]:
        return None
    return op if set(op.operands) == set(body.arguments) else None


class Reduction:
    """One `reduce` operation: its inputs, initial values, and how partial results are joined.

    A recognised body may be reordered freely: partial results start from its identity. Any other
    body is applied in the order of the elements, starting from the initial values; `backward`: in
    the opposite order, where the emitter goes from the last element to the first.
    """

    def __init__(self, op: Op, backward: bool = False) -> None:
        self.op, self.backward = op, backward
        count = len(op.operands) // 2
        self.inputs = op.operands[:count]
        self.initial = op.operands[count:]
        self.body = op.regions[0]
        self.single = body_operation(self.body)
        self.elements = [result.element for result in self.body.results]

    def identity(self, width: int) -> list[Register]:
        """What leaves a recognised body's other operand as it is."""
        assert self.single is not None
        return [elements.register_constant(self.elements[0], self._identity(), width)]

    def _identity(self) -> Any:
        assert self.single is not None
        neutral, element = self.single.definition.neutral, self.elements[0]
        if neutral == "zero":
            # -0 is the identity of float addition; from +0 on, +0 is as well, and stays +0.
            negative = element.is_float and not _is_positive_zero(self.initial[0])
            return element.dtype.type(-0.0 if negative else 0)
        if neutral == "one":
            return element.dtype.type(1)
        if element.is_bool:
            return np.bool_(neutral != "lowest")
        if neutral == "ones":
            return np.array(-1).astype(element.dtype)[()]
        low, high = bounds(element)
        return low if neutral == "lowest" else high

    def is_identity(self, value: Any) -> bool:
        """Whether an initial value is a constant from which partial results start anyway."""
        dense = constant_of(value)
        if dense is None or not dense.is_splat or self.single is None:
            return False
        return bool(dense.splat_value == self._identity())

    def is_neutral(self, value: Any) -> bool:
        """Whether an initial value is a constant that changes no result, wherever that started:
        +0 makes -0 to +0."""
        sums = self.single is not None and self.single.name == "add" and self.elements[0].is_float
        return self.is_identity(value) and not (sums and _is_positive_zero(value))

    def read(self, f: llvm.Function, registers: Sequence[Register]) -> list[Register]:
        """Inputs in the element types that the body accumulates in."""
        return [
            arithmetic.convert(f, register, value.element, element)
            for register, value, element in zip(registers, self.inputs, self.elements, strict=True)
        ]

    def combine(
        self, f: llvm.Function, left: Sequence[Register], right: Sequence[Register], width: int
    ) -> list[Register]:
        """body(left, right). Sums of small floats stay in f32 until `finished`."""
        with f.within(self.op):
            return self._combined(f, left, right, width)

    def _combined(
        self, f: llvm.Function, left: Sequence[Register], right: Sequence[Register], width: int
    ) -> list[Register]:
        if self.single is None:
            if self.backward:
                left, right = right, left
            return scalar_region(f, self.body, [*left, *right], width)
        (a,), (b,) = left, right
        name, element = self.single.name, self.elements[0]
        if element.is_float and isinstance(a, llvm.Value) and isinstance(b, llvm.Value):
            if name == "add":
                return [f.add(a, b)]
            if name == "multiply":
                return [f.mul(a, b)]
            return [_extreme(f, name, a, b)]
        return [arithmetic.apply(f, self.single, [a, b])]

    def finished(self, f: llvm.Function, values: Sequence[Register]) -> list[Register]:
        """The accumulated values, rounded to their element types."""
        return [
            elements.rounded(f, value, element) if isinstance(value, llvm.Value) else value
            for value, element in zip(values, self.elements, strict=True)
        ]

    def across(self, f: llvm.Function, values: Sequence[Register], width: int) -> list[Register]:
        """The lanes of an accumulator joined, in a fixed tree."""
        while width > 1:
            width //= 2
            low = [_half(f, value, 0, width) for value in values]
            high = [_half(f, value, width, width) for value in values]
            values = self.combine(f, low, high, width)
        return list(values)

    def masked(
        self, f: llvm.Function, mask: llvm.Value, values: Sequence[Register], width: int
    ) -> list[Register]:
        """Identity where the mask is off."""
        (value,), (neutral,) = values, self.identity(width)
        return [arithmetic.select(f, mask, value, neutral)]


def _is_positive_zero(value: Value) -> bool:
    dense = constant_of(value)
    return dense is not None and dense.is_splat and not dense.splat_value.tobytes().strip(b"\0")


def _extreme(f: llvm.Function, name: str, a: llvm.Value, b: llvm.Value) -> llvm.Value:
    """maximum or minimum, NaN if either is; zeros of either sign are equal here."""
    if elements.has_extremes(f, a.type):
        return f.intrinsic(f"llvm.{name}", a.type, a, b)
    better = f.select(f.compare("ogt" if name == "maximum" else "olt", b, a), b, a)
    return f.select(f.compare("uno", b, b), b, better)


def _half(f: llvm.Function, value: Register, first: int, width: int) -> Register:
    mask = range(first, first + width)
    if isinstance(value, Pair):
        return Pair(*(f.shuffle(part, None, mask) for part in value))
    return f.shuffle(value, None, mask)


def bounds(element: Any) -> tuple[Any, Any]:
    """The least and the greatest value of a real element type, as numpy scalars."""
    if element.is_float:
        infinity = np.float64(np.inf)
        return -infinity, infinity
    signed = element.kind == "int"
    low = -(1 << (element.bits - 1)) if signed else 0
    high = (1 << (element.bits - (1 if signed else 0))) - 1
    return np.array(low).astype(element.dtype)[()], np.array(high).astype(element.dtype)[()]


def flat(registers: Sequence[Register]) -> list[llvm.Value]:
    """The LLVM values of registers, pairs opened."""
    values: list[llvm.Value] = []
    for register in registers:
        values.extend(register if isinstance(register, Pair) else [register])
    return values


def unflat(values: Sequence[llvm.Value], like: Sequence[Register]) -> list[Register]:
    """Registers of the same make as `like` from LLVM values."""
    source = iter(values)
    return [
        Pair(next(source), next(source)) if isinstance(one, Pair) else next(source) for one in like
    ]


def spread(f: llvm.Function, values: Sequence[Register], width: int) -> list[Register]:
    """Scalars in every lane."""
    return [splat(f, value, width) for value in values]


def nested(reductions: Sequence[Reduction]) -> bool:
    """Whether one reduction reads another's result."""
    seen: set[Value] = set()
    stack = [value for r in reductions for value in r.op.operands]
    while stack:
        value = stack.pop()
        if value in seen or value.op is None:
            continue
        if value.op.name == "reduce":
            return True
        seen.add(value)
        stack.extend(value.op.operands)
    return False
