"""Attribute, type and location entries of MLIR bytecode: builtin, VHLO and sdy encodings."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from ...hlo.errors import UserError
from ...hlo.sharding import REDUCTIONS, SUM, Axis, DimSharding, Mesh
from .. import tree
from . import sdy
from .cursor import Cursor
from .normal import ENUMS
from .scanner import MAX_DEPTH, MAXIMUM_PARTS, MAXIMUM_TYPE_PARTS
from .text import parse_attribute, parse_type
from .text_attributes import float_from_bits


class Raw(NamedTuple):
    """Where one entry stands, whose it is, and whether it is encoded or assembly text."""

    dialect: str
    custom: bool
    start: int
    end: int


_OPEN = object()  # an entry that is being read: meeting it again is a cycle

_VHLO_TYPE_NAMES = """
    0 i1  2 bf16  3 f16  4 f32  5 f64  6 f8E4M3FN  7 f8E5M2  9 index  10 i4  11 i8  12 i16  13 i32
    14 i64  15 ui4  16 ui8  17 ui16  18 ui32  19 ui64  22 token  27 f8E4M3FNUZ  28 f8E5M2FNUZ
    29 f8E4M3B11FNUZ  31 i2  32 ui2  33 none  34 tf32  35 f8E4M3  36 f8E3M4  37 f4E2M1FN
    38 f6E2M3FN  39 f6E3M2FN  40 f8E8M0FNU
