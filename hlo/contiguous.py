"""Tensors in C order: copies of weights that lie in another.

A transposed copy reads one element of each row in turn. Where rows lie a multiple of 2 KiB apart,
their cache lines have few places in the cache and drive each other out before the next elements are
read. Such rows are moved apart first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_CONFLICT = 1 << 11  # bytes between rows that have few places in the cache
_MANY = 8  # rows that have more places than a cache gives them
_STAGED = range(1 << 14, 1 << 21)  # bytes of rows that are worth it, and stay in a cache
_LINE = 64


def contiguous(array: Array) -> Array:
    """The same elements in C order: the array itself if it lies so, else a copy."""
    if array.flags.c_contiguous:
        return array
    unit, rows = array.itemsize, array.shape[-1]
    along = next((axis for axis, step in enumerate(array.strides[:-1]) if step == unit), None)
    conflicts = rows >= _MANY and array.strides[-1] % _CONFLICT == 0
    if along is None or not conflicts or rows * array.shape[along] * unit not in _STAGED:
        return np.array(array, order="C")
    length = array.shape[along]
    copy = np.empty(array.shape, array.dtype)
    target, source = (np.moveaxis(one, along, -2) for one in (copy, array))
    apart = np.empty((rows, length + _LINE // unit), array.dtype)[:, :length]
    for place in np.ndindex(*source.shape[:-2]):
        np.copyto(apart, source[place].T)
        np.copyto(target[place], apart.T)
    return copy
