"""An op tree as StableHLO text in MLIR's generic form: `document_text(document) -> str`.

Inverse of `text`: what readers lay flat is packed into StableHLO's records again. Places stand at
the end of the text, one line each, as in MLIR's own printer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import tree
from .attributes import ACCURACY, RAGGED
from .literals import read_elements
from .normal import ENUMS, KINDS, Facts, facts_of, normal, restored
from .places import Places
from .versions import FORMS
from .vhlo_table import ALGORITHM

_PACKED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dot_general": (
        "dot_dimension_numbers",
        "dot",
        (
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        ),
    ),
    "gather": (
        "dimension_numbers",
        "gather",
        (
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
            "index_vector_dim",
        ),
    ),
    "scatter": (
        "scatter_dimension_numbers",
        "scatter",
        (
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
            "index_vector_dim",
        ),
    ),
    "ragged_dot": (
        "ragged_dot_dimension_numbers",
        "ragged_dot",
        RAGGED,
    ),
}
_PACKED["dynamic_gather"] = _PACKED["gather"]
"""operation -> (packed attribute, its kind, the flat attributes in it)."""

_SIDES = (
    ("input", ("batch", "b"), ("feature", "f")),
    ("kernel", ("output_feature", "o"), ("input_feature", "i")),
    ("output", ("batch", "b"), ("feature", "f")),
)
_MESHES = ("axis_ref", "mesh", "mesh_axis", "replica_group_mesh_axes")
_UNITS = ("use_global_device_ids", "has_dynamic_root")
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_WORD = re.compile(r"[A-Za-z_][\w$.]*")
_FLOATS = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}


def document_text(document: tree.Document) -> str:
    """The whole program as text."""
    return _TextWriter(document).module()


def quoted(text: str) -> str:
    """A string literal; what is not printable ASCII is written as its bytes."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    data = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(map(_character, data)) + '"'


def _character(byte: int) -> str:
    if 32 <= byte < 127 and byte not in (34, 92):
        return chr(byte)
    return f"\\{byte:02X}"


def symbol(name: str) -> str:
    """`@name`, quoted where it has to be; nested parts `outer::@inner` stay as they are."""
    return "::".join(
        f"@{part}" if _WORD.fullmatch(part) else f"@{quoted(part)}" for part in name.split("::@")
    )


