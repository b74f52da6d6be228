"""A bounded position in bytes: MLIR's variable-length integers, and errors that name the byte."""

from __future__ import annotations

from typing import NoReturn

from ...hlo.errors import UserError

MAXIMUM_STRING = 1 << 16
"""Producers and attributes in text form are short."""


class Cursor:
    """Reads `data[position:end]`; every count is checked against the bytes that are left."""

    __slots__ = ("data", "position", "end", "name")

    def __init__(
        self, data: memoryview, position: int = 0, end: int | None = None, name: str = "bytecode"
    ):
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end
        self.name = name

    def fail(self, message: str) -> NoReturn:
        raise UserError(f"{self.name}: byte {self.position}: {message}")

    @property
    def done(self) -> bool:
        return self.position >= self.end

    def byte(self) -> int:
        position = self.position
        if position >= self.end:
            self.fail("the data ends too early")
        self.position = position + 1
        return self.data[position]

    def varint(self) -> int:
        """An unsigned integer; the first byte's trailing zeros count its further bytes."""
        position = self.position
        if position >= self.end:
            self.fail("the data ends too early")
        first = self.data[position]
        if first & 1:
            self.position = position + 1
            return first >> 1
        if first == 0:
            stop = position + 9
            value = int.from_bytes(self.data[position + 1 : stop], "little")
        else:
            extra = (first & -first).bit_length() - 1
            stop = position + 1 + extra
            value = int.from_bytes(self.data[position:stop], "little") >> (extra + 1)
        if stop > self.end:
            self.fail("the data ends too early")
        self.position = stop
        return value

    def count(self) -> int:
        """A number of things of at least one byte each."""
        value = self.varint()
        if value > self.end - self.position:
            self.fail(f"a count of {value} is more than the data that is left")
        return value

    def signed(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def signed_list(self) -> tuple[int, ...]:
        return tuple([self.signed() for _ in range(self.count())])

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, as a view."""
        position = self.position
        if position + size > self.end:
            self.fail(f"{size} bytes are announced, {self.end - position} are left")
        self.position = position + size
        return self.data[position : position + size]

    def blob(self) -> memoryview:
        """A size, then that many bytes."""
        return self.take(self.varint())

    def align(self, alignment: int) -> None:
        if alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
            self.fail(f"an alignment of {alignment} is not a power of two")
        self.take(-self.position % alignment)

    def terminated(self) -> str:
        """Text up to a zero byte."""
        near = min(self.end, self.position + MAXIMUM_STRING)
        stop = bytes(self.data[self.position : near]).find(0)
        if stop < 0:
            self.fail("a string is not closed")
        text = bytes(self.take(stop)).decode("utf-8", "surrogateescape")
        self.position += 1
        return text

    def section(self) -> tuple[int, Cursor]:
        """A section's number and a cursor over its data."""
        number = self.byte()
        size = self.varint()
        if number & 128:
            self.align(self.varint())
        start = self.position
        self.take(size)
        return number & 127, Cursor(self.data, start, start + size, self.name)
