"""Pieces of MLIR bytecode that a writer puts together: integers, interned entries, sections.

An entry's number is known only when all entries are: they are grouped by dialect. So bodies are
lists of bytes and of references, which become numbers at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Chunk = bytes | memoryview

PLAIN, FLAGGED, UNFLAGGED = range(3)


class Reference(NamedTuple):
    """A number that is not known yet: of an attribute, a type (table 0, 1) or an op name (2).

    `form` says how it is written: as it is, or doubled with or without its lowest bit.
    """

    table: int
    index: int
    form: int = PLAIN


class Nested(NamedTuple):
    """A section inside a body."""

    number: int
    body: list[Any]


Part = Chunk | Reference | Nested


def varint(value: int) -> bytes:
    """An unsigned integer below 2**64; the first byte's trailing zeros count its further bytes."""
    if value < 128:
        return bytes((value << 1 | 1,))
    count = (value.bit_length() + 6) // 7
    if count > 8:
        return b"\0" + value.to_bytes(8, "little")
    return ((value << 1 | 1) << (count - 1)).to_bytes(count, "little")


def signed(value: int) -> bytes:
    """An integer of 64 bits, zigzag."""
    if value >= 1 << 63:
        value -= 1 << 64
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def signed_list(values: Sequence[int]) -> bytes:
    return varint(len(values)) + b"".join(map(signed, values))


def bits(value: int, width: int) -> bytes:
    """An integer of `width` bits."""
    value &= (1 << width) - 1
    if width <= 8:
        return bytes((value,))
    if width <= 64:
        return signed(value)
    count = (value.bit_length() + 63) // 64 or 1
    words = [value >> 64 * place & (1 << 64) - 1 for place in range(count)]
    return varint(count) + b"".join(map(signed, words))


def double(value: float) -> bytes:
    """A float64 as its bits."""
    return bits(struct.unpack("<Q", struct.pack("<d", value))[0], 64)


def section(number: int, chunks: Sequence[Chunk]) -> list[Chunk]:
    """A section's head and data."""
    size = sum(len(chunk) for chunk in chunks)
    return [bytes((number,)) + varint(size), *chunks]


class Table:
    """Numbers things in order of first use."""

    def __init__(self) -> None:
        self.items: dict[Any, int] = {}

    def number(self, item: Any) -> int:
        return self.items.setdefault(item, len(self.items))


class Entries:
    """Attributes or types: equal bodies of one dialect are one entry."""

    def __init__(self, table: int) -> None:
        self._table = table
        self._known: dict[Any, int] = {}
        self.bodies: list[tuple[str, tuple[Part, ...], bool]] = []

    def add(self, dialect: str, parts: Iterable[Part], encoded: bool = True) -> Reference:
        """The entry's reference; large data is compared by identity. `encoded` or assembly text."""
        body = tuple(parts)
        key = (dialect, encoded, tuple([_key(part) for part in body]))
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.bodies)
            self.bodies.append((dialect, body, encoded))
        return Reference(self._table, number)

    def grouped(self) -> dict[str, list[int]]:
        """Dialect -> its entries, in order of first use."""
        found: dict[str, list[int]] = {}
        for number, (dialect, _, _) in enumerate(self.bodies):
            found.setdefault(dialect, []).append(number)
        return found


LARGE = 256
"""Data of more bytes is compared by identity."""


def _key(part: Part) -> Any:
    if isinstance(part, memoryview):
        return ("data", id(part)) if len(part) > LARGE else bytes(part)
    return part


def order(groups: dict[str, list[int]]) -> dict[int, int]:
    """First number -> final number: entries stand group by group."""
    flat = [number for members in groups.values() for number in members]
    return {number: place for place, number in enumerate(flat)}


def resolve(parts: Iterable[Part], orders: Sequence[dict[int, int]]) -> list[Chunk]:
    """The parts with every reference written as its final number."""
    chunks: list[Chunk] = []
    for part in parts:
        if isinstance(part, Reference):
            number = orders[part.table][part.index]
            if part.form != PLAIN:
                number = number << 1 | (part.form == FLAGGED)
            chunks.append(varint(number))
        elif isinstance(part, Nested):
            inner = resolve(part.body, orders)
            # Small pieces: one chunk is cheaper than many.
            chunks += section(part.number, [b"".join(inner)])
        else:
            chunks.append(part)
    return chunks
