"""LLVM's types and constants as text, and what an instruction gives: a typed handle."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ...hlo.symbols import SymbolicDim

_SHORT = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
_FLOATS = frozenset(("float", "double", "half", "bfloat"))
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}


def vector(lanes: int, element: str) -> str:
    """The vector type of `lanes` elements; `lanes` 1 is the scalar itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_of(type_name: str) -> str:
    """The element type of a vector type, or the scalar type itself."""
    return type_name[type_name.index("x ") + 2 : -1] if type_name[0] == "<" else type_name


def lanes_of(type_name: str) -> int:
    """The number of lanes of a vector type; 1 for a scalar."""
    return int(type_name[1 : type_name.index(" ")]) if type_name[0] == "<" else 1


def bits_of(type_name: str) -> int:
    """The bits of one element of a type."""
    element = element_of(type_name)
    return _BITS[element] if element in _BITS else int(element[1:])


def is_float(type_name: str) -> bool:
    return element_of(type_name) in _FLOATS


def mangled(type_name: str) -> str:
    """A type as it is spelled inside an intrinsic's name: "v16f32", "i64", "p0"."""
    element = element_of(type_name)
    short = _SHORT.get(element, element)
    return f"v{lanes_of(type_name)}{short}" if type_name[0] == "<" else short


def literal(element: str, number: int | float | bool) -> str:
    """The exact text of a constant; floats are written as their bits."""
    if element in ("float", "double"):
        value = float(number)
        if element == "float" and value - value == 0.0:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', float(number)))[0]:04X}"
    if element == "bfloat":
        return f"0xR{_bfloat_bits(float(number)):04X}"
    if element == "i1":
        return "true" if number else "false"
    if element == "ptr":
        return "null"
    return str(int(number))


def _bfloat_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


class Value:
    """An SSA value, argument, global or constant: `type name` is its spelling as an operand."""

    __slots__ = ("type", "name", "number")

    def __init__(self, type_name: str, name: str, number: Any = None) -> None:
        self.type = type_name
        self.name = name
        self.number = number  # the Python number of a (splat) constant, else None

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def lanes(self) -> int:
        return lanes_of(self.type)

    @property
    def element(self) -> str:
        return element_of(self.type)


Operand = Value | SymbolicDim | int | float | bool


def constant(type_name: str, number: int | float | bool) -> Value:
    """A constant; of a vector type, the number in every lane."""
    element = element_of(type_name)
    text = literal(element, number)
    if type_name[0] == "<":
        text = f"splat ({element} {text})"
    return Value(type_name, text, number)


def vector_constant(element: str, numbers: Sequence[int | float | bool]) -> Value:
    """A constant vector of the given lanes."""
    text = ", ".join(f"{element} {literal(element, n)}" for n in numbers)
    return Value(vector(len(numbers), element), f"<{text}>")


def poison(type_name: str) -> Value:
    return Value(type_name, "poison")
