"""Protocol buffers without a schema compiler: `Message.read(bytes) -> dict` by a table of fields.

Nothing is allocated by what a length announces: every length has to fit into what is left.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ...hlo.errors import UserError

INT, INTS, BOOL, TEXT, TEXTS, BYTES, RAW, REAL, SKIP = range(9)
"""Kinds of fields. BYTES is a view of the file, RAW a list of such views (packed numbers that
`varints` decodes, messages that are read later), SKIP is known and not needed."""

_MAXIMUM_DEPTH = 128
_SIGN = 1 << 63
_WORD = 1 << 64


class Damaged(Exception):
    """The bytes are no message of this kind."""


class Message:
    """One kind of message: field number -> (name, kind), where a kind is one of the numbers above,
    a `Message`, or a list of one `Message` for a repeated one."""

    def __init__(self, name: str, fields: dict[int, tuple[str, Any]]):
        self.name = name
        self.fields = fields

    def read(
        self, data: memoryview, unknown: set[tuple[str, int]] | None = None, depth: int = 0
    ) -> dict[str, Any]:
        """The fields that are there, by name; numbers of others are added to `unknown`."""
        if depth > _MAXIMUM_DEPTH:
            raise Damaged(f"{self.name} nests too deeply")
        found: dict[str, Any] = {}
        fields = self.fields
        position, end = 0, len(data)
        while position < end:
            key = data[position]
            position += 1
            if key >= 128:
                key, position = _varint(data, position - 1, end)
            wire = key & 7
            value: Any
            if wire == 2:
                if position >= end:
                    raise Damaged(f"{self.name} is cut off")
                length = data[position]
                position += 1
                if length >= 128:
                    length, position = _varint(data, position - 1, end)
                start, position = position, position + length
                if position > end:
                    raise Damaged(f"{self.name} is cut off")
                value = data[start:position]
            elif wire == 0:
                value, position = _varint(data, position, end)
            elif wire in (1, 5):
                start, position = position, position + (8 if wire == 1 else 4)
                if position > end:
                    raise Damaged(f"{self.name} is cut off")
                value = data[start:position]
            else:
                raise Damaged(f"{self.name} has a field of wire type {wire}")
            entry = fields.get(key >> 3)
            if entry is None:
                if key >> 3 == 0:
                    raise Damaged(f"{self.name} has a field of number 0")
                if unknown is not None:
                    unknown.add((self.name, key >> 3))
                continue
            name, kind = entry
            if kind == SKIP:
                continue
            if type(kind) is int:
                self._scalar(found, name, kind, wire, value)
            elif wire != 2:
                raise Damaged(f"{self.name}.{name} is no message")
            elif type(kind) is list:
                found.setdefault(name, []).append(kind[0].read(value, unknown, depth + 1))
            else:
                found[name] = kind.read(value, unknown, depth + 1)
        return found

    def _scalar(self, found: dict[str, Any], name: str, kind: int, wire: int, value: Any) -> None:
        """Adds a value of one of the number, text and byte kinds."""
        if kind == INT:
            if wire != 0:
                raise Damaged(f"{self.name}.{name} is no number")
            found[name] = value - _WORD if value >= _SIGN else value
        elif kind == BOOL:
            if wire != 0:
                raise Damaged(f"{self.name}.{name} is no truth value")
            found[name] = value != 0
        elif kind == TEXT:
            found[name] = self._text(name, wire, value)
        elif kind == TEXTS:
            found.setdefault(name, []).append(self._text(name, wire, value))
        elif kind == INTS:
            numbers = found.setdefault(name, [])
            if wire == 0:
                numbers.append(value - _WORD if value >= _SIGN else value)
            elif wire == 2:
                _packed(value, numbers)
            else:
                raise Damaged(f"{self.name}.{name} is no list of numbers")
        elif kind == BYTES:
            if wire != 2:
                raise Damaged(f"{self.name}.{name} is no data")
            found[name] = value
        elif kind == RAW:
            found.setdefault(name, []).append(value)
        elif kind == REAL:
            if wire not in (1, 5):
                raise Damaged(f"{self.name}.{name} is no real number")
            found[name] = struct.unpack("<f" if wire == 5 else "<d", value)[0]

    def _text(self, name: str, wire: int, value: Any) -> str:
        if wire != 2:
            raise Damaged(f"{self.name}.{name} is no text")
        return str(value, "utf-8", "surrogateescape")


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """The number that starts there, below 2**64, and the position after it."""
    value = shift = 0
    while True:
        if position >= end:
            raise Damaged("a number is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (_WORD - 1), position
        shift += 7
        if shift > 63:
            raise Damaged("a number is longer than ten bytes")


def _packed(data: memoryview, numbers: list[int]) -> None:
    """Appends signed numbers that stand one after the other."""
    position, end = 0, len(data)
    while position < end:
        byte = data[position]
        if byte < 128:
            numbers.append(byte)
            position += 1
        else:
            value, position = _varint(data, position, end)
            numbers.append(value - _WORD if value >= _SIGN else value)


def varints(parts: list[Any]) -> np.ndarray[Any, Any]:
    """The numbers (ui64) of a repeated field: packed runs, or single numbers, in order."""
    runs = [np.array([part], np.uint64) if isinstance(part, int) else _run(part) for part in parts]
    return runs[0] if len(runs) == 1 else np.concatenate([np.zeros(0, np.uint64), *runs])


def _run(part: memoryview) -> np.ndarray[Any, Any]:
    raw = np.frombuffer(part, np.uint8)
    last = np.flatnonzero(raw < 128)
    if raw.size and (not last.size or last[-1] != raw.size - 1):
        raise Damaged("a list of numbers is cut off")
    if last.size == raw.size:
        return raw.astype(np.uint64)
    starts = np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])
    if raw.size and int((last - starts).max()) > 9:
        raise Damaged("a number is longer than ten bytes")
    # Each byte's place within its number says by how much its seven bits are shifted.
    lengths = last - starts + 1
    places = np.arange(raw.size) - np.repeat(starts, lengths)
    shifted = (raw & 127).astype(np.uint64) << (places * 7).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, starts)


def damaged(source: str, error: Damaged) -> UserError:
    return UserError(f"{source}: the HLO protobuf is damaged: {error}; write the file again")
