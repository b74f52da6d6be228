"""How elements of each type lie in memory and in registers.

Registers hold what arithmetic is done in: f16, bf16 and smaller floats as f32 that are exactly
representable, sub-byte integers as i8 in their range, booleans as i1, complex numbers as `Pair`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes

from ...hlo import types
from .. import llvm
from . import Function, Value, bits_of, constant, lanes_of, vector


class Pair(NamedTuple):
    """A complex number, or a vector of them."""

    real: Value
    imaginary: Value


Register = Value | Pair


class SmallFloat(NamedTuple):
    """A float of 8 bits or fewer: exponent bias, mantissa bits, and how it spells special values.

    `special` is "ieee" (all-ones exponents are inf and NaN), "nan" (only the all-ones code is
    NaN), "zero" (the code of -0 is NaN) or "finite" (none; conversion saturates).
    """

    bits: int
    mantissa: int
    bias: int
    special: str

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def largest(self) -> int:
        """The code of the largest finite magnitude."""
        last = self.sign - 1
        if self.special == "ieee":
            return last - (1 << self.mantissa)
        return last - 1 if self.special == "nan" else last


SMALL_FLOATS = {
    types.F8E5M2: SmallFloat(8, 2, 15, "ieee"),
    types.F8E4M3: SmallFloat(8, 3, 7, "ieee"),
    types.F8E3M4: SmallFloat(8, 4, 3, "ieee"),
    types.F8E4M3FN: SmallFloat(8, 3, 7, "nan"),
    types.F8E4M3FNUZ: SmallFloat(8, 3, 8, "zero"),
    types.F8E5M2FNUZ: SmallFloat(8, 2, 16, "zero"),
    types.F8E4M3B11FNUZ: SmallFloat(8, 3, 11, "zero"),
    types.F6E2M3FN: SmallFloat(6, 3, 1, "finite"),
    types.F6E3M2FN: SmallFloat(6, 2, 3, "finite"),
    types.F4E2M1FN: SmallFloat(4, 1, 1, "finite"),
}

_MEMORY = {types.F32: "float", types.F64: "double", types.BF16: "i16", types.I1: "i8"}


def real(element: Any) -> Any:
    """The element type of one part of a complex element; other elements are their own."""
    return types.real_type(element)


def memory_type(f: Function, element: Any) -> str:
    """The LLVM type of one element in memory (of one part, for complex elements)."""
    element = real(element)
    if element is types.F16:
        return "half" if _native_half(f) else "i16"
    found = _MEMORY.get(element)
    return found or f"i{max(8, element.itemsize * 8)}"


def register_type(element: Any) -> str:
    """The LLVM type of one element in a register (of one part, for complex elements)."""
    element = real(element)
    if element.is_float:
        return "double" if element is types.F64 else "float"
    return "i1" if element.is_bool else f"i{max(8, element.bits)}"


def exponent_bits(element: Any) -> int:
    """How many bits of a float are its exponent."""
    return ml_dtypes.finfo(element.dtype).nexp


def is_rounded(element: Any) -> bool:
    """Whether registers hold more bits than the element has, so that arithmetic must round."""
    return element.is_float and element not in (types.F32, types.F64)


def _native_half(f: Function) -> bool:
    attributes = f.module.attributes
    return _is_gpu(f) or "+f16c" in attributes or "+neon" in attributes


def _is_gpu(f: Function) -> bool:
    return f.module.architecture == "nvptx64"


def has_extremes(f: Function, kind: str) -> bool:
    """Whether one instruction gives the larger or smaller of two floats of an LLVM type, or NaN."""
    return _is_gpu(f) and llvm.element_of(kind) == "float"


def widen(f: Function, raw: Value, element: Any) -> Value:
    """Memory form -> register form, of one part."""
    element = real(element)
    if element is types.BF16:
        return _float_of(f, f.shl(f.cast("zext", raw, "i32"), 16))
    if element is types.F16:
        return f.cast("fpext", raw, "float") if raw.element == "half" else _from_half(f, raw)
    if element.is_bool:
        return f.compare("ne", raw, 0)
    if element.is_integer and element.bits < 8:
        left = f.shl(raw, 8 - element.bits)
        return (f.ashr if element.kind == "int" else f.lshr)(left, 8 - element.bits)
    if element is types.F8E8M0FNU:
        return _from_scale(f, raw)
    small = SMALL_FLOATS.get(element)
    return _from_small(f, raw, small) if small else raw


def narrow(f: Function, value: Value, element: Any) -> Value:
    """Register form -> memory form, of one part. A bf16 must be `rounded` already."""
    element = real(element)
    if element is types.BF16:
        return f.cast("trunc", f.lshr(_bits_of(f, value), 16), "i16")
    if element is types.F16:
        return f.cast("fptrunc", value, "half") if _native_half(f) else _to_half(f, value)
    if element.is_bool:
        return f.cast("zext", value, "i8")
    if element.is_integer and element.bits < 8:
        return f.land(value, (1 << element.bits) - 1)
    if element is types.F8E8M0FNU:
        return _to_scale(f, value)
    small = SMALL_FLOATS.get(element)
    return _to_small(f, value, small) if small else value


def rounded(f: Function, value: Value, element: Any) -> Value:
    """An f32 rounded to nearest even into the element's values, still in f32."""
    if element is types.BF16:
        if _is_gpu(f) or "+avx512bf16" in f.module.attributes:
            # A CPU's instruction takes subnormal numbers as zero: only kernels whose products do so
            # too are compiled with it (specs/numerics.md).
            raw = f.cast("fptrunc", value, "bfloat")
            return widen(f, f.bitcast(raw, vector(value.lanes, "i16")), element)
        return _round_bfloat(f, value)
    if not is_rounded(element):
        return value
    return widen(f, narrow(f, value, element), element)


