"""Arithmetic of f16 and bf16, alone or two in a register, of f32x2, u16x2 and s16x2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import numerics
from .conversions import clear_negative, join, narrow
from .memory import DTYPES
from .syntax import Instruction
from .table import expression
from .translate import Emitter

_HALVES = ("f16", "bf16")
_PAIRS = ("f16x2", "bf16x2")


def _forms(*names: str, types: tuple[str, ...] = _HALVES + _PAIRS) -> tuple[str, ...]:
    return tuple(f"{name}:{type_}" for name in names for type_ in types)


def decode(bits: Any, half: str) -> Any:
    """u2 -> float32."""
    if half == "bf16":
        return numerics.from_bfloat(bits)
    return bits.view(np.float16).astype(np.float32)


def encode(value: Any, half: str) -> Any:
    """float32, or float64 rounded to odd, -> u2."""
    return np.asarray(narrow(value, half, "rn")).view(np.uint16)


def lower(pair: Any, half: str) -> Any:
    return decode(pair.astype(np.uint16), half)


def upper(pair: Any, half: str) -> Any:
    return decode((pair >> np.uint32(16)).astype(np.uint16), half)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": numerics.fused,
    "min": numerics.minimum,
    "max": numerics.maximum,
    "ex2": lambda a: np.exp2(a.astype(np.float64)).astype(np.float32),
    "tanh": lambda a: np.tanh(a.astype(np.float64)).astype(np.float32),
}


def calculate(name: str, half: str, flags: tuple[str, ...], *sources: Any) -> Any:
    """One operation on float32 values of a half type, as u2."""
    if "ftz" in flags and half == "f16":
        tiny = np.float32(2.0**-14)
        sources = tuple(
            np.where(np.abs(s) < tiny, np.copysign(np.float32(0), s), s) for s in sources
        )
    given = sources
    if "abs" in flags:
        given = tuple(np.abs(source) for source in sources)
    result = _FUNCTIONS[name](*given)
    if "NaN" in flags:
        result = numerics.with_nan(result, *sources)
    if "xorsign" in flags:
        result = numerics.xor_sign(result, *sources)
    if "sat" in flags:
        result = numerics.saturate(result)
    bits = encode(result, half)
    if "relu" in flags:
        bits = clear_negative(bits.view(np.float16) if half == "f16" else bits, half)
        bits = bits.view(np.uint16)
    return np.where(np.isnan(result), np.uint16(0x7FFF), bits)


def calculate_half(name: str, half: str, flags: tuple[str, ...], *sources: Any) -> Any:
    return calculate(name, half, flags, *(decode(s, half) for s in sources))


def calculate_pair(name: str, half: str, flags: tuple[str, ...], *sources: Any) -> Any:
    low = calculate(name, half, flags, *(lower(s, half) for s in sources))
    high = calculate(name, half, flags, *(upper(s, half) for s in sources))
    return join(low, high)


@expression(*_forms("add", "sub", "mul", "fma", "min", "max", "ex2", "tanh"))
def half_arithmetic(e: Emitter, i: Instruction) -> None:
    e.only(i, "rn", "approx", "ftz", "NaN", "xorsign", "abs", "sat", "relu")
    type_ = i.parts[-1]
    half = type_.removesuffix("x2")
    flags = tuple(p for p in i.parts[1:-1] if p in ("ftz", "NaN", "xorsign", "abs", "sat", "relu"))
    kind = "u4" if type_.endswith("x2") else "u2"
    function = e.helper(calculate_pair if kind == "u4" else calculate_half)
    sources = ", ".join(e.use(operand, kind) for operand in i.operands[1:])
    e.define(i.operands[0], kind, f"{function}({i.parts[0]!r}, {half!r}, {flags!r}, {sources})")


@expression(*_forms("neg", "abs"))
def half_sign(e: Emitter, i: Instruction) -> None:
    kind = "u4" if i.parts[-1].endswith("x2") else "u2"
    value = e.use(i.operands[1], kind)
    mask = 0x80008000 if kind == "u4" else 0x8000
    if i.parts[0] == "neg":
        return e.define(i.operands[0], kind, f"{value} ^ {e.constant(kind, mask)}")
    e.define(i.operands[0], kind, f"{value} & {e.constant(kind, ~mask)}")


def two_floats(name: str, *sources: Any) -> Any:
    """f32x2: one operation on both halves of u8."""
    parts = []
    for shift in (0, 32):
        values = [(s >> np.uint64(shift)).astype(np.uint32).view(np.float32) for s in sources]
        result = numerics.fma_f4(*values) if name == "fma" else _FUNCTIONS[name](*values)
        parts.append(np.asarray(result).view(np.uint32).astype(np.uint64) << np.uint64(shift))
    return parts[0] | parts[1]


@expression(*_forms("add", "sub", "mul", "fma", types=("f32x2",)))
def float_pairs(e: Emitter, i: Instruction) -> None:
    e.only(i, "rn")
    sources = ", ".join(e.use(operand, "u8") for operand in i.operands[1:])
    e.define(i.operands[0], "u8", f"{e.helper(two_floats)}({i.parts[0]!r}, {sources})")


def two_integers(name: str, kind: str, relu: bool, a: Any, b: Any) -> Any:
    """u16x2 or s16x2: one operation on both halves of u4."""
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[name]
    parts = []
    for shift in (0, 16):
        x, y = ((v >> np.uint32(shift)).astype(np.uint16).view(DTYPES[kind]) for v in (a, b))
        value = np.asarray(function(x, y))
        parts.append(np.maximum(value, value.dtype.type(0)) if relu else value)
    return join(*parts)


@expression(*_forms("add", "min", "max", types=("u16x2", "s16x2")))
def integer_pairs(e: Emitter, i: Instruction) -> None:
    e.only(i, "relu")
    kind = "u2" if i.parts[-1] == "u16x2" else "i2"
    a, b = e.use(i.operands[1], "u4"), e.use(i.operands[2], "u4")
    call = f"{e.helper(two_integers)}({i.parts[0]!r}, {kind!r}, {'relu' in i.parts}, {a}, {b})"
    e.define(i.operands[0], "u4", call)
