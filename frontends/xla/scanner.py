"""A position in HLO text: tokens, names, shapes, numbers in braces."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..stablehlo.scanner import Scanner
from .program import ELEMENTS, OTHER_ELEMENTS, Shape, check_shape

# Possessive, so that a token that does not follow is no reason to try the comments again.
SKIP = r"(?:[ \t\r\n]++|/\*(?:[^*]++|\*(?!/))*+\*/|//[^\n\r]*+)*+"
_SPACE = re.compile(SKIP)
NAME = re.compile(SKIP + r"%?([A-Za-z_][\w.\-]*)")
WORD = re.compile(SKIP + r"([A-Za-z_][\w.\-]*)")
INTEGER = re.compile(SKIP + r"(-?\d{1,20})(?!\d)")
REAL = re.compile(SKIP + r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|-?inf|-?nan)")
ATTRIBUTE = re.compile(SKIP + r"([A-Za-z_][\w.\-]*)\s*+=")
PATTERN = re.compile(SKIP + r"((?:[\w?]|-(?!>))+(?:->[\w?]+)?)")  # 1x2, 0_0x1_1, b01f_01io->b01f
_ARRAY = re.compile(SKIP + r"([a-z][a-z0-9]*) *\[([\d,<=?\s]*)\](?:\s*\{(?=[\d:])([^{}]*)\})?")
_BUFFER = re.compile(SKIP + r"b\(")
_NUMBERS = re.compile(SKIP + r"\{\s*+((?:-?\d{1,20}\s*+(?:,\s*+-?\d{1,20}\s*+)*+)?+)\}")
_QUOTE_OR_BRACE = re.compile(r'["{}]')
_QUOTE_OR_BRACKET = re.compile(r'["()\[\]{}]')
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|(.))", re.S)
_SIMPLE_ESCAPES = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v",
}  # fmt: skip
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


def unescape(text: str) -> str:
    r"""The string behind C's escapes; bytes that are no UTF-8 are kept as surrogates."""
    if "\\" not in text:
        return text

    def byte(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, other = match.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 255])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        return _SIMPLE_ESCAPES.get(other, other)

    raw = _ESCAPE.sub(byte, text.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


class HloScanner(Scanner):
    """A cursor over HLO text. Shapes with equal text are one object."""

    space_pattern = _SPACE
    name_pattern = NAME
    word_pattern = WORD
    unescape = staticmethod(unescape)

    def __init__(self, text: str, name: str):
        super().__init__(text, name)
        self._shapes: dict[str, Shape] = {}

    def word(self) -> str:
        return self.read(WORD, "a word")

    def boolean(self) -> bool:
        word = self.word()
        if word not in ("true", "false"):
            self.fail("expected true or false", self.position - len(word))
        return word == "true"

    def integer(self) -> int:
        return int(self.read(INTEGER, "an integer"))

    def real(self) -> float:
        return float(self.read(REAL, "a number"))

    def peek_attribute(self) -> str:
        """The name in `name=`, or "" where none stands here."""
        match = ATTRIBUTE.match(self.text, self.position)
        return match[1] if match is not None else ""

    def attribute_name(self) -> str:
        return self.read(ATTRIBUTE, "an attribute")

    def numbers(self) -> tuple[int, ...]:
        """`{1, 2, 3}`"""
        match = _NUMBERS.match(self.text, self.position)
        if match is None:
            return tuple(self.sequence("{", "}", self.integer))
        self.position = match.end()
        return tuple(map(int, match[1].split(","))) if match[1] else ()

    def list_of(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        """`{item, item}`"""
        return tuple(self.sequence("{", "}", item))

    def braces(self) -> str:
        """The text of `{...}`, braces included; strings in it may hold braces."""
        return self._group(_QUOTE_OR_BRACE, "{")

    def brackets(self, opener: str) -> str:
        """The text of a group of any brackets, which opens with `opener`."""
        return self._group(_QUOTE_OR_BRACKET, opener)

    def _group(self, marks: re.Pattern[str], opener: str) -> str:
        start = position = self.skip()
        if not self.text.startswith(opener, start):
            self.fail(f"expected '{opener}'")
        closers: list[str] = []
        while True:
            match = marks.search(self.text, position)
            if match is None:
                self.fail("brackets are not closed", start)
            token, position = match[0], match.end()
            if token == '"':
                position = self._string_end(position)
            elif token in _CLOSERS:
                closers.append(_CLOSERS[token])
            elif token != closers.pop():
                self.fail(f"'{token}' closes another bracket", match.start())
            elif not closers:
                self.position = position
                return self.text[start:position]

    # Shapes

    def at_shape(self) -> bool:
        return self.at("(") or self._array_match() is not None or self._at_buffer()

    def _array_match(self) -> re.Match[str] | None:
        match = _ARRAY.match(self.text, self.position)
        return match if match and (match[1] in ELEMENTS or match[1] in OTHER_ELEMENTS) else None

    def _at_buffer(self) -> bool:
        return _BUFFER.match(self.text, self.position) is not None

    def known_shape(self, text: str) -> Shape | None:
        """The shape that stood in the file with just this text before."""
        return self._shapes.get(text)

    def shape(self) -> Shape:
        """`f32[4,8]{1,0}`, `(f32[], token[])`, `b(f32[4])`"""
        match = self._array_match()
        if match is not None:
            text = self.text[match.start(1) : match.end()]
            self.position = match.end()
            known = self._shapes.get(text)
            if known is None:
                known = self._shapes[text] = self._array(match)
            return known
        self.enter()
        if self._at_buffer():
            self.expect("b")
            inner = self.sequence("(", ")", self.shape)
            shape = Shape("buffer", members=tuple(inner))
        elif self.at("("):
            shape = Shape("tuple", members=tuple(self.sequence("(", ")", self.shape)))
        else:
            self.fail("expected a shape")
        self.leave()
        return shape

    def _array(self, match: re.Match[str]) -> Shape:
        element, sizes, layout = match.groups()
        dims: list[int] = []
        dynamic: list[bool] = []
        for item in sizes.split(",") if sizes.strip() else ():
            size = item.strip()
            free = size.startswith(("<=", "?"))
            digits = size[2:].strip() if size.startswith("<=") else size
            dynamic.append(free)
            if digits == "?":
                dims.append(-1)
            elif digits.isdecimal() and len(digits) < 20:
                dims.append(int(digits))
            else:
                self.fail(f"'{size}' is no dimension", match.start())
        order, tiled = None, False
        if layout is not None:
            listed, colon, more = layout.partition(":")
            try:
                order = tuple(map(int, listed.split(","))) if listed.strip() else None
            except ValueError:
                self.fail(f"'{layout}' is no layout", match.start())
            tiled = bool(colon) and _is_tiled(more)
        elif not dims:
            order = ()
        shape = Shape(element, tuple(dims), tuple(dynamic) if any(dynamic) else (), order, tiled)
        if wrong := check_shape(shape):
            self.fail(wrong, match.start())
        return shape


_PLAIN_LAYOUT = re.compile(r"\s*(?:#\(\w*\)|\*\(\w*\)|S\(-?\d+\)|SC\([^)]*\)|M\(\d+\)|L\(1\)|\s)*")


def _is_tiled(text: str) -> bool:
    """Whether what stands behind a layout's order changes where elements lie."""
    return _PLAIN_LAYOUT.fullmatch(text) is None
