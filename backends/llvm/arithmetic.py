"""Elementwise operations on registers: one function per operation, the same code for any width.

The meaning of corner cases is the rooms' (`hlo/ops/numerics.py`): integers wrap, x / 0 is all
ones, shifts past the width give 0, conversions from float truncate and saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign
from typing import Any

from ...hlo.errors import UnsupportedError
from ...hlo.graph import Op
from ..capabilities import Formulas
from . import (
    Function,
    Value,
    bits_of,
    circular,
    complex_math,
    constant,
    elements,
    integers,
    mangled,
    math,
    vector,
)
from .elements import Pair, Register, is_rounded, register_type, rounded, wrapped

_PREDICATES = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def short_name(op: Op) -> str:
    """The operation's name without a dialect."""
    return op.name.rsplit(".", 1)[-1]


def apply(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    """The operation on registers of equal lanes; UnsupportedError if there is no code for it."""
    name = short_name(op)
    element = op.operands[0].element if op.operands else op.type.element
    if name in _TYPED:
        return _TYPED[name](f, op, operands)
    if element.is_complex:
        result = complex_math.apply(f, name, operands)
        if result is not None:
            return result
        raise unsupported(op)
    table = _FLOAT if element.is_float else _BOOL if element.is_bool else integers.FUNCTIONS
    rule = table.get(name)
    if rule is None:
        raise unsupported(op)
    if element.is_float:
        result = rule(f, *operands)
        if name not in _EXACT and is_rounded(element):
            return rounded(f, result, element)
        return result
    if element.is_bool:
        return rule(f, *operands)
    return wrapped(f, rule(f, element, *operands), element)


def supports(op: Op) -> bool:
    """Whether `apply` has code for the operation."""
    return FORMULAS.has(op)


def unsupported(op: Op, target: str = "cpu") -> UnsupportedError:
    """The error for an operation that a target has no code for."""
    operands = ", ".join(str(value.type) for value in op.operands)
    return UnsupportedError(
        f"{op.place}{op.name}: target {target} has no code for {op.name}({operands})"
    )


# Operations whose operands and result differ in type.


def _compare(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    left, right = operands
    element = op.operands[0].element
    direction = op.attributes["comparison_direction"]
    if isinstance(left, Pair):
        assert isinstance(right, Pair)
        return _compare_pairs(f, direction, left, right)
    assert isinstance(right, Value)
    predicate = _PREDICATES[direction]
    if element.is_float:
        if op.attributes.get("compare_type") == "TOTALORDER":
            left, right = _total_order(f, left), _total_order(f, right)
            return f.compare(_integer_predicate(predicate, True), left, right)
        return f.compare(("u" if predicate == "ne" else "o") + predicate, left, right)
    return f.compare(_integer_predicate(predicate, element.kind == "int"), left, right)


def _integer_predicate(predicate: str, signed: bool) -> str:
    return predicate if predicate in ("eq", "ne") else ("s" if signed else "u") + predicate


def _compare_pairs(f: Function, direction: str, left: Pair, right: Pair) -> Value:
    level = f.compare("oeq", left[0], right[0])
    if direction in ("EQ", "NE"):
        same = f.land(level, f.compare("oeq", left[1], right[1]))
        return same if direction == "EQ" else f.lnot(same)
    strict = "o" + _PREDICATES[direction][:1] + "t"
    beyond = f.compare("o" + _PREDICATES[direction], left[1], right[1])
    return f.lor(f.compare(strict, left[0], right[0]), f.land(level, beyond))


def _total_order(f: Function, value: Value) -> Value:
    bits = _integer_bits(f, value)
    width = bits_of(bits.type)
    flipped = f.xor(bits, (1 << (width - 1)) - 1)
    return f.select(f.compare("slt", bits, 0), flipped, bits)


def _select(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    predicate, yes, no = operands
    assert isinstance(predicate, Value)
    return select(f, predicate, yes, no)


def select(f: Function, condition: Value, yes: Register, no: Register) -> Register:
    """yes where the condition holds, else no."""
    if isinstance(yes, Pair) and isinstance(no, Pair):
        return Pair(f.select(condition, yes[0], no[0]), f.select(condition, yes[1], no[1]))
    assert isinstance(yes, Value) and isinstance(no, Value)
    return f.select(condition, yes, no)


def _clamp(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    low, value, high = operands
    if isinstance(value, Pair):
        raised = complex_math.apply(f, "maximum", [value, low])
        assert raised is not None
        lowered = complex_math.apply(f, "minimum", [raised, high])
        assert lowered is not None
        return lowered
    assert isinstance(low, Value) and isinstance(value, Value) and isinstance(high, Value)
    element = op.operands[1].element
    if element.is_float:
        return minimum(f, maximum(f, value, low), high)
    if element.is_bool:
        return f.land(f.lor(value, low), high)
    signed = element.kind == "int"
    return f.min(f.max(value, low, signed=signed), high, signed=signed)


def _convert(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    return convert(f, operands[0], op.operands[0].element, op.result.element)


def convert(f: Function, value: Register, source: Any, target: Any) -> Register:
    """A register of another element type."""
    if source is target:
        return value
    if isinstance(value, Pair):
        part = elements.real(source)
        if target.is_complex:
            parts = (convert(f, one, part, elements.real(target)) for one in value)
            return Pair(*parts)  # type: ignore[arg-type]
        return convert(f, value.real, part, target)
    if target.is_complex:
        real = convert(f, value, source, elements.real(target))
        assert isinstance(real, Value)
        return Pair(real, constant(real.type, 0.0))
    if target.is_bool:
        return f.compare("une" if source.is_float else "ne", value, 0.0 if source.is_float else 0)
    kind = register_type(target)
    if source.is_float:
        if target.is_float:
            return _float_to_float(f, value, target)
        return _float_to_integer(f, value, target)
    if target.is_float:
        return _integer_to_float(f, value, source, target)
    if bits_of(kind) <= bits_of(value.type):
        narrow = f.cast("trunc", value, kind)
    else:
        narrow = f.cast("sext" if source.kind == "int" else "zext", value, kind)
    return wrapped(f, narrow, target)


def _float_to_float(f: Function, value: Value, target: Any) -> Value:
    kind = register_type(target)
    if kind == "double":
        return f.cast("fpext", value, "double")
    if value.element == "double":
        if is_rounded(target):
            value = _to_odd(f, value)
        else:
            value = f.cast("fptrunc", value, "float")
    return rounded(f, value, target)


def _to_odd(f: Function, value: Value) -> Value:
    """f64 -> f32 where an inexact result is made odd, so that rounding again is harmless."""
    near = f.cast("fptrunc", value, "float")
    back = f.cast("fpext", near, "double")
    bits = _integer_bits(f, near)
    size, back_size = math.absolute(f, value), math.absolute(f, back)
    # Towards zero, then the lowest bit set: the code of a magnitude grows with it.
    down = f.select(f.compare("ogt", back_size, size), f.sub(bits, 1), bits)
    odd = f.lor(down, 1)
    inexact = f.compare("one", value, back)
    return f.bitcast(f.select(inexact, odd, bits), near.type)


def _float_to_integer(f: Function, value: Value, target: Any) -> Value:
    signed = target.kind == "int"
    bits = max(32, target.bits)
    result = vector(value.lanes, f"i{bits}")
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{mangled(result)}"
    whole = f.intrinsic(name, value.type, value, returns=result)
    if target.bits >= 32:
        return whole
    low = -(1 << (target.bits - 1)) if signed else 0
    high = (1 << (target.bits - (1 if signed else 0))) - 1
    whole = f.min(f.max(whole, low, signed=signed), high, signed=signed)
    return f.cast("trunc", whole, register_type(target))


def _integer_to_float(f: Function, value: Value, source: Any, target: Any) -> Value:
    opcode = "sitofp" if source.kind == "int" else "uitofp"
    if not is_rounded(target):
        return f.cast(opcode, value, register_type(target))
    if source.bits <= 16:
        return rounded(f, f.cast(opcode, value, "float"), target)
    if source.bits == 64:
        value = _sticky(f, value, source.kind == "int")
    return rounded(f, _to_odd(f, f.cast(opcode, value, "double")), target)


def _sticky(f: Function, value: Value, signed: bool) -> Value:
    """A 64-bit integer with its low bits merged into one where f64 could not hold it."""
    rest = f.compare("ne", f.land(value, 0xFFF), 0)
    merged = f.lor(f.land(value, ~0xFFF), f.shl(f.cast("zext", rest, "i64"), 12))
    size = integers.absolute(f, value) if signed else value
    return f.select(f.compare("ugt", size, 1 << 53), merged, value)


def _is_finite(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    (value,) = operands
    assert isinstance(value, Value)
    return f.compare("olt", math.absolute(f, value), float("inf"))


def _real(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    return operands[0].real if isinstance(operands[0], Pair) else operands[0]


def _imaginary(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    value = operands[0]
    return value.imaginary if isinstance(value, Pair) else constant(value.type, 0.0)


def _complex(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    real, imaginary = operands
    assert isinstance(real, Value) and isinstance(imaginary, Value)
    return Pair(real, imaginary)


def _reduce_precision(f: Function, op: Op, operands: Sequence[Register]) -> Register:
    """Nearest even to fewer mantissa bits; exponents out of range become inf or zero."""
    (value,) = operands
    assert isinstance(value, Value)
    exponent_bits, mantissa_bits = op.attributes["exponent_bits"], op.attributes["mantissa_bits"]
    total, own = (64, 52) if value.element == "double" else (32, 23)
    own_exponent = total - 1 - own
    bits = _integer_bits(f, value)
    sign_bit = -(1 << (total - 1))
    sign = f.land(bits, sign_bit)
    result = bits
    if mantissa_bits < own:
        drop = own - mantissa_bits
        odd = f.land(f.lshr(bits, drop), 1)
        result = f.add(f.add(bits, (1 << (drop - 1)) - 1), odd)
        result = f.land(result, -(1 << drop))
    if exponent_bits < min(own_exponent, elements.exponent_bits(op.operands[0].element)):
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (own_exponent - 1)) - 1
        exponent = f.land(result, ((1 << own_exponent) - 1) << own)
        infinity = f.lor(sign, ((1 << own_exponent) - 1) << own)
        over = f.compare("ugt", exponent, (own_bias + bias) << own)
        under = f.compare("ule", exponent, (own_bias - bias) << own)
        result = f.select(over, infinity, f.select(under, sign, result))
    if op.operands[0].element.name == "f16" and mantissa_bits < 10 and exponent_bits >= 5:
        # f16's subnormal numbers, which f32 has as normal ones, have the last bit of its least.
        shift = constant(value.type, 1.5 * 2.0 ** (own - 14 - mantissa_bits))
        rounded = _integer_bits(f, f.sub(f.add(value, shift), shift))
        small = f.compare("ult", f.land(bits, ~sign_bit), 113 << own)
        result = f.select(small, f.lor(sign, f.land(rounded, ~sign_bit)), result)
    nan = bits
    if mantissa_bits == 0:
        # No mantissa is left to tell NaN from infinity.
        nan = f.lor(sign, ((1 << own_exponent) - 1) << own)
    result = f.select(f.compare("uno", value, value), nan, result)
    return f.bitcast(result, value.type)


_TYPED: dict[str, Callable[[Function, Op, Sequence[Register]], Register]] = {
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "is_finite": _is_finite,
    "real": _real,
    "imag": _imaginary,
    "complex": _complex,
    "reduce_precision": _reduce_precision,
}


# Floats.


def _integer_bits(f: Function, value: Value) -> Value:
    return f.bitcast(value, vector(value.lanes, f"i{bits_of(value.type)}"))


def maximum(f: Function, x: Value, y: Value) -> Value:
    """The larger; NaN if either is NaN; +0 over -0."""
    if x.number is not None:
        x, y = y, x
    plain = y.number is not None and y.number == y.number
    if plain and not elements.has_extremes(f, x.type):
        if y.number == 0 and copysign(1.0, y.number) > 0:
            return f.select(f.compare("ole", x, y), y, x)
        return f.select(f.compare("ogt", y, x), y, x)
    return f.intrinsic("llvm.maximum", x.type, x, y)


def minimum(f: Function, x: Value, y: Value) -> Value:
    """The smaller; NaN if either is NaN; -0 over +0."""
    if x.number is not None:
        x, y = y, x
    plain = y.number is not None and y.number == y.number and y.number != 0
    if plain and not elements.has_extremes(f, x.type):
        return f.select(f.compare("olt", y, x), y, x)
    return f.intrinsic("llvm.minimum", x.type, x, y)


def _sign(f: Function, x: Value) -> Value:
    one = f.intrinsic("llvm.copysign", x.type, constant(x.type, 1.0), x)
    return f.select(f.compare("one", x, 0.0), one, x)


def _rsqrt(f: Function, x: Value) -> Value:
    return f.div(1.0, math.sqrt(f, x))


_EXACT = frozenset(
    ("negate", "abs", "maximum", "minimum", "sign", "floor", "ceil", "round_nearest_even",
     "round_nearest_afz", "remainder")
)  # fmt: skip

_FLOAT: dict[str, Callable[..., Value]] = {
    "add": Function.add,
    "subtract": Function.sub,
    "multiply": Function.mul,
    "divide": Function.div,
    "negate": Function.neg,
    "abs": math.absolute,
    "maximum": maximum,
    "minimum": minimum,
    "sign": _sign,
    "rsqrt": _rsqrt,
    **math.FUNCTIONS,
    **circular.FUNCTIONS,
}


# Booleans.

_BOOL: dict[str, Callable[..., Value]] = {
    "and": Function.land,
    "or": Function.lor,
    "xor": Function.xor,
    "not": Function.lnot,
    "add": Function.lor,
    "multiply": Function.land,
    "maximum": Function.lor,
    "minimum": Function.land,
}

FORMULAS = Formulas(
    *map(frozenset, (_TYPED, _FLOAT, _BOOL, integers.FUNCTIONS, complex_math.NAMES))
)