class _TextWriter:
    """Text of one document; values and places are numbered as they are met."""

    def __init__(self, document: tree.Document) -> None:
        self.document = document
        self.names: dict[tree.TreeValue, str] = {}
        self.places = Places(document)

    def module(self) -> str:
        top = self.document.module
        attributes = dict(top.attributes)
        name = attributes.pop("sym_name", "")
        attributes.pop("sym_visibility", None)
        head = f"module {symbol(name)} " if name else "module "
        if attributes:
            head += f"attributes {self.dictionary(attributes)} "
        lines = [head + "{"]
        for region in top.regions:
            for operation in region.operations:
                lines += self.operation(operation)
        lines.append("}" + self.place(top.location))
        for number, kind, location in self.places.entries():
            lines.append(f"#loc{number} = loc({self.location(kind, location)})")
        return "\n".join(lines) + "\n"

    # Structure

    def operation(self, operation: tree.Operation) -> Iterable[str]:
        if operation.name == "func.func":
            yield from self.function(operation)
        elif operation.name == "sdy.mesh":
            mesh = operation.attributes.get("mesh")
            name = str(operation.attributes.get("sym_name", ""))
            text = mesh.text if isinstance(mesh, tree.Opaque) else str(mesh)
            yield f"sdy.mesh {symbol(name)} = {text}{self.place(operation.location)}"
        else:
            yield self.generic(operation)

    def generic(self, operation: tree.Operation) -> str:
        """`%0 = "name"(%1) <{..}> ({ ... }) : (types) -> (types) loc(..)`"""
        operands = ", ".join([self.names[value] for value in operation.operands])
        regions = ", ".join([self.region(region) for region in operation.regions])
        given = ", ".join(self.attributes(operation))
        types = ", ".join([tree.spell(value.type) for value in operation.operands])
        outs = ", ".join([tree.spell(value.type) for value in operation.results])
        results = ", ".join([self.define(value) for value in operation.results])
        return "".join(
            [
                f"{results} = " if results else "",
                f'"{operation.name}"({operands})',
                f" ({regions})" if regions else "",
                f" {{{given}}}" if given else "",
                f" : ({types}) -> ({outs})",
                self.place(operation.location),
            ]
        )

    def define(self, value: tree.TreeValue) -> str:
        name = self.names[value] = f"%{len(self.names)}"
        return name

    def region(self, region: tree.Region) -> str:
        lines = ["{"]
        if region.arguments:
            parts = [
                f"{self.define(v)}: {tree.spell(v.type)}{self.place(v.location)}"
                for v in region.arguments
            ]
            lines.append(f"^bb0({', '.join(parts)}):")
        for operation in region.operations:
            lines += self.operation(operation)
        return "\n".join([*lines, "}"])

    def function(self, operation: tree.Operation) -> Iterable[str]:
        facts = dict(operation.attributes)
        kind = facts.pop("function_type")
        name = facts.pop("sym_name", "")
        visibility = facts.pop("sym_visibility", "")
        given = _dictionaries(facts.pop("arg_attrs", ()), len(kind.inputs))
        result_facts = _dictionaries(facts.pop("res_attrs", ()), len(kind.results))
        arguments = []
        body = operation.regions[0] if operation.regions else None
        for number, (argument, fact) in enumerate(zip(kind.inputs, given, strict=True)):
            suffix = f" {self.dictionary(fact)}" if fact else ""
            if body is None:
                arguments.append(f"{tree.spell(argument)}{suffix}")
                continue
            value = body.arguments[number]
            place = self.place(value.location)
            arguments.append(f"{self.define(value)}: {tree.spell(argument)}{suffix}{place}")
        results = [
            tree.spell(result) + (f" {self.dictionary(fact)}" if fact else "")
            for result, fact in zip(kind.results, result_facts, strict=True)
        ]
        head = f"func.func {visibility} " if visibility else "func.func "
        head += f"{symbol(name)}({', '.join(arguments)}) -> ({', '.join(results)})"
        if facts:
            head += f" attributes {self.dictionary(facts)}"
        if body is None:
            yield head + self.place(operation.location)
            return
        yield head + " {"
        for inner in body.operations:
            yield from self.operation(inner)
        yield "}" + self.place(operation.location)

    # Places

    def place(self, handle: Any) -> str:
        """` loc(#loc3)`, or nothing where it is not known."""
        number = self.places.number(handle)
        return "" if number is None else f" loc(#loc{number})"

    def location(self, kind: Any, location: tuple[Any, ...]) -> str:
        """The text of a place whose parts are numbers of other places."""

        def inner(number: int | None) -> str:
            return "unknown" if number is None else f"#loc{number}"

        if kind is tree.FileLocation:
            return f"{quoted(location[0])}:{location[1]}:{location[2]}"
        if kind is tree.NameLocation:
            child = "" if location[1] is None else f"({inner(location[1])})"
            return quoted(location[0]) + child
        if kind is tree.CallSite:
            return f"callsite({inner(location[0])} at {inner(location[1])})"
        return f"fused[{', '.join(map(inner, location[0]))}]"

    # Attributes

    def attributes(self, operation: tree.Operation) -> Iterator[str]:
        """`key = value` of each attribute, packed as StableHLO wants them."""
        dialect, _, base = operation.name.partition(".")
        facts = facts_of(operation)
        if dialect == "chlo":
            yield from self.chlo_attributes(base, facts.extra)
            return
        left = dict.fromkeys(facts.given)
        if "operand_layouts" in left or "result_layouts" in left:
            left.update(operand_layouts=None, result_layouts=None)  # both or none
        yield from self.packed(base, facts, left)
        for key in left:
            value = facts.known[key]
            yield key if key in _UNITS else f"{key} = {self.typed(key, value)}"
        for key, value in facts.extra.items():
            name = key if _WORD.fullmatch(key) else quoted(key)
            if dialect in ("stablehlo", "func") and base not in FORMS and key in KINDS:
                yield f"{name} = {self.typed(key, normal(key, value))}"
            else:
                yield f"{name} = {self.value(value)}"

    def packed(self, base: str, facts: Facts, left: dict[str, None]) -> Iterator[str]:
        """The records of the operation; what they hold is taken out of `left`."""
        known = facts.known
        if base in ("convolution", "dynamic_conv"):
            yield f"dimension_numbers = {_convolution(known)}"
            for key in known:
                if key.endswith(("_dimension", "_spatial_dimensions")):
                    left.pop(key, None)
        if base in _PACKED:
            key, kind, members = _PACKED[base]
            yield f"{key} = #stablehlo.{kind}<{_fields(members, known)}>"
            for name in members:
                left.pop(name, None)
        if base == "dot_general" and known["accumulation_type"] != "none":
            fields = [f"{name} = {self.value(known[name], bare=True)}" for name in ALGORITHM]
            yield f"algorithm = #stablehlo.dot_algorithm<{', '.join(fields)}>"
        for name in ALGORITHM:
            left.pop(name, None)
        if "channel_id" in left:
            kind = known["channel_type"].value if "channel_type" in left else 0
            handle = known["channel_id"].value
            yield f"channel_handle = #stablehlo.channel_handle<handle = {handle}, type = {kind}>"
            left.pop("channel_id")
            left.pop("channel_type", None)

    def chlo_attributes(self, base: str, facts: Mapping[str, Any]) -> Iterator[str]:
        """CHLO's operations have no VHLO form; their enumerations are a dialect's own."""
        left = dict(facts)
        if base in _PACKED:
            key, kind, members = _PACKED[base]
            yield f"{key} = #chlo.{kind}<{_fields(members, left)}>"
            for name in members:
                left.pop(name, None)
        for key, value in left.items():
            if key in ENUMS:
                word = ENUMS[key][0]
                if key == "precision_config":
                    items = ", ".join(f"#chlo<{word} {item}>" for item in value)
                    yield f"{key} = [{items}]"
                else:
                    yield f"{key} = #chlo<{word} {value}>"
            elif key in KINDS:
                yield f"{key} = {self.typed(key, normal(key, value))}"
            else:
                yield f"{key} = {self.value(restored(value))}"

    def typed(self, key: str, value: Any) -> str:
        """A value in the normal form of its attribute."""
        match KINDS.get(key, "any"):
            case "ints":
                return f"array<i64{_items(map(str, value))}>"
            case "bools":
                return f"array<i1{_items(str(item).lower() for item in value)}>"
            case "enum":
                return f"#stablehlo<{ENUMS[key][0]} {value}>"
            case "enums":
                return f"[{', '.join(f'#stablehlo<{ENUMS[key][0]} {item}>' for item in value)}]"
            case "symbol":
                return symbol(value)
            case "symbols":
                return f"[{', '.join(map(symbol, value))}]"
            case "accuracy":
                return _accuracy({**ACCURACY, **value.fields})
        return self.value(value)

    def mesh_fields(self, fields: Mapping[str, Any]) -> Iterator[str]:
        """`name = "x", sub_axis_info = (1)2`, `mesh = @m, axes = [..]`, ..."""
        for key, value in fields.items():
            if isinstance(value, tree.Structured) and value.kind == "sub_axis":
                before, size = value.fields["parts"]
                yield f"sub_axis_info = ({before}){size}"
            elif key == "mesh" and isinstance(value, str):
                yield f"mesh = {symbol(value)}"
            elif isinstance(value, str):
                yield f"{key} = {quoted(value)}"
            elif value is not None:
                yield f"{key} = {self.value(value, True)}"

    def dictionary(self, value: Mapping[str, Any]) -> str:
        parts = [
            f"{key if _WORD.fullmatch(key) else quoted(key)} = {self.value(restored(item))}"
            for key, item in value.items()
        ]
        return "{" + ", ".join(parts) + "}"

    def value(self, value: Any, bare: bool = False) -> str:
        """Any value of a tree; `bare` ones are fields of a record, integers without a type."""
        match value:
            case bool():
                return str(value).lower()
            case tree.Scalar():
                return tree.spell(str(value))
            case str():
                return value if bare else quoted(value)
            case tree.Integer(number, kind):
                return str(number) if bare else f"{number} : {tree.spell(kind)}"
            case tree.Float(number, kind):
                return float_text(number, kind)
            case tree.Elements():
                return elements_text(value)
            case tree.Structured(kind, fields) if kind in _MESHES:
                return f"#stablehlo.{kind}<{', '.join(self.mesh_fields(fields))}>"
            case tree.Structured(kind, fields):
                said = {key: item for key, item in fields.items() if item is not None}
                part = said.pop("sub_axis", None)
                inner = [f"{key} = {self.value(item, True)}" for key, item in said.items()]
                if part is not None:
                    inner.append("sub_axis_info = ({}){}".format(*part.fields["parts"]))
                return f"#stablehlo.{kind}<{', '.join(inner)}>"
            case int():
                return str(value) if bare else f"{value} : i64"
            case float():
                return float_text(value, "f64")
            case dict():
                return self.dictionary(value)
            case tuple():
                return f"[{', '.join([self.value(item, bare) for item in value])}]"
            case tree.Opaque(name, text):
                return f"#{name}{text}"
            case bytes():
                return quoted(value.decode("utf-8", "surrogateescape"))
        return tree.spell(value)


