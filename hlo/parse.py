"""Reads the text form: `parse_module(text) -> Module`, the inverse of `text.print_module`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from .errors import UserError
from .graph import Dense, Function, Module, Op, Origin, Region, Value, Weight, arguments
from .ops import find
from .sharding import Mesh, Sharding, parse_mesh, parse_sharding
from .signature import Signature
from .size_text import parse_dim, split_dims
from .sizes import SizeConstraint, Symbol, parse_constraint
from .types import (
    TOKEN,
    FutureType,
    QuantizedType,
    TensorType,
    TupleType,
    Type,
    element_type,
)
from .wire import WeightSource, _absent

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//[^\n]*)+)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<hex>0x[0-9a-f]*)
      | (?P<value>%\d+)
      | (?P<symbol>@[\w.$-]+)
      | (?P<quant>!quant\.uniform<[^<>]*<[^<>]*>[^<>]*>)
      | (?P<type>(?:complex<f\d+>|[A-Za-z]\w*)\[[^][\n]*\])
      | (?P<number>-?(?:inf|nan)\b|-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)
      | (?P<word>[A-Za-z_][\w.]*)
      | (?P<mark>[(){}\[\],:=*@])""",
    re.VERBOSE,
)
_QUANT = re.compile(r"!quant\.uniform<(\w+)<(-?\d+):(-?\d+)>:(\w+)(?::(\d+))?,\{?([^}>]*)\}?>$")
MAXIMUM_DEPTH = 64


_Read = TypeVar("_Read")


class Token(NamedTuple):
    kind: str
    text: str
    start: int


def parse_module(text: str, weights: WeightSource | None = None) -> Module:
    """The module of that text; UserError with line and snippet if it is none."""
    return _Parser(text, weights).module()


