"""How a value lies on a mesh, dim by dim, as users say it and as exports carry it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..hlo.errors import UserError
from ..hlo.sharding import Axis, DimSharding, Mesh, Sharding, ShardingReader

Spec = str | Iterable[str] | None
"""What cuts a dim: nothing, an axis, or several axes, major to minor."""

NAME = "girih.shard"
_DEFAULT = "mesh"


def spec_text(dims: Iterable[Spec], rank: int) -> str:
    """A spec in Shardy's notation, `[{"data"}, {}]`: what an export carries."""
    try:
        found = list(map(dim_of, dims))
    except UserError as error:
        raise UserError(f"{NAME}: {error}") from None
    if len(found) > rank:
        raise UserError(f"{NAME}: {len(found)} dims are given, the array has {rank}")
    found += [DimSharding()] * (rank - len(found))
    counts = Counter(axis.name for dim in found for axis in dim.axes)
    for name, count in counts.items():
        if count > 1:
            raise UserError(f"{NAME}: axis '{name}' is used twice; it can cut one dim")
    return written(found)


def dim_of(entry: Any) -> DimSharding:
    """What one entry of a spec says; UserError for one that is none."""
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if isinstance(names, Iterable):
        names = tuple(names)
        if all(isinstance(name, str) and name for name in names):
            return DimSharding(tuple(map(Axis, names)))
    raise UserError(f"a dim is None, an axis or a tuple of axes, not {entry!r}")


def written(dims: Iterable[DimSharding]) -> str:
    """Dims as text; `read_dims` reads it."""
    return f"[{', '.join(map(str, dims))}]"


def read_dims(text: str) -> tuple[DimSharding, ...]:
    """The dims of `written`'s text; UserError for anything else."""
    reader = ShardingReader(text)
    reader.expect("[")
    found = reader.items("]", reader.dim)
    reader.end()
    return found


def with_dim(text: str, place: int) -> str:
    """The spec of an array that has one more dim there, which is open."""
    dims = list(read_dims(text))
    dims.insert(place, DimSharding(open=True))
    return written(dims)


def sharding_in(meshes: dict[str, Mesh], text: str) -> Sharding:
    """What a spec says in a program that has these meshes.

    The first of them with all axes that it names is meant. Where none has, an axis of the mesh
    with open sizes is, to which it is added; `meshes` gets that mesh if it is not there.
    """
    dims = read_dims(text)
    names = list(dict.fromkeys(axis.name for dim in dims for axis in dim.axes))
    for name, mesh in meshes.items():
        if set(names) <= set(mesh.names):
            return Sharding(name, dims)
    place = next((name for name, mesh in meshes.items() if is_open(mesh)), "")
    number = 0
    while not place:
        free = f"{_DEFAULT}_{number - 1}" if number else _DEFAULT
        place, number = ("" if free in meshes else free), number + 1
    known = meshes.get(place, Mesh(()))
    added = tuple((name, None) for name in names if name not in known.names)
    meshes[place] = Mesh(known.axes + added)
    return Sharding(place, dims)


def is_open(mesh: Mesh) -> bool:
    """Whether nothing is known of a mesh but names of axes."""
    return not mesh.device_ids and all(size is None for _, size in mesh.axes)
