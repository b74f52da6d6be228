"""The one op tree that every reader fills and one converter turns into an `hlo.Module`.

A tree says what a file says, in plain values, before anything is checked against the op rooms:
names with their dialect prefix ("stablehlo.add"), operand edges, result types, attributes, regions
and locations. Types are the small frozen classes below; a scalar type is its spelling ("f32", "i1",
"index", "token"). Attribute values are Python's own: `bool` (also MLIR's unit), `str` (strings,
enums and symbols), `tuple` (arrays), `dict`, types (scalar ones as `Scalar`), and the classes
`Integer`, `Float`, `Elements`, `Structured` and `Opaque` where Python has no equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

DYNAMIC = -(1 << 63)
"""How MLIR writes a dimension or bound that is not known, in `Tensor.shape` and `Bounds`."""


# Types


@dataclass(frozen=True, slots=True)
class Complex:
    """complex<element>"""

    element: str


@dataclass(frozen=True, slots=True)
class Quantized:
    """Integers that stand for `expressed`: (stored - zero point) * scale, per tensor or `axis`."""

    storage: str
    expressed: str
    axis: int | None
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """tensor<shape x element, encoding>; `encoding` is an attribute or None."""

    shape: tuple[int, ...]
    element: Type
    encoding: Any = None


@dataclass(frozen=True, slots=True)
class Unranked:
    """tensor<*xelement>"""

    element: Type


@dataclass(frozen=True, slots=True)
class Buffer:
    """memref<shape x element>: storage that a program may write in place."""

    shape: tuple[int, ...]
    element: Type


@dataclass(frozen=True, slots=True)
class Tuple:
    """tuple<types>"""

    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Future:
    """The results of an asynchronous op, before `async_done`."""

    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class FunctionType:
    """(inputs) -> results"""

    inputs: tuple[Type, ...]
    results: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A type or attribute of a dialect that the reader does not know, as its name and text."""

    name: str
    text: str


Type = Union[  # noqa: UP007 - the classes refer to it before it exists
    str, Complex, Quantized, Tensor, Unranked, Buffer, Tuple, Future, FunctionType, Opaque
]


def spell(kind: Type) -> str:
    """The type as StableHLO's text writes it."""
    match kind:
        case str():
            return "!stablehlo.token" if kind == "token" else kind
        case Complex(element):
            return f"complex<{element}>"
        case Quantized():
            both = zip(kind.scales, kind.zero_points, strict=False)
            pairs = [f"{number(scale)}:{zero}" if zero else number(scale) for scale, zero in both]
            scales = pairs[0] if kind.axis is None else "{" + ",".join(pairs) + "}"
            axis = "" if kind.axis is None else f":{kind.axis}"
            bounds = f"<{kind.minimum}:{kind.maximum}>"
            storage = kind.storage.replace("ui", "u")
            return f"!quant.uniform<{storage}{bounds}:{kind.expressed}{axis}, {scales}>"
        case Tensor(shape, element) | Buffer(shape, element):
            dims = "".join(f"{'?' if dim == DYNAMIC else dim}x" for dim in shape)
            name = "memref" if isinstance(kind, Buffer) else "tensor"
            return f"{name}<{dims}{spell(element)}{_bounds(kind)}>"
        case Unranked(element):
            return f"tensor<*x{spell(element)}>"
        case Tuple(types) | Future(types):
            name = "tuple" if isinstance(kind, Tuple) else "!stablehlo.future"
            return f"{name}<{', '.join(map(spell, types))}>"
        case FunctionType(inputs, results):
            return f"({', '.join(map(spell, inputs))}) -> ({', '.join(map(spell, results))})"
    return f"!{kind.name}{kind.text}"


def key(kind: Type) -> Any:
    """What tells types apart in a table; types with bounds hold a dictionary and have no hash."""
    try:
        hash(kind)
    except TypeError:
        return spell(kind)
    return kind


