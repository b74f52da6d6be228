"""The words of kernels' text: types, operands, tables, and how C spells them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

from girih.hlo.errors import UnsupportedError

PRELUDE = Path(__file__).with_name("prelude.h").read_text()
SCALARS = {
    "i1": "uint8_t", "i8": "uint8_t", "i16": "uint16_t", "i32": "uint32_t", "i64": "uint64_t",
    "i128": "u128", "float": "float", "double": "double", "ptr": "char *", "void": "void",
}  # fmt: skip
SIZES = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "i128": 16,
    "float": 4,
    "double": 8,
    "ptr": 8,
}
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<",
    "lshr": ">>", "ashr": ">>", "udiv": "/", "sdiv": "/", "urem": "%", "srem": "%",
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/",
}  # fmt: skip
SIGNED = {"ashr", "sdiv", "srem"}
ORDERS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CASTS = {
    "trunc", "zext", "sext", "fptrunc", "fpext", "sitofp", "uitofp", "fptosi", "fptoui",
    "ptrtoint", "inttoptr",
}  # fmt: skip
FLAGS = {
    "nsw",
    "nuw",
    "exact",
    "disjoint",
    "nnan",
    "ninf",
    "nsz",
    "contract",
    "inbounds",
    "samesign",
}
ATTRIBUTES = re.compile(r"\b(?:noalias|readonly|writeonly|nocapture|noundef|align \d+)\b ?")


def unsupported(line: str) -> UnsupportedError:
    return UnsupportedError(f"target cpu:c: there is no C for '{line.strip()[:120]}'")


def parts_of(text: str) -> list[str]:
    """What commas part outside of brackets."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and not depth:
            found.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return [*found, last] if last else found


def typed(text: str) -> tuple[str, str]:
    """A type at the beginning of a text, and what follows it."""
    text = text.strip()
    if text[0] in "<{[":
        close = {"<": ">", "{": "}", "[": "]"}[text[0]]
        depth = 0
        for place, letter in enumerate(text):
            depth += (letter == text[0]) - (letter == close)
            if not depth:
                return text[: place + 1], text[place + 1 :].strip()
    kind, _, rest = text.partition(" ")
    return kind, rest.strip()


def vector(kind: str) -> tuple[int, str]:
    """Lanes and element of a type; 0 lanes of a scalar."""
    if kind[0] != "<":
        return 0, kind
    count, _, element = kind[1:-1].partition(" x ")
    return int(count), element


def c_name(text: str) -> str:
    return text[1:].replace(".", "_").replace("-", "_")


class Module:
    """Types and functions that a module's C needs, in order."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}  # declaration of each, by name
        self.globals: list[str] = []
        self.heads: list[str] = []
        self.functions: list[str] = []

    def type(self, kind: str) -> str:
        """The C name of a type."""
        if kind in SCALARS:
            return SCALARS[kind]
        if kind[0] == "{":
            fields = [self.type(part) for part in parts_of(kind[1:-1])]
            name = "S" + "_".join(re.sub(r"\W", "", field) for field in fields)
            inside = " ".join(f"{field} m{n};" for n, field in enumerate(fields))
            self.types.setdefault(name, f"typedef struct {{ {inside} }} {name};")
            return name
        lanes, element = vector(kind)
        if not lanes or element not in SIZES or lanes & (lanes - 1):
            raise unsupported(f"the type {kind}")
        own, name = self.type("i64" if element == "ptr" else element), f"V{lanes}{element}"
        size = lanes * SIZES[element]
        self.types.setdefault(name, f"typedef {own} {name} __attribute__((vector_size({size})));")
        return name

    def memory(self, kind: str) -> str:
        """The type as it lies anywhere in memory."""
        name = self.type(kind)
        own = "M" + re.sub(r"\W", "", name)
        attributes = "__attribute__((aligned(1), may_alias))"
        self.types.setdefault(own, f"typedef {name} {own} {attributes};")
        return own

    def translated(self, text: str, function: Callable[[Module, str, list[str]], str]) -> str:
        """The whole of a module's text; `function` translates one from its head and its lines."""
        lines = iter(text.splitlines())
        for line in lines:
            if line.startswith("@"):
                self.globals.append(self.constant(line))
            elif line.startswith("define "):
                body = []
                for inside in lines:
                    if inside == "}":
                        break
                    body.append(inside.strip())
                self.functions.append(function(self, line, body))
        heads = [f"{head};" for head in self.heads]
        return "\n".join(
            [PRELUDE, *self.types.values(), *self.globals, *heads, *self.functions, ""]
        )

    def constant(self, line: str) -> str:
        """A table in read-only memory, as bytes or as the bits of its numbers."""
        found = re.match(r'@([\w.]+) = .*?constant \[(\d+) x (\w+)\] (?:c"(.*)"|\[(.*)\])', line)
        if found is None:
            raise unsupported(line)
        name, count, element, text, numbers = found.groups()
        if text is not None:
            own = "uint8_t"
            values = [f"0x{code}" for code in re.findall(r"\\(..)", text)]
        else:
            own = f"uint{8 * SIZES[element]}_t"
            values = [bits_of(element, typed(part)[1]) for part in parts_of(numbers)]
        head = f"static const {own} {c_name('@' + name)}[{count}] __attribute__((aligned(64)))"
        return f"{head} = {{{', '.join(values)}}};"


def bits_of(element: str, number: str) -> str:
    """The bits of a number as C: floats are written as those of a double."""
    if element in ("float", "double"):
        if not number.startswith("0x"):
            raise unsupported(number)
        bits = int(number, 16)
        if element == "float":
            (value,) = struct.unpack("<d", struct.pack("<Q", bits))
            if value != value:  # keeps a NaN's sign and payload
                bits = bits >> 32 & 0x80000000 | 0x7F800000 | bits >> 29 & 0x7FFFFF
            else:
                (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return hex(bits) + ("u" if element == "float" else "ull")
    if element == "i1":
        return str(int(number in ("true", "1", "-1")))
    return f"{int(number)}" if abs(int(number)) < 2**31 else f"{int(number) % 2**64}ull"
