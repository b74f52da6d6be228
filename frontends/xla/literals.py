"""Constant arrays as XLA's formats hold them, in row-major order of their dimensions."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...hlo.errors import UnsupportedError
from ...hlo.types import ElementType, element_type, real_type
from .program import ELEMENTS, Shape
from .wire import Damaged, varints

Array = np.ndarray[Any, Any]

# HLO's element type -> the field of a LiteralProto that has its elements.
FIELDS = {
    "pred": "preds",
    **{name: f"{name}s" for name in ELEMENTS if name != "pred"},
}
VARINTS = ("preds", "s32s", "s64s", "u32s", "u64s")
"""The fields whose elements are numbers of variable length; those of the others are raw bytes."""


def array_element(shape: Shape) -> ElementType:
    """The element type of an array's shape; UnsupportedError for one that girih has not."""
    name = ELEMENTS.get(shape.element)
    if name is None:
        raise UnsupportedError(f"constants of type {shape} are not supported")
    return element_type(name)


def of_proto(shape: Shape, parts: list[Any]) -> Array:
    """The array behind the parts of a LiteralProto's field, which stand in the layout's order."""
    element = array_element(shape)
    count = math.prod(shape.dims)
    if FIELDS[shape.element] in VARINTS:
        flat = varints(parts) if parts else np.zeros(0, np.uint64)
        flat = (flat != 0) if element.is_bool else flat.astype(element.dtype)
    else:
        if any(isinstance(part, int) for part in parts):
            raise Damaged("the elements of a constant have another type")
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        flat = _of_bytes(data, element, count)
    if flat.size != count:
        raise Damaged(f"a constant {shape} has {flat.size} elements")
    return _row_major(flat, shape)


def _of_bytes(data: Any, element: ElementType, count: int) -> Array:
    """Little-endian elements; of less than eight bits they take a byte each, or are packed."""
    if element.bits < 8:
        raw = np.frombuffer(data, np.uint8)
        if raw.size != count and raw.size == (count * element.bits + 7) // 8:
            places = np.arange(0, 8, element.bits, dtype=np.uint8)
            raw = (raw[:, None] >> places).reshape(-1)[:count]
        raw = raw & ((1 << element.bits) - 1)
        if element.kind == "int":
            half = 1 << (element.bits - 1)
            return ((raw.astype(np.int8) ^ half) - half).astype(element.dtype)
        return raw.astype(element.dtype) if element.kind == "uint" else raw.view(element.dtype)
    if len(data) % element.itemsize:
        raise Damaged(f"a constant has {len(data)} bytes of {element}")
    return np.frombuffer(data, element.dtype.newbyteorder("<"))


def _row_major(flat: Array, shape: Shape) -> Array:
    order = shape.major_to_minor
    stored = flat.reshape([shape.dims[dim] for dim in order])
    if list(order) == sorted(order):
        return stored
    return np.ascontiguousarray(stored.transpose(np.argsort(order)))


# HLO text

_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_BRACES = str.maketrans("{}", "  ")
_PAYLOAD = re.compile(r"nan\(0x([0-9a-fA-F]{1,16})\)")
_NAN = re.compile(r"(-?)nan(?::([0-9a-fA-F]{1,16}))?")
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ZERO = re.compile(r"0+\.?0*|false")
_TRUTH = {"true": 1, "false": 0}
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
# Where the payload of a NaN is cut from the payload of a float64.
_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52, "c64": 23, "c128": 52}