def wrapped(f: Function, value: Value, element: Any) -> Value:
    """An integer brought back into the range of a sub-byte type."""
    if not (element.is_integer and element.bits < 8):
        return value
    left = f.shl(value, 8 - element.bits)
    return (f.ashr if element.kind == "int" else f.lshr)(left, 8 - element.bits)


def register_constant(element: Any, number: Any, width: int) -> Register:
    """A numpy scalar in every lane."""
    kind = vector(width, register_type(element))
    if element.is_complex:
        return Pair(constant(kind, float(number.real)), constant(kind, float(number.imag)))
    if element.is_float:
        return constant(kind, float(number))
    if element.is_bool:
        return constant(kind, bool(number))
    return constant(kind, int(number))


# Small floats. Exponents are rebased by a multiplication, which also handles subnormals.


def _float_of(f: Function, bits: Value) -> Value:
    return f.bitcast(bits, vector(lanes_of(bits.type), "float"))


def _bits_of(f: Function, value: Value) -> Value:
    return f.bitcast(value, vector(value.lanes, f"i{bits_of(value.type)}"))


def _round_bfloat(f: Function, value: Value) -> Value:
    """Nearest even in the upper 16 bits; NaN stays NaN."""
    bits = _bits_of(f, value)
    odd = f.land(f.lshr(bits, 16), 1)
    near = f.land(f.add(f.add(bits, 0x7FFF), odd), -0x10000)
    quiet = f.land(f.lor(bits, 0x400000), -0x10000)
    return _float_of(f, f.select(f.compare("uno", value, value), quiet, near))


def _from_half(f: Function, raw: Value) -> Value:
    small = SmallFloat(16, 10, 15, "ieee")
    return _from_small(f, raw, small)


def _to_half(f: Function, value: Value) -> Value:
    return _to_small(f, value, SmallFloat(16, 10, 15, "ieee"))


def _from_small(f: Function, raw: Value, small: SmallFloat) -> Value:
    wide = f.cast("zext", raw, "i32")
    magnitude = f.land(wide, small.sign - 1)
    sign = f.shl(f.land(wide, small.sign), 32 - small.bits)
    scale = 2.0 ** (127 - small.bias)
    value = f.mul(_float_of(f, f.shl(magnitude, 23 - small.mantissa)), scale)
    bits = f.lor(_bits_of(f, value), sign)
    if small.special == "ieee":
        infinite = small.largest + 1
        payload = f.shl(f.sub(magnitude, infinite), 23 - small.mantissa)
        special = f.lor(f.lor(payload, 0x7F800000), sign)
        bits = f.select(f.compare("uge", magnitude, infinite), special, bits)
    elif small.special == "nan":
        bits = f.select(f.compare("ugt", magnitude, small.largest), f.lor(sign, 0x7FC00000), bits)
    elif small.special == "zero":
        bits = f.select(f.compare("eq", wide, small.sign), -0x400000, bits)
    return _float_of(f, bits)