def number(value: float) -> str:
    """A float as MLIR writes it: never without a point."""
    text = repr(float(value))
    whole, mark, exponent = text.partition("e")
    return text if "." in whole or not whole.lstrip("-").isdigit() else f"{whole}.0{mark}{exponent}"


def _bounds(kind: Tensor | Buffer) -> str:
    """`, #stablehlo.bounds<3, ?>` of a tensor whose free dimensions have bounds."""
    encoding = getattr(kind, "encoding", None)
    if not isinstance(encoding, Structured) or encoding.kind != "bounds":
        return ""
    bounds = encoding.fields.get("bounds", ())
    return f", #stablehlo.bounds<{', '.join('?' if b == DYNAMIC else str(b) for b in bounds)}>"


# Attributes


class Scalar(str):
    """The spelling of a scalar type where it is an attribute's value: equal to that string."""

    __slots__ = ()


class Integer(NamedTuple):
    """An integer with its type; signless types hold it sign-extended."""

    value: int
    type: Type


class Float(NamedTuple):
    """A float with its type."""

    value: float
    type: Type


class Elements(NamedTuple):
    """A constant tensor that is still in its file: `payload` is the text in `dense<..>`, or bytes.

    Bytes are little-endian, row-major, one per element for types under eight bits; a single
    element stands for all.
    """

    type: Tensor
    payload: str | bytes | memoryview


class Structured(NamedTuple):
    """A dialect's record, such as `#stablehlo.dot<...>`: its mnemonic and its fields by name."""

    kind: str
    fields: dict[str, Any]


# Locations


class FileLocation(NamedTuple):
    """A place in a user's file."""

    file: str
    line: int
    column: int = 0


class TextLine(NamedTuple):
    """The line of the file itself: of an op in a text without locations, for errors only."""

    line: int


class NameLocation(NamedTuple):
    """A name (JAX: the name stack of an op, or an argument's name) around another location."""

    name: str
    child: Any


class CallSite(NamedTuple):
    """`callee` was inlined or traced at `caller`."""

    callee: Any
    caller: Any


class FusedLocation(NamedTuple):
    """Several locations that one op stands for."""

    parts: tuple[Any, ...]


# The tree


class TreeValue:
    """One edge, compared by identity; `name` is the text's, `location` an argument's."""

    __slots__ = ("type", "name", "location")

    def __init__(self, type: Type, name: str = "", location: Any = None):
        self.type = type
        self.name = name
        self.location = location


class Region:
    """A single block: its arguments and its operations, the terminator last."""

    __slots__ = ("arguments", "operations")

    def __init__(
        self, arguments: list[TreeValue] | None = None, operations: list[Operation] | None = None
    ):
        self.arguments = arguments if arguments is not None else []
        self.operations = operations if operations is not None else []


class Operation:
    """One op as its file says it. `location` is what `Document.location` takes."""

    __slots__ = ("name", "operands", "results", "attributes", "regions", "location")

    def __init__(
        self,
        name: str,
        operands: list[TreeValue] | None = None,
        results: list[TreeValue] | None = None,
        attributes: dict[str, Any] | None = None,
        regions: list[Region] | None = None,
        location: Any = None,
    ):
        self.name = name
        self.operands = operands if operands is not None else []
        self.results = results if results is not None else []
        self.attributes = attributes if attributes is not None else {}
        self.regions = regions if regions is not None else []
        self.location = location


@dataclass(slots=True)
class Document:
    """A whole file: its top module, its origin, and how its lazily read locations are resolved."""

    module: Operation
    source: str = ""
    producer: str = ""
    locate: Any = None

    def location(self, handle: Any) -> Any:
        """What an op's or argument's `location` stands for: one of the classes above, or None."""
        return self.locate(handle) if self.locate is not None else handle


def walk(operation: Operation) -> Iterator[Operation]:
    """Every operation of the tree in file order, the given one first."""
    pending = [operation]
    while pending:
        current = pending.pop()
        yield current
        for region in reversed(current.regions):
            pending.extend(reversed(region.operations))