def _dictionaries(value: Any, count: int) -> list[Mapping[str, Any]]:
    """One dictionary per argument, empty ones where nothing is said."""
    given = [item if isinstance(item, Mapping) else {} for item in value or ()]
    return given if len(given) == count else [{}] * count


def _items(texts: Iterable[str]) -> str:
    joined = ", ".join(texts)
    return f": {joined}" if joined else ""


def _fields(members: Iterable[str], facts: Mapping[str, Any]) -> str:
    """`a = [0], b = 1`, without empty lists."""
    texts = []
    for name in members:
        value = facts.get(name, ())
        value = getattr(value, "value", value)
        if isinstance(value, tuple):
            if value:
                texts.append(f"{name} = [{', '.join(map(str, value))}]")
        else:
            texts.append(f"{name} = {value}")
    return ", ".join(texts)


def _convolution(known: Mapping[str, Any]) -> str:
    """`#stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>`"""
    texts = []
    for prefix, first, second in _SIDES:
        places = {
            known[f"{prefix}_{name}_dimension"].value: letter for name, letter in (first, second)
        }
        spatial = known[f"{prefix}_spatial_dimensions"]
        places.update({place: str(number) for number, place in enumerate(spatial)})
        texts.append(f"[{', '.join(places[place] for place in sorted(places))}]")
    return f"#stablehlo.conv<{texts[0]}x{texts[1]}->{texts[2]}>"


