"""A position in MLIR text: tokens, strings, balanced brackets, and errors that show the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from ...hlo.errors import UserError

T = TypeVar("T")

MAX_DEPTH = 64
"""How deep regions, types and attributes may nest; real programs stay below twenty."""

MAXIMUM_PARTS = 1_000_000
MAXIMUM_TYPE_PARTS = 10_000
"""Attributes and types may share parts, so a short file can describe one that fits in no memory."""

# Possessive, so that a token that does not follow is no reason to try the white space again.
SKIP = r"(?:\s++|//[^\n]*+)*+"
_SPACE = re.compile(SKIP)
IDENTIFIER = re.compile(SKIP + r"([A-Za-z_$][\w$.]*)")
BARE = re.compile(SKIP + r"([A-Za-z_$][\w$.\-]*)")
VALUE = re.compile(SKIP + r"(%[\w$.\-]+(?:#\d+)?)")
NUMBER = re.compile(SKIP + r"([-+]?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*(?:[eE][-+]?\d+)?)?))")
LABEL = re.compile(SKIP + r"(\^[\w$.\-]+)")
_STRING_END = re.compile(r'["\\]')
_BRACKET = re.compile(r'->|["<>()\[\]{}]')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)", re.S)
_SIMPLE_ESCAPES = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
_CLOSERS = {"<": ">", "(": ")", "[": "]", "{": "}"}


def unescape(text: str) -> str:
    r"""The string behind MLIR's escapes `\n`, `\t`, `\"`, `\\` and `\xx`, which is one byte.

    Bytes that are no UTF-8 are kept as surrogates.
    """
    if "\\" not in text:
        return text

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return _SIMPLE_ESCAPES.get(code) or (
            bytes.fromhex(code.decode()) if len(code) == 2 else code
        )

    raw = _ESCAPE.sub(byte, text.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


class Scanner:
    """A cursor over `text`; every reading method skips white space and comments first.

    space_pattern, name_pattern, word_pattern: what a language's comments, names and key words look
    like; unescape: what a backslash means in its strings.
    """

    space_pattern = _SPACE
    name_pattern = IDENTIFIER
    word_pattern = IDENTIFIER
    unescape = staticmethod(unescape)

    def __init__(self, text: str, name: str = "<text>"):
        self.text = text
        self.position = 0
        self.name = name
        self.depth = 0
        self._known_line = (0, 1)

    # Errors and bounds

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise the reader's only error: file, line, what was expected, and what stands there."""
        where = self.position if position is None else position
        line = self.text.count("\n", 0, where) + 1
        start = self.text.rfind("\n", 0, where) + 1
        end = self.text.find("\n", where)
        snippet = self.text[start : end if end >= 0 else len(self.text)]
        column = where - start
        if len(snippet) > 100:
            cut = max(0, column - 40)
            snippet, column = snippet[cut : cut + 100], column - cut
        raise UserError(f"{self.name}:{line}: {message}\n    {snippet}\n    {' ' * column}^")

    def line_of(self, position: int) -> int:
        """The number of a line; counted on from the last one asked for, where that lies before."""
        known, line = self._known_line
        if position < known:
            known, line = 0, 1
        line += self.text.count("\n", known, position)
        self._known_line = (position, line)
        return line

    def enter(self) -> None:
        """Go one level deeper; `leave` must follow."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nests deeper than {MAX_DEPTH} levels")

    def leave(self) -> None:
        self.depth -= 1

    # Tokens

    def skip(self) -> int:
        """Skip white space and comments; the new position."""
        match = self.space_pattern.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return self.position

    def peek(self) -> str:
        """The next character, or "" at the end."""
        position = self.skip()
        return self.text[position : position + 1]

    def at(self, token: str) -> bool:
        # Most tokens follow without space: looking first is twice as fast.
        text = self.text
        return text.startswith(token, self.position) or text.startswith(token, self.skip())

    def accept(self, token: str) -> bool:
        """Step over `token` if it stands here."""
        if self.at(token):
            self.position += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"expected '{token}'")

    def read(self, pattern: re.Pattern[str], what: str) -> str:
        """The first group of `pattern`, which must stand here."""
        match = pattern.match(self.text, self.position)
        if match is None:
            self.skip()
            self.fail(f"expected {what}")
        self.position = match.end()
        return match[1]

    def accept_word(self, word: str) -> bool:
        """Step over the whole word if it stands here."""
        match = self.word_pattern.match(self.text, self.position)
        if match is not None and match[1] == word:
            self.position = match.end()
            return True
        return False

    def expect_word(self, word: str) -> None:
        if not self.accept_word(word):
            self.skip()
            self.fail(f"expected '{word}'")

    def identifier(self) -> str:
        return self.read(self.name_pattern, "a name")

    def integer(self) -> int:
        text = self.read(NUMBER, "an integer")
        try:
            return int(text, 0)
        except ValueError:
            try:
                return int(text)  # 007
            except ValueError:
                self.fail(f"'{text}' is not an integer")

    def string(self) -> str:
        """A quoted string, unescaped."""
        self.expect('"')
        start = self.position
        return self.unescape(self.text[start : self._string_end(start) - 1])

    def _string_end(self, position: int) -> int:
        """The position after the quote that closes the string whose body starts at `position`."""
        text, start = self.text, position
        while True:
            match = _STRING_END.search(text, position)
            if match is None:
                self.fail("a string is not closed", start - 1)
            position = match.end()
            if match[0] == '"':
                self.position = position
                return position
            position += 1

    def symbol(self) -> str:
        """`@name` or `@"name"`, nested parts joined as they stand: `outer::@inner`."""
        self.expect("@")
        name = (
            self.string()
            if self.text.startswith('"', self.position)
            else self.read(BARE, "a symbol name")
        )
        while self.text.startswith("::", self.position):
            self.position += 2
            name += "::@" + self.symbol()
        return name

    def sequence(self, opener: str, closer: str, item: Callable[[], T]) -> list[T]:
        """`opener item, item, ... closer`"""
        self.expect(opener)
        items: list[T] = []
        if self.accept(closer):
            return items
        while True:
            items.append(item())
            if self.accept(closer):
                return items
            self.expect(",")

    def balanced(self) -> str:
        """The text of a bracketed group, brackets included; strings in it may hold any bracket."""
        start = position = self.skip()
        closers: list[str] = []
        text = self.text
        while True:
            match = _BRACKET.search(text, position)
            if match is None or (not closers and match.start() != start):
                self.fail("brackets are not closed", start)
            token, position = match[0], match.end()
            if token == '"':
                position = self._string_end(position)
            elif token in _CLOSERS:
                closers.append(_CLOSERS[token])
            elif token != "->":
                if not closers or token != closers.pop():
                    self.fail(f"'{token}' closes another bracket", match.start())
                if not closers:
                    self.position = position
                    return text[start:position]
