"""Shardy's attributes from bytecode, spelled as its text does, so that both readers agree."""

from __future__ import annotations

from collections.abc import Iterable
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
