"""Programs as text: `print_module` writes what `parse.parse_module` reads back to the same module.

girih 1.0 module "example" entry @main {
  weight "w" : f32[3,3]
  function @main(%0: f32[2,3]) {
    %1 = weight() {weight = "w"} : f32[3,3]
    %2 = dot_general(%0, %1) {lhs_contracting_dimensions = (1,), ...} : f32[2,3]
    return %2
  }
}
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .dense import Dense
from .errors import CompilerBug
from .sizes import Symbol
from .symbols import SymbolicDim
from .types import FutureType, TensorType, TokenType, TupleType, Type

if TYPE_CHECKING:
    from .graph import Function, Module, Op, Origin, Region, Value

READABLE_ELEMENTS = 16  # longer constants are written as bytes


def print_module(
    module: Module, origins: bool = False, more: Mapping[Op, Mapping[str, Any]] | None = None
) -> str:
    """The module's text; with `origins` it also says where each operation comes from. more:
    attributes that operations have in the text alone."""
    lines = [f"girih 1.0 module {json.dumps(module.name)} entry @{module.entry} {{"]
    for name, symbol in module.symbols.items():
        lines.append(f"  symbol {name} {_symbol_text(symbol)}")
    for constraint in module.constraints:
        text = f"{constraint.left} {constraint.relation} {constraint.right}"
        lines.append(f"  constraint {json.dumps(text)}{_by(constraint.origin)}")
    for name, mesh in module.meshes.items():
        lines.append(f"  mesh {json.dumps(name)} {json.dumps(str(mesh))}")
    for weight in module.weights.values():
        aliases = f" aliases {attribute_text(weight.aliases)}" if weight.aliases else ""
        lines.append(f"  weight {json.dumps(weight.name)} : {type_text(weight.type)}{aliases}")
    if module.signature is not None:
        text = json.dumps(module.signature.to_json(), sort_keys=True)
        lines.append(f"  signature {json.dumps(text)}")
    if module.attributes:
        lines.append(f"  attributes {attributes_text(module.attributes)}")
    lines += [f"  note {json.dumps(note)}" for note in module.notes]
    for function in module.functions.values():
        lines += _Printer(origins, more).function(function)
    return "\n".join([*lines, "}", ""])


def names_in(function: Function) -> Mapping[Value, str]:
    """What the values of a function are called in the text of its module."""
    printer = _Printer()
    printer.function(function)
    return printer.names


def _symbol_text(symbol: Symbol) -> str:
    """`1 64`, `2 *`, `16 512 16 0 by "model.py:7"`: range, modulus and residue, origin."""
    text = f"{symbol.minimum} {'*' if symbol.maximum is None else symbol.maximum}"
    if symbol.modulus != 1:
        text += f" {symbol.modulus} {symbol.residue}"
    return text + _by(symbol.origin)


def _by(origin: str) -> str:
    return f" by {json.dumps(origin)}" if origin else ""


def print_op(op: Op, names: Mapping[Value, str] | None = None) -> str:
    """One operation on one line, regions left out; for messages."""
    printer = _Printer()
    printer.names = dict(names or {})
    return printer.head(op)


class _Printer:
    def __init__(
        self, origins: bool = False, more: Mapping[Op, Mapping[str, Any]] | None = None
    ) -> None:
        self.origins, self.more = origins, more or {}
        self.names: dict[Value, str] = {}
        self.count = 0

    def name(self, value: Value) -> str:
        known = self.names.get(value)
        if known is None:
            known = self.names[value] = f"%{self.count}"
            self.count += 1
        return known

    def function(self, function: Function) -> list[str]:
        body = function.body
        parts = []
        for index, argument in enumerate(body.arguments):
            extra = _at(function.argument_attributes, index)
            suffix = f" {attributes_text(extra)}" if extra else ""
            parts.append(f"{self.name(argument)}: {type_text(argument.type)}{suffix}")
        head = f"  function @{function.name}({', '.join(parts)})"
        if function.attributes:
            head += f" {attributes_text(function.attributes)}"
        if any(function.result_attributes):
            head += f" results {attribute_text(tuple(map(dict, function.result_attributes)))}"
        lines = [head + " {", *self.ops(body, "    ")]
        lines.append("    " + self.results("return", body.results))
        return [*lines, "  }"]

    def results(self, keyword: str, values: Sequence[Value]) -> str:
        return " ".join([keyword, ", ".join(map(self.name, values))]).rstrip()

    def ops(self, region: Region, indent: str) -> list[str]:
        lines: list[str] = []
        for op in region.ops:
            regions = [self.region(nested, indent + "  ") for nested in op.regions]
            head = self.head(op)
            if self.origins and op.origin:
                head += " at " + ", ".join(map(_origin_text, op.origin))
            if regions:
                lines.append(f"{indent}{head} [")
                for nested in regions:
                    lines += nested
                lines.append(f"{indent}]")
            else:
                lines.append(indent + head)
        return lines

    def region(self, region: Region, indent: str) -> list[str]:
        # What several regions share, or several operations, has names of its own in each.
        for value in (*region.arguments, *(v for op in region.ops for v in op.results)):
            self.names.pop(value, None)
        parts = [f"{self.name(a)}: {type_text(a.type)}" for a in region.arguments]
        return [
            f"{indent}region({', '.join(parts)}) {{",
            *self.ops(region, indent + "  "),
            f"{indent}  {self.results('yield', region.results)}",
            f"{indent}}}",
        ]

    def head(self, op: Op) -> str:
        left = ", ".join(map(self.name, op.results))
        operands = ", ".join(map(self.name, op.operands))
        stated = {**op.attributes, **self.more[op]} if op in self.more else op.attributes
        attributes = f" {attributes_text(stated)}" if stated else ""
        types = ", ".join(map(type_text, op.result_types))
        equals = " = " if left else ""
        return f"{left}{equals}{op.name}({operands}){attributes}{' : ' if types else ''}{types}"


def _at(items: Sequence[Mapping[str, Any]], index: int) -> Mapping[str, Any]:
    return items[index] if index < len(items) else {}


def _origin_text(origin: Origin) -> str:
    return f"({json.dumps(origin.file)}, {origin.line}, {json.dumps(origin.name)})"


@functools.lru_cache(maxsize=1 << 12)
def type_text(type: Type) -> str:
    """`f32[4,8]`, `token`, `(f32[], i1[2])`."""
    if isinstance(type, TensorType):
        dims = ",".join(map(repr, type.dims))
        sharding = "" if type.sharding is None else f"@{json.dumps(str(type.sharding))}"
        return f"{type.element.name}[{dims}]{sharding}"
    if isinstance(type, TupleType):
        return f"({', '.join(map(type_text, type.members))})"
    if isinstance(type, FutureType):
        return f"future({', '.join(map(type_text, type.members))})"
    return "token"


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """`{dimension = 1, kind = "loop"}`, keys in order."""
    parts = [f"{_key(key)} = {attribute_text(attributes[key])}" for key in sorted(attributes)]
    return "{" + ", ".join(parts) + "}"


@functools.lru_cache(maxsize=1 << 10)
def _key(key: str) -> str:
    plain = key.isidentifier() and key.isascii() and key not in ("inf", "nan")  # those are numbers
    return key if plain else json.dumps(key)


def attribute_text(value: Any) -> str:
    """One attribute; parse.py reads it back."""
    if value is None or isinstance(value, (bool, int)):
        return (
            {None: "none", True: "true", False: "false"}[value]
            if (value is None or isinstance(value, bool))
            else str(value)
        )
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bytes):
        return f"bytes 0x{value.hex()}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(attribute_text, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, dict):
        return attributes_text(value)
    if isinstance(value, Dense):
        return dense_text(value)
    if isinstance(value, (TensorType, TokenType, TupleType, FutureType)):
        return f"type {type_text(value)}"
    if isinstance(value, SymbolicDim):
        return f'size "{value}"'
    raise CompilerBug(f"an attribute of kind {type(value).__name__} has no text")


_quoted = functools.lru_cache(maxsize=1 << 10)(json.dumps)


def float_text(value: float) -> str:
    text = repr(value)
    return text if any(mark in text for mark in ".einf") else text + ".0"


def dense_text(dense: Dense) -> str:
    """`splat f32[4] 0.5`, `dense i32[3] (1, 2, 3)` or `dense f32[64] 0x...` (little-endian)."""
    prefix = f"{'splat' if dense.is_splat else 'dense'} {type_text(dense.type)}"
    array = np.asarray(dense.splat_value) if dense.is_splat else dense.array
    kind = array.dtype.kind
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size <= READABLE_ELEMENTS and (
        kind in "biu" or array.dtype in (np.float32, np.float64)
    ):
        values = [value.item() for value in flat]
        # The payload of a NaN does not survive decimal text: those go as bytes.
        if all(value == value for value in values):
            return f"{prefix} {attribute_text(values[0] if dense.is_splat else tuple(values))}"
    return f"{prefix} 0x{flat.tobytes().hex()}"


def canonical_op(op: Op) -> str:
    """A text that two operations share if and only if they compute the same on the same types:
    operands, results and origins do not count, regions and attributes do."""
    printer = _Printer()
    for value in op.operands:
        printer.name(value)
    types = ", ".join(type_text(value.type) for value in op.operands)
    lines = [f"({types})", printer.head(op)]
    for region in op.regions:
        lines += printer.region(region, "")
    return "\n".join(lines)
