"""Types in StableHLO's text, and the aliases that types and attributes may have."""

from __future__ import annotations

import re
from typing import Any

from .. import tree
from .scanner import MAXIMUM_PARTS, MAXIMUM_TYPE_PARTS, SKIP, Scanner

_SCALAR_NAMES = r"[us]?i\d+|bf16|tf32|f\d+(?:E\d+M\d+\w*)?|index|none"
SCALAR = re.compile(SKIP + rf"((?:{_SCALAR_NAMES})\b)")
_PLAIN_TENSOR = re.compile(SKIP + rf"(tensor<((?:(?:\d+|\?)x)*)({_SCALAR_NAMES})>)")
_DIMENSIONS = re.compile(SKIP + r"((?:(?:\d++|\?)\s*+x\s*+)*+)")
_QUANTIZED = re.compile(
    r"<([iu]\d{1,2})(?:<(-?\d+):(-?\d+)>)?:([\w.]+)(?::(\d+))?,(?:\{([^{}]*)\}|([^{}]*))>"
)
_ALIAS = re.compile(r"([A-Za-z_$][\w$.]*+)\s*+=")


def parse_quantized(text: str) -> tree.Quantized | None:
    """`<i8:f32:1, {0.1:-30, 0.5}>` as a type, or None where the text is something else."""
    match = _QUANTIZED.fullmatch(re.sub(r"\s", "", text))
    if match is None:
        return None
    storage, low, high, expressed, axis, many, one = match.groups()
    width = int(storage[1:])
    if not width:
        return None
    if low is None:
        low, high = (
            (-(1 << (width - 1)), (1 << (width - 1)) - 1)
            if storage[0] == "i"
            else (0, (1 << width) - 1)
        )
    if (axis is None) != (many is None):
        return None
    try:
        pairs = [pair.split(":") for pair in (many if many is not None else one).split(",")]
        scales = tuple(float(pair[0]) for pair in pairs)
        zeros = tuple(int(pair[1]) if len(pair) == 2 else 0 for pair in pairs)
    except ValueError:
        return None
    # `u8` in a quantised type is `ui8` elsewhere.
    storage = storage if storage[0] == "i" else "ui" + storage[1:]
    return tree.Quantized(
        storage, expressed, None if axis is None else int(axis), scales, zeros, int(low), int(high)
    )


class TypeReader(Scanner):
    """Reads types; `#alias` and `!alias` may be defined after their use."""

    def __init__(self, text: str, name: str = "<text>"):
        super().__init__(text, name)
        self._types: dict[str, tree.Type] = {}
        self.aliases = self._find_aliases()
        self._resolving: set[str] = set()
        self._values: dict[str, tuple[Any, int]] = {}
        self.parts = 0  # parts of the current op's attributes and types, aliases spelled out

    def _find_aliases(self) -> dict[str, int]:
        """Where the body of each `#name = ...` and `!name = ...` line starts."""
        found: dict[str, int] = {}
        for mark in "#!":
            position = 0 if self.text.startswith(mark) else self.text.find("\n" + mark) + 1
            while position or self.text.startswith(mark):
                match = _ALIAS.match(self.text, position + 1)
                if match is not None:
                    found.setdefault(mark + match[1], match.end())
                position = self.text.find("\n" + mark, position) + 1
                if not position:
                    break
        return found

    def alias(self, name: str) -> Any:
        """The type or attribute that `name` (with its mark) stands for."""
        if name in self._values:
            value, parts = self._values[name]
            self._count(parts, name)
            return value
        if name not in self.aliases:
            self.fail(f"'{name}' is not defined in this file")
        if name in self._resolving:
            self.fail(f"'{name}' is defined by itself")
        self._resolving.add(name)
        saved, self.position = self.position, self.aliases[name]
        before = self.parts
        self.enter()
        value = self.type() if name[0] == "!" else self.attribute()
        self.leave()
        self.position = saved
        self._resolving.discard(name)
        self._count(0, name)
        self._values[name] = value, self.parts - before
        return value

    def _count(self, parts: int, name: str) -> None:
        """Note that `parts` more parts are described; too many cannot be meant."""
        self.parts += parts
        limit = MAXIMUM_TYPE_PARTS if name[0] == "!" else MAXIMUM_PARTS
        if self.parts > limit:
            self.fail(f"'{name}' stands for more than {limit} parts")

    def attribute(self) -> Any:
        """Any attribute; `AttributeReader` knows how."""
        raise NotImplementedError

    def type(self) -> tree.Type:
        """Any type; equal spellings give the same object."""
        match = _PLAIN_TENSOR.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            known = self._types.get(match[1])
            if known is None:
                shape = self._shape(match[2].split("x")[:-1])
                known = self._types[match[1]] = tree.Tensor(shape, match[3])
            return known
        match = SCALAR.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            return match[1]
        self.enter()
        self.parts += 1
        start = self.skip()
        kind = self._compound_type()
        self.leave()
        return self._types.setdefault(self.text[start : self.position], kind)

    def _shape(self, dims: list[str]) -> tuple[int, ...]:
        shape = tuple(tree.DYNAMIC if dim == "?" else int(dim) for dim in dims)
        if any(dim >= 1 << 63 for dim in shape):
            self.fail("a dimension does not fit in 64 bits")
        return shape

    def _compound_type(self) -> tree.Type:
        text, start = self.text, self.position
        for name in ("tensor", "memref", "vector"):
            if text.startswith(name + "<", start):
                self.position += len(name) + 1
                return self._shaped(name)
        if text.startswith("complex<", start):
            self.position += len("complex<")
            element = self.type()
            self.expect(">")
            if not isinstance(element, str):
                self.fail("the parts of a complex number must be scalars")
            return tree.Complex(element)
        if text.startswith("tuple<", start):
            self.position += len("tuple")
            return tree.Tuple(tuple(self.sequence("<", ">", self.type)))
        if text.startswith("(", start):
            inputs = tuple(self.sequence("(", ")", self.type))
            self.expect("->")
            return tree.FunctionType(inputs, tuple(self.types()))
        if text.startswith("!", start):
            self.position += 1
            return self._dialect_type(self.identifier())
        self.fail("expected a type")

    def _shaped(self, name: str) -> tree.Type:
        """The rest of `tensor<`, `memref<` or `vector<`."""
        if self.accept("*"):
            self.expect("x")
            element = self.type()
            self.expect(">")
            return tree.Unranked(element)
        dims = re.sub(r"\s", "", self.read(_DIMENSIONS, "dimensions")).split("x")[:-1]
        element = self.type()
        encoding = self.attribute() if self.accept(",") else None
        self.expect(">")
        shape = self._shape(dims)
        if name == "vector":
            return tree.Opaque("vector", f"{list(shape)}")
        if name == "memref":
            return tree.Buffer(shape, element)
        return tree.Tensor(shape, element, encoding)

    def _dialect_type(self, name: str) -> tree.Type:
        if name == "stablehlo.token":
            return "token"
        if name == "stablehlo.future":
            return tree.Future(tuple(self.sequence("<", ">", self.type)))
        if name == "quant.uniform":
            text = self.balanced()
            return parse_quantized(text) or tree.Opaque(name, text)
        if self.text.startswith("<", self.position):
            return tree.Opaque(name, self.balanced())
        if "!" + name in self.aliases:
            return self.alias("!" + name)
        return tree.Opaque(name, "")

    def types(self) -> list[tree.Type]:
        """`(t, t)` or one type."""
        return self.sequence("(", ")", self.type) if self.at("(") else [self.type()]
