"""Tensors as the blocks that the devices of a mesh hold, and back.

blocks = cut(array, sharding, mesh)          # one for each device, by its number
array = joined(blocks, sharding, mesh, dims)
block = cut_for(array, sharding, mesh, device)  # one of them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .errors import UserError
from .sharding import MAX, MIN, SUM, Mesh, Sharding

Array = np.ndarray[Any, Any]
Window = tuple[slice, ...]

WHOLE = "girih.whole"
"""The attribute of an argument or a result of a program of one device that says what it is a block
of: the tensor's type, with its sharding."""

_FOLDS = {SUM: np.add, MAX: np.maximum, MIN: np.minimum}


def cut(array: Array, sharding: Sharding, mesh: Mesh, padding: Any = 0) -> list[Array]:
    """Each device's block of a whole tensor, by the device's number.

    padding: what a block holds beyond the tensor's end. Of a sum that is unreduced the first device
    holds the tensor and the others zeros; of a maximum or minimum each holds the tensor.
    UserError for a sharding that does not fit the mesh or the array.
    """
    sharding.check(mesh, array.ndim)
    return [cut_for(array, sharding, mesh, n, padding).copy() for n in range(mesh.devices)]


def cut_for(array: Array, sharding: Sharding, mesh: Mesh, device: int, padding: Any = 0) -> Array:
    """The block of one device, as `cut` gives it; a view of the tensor where it is a part of it.

    `sharding` has been checked against the mesh, and `device` is one of the mesh.
    """
    ids = mesh.device_ids
    place = ids.index(device) if ids else device
    local = sharding.local_dims(mesh, array.shape)
    part = array[_window(sharding, mesh, place, local, array.shape)]
    term = mesh.index(sharding.unreduced, mesh.coordinates(place))
    zero = bool(term) and sharding.reduction == SUM
    if part.shape == local and not zero:
        return part
    block = np.full(local, padding, array.dtype)
    block[tuple(map(slice, part.shape))] = 0 if zero else part
    return block


def joined(blocks: Sequence[Array], sharding: Sharding, mesh: Mesh, dims: Sequence[int]) -> Array:
    """The whole tensor of `dims` from the devices' blocks; unreduced values are folded.

    UserError for another number of blocks, and for blocks of other dims.
    """
    local = sharding.local_dims(mesh, dims)
    if len(blocks) != mesh.devices or any(np.shape(block) != local for block in blocks):
        raise UserError(f"{mesh.devices} blocks of {local} are needed for {sharding} on {mesh}")
    found = np.zeros(dims, np.asarray(blocks[0]).dtype)
    terms: set[tuple[tuple[int, ...], int]] = set()
    held: set[tuple[int, ...]] = set()
    fold = _FOLDS[sharding.reduction]
    for place, device, window in _windows(sharding, mesh, dims):
        starts = tuple(part.start for part in window)
        term = mesh.index(sharding.unreduced, mesh.coordinates(place))
        if (starts, term) in terms:
            continue  # a copy
        terms.add((starts, term))
        part = blocks[device][tuple(slice(0, w.stop - w.start) for w in window)]
        found[window] = fold(found[window], part) if starts in held else part
        held.add(starts)
    return found


def _windows(
    sharding: Sharding, mesh: Mesh, dims: Sequence[int]
) -> Iterator[tuple[int, int, Window]]:
    """(place in the mesh, device, the part of the tensor that it holds)"""
    local = sharding.local_dims(mesh, dims)
    for place, device in enumerate(mesh.device_ids or range(mesh.devices)):
        yield place, device, _window(sharding, mesh, place, local, dims)


def _window(
    sharding: Sharding, mesh: Mesh, place: int, local: Sequence[int], dims: Sequence[int]
) -> Window:
    at = mesh.coordinates(place)
    starts = [mesh.index(dim.axes, at) * n for dim, n in zip(sharding.dims, local, strict=True)]
    return tuple(
        slice(min(s, d), min(s + n, d)) for s, n, d in zip(starts, local, dims, strict=True)
    )
