"""Constant tensors as files hold them, text or bytes, become numpy arrays, views if possible."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...hlo.errors import UnsupportedError, UserError
from ...hlo.types import ElementType, element_type
from .. import tree

Array = np.ndarray[Any, Any]

_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_WORDS = {"true": 1, "false": 0}
_BRACKETS = str.maketrans("[]()", "    ")


def element_of(kind: tree.Type) -> ElementType:
    """The element type that a tree's scalar stands for; a quantised one has its storage type."""
    if isinstance(kind, tree.Quantized):
        return element_type(kind.storage)
    name = "i64" if kind == "index" else tree.spell(kind)
    try:
        return element_type(name)
    except ValueError:
        raise UnsupportedError(f"tensors of {tree.spell(kind)} are not supported") from None


def read_elements(elements: tree.Elements) -> Array:
    """The array of a constant, of its type's shape; a splat is a view of one element.

    UserError where the payload does not fit the type.
    """
    kind, payload = elements
    element = element_of(kind.element)
    if any(dim < 0 for dim in kind.shape):
        raise UserError(f"a constant has the shape {tree.spell(kind)}, which is not fixed")
    if isinstance(payload, str):
        if payload.startswith('"'):
            try:
                data = bytes.fromhex(payload[len('"0x') : -1])
            except ValueError:
                raise UserError(f"a constant {tree.spell(kind)} is not hexadecimal") from None
            flat = _from_bytes(data, element, kind)
        else:
            flat = _from_text(payload, element, kind)
    else:
        flat = _from_bytes(payload, element, kind)
    count = math.prod(kind.shape)
    if flat.size == count:
        return flat.reshape(kind.shape)
    if flat.size == 1:
        return np.broadcast_to(flat[0], kind.shape)
    raise UserError(f"a constant {tree.spell(kind)} needs {count} elements, but has {flat.size}")


def _from_bytes(data: bytes | memoryview, element: ElementType, kind: tree.Tensor) -> Array:
    """Little-endian, row-major; i1 is packed to bits where the length says so."""
    count = math.prod(kind.shape)
    if element.name == "i1":
        raw = np.frombuffer(data, np.uint8)
        if raw.size == 1 and raw[0] in (0, 255):
            return np.full(1, raw[0] == 255)
        if raw.size != count and raw.size == (count + 7) // 8:
            return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)
        return raw != 0
    if len(data) % element.itemsize:
        raise UserError(f"a constant {tree.spell(kind)} has {len(data)} bytes")
    if element.bits < 8 and element.is_integer:
        # Upper bits may or may not repeat the sign: go through the value.
        raw = np.frombuffer(data, np.uint8) & ((1 << element.bits) - 1)
        return _wrap(raw.astype(np.int64), element).astype(element.dtype)
    return np.frombuffer(data, element.dtype.newbyteorder("<"))


def _wrap(values: Array, element: ElementType) -> Array:
    """Integers modulo the type's range: `255` and `-1` are the same i8."""
    if element.kind == "uint":
        return values & ((1 << element.bits) - 1)
    half = 1 << (element.bits - 1)
    return ((values + half) & ((1 << element.bits) - 1)) - half


def _from_text(text: str, element: ElementType, kind: tree.Tensor) -> Array:
    """Numbers in nested lists; complex numbers are pairs."""
    body = text.translate(_BRACKETS)
    words = [word.strip() for word in body.split(",")] if body.strip() else []
    parts = real_part(element)
    try:
        flat = _numbers(words, parts)
    except (ValueError, OverflowError):
        bad = next((w for w in words if w not in _WORDS and not _NUMBER.fullmatch(w)), "")
        reason = f"'{bad[:40]}' is no number" if bad else "a number does not fit"
        raise UserError(f"in a constant {tree.spell(kind)}: {reason}") from None
    if not element.is_complex:
        return flat
    if flat.size % 2:
        raise UserError(f"in a constant {tree.spell(kind)}: a complex number lacks a part")
    return flat.view(element.dtype)


def real_part(element: ElementType) -> ElementType:
    return element_type(element.name[len("complex<") : -1]) if element.is_complex else element


def _numbers(words: list[str], element: ElementType) -> Array:
    if element.is_float:
        return _floats(words, element)
    values = [_WORDS[word] if word in _WORDS else int(word, 0) for word in words]
    if element.is_bool:
        return np.array([value != 0 for value in values], np.bool_)
    low, high = -(1 << (element.bits - 1)), 1 << element.bits
    if not all(low <= value < high for value in values):
        raise OverflowError
    mask = high - 1
    if element.kind == "uint":
        return np.array([value & mask for value in values], np.uint64).astype(element.dtype)
    half = -low
    return np.array([((v + half) & mask) - half for v in values], np.int64).astype(element.dtype)


def _floats(words: list[str], element: ElementType) -> Array:
    """Decimal numbers are rounded from float64, as MLIR does; 0x... is a bit pattern."""
    patterns = [number for number, word in enumerate(words) if "x" in word or "X" in word]
    if not patterns:
        return _rounded(words, element)
    plain = list(words)
    for number in patterns:
        plain[number] = "0"
    flat = _rounded(plain, element)
    width = element.itemsize
    for number in patterns:
        word = words[number]
        if not _NUMBER.fullmatch(word):
            raise ValueError
        raw = int(word, 16).to_bytes(width, "little")
        flat[number] = np.frombuffer(raw, element.dtype)[0]
    return flat


def _rounded(words: list[str], element: ElementType) -> Array:
    """Numbers as float64, then rounded; what only Python takes for a number (`nan`) is refused."""
    flat = np.array([float(word) for word in words], np.float64)
    if not np.all(np.isfinite(flat)) and any(not _NUMBER.fullmatch(word) for word in words):
        raise ValueError
    with np.errstate(all="ignore"):
        return flat.astype(element.dtype)
