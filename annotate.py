"""Shardings by name: what a user says of arguments and weights of a program from any source.

    annotated(module, {"data": 2, "model": 4}, {"layers.*.w1": (None, "model"), "x": ("data",)})

A pattern names arguments by their paths and weights by their names; `*` stands for any text, and
`params['w']` and `params.w` are the same. A spec has for each dim None (whole), an axis, or several
axes, major to minor; dims that it leaves out are whole.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .frontends.shard_specs import dim_of, is_open
from .hlo import ops
from .hlo.errors import UserError
from .hlo.graph import Function, Module, Op, Region, Value, arguments
from .hlo.regions import rewritten
from .hlo.sharding import DimSharding, Mesh, Sharding
from .hlo.types import TensorType, Type

_DEFAULT = "mesh"


def annotated(
    module: Module,
    mesh: Mapping[str, int | None],
    shardings: Mapping[str, Iterable[Any]] | None = None,
) -> Module:
    """The module with a sharding on each argument and weight that a pattern names.

    mesh: the size of each axis, major to minor; None leaves it open. It is also the mesh of what
    the program says of axes without sizes (`girih.shard`). UserError for a pattern
    without a match, two for one value, an axis that the mesh lacks or that is used twice, more
    dims than a tensor has, and an argument that has a sharding already.
    """
    devices = Mesh(tuple(mesh.items()))
    bound = on_mesh(module, devices)
    if not shardings:
        if bound is module and devices not in module.meshes.values():
            raise UserError(
                "mesh: says nothing without shardings; give {pattern: spec}, or say "
                "girih.shard(x, ...) in the model"
            )
        return bound
    module = bound
    place = _mesh_name(module, devices)
    names = _names(module)
    stated: dict[str, tuple[str, Sharding]] = {}
    for pattern, spec in shardings.items():
        found = [name for name in names if _matches(pattern, name)]
        if not found:
            raise UserError(f"shardings: nothing is named '{pattern}'{_nearest(pattern, names)}")
        for name in found:
            if name in stated:
                raise UserError(
                    f"shardings: '{stated[name][0]}' and '{pattern}' both name '{name}'"
                )
            kind = names[name]
            stated[name] = pattern, _sharding(pattern, name, spec, kind, place, devices)
    meant = {name: sharding for name, (_, sharding) in stated.items()}
    functions = {n: _with_weights(f, module, meant) for n, f in module.functions.items()}
    functions[module.entry] = _with_arguments(functions[module.entry], module, meant)
    return replace(module, functions=functions, meshes={**module.meshes, place: devices})


def tensor_named(
    module: Module, name: str, specs: Sequence[Iterable[Any]], mesh: Mesh
) -> tuple[TensorType, list[Sharding]]:
    """The argument, weight or result that a pattern names alone, and what specs say of it on a
    mesh, as `annotated` takes them. UserError for a pattern that names none, or several."""
    names = _names(module)
    paths = [f"result[{number}]" for number in range(len(module.body.results))]
    if module.signature is not None:
        paths = [result.path for result in module.signature.results]
    for path, value in zip(paths, module.body.results, strict=True):
        if isinstance(value.type, TensorType):
            names.setdefault(path, value.type)
    found = [known for known in names if _matches(name, known)]
    if not found:
        raise UserError(f"nothing is named '{name}'{_nearest(name, names)}")
    if len(found) > 1:
        raise UserError(f"'{name}' names {len(found)} tensors: {', '.join(found[:8])}")
    kind = names[found[0]]
    return kind, [_sharding(name, found[0], spec, kind, _DEFAULT, mesh) for spec in specs]


def on_mesh(module: Module, mesh: Mesh) -> Module:
    """The module, in which every mesh without any size is this one; itself where none is.

    UserError, with the user's line, for an axis that the mesh does not have.
    """
    names = [name for name, known in module.meshes.items() if is_open(known) and known != mesh]
    if not names:
        return module
    for value, where in _stated(module):
        sharding = value.sharding
        if sharding is None or sharding.mesh not in names:
            continue
        try:
            sharding.check(mesh, value.rank)
        except UserError as error:
            raise UserError(f"{where}{error}") from None
    return replace(module, meshes={**module.meshes, **dict.fromkeys(names, mesh)})


def _stated(module: Module) -> Iterator[tuple[TensorType, str]]:
    """The types that may have a sharding, each with its place in the user's program."""
    for function in module.functions.values():
        yield from ((t, "") for t in function.body.argument_types if isinstance(t, TensorType))
    for op in module.walk():
        yield from ((v.type, op.place) for v in op.results if isinstance(v.type, TensorType))


