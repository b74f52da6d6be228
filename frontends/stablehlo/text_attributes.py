"""Attributes in StableHLO's text, as the values of `frontends.tree`."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from .. import tree
from .scanner import BARE, IDENTIFIER, NUMBER, SKIP
from .text_types import SCALAR, TypeReader

_DENSE_TEXT = re.compile(r'[^">]*')
_ENUM_BODY = re.compile(r"<\s*([A-Z][A-Z0-9_]*)\s*>")
_CONVOLUTION_RAW = re.compile(SKIP + r"raw\b")
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
_MESH_RECORDS = ("axis_ref", "mesh", "mesh_axis", "replica_group_mesh_axes")
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


class AttributeReader(TypeReader):
    """Reads attributes; constants stay text until someone needs their numbers."""

    def __init__(self, text: str, name: str = "<text>"):
        super().__init__(text, name)
        self._resources: dict[str, bytes] | None = None

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
        if SCALAR.match(self.text, self.position) is None:
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
        kind = self.type()
        return tree.Scalar(kind) if isinstance(kind, str) else kind

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
        return self.alias("#" + name)

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
        if kind in _MESH_RECORDS:
            return tree.Structured(kind, self._mesh_fields())
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

    def _mesh_fields(self) -> dict[str, Any]:
        """`<name = "x", sub_axis_info = (1)2>`, `<mesh = @m, axes = [..]>`: what a mesh has."""
        fields: dict[str, Any] = {}

        def entry() -> None:
            key = self.identifier()
            self.expect("=")
            if key == "sub_axis_info":
                self.expect("(")
                before = self.integer()
                self.expect(")")
                part = tree.Structured("sub_axis", {"parts": (before, self.integer())})
                fields["sub_axis"] = part
                return
            value = self.attribute()
            fields[key] = value.value if isinstance(value, tree.Integer) else value

        self.sequence("<", ">", entry)
        return fields

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