def _accuracy(fields: Mapping[str, Any]) -> str:
    mode = f"#stablehlo.result_accuracy_mode<{fields['mode']}>"
    return (
        f"#stablehlo.result_accuracy<atol = {tree.number(fields['atol'])}, "
        f"rtol = {tree.number(fields['rtol'])}, ulps = {fields['ulps']}, mode = {mode}>"
    )


def float_text(value: float, kind: tree.Type) -> str:
    """A float with its type; what has no exact decimal form is written as its bits."""
    spelled = tree.spell(kind)
    if kind in _FLOATS:
        form, pattern = _FLOATS[kind]  # type: ignore[index]
        bits = struct.unpack(pattern, struct.pack(form, value))[0]
        return f"0x{bits:0{2 * struct.calcsize(pattern)}X} : {spelled}"
    return f"{tree.number(value)} : {spelled}"


def elements_text(value: tree.Elements) -> str:
    """`dense<"0x...">`, one element where all are equal; booleans as words."""
    kind = tree.spell(value.type)
    if isinstance(value.payload, str):
        return f"dense<{value.payload}> : {kind}"
    array = read_elements(value)
    if array.size == 0:
        return f"dense<> : {kind}"
    if not any(array.strides):
        array = array.reshape(-1)[:1].reshape(())
    if array.dtype == np.bool_:
        return f"dense<{str(array.tolist()).lower()}> : {kind}"
    if value.type.element in ("i64", "i32", "index") and array.size <= 64:
        return f"dense<{array.tolist()}> : {kind}"
    return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex().upper()}"> : {kind}'