def of_text(shape: Shape, text: str) -> Array:
    """The array of `{ {1, 2}, {3, 4} }`; UnsupportedError where the text is abbreviated to
    `{...}`, ValueError where it does not fit the shape."""
    element = array_element(shape)
    if "..." in text:
        raise UnsupportedError(f"a constant {shape} is abbreviated to {{...}}")
    if "/*" in text:
        text = _COMMENT.sub("", text)
    text = _PAYLOAD.sub(r"nan:\1", text)
    if "{" in text or not shape.dims or math.prod(shape.dims) == 0:
        _check_nesting(shape, text)
    body = text.translate(_BRACES)
    if element.is_complex:
        body = body.replace("(", " ").replace(")", " ")
    words = [word for part in body.split(",") if (word := part.strip())]
    count = math.prod(shape.dims) * (2 if element.is_complex else 1)
    if len(words) == 1 and _ZERO.fullmatch(words[0]) and not element.is_complex:
        return np.broadcast_to(np.zeros((), element.dtype), shape.dims)  # in place of braces
    if len(words) != count:
        raise ValueError(f"a constant {shape} has {len(words)} numbers")
    if element.is_integer or element.is_bool:
        return _integers(words, element).reshape(shape.dims)
    part = real_type(element)
    flat = _floats(words, part)
    return (flat.view(element.dtype) if element.is_complex else flat).reshape(shape.dims)


def _check_nesting(shape: Shape, text: str) -> None:
    """ValueError unless the braces of the text are those of an array with these dimensions."""
    expected, rank = 0, len(shape.dims)
    outer = 1
    for dim in shape.dims:
        expected += outer
        outer *= dim
    opened, depth, deepest = text.count("{"), 0, 0
    if opened != text.count("}") or opened != expected:
        raise ValueError(f"the braces of a constant are not those of {shape}")
    if opened <= 64:  # longer ones have the right number of braces and of elements
        for character in text:
            if character == "{":
                depth += 1
                deepest = max(deepest, depth)
            elif character == "}":
                depth -= 1
                if depth < 0:
                    raise ValueError(f"the braces of a constant are not those of {shape}")
        if deepest > rank:
            raise ValueError(f"the braces of a constant are not those of {shape}")


def _integers(words: list[str], element: ElementType) -> Array:
    values = [_TRUTH[word] if word in _TRUTH else int(word) for word in words]
    if element.is_bool:
        if any(value not in (0, 1) for value in values):
            raise ValueError("a truth value is neither 0 nor 1")
        return np.array(values, np.bool_)
    signed = element.kind == "int"
    low = -(1 << (element.bits - 1)) if signed else 0
    high = 1 << (element.bits - 1 if signed else element.bits)
    if element.bits == 64:  # XLA takes either sign for all 64 bits
        values = [value & (high * 2 - 1 if signed else high - 1) for value in values]
        low, high, signed = 0, 1 << 64, False
    if values and not (low <= min(values) and max(values) < high):
        raise ValueError(f"a number does not fit {element}")
    return np.array(values, np.int64 if signed else np.uint64).astype(element.dtype)


def _floats(words: list[str], element: ElementType) -> Array:
    """Decimal numbers are rounded from float64, as XLA does."""
    values: list[float] = []
    patterns: list[tuple[int, str]] = []
    for number, word in enumerate(words):
        if word in _INFINITE:
            values.append(_INFINITE[word])
        elif _NUMBER.fullmatch(word):
            values.append(float(word))
        elif _NAN.fullmatch(word):
            values.append(-math.nan if word[0] == "-" else math.nan)
            patterns.append((number, word))
        else:
            raise ValueError(f"'{word[:40]}' is no number")
    wide = np.array(values, np.float64)
    with np.errstate(all="ignore"):
        flat = wide.astype(element.dtype)
    written = sum(word in _INFINITE for word in words) + len(patterns)
    if words and np.count_nonzero(~np.isfinite(flat.astype(np.float64))) > written:
        raise ValueError(f"a number does not fit {element}")
    for number, word in patterns:
        match = _NAN.fullmatch(word)
        if match is not None and match[2] is not None and element.name in _MANTISSA:
            flat[number] = _nan(match[1] == "-", int(match[2], 16), element)
    return flat


def _nan(negative: bool, payload: int, element: ElementType) -> Any:
    """The NaN whose payload in the element's own width this is."""
    width = _MANTISSA[element.name]
    exponent = (1 << (element.bits - 1 - width)) - 1
    bits = exponent << width | payload & ((1 << width) - 1) | negative << (element.bits - 1)
    raw = bits.to_bytes(element.itemsize, "little")
    return np.frombuffer(raw, element.dtype)[0]
