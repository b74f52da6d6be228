"""Ops that several devices run together: meshes, and programs written per device.

Shardy's attributes come as text (`#sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>`), whichever
reader they come from; here they are read for the ops whose meaning depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...hlo.errors import UserError
from ...hlo.graph import Op
from ...hlo.ops.manual import cuts_of, is_plain, mesh_record
from ...hlo.sharding import Mesh, Sharding, ShardingReader, unquoted
from .. import tree
from . import attributes as attribute_tables

if TYPE_CHECKING:
    from .convert import Converter

Handler = Callable[["Converter", tree.Operation, list[Op]], bool]


def _blocked(
    converter: Converter, operation: tree.Operation, error: UserError, remedy: str
) -> bool:
    converter.block(operation, str(error), remedy)
    return False


def _collective(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """Groups that are axes of a mesh carry the mesh itself, not its symbol."""
    groups = operation.attributes.get("replica_groups")
    if not isinstance(groups, tree.Structured):
        return False
    facts = attribute_tables.flatten(operation, converter.type)
    found = attribute_tables.plain(groups, converter.type)
    if isinstance(found.get("mesh"), str):
        mesh = converter.annotations.meshes.get(found["mesh"])
        if mesh is None:
            error = UserError(f"names the mesh @{found['mesh']}, which is not in the file")
            return _blocked(converter, operation, error, "export the program with its meshes")
        record = mesh_record(mesh)
        found["mesh"] = {
            "record": "mesh",
            "axes": tuple({"record": "mesh_axis", **axis} for axis in record["axes"]),
            "device_ids": record.get("device_ids"),
        }
    facts["replica_groups"] = found
    converter.emit(operation.name.partition(".")[2], operation, built, facts)
    return True


def _manual_axes(text: str) -> tuple[str, ...]:
    """The names in `<manual_axes{"x", "y"}>`."""
    cursor = ShardingReader(text)
    cursor.expect("<")
    cursor.expect("manual_axes")
    cursor.expect("{")
    return cursor.items("}", lambda: unquoted(cursor.next("string")))


def _manual_computation(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The mesh, the manual axes, and for each value how it lies."""
    said = converter.annotations
    try:
        inputs, outputs = (
            said.read(attribute_tables.plain(operation.attributes[key], converter.type))
            for key in ("in_shardings", "out_shardings")
        )
        axes = _manual_axes(getattr(operation.attributes.get("manual_axes"), "text", ""))
        mesh = _common_mesh([*inputs, *outputs], axes, said.meshes)
    except UserError as error:
        return _blocked(converter, operation, error, "shard all its values over one mesh")
    facts: dict[str, Any] = {
        "mesh": mesh_record(mesh),
        "manual_axes": axes,
        "in_shardings": tuple(map(cuts_of, inputs)),
        "out_shardings": tuple(map(cuts_of, outputs)),
    }
    if not all(map(is_plain, (*inputs, *outputs))):
        facts["shardings"] = tuple(
            "" if is_plain(sharding) else str(sharding) for sharding in (*inputs, *outputs)
        )
    converter.emit(operation.name, operation, built, facts)
    return True


def _common_mesh(shardings: list[Sharding], axes: tuple[str, ...], meshes: dict[str, Mesh]) -> Mesh:
    """The mesh of all shardings; the same devices may be named more than once."""
    used = [meshes[sharding.mesh] for sharding in shardings]
    if not used:
        used = list(meshes.values())[:1] if axes else [Mesh(())]
    if any(mesh != used[0] for mesh in used) or not used:
        raise UserError("its shardings name several meshes")
    return used[0]


HANDLERS: dict[str, Handler] = {
    "sdy.manual_computation": _manual_computation,
    "stablehlo.all_gather": _collective,
    "stablehlo.all_reduce": _collective,
    "stablehlo.all_to_all": _collective,
    "stablehlo.collective_broadcast": _collective,
    "stablehlo.collective_reduce": _collective,
    "stablehlo.reduce_scatter": _collective,
}
