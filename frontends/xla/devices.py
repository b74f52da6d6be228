"""Which devices work together, and how values lie on them: groups, meshes, shardings.

A mesh is `{"axes": [{"name", "size"}], "device_ids": [...], "iota_transform": {"reshape_dims",
"transpose_perm"}}` as the protobuf has it; an axis reference is `{"mesh_axis_index",
"sub_axis_info": {"pre_size", "size"}}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Groups = tuple[tuple[int, ...], ...]

MAXIMUM_DEVICES = 1 << 16
_KINDS = ("replicated", "maximal", "tuple", "other", "manual", "unknown", "unreduced")


def iota_groups(dims: Sequence[int], reshape: Sequence[int], permutation: Sequence[int]) -> Groups:
    """`[dims]<=[reshape]T(permutation)` as lists of devices; ValueError where it fits nothing."""
    if len(dims) != 2:
        raise ValueError("groups of devices need two dimensions")
    devices = _iota(reshape, permutation)
    if min(dims) < 0 or math.prod(dims) != devices.size:
        raise ValueError("the groups do not hold each device once")
    return _tuples(devices.reshape(dims))


def _iota(reshape: Sequence[int], permutation: Sequence[int]) -> np.ndarray[Any, Any]:
    """The numbers 0, 1, ... as an array `reshape`, its dimensions permuted, made flat again."""
    order = list(permutation) or list(range(len(reshape)))
    if sorted(order) != list(range(len(reshape))):
        raise ValueError("a permutation of devices does not name each dimension once")
    return _numbered(math.prod(reshape), reshape).transpose(order).reshape(-1)


def _numbered(count: int, dims: Sequence[int]) -> np.ndarray[Any, Any]:
    if not 0 <= count <= MAXIMUM_DEVICES or any(dim < 0 for dim in dims):
        raise ValueError(f"a program for {count} devices is not supported")
    return np.arange(count).reshape(dims)


def _tuples(array: np.ndarray[Any, Any]) -> Groups:
    return tuple(tuple(row) for row in array.tolist())


def mesh_groups(mesh: Mapping[str, Any], axes: Sequence[Mapping[str, Any]]) -> Groups:
    """The groups of devices that differ along the axes only; the first axis is the major one."""
    sizes = [axis.get("size", 0) for axis in mesh.get("axes", ())]
    count = math.prod(sizes)
    _numbered(count, sizes)
    transform = mesh.get("iota_transform")
    if mesh.get("device_ids"):
        devices = np.array(mesh["device_ids"], np.int64)
    elif transform:
        devices = _iota(transform.get("reshape_dims", ()), transform.get("transpose_perm", ()))
    else:
        devices = np.arange(count)
    if devices.size != count:
        raise ValueError("a mesh needs as many devices as its axes have places")
    cuts = _cuts(sizes, axes)
    parts = [(index, size) for index, cut in enumerate(cuts) for size in cut]
    shaped = devices.reshape([size for _, size in parts])
    chosen = [_place(cuts, axis) for axis in axes]
    if len(set(chosen)) != len(chosen):
        raise ValueError("an axis of a mesh is named twice")
    rest = [place for place in range(len(parts)) if place not in chosen]
    group = math.prod(parts[place][1] for place in chosen)
    return _tuples(shaped.transpose([*rest, *chosen]).reshape(-1, group))


def _cuts(sizes: Sequence[int], axes: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Each axis of the mesh as the sizes of the parts that the references cut it into."""
    borders: list[set[int]] = [{1, size} for size in sizes]
    for axis in axes:
        index = axis.get("mesh_axis_index", 0)
        if not 0 <= index < len(sizes):
            raise ValueError("an axis is not in its mesh")
        part = axis.get("sub_axis_info")
        if part:
            low = part.get("pre_size", 1)
            borders[index] |= {low, low * part.get("size", 1)}
    cuts: list[list[int]] = []
    for size, marks in zip(sizes, borders, strict=True):
        ordered = sorted(marks)
        if ordered[0] < 1 or any(b % a for a, b in zip(ordered, [*ordered[1:], size], strict=True)):
            raise ValueError("a part of an axis does not divide it")
        steps = [b // a for a, b in zip(ordered, ordered[1:], strict=False)]
        cuts.append(steps or [size])
    return cuts


def _place(cuts: list[list[int]], axis: Mapping[str, Any]) -> int:
    """The number of the part, of all parts of all axes, that the reference names."""
    index = axis.get("mesh_axis_index", 0)
    before = sum(len(cut) for cut in cuts[:index])
    part = axis.get("sub_axis_info")
    if not part:
        if len(cuts[index]) != 1:
            raise ValueError("an axis of a mesh is named twice")
        return before
    low, reached = part.get("pre_size", 1), 1
    for number, size in enumerate(cuts[index]):
        if reached == low and size == part.get("size", 1):
            return before + number
        reached *= size
    raise ValueError("parts of an axis overlap")


def spell_sharding(sharding: Mapping[str, Any]) -> str:
    """An OpSharding as HLO text writes it, without metadata; ValueError for an unknown kind."""
    if "named_sharding" in sharding:
        return "{" + _spell_named(sharding["named_sharding"]) + "}"
    number = sharding.get("type", 0)
    if not 0 <= number < len(_KINDS):
        raise ValueError(f"a sharding of type {number} is not known")
    kind = _KINDS[number]
    group = ""
    if sharding.get("is_shard_group"):
        word = "shard_like" if sharding.get("shard_group_type") else "shard_as"
        group = f" {word} {sharding.get('shard_group_id', 0)}"
    devices = sharding.get("tile_assignment_devices", ())
    if kind == "tuple":
        return "{" + ", ".join(map(spell_sharding, sharding.get("tuple_shardings", ()))) + "}"
    if kind == "maximal":
        return f"{{maximal device={devices[0] if devices else 0}{group}}}"
    if kind != "other":
        return f"{{{kind}{group}}}"
    text = f"devices=[{_listed(sharding.get('tile_assignment_dimensions', ()))}]"
    reshape = sharding.get("iota_reshape_dims", ())
    if reshape:
        text += f"<=[{_listed(reshape)}]"
        if len(reshape) > 1:
            text += f"T({_listed(sharding.get('iota_transpose_perm', ()))})"
    else:
        text += _listed(devices)
    if sharding.get("replicate_on_last_tile_dim"):
        text += " last_tile_dim_replicate"
    last = sharding.get("last_tile_dims", ())
    if last:
        words = [_KINDS[item] if 0 <= item < len(_KINDS) else "unknown" for item in last]
        text += f" last_tile_dims={{{', '.join(words)}}}"
    return "{" + text + group + "}"


def _listed(items: Sequence[int]) -> str:
    return ",".join(map(str, items))


def _spell_named(sharding: Mapping[str, Any]) -> str:
    mesh = sharding.get("mesh", {})
    names = [axis.get("name", "") for axis in mesh.get("axes", ())]

    def axis(reference: Mapping[str, Any]) -> str:
        index = reference.get("mesh_axis_index", 0)
        part = reference.get("sub_axis_info")
        name = names[index] if 0 <= index < len(names) else str(index)
        cut = f":({part.get('pre_size', 0)}){part.get('size', 0)}" if part else ""
        return f"'{name}'{cut}"

    def axes(references: Sequence[Mapping[str, Any]]) -> list[str]:
        return [axis(reference) for reference in references]

    sizes = ",".join(f"'{a.get('name', '')}'={a.get('size', 0)}" for a in mesh.get("axes", ()))
    parts = [f"mesh[{sizes}]"]
    transform = mesh.get("iota_transform")
    if transform:
        order = _listed(transform.get("transpose_perm", ()))
        reshape = _listed(transform.get("reshape_dims", ()))
        parts.append(
            f"device_ids=([{reshape}]T({order}))" if order else f"device_ids=([{reshape}])"
        )
    elif mesh.get("device_ids"):
        parts.append(f"device_ids=({_listed(mesh['device_ids'])})")
    dims = []
    for dim in sharding.get("dim_shardings", ()):
        items = axes(dim.get("axes", ())) + ([] if dim.get("is_closed") else ["?"])
        dims.append("{" + ", ".join(items) + "}")
    parts.append(f"[{', '.join(dims)}]")
    for key in ("replicated", "unreduced", "manual"):
        if sharding.get(f"{key}_axes"):
            parts.append(f"{key}={{{', '.join(axes(sharding[f'{key}_axes']))}}}")
    return ", ".join(parts)
