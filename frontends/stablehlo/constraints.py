"""What a tree says of how values lie becomes types of arguments, and operations behind values.

Where it was said stays with the constraint (`stated`), so that an export says it there again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...hlo import ops
from ...hlo.errors import UserError
from ...hlo.graph import Function, Op, Value
from ...hlo.ops.annotation import ARGUMENT, CONSTRAINT, DIRECTIONS, OPERATION, RESHARD, RESULT
from ...hlo.sharding import Mesh, Sharding
from ...hlo.types import TensorType, Type
from .. import tree
from ..shard_specs import NAME, sharding_in
from . import attributes as attribute_tables
from . import gspmd, sdy
from .annotations import OLDER, states

if TYPE_CHECKING:
    from .convert import Converter

Handler = Callable[["Converter", tree.Operation, list[Op]], bool]

_RESULT_SHARDING = "xla.sdy.FuncResultSharding"


def argument_type(converter: Converter, owner: tree.Operation, index: int, kind: Type) -> Type:
    """The type of the entry's argument, with the sharding that is said of it."""
    stated = _stated(converter, owner, "arg_attrs", index, kind)
    if stated is None or not isinstance(kind, TensorType):
        return kind
    return kind.with_sharding(stated)


def on_argument(
    converter: Converter, owner: tree.Operation, index: int, value: tree.TreeValue, built: list[Op]
) -> None:
    """What is said of an argument that is none of the program's, as a constraint."""
    leaf = converter.use(value)
    if isinstance(leaf, Value):
        stated = _stated(converter, owner, "arg_attrs", index, leaf.type)
        if stated is not None:
            converter.rename(value, constrain(converter, leaf, stated, ARGUMENT, owner, built))


def on_results(
    converter: Converter, owner: tree.Operation, results: list[Value], built: list[Op]
) -> list[Value]:
    """A function's results behind the constraints that are said of them."""
    found = []
    for index, result in enumerate(results):
        stated = _stated(converter, owner, "res_attrs", index, result.type)
        if stated is not None:
            result = constrain(converter, result, stated, RESULT, owner, built)
        found.append(result)
    return found


def on_operation(converter: Converter, operation: tree.Operation, built: list[Op]) -> None:
    """Constraints behind an operation whose attributes say how its results lie."""
    target = str(operation.attributes.get("call_target_name", ""))
    if not states(operation.attributes) or target in CALLS or target in _BORDERS:
        return
    found = [leaf for value in operation.results for leaf in converter.leaves(value)]
    text = str(operation.attributes.get(OLDER, ""))
    if len(gspmd.members(text, len(found))) != max(
        len(found), 1
    ):  # of a tuple that was taken apart
        converter.notes.append(f"the sharding {text} is of other results and was left out")
        return
    ranks = [leaf.rank if isinstance(leaf.type, TensorType) else None for leaf in found]
    try:
        stated = converter.annotations.of_results(operation, ranks)
    except UserError as error:
        converter.block(operation, str(error), "correct the sharding")
        return
    for place, sharding in enumerate(stated):
        if sharding is not None:
            leaf = found[place]
            found[place] = constrain(converter, leaf, sharding, OPERATION, operation, built)
    converter.bind(operation.results, found)


def constrain(
    converter: Converter,
    value: Value,
    sharding: Sharding,
    stated: str,
    operation: tree.Operation,
    built: list[Op],
) -> Value:
    """The value behind a constraint that `operation` states."""
    facts = {} if stated == CONSTRAINT else {"stated": stated}
    origin = converter.locations.origins(operation.location)
    if stated in (ARGUMENT, RESULT) and value.op is not None:
        origin = value.op.origin  # a function's own place says less
    kind = value.tensor.with_sharding(sharding)
    built.append(Op(ops.find("sharding_constraint"), [value], facts, (), (kind,), origin))
    return built[-1].result


