"""cvt: between all integer and floating types, with their roundings."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from . import numerics
from .memory import DTYPES
from .syntax import Immediate, Instruction
from .table import expression
from .translate import Emitter, kind_of

_FLOATS = frozenset(("f16", "bf16", "f32", "f64", "tf32"))
_BYTES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def kind(type_: str) -> str:
    """How values of a type lie in registers."""
    return {"bf16": "u2", "tf32": "f4"}.get(type_) or kind_of(type_)


def widen(a: Any, type_: str) -> Any:
    """Register bits -> float64 (float32 for bf16 and f32)."""
    if type_ == "bf16":
        return numerics.from_bfloat(a)
    return a if type_ in ("f32", "tf32") else a.astype(np.float64)


def to_integer(a: Any, target: str, mode: str) -> Any:
    """Float -> integer: clamped, NaN gives 0."""
    dtype = DTYPES[kind(target)]
    bounds = np.iinfo(dtype)
    whole = _WHOLE[mode](np.asarray(a, np.float64))
    low, high = float(bounds.min), float(bounds.max)
    inside = np.where((whole >= low) & (whole < high), whole, 0.0).astype(dtype)
    result = np.where(whole >= high, dtype.type(bounds.max), inside)
    result = np.where(whole < low, dtype.type(bounds.min), result)
    return np.where(np.isnan(whole), dtype.type(0), result)


def _odd_integer(a: Any) -> Any:
    """Integer -> float64 rounded to odd."""
    if a.dtype.itemsize < 8:
        return a.astype(np.float64)
    return numerics.odd(*_halves_sum(a))


def _halves_sum(a: Any) -> tuple[Any, Any]:
    """A 64-bit integer as the nearest float64 and the error of that."""
    high = (a >> a.dtype.type(32)).astype(np.float64) * 4294967296.0
    low = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return numerics.two_sum(high, low)


def from_integer(a: Any, target: str, mode: str) -> Any:
    """Integer -> float."""
    if target == "f64":
        near = a.astype(np.float64)
        if mode == "rn" or a.dtype.itemsize < 8:
            return near
        near, error = _halves_sum(a)
        down = (error < 0) & np.asarray((mode == "rm") | ((mode == "rz") & (near > 0)))
        up = (error > 0) & np.asarray((mode == "rp") | ((mode == "rz") & (near < 0)))
        near = np.where(down, np.nextafter(near, -np.inf), near)
        return np.where(up, np.nextafter(near, np.inf), near)
    if target == "f32" and mode == "rn":
        return a.astype(np.float32)
    return narrow(_odd_integer(a), target, mode)


def narrow(a: Any, target: str, mode: str) -> Any:
    """float32 or float64 (exact, or rounded to odd) -> the register bits of a float type."""
    if target == "f16":
        return numerics.to_half(a, mode)
    if target == "bf16":
        return numerics.to_bfloat(np.asarray(a), mode)
    if target == "f32":
        return numerics.narrow_f4(np.asarray(a, np.float64), mode)
    return np.asarray(a, np.float64)


def convert(a: Any, source: str, target: str, mode: str, saturated: bool, relu: bool) -> Any:
    """One value: register bits of type `source` -> register bits of type `target`."""
    if source not in _FLOATS:
        result = from_integer(a, target, mode)
    elif target not in _FLOATS:
        return to_integer(widen(a, source), target, mode)
    elif target == "tf32":
        result = numerics.to_tf32(a, mode)
    else:
        value = widen(a, source)
        if mode in _WHOLE:
            value = _WHOLE[mode](value)
            mode = "rn"
        if saturated:
            value = numerics.saturate(value)
        result = narrow(value, target, mode)
    if relu:
        result = clear_negative(result, target)
    return result.copy() if result is a else result


def clear_negative(bits: Any, type_: str) -> Any:
    """Negative numbers and -0 become 0, NaN stays."""
    if type_ == "bf16":
        number = (bits & np.uint16(0x7FFF)) <= np.uint16(0x7F80)
        return np.where(number & (bits >= np.uint16(0x8000)), np.uint16(0), bits)
    return np.where(bits <= 0, bits.dtype.type(0), bits)


def clamp_integer(a: Any, target: str) -> Any:
    bounds = np.iinfo(DTYPES[kind(target)])
    if a.dtype == np.uint64:
        return np.minimum(a, np.uint64(bounds.max)).astype(DTYPES[kind(target)])
    wide = a.astype(np.int64)
    if target == "u64":
        return np.maximum(wide, np.int64(0)).astype(np.uint64)
    return np.clip(wide, bounds.min, bounds.max).astype(DTYPES[kind(target)])


def to_byte(a: Any, type_: str, relu: bool) -> Any:
    """float32 -> the bits of an 8-bit float, finite values clamped, as u1."""
    value = np.asarray(a, np.float32)
    if relu:
        value = np.where(value < 0, np.float32(0), value)
    limit = np.float32(_LARGEST[type_])
    bits = np.clip(value, -limit, limit).astype(_BYTES[type_]).view(np.uint8)
    return np.where(np.isnan(value), np.uint8(0x7F), bits)


def from_byte(a: Any, type_: str) -> Any:
    """Bits of an 8-bit float (u1) -> float16."""
    return np.asarray(a, np.uint8).view(_BYTES[type_]).astype(np.float16)


def halves(a: Any) -> tuple[Any, Any]:
    """Low and high half of u4 as u2."""
    return a.astype(np.uint16), (a >> np.uint32(16)).astype(np.uint16)


def join(low: Any, high: Any) -> Any:
    """u2 or f2 halves -> u4."""
    low, high = np.asarray(low), np.asarray(high)
    upper = high.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return low.view(np.uint16).astype(np.uint32) | upper


def two_to_pair(high: Any, low: Any, type_: str, mode: str, saturated: bool, relu: bool) -> Any:
    """Two float32 -> f16x2 or bf16x2."""
    half = type_[:-2]
    if saturated:  # satfinite
        limit = np.float32(65504.0 if half == "f16" else 3.3895313892515355e38)
        high, low = np.clip(high, -limit, limit), np.clip(low, -limit, limit)
    upper = convert(high, "f32", half, mode, False, relu)
    return join(convert(low, "f32", half, mode, False, relu), upper)


def two_to_bytes(high: Any, low: Any, type_: str, relu: bool) -> Any:
    """Two float32 -> two 8-bit floats as u2."""
    upper = to_byte(high, type_, relu).astype(np.uint16) << np.uint16(8)
    return to_byte(low, type_, relu).astype(np.uint16) | upper


def pair_to_bytes(pair: Any, source: str, type_: str, relu: bool) -> Any:
    low, high = halves(pair)
    if source == "f16x2":
        low, high = (x.view(np.float16).astype(np.float32) for x in (low, high))
    else:
        low, high = numerics.from_bfloat(low), numerics.from_bfloat(high)
    return two_to_bytes(high, low, type_, relu)


def bytes_to_pair(pair: Any, type_: str, relu: bool) -> Any:
    """Two 8-bit floats in u2 -> f16x2."""
    low = from_byte(pair.astype(np.uint8), type_)
    high = from_byte((pair >> np.uint16(8)).astype(np.uint8), type_)
    if relu:
        low, high = clear_negative(low, "f16"), clear_negative(high, "f16")
    return join(low, high)


def _packed(e: Emitter, i: Instruction, target: str, source: str) -> bool:
    """Forms with two values; False where it is none."""
    mode = next((p for p in i.parts if p in ("rn", "rz", "rs")), "rn")
    if mode == "rs":
        raise e.error(i, "stochastic rounding is not simulated")
    relu, saturated = "relu" in i.parts, "satfinite" in i.parts
    d = i.operands[0]
    if target in ("f16x2", "bf16x2") and source == "f32":
        a, b = e.use(i.operands[1], "f4"), e.use(i.operands[2], "f4")
        call = f"{e.helper(two_to_pair)}({a}, {b}, {target!r}, {mode!r}, {saturated}, {relu})"
        e.define(d, "u4", call)
    elif target in ("e4m3x2", "e5m2x2") and source == "f32":
        a, b = e.use(i.operands[1], "f4"), e.use(i.operands[2], "f4")
        e.define(d, "u2", f"{e.helper(two_to_bytes)}({a}, {b}, {target[:4]!r}, {relu})")
    elif target in ("e4m3x2", "e5m2x2") and source in ("f16x2", "bf16x2"):
        a = e.use(i.operands[1], "u4")
        e.define(d, "u2", f"{e.helper(pair_to_bytes)}({a}, {source!r}, {target[:4]!r}, {relu})")
    elif target == "f16x2" and source in ("e4m3x2", "e5m2x2"):
        a = e.use(i.operands[1], "u2")
        e.define(d, "u4", f"{e.helper(bytes_to_pair)}({a}, {source[:4]!r}, {relu})")
    else:
        return False
    return True


@expression("cvt")
def cvt(e: Emitter, i: Instruction) -> None:
    target, source = i.parts[-2], i.parts[-1]
    if "pack" in i.parts:
        raise e.error(i, "cvt.pack is not simulated")
    if _packed(e, i, target, source):
        return
    if "x2" in target or "x2" in source or "x4" in target or "x4" in source:
        raise e.error(i, "this conversion is not simulated")
    d, a = i.operands[:2]
    if isinstance(a, Immediate) and a.float_bits and source == "f64" and a.float_bits == 32:
        raise e.error(i, "a constant of the wrong width")
    value = e.use(a, kind(source))
    flags = i.parts[1:-2]
    for flag in flags:
        if flag not in (*_WHOLE, "rn", "rz", "rm", "rp", "rna", "sat", "ftz", "relu"):
            raise e.error(i, f"modifier .{flag} is not simulated")
    if source not in _FLOATS and target not in _FLOATS:
        if "sat" in flags:
            return e.define(d, kind(target), f"{e.helper(clamp_integer)}({value}, {target!r})")
        return e.define(d, kind(target), f"{value}.astype({kind(target)})")
    if "ftz" in flags and source == "f32":
        value = f"{e.helper(numerics.flush)}({value})"
    mode = next((p for p in flags if p in _WHOLE or p in ("rn", "rz", "rm", "rp", "rna")), "rn")
    if target not in _FLOATS:
        if mode not in _WHOLE:
            raise e.error(i, "a conversion to an integer names .rni, .rzi, .rmi or .rpi")
        return e.define(
            d,
            kind(target),
            f"{e.helper(to_integer)}({_wide(e, value, source)}, {target!r}, {mode!r})",
        )
    simple = {("f32", "f64"): "f8", ("f16", "f32"): "f4", ("f16", "f64"): "f8"}.get(
        (source, target)
    )
    if simple and not {"sat", "relu"} & set(flags) and mode not in _WHOLE:
        return e.define(d, simple, f"{value}.astype({simple})")
    if source == "bf16" and target == "f32" and not {"sat", "relu"} & set(flags) and mode == "rn":
        return e.define(d, "f4", f"{e.helper(numerics.from_bfloat)}({value})")
    call = (
        f"{e.helper(convert)}({value}, {source!r}, {target!r}, {mode!r}, "
        f"{'sat' in flags}, {'relu' in flags})"
    )
    if "ftz" in flags and target == "f32":
        call = f"{e.helper(numerics.flush)}({call})"
    e.define(d, kind(target), call)


def _wide(e: Emitter, value: str, source: str) -> str:
    return value if source in ("f32", "f64") else f"{e.helper(widen)}({value}, {source!r})"