def _to_small(f: Function, value: Value, small: SmallFloat) -> Value:
    bits = _bits_of(f, value)
    magnitude = f.land(bits, 0x7FFFFFFF)
    drop = 23 - small.mantissa
    rebased = f.sub(magnitude, (127 - small.bias) << 23)
    odd = f.land(f.lshr(rebased, drop), 1)
    normal = f.lshr(f.add(f.add(rebased, (1 << (drop - 1)) - 1), odd), drop)
    # Below the smallest normal number, adding 2**k leaves the rounded code in the low bits.
    shifter = constant(value.type, 2.0 ** (drop + 1 - small.bias))
    tiny = f.sub(_bits_of(f, f.add(_float_of(f, magnitude), shifter)), _number_bits(shifter))
    smallest_normal = (128 - small.bias) << 23
    code = f.select(f.compare("ult", magnitude, smallest_normal), tiny, normal)
    nan = f.compare("ugt", magnitude, 0x7F800000)
    over = f.compare("ugt", code, small.largest)
    if small.special == "finite":
        code = f.select(f.lor(over, nan), small.largest, code)
        code = f.select(nan, 0, code)
        sign_too = f.lnot(nan)
    elif small.special == "ieee":
        code = f.select(over, small.largest + 1, code)
        code = f.select(nan, (small.sign - 1) & ~((1 << (small.mantissa - 1)) - 1), code)
        sign_too = None
    elif small.special == "nan":
        code = f.select(f.lor(over, nan), small.sign - 1, code)
        sign_too = None
    else:
        code = f.select(f.lor(over, nan), small.sign, code)
        # Zero has one sign only, and NaN's code is the sign bit alone.
        sign_too = f.land(f.compare("ne", code, 0), f.compare("ne", code, small.sign))
    sign = f.land(f.lshr(bits, 32 - small.bits), small.sign)
    if sign_too is not None:
        sign = f.select(sign_too, sign, 0)
    if small.special == "finite":
        # ml_dtypes' convention: NaN becomes the code of -0.
        sign = f.select(nan, small.sign, sign)
    return f.cast("trunc", f.lor(code, sign), "i16" if small.bits == 16 else "i8")


def _number_bits(value: Value) -> Value:
    assert value.number is not None
    text = llvm.literal("float", value.number)
    wide = int(text, 16)
    # f32 powers of two written as f64 bits: rebias the exponent.
    return constant(vector(value.lanes, "i32"), ((wide >> 52) - 1023 + 127) << 23)


def _from_scale(f: Function, raw: Value) -> Value:
    """E8M0: 2**(code - 127), NaN for 255."""
    code = f.cast("zext", raw, "i32")
    bits = f.select(f.compare("eq", code, 0), 0x400000, f.shl(code, 23))
    return _float_of(f, f.select(f.compare("eq", code, 255), 0x7FC00000, bits))


def _to_scale(f: Function, value: Value) -> Value:
    bits = _bits_of(f, value)
    magnitude = f.land(bits, 0x7FFFFFFF)
    code = f.lshr(f.add(magnitude, 0x3FFFFF + 1), 23)
    tie_down = f.compare("eq", f.land(magnitude, 0x7FFFFF), 0x400000)
    even = f.compare("eq", f.land(f.lshr(magnitude, 23), 1), 0)
    code = f.select(f.land(tie_down, even), f.lshr(magnitude, 23), code)
    bad = f.lor(f.compare("uno", value, value), f.compare("ole", value, 0.0))
    code = f.select(f.lor(bad, f.compare("ugt", code, 254)), 255, code)
    return f.cast("trunc", code, "i8")