def from_composite(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """What `girih.shard` says, in the composite's attributes."""
    facts = operation.attributes.get("composite_attributes", {})
    text = str(facts.get("spec", "")) if isinstance(facts, dict) else ""
    (value,) = converter.operands(operation)
    try:
        stated = sharding_in(converter.annotations.meshes, text)
        lying = converter.annotations.checked(stated, value.rank)
    except UserError as error:
        converter.block(operation, str(error), "export the program again", NAME)
        converter.rename(operation.results[0], value)
        return True
    made = constrain(converter, value, lying, CONSTRAINT, operation, built)
    converter.rename(operation.results[0], made)
    return True


def meshes_of(converter: Converter, functions: Mapping[str, Function]) -> dict[str, Mesh]:
    """The meshes that the file declares, and those that types name."""
    named: set[str] = set()
    for function in functions.values():
        values = [*function.body.arguments]
        values += [value for op in function.body.walk() for value in op.results]
        for value in values:
            if isinstance(value.type, TensorType) and value.type.sharding is not None:
                named.add(value.type.sharding.mesh)
    return {
        name: mesh
        for name, mesh in converter.annotations.meshes.items()
        if name in named or name != sdy.inline_name(mesh)
    }


def _stated(
    converter: Converter, owner: tree.Operation, key: str, index: int, kind: Type
) -> Sharding | None:
    """How argument or result `index` of a function lies, if that is said of a tensor."""
    facts = owner.attributes.get(key) or ()
    if index >= len(facts) or not isinstance(facts[index], dict):
        return None
    if not isinstance(kind, TensorType):
        return None
    try:
        return converter.annotations.of_value(facts[index], kind.rank)
    except UserError as error:
        converter.block(owner, str(error), "correct the sharding")
        return None


# Operations and custom calls that say how values lie


def _constraint(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    (value,) = converter.operands(operation)
    said = converter.annotations
    (sharding,) = said.read(
        attribute_tables.plain(operation.attributes["sharding"], converter.type)
    )
    stated = RESHARD if operation.name == "sdy.reshard" else CONSTRAINT
    lying = constrain(
        converter, value, said.checked(sharding, value.rank), stated, operation, built
    )
    converter.rename(operation.results[0], lying)
    return True


def _older_constraint(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The custom call `Sharding`: a constraint, a member of a group, or both."""
    facts = operation.attributes
    (value,) = converter.operands(operation)
    text = str(facts.get("mhlo.sharding", ""))
    if text:
        is_open = gspmd.unspecified(str(facts.get("backend_config", "")))
        found = converter.annotations.of_older(text, value.rank, is_open)
    else:
        found = converter.annotations.of_value(facts, value.rank)
    group = gspmd.group_of(text)
    if group is not None:
        _member(converter, operation, built, value, group)
    if found is not None:
        value = constrain(converter, value, found, CONSTRAINT, operation, built)
    elif group is None and text not in ("", "{manual}"):
        converter.notes.append(f"the sharding {text} says nothing of a mesh and was left out")
    converter.rename(operation.results[0], value)
    return True


def _result_sharding(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """What older exports say of a function's result in front of its return."""
    (value,) = converter.operands(operation)
    found = converter.annotations.of_value(operation.attributes, value.rank)
    if found is not None:
        value = constrain(converter, value, found, RESULT, operation, built)
    converter.rename(operation.results[0], value)
    return True


def _group(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    (value,) = converter.operands(operation)
    number = attribute_tables.plain(operation.attributes["group_id"], converter.type)
    _member(converter, operation, built, value, number)
    return True


def _member(
    converter: Converter, operation: tree.Operation, built: list[Op], value: Value, number: int
) -> None:
    origin = converter.locations.origins(operation.location)
    definition = ops.find("sharding_group")
    built.append(Op(definition, [value], {"group_id": number}, (), (), origin))


def _barrier(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    stated = attribute_tables.plain(operation.attributes["allowed_direction"], converter.type)
    word = DIRECTIONS[stated] if isinstance(stated, int) else str(stated)
    facts = {"allowed_direction": word}
    converter.emit("propagation_barrier", operation, built, facts)
    return True


def _named_computation(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """Its body in its place; what it says of inputs and results are constraints."""
    body = operation.regions[0]
    inputs = converter.operands(operation)
    converter.bind(body.arguments, _each(converter, operation, "in_shardings", inputs, built))
    results = converter.inline(body, built)
    converter.bind(operation.results, _each(converter, operation, "out_shardings", results, built))
    return True


def _each(
    converter: Converter,
    operation: tree.Operation,
    key: str,
    values: list[Value],
    built: list[Op],
) -> list[Value]:
    """The values behind the constraints in an attribute with one for each, if it is there."""
    stated = operation.attributes.get(key)
    if stated is None:
        return values
    said = converter.annotations
    found = said.read(attribute_tables.plain(stated, converter.type))
    return [
        constrain(converter, value, said.checked(one, value.rank), CONSTRAINT, operation, built)
        for value, one in zip(values, found, strict=True)
    ]


_BORDERS = (gspmd.TO_SHARD, gspmd.TO_FULL)
CALLS: dict[str, Handler] = {
    gspmd.SHARDING: _older_constraint,
    _RESULT_SHARDING: _result_sharding,
}
HANDLERS: dict[str, Handler] = {
    "sdy.named_computation": _named_computation,
    "sdy.propagation_barrier": _barrier,
    "sdy.reshard": _constraint,
    "sdy.sharding_constraint": _constraint,
    "sdy.sharding_group": _group,
}
