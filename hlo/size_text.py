"""Sizes as text: `parse_dim` reads what they print, and any such expression.

This module imports nothing of the compiler.
"""

from __future__ import annotations

import functools
import re

from .symbols import FUNCTIONS, NAME, Dim, SymbolicDim

MAXIMUM_TEXT = 4096  # characters that `parse_dim` reads
MAXIMUM_DEPTH = 32  # of nested brackets there

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|//|[-+*%(),])", re.ASCII)


@functools.lru_cache(maxsize=1 << 12)  # a program says the same sizes in many places
def parse_dim(text: str) -> Dim:
    """Read what `repr` of a size writes, or any such expression (`128`, `2*t+1`, `-n % 7`,
    `max(t, 4)`) by Python's precedences; ValueError for anything else."""
    return _SizeReader(text).read()


class _SizeReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.place = self.depth = 0
        end = 0
        text = text.rstrip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None or len(text) > MAXIMUM_TEXT:
                raise self.fault()
            self.tokens.append(match[1])
            end = match.end()
        if not self.tokens:
            raise ValueError("a dimension is empty")
        self.tokens.append("")

    def fault(self) -> ValueError:
        return ValueError(f"'{self.text[:80]}' is no dimension")

    def read(self) -> Dim:
        try:
            found = self.sum()
        except ZeroDivisionError:
            raise ValueError(f"'{self.text[:80]}' divides by 0") from None
        if self.tokens[self.place]:
            raise self.fault()
        return found

    def take(self, *tokens: str) -> str:
        token = self.tokens[self.place]
        if token not in tokens:
            return ""
        self.place += 1
        return token

    def sum(self) -> Dim:
        total = self.product()
        while sign := self.take("+", "-"):
            part = self.product()
            total = total + part if sign == "+" else total - part
        return total

    def product(self) -> Dim:
        total = self.signed()
        while operation := self.take("*", "//", "%"):
            part = self.signed()
            if operation == "*":
                total = total * part
            else:
                total = total // part if operation == "//" else total % part
        return total

    def signed(self) -> Dim:
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        part = self.atom()
        return -part if negative else part

    def atom(self) -> Dim:
        token = self.tokens[self.place]
        self.place += 1
        if token.isdigit():
            return int(token)
        self.depth += 1
        if self.depth > MAXIMUM_DEPTH:
            raise self.fault()
        if token == "(":
            found = self.sum()
            self.close()
        elif token in ("max", "min") and self.take("("):
            operands = [self.sum()]
            while self.take(","):
                operands.append(self.sum())
            self.close()
            found = FUNCTIONS[token](*operands)
        elif NAME.fullmatch(token):
            found = SymbolicDim(token)
        else:
            raise self.fault()
        self.depth -= 1
        return found

    def close(self) -> None:
        if not self.take(")"):
            raise self.fault()


def split_dims(text: str) -> list[str]:
    """The sizes of a list that commas separate, outside of brackets: `b,max(t,4)`."""
    found, depth, start = [], 0, 0
    for place, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and not depth:
            found.append(text[start:place])
            start = place + 1
    return [*found, text[start:]] if text else []