class _Parser:
    def __init__(self, text: str, weights: WeightSource | None) -> None:
        self.text, self.weights = text, weights
        self.tokens: list[Token] = []
        self.position = 0
        self.depth = 0
        self.values: dict[str, Value] = {}
        self.tokenize()

    def tokenize(self) -> None:
        place, end = 0, len(self.text)
        while place < end:
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail("unexpected character", place)
            if match.lastgroup != "space":
                self.tokens.append(Token(match.lastgroup or "", match[0], place))
            place = match.end()
        self.tokens.append(Token("end", "", end))

    # Tokens.

    def fail(self, reason: str, place: int | None = None) -> NoReturn:
        place = self.peek().start if place is None else place
        line = self.text.count("\n", 0, place) + 1
        start = self.text.rfind("\n", 0, place) + 1
        snippet = self.text[start:].split("\n", 1)[0][:100]
        caret = " " * min(place - start, 99) + "^"
        raise UserError(f"line {line}: {reason}\n    {snippet}\n    {caret}")

    def peek(self) -> Token:
        return self.tokens[min(self.position, len(self.tokens) - 1)]

    def next(self, kind: str = "", text: str = "") -> str:
        token = self.peek()
        if (kind and token.kind != kind) or (text and token.text != text):
            self.fail(f"expected {text or kind}, found '{token.text}'")
        self.position += 1
        return token.text

    def take(self, text: str) -> bool:
        if self.peek().text == text and self.peek().kind != "string":
            self.position += 1
            return True
        return False

    def string(self) -> str:
        text = self.next("string")
        try:
            return json.loads(text)
        except ValueError:
            self.position -= 1
            self.fail("a string is malformed")

    def read(self, parse: Callable[[str], _Read]) -> _Read:
        """What `parse` makes of the string that comes next."""
        try:
            return parse(self.string())
        except UserError as error:
            self.position -= 1
            self.fail(str(error))

    # Structure.

    def module(self) -> Module:
        try:
            return self._module()
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            self.fail(f"{type(error).__name__}: {error}")
        except RecursionError:
            self.fail("nested too deeply")

    def _module(self) -> Module:
        self.next("word", "girih")
        version = self.next("number")
        if version != "1.0":
            self.fail(f"format {version} is not known, this girih reads 1.0")
        self.next("word", "module")
        name = self.string()
        self.next("word", "entry")
        entry = self.next("symbol")[1:]
        self.next("mark", "{")
        symbols: dict[str, Symbol] = {}
        constraints: list[SizeConstraint] = []
        meshes: dict[str, Mesh] = {}
        weights: dict[str, Weight] = {}
        functions: dict[str, Function] = {}
        notes: list[str] = []
        signature, attributes = None, {}
        while not self.take("}"):
            keyword = self.next("word")
            if keyword == "symbol":
                symbol = self.next("word")
                symbols[symbol] = self.symbol()
            elif keyword == "constraint":
                text = self.string()
                constraints.append(parse_constraint(text, self.string_after("by")))
            elif keyword == "mesh":
                mesh = self.string()
                meshes[mesh] = self.read(parse_mesh)
            elif keyword == "weight":
                weight = self.weight()
                weights[weight.name] = weight
            elif keyword == "signature":
                signature = Signature.from_json(json.loads(self.string()))
            elif keyword == "attributes":
                attributes = self.attributes()
            elif keyword == "note":
                notes.append(self.string())
            elif keyword == "function":
                function = self.function()
                functions[function.name] = function
            else:
                self.position -= 1
                self.fail(f"'{keyword}' is not part of a module")
        self.next("end")
        if entry not in functions:
            self.fail(f"there is no function @{entry}")
        return Module(
            functions, entry, name, weights, signature, symbols, attributes, tuple(notes), meshes,
            tuple(constraints),
        )  # fmt: skip

    def symbol(self) -> Symbol:
        """What stands behind a symbol's name."""
        minimum = int(self.next("number"))
        maximum = None if self.take("*") else int(self.next("number"))
        modulus, residue = 1, 0
        if self.peek().kind == "number":
            modulus, residue = int(self.next("number")), int(self.next("number"))
        if modulus < 1:
            self.fail("a modulus is at least 1")
        return Symbol(minimum, maximum, modulus, residue, self.string_after("by"))

    def string_after(self, word: str) -> str:
        return self.string() if self.take(word) else ""

    def weight(self) -> Weight:
        name = self.string()
        self.next("mark", ":")
        type = self.type()
        if not isinstance(type, TensorType):
            self.fail("a weight is a tensor")
        aliases = self.attribute() if self.take("aliases") else ()
        source = self.weights(name, type) if self.weights else _absent(name)
        return Weight(name, source, type, aliases)

    def typed_arguments(self, with_attributes: bool) -> tuple[tuple[Value, ...], list[Any]]:
        self.next("mark", "(")
        names: list[str] = []
        types: list[Type] = []
        attributes: list[dict[str, Any]] = []
        while not self.take(")"):
            if names:
                self.next("mark", ",")
            names.append(self.next("value"))
            self.next("mark", ":")
            types.append(self.type())
            has = with_attributes and self.peek().text == "{"
            attributes.append(self.attributes() if has else {})
        own = arguments(types)
        self.values.update(zip(names, own, strict=True))
        return own, attributes

    def function(self) -> Function:
        self.values = {}
        name = self.next("symbol")[1:]
        own, argument_attributes = self.typed_arguments(True)
        # `{` opens either the function's attributes or its body: a body never starts `word =`.
        ahead = self.tokens[self.position + 1 : self.position + 3]
        has = len(ahead) == 2 and ahead[0].kind in ("word", "string") and ahead[1].text == "="
        attributes = self.attributes() if has else {}
        results = self.attribute() if self.take("results") else ()
        self.next("mark", "{")
        ops = self.ops("return")
        region = Region(own, ops, self.operands_until_end())
        self.next("mark", "}")
        given = tuple(argument_attributes) if any(argument_attributes) else ()
        return Function(name, region, given, tuple(results), attributes)

    def operands_until_end(self) -> list[Value]:
        found: list[Value] = []
        while self.peek().kind == "value":
            found.append(self.value())
            if not self.take(","):
                break
        return found

    def value(self) -> Value:
        name = self.next("value")
        if name not in self.values:
            self.position -= 1
            self.fail(f"{name} is not defined before")
        return self.values[name]

    def ops(self, end: str) -> list[Op]:
        found: list[Op] = []
        while not self.take(end):
            found.append(self.op())
        return found

    def op(self) -> Op:
        names: list[str] = []
        while self.peek().kind == "value":
            names.append(self.next("value"))
            if not self.take(","):
                self.next("mark", "=")
                break
        name = self.next("word")
        definition = find(name)
        self.next("mark", "(")
        operands = self.operands_until_end()
        self.next("mark", ")")
        attributes = self.attributes() if self.peek().text == "{" else {}
        types: list[Type] = []
        if self.take(":"):
            types.append(self.type())
            while self.take(","):
                types.append(self.type())
        if len(types) != len(names):
            self.fail(f"{name} names {len(names)} results and has {len(types)} types")
        origin: list[Origin] = []
        if self.take("at"):
            origin.append(Origin(*self.attribute()))
            while self.take(","):
                origin.append(Origin(*self.attribute()))
        regions: list[Region] = []
        if self.take("["):
            while not self.take("]"):
                regions.append(self.region())
        op = Op(definition, operands, attributes, regions, types, tuple(origin))
        self.values.update(zip(names, op.results, strict=True))
        return op

    def region(self) -> Region:
        self.depth += 1
        if self.depth > MAXIMUM_DEPTH:
            self.fail("regions are nested too deeply")
        self.next("word", "region")
        own, _ = self.typed_arguments(False)
        self.next("mark", "{")
        ops = self.ops("yield")
        region = Region(own, ops, self.operands_until_end())
        self.next("mark", "}")
        self.depth -= 1
        return region

    # Types and attributes.

    def type(self) -> Type:
        if self.take("token"):
            return TOKEN
        if self.take("future"):
            self.next("mark", "(")
            return FutureType(self.members())
        if self.take("("):
            return TupleType(self.members())
        element: Any
        if self.peek().kind == "quant":
            element = self.quantized(self.next("quant"))
            self.next("mark", "[")
            text = ""
            while not self.take("]"):
                if self.peek().kind == "end":
                    self.fail("a type is not closed")
                text += self.next()
        else:
            name, _, text = self.next("type")[:-1].partition("[")
            element = element_type(name)
        dims = [parse_dim(part) for part in split_dims(text)]
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            self.fail("a dimension is negative")
        sharding: Sharding | None = self.read(parse_sharding) if self.take("@") else None
        return TensorType(dims, element, sharding)

    def members(self) -> list[Type]:
        """Types up to a closing parenthesis."""
        members: list[Type] = []
        while not self.take(")"):
            if members:
                self.next("mark", ",")
            members.append(self.type())
        return members

    def quantized(self, text: str) -> QuantizedType:
        match = _QUANT.match(text)
        if match is None:
            self.fail("a quantised type is malformed")
        storage, low, high, expressed, axis, scales = match.groups()
        pairs = [pair.rsplit(":", 1) for pair in scales.split(",")]
        return QuantizedType(
            element_type(storage), element_type(expressed), None if axis is None else int(axis),
            [float(scale) for scale, _ in pairs], [int(zero) for _, zero in pairs],
            int(low), int(high),
        )  # fmt: skip

    def attributes(self) -> dict[str, Any]:
        self.next("mark", "{")
        found: dict[str, Any] = {}
        while not self.take("}"):
            if found:
                self.next("mark", ",")
            key = self.string() if self.peek().kind == "string" else self.next("word")
            self.next("mark", "=")
            found[key] = self.attribute()
        return found

    def attribute(self) -> Any:
        token = self.peek()
        if token.kind == "string":
            return self.string()
        if token.kind == "number":
            return self.number()
        if token.text == "{":
            return self.attributes()
        if self.take("("):
            members: list[Any] = []
            while not self.take(")"):
                members.append(self.attribute())
                if not self.take(","):
                    self.next("mark", ")")
                    break
            return tuple(members)
        word = self.next("word")
        if word in ("true", "false", "none"):
            return {"true": True, "false": False, "none": None}[word]
        if word == "bytes":
            return bytes.fromhex(self.next("hex")[2:])
        if word == "type":
            return self.type()
        if word == "size":
            return parse_dim(self.string())
        if word in ("splat", "dense"):
            return self.dense(word == "splat")
        self.position -= 1
        self.fail(f"'{word}' is no attribute")

    def number(self) -> int | float:
        text = self.next("number")
        return float(text) if any(mark in text for mark in ".einf") else int(text)

    def dense(self, splat: bool) -> Dense:
        type = self.type()
        if not isinstance(type, TensorType):
            self.fail("a constant is a tensor")
        count = 1 if splat else type.size
        if self.peek().kind == "hex":
            data = bytes.fromhex(self.next("hex")[2:])
            if len(data) != count * type.element.itemsize:
                self.fail(f"{type} needs {count * type.element.itemsize} bytes, got {len(data)}")
            flat = np.frombuffer(data, type.dtype)
        else:
            value = self.attribute()
            flat = np.array([value] if splat else value, type.dtype)
            if flat.shape != (count,):
                self.fail(f"{type} needs {count} elements")
        if splat:
            return Dense(type, np.broadcast_to(flat.reshape(()), type.dims))
        return Dense(type, flat.reshape(type.dims))
