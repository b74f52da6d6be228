"""Which processes work together: replica groups, meshes, and the four strategies of StableHLO.

A program runs on a grid of num_replicas x num_partitions processes. A process is named by its
flattened id, `replica * num_partitions + partition`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import UserError

Groups = tuple[tuple[int, ...], ...]

MAXIMUM_PROCESSES = 4096
"""Groups and meshes name no more processes than this."""

CROSS_REPLICA = "cross_replica"
CROSS_PARTITION = "cross_partition"
CROSS_REPLICA_AND_PARTITION = "cross_replica_and_partition"
FLATTENED_IDS = "flattened_ids"


def process_groups(strategy: str, groups: Groups, replicas: int, partitions: int) -> Groups:
    """The groups of flattened process ids that `groups` means on a grid of that size.

    Source: the section "Collective ops" of StableHLO's specification.
    """
    if strategy == FLATTENED_IDS:
        return groups
    if strategy == CROSS_REPLICA:
        return tuple(
            tuple(replica * partitions + partition for replica in group)
            for group in groups
            for partition in range(partitions)
        )
    if strategy == CROSS_PARTITION:
        return tuple(
            tuple(replica * partitions + partition for partition in group)
            for group in groups
            for replica in range(replicas)
        )
    return tuple(
        tuple(
            replica * partitions + partition for partition in range(partitions) for replica in group
        )
        for group in groups
    )


def named_by(strategy: str, replicas: int, partitions: int) -> int:
    """How many ids the groups of a strategy number: replicas, partitions or all processes."""
    if strategy == FLATTENED_IDS:
        return replicas * partitions
    return partitions if strategy == CROSS_PARTITION else replicas


def is_mesh(value: Any) -> bool:
    """Whether groups are given as axes of a mesh."""
    return isinstance(value, Mapping) and isinstance(value.get("mesh"), Mapping)


def listed(value: Any) -> Groups:
    """The groups of a `replica_groups` attribute, padding (-1) left out; ValueError or TypeError
    for what is none."""
    if is_mesh(value):
        mesh = value["mesh"]
        axes = [(axis["name"], int(axis["size"])) for axis in mesh["axes"]]
        devices = mesh.get("device_ids") or ()
        return mesh_groups(axes, devices, [axis_part(axis) for axis in value["axes"]])
    return tuple(tuple(int(i) for i in group if i != -1) for group in value)


def are_groups(value: Any) -> bool:
    """Whether an attribute has the form of replica groups: a matrix, or axes of a mesh."""
    try:
        listed(value)
    except (AttributeError, KeyError, TypeError, ValueError, UserError):
        return False
    return is_mesh(value) or len({len(group) for group in value}) <= 1


def axis_part(axis: Mapping[str, Any]) -> tuple[str, int, int]:
    """(name, product of the sub-axes before it, size); size 0 stands for the whole axis."""
    part = axis.get("sub_axis_info") or axis.get("sub_axis")
    if not part:
        return axis["name"], 1, 0
    if isinstance(part, Mapping):
        part = part["parts"] if "parts" in part else (part["pre_size"], part["size"])
    before, size = part
    return axis["name"], int(before), int(size)


def mesh_groups(
    axes: Sequence[tuple[str, int]],
    devices: Sequence[int],
    chosen: Sequence[tuple[str, int, int]],
) -> Groups:
    """Groups of the devices that differ in the chosen axes only, in row-major order of those.

    axes: (name, size), major to minor; devices: the device at each place, () for 0, 1, 2, ...;
    chosen: (axis, product of the sub-axes before it, size), size 0 for the whole axis.
    ValueError if they do not fit the mesh.
    """
    places = device_array(axes, devices)
    sizes: list[int] = []
    numbers: dict[tuple[str, int], int] = {}  # (axis, sub-axes before) -> dimension
    for name, size in axes:
        cuts = {1, size}
        for other, before, part in chosen:
            if other == name and part:
                cuts |= {before, before * part}
        ordered = sorted(cuts)
        for low, high in itertools.pairwise(ordered):
            if high % low or size % high:
                raise ValueError(f"axis '{name}' of size {size} has no such part")
            numbers[name, low] = len(sizes)
            sizes.append(high // low)
        if size == 1:
            numbers[name, 1] = len(sizes)
            sizes.append(1)
    picked: list[int] = []
    for name, before, part in chosen:
        if (name, before) not in numbers:
            raise ValueError(f"the mesh has no axis '{name}'")
        picked += _dims_of(part or dict(axes)[name], name, before, numbers, sizes)
    if len(set(picked)) != len(picked):
        raise ValueError("an axis is named twice")
    rest = [dim for dim in range(len(sizes)) if dim not in picked]
    count = math.prod(sizes[dim] for dim in picked)
    table = places.reshape(sizes).transpose(*rest, *picked).reshape(-1, count)
    return tuple(tuple(map(int, row)) for row in table)


def _dims_of(
    part: int, name: str, before: int, numbers: dict[tuple[str, int], int], sizes: list[int]
) -> list[int]:
    """The dimensions that a part of an axis spans, major to minor."""
    found: list[int] = []
    reached = 1
    while reached < part or not found:
        dim = numbers.get((name, before * reached))
        if dim is None:
            raise ValueError(f"axis '{name}' has no such part")
        found.append(dim)
        if sizes[dim] == 1:
            break
        reached *= sizes[dim]
    return found


def device_array(axes: Sequence[tuple[str, int]], devices: Sequence[int]) -> Any:
    """The device at each place of a mesh, one dimension per axis; ValueError if it is none."""
    sizes = [size for _, size in axes]
    if any(size < 1 for size in sizes) or len({name for name, _ in axes}) != len(axes):
        raise ValueError("a mesh has axes of different names and positive sizes")
    count = math.prod(sizes)
    if count > MAXIMUM_PROCESSES:
        raise ValueError(f"a mesh of {count} devices is too large")
    if devices and sorted(devices) != list(range(count)):
        raise ValueError("a mesh names each of its devices once")
    return np.asarray(devices or range(count), np.int64).reshape(sizes)
