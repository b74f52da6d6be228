"""Tensors as the blocks that the devices of a mesh hold, and back.

blocks = cut(array, sharding, mesh)          # one for each device, by its number
array = joined(blocks, sharding, mesh, dims)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .errors import UserError
from .sharding import MAX, MIN, SUM, Mesh, Sharding

Array = np.ndarray[Any, Any]

_FOLDS = {SUM: np.add, MAX: np.maximum, MIN: np.minimum}


def cut(array: Array, sharding: Sharding, mesh: Mesh, padding: Any = 0) -> list[Array]:
    """Each device's block of a whole tensor, by the device's number.

    padding: what a block holds beyond the tensor's end. Of a sum that is unreduced the first device
    holds the tensor and the others zeros; of a maximum or minimum each holds the tensor.
    UserError for a sharding that does not fit the mesh or the array.
    """
    sharding.check(mesh, array.ndim)
    found: list[Array] = [array] * mesh.devices
    local = sharding.local_dims(mesh, array.shape)
    for place, device, window in _windows(sharding, mesh, array.shape):
        block = np.full(local, padding, array.dtype)
        term = mesh.index(sharding.unreduced, mesh.coordinates(place))
        part = array[window]
        inside = tuple(map(slice, part.shape))
        block[inside] = 0 if term and sharding.reduction == SUM else part
        found[device] = block
    return found


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
) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """(place in the mesh, device, the part of the tensor that it holds)"""
    local = sharding.local_dims(mesh, dims)
    for place, device in enumerate(mesh.device_ids or range(mesh.devices)):
        at = mesh.coordinates(place)
        starts = [mesh.index(dim.axes, at) * n for dim, n in zip(sharding.dims, local, strict=True)]
        bounds = [(min(s, d), min(s + n, d)) for s, n, d in zip(starts, local, dims, strict=True)]
        yield place, device, tuple(slice(low, high) for low, high in bounds)
