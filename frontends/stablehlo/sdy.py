"""Shardy's attributes from bytecode, spelled as its text does, so that both readers agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import tree


class MeshAxis(NamedTuple):
    name: str
    size: int

    def __str__(self) -> str:
        return f'"{self.name}"={self.size}'


class SubAxis(NamedTuple):
    pre_size: int
    size: int

    def __str__(self) -> str:
        return f":({self.pre_size}){self.size}"


class AxisRef(NamedTuple):
    name: str
    sub_axis: SubAxis | None

    def __str__(self) -> str:
        return f'"{self.name}"{self.sub_axis or ""}'


class DimSharding(NamedTuple):
    axes: tuple[Any, ...]
    closed: bool
    priority: int | None

    def __str__(self) -> str:
        parts = [str(axis) for axis in self.axes] + ([] if self.closed else ["?"])
        priority = "" if self.priority is None else f"p{self.priority}"
        return "{" + ", ".join(parts) + "}" + priority


def _listed(items: Iterable[Any]) -> str:
    return ", ".join(str(item) for item in items)


def manual_axes(names: tuple[Any, ...]) -> tree.Opaque:
    quoted = ", ".join(f'"{name}"' for name in names)
    return tree.Opaque("sdy", f"<manual_axes{{{quoted}}}>")


def mesh(axes: tuple[Any, ...], devices: tuple[int, ...]) -> tree.Opaque:
    ids = f", device_ids=[{_listed(devices)}]" if devices else ""
    return tree.Opaque("sdy.mesh", f"<[{_listed(axes)}]{ids}>")


def sharding(
    where: Any, dims: tuple[Any, ...], replicated: tuple[Any, ...], unreduced: tuple[Any, ...]
) -> tree.Opaque:
    """`where` is a mesh's symbol name, or a mesh itself."""
    place = f"@{where}" if isinstance(where, str) else f"mesh{getattr(where, 'text', '')}"
    text = f"{place}, [{_listed(dims)}]"
    if replicated:
        text += f", replicated={{{_listed(replicated)}}}"
    if unreduced:
        text += f", unreduced={{{_listed(unreduced)}}}"
    return tree.Opaque("sdy.sharding", f"<{text}>")


def per_value(shardings: tuple[Any, ...]) -> tree.Opaque:
    inner = ", ".join(getattr(item, "text", str(item)) for item in shardings)
    return tree.Opaque("sdy.sharding_per_value", f"<[{inner}]>")


def axis_of(text: str) -> AxisRef:
    """The axis that `x`, or `x:(1)2` for a part of it, names."""
    name, mark, rest = text.partition(":(")
    if not mark:
        return AxisRef(name, None)
    before, _, size = rest.partition(")")
    return AxisRef(name, SubAxis(int(before), int(size)))


def shardings(where: str | tree.Opaque, values: Iterable[Iterable[Iterable[str]]]) -> tree.Opaque:
    """Shardings over one mesh: for each value, for each dimension, the axes that cut it."""
    found = []
    for dims in values:
        parts = [DimSharding(tuple(map(axis_of, axes)), True, None) for axes in dims]
        found.append(sharding(where, tuple(parts), (), ()))
    return per_value(tuple(found))


def mesh_of(mesh_: Mapping[str, Any]) -> tree.Opaque:
    """A mesh from its axes by name and size, and its device ids."""
    axes = tuple(MeshAxis(axis["name"], axis["size"]) for axis in mesh_["axes"])
    return mesh(axes, tuple(mesh_.get("device_ids") or ()))
