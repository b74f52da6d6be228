"""Types, attributes and locations in StableHLO's text, as the values of `frontends.tree`."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from ...hlo.errors import UserError
from .. import tree
from .scanner import (
    BARE,
    IDENTIFIER,
    MAXIMUM_PARTS,
    MAXIMUM_TYPE_PARTS,
    NUMBER,
    SKIP,
    Scanner,
)

_SCALAR = re.compile(SKIP + r"((?:[us]?i\d+|bf16|tf32|f\d+(?:E\d+M\d+\w*)?|index|none)\b)")
_PLAIN_TENSOR = re.compile(
    SKIP + r"(tensor<((?:(?:\d+|\?)x)*)([us]?i\d+|bf16|tf32|f\d+(?:E\d+M\d+\w*)?|index|none)>)"
)
_DIMENSIONS = re.compile(SKIP + r"((?:(?:\d++|\?)\s*+x\s*+)*+)")
_QUANTIZED = re.compile(
    r"<([iu]\d{1,2})(?:<(-?\d+):(-?\d+)>)?:([\w.]+)(?::(\d+))?,(?:\{([^{}]*)\}|([^{}]*))>"
)
_DENSE_TEXT = re.compile(r'[^">]*')
_ENUM_BODY = re.compile(r"<\s*([A-Z][A-Z0-9_]*)\s*>")
_CONVOLUTION_RAW = re.compile(SKIP + r"raw\b")
_PLAIN_LOCATION = re.compile(SKIP + r"loc\((#[\w$.]+|unknown)\)")
_RESOURCE = re.compile(r'(?<![\w.$-])([\w.$-]++|"[^"]*+")\s*+:\s*+"0x')

_RECORDS = (
    "dot",
    "gather",
    "scatter",
    "channel_handle",
    "dot_algorithm",
    "output_operand_alias",
    "result_accuracy",
)
_TEXT_ONLY = ("affine_map", "affine_set", "opaque", "sparse", "strided", "distinct")
_FLOAT_BITS = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}


def float_from_bits(bits: int, kind: tree.Type) -> float:
    """The float whose bit pattern is `bits`; ValueError for a type that has no such form here."""
    if kind == "bf16":
        return struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0]
    if not isinstance(kind, str) or kind not in _FLOAT_BITS:
        raise ValueError(f"bit patterns of {tree.spell(kind)} are not read")
    value, pattern = _FLOAT_BITS[kind]
    mask = (1 << 8 * struct.calcsize(pattern)) - 1
    return struct.unpack(value, struct.pack(pattern, bits & mask))[0]


def rounded(value: float, kind: tree.Type | None) -> float:
    """The nearest float of the type, as the bit pattern of an artifact would give it."""
    with np.errstate(over="ignore"):
        if kind == "f32":
            return float(np.float32(value))
        return float(np.float16(value)) if kind == "f16" else value


def parse_quantized(text: str) -> tree.Quantized | None:
    """`<i8:f32:1, {0.1:-30, 0.5}>` as a type, or None where the text is something else."""
    match = _QUANTIZED.fullmatch(re.sub(r"\s", "", text))
    if match is None:
        return None
    storage, low, high, expressed, axis, many, one = match.groups()
    width = int(storage[1:])
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


class AttributeReader(Scanner):
    """Reads types, attributes and locations; `#alias` and `!alias` may be defined after use."""

    def __init__(self, text: str, name: str = "<text>"):
        super().__init__(text, name)
        self._types: dict[str, tree.Type] = {}
        self._aliases = self._find_aliases()
        self._resolving: set[str] = set()
        self._values: dict[str, tuple[Any, int]] = {}
        self.parts = 0  # parts of the current op's attributes and types, aliases spelled out
        self._resources: dict[str, bytes] | None = None

    def _find_aliases(self) -> dict[str, int]:
        """Where the body of each `#name = ...` and `!name = ...` line starts."""
        found: dict[str, int] = {}
        for mark in "#!":
            position = 0 if self.text.startswith(mark) else self.text.find("\n" + mark) + 1
            while position or self.text.startswith(mark):
                match = IDENTIFIER.match(self.text, position + 1)
                if match is not None:
                    equals = self.text.find("=", match.end())
                    if equals >= 0 and not self.text[match.end() : equals].strip():
                        found.setdefault(mark + match[1], equals + 1)
                position = self.text.find("\n" + mark, position) + 1
                if not position:
                    break
        return found

    def _alias(self, name: str) -> Any:
        """The type or attribute that `name` (with its mark) stands for."""
        if name in self._values:
            value, parts = self._values[name]
            self._count(parts, name)
            return value
        if name not in self._aliases:
            self.fail(f"'{name}' is not defined in this file")
        if name in self._resolving:
            self.fail(f"'{name}' is defined by itself")
        self._resolving.add(name)
        saved, self.position = self.position, self._aliases[name]
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

    # Types

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
        match = _SCALAR.match(self.text, self.position)
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
        if "!" + name in self._aliases:
            return self._alias("!" + name)
        return tree.Opaque(name, "")

    def types(self) -> list[tree.Type]:
        """`(t, t)` or one type."""
        return self.sequence("(", ")", self.type) if self.at("(") else [self.type()]

    # Attributes

    def attribute(self) -> Any:
        """Any attribute, as `frontends.tree` describes."""
        self.enter()
        self.parts += 1
        value = self._attribute()
        self.leave()
        return value

    def _attribute(self) -> Any:
        match self.peek():
            case '"':
                value = self.string()
                if self.accept(":"):
                    self.type()
                return value
            case "[":
                return tuple(self.sequence("[", "]", self.attribute))
            case "{":
                return self.dictionary()
            case "@":
                return self.symbol()
            case "#":
                self.position += 1
                return self._dialect_attribute()
        if _SCALAR.match(self.text, self.position) is None:
            match = NUMBER.match(self.text, self.position)
            if match is not None:
                return self._number(match[1], match.end())
            match = IDENTIFIER.match(self.text, self.position)
            if match is not None and match[1] in self._WORDS:
                self.position = match.end()
                return self._WORDS[match[1]](self)
            if match is not None and match[1] in _TEXT_ONLY:
                self.position = match.end()
                return tree.Opaque(match[1], self.balanced())
        return self.type()

    def _number(self, text: str, end: int) -> tree.Integer | tree.Float:
        self.position = end
        kind = self.type() if self.accept(":") else None
        try:
            if "." in text:
                return tree.Float(rounded(float(text), kind), kind or "f64")
            if isinstance(kind, str) and kind[0] in "fb":
                return tree.Float(float_from_bits(int(text, 16), kind), kind)
            return tree.Integer(int(text, 0), kind or "i64")
        except ValueError as error:
            self.fail(str(error), end)

    def dictionary(self) -> dict[str, Any]:
        """`{name = attribute, unit}`"""
        entries: dict[str, Any] = {}

        def entry() -> None:
            key = self.string() if self.at('"') else self.read(BARE, "an attribute name")
            entries[key] = self.attribute() if self.accept("=") else True

        self.sequence("{", "}", entry)
        return entries

    def _dense(self) -> tree.Elements:
        """After `dense`: the payload stays text until someone needs its numbers."""
        self.expect("<")
        start = self.skip()
        if self.at('"0x') or self.at('"0X'):
            end = self.text.find('"', start + 1) + 1
        else:
            end = start
            while True:  # strings may hold any character, numbers hold no `>`
                match = _DENSE_TEXT.match(self.text, end)
                assert match is not None
                end = match.end()
                if self.text[end : end + 1] != '"':
                    break
                end = self._string_end(end + 1)
        payload = self.text[start:end]
        self.position = max(end, start)
        self.expect(">")
        self.expect(":")
        return tree.Elements(self._tensor_type(), payload.strip())

    def _tensor_type(self) -> tree.Tensor:
        kind = self.type()
        if not isinstance(kind, tree.Tensor):
            self.fail(f"a constant needs a tensor type, not {tree.spell(kind)}")
        return kind

    def _dense_resource(self) -> tree.Elements:
        self.expect("<")
        key = self.string() if self.at('"') else self.read(BARE, "a resource name")
        self.expect(">")
        self.expect(":")
        kind = self._tensor_type()
        if self._resources is None:
            self._resources = self._read_resources()
        if key not in self._resources:
            self.fail(f"the file has no resource '{key}'")
        return tree.Elements(kind, self._resources[key])

    def _read_resources(self) -> dict[str, bytes]:
        """The blobs of `{-# dialect_resources: ... #-}`, without their four bytes of alignment."""
        found: dict[str, bytes] = {}
        position = self.text.rfind("{-#")
        while position >= 0:
            match = _RESOURCE.search(self.text, position)
            if match is None:
                break
            end = self.text.find('"', match.end())
            try:
                blob = bytes.fromhex(self.text[match.end() : end])
            except ValueError:
                self.fail(f"resource {match[1]} is not hexadecimal", match.start())
            found[match[1].strip('"')] = blob[4:]
            position = end
        return found

    def _array(self) -> tuple[Any, ...]:
        """After `array`: `<i64: 1, 2>`."""
        self.expect("<")
        kind = self.type()
        items: list[Any] = []
        if self.accept(":"):
            while not self.at(">"):
                if kind == "i1":
                    items.append(self.boolean())
                elif isinstance(kind, str) and kind[0] in "fb":
                    items.append(self._float(kind))
                else:
                    items.append(self.integer())
                if not self.accept(","):
                    break
        self.expect(">")
        return tuple(items)

    def boolean(self) -> bool:
        if self.accept_word("true"):
            return True
        if self.accept_word("false"):
            return False
        return bool(self.integer())

    def _float(self, kind: str) -> float:
        text = self.read(NUMBER, "a number")
        try:
            return float_from_bits(int(text, 16), kind) if "x" in text else float(text)
        except ValueError as error:
            self.fail(str(error))

    _WORDS = {  # noqa: RUF012 - a constant table of this class
        "true": lambda self: True,
        "false": lambda self: False,
        "unit": lambda self: True,
        "dense": _dense,
        "dense_resource": _dense_resource,
        "array": _array,
        "loc": lambda self: tree.Opaque("loc", self.balanced()),
    }

    # Dialect attributes

    def _dialect_attribute(self) -> Any:
        """After `#`: an enum or record of StableHLO, an alias, or another dialect's text."""
        start = self.position
        name = self.identifier()
        if name in ("stablehlo", "chlo", "vhlo") and self.at("<"):
            self.expect("<")
            self.identifier()
            if not self.at("<"):
                value = self.identifier()
                self.expect(">")
                return value
            self.position = start + len(name)
            return tree.Opaque(name, self.balanced())
        if name.startswith(("stablehlo.", "chlo.")) and self.text.startswith("<", self.position):
            return self._stablehlo_attribute(name.partition(".")[2])
        if self.text.startswith("<", self.position):
            return tree.Opaque(name, self.balanced())
        return self._alias("#" + name)

    def _stablehlo_attribute(self, kind: str) -> Any:
        if kind == "type_extensions":
            self.expect("<")
            fields = self.fields()
            self.expect(">")
            return tree.Structured("bounds", fields)
        if kind == "bounds":
            bounds = tuple(self.sequence("<", ">", self.dimension))
            return tree.Structured("bounds", {"bounds": bounds})
        if kind == "conv":
            self.expect("<")
            if _CONVOLUTION_RAW.match(self.text, self.position):
                self.expect_word("raw")
                fields = self.fields()
            else:
                fields = self.convolution_dimensions()
            self.expect(">")
            return tree.Structured("conv", fields)
        if kind in _RECORDS or kind == "ragged_dot":
            self.expect("<")
            fields = self.fields()
            self.expect(">")
            return tree.Structured(kind, fields)
        match = _ENUM_BODY.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            return match[1]
        return tree.Opaque("stablehlo." + kind, self.balanced())

    def dimension(self) -> int:
        """A number or `?`."""
        return tree.DYNAMIC if self.accept("?") else self.integer()

    def fields(self) -> dict[str, Any]:
        """`name = value, ...` up to a closing `>`; lists of integers become tuples of int."""
        fields: dict[str, Any] = {}
        while not self.at(">"):
            key = self.identifier()
            self.expect("=")
            if self.at("["):
                fields[key] = tuple(self.sequence("[", "]", self.dimension))
            else:
                value = self.attribute()
                fields[key] = value.value if isinstance(value, tree.Integer) else value
            if not self.accept(","):
                break
        return fields

    def convolution_dimensions(self) -> dict[str, Any]:
        """`[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]` as VHLO's nine dimension attributes."""

        def side() -> list[str]:
            return [str(item) for item in self.sequence("[", "]", self._convolution_item)]

        start = self.skip()
        lhs = side()
        self.expect("x")
        rhs = side()
        self.expect("->")
        out = side()
        fields: dict[str, Any] = {}
        names = (
            ("input", lhs, {"b": "batch", "f": "feature"}),
            ("kernel", rhs, {"i": "input_feature", "o": "output_feature"}),
            ("output", out, {"b": "batch", "f": "feature"}),
        )
        for prefix, items, letters in names:
            spatial = [item for item in items if item.isdigit()]
            try:
                for letter, word in letters.items():
                    fields[f"{prefix}_{word}_dimension"] = items.index(letter)
                fields[f"{prefix}_spatial_dimensions"] = tuple(
                    items.index(str(number)) for number in range(len(spatial))
                )
            except ValueError:
                self.fail("the dimension numbers of a convolution are incomplete", start)
        return fields

    def _convolution_item(self) -> str | int:
        if IDENTIFIER.match(self.text, self.position):
            return self.identifier()
        return "?" if self.accept("?") else self.integer()

    # Locations

    def location_handle(self) -> str | int | None:
        """Step over `loc(...)` if it stands here; what `resolve_location` takes."""
        match = _PLAIN_LOCATION.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            return match[1]
        if not self.at("loc("):
            return None
        start = self.position
        self.position += len("loc")
        self.balanced()
        return start

    def resolve_location(self, handle: str | int | None) -> Any:
        """The location behind a handle, one level deep: aliases inside it are handles again."""
        if handle is None or handle == "unknown":
            return None
        if isinstance(handle, str):
            if handle not in self._aliases:
                return None
            start = self._aliases[handle]
        else:
            start = handle
        saved, self.position = self.position, start
        try:
            self.expect("loc")
            self.expect("(")
            return self._location()
        except UserError:
            return None  # a location is a courtesy: a strange one must not stop an import
        finally:
            self.position = saved

    def _location(self) -> Any:
        """One location; the caller chain of nested call sites is read in a loop."""
        callees: list[Any] = []
        while self.accept_word("callsite"):
            self.expect("(")
            callees.append(self._simple_location())
            self.expect_word("at")
        last = self._simple_location()
        for callee in reversed(callees):
            self.expect(")")
            last = tree.CallSite(callee, last)
        return last

    def _simple_location(self) -> Any:
        self.enter()
        try:
            if self.at("#"):
                self.position += 1
                return "#" + self.identifier()
            if self.accept_word("unknown"):
                return None
            if self.accept_word("callsite"):
                self.position -= len("callsite")
                return self._location()
            if self.accept_word("fused"):
                if self.at("<"):
                    self.balanced()
                return tree.FusedLocation(tuple(self.sequence("[", "]", self._location)))
            text = self.string()
            if self.accept(":"):
                line = self.integer()
                column = self.integer() if self.accept(":") else 0
                if self.accept_word("to"):
                    if self.text[self.skip()].isdigit():
                        self.integer()
                    if self.accept(":"):
                        self.integer()
                return tree.FileLocation(text, line, column)
            child = None
            if self.accept("("):
                child = self._location()
                self.expect(")")
            return tree.NameLocation(text, child)
        finally:
            self.leave()
