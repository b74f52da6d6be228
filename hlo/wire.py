"""Programs on the wire: `encode(module) -> bytes`, `decode(bytes) -> Module` (specs/hlo.proto).

Weights travel by name only; `decode` takes a function that finds their data. Constants above
4 KiB are refused by `encode`: importers make them weights. A program states the features that it
needs and the smallest version that has them all, so that an older reader can say what it lacks. It
is written in that version's form; `versions` has the steps between forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ..specs.generated import hlo_pb2 as pb
from .errors import Blocker, CompilerBug, ExportBlockers, UnsupportedError, UserError
from .graph import Dense, Function, Module, Op, Origin, Region, Value, Weight, arguments
from .ops import find, known
from .sharding import parse_mesh, parse_sharding
from .signature import Signature
from .size_text import parse_dim
from .sizes import Symbol, parse_constraint
from .symbols import SymbolicDim
from .types import (
    TOKEN,
    FutureType,
    QuantizedType,
    TensorType,
    TokenType,
    TupleType,
    Type,
    element_type,
)
from .versions import (
    FIRST,
    FORMAT_VERSION,
    downgrade,
    remedy,
    require_known,
    upgrade,
    version_tuple,
)

MAXIMUM_CONSTANT_BYTES = 4096
MAXIMUM_DEPTH = 64  # of nested regions and attributes

WeightSource = Callable[[str, TensorType], Any]


def encode(module: Module, version: str | None = None) -> bytes:
    """The module's bytes; the same module gives the same bytes.

    version: the newest format whose features they may need ("1.1"), by default today's. What the
    format lacks is replaced by what means the same where there is such a way; ExportBlockers lists
    all the rest.
    """
    if version is not None:
        require_known(version)
    encoder = _Encoder(module)
    message = encoder.message()
    if version is None or not encoder.newer_than(version):
        return message.SerializeToString(deterministic=True)
    downgrade(message, version)
    older = _Decoder(message, None).decode()
    encoder = _Encoder(older)
    message = encoder.message()
    if encoder.newer_than(version):
        blockers = _blockers(older, encoder.newer_than(version))
        raise ExportBlockers(blockers, "the program", f"format {version}")
    return message.SerializeToString(deterministic=True)


def fingerprint(module: Module) -> bytes:
    """What tells modules apart, but for the data of their weights: equal modules have equal bytes,
    others have others. Large constants stand there by their digests; nothing reads them back."""
    return _Encoder(module, by_digest=True).message().SerializeToString(deterministic=True)


def for_version(data: bytes, version: str) -> bytes:
    """`encode`'s bytes, rewritten so that a reader of that version takes them; ExportBlockers where
    that cannot be done."""
    return encode(decode(data), version)


def decode(data: bytes, weights: WeightSource | None = None) -> Module:
    """The module of `encode`'s bytes; UserError for anything else.

    `weights(name, type)` returns a weight's array (or a callable that loads it).
    """
    message = read_message(data)
    try:
        return _Decoder(message, weights).decode()
    except (IndexError, KeyError, TypeError, OverflowError, CompilerBug, ValueError) as error:
        raise UserError(f"the program is damaged: {type(error).__name__}: {error}") from None


def read_message(data: bytes) -> Any:
    """The `WireModule` of a program's bytes, as it was written; UserError if they are none."""
    message = pb.WireModule()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UserError(f"the program is damaged: {error}") from None
    return message


