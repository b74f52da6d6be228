"""Operands of PTX instructions: text -> registers, numbers, addresses, vectors."""

from __future__ import annotations

import re
import struct

from .syntax import (
    CARRY,
    SPECIAL,
    Address,
    Function,
    Group,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

_TAIL_DIGITS = re.compile(r"(.*?)(0|[1-9]\d*)$")
_SIMPLE_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]$")
_NAME = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyz])?$")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")


def integer(text: str) -> int:
    text = text.rstrip("U")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("-")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def split(text: str) -> list[str]:
    """`text` at its commas outside brackets."""
    if "{" not in text and "(" not in text and "[" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    tail = text[start:].strip()
    if tail:
        parts.append(tail)
    return parts


class Scope:
    """Names of a function's body: registers by name or by family, local variables."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.families: list[tuple[str, str, int]] = []
        self.levels: list[dict[str, Operand]] = [{}]
        self.memo: dict[str, Operand] = {}
        self.unique = 0

    def declare(self, name: str, type_: str) -> None:
        register = Register(name, len(self.function.registers), type_)
        self.function.registers.append(register)
        self.levels[-1][name] = register
        self.memo.clear()

    def rename(self, variable: Variable) -> Variable:
        """`variable` under a name of its own when it stands in an inner scope."""
        if len(self.levels) == 1:
            return variable
        self.unique += 1
        name = f"{variable.name}@{self.unique}"
        self.levels[-1][variable.name] = Symbol(name)
        self.memo.clear()
        return Variable(
            variable.space, name, variable.nbytes, variable.align, variable.initial, variable.words
        )

    def carry(self) -> Operand:
        if CARRY not in self.levels[0]:
            register = Register(CARRY, len(self.function.registers), "b32")
            self.function.registers.append(register)
            self.levels[0][CARRY] = register
        return self.levels[0][CARRY]

    def open(self) -> None:
        self.levels.append({})

    def close(self) -> None:
        if self.levels.pop():
            self.memo.clear()

    def lookup(self, name: str) -> Operand | None:
        for level in reversed(self.levels):
            if name in level:
                return level[name]
        match = _TAIL_DIGITS.match(name)
        if match:
            prefix, number = match.group(1), int(match.group(2))
            for family, type_, count in self.families:
                if family == prefix and number < count:
                    register = Register(name, len(self.function.registers), type_)
                    self.function.registers.append(register)
                    self.levels[0][name] = register
                    return register
        return None

    def operand(self, text: str) -> Operand:
        known = self.memo.get(text)
        if known is None:
            known = self.memo[text] = self._operand(text)
        return known

    def _operand(self, text: str) -> Operand:
        first = text[:1]
        if first == "[":
            return self._address(text)
        if first == "{":
            return Vector(self._several(text))
        if first == "(":
            return Group(self._several(text))
        if text == "_":
            return Sink()
        if first == "!":
            register = self.lookup(text[1:].strip())
            if not isinstance(register, Register):
                raise ValueError(f"'{text}' negates no predicate")
            return Negated(register)
        if "|" in text:
            left, right = text.split("|")
            return Pair(self.operand(left.strip()), self.operand(right.strip()))
        if first.isdigit() or first == "-":
            return number(text)
        if _NAME.match(text):
            found = self.lookup(text)
            if found is not None:
                return found
            if first == "%":
                if SPECIAL.match(text):
                    return Special(text)
                if text == "%tid" or text == "%ctaid":
                    return Special(text + ".x")
                raise ValueError(f"register '{text}' is not declared")
            if text == "WARP_SZ":
                return Immediate(32)
            return Symbol(text)
        match = re.match(r"([A-Za-z_$][\w$]*)\s*([+-])\s*(\w+)$", text)
        if match:
            symbol = self.lookup(match.group(1)) or Symbol(match.group(1))
            if isinstance(symbol, Symbol):
                offset = integer(match.group(3)) * (-1 if match.group(2) == "-" else 1)
                return Symbol(symbol.name, symbol.offset + offset)
        raise ValueError(f"operand '{text}' is not understood")

    def _several(self, text: str) -> tuple[Operand, ...]:
        """The operands in brackets, which stand in no brackets of their own."""
        parts = split(text[1:-1])
        if any(part[:1] in ("{", "(", "[") for part in parts):
            raise ValueError(f"'{text[:40]}' holds brackets in brackets")
        return tuple(map(self.operand, parts))

    def _address(self, text: str) -> Address:
        match = _SIMPLE_ADDRESS.match(text)
        if match:
            base = self.operand(match.group(1))
            offset = integer(match.group(2)) if match.group(2) else 0
            if isinstance(base, Symbol):
                return Address(Symbol(base.name), offset + base.offset)
            if isinstance(base, Register | Immediate):
                return Address(base, offset)
            raise ValueError(f"'{text}' is no address")
        parts = split(text[1:-1])
        match = re.match(r"([%\w$]+)\s*(?:([+-])\s*(\w+))?$", parts[0] if parts else "")
        if not match:
            raise ValueError(f"address '{text}' is not understood")
        base = self.operand(match.group(1))
        offset = integer(match.group(3)) if match.group(3) else 0
        if match.group(2) == "-":
            offset = -offset
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), offset + base.offset
        if not isinstance(base, Register | Symbol | Immediate):
            raise ValueError(f"address '{text}' is not understood")
        if any(part[:1] == "[" for part in parts):
            raise ValueError(f"address '{text[:40]}' holds an address")
        rest = [self.operand(part) for part in parts[1:]]
        coordinates = rest[0] if rest and isinstance(rest[0], Vector) else None
        if rest and coordinates is None:
            raise ValueError(f"address '{text}' is not understood")
        return Address(base, offset, coordinates, tuple(rest[1:]))


def number(text: str) -> Immediate:
    if _INTEGER.match(text):
        return Immediate(integer(text))
    head = text[:2].lower()
    if head == "0f":
        return Immediate(int(text[2:], 16), 32)
    if head == "0d":
        return Immediate(int(text[2:], 16), 64)
    try:
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    except ValueError:
        raise ValueError(f"number '{text}' is not understood") from None
