"""Attribute, type and location entries of MLIR bytecode, written: builtin and VHLO encodings."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...hlo.errors import UnsupportedError
from .. import tree
from .attributes import ACCURACY
from .bytecode_entries import VHLO_TYPES, scalar_width
from .downgrade import Builtin
from .encoder import (
    FLAGGED,
    LARGE,
    Entries,
    Part,
    Reference,
    Table,
    bits,
    double,
    signed,
    signed_list,
    varint,
)
from .literals import element_of, read_elements
from .normal import ENUMS, KINDS, integers
from .places import Places

_CODES = {name: code for code, name in VHLO_TYPES.items()}
_BUILTIN_SCALARS = {"index": 1, "bf16": 3, "f16": 4, "f32": 5, "f64": 6, "none": 12}
_SIGNS = {"i": 0, "si": 1, "ui": 2}
_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


class EntryWriter:
    """Adds entries and says how they are referred to."""

    def __init__(self, document: tree.Document) -> None:
        self.strings = Table()
        self.entries = Entries(0), Entries(1)
        self._types: dict[Any, Reference] = {}
        self._known: dict[Any, Reference] = {}
        self.places = Places(document)
        self._locations: list[Reference] = []
        self.unknown = self._attribute("builtin", varint(15))

    def _attribute(self, dialect: str, *parts: Part) -> Reference:
        return self.entries[0].add(dialect, parts)

    def string(self, text: str) -> bytes:
        """The number of a string."""
        return varint(self.strings.number(text.encode("utf-8", "surrogateescape")))

    def _listed(self, references: Iterable[Reference]) -> list[Part]:
        found = list(references)
        return [varint(len(found)), *found]

    # VHLO types

    def type(self, kind: tree.Type) -> Reference:
        """The VHLO type."""
        if isinstance(kind, Builtin):
            return self.builtin_type(kind.type)
        key = tree.key(kind)
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = self.entries[1].add("vhlo", self._type_parts(kind))
        return known

    def _type_parts(self, kind: tree.Type) -> list[Part]:
        match kind:
            case str() if kind in _CODES:
                return [varint(_CODES[kind])]
            case tree.Tensor(shape, element, encoding):
                tail: list[Part] = [signed_list(shape), self.type(element)]
                if encoding is None:
                    return [varint(20), *tail]
                return [varint(21), self.value(encoding), *tail]
            case tree.Complex(element):
                return [varint(1), self.type(element)]
            case tree.FunctionType(inputs, results):
                heads = self._listed(map(self.type, inputs)), self._listed(map(self.type, results))
                return [varint(8), *heads[0], *heads[1]]
            case tree.Tuple(types):
                return [varint(23), *self._listed(map(self.type, types))]
            case tree.Future(types):
                return [varint(42), *self._listed(map(self.type, types))]
            case tree.Unranked(element):
                return [varint(25), self.type(element)]
            case tree.Buffer(shape, element):
                return [varint(41), signed_list(shape), self.type(element)]
            case tree.Quantized():
                return self._quantized(kind)
            case tree.Opaque("shape.witness"):
                return [varint(26)]
        raise UnsupportedError(f"the type {tree.spell(kind)} has no portable form")

    def _quantized(self, kind: tree.Quantized) -> list[Part]:
        flag = 0 if kind.storage.startswith("ui") else 1
        storage = self.type("i" + kind.storage.lstrip("ui"))
        head: list[Part] = [varint(flag), storage, self.type(kind.expressed)]
        bounds = signed(kind.minimum) + signed(kind.maximum)
        if kind.axis is None:
            numbers = double(kind.scales[0]) + signed(kind.zero_points[0])
            return [varint(24), *head, numbers + bounds]
        scales = varint(len(kind.scales)) + b"".join(map(double, kind.scales))
        return [
            varint(30), *head, varint(kind.axis) + bounds, scales + signed_list(kind.zero_points)
        ]  # fmt: skip

    # VHLO attributes

    def typed(self, key: str, value: Any) -> Reference:
        """The attribute `key` from its normal form."""
        kind = KINDS.get(key, "any")
        if key == "api_version":
            return self._attribute("vhlo", varint(5), varint(value.value))
        if key in ENUMS and kind == "enum":
            return self._enum(key, value)
        match kind:
            case "enums":
                return self._array([self._enum(key, item) for item in value])
            case "ints":
                return self._memo((kind, value), lambda: self._tensor(integers(value)))
            case "bools":
                array = np.asarray(value, np.bool_)
                flags = tree.Elements(tree.Tensor(array.shape, "i1"), array.tobytes())
                return self._memo((kind, value), lambda: self._tensor(flags))
            case "type":
                return self._type_attribute(value)
        if value == "none" and key.endswith(("_count", "_operations", "_accumulation")):
            return self._type_attribute("none")
        return self.value(value, is_type=key == "function_type")

    def _memo(self, key: Any, make: Any) -> Reference:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = make()
        return known

    def _type_attribute(self, kind: tree.Type) -> Reference:
        return self._attribute("vhlo", varint(17), self.type(kind))

    def _enum(self, key: str, word: str) -> Reference:
        _, code, words = ENUMS[key]
        if word not in words:
            raise UnsupportedError(f"'{word}' is no {key} of StableHLO's")
        return self._attribute("vhlo", varint(code), varint(words.index(word)))

    def _array(self, items: Iterable[Reference]) -> Reference:
        return self._attribute("vhlo", varint(1), *self._listed(items))

    def value(self, value: Any, is_type: bool = False) -> Reference:
        """Any value of a tree as a VHLO attribute."""
        if is_type:
            return self._type_attribute(value)
        match value:
            case bool():
                return self._attribute("vhlo", varint(2), varint(value))
            case tree.Scalar():
                return self._type_attribute(str(value))
            case str():
                return self._attribute("vhlo", varint(14), self.string(value))
            case tree.Integer(number, kind):
                width = scalar_width(kind)
                return self._attribute("vhlo", varint(9), self.type(kind), bits(number, width))
            case tree.Float(number, kind):
                return self._attribute("vhlo", varint(8), self.type(kind), float_bits(value))
            case tree.Elements():
                return self._tensor(value)
            case tree.Structured():
                return self._record(value)
            case tree.Opaque(name, text):
                return self._assembly(name, text)
            case int():
                return self.value(tree.Integer(value, "i64"))
            case float():
                return self.value(tree.Float(value, "f64"))
            case Mapping():
                parts: list[Part] = [varint(len(value))]
                for key in sorted(value):
                    parts += [self.value(str(key)), self.value(value[key])]
                return self._attribute("vhlo", varint(6), *parts)
            case tuple():
                return self._array([self.value(item) for item in value])
        return self._type_attribute(value)

    def _assembly(self, name: str, text: str) -> Reference:
        """An attribute of another dialect as the text that its own parser reads."""
        dialect = name.partition(".")[0]
        data = f"#{name}{text}".encode("utf-8", "surrogateescape") + b"\0"
        return self.entries[0].add(dialect, [data], encoded=False)

    def _tensor(self, value: tree.Elements) -> Reference:
        if len(value.payload) <= LARGE:
            return self._data(value)
        # The same data again, such as a weight that several functions use, is not written twice.
        key = ("data", id(value.payload), tree.key(value.type))
        return self._memo(key, lambda: self._data(value))

    def _data(self, value: tree.Elements) -> Reference:
        data = packed_data(value)
        return self._attribute("vhlo", varint(15), self.type(value.type), varint(len(data)), data)

    def _record(self, value: tree.Structured) -> Reference:
        fields = {key: getattr(item, "value", item) for key, item in value.fields.items()}
        match value.kind:
            case "result_accuracy":
                fields = {**ACCURACY, **fields}
                numbers = double(fields["atol"]) + double(fields["rtol"]) + signed(fields["ulps"])
                mode = self._enum("mode", fields["mode"])
                return self._attribute("vhlo", varint(20), numbers, mode)
            case "output_operand_alias":
                outs, ins = (
                    signed_list(fields.get(key, ()))
                    for key in ("output_tuple_indices", "operand_tuple_indices")
                )
                data = outs + signed(fields.get("operand_index", 0)) + ins
                return self._attribute("vhlo", varint(10), data)
            case "bounds" | "type_extensions":
                return self._attribute("vhlo", varint(18), signed_list(fields["bounds"]))
            case "sub_axis":
                data = b"".join(map(signed, fields["parts"]))
                return self._attribute("vhlo", varint(21), data)
            case "axis_ref":
                part = fields.get("sub_axis")
                tail = [varint(0)] if part is None else [varint(1), self.value(part)]
                return self._attribute("vhlo", varint(22), self.value(fields["name"]), *tail)
            case "replica_group_mesh_axes":
                both = self.value(fields["mesh"]), self.value(fields["axes"])
                return self._attribute("vhlo", varint(23), *both)
            case "mesh_axis":
                name = self.value(fields["name"])
                return self._attribute("vhlo", varint(24), name, signed(fields["size"]))
            case "mesh":
                devices = fields.get("device_ids")
                tail = self._optional(None if devices is None else self.value(devices))
                return self._attribute("vhlo", varint(25), self.value(fields["axes"]), tail)
        raise UnsupportedError(f"the record '{value.kind}' has no portable form")

    def _optional(self, reference: Reference | None) -> Part:
        return varint(0) if reference is None else reference._replace(form=FLAGGED)

    # Builtin attributes

    def builtin_type(self, kind: tree.Type) -> Reference:
        """MLIR's own type: of module attributes."""
        if isinstance(kind, tree.Tensor):
            data = [varint(13), signed_list(kind.shape), self.builtin_type(kind.element)]
            return self.entries[1].add("builtin", data)
        if isinstance(kind, tree.Complex):
            return self.entries[1].add("builtin", [varint(9), self.builtin_type(kind.element)])
        if isinstance(kind, str) and kind in _BUILTIN_SCALARS:
            return self.entries[1].add("builtin", [varint(_BUILTIN_SCALARS[kind])])
        if isinstance(kind, str):
            sign = kind.rstrip("0123456789")
            if sign in _SIGNS:
                data = varint(0) + varint(scalar_width(kind) << 2 | _SIGNS[sign])
                return self.entries[1].add("builtin", [data])
        raise UnsupportedError(f"the type {tree.spell(kind)} cannot stand in a module's attribute")

    def builtin(self, value: Any) -> Reference:
        """Any value of a tree as an attribute of MLIR's own."""
        match value:
            case bool():
                return self._attribute(
                    "builtin", varint(8), self.builtin_type("i1"), bits(value, 1)
                )
            case str():
                return self._attribute("builtin", varint(2), self.string(value))
            case tree.Integer(number, kind):
                data = bits(number, scalar_width(kind))
                return self._attribute("builtin", varint(8), self.builtin_type(kind), data)
            case tree.Float(_, kind):
                return self._attribute(
                    "builtin", varint(9), self.builtin_type(kind), float_bits(value)
                )
            case tree.Elements():
                data = packed_data(value)
                kind = self.builtin_type(value.type)
                return self._attribute("builtin", varint(18), kind, varint(len(data)), data)
            case tree.Opaque(name, text):
                return self._assembly(name, text)
            case int():
                return self.builtin(tree.Integer(value, "i64"))
            case float():
                return self.builtin(tree.Float(value, "f64"))
            case Mapping():
                return self.dictionary({key: self.builtin(item) for key, item in value.items()})
            case tuple():
                return self._attribute(
                    "builtin", varint(0), *self._listed(map(self.builtin, value))
                )
        raise UnsupportedError(f"{value!r:.80} cannot stand in a module's attribute")

    def dictionary(self, entries: Mapping[str, Reference]) -> Reference:
        """A builtin dictionary of attributes of any dialect."""
        parts: list[Part] = [varint(len(entries))]
        for key in sorted(entries):
            parts += [self.builtin(key), entries[key]]
        return self._attribute("builtin", varint(1), *parts)

    # Locations

    def location(self, handle: Any) -> Reference:
        """The place behind a handle."""
        number = self.places.number(handle)
        for _, kind, fields in self.places.entries(len(self._locations)):
            self._locations.append(self._place(kind, fields))
        return self.unknown if number is None else self._locations[number]

    def _place(self, kind: type, fields: tuple[Any, ...]) -> Reference:
        if kind is tree.FileLocation:
            file, line, column = fields
            numbers = varint(line) + varint(column)
            return self._attribute("builtin", varint(11), self.builtin(file), numbers)
        if kind is tree.NameLocation:
            name, child = fields
            return self._attribute("builtin", varint(14), self.builtin(name), self._part(child))
        if kind is tree.CallSite:
            return self._attribute("builtin", varint(10), *map(self._part, fields))
        return self._attribute("builtin", varint(12), *self._listed(map(self._part, fields[0])))

    def _part(self, number: int | None) -> Reference:
        return self.unknown if number is None else self._locations[number]


def float_bits(value: tree.Float) -> bytes:
    """A float's bits in its own type."""
    form = _FLOATS.get(value.type) if isinstance(value.type, str) else None
    width = scalar_width(value.type)
    if form is not None:
        data = struct.pack(form, value.value)
    else:
        data = np.asarray(value.value).astype(element_of(value.type).dtype).tobytes()
    return bits(int.from_bytes(data, "little"), width)


def packed_data(value: tree.Elements) -> bytes | memoryview:
    """A constant's bytes: one element where all are equal, booleans packed to bits."""
    array = read_elements(value)
    if array.size > 1 and not any(array.strides):
        array = array.reshape(-1)[:1]
    if array.dtype == np.bool_:
        if array.size and array.all():
            return b"\xff"
        if array.size == 1:
            return b"\x00"
        return np.packbits(array.reshape(-1), bitorder="little").tobytes()
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size > 1 and flat.size <= _SCANNED and _all_equal(flat):
        flat = flat[:1]
    return flat.view(np.uint8).data


_SCANNED = 1 << 16


def _all_equal(flat: np.ndarray[Any, Any]) -> bool:
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    return bool((raw == raw[0]).all())