"""
_VHLO_WORDS = _VHLO_TYPE_NAMES.split()
VHLO_TYPES = dict(zip(map(int, _VHLO_WORDS[::2]), _VHLO_WORDS[1::2], strict=True))

_ENUMS = {code: words for _, code, words in ENUMS.values()}


class EntryReader:
    """Reads entries on demand; each once."""

    def __init__(self, data: memoryview, name: str):
        self.data = data
        self.name = name
        self.strings: list[str] = []
        self.dialects: list[str] = []
        self.resource_keys: list[str] = []
        self.resources: dict[str, bytes | memoryview] = {}
        self.producer = ""
        self._nesting = 0
        self._nodes = 0

    def set_entries(self, attributes: list[Raw], types: list[Raw]) -> None:
        self._raw_attributes, self._raw_types = attributes, types
        self._attributes: list[Any] = [None] * len(attributes)
        self._types: list[Any] = [None] * len(types)
        self._attribute_nodes = [0] * len(attributes)
        self._type_nodes = [0] * len(types)

    def attribute(self, index: int) -> Any:
        """The attribute of that number, as `frontends.tree` describes."""
        value = self._attributes[index]
        if value is None:
            value = self._resolve(
                self._raw_attributes[index], self._attributes, self._attribute_nodes, index, False
            )
        elif value is _OPEN:
            raise UserError(f"{self.name}: an attribute contains itself")
        else:
            self._nodes += self._attribute_nodes[index]
        return None if value is _NONE else value

    def type(self, index: int) -> tree.Type:
        value = self._types[index]
        if value is None:
            value = self._resolve(
                self._raw_types[index], self._types, self._type_nodes, index, True
            )
        elif value is _OPEN:
            raise UserError(f"{self.name}: a type contains itself")
        else:
            self._nodes += self._type_nodes[index]
        return value

    def _resolve(
        self, raw: Raw, table: list[Any], nodes: list[int], index: int, is_type: bool
    ) -> Any:
        table[index] = _OPEN
        before, self._nodes = self._nodes, 1
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise UserError(f"{self.name}: attributes nest deeper than {MAX_DEPTH} levels")
        cursor = Cursor(self.data, raw.start, raw.end, self.name)
        value = self._decode(raw, cursor, is_type)
        if not cursor.done:
            cursor.fail(f"an entry of dialect '{raw.dialect}' has bytes that are not understood")
        limit = MAXIMUM_TYPE_PARTS if is_type else MAXIMUM_PARTS
        if self._nodes > limit:
            cursor.fail(f"{'a type' if is_type else 'an attribute'} has more than {limit} parts")
        self._nesting -= 1
        nodes[index] = self._nodes
        self._nodes += before
        table[index] = _NONE if value is None else value
        return table[index]

    def _decode(self, raw: Raw, cursor: Cursor, is_type: bool) -> Any:
        if not raw.custom:
            return self._assembly(cursor.terminated(), is_type)
        if raw.dialect == "vhlo":
            return self._vhlo_type(cursor) if is_type else self._vhlo_attribute(cursor)
        if raw.dialect == "builtin":
            return self._builtin_type(cursor) if is_type else self._builtin_attribute(cursor)
        if raw.dialect == "sdy" and not is_type:
            return self._sdy_attribute(cursor)
        cursor.position = cursor.end
        return tree.Opaque(raw.dialect, f"<bytes {bytes(self.data[raw.start : raw.end]).hex()}>")

    def _assembly(self, text: str, is_type: bool) -> Any:
        return parse_type(text) if is_type else parse_attribute(text)

    # Pieces

    def attributes(self, cursor: Cursor) -> tuple[Any, ...]:
        return tuple([self.attribute(cursor.varint()) for _ in range(cursor.count())])

    def types(self, cursor: Cursor) -> tuple[tree.Type, ...]:
        return tuple([self.type(cursor.varint()) for _ in range(cursor.count())])

    def optional_attribute(self, cursor: Cursor) -> Any:
        value = cursor.varint()
        return self.attribute(value >> 1) if value & 1 else None

    def string(self, cursor: Cursor) -> str:
        return self.strings[cursor.varint()]

    def _bits(self, cursor: Cursor, width: int) -> int:
        """An integer of `width` bits, unsigned."""
        if width <= 8:
            value = cursor.byte()
        elif width <= 64:
            value = cursor.signed()
        else:
            words = [cursor.signed() & (1 << 64) - 1 for _ in range(cursor.count())]
            value = sum(word << 64 * place for place, word in enumerate(words))
        return value & ((1 << width) - 1)

    def _double(self, cursor: Cursor) -> float:
        return struct.unpack("<d", self._bits(cursor, 64).to_bytes(8, "little"))[0]

    def _integer(self, cursor: Cursor) -> tree.Integer | bool:
        kind = self.type(cursor.varint())
        width = scalar_width(kind)
        value = self._bits(cursor, width)
        if kind == "i1":
            return bool(value)
        if not (isinstance(kind, str) and kind.startswith("ui")) and value >> (width - 1):
            value -= 1 << width
        return tree.Integer(value, kind)

    def _float(self, cursor: Cursor) -> tree.Float:
        kind = self.type(cursor.varint())
        bits = self._bits(cursor, scalar_width(kind))
        return tree.Float(float_from_bits(bits, kind), kind)

    # VHLO

    def _vhlo_type(self, cursor: Cursor) -> tree.Type:
        code = cursor.varint()
        known = VHLO_TYPES.get(code)
        if known is not None:
            return known
        match code:
            case 1:
                return tree.Complex(self._scalar(cursor))
            case 8:
                return tree.FunctionType(self.types(cursor), self.types(cursor))
            case 20:
                return tree.Tensor(cursor.signed_list(), self.type(cursor.varint()))
            case 21:
                encoding = self.attribute(cursor.varint())
                shape = cursor.signed_list()
                return tree.Tensor(shape, self.type(cursor.varint()), encoding)
            case 23:
                return tree.Tuple(self.types(cursor))
            case 24 | 30:
                return self._quantized(cursor, code == 30)
            case 25:
                return tree.Unranked(self.type(cursor.varint()))
            case 26:
                return tree.Opaque("shape.witness", "")
            case 41:
                return tree.Buffer(cursor.signed_list(), self.type(cursor.varint()))
            case 42:
                return tree.Future(self.types(cursor))
        return self._newer(cursor, "type", code)

    def _scalar(self, cursor: Cursor) -> str:
        kind = self.type(cursor.varint())
        if not isinstance(kind, str):
            cursor.fail("a scalar type was expected")
        return kind

    def _quantized(self, cursor: Cursor, per_axis: bool) -> tree.Quantized:
        flags = cursor.varint()
        storage, expressed = self._scalar(cursor), self._scalar(cursor)
        axis = None
        if per_axis:
            axis = cursor.varint()
            low, high = cursor.signed(), cursor.signed()
            scales = tuple([self._double(cursor) for _ in range(cursor.count())])
            zeros = cursor.signed_list()
        else:
            scales, zeros = (self._double(cursor),), (cursor.signed(),)
            low, high = cursor.signed(), cursor.signed()
        sign = "i" if flags & 1 else "ui"
        return tree.Quantized(
            sign + storage.lstrip("ui"), expressed, axis, scales, zeros, low, high
        )

    def _newer(self, cursor: Cursor, what: str, code: int) -> Any:
        cursor.fail(
            f"the VHLO {what} code {code} is unknown; the producer '{self.producer}' may be newer "
            "than this girih: export for an older StableHLO, or update girih"
        )

    def _vhlo_attribute(self, cursor: Cursor) -> Any:
        code = cursor.varint()
        names = _ENUMS.get(code)
        if names is not None:
            number = cursor.varint()
            return names[number] if number < len(names) else self._newer(cursor, "enum", number)
        match code:
            case 1:
                return self.attributes(cursor)
            case 2:
                return bool(cursor.varint())
            case 5:
                return tree.Integer(cursor.varint(), "i32")
            case 6:
                return self._dictionary(cursor)
            case 8:
                return self._float(cursor)
            case 9:
                return self._integer(cursor)
            case 10:
                keys = ("output_tuple_indices", "operand_index", "operand_tuple_indices")
                values = (cursor.signed_list(), cursor.signed(), cursor.signed_list())
                return tree.Structured("output_operand_alias", dict(zip(keys, values, strict=True)))
            case 14:
                return self.string(cursor)
            case 15:
                return self._tensor(cursor)
            case 17:
                return self._type_attribute(cursor)
            case 18:
                return tree.Structured("bounds", {"bounds": cursor.signed_list()})
            case 20:
                return self._result_accuracy(cursor)
            case 21:
                return tree.Structured("sub_axis", {"parts": (cursor.signed(), cursor.signed())})
            case 22:
                name = self.attribute(cursor.varint())
                part = self.attribute(cursor.varint()) if cursor.varint() else None
                return tree.Structured("axis_ref", {"name": name, "sub_axis": part})
            case 23:
                mesh, axes = self.attribute(cursor.varint()), self.attribute(cursor.varint())
                return tree.Structured("replica_group_mesh_axes", {"mesh": mesh, "axes": axes})
            case 24:
                name = self.attribute(cursor.varint())
                return tree.Structured("mesh_axis", {"name": name, "size": cursor.signed()})
            case 25:
                axes = self.attribute(cursor.varint())
                devices = self.optional_attribute(cursor)
                return tree.Structured("mesh", {"axes": axes, "device_ids": devices})
        return self._newer(cursor, "attribute", code)

    def _type_attribute(self, cursor: Cursor) -> tree.Type:
        kind = self.type(cursor.varint())
        return tree.Scalar(kind) if isinstance(kind, str) else kind

    def _dictionary(self, cursor: Cursor) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for _ in range(cursor.count()):
            key = self.attribute(cursor.varint())
            entries[str(key)] = self.attribute(cursor.varint())
        return entries

    def _tensor(self, cursor: Cursor) -> tree.Elements:
        kind = self.type(cursor.varint())
        if not isinstance(kind, tree.Tensor):
            cursor.fail("a constant has no tensor type")
        return tree.Elements(kind, cursor.blob())

    def _result_accuracy(self, cursor: Cursor) -> tree.Structured:
        fields: dict[str, Any] = {
            "atol": tree.Float(self._double(cursor), "f64"),
            "rtol": tree.Float(self._double(cursor), "f64"),
            "ulps": cursor.signed(),
            "mode": self.attribute(cursor.varint()),
        }
        return tree.Structured("result_accuracy", fields)

    # Builtin

    def _builtin_type(self, cursor: Cursor) -> tree.Type:
        code = cursor.varint()
        match code:
            case 0:
                value = cursor.varint()
                return ("i", "si", "ui", "i")[value & 3] + str(value >> 2)
            case 1 | 3 | 4 | 5 | 6 | 7 | 8 | 12:
                names = {1: "index", 3: "bf16", 4: "f16", 5: "f32", 6: "f64", 7: "f80", 8: "f128"}
                return names.get(code, "none")
            case 2:
                return tree.FunctionType(self.types(cursor), self.types(cursor))
            case 9:
                return tree.Complex(self._scalar(cursor))
            case 10:
                return tree.Buffer(cursor.signed_list(), self.type(cursor.varint()))
            case 13:
                return tree.Tensor(cursor.signed_list(), self.type(cursor.varint()))
            case 14:
                encoding = self.attribute(cursor.varint())
                shape = cursor.signed_list()
                return tree.Tensor(shape, self.type(cursor.varint()), encoding)
            case 15:
                return tree.Tuple(self.types(cursor))
            case 18:
                return tree.Unranked(self.type(cursor.varint()))
        cursor.fail(f"the builtin type code {code} is not used by StableHLO")

    def _builtin_attribute(self, cursor: Cursor) -> Any:
        start = cursor.position
        code = cursor.varint()
        match code:
            case 0:
                return self.attributes(cursor)
            case 1:
                return self._dictionary(cursor)
            case 2:
                return self.string(cursor)
            case 3:
                text = self.string(cursor)
                self.type(cursor.varint())
                return text
            case 4:
                return self.attribute(cursor.varint())
            case 5:
                root = str(self.attribute(cursor.varint()))
                return "::@".join([root, *map(str, self.attributes(cursor))])
            case 6:
                return self._type_attribute(cursor)
            case 7:
                return True
            case 8:
                return self._integer(cursor)
            case 9:
                return self._float(cursor)
            case 16:
                kind = self.type(cursor.varint())
                key = self.resource_keys[cursor.varint()]
                if not isinstance(kind, tree.Tensor) or key not in self.resources:
                    cursor.fail(f"the file has no resource '{key}'")
                return tree.Elements(kind, self.resources[key])
            case 17:
                return self._dense_array(cursor)
            case 18:
                return self._tensor(cursor)
        cursor.position = start
        return self._location(cursor)

    def _dense_array(self, cursor: Cursor) -> tuple[Any, ...]:
        kind = self.type(cursor.varint())
        size = cursor.varint()
        data = cursor.blob()
        formats = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
        letter = formats.get(kind) if isinstance(kind, str) else None
        if letter is None or struct.calcsize(f"<{letter}") * size != len(data):
            cursor.fail("an array is malformed")
        return struct.unpack(f"<{size}{letter}", data)

    # sdy

    def _sdy_attribute(self, cursor: Cursor) -> Any:
        code = cursor.varint()
        match code:
            case 0:
                return sdy.manual_axes(self.attributes(cursor))
            case 1:
                return self.string(cursor), cursor.signed()
            case 2:
                return sdy.mesh(Mesh(self.attributes(cursor), cursor.signed_list()))
            case 3:
                return cursor.signed(), cursor.signed()
            case 4:
                name, part = self.string(cursor), self.optional_attribute(cursor)
                return Axis(name, *part) if part else Axis(name)
            case 5:
                axes = self.attributes(cursor)
                closed = bool(cursor.byte())
                priority = cursor.varint()
                return DimSharding(axes, not closed, priority >> 1 if priority & 1 else None)
            case 6 | 15 | 17:
                mesh = self.attribute(cursor.varint())
                dims, replicated = self.attributes(cursor), self.attributes(cursor)
                unreduced = self.attributes(cursor) if code != 6 else ()
                reduction = REDUCTIONS[cursor.signed()] if code == 17 else SUM
                return sdy.stored_sharding(mesh, dims, replicated, unreduced, reduction)
            case 7 | 16:
                return sdy.per_value(self.attributes(cursor))
        cursor.position = cursor.end
        return tree.Opaque("sdy", f"<code {code}>")

    # Locations

    def location(self, index: Any) -> Any:
        """The location of that number, one level deep: its parts are numbers again."""
        try:
            raw = self._raw_attributes[index]
            if raw.dialect != "builtin" or not raw.custom:
                return None
            return self._location(Cursor(self.data, raw.start, raw.end, self.name))
        except (UserError, IndexError, TypeError):
            return None  # a location is a courtesy: a strange one must not stop an import

    def _location(self, cursor: Cursor) -> Any:
        code = cursor.varint()
        match code:
            case 10:
                return tree.CallSite(cursor.varint(), cursor.varint())
            case 11:
                file = str(self.attribute(cursor.varint()))
                return tree.FileLocation(file, cursor.varint(), cursor.varint())
            case 12 | 13:
                parts = tuple([cursor.varint() for _ in range(cursor.count())])
                if code == 13:
                    cursor.varint()
                return tree.FusedLocation(parts)
            case 14:
                name = str(self.attribute(cursor.varint()))
                return tree.NameLocation(name, cursor.varint())
            case 15:
                return None
            case 22:
                file = str(self.attribute(cursor.varint()))
                numbers = [cursor.varint() for _ in range(cursor.count())] + [0, 0]
                return tree.FileLocation(file, numbers[0], numbers[1])
        cursor.fail(f"the builtin attribute code {code} is not used by StableHLO")


_NONE = object()  # an entry that was read and means None


def scalar_width(kind: tree.Type) -> int:
    """Bits of a scalar type."""
    if kind == "index":
        return 64
    if isinstance(kind, str):
        if kind == "tf32":
            return 19
        digits = kind.lstrip("usibf")[:3]
        number = ""
        for character in digits:
            if not character.isdigit():
                break
            number += character
        if number and 0 < int(number) <= 128:
            return int(number)
    raise UserError(f"a number cannot have the type {tree.spell(kind)}")