class _Table:
    """Numbers things in order of first use."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def number(self, key: Any) -> int:
        return self.index.setdefault(key, len(self.index))


class _Encoder:
    """by_digest: constants that are too large for the form are named instead."""

    def __init__(self, module: Module, by_digest: bool = False) -> None:
        self.module, self.by_digest = module, by_digest
        self.out = pb.WireModule()
        self.strings, self.origins, self.origin_sets = _Table(), _Table(), _Table()
        self.types: dict[int, int] = {}
        self.constants: dict[Dense, int] = {}
        self.features: dict[str, str] = {}
        self.origins.number(Origin())
        self.origin_sets.number(())

    def newer_than(self, version: str) -> list[str]:
        """The features that a reader of that version lacks."""
        limit = version_tuple(version)
        return [f for f, since in sorted(self.features.items()) if version_tuple(since) > limit]

    def message(self) -> Any:
        """The whole `WireModule`."""
        out, module = self.out, self.module
        out.name, out.entry = module.name, module.entry
        for function in module.functions.values():
            self.function(out.functions.add(), function)
        for weight in module.weights.values():
            entry = out.weights.add(name=weight.name, type=self.type(weight.type))
            entry.aliases.extend(weight.aliases)
        for name, mesh in module.meshes.items():
            self.features["type:mesh"] = "1.4"
            out.meshes.add(name=name, mesh=str(mesh))
        for name, symbol in module.symbols.items():
            self.symbol(out.symbols.add(name=name, minimum=symbol.minimum), symbol)
        for constraint in module.constraints:
            self.features["type:size-facts"] = "1.5"
            text = f"{constraint.left}{constraint.relation}{constraint.right}"
            out.size_constraints.add(text=text, origin=constraint.origin)
        if module.signature is not None:
            out.signature_json = json.dumps(module.signature.to_json(), sort_keys=True)
        self.map(out.attributes, module.attributes)
        out.notes.extend(module.notes)
        out.strings.extend(self.strings.index)
        for origin in self.origins.index:
            out.origins.add(file=origin.file, line=origin.line, name=origin.name)
        for members in self.origin_sets.index:
            out.origin_sets.add(origins=members)
        for name in sorted(self.features):
            out.features.add(name=name, since=self.features[name])
        out.minimum_reader = max(self.features.values(), key=version_tuple, default=FIRST)
        out.format_version = out.minimum_reader
        return out

    def symbol(self, out: Any, symbol: Symbol) -> None:
        self.features["symbolic-dims"] = "1.0"
        if symbol.maximum is not None:
            out.maximum = symbol.maximum
        if symbol.modulus != 1 or symbol.origin:
            self.features["type:size-facts"] = "1.5"
            out.origin = symbol.origin
        if symbol.modulus != 1:
            out.modulus, out.residue = symbol.modulus, symbol.residue

    def function(self, out: Any, function: Function) -> None:
        out.name = function.name
        self.region(out.body, function.body, {})
        for attributes in function.argument_attributes:
            self.map(out.argument_attributes.add().entries, attributes)
        for attributes in function.result_attributes:
            self.map(out.result_attributes.add().entries, attributes)
        self.map(out.attributes, function.attributes)

    def region(self, out: Any, region: Region, numbers: dict[Value, int]) -> None:
        for argument in region.arguments:
            numbers[argument] = len(numbers)
            out.argument_types.append(self.type(argument.type))
        for op in region.ops:
            entry = out.ops.add()
            entry.name = self.strings.number(op.name)
            self.features[f"op:{op.name}"] = op.definition.since
            for key, spec in op.definition.attributes.items():
                if spec.since and op.attributes.get(key, spec.default) != spec.default:
                    self.features[f"attribute:{op.name}.{key}"] = spec.since
            entry.operands.extend([numbers[value] for value in op.operands])
            for nested in op.regions:
                self.region(entry.regions.add(), nested, numbers)
            for result in op.results:
                numbers[result] = len(numbers)
                entry.result_types.append(self.type(result.type))
            self.map(entry.attributes, op.attributes)
            if op.origin:
                members = tuple(self.origins.number(origin) for origin in op.origin)
                entry.origins = self.origin_sets.number(members)
        out.results.extend([numbers[value] for value in region.results])

    def map(self, out: Any, attributes: Mapping[str, Any]) -> None:
        for key in sorted(attributes):
            entry = out.add(key=self.strings.number(key))
            self.value(entry.value, attributes[key])

    def value(self, out: Any, value: Any) -> None:
        if value is None:
            out.none = True
        elif isinstance(value, bool):
            out.boolean = value
        elif isinstance(value, int):
            if -(2**63) <= value < 2**63:
                out.integer = value
            else:
                out.big_integer = str(value)
        elif isinstance(value, float):
            out.real = value
        elif isinstance(value, str):
            out.text = self.strings.number(value)
        elif isinstance(value, bytes):
            out.data = value
        elif isinstance(value, (tuple, list)):
            if value and all(type(v) is int and -(2**63) <= v < 2**63 for v in value):
                out.integers.values.extend(value)
            else:
                out.tuple.SetInParent()
                for member in value:
                    self.value(out.tuple.values.add(), member)
        elif isinstance(value, dict):
            out.map.SetInParent()
            self.map(out.map.entries, value)
        elif isinstance(value, Dense):
            out.constant = self.constant(value)
        elif isinstance(value, (TensorType, TokenType, TupleType, FutureType)):
            out.type = self.type(value)
        elif isinstance(value, SymbolicDim):
            self.features["type:size-attribute"] = "1.5"
            out.size = repr(value)
        else:
            raise CompilerBug(f"an attribute of kind {type(value).__name__} has no wire form")

    def constant(self, dense: Dense) -> int:
        known = self.constants.get(dense)
        if known is not None:
            return known
        splat = dense.is_splat
        array = np.asarray(dense.splat_value) if splat else np.ascontiguousarray(dense.array)
        large = array.nbytes > MAXIMUM_CONSTANT_BYTES
        if large and not self.by_digest:
            raise CompilerBug(f"a constant of {array.nbytes} bytes must be a weight ({dense.type})")
        data = dense.digest if large else array.tobytes()
        number = self.constants[dense] = len(self.constants)
        self.out.constants.add(type=self.type(dense.type), data=data, splat=splat)
        return number

    def type(self, type: Type) -> int:
        number = self.types.get(id(type))
        if number is not None:
            return number
        wire = pb.WireType()
        if isinstance(type, TokenType):
            wire.token = True
        elif isinstance(type, TupleType):
            wire.tuple.members.extend([self.type(member) for member in type.members])
            wire.tuple.SetInParent()
        elif isinstance(type, FutureType):
            self.features["type:future"] = "1.2"
            wire.future.members.extend([self.type(member) for member in type.members])
            wire.future.SetInParent()
        else:
            self.tensor(wire.tensor, type)
        number = self.types[id(type)] = len(self.types)
        self.out.types.append(wire)
        return number

    def tensor(self, out: Any, type: TensorType) -> None:
        for dim in type.dims:
            if isinstance(dim, SymbolicDim):
                self.features["symbolic-dims"] = "1.0"
                if dim.affine is None:
                    self.features["type:size-expression"] = "1.5"
                out.dims.add(expression=_size_text(dim))
            else:
                out.dims.add(size=dim)
        element = type.element
        if isinstance(element, QuantizedType):
            self.features["type:quantized"] = "1.0"
            q = out.quantized
            q.storage, q.expressed = element.storage.name, element.expressed.name
            if element.axis is not None:
                q.axis = element.axis
            q.scales.extend(element.scales)
            q.zero_points.extend(element.zero_points)
            q.minimum, q.maximum = element.minimum, element.maximum
        else:
            self.features[f"type:{element.name}"] = "1.0"
            out.element = element.name
        out.SetInParent()
        if type.sharding is not None:
            self.features["type:sharding"] = "1.4"
            out.sharding = str(type.sharding)


class _Decoder:
    def __init__(self, message: Any, weights: WeightSource | None) -> None:
        self.message, self.weights = message, weights
        self.types: list[Type] = []
        self.constants: list[Dense] = []
        self.origin_sets: list[tuple[Origin, ...]] = []

    def decode(self) -> Module:
        message = self.message
        self.check_version()
        upgrade(message)
        self.strings = list(message.strings)
        for wire in message.types:
            self.types.append(self.type(wire))
        self.constants = [self.constant(entry) for entry in message.constants]
        origins = [Origin(o.file, o.line, o.name) for o in message.origins]
        for members in message.origin_sets:
            self.origin_sets.append(tuple(origins[index] for index in members.origins))
        functions = {f.name: self.function(f) for f in message.functions}
        if message.entry not in functions:
            raise UserError(f"the program has no entry function '{message.entry}'")
        weights = {entry.name: self.weight(entry) for entry in message.weights}
        symbols = {
            s.name: Symbol(
                s.minimum, s.maximum if s.HasField("maximum") else None,
                s.modulus or 1, s.residue, s.origin,
            )
            for s in message.symbols
        }  # fmt: skip
        if any(symbol.modulus < 1 for symbol in symbols.values()):
            raise UserError("the modulus of a symbol is negative")
        text = message.signature_json
        return Module(
            functions, message.entry, message.name, weights,
            Signature.from_json(json.loads(text)) if text else None, symbols,
            self.map(message.attributes, 0), tuple(message.notes),
            {entry.name: parse_mesh(entry.mesh) for entry in message.meshes},
            tuple(parse_constraint(c.text, c.origin) for c in message.size_constraints),
        )  # fmt: skip

    def check_version(self) -> None:
        version = self.message.minimum_reader
        if not version:
            raise UserError("this is no girih program: it states no version")
        if version_tuple(version) > version_tuple(FORMAT_VERSION):
            lacking = [
                f.name
                for f in self.message.features
                if version_tuple(f.since) > version_tuple(FORMAT_VERSION)
            ]
            raise UnsupportedError(
                f"the program needs format {version} (for {', '.join(lacking[:5]) or 'its form'}), "
                f"this girih reads up to {FORMAT_VERSION}: use a newer girih"
            )
        missing = [
            f.name[3:]
            for f in self.message.features
            if f.name.startswith("op:") and not known(f.name[3:])
        ]
        if missing:
            raise UnsupportedError(f"the program uses unknown operations: {', '.join(missing)}")

    def weight(self, entry: Any) -> Weight:
        type = self.types[entry.type]
        if not isinstance(type, TensorType):
            raise UserError(f"weight '{entry.name}' is no tensor")
        source = self.weights(entry.name, type) if self.weights else _absent(entry.name)
        return Weight(entry.name, source, type, tuple(entry.aliases))

    def function(self, wire: Any) -> Function:
        body = self.region(wire.body, [], 0)
        return Function(
            wire.name, body,
            tuple(self.map(entry.entries, 0) for entry in wire.argument_attributes),
            tuple(self.map(entry.entries, 0) for entry in wire.result_attributes),
            self.map(wire.attributes, 0),
        )  # fmt: skip

    def region(self, wire: Any, values: list[Value], depth: int) -> Region:
        # Numbers run on through nested regions, exactly as the encoder gave them.
        if depth > MAXIMUM_DEPTH:
            raise UserError("the program's regions are nested too deeply")
        own = arguments([self.types[index] for index in wire.argument_types])
        values.extend(own)
        ops: list[Op] = []
        for entry in wire.ops:
            operands = [values[number] for number in entry.operands]
            nested = [self.region(region, values, depth + 1) for region in entry.regions]
            op = Op(
                find(self.strings[entry.name]), operands, self.map(entry.attributes, 0), nested,
                [self.types[index] for index in entry.result_types],
                self.origin_sets[entry.origins],
            )  # fmt: skip
            values.extend(op.results)
            ops.append(op)
        return Region(own, ops, [values[number] for number in wire.results])

    def map(self, entries: Sequence[Any], depth: int) -> dict[str, Any]:
        return {self.strings[entry.key]: self.value(entry.value, depth) for entry in entries}

    def value(self, wire: Any, depth: int) -> Any:
        if depth > MAXIMUM_DEPTH:
            raise UserError("the program's attributes are nested too deeply")
        kind = wire.WhichOneof("kind")
        if kind == "none":
            return None
        if kind in ("boolean", "integer", "real", "data"):
            return getattr(wire, kind)
        if kind == "text":
            return self.strings[wire.text]
        if kind == "integers":
            return tuple(wire.integers.values)
        if kind == "tuple":
            return tuple(self.value(member, depth + 1) for member in wire.tuple.values)
        if kind == "map":
            return self.map(wire.map.entries, depth + 1)
        if kind == "type":
            return self.types[wire.type]
        if kind == "constant":
            return self.constants[wire.constant]
        if kind == "size":
            return parse_dim(wire.size)
        if kind == "big_integer":
            return int(wire.big_integer)
        raise UserError("an attribute has no value")

    def constant(self, entry: Any) -> Dense:
        type = self.types[entry.type]
        if not isinstance(type, TensorType):
            raise UserError("a constant is no tensor")
        count = 1 if entry.splat else type.size
        if len(entry.data) > MAXIMUM_CONSTANT_BYTES:
            raise UserError(f"a constant has {len(entry.data)} bytes, more than any program's")
        if len(entry.data) != count * type.element.itemsize:
            raise UserError(f"a constant {type} has {len(entry.data)} bytes of data")
        array = np.frombuffer(entry.data, type.dtype)
        if entry.splat:
            return Dense(type, np.broadcast_to(array.reshape(()), type.dims))
        return Dense(type, array.reshape(type.dims))

    def type(self, wire: Any) -> Type:
        kind = wire.WhichOneof("kind")
        if kind == "token":
            return TOKEN
        if kind == "tuple":
            return TupleType([self.types[index] for index in wire.tuple.members])
        if kind == "future":
            return FutureType([self.types[index] for index in wire.future.members])
        if kind != "tensor":
            raise UserError("a type is empty")
        tensor = wire.tensor
        element: Any
        if tensor.HasField("quantized"):
            q = tensor.quantized
            element = QuantizedType(
                element_type(q.storage), element_type(q.expressed),
                q.axis if q.HasField("axis") else None,
                q.scales, q.zero_points, q.minimum, q.maximum,
            )  # fmt: skip
        else:
            element = element_type(tensor.element)
        dims = [d.size if d.HasField("size") else parse_dim(d.expression) for d in tensor.dims]
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            raise UserError("a dimension is negative")
        sharding = parse_sharding(tensor.sharding) if tensor.sharding else None
        return TensorType(dims, element, sharding)


def _size_text(dim: SymbolicDim) -> str:
    """A size on the wire; a sum of multiples as format 1.0 spells it, `-1*n+5`."""
    factors = dim.affine
    if factors is None:
        return repr(dim)
    parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in factors.items()]
    if dim.constant:
        parts.append(str(dim.constant))
    return "+".join(parts).replace("+-", "-")


def _blockers(module: Module, features: Sequence[str]) -> list[Blocker]:
    """Where a program uses features, each place once."""
    found: dict[Blocker, None] = {}

    def add(feature: str, name: str, place: str) -> None:
        kind, _, what = feature.partition(":")
        reason = "the format has no such operation" if kind == "op" else f"it needs {kind} {what}"
        found[Blocker(name, place, reason, remedy(feature))] = None

    for op in module.walk():
        place = str(op.origin[0]) if op.origin else ""
        types = [value.type for value in (*op.operands, *op.results)]
        for feature in features:
            kind, _, what = feature.partition(":")
            uses = what == op.name or kind == "attribute" and what.startswith(f"{op.name}.")
            if uses or kind == "type" and any(_is_named(type, what) for type in types):
                add(feature, op.name, place)
    seen = {(b.operation, b.reason) for b in found}
    for feature in features:  # such as the types of arguments that nothing reads
        kind, _, what = feature.partition(":")
        if kind == "type" and not any(what in reason for _, reason in seen):
            add(feature, "the program", "")
    return list(found)


def _is_named(type: Type, name: str) -> bool:
    if isinstance(type, TensorType):
        if name == "size-expression":
            return any(isinstance(dim, SymbolicDim) and dim.affine is None for dim in type.dims)
        return type.element.name == name or name == "sharding" and type.sharding is not None
    return isinstance(type, FutureType) and name == "future"


def _absent(name: str) -> Callable[[], Any]:
    def load() -> Any:
        raise UserError(f"the data of weight '{name}' is not at hand")

    return load