def _mesh_name(module: Module, mesh: Mesh) -> str:
    """The name of that mesh in the module, a new one where it has none."""
    for name, known in module.meshes.items():
        if known == mesh:
            return name
    number, name = 0, _DEFAULT
    while name in module.meshes:
        number, name = number + 1, f"{_DEFAULT}_{number}"
    return name


def _names(module: Module) -> dict[str, TensorType]:
    """Everything that a pattern may name, with its type: arguments, then weights."""
    types = module.body.argument_types
    signature = module.signature
    paths = [f"input[{n}]" for n in range(len(types))]
    if signature is not None:
        paths = [argument.path for argument in signature.arguments]
    found = {p: t for p, t in zip(paths, types, strict=True) if isinstance(t, TensorType)}
    for weight in module.weights.values():
        found.update((name, weight.type) for name in (weight.name, *weight.aliases))
    return found


def _matches(pattern: str, name: str) -> bool:
    text = ".*".join(re.escape(part) for part in dotted(pattern).split("*"))
    return re.fullmatch(text, dotted(name)) is not None


def dotted(path: str) -> str:
    """`params['w'][0]` as `params.w.0`"""
    return re.sub(r"\[['\"]?([^][]*?)['\"]?\]", r".\1", path).lstrip(".")


def _nearest(pattern: str, names: Iterable[str]) -> str:
    known = {dotted(name): name for name in names}
    close = difflib.get_close_matches(dotted(pattern), known, 3, 0.5)
    if close:
        return f"; nearest are {', '.join(known[name] for name in close)}"
    return f"; there are {', '.join(list(known.values())[:8]) or 'no arguments and no weights'}"


def _sharding(
    pattern: str, name: str, spec: Iterable[Any], kind: TensorType, place: str, mesh: Mesh
) -> Sharding:
    """What a spec says of a tensor."""
    if isinstance(spec, str):
        spec = (spec,)
    try:
        dims = list(map(dim_of, spec))
    except UserError as error:
        raise UserError(f"shardings: '{pattern}': {error}") from None
    if len(dims) > kind.rank:
        raise UserError(f"shardings: '{pattern}' has {len(dims)} dims, '{name}' is {kind}")
    dims += [DimSharding()] * (kind.rank - len(dims))
    try:
        sharding = Sharding(place, tuple(dims))
        sharding.check(mesh, kind.rank)
    except UserError as error:
        raise UserError(f"shardings: '{pattern}': {error}") from None
    return sharding


def _with_arguments(function: Function, module: Module, stated: Mapping[str, Sharding]) -> Function:
    """The entry with shardings in the types of its arguments."""
    body = function.body
    types: list[Type] = []
    for name, kind in zip(_argument_names(module), body.argument_types, strict=True):
        if name in stated and isinstance(kind, TensorType):
            if kind.sharding is not None:
                raise UserError(
                    f"shardings: '{name}' has a sharding already, {kind.sharding}; leave one out"
                )
            kind = kind.with_sharding(stated[name])
        types.append(kind)
    if tuple(types) == body.argument_types:
        return function

    own = arguments(types)
    renamed = dict(zip(body.arguments, own, strict=True))
    return function.with_body(rewritten(body, renamed, lambda b, op, mapping: False, own))


def _argument_names(module: Module) -> list[str]:
    if module.signature is None:
        return [f"input[{n}]" for n in range(len(module.body.arguments))]
    return [argument.path for argument in module.signature.arguments]


def _with_weights(function: Function, module: Module, stated: Mapping[str, Sharding]) -> Function:
    """The function with a constraint behind each weight that is named."""

    def change(b: Any, op: Op, mapping: dict[Value, Value]) -> bool:
        if op.name != "weight":
            return False
        weight = module.weights[op.attributes["weight"]]
        said = [stated[n] for n in (weight.name, *weight.aliases) if n in stated]
        if not said:
            return False
        if any(sharding != said[0] for sharding in said):
            raise UserError(f"shardings: the names of weight '{weight.name}' disagree")
        b.append(op)
        kind = op.type.with_sharding(said[0])
        facts: dict[str, Any] = {}
        made = Op(ops.find("sharding_constraint"), op.results, facts, (), (kind,), op.origin)
        mapping[op.result] = b.append(made).result
        return True

    if not any(op.name == "weight" for op in function.body.walk()):
        return function
    body: Region = rewritten(function.body, {}, change, function.body.arguments)
    return function.with_body(body)
