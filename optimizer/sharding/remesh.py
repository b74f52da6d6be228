"""An annotated program on a mesh of other sizes: annotations name axes, so most of them move along.

    remeshed(module, {"data": 4, "model": 2})

What is written for the devices of one mesh does not: bodies of manual computations, groups of
collectives, parts of axes that no longer divide. It is refused, all of it at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...hlo.build import Builder
from ...hlo.errors import UnsupportedError, UserError
from ...hlo.graph import Function, Module, Op, Value, arguments
from ...hlo.ops.manual import mesh_of
from ...hlo.processes import grid_of
from ...hlo.regions import rewritten
from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding
from ...hlo.types import TensorType, Type

PARTITIONS = "mhlo.num_partitions"


def remeshed(module: Module, sizes: Mapping[str, int | None]) -> Module:
    """The program on meshes whose axes have these sizes; axes of size 1 are gone.

    module: at level INLINED. sizes: of every axis of its meshes; None leaves one open.
    UserError for a program without a mesh, an axis that it lacks and one without a size.
    UnsupportedError lists with places what stands in the program for the devices of its own mesh.
    """
    _require_axes(module, sizes)
    changed = {
        name: (size, sizes[name])
        for mesh in module.meshes.values()
        for name, size in mesh.axes
        if size != sizes[name]
    }
    kept = {
        name
        for op in module.walk()
        if op.name == "sdy.manual_computation"
        for name in mesh_of(op.mesh).names
    }  # where such a body may stay, its mesh stays as it is
    gone = frozenset(name for name, size in sizes.items() if size == 1 and name not in kept)
    if not changed and not any(gone & set(mesh.names) for mesh in module.meshes.values()):
        return module
    blockers = _blockers(module, changed) + _parts(module, sizes)
    if blockers:
        axes = ", ".join(f"'{n}' from {old or '?'} to {new or '?'}" for n, (old, new) in
                         sorted(changed.items()))  # fmt: skip
        raise UnsupportedError("\n".join([f"{_HEAD} ({axes}):", *blockers]))
    meshes = {name: _sized(mesh, sizes, gone) for name, mesh in module.meshes.items()}
    functions = {name: _moved(function, gone) for name, function in module.functions.items()}
    attributes = dict(module.attributes)
    if changed and PARTITIONS in attributes:
        del attributes[PARTITIONS]  # of the export's mesh
    return replace(module, functions=functions, meshes=meshes, attributes=attributes)


_HEAD = "the program cannot be moved to other sizes of its mesh"


def _require_axes(module: Module, sizes: Mapping[str, int | None]) -> None:
    known = list(dict.fromkeys(name for mesh in module.meshes.values() for name in mesh.names))
    if not known:
        raise UserError(
            "mesh: the program says nothing of shardings; annotate it with shardings (--shard)"
        )
    for name, size in sizes.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(known)}"
            raise UserError(f"mesh: the program's mesh has no axis '{name}'; {hint}")
        if size is not None and size < 1:
            raise UserError(f"mesh: axis '{name}' must have a size of at least 1, not {size}")
    for name in known:
        if name not in sizes:
            raise UserError(
                f"mesh: axis '{name}' of the program's mesh has no size; 1 leaves it out"
            )


def _blockers(module: Module, changed: Mapping[str, object]) -> list[str]:
    """A line for each thing that stands for the devices of the program's own mesh."""
    found: list[str] = []
    if not changed:
        return found
    axes = ", ".join(f"'{name}'" for name in sorted(changed))
    for name, mesh in module.meshes.items():
        own = [axis for axis in mesh.names if axis in changed]
        if mesh.device_ids and own:
            found.append(f"  the mesh @{name} orders its devices, along axis '{own[0]}' too")
    for function in module.functions.values():
        for op in _outside(function.body.ops):
            if op.name == "sdy.manual_computation":
                own = [axis for axis in mesh_of(op.mesh).names if axis in changed]
                manual = [axis for axis in own if axis in op.manual_axes]
                if own:
                    how = "is manual" if manual else "is free"
                    found.append(
                        f"  {op.place}{op.name}: its body is written for the blocks and devices of "
                        f"one mesh, in which axis '{(manual or own)[0]}' {how}"
                    )
            elif op.definition.communicates and grid_of(module) != (1, 1):
                found.append(f"  {op.place}{op.name}: it numbers the devices along {axes}")
    return found


def _outside(ops: Sequence[Op]) -> list[Op]:
    """All operations, without those inside of manual computations and kernels."""
    found: list[Op] = []
    for op in ops:
        found.append(op)
        if op.name != "sdy.manual_computation" and not op.definition.sealed:
            for body in op.regions:
                found += _outside(body.ops)
    return found


def _sized(mesh: Mesh, sizes: Mapping[str, int | None], gone: frozenset[str]) -> Mesh:
    axes = tuple((name, sizes[name]) for name in mesh.names if name not in gone)
    return Mesh(axes, mesh.device_ids if axes else ())


def _moved(function: Function, gone: frozenset[str]) -> Function:
    """The function whose shardings name none of these axes."""

    def typed(kind: Type) -> Type:
        if not isinstance(kind, TensorType) or kind.sharding is None:
            return kind
        sharding = _without(kind.sharding, gone)
        return kind if sharding == kind.sharding else kind.with_sharding(sharding)

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        types = [typed(result.type) for result in op.results]
        if all(new is old.type for new, old in zip(types, op.results, strict=True)):
            return False
        operands = [mapping.get(value, value) for value in op.operands]
        new = b.append(Op(op.definition, operands, op.attributes, op.regions, types, op.origin))
        mapping.update(zip(op.results, new.results, strict=True))
        return True

    body = function.body
    types = [typed(kind) for kind in body.argument_types]
    same = all(new is old for new, old in zip(types, body.argument_types, strict=True))
    own = body.arguments if same else arguments(types)
    renamed = {} if same else dict(zip(body.arguments, own, strict=True))
    return function.with_body(rewritten(body, renamed, change, own))


def _without(sharding: Sharding, gone: frozenset[str]) -> Sharding:
    def kept(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(axis for axis in axes if axis.name not in gone)

    dims = tuple(DimSharding(kept(d.axes), d.open, d.priority) for d in sharding.dims)
    return replace(
        sharding,
        dims=dims,
        replicated=kept(sharding.replicated),
        unreduced=kept(sharding.unreduced),
    )


def _parts(module: Module, sizes: Mapping[str, int | None]) -> list[str]:
    """A line for each part of an axis that is stated and that an axis of its new size lacks."""
    found: list[str] = []
    for number, kind in enumerate(module.body.argument_types):
        if isinstance(kind, TensorType) and kind.sharding is not None:
            found += _no_parts(f"argument {_path(module, number)}", kind.sharding, sizes)
    for op in module.walk():
        for kind in op.result_types:
            if isinstance(kind, TensorType) and kind.sharding is not None:
                found += _no_parts(f"{op.place}{op.name}", kind.sharding, sizes)
    return found


def _path(module: Module, number: int) -> str:
    signature = module.signature
    return f"input[{number}]" if signature is None else signature.arguments[number].path


def _no_parts(place: str, sharding: Sharding, sizes: Mapping[str, int | None]) -> list[str]:
    found = []
    for axis in sharding.axes:
        size = sizes[axis.name]
        if not axis.whole and size is not None and size % (axis.before * axis.size):
            found.append(
                f"  {place}: it names {axis}, which is no part of an axis '{axis.name}' of {size}"
            )
    return found
