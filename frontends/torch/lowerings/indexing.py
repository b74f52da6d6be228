"""Reading at computed positions: index, gather, embedding, take, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.types import I64
from ..context import (
    Blocked,
    Context,
    axis_of,
    broadcast_dims,
    sized,
)  # fmt: skip


def wrapped(c: Context, index: Value, size: Any) -> Value:
    """Positions counted from either end, as ones from the front."""
    if index.element.kind == "uint":
        return index
    negative = c.builder.compare("LT", index, c.full(0, index.dims, index.element))
    return c("select", negative, c.add(index, sized(size)), index)


def take(c: Context, value: Value, index: Value, axis: int, wrap: bool = True) -> Value:
    """value[..., index, ...]: the dims of `index` stand in place of `axis`."""
    index = wrapped(c, index, value.dims[axis]) if wrap else index
    sizes = list(value.dims)
    sizes[axis] = 1
    before, after = range(axis), range(axis + index.rank, value.rank - 1 + index.rank)
    return c(
        "gather", value, index, offset_dims=(*before, *after), collapsed_slice_dims=(axis,),
        operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=(axis,),
        index_vector_dim=index.rank, slice_sizes=tuple(map(sized, sizes)),
        indices_are_sorted=False,
    )  # fmt: skip


def take_axis(c: Context, value: Value, axis: int, positions: Sequence[int]) -> Value:
    """Elements at fixed positions along one axis: a slice where they are regular."""
    count = len(positions)
    steps = {b - a for a, b in zip(positions, positions[1:], strict=False)}
    if count and len(steps) <= 1 and (not steps or min(steps) > 0):
        step = steps.pop() if steps else 1
        return c.slice(value, axis, positions[0], positions[-1] + 1, step)
    return take(c, value, c.array(np.asarray(positions, np.int64)), axis, wrap=False)


def window_parts(
    c: Context, value: Value, axis: int, place: int, size: int, step: int, gap: int = 1
) -> Value:
    """Windows along an axis of a size that a call decides: element j of window i is
    value[i * step + j * gap], and j becomes the dimension `place` of the result."""
    reach = gap * (size - 1)
    c.require(reach + 1, "<=", value.dims[axis])
    count = (value.dims[axis] - reach - 1) // step + 1
    parts = []
    for start in range(0, reach + 1, gap):
        part = c.slice(value, axis, start, start + (count - 1) * step + 1, step)
        parts.append(c.builder.reshape(part, (*part.dims[:place], 1, *part.dims[place:])))
    return c.concatenate(parts, place)


def embedding(
    c: Context,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """weight[indices]; negative positions are not allowed in PyTorch either."""
    return take(c, weight, indices, 0, wrap=False)


def index_select(c: Context, self: Value, dim: int, index: Value) -> Value:
    flat = index if index.rank else c.builder.reshape(index, (1,))
    if not self.rank:
        return c.builder.reshape(take(c, c.builder.reshape(self, (1,)), flat, 0), ())
    return take(c, self, flat, axis_of(dim, self.rank))


def indexed_axes(
    c: Context, self: Value, indices: Sequence[Value | None]
) -> tuple[list[int], list[Value], tuple[Any, ...], int]:
    """Indexed axes, their positions (wrapped, of common dims), these dims, and the place where
    these dims stand in the result.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    dims = broadcast_dims(*[index.dims for index in given])
    spread = [
        c.spread(wrapped(c, c.convert(index, I64), self.dims[axis]), dims)
        for axis, index in zip(axes, given, strict=True)
    ]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return axes, spread, dims, axes[0] if adjacent else 0


def positions_vector(c: Context, positions: Sequence[Value]) -> Value:
    """Positions of several axes as vectors along a last dimension."""
    parts = [c.builder.reshape(value, (*value.dims, 1)) for value in positions]
    return c.concatenate(parts, parts[0].rank - 1)


def read_at(c: Context, self: Value, indices: Sequence[Value | None]) -> Value:
    """self[indices], of which none is a mask; None stands for a whole dimension."""
    if all(index is None for index in indices):
        return self
    axes, positions, dims, place = indexed_axes(c, self, indices)
    sizes = [1 if axis in axes else size for axis, size in enumerate(self.dims)]
    kept = self.rank - len(axes)
    offsets = (*range(place), *range(place + len(dims), kept + len(dims)))
    single = len(axes) == 1
    starts = positions[0] if single else positions_vector(c, positions)
    return c(
        "gather", self, starts, offset_dims=offsets,
        collapsed_slice_dims=tuple(axes), operand_batching_dims=(),
        start_indices_batching_dims=(), start_index_map=tuple(axes), index_vector_dim=len(dims),
        slice_sizes=tuple(sizes), indices_are_sorted=False,
    )  # fmt: skip


def gather(c: Context, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """result[i, j, ...] = self[i, index[i, j, ...], ...]."""
    if not self.rank or not index.rank:
        line = c.builder.reshape(self, (1,)) if not self.rank else self
        flat = index if index.rank else c.builder.reshape(index, (1,))
        return c.builder.reshape(gather(c, line, 0, flat), index.dims)
    if index.rank != self.rank:  # it has no elements
        return c.full(0, index.dims, self.element)
    axis = axis_of(dim, self.rank)
    for other in range(self.rank):
        if other != axis:
            self = c.slice(self, other, 0, index.dims[other])
    others = tuple(d for d in range(self.rank) if d != axis)
    return c(
        "gather", self, wrapped(c, index, self.dims[axis]), offset_dims=(),
        collapsed_slice_dims=(axis,), operand_batching_dims=others,
        start_indices_batching_dims=others, start_index_map=(axis,), index_vector_dim=self.rank,
        slice_sizes=(1,) * self.rank, indices_are_sorted=False,
    )  # fmt: skip


def take_flat(c: Context, self: Value, index: Value) -> Value:
    """self.flatten()[index]."""
    return take(c, c.builder.reshape(self, (math.prod(self.dims),)), index, 0)


def take_along(c: Context, self: Value, indices: Value, dim: int | None = None) -> Value:
    """gather after broadcasting the other dimensions."""
    if dim is None:
        size = math.prod(self.dims)
        flat = c.builder.reshape(indices, (math.prod(indices.dims),))
        return gather(c, c.builder.reshape(self, (size,)), 0, flat)
    axis = axis_of(dim, self.rank)
    mine, theirs = list(self.dims), list(indices.dims)
    mine[axis] = theirs[axis] = 1
    common = list(broadcast_dims(mine, theirs))
    common[axis] = self.dims[axis]
    wide = c.spread(self, common)
    common[axis] = indices.dims[axis]
    return gather(c, wide, axis, c.spread(indices, common))


def one_hot(c: Context, self: Value, num_classes: int = -1) -> Value:
    """1 at each position's place along a new last dimension."""
    if num_classes < 0:
        raise Blocked("derives the number of classes from values", "pass num_classes")
    dims = (*self.dims, num_classes)
    wide = c.builder.broadcast(self, dims, range(self.rank))
    return c.convert(c.builder.compare("EQ", wide, c.iota(dims, self.rank)), I64)


TABLE: dict[str, Callable[..., Any]] = {
    "aten.embedding.default": embedding,
    "aten.gather.default": gather,
    "aten.index_select.default": index_select,
    "aten.one_hot.default": one_hot,
    "aten.take.default": take_flat,
    "aten.take_along_dim.default": take_along,
}
