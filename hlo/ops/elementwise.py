"""Elementwise operations: one formula per row, applied to each element of equal-shaped operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import Op
from ..room import Case, OpDefinition, constraint, operand
from ..types import (
    BF16,
    C64,
    F8E4M3FN,
    F16,
    F32,
    F64,
    I1,
    I4,
    I8,
    I32,
    UI8,
    UI32,
    QuantizedType,
    TensorType,
    Type,
)
from . import complex_functions, numerics
from .clauses import is_tensor, merge_dims, result_element, same_dims, same_or_quantized
from .examples import TOLERANCES, hostile

NUMBERS = "int uint float complex"
FLOATS = "float complex"
BITS = "bool int uint"


class Elementwise(OpDefinition):
    """A formula over arrays; the result has the operands' dims and element type.

    The formula gets arrays in the type that arithmetic is done in (`numerics.wide`), and the result
    is rounded once. A quantised operand stands for its real value (`hlo/quantized.py`).
    """

    pattern = "elementwise"

    def __init__(
        self, name: str, formula: Callable[..., Any], kinds: str, doc: str, domain: str = "all",
        cost_class: str = "simple", linear: str = "", idempotent: bool = False, neutral: str = "",
    ) -> None:  # fmt: skip
        self.name = name  # type: ignore[misc]
        self.formula = formula
        self.kinds = frozenset(kinds.split())
        self.domain = domain
        self.cost_class, self.linear, self.idempotent = cost_class, linear, idempotent  # type: ignore[misc]
        self.neutral = neutral  # type: ignore[misc]
        self.__doc__ = doc

    def infer(self, o: Op) -> Sequence[Type]:
        first = o.operands[0].tensor
        dims = merge_dims(*(v.dims for v in o.operands))
        if isinstance(first.element, QuantizedType):
            return [TensorType(dims, result_element(o, first.element))]
        return [first if dims == first.dims else first.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return numerics.elementwise(self.formula, arrays, arrays[0].dtype)

    def cases(self) -> Iterator[Case]:
        count = len(self.operands)
        for element in (F32, F64, F16, BF16, F8E4M3FN, C64, I32, I8, UI8, UI32, I4, I1):
            if element.kind in self.kinds:
                yield Case(
                    f"{self.name}_{element.name}",
                    hostile(element, count, self.domain),
                    tolerance=TOLERANCES.get(element.name, 1e-5),
                )


def _legal(o: Op) -> bool:
    if not is_tensor(o.operands[0]):
        return False
    kinds = o.definition.kinds  # type: ignore[attr-defined]
    kind = o.operands[0].element.kind
    return kind in kinds or (kind == "quantized" and "float" in kinds)


class Unary(Elementwise):
    operand = operand()
    C0 = constraint("operand has a legal element type", _legal)


class Binary(Elementwise):
    lhs = operand()
    rhs = operand()
    C0 = constraint("lhs has a legal element type", _legal)
    C1 = constraint(
        "lhs, rhs and result have the same type",
        lambda o: (
            is_tensor(o.rhs)
            and same_dims(o.lhs.dims, o.rhs.dims)
            and same_or_quantized(o.lhs.element, o.rhs.element)
        ),
    )


class CommutativeBinary(Binary):
    commutative = associative = True


class Shift(Binary):
    """A row whose formula also gets the width in bits."""

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        dtype = arrays[0].dtype
        bits = numerics.width(dtype)
        return numerics.elementwise(lambda x, y: self.formula(x, y, bits), arrays, dtype)


class BitCount(Unary):
    """A row whose formula gets the bits as unsigned integers, and the width."""

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        (x,) = arrays
        bits = numerics.width(x.dtype)
        unsigned = numerics.unsigned_bits(numerics.wide(x))
        if bits < 8:
            unsigned = unsigned & unsigned.dtype.type((1 << bits) - 1)
        return self.formula(unsigned, bits).astype(x.dtype)


def _add(x: Any, y: Any) -> Any:
    return np.add(x, y)


def _logistic(x: Any) -> Any:
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))


def _rsqrt(x: Any) -> Any:
    return x.dtype.type(1) / np.sqrt(x)


def _cbrt(x: Any) -> Any:
    return np.power(x, x.dtype.type(1 / 3)) if x.dtype.kind == "c" else np.cbrt(x)


def _atan2(x: Any, y: Any) -> Any:
    if x.dtype.kind != "c":
        return np.arctan2(x, y)
    return -1j * np.log((y + 1j * x) / np.sqrt(x * x + y * y))


def _not(x: Any) -> Any:
    return np.logical_not(x) if x.dtype.kind == "b" else np.invert(x)


def _count_ones(x: Any, bits: int) -> Any:
    total = np.zeros_like(x)
    for position in range(bits):
        total += (x >> x.dtype.type(position)) & x.dtype.type(1)
    return total


def _count_leading_zeros(x: Any, bits: int) -> Any:
    total = np.full_like(x, bits)
    for position in range(bits):
        total = np.where(x >> x.dtype.type(position), x.dtype.type(bits - 1 - position), total)
    return total


def _negate(x: Any) -> Any:
    return np.negative(x)


class IsFinite(Unary):
    predicate = True

    def infer(self, o: Op) -> Sequence[Type]:
        return [TensorType(o.operands[0].dims, I1)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.asarray(np.isfinite(numerics.wide(arrays[0])))


ROOMS: tuple[OpDefinition, ...] = (
    # arithmetic
    CommutativeBinary(
        "add", _add, "bool " + NUMBERS, "result = lhs + rhs; wraps; booleans: or.",
        linear="together", neutral="zero",
    ),
    Binary("subtract", np.subtract, NUMBERS, "result = lhs - rhs; wraps.", linear="together"),
    CommutativeBinary(
        "multiply", np.multiply, "bool " + NUMBERS, "result = lhs * rhs; wraps; booleans: and.",
        linear="separately", neutral="one",
    ),
    Binary(
        "divide", numerics.divide, NUMBERS,
        "result = lhs / rhs; integers truncate towards zero, division by zero gives all ones.",
        cost_class="division",
    ),
    Binary(
        "remainder", numerics.remainder, "int uint float",
        "result = lhs - rhs * truncate(lhs / rhs); integers: lhs where rhs is zero.",
        cost_class="division",
    ),
    Binary(
        "power", numerics.power, NUMBERS,
        "result = lhs to the rhs; integers wrap, negative exponents truncate.", domain="infinite",
        cost_class="transcendental",
    ),
    CommutativeBinary(
        "maximum", numerics.maximum, "bool " + NUMBERS,
        "result = the larger of lhs and rhs; NaN if either is NaN; max(-0, +0) = +0.",
        idempotent=True, neutral="lowest",
    ),
    CommutativeBinary(
        "minimum", numerics.minimum, "bool " + NUMBERS,
        "result = the smaller of lhs and rhs; NaN if either is NaN; min(-0, +0) = -0.",
        idempotent=True, neutral="highest",
    ),
    Binary(
        "atan2", _atan2, FLOATS, "result = angle of the point (rhs, lhs).", domain="ordered",
        cost_class="transcendental",
    ),
    # logic and bits
    CommutativeBinary(
        "and", np.bitwise_and, BITS, "result = lhs & rhs.", idempotent=True, neutral="ones"
    ),
    CommutativeBinary(
        "or", np.bitwise_or, BITS, "result = lhs | rhs.", idempotent=True, neutral="zero"
    ),
    CommutativeBinary("xor", np.bitwise_xor, BITS, "result = lhs ^ rhs.", neutral="zero"),
    Unary("not", _not, BITS, "result = ~operand."),
    Shift(
        "shift_left", numerics.shift_left, "int uint",
        "result = lhs << rhs; 0 where rhs reaches the width.",
    ),
    Shift(
        "shift_right_arithmetic", numerics.shift_right_arithmetic, "int uint",
        "result = lhs >> rhs with copies of the sign.",
    ),
    Shift(
        "shift_right_logical", numerics.shift_right_logical, "int uint",
        "result = lhs >> rhs with zeros.",
    ),
    BitCount("popcnt", _count_ones, "int uint", "result = number of ones among operand's bits."),
    BitCount(
        "count_leading_zeros", _count_leading_zeros, "int uint",
        "result = number of zeros above the highest one.",
    ),
    # one operand
    Unary("negate", _negate, NUMBERS, "result = -operand; wraps.", linear="together"),
    Unary("sign", numerics.sign, "int float complex", "result = -1, 0 or 1; operand / |operand|."),
    Unary("ceil", np.ceil, "float", "result = smallest integer >= operand."),
    Unary("floor", np.floor, "float", "result = largest integer <= operand."),
    Unary(
        "round_nearest_even", np.rint, "float", "result = nearest integer, ties to the even one."
    ),
    Unary(
        "round_nearest_afz", numerics.round_half_away, "float",
        "result = nearest integer, ties away from zero.",
    ),
    IsFinite("is_finite", np.isfinite, "float", "result = operand is neither infinite nor NaN."),
    # transcendental
    Unary(
        "exponential", complex_functions.exponential, FLOATS, "result = e to the operand.",
        cost_class="transcendental",
    ),
    Unary(
        "exponential_minus_one", complex_functions.exponential_minus_one, FLOATS,
        "result = e to the operand, minus 1.", cost_class="transcendental",
    ),
    Unary("log", np.log, FLOATS, "result = natural logarithm.", cost_class="transcendental"),
    Unary(
        "log_plus_one", complex_functions.log_plus_one, FLOATS, "result = log(1 + operand).",
        cost_class="transcendental",
    ),
    Unary(
        "logistic", _logistic, FLOATS, "result = 1 / (1 + exp(-operand)).",
        cost_class="transcendental",
    ),
    Unary("tanh", np.tanh, FLOATS, "result = hyperbolic tangent.", cost_class="transcendental"),
    Unary("sine", np.sin, FLOATS, "result = sine.", domain="finite", cost_class="transcendental"),
    Unary(
        "cosine", np.cos, FLOATS, "result = cosine.", domain="finite", cost_class="transcendental",
    ),
    Unary("tan", np.tan, FLOATS, "result = tangent.", domain="finite", cost_class="transcendental"),
    Unary("sqrt", np.sqrt, FLOATS, "result = square root.", cost_class="division"),
    Unary("rsqrt", _rsqrt, FLOATS, "result = 1 / square root.", cost_class="division"),
    Unary("cbrt", _cbrt, FLOATS, "result = cube root.", cost_class="transcendental"),
)  # fmt: skip
