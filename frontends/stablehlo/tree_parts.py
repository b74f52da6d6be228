"""Types, places and attributes of a module as a tree has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...hlo.graph import Dense, Module, Origin
from ...hlo.signature import Signature
from ...hlo.sizes import Symbol
from ...hlo.types import FutureType, QuantizedType, TensorType, TokenType, Type
from .. import tree
from .normal import elements_of, restored, scalar_of

_TYPES_OF_FACTS = {
    "mhlo.num_partitions": "i32",
    "mhlo.num_replicas": "i32",
    "tf.aliasing_output": "i32",
}
"""Attributes of modules and arguments whose integers have another type than i64."""

Symbols = Mapping[str, Symbol]
_NO_SYMBOLS: Symbols = {}


def type_of(kind: Type, symbols: Symbols = _NO_SYMBOLS) -> tree.Type:
    """The tree's type of a value; symbolic dimensions are free ones.

    symbols: the range of each; a dimension from 0 to an end is written with that bound.
    """
    if isinstance(kind, TensorType):
        shape = tuple(dim if isinstance(dim, int) else tree.DYNAMIC for dim in kind.dims)
        element = kind.element
        if isinstance(element, QuantizedType):
            return tree.Tensor(
                shape,
                tree.Quantized(
                    element.storage.name, element.expressed.name, element.axis, element.scales,
                    element.zero_points, element.minimum, element.maximum,
                ),
            )  # fmt: skip
        return tree.Tensor(shape, scalar_of(element), _encoding(kind.dims, symbols))
    if isinstance(kind, TokenType):
        return "token"
    members = tuple(type_of(member, symbols) for member in kind.members)
    return tree.Future(members) if isinstance(kind, FutureType) else tree.Tuple(members)


def _encoding(dims: Sequence[Any], symbols: Symbols) -> Any:
    """The bounds of the dimensions, None without any."""
    said = [symbols.get(repr(dim), Symbol(1)) for dim in dims]
    bounds = tuple(
        tree.DYNAMIC if symbol.minimum or symbol.maximum is None else symbol.maximum
        for symbol in said
    )
    if all(bound == tree.DYNAMIC for bound in bounds):
        return None
    return tree.Structured("bounds", {"bounds": bounds})


def location_of(origins: Sequence[Origin]) -> Any:
    """The place of an op: of a line that a name stands around, several are fused."""
    found = [_location(origin) for origin in origins]
    found = [location for location in found if location is not None]
    if len(found) > 1:
        return tree.FusedLocation(tuple(found))
    return found[0] if found else None


def _location(origin: Origin) -> Any:
    place = tree.FileLocation(origin.file, origin.line, 0) if origin.file else None
    return tree.NameLocation(origin.name, place) if origin.name else place


def operation_of(
    name: str,
    attributes: Mapping[str, Any],
    regions: Sequence[tree.Region] = (),
    operands: Sequence[tree.TreeValue] = (),
) -> tree.Operation:
    return tree.Operation(name, list(operands), [], dict(attributes), list(regions))


def weight_elements(module: Module, name: str) -> tree.Elements:

    weight = module.weights[name]
    return elements_of(Dense(weight.type, weight.array))


def default_paths(signature: Signature) -> tuple[list[str], list[str]]:
    """The paths of arguments and results where nobody named them."""
    plain = Signature.plain(
        [(item.dims, item.element) for item in signature.arguments],
        [(item.dims, item.element) for item in signature.results],
    )
    return [item.path for item in plain.arguments], [item.path for item in plain.results]


def typed_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: typed_fact(key, value) for key, value in given.items()}


def typed_fact(key: str, value: Any) -> Any:
    if key in _TYPES_OF_FACTS and isinstance(value, int) and not isinstance(value, bool):
        return tree.Integer(value, _TYPES_OF_FACTS[key])
    if isinstance(value, TensorType) and value.sharding is not None:
        return str(value)  # StableHLO's types have no sharding
    return restored(value)


def donation(argument: Any) -> dict[str, Any]:
    if not argument.donated:
        return {}
    if argument.aliases is None:
        return {"jax.buffer_donor": True}
    return {"tf.aliasing_output": tree.Integer(argument.aliases, "i32")}
