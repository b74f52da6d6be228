"""Arithmetic of f32 and f64; narrow floats go through `packed`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import numerics
from .syntax import Instruction
from .table import expression
from .translate import Emitter, kind_of

_TYPES = ("f32", "f64")
MODES = ("rn", "rz", "rm", "rp")


def _forms(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}:{type_}" for name in names for type_ in _TYPES)


def mode_of(i: Instruction, default: str = "rn") -> str:
    return next((part for part in i.parts if part in MODES), default)


def _operands(e: Emitter, i: Instruction, kind: str) -> list[str]:
    e.only(i, *MODES, "ftz", "sat", "approx", "full", "NaN", "xorsign", "abs")
    sources = [e.use(operand, kind) for operand in i.operands[1:]]
    if "ftz" in i.parts and kind == "f4":
        sources = [f"{e.helper(numerics.flush)}({source})" for source in sources]
    return sources


def _finish(e: Emitter, i: Instruction, kind: str, source: str) -> None:
    if "ftz" in i.parts and kind == "f4":
        source = f"{e.helper(numerics.flush)}({source})"
    if "sat" in i.parts:
        source = f"{e.helper(numerics.saturate)}({source})"
    e.define(i.operands[0], kind, source)


def directed(a: Any, b: Any, c: Any, mode: str) -> Any:
    """a * b + c of float32 in a rounding mode."""
    exact = numerics.fused(a, b, c)
    result = numerics.narrow_f4(exact, mode)
    if mode == "rm":  # an exact zero is -0, but where product and addend are both +0
        product = a.astype(np.float64) * b
        negative = (product != 0) | np.signbit(product) | np.signbit(c)
        result = np.where((exact == 0) & negative, np.float32(-0.0), result)
    return result


def _rounded(e: Emitter, i: Instruction, kind: str, a: str, b: str, c: str) -> None:
    mode = mode_of(i)
    if kind == "f8":
        source = f"{e.helper(numerics.fma_f8_directed)}({a}, {b}, {c}, {mode!r})"
    else:
        source = f"{e.helper(directed)}({a}, {b}, {c}, {mode!r})"
    _finish(e, i, kind, source)


@expression(*_forms("add", "sub", "mul"))
def arithmetic(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    a, b = _operands(e, i, kind)
    if mode_of(i) != "rn":
        bits = {"f4": (0x3F800000, 0x80000000), "f8": (0x3FF << 52, 1 << 63)}[kind]
        one, zero = e.constant(kind, bits[0]), e.constant(kind, bits[1])
        if i.parts[0] == "mul":
            # -0 as the addend leaves the sign of a product that is 0, except -0 - 0 in mode rm
            return _rounded(e, i, kind, a, b, f"np.copysign({zero}, {a} * {b})")
        return _rounded(e, i, kind, a, one, b if i.parts[0] == "add" else f"(-{b})")
    sign = {"add": "+", "sub": "-", "mul": "*"}[i.parts[0]]
    _finish(e, i, kind, f"{a} {sign} {b}")


@expression(*_forms("fma", "mad"))
def fma(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    a, b, c = _operands(e, i, kind)
    if mode_of(i) != "rn":
        return _rounded(e, i, kind, a, b, c)
    helper = e.helper(numerics.fma_f4 if kind == "f4" else numerics.fma_f8)
    _finish(e, i, kind, f"{helper}({a}, {b}, {c})")


def divided(a: Any, b: Any, mode: str) -> Any:
    """a / b of float32 in a directed mode."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return numerics.narrow_f4(np.asarray(numerics.divide_f8_directed(x, y, mode)), mode)


def rooted(a: Any, mode: str) -> Any:
    x = np.asarray(a, np.float64)
    root = numerics.divide_f8_directed(x, np.float64(1), mode, square_root=True)
    return numerics.narrow_f4(np.asarray(root), mode)


