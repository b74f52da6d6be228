"""Shardy's attributes in an op tree, where both readers have them as text (`tree.Opaque`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding
from .. import tree

_PLACE = "mesh"


def mesh(found: Mesh) -> tree.Opaque:
    return tree.Opaque("sdy.mesh", str(found))


def manual_axes(names: Iterable[str]) -> tree.Opaque:
    return tree.Opaque("sdy", f"<manual_axes{{{', '.join(str(Axis(name)) for name in names)}}}>")


def sharding(found: Sharding, meshes: dict[str, Mesh] | None = None) -> tree.Opaque:
    """The attribute. A mesh whose name is its own text (`inline_name`) stands inside."""
    whole = (meshes or {}).get(found.mesh)
    if whole is not None and is_maximal(whole):
        found = Sharding(found.mesh, ())
    if whole is not None and found.mesh == inline_name(whole):
        return _inside(found, str(whole))
    return tree.Opaque("sdy.sharding", str(found))


def is_maximal(found: Mesh) -> bool:
    """Whether it is one device of several, which holds the whole of a tensor."""
    return not found.axes and bool(found.device_ids)


def inline_name(found: Mesh) -> str:
    """The name of a mesh that a sharding gives in full instead of naming it."""
    return str(found)


def _inside(found: Sharding, whole: str) -> tree.Opaque:
    named = str(Sharding(_PLACE, found.dims, found.replicated, found.unreduced, found.reduction))
    return tree.Opaque("sdy.sharding", f"<mesh{whole}{named[len(f'<@{_PLACE}') :]}")


def stored_sharding(
    where: str | tree.Opaque,
    dims: Sequence[DimSharding],
    replicated: Sequence[Axis],
    unreduced: Sequence[Axis],
    reduction: str,
) -> tree.Opaque:
    """The attribute from its parts in bytecode; `where` is a mesh's name, or a mesh."""
    name = where if isinstance(where, str) else _PLACE
    found = Sharding(name, tuple(dims), tuple(replicated), tuple(unreduced), reduction)
    if isinstance(where, str):
        return tree.Opaque("sdy.sharding", str(found))
    return _inside(found, where.text)


def per_value(shardings: Iterable[tree.Opaque]) -> tree.Opaque:
    return tree.Opaque("sdy.sharding_per_value", f"<[{', '.join(s.text for s in shardings)}]>")