@expression(*_forms("div"))
def divide(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    a, b = _operands(e, i, kind)
    mode = mode_of(i)
    if mode == "rn":
        return _finish(e, i, kind, f"{a} / {b}")
    function = divided if kind == "f4" else numerics.divide_f8_directed
    _finish(e, i, kind, f"{e.helper(function)}({a}, {b}, {mode!r})")


@expression(*_forms("sqrt", "rcp"))
def root_or_reciprocal(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    (a,) = _operands(e, i, kind)
    mode = mode_of(i)
    one = e.constant(kind, 0x3F800000 if kind == "f4" else 0x3FF << 52)
    if i.parts[0] == "sqrt":
        if mode == "rn":
            source = f"np.sqrt({a})"
        elif kind == "f4":
            source = f"{e.helper(rooted)}({a}, {mode!r})"
        else:
            helper = e.helper(numerics.divide_f8_directed)
            source = f"{helper}({a}, {one}, {mode!r}, True)"
    elif mode == "rn":
        source = f"{one} / {a}"
    else:
        function = divided if kind == "f4" else numerics.divide_f8_directed
        source = f"{e.helper(function)}({one}, {a}, {mode!r})"
    _finish(e, i, kind, source)


@expression(*_forms("neg", "abs"))
def sign_change(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    (a,) = _operands(e, i, kind)
    _finish(e, i, kind, f"-{a}" if i.parts[0] == "neg" else f"np.abs({a})")


@expression(*_forms("copysign"))
def copy_sign(e: Emitter, i: Instruction) -> None:
    """The sign of the first source, the magnitude of the second."""
    kind = kind_of(i.parts[-1])
    a, b = _operands(e, i, kind)
    e.define(i.operands[0], kind, f"np.copysign({b}, {a})")


@expression(*_forms("min", "max"))
def extreme(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    operands = _operands(e, i, kind)
    names = []
    for operand in operands:
        name = e.fresh()
        e.line(f"{name} = {operand}")
        names.append(name)
    function = e.helper(numerics.minimum if i.parts[0] == "min" else numerics.maximum)
    source = names[0]
    for name in names[1:]:
        combined = f"{function}({source}, {name})"
        if "abs" in i.parts:
            combined = f"{function}(np.abs({source}), np.abs({name}))"
        if "NaN" in i.parts:
            combined = f"{e.helper(numerics.with_nan)}({combined}, {source}, {name})"
        if "xorsign" in i.parts:
            combined = f"{e.helper(numerics.xor_sign)}({combined}, {source}, {name})"
        source = e.fresh()
        e.line(f"{source} = {combined}")
    _finish(e, i, kind, source)


_FUNCTIONS = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def wide_function(name: str, a: Any) -> Any:
    """A function of float32 through float64."""
    return _FUNCTIONS[name](a.astype(np.float64)).astype(np.float32)


def reciprocal_root(a: Any) -> Any:
    return (1.0 / np.sqrt(a.astype(np.float64))).astype(a.dtype)


@expression(*(f"{name}:f32" for name in _FUNCTIONS))
def approximate(e: Emitter, i: Instruction) -> None:
    (a,) = _operands(e, i, "f4")
    _finish(e, i, "f4", f"{e.helper(wide_function)}({i.parts[0]!r}, {a})")


@expression(*_forms("rsqrt"))
def rsqrt(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    (a,) = _operands(e, i, kind)
    _finish(e, i, kind, f"{e.helper(reciprocal_root)}({a})")


def has_property(name: str, a: Any) -> Any:
    small = np.abs(a) < np.finfo(a.dtype).tiny
    if name == "finite":
        return np.isfinite(a)
    if name == "infinite":
        return np.isinf(a)
    if name == "number":
        return ~np.isnan(a)
    if name == "notanumber":
        return np.isnan(a)
    if name == "normal":
        return np.isfinite(a) & ~small
    return small & (a != 0)


@expression("testp")
def testp(e: Emitter, i: Instruction) -> None:
    a = e.use(i.operands[1], kind_of(i.parts[-1]))
    e.define(i.operands[0], "b1", f"{e.helper(has_property)}({i.parts[1]!r}, {a})")
