"""Tensors side by side, and the parts of one: hstack, hsplit, tensor_split, pad_sequence, ..."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.symbols import name_of
from ....hlo.types import I64
from ..context import Context, axis_of, bounds, static
from . import diagonals, views
from .indexing import take


def _at_least(c: Context, value: Value, rank: int) -> Value:
    """With dims of size 1 as atleast_2d (in front) and atleast_3d (also behind) add them."""
    dims = value.dims
    if rank > 1 and len(dims) < 2:
        dims = (1,) * (2 - len(dims)) + dims
    if rank == 3 and len(dims) == 2:
        dims = (*dims, 1)
    return c.builder.reshape(value, dims or (1,))


def stacked(rank: int, axis: int) -> Callable[..., Value]:
    """hstack, vstack and dstack: one after the other along an axis, of at least so many dims; along
    the first where there are not so many."""

    def lower(c: Context, tensors: Sequence[Value]) -> Value:
        parts = [_at_least(c, c.convert(value, c.element), rank) for value in tensors]
        return c.concatenate(parts, min(axis, parts[0].rank - 1))

    return lower


def columns(c: Context, tensors: Sequence[Value]) -> Value:
    """column_stack: vectors are columns."""
    parts = [c.convert(value, c.element) for value in tensors]
    parts = [
        value if value.rank > 1 else c.builder.reshape(value, (math.prod(value.dims), 1))
        for value in parts
    ]
    return c.concatenate(parts, 1)


def split_at(c: Context, self: Value, indices: Sequence[int], dim: int = 0) -> Any:
    """tensor_split at positions, each a Python slice's end and the next one's start."""
    axis = axis_of(dim, self.rank)
    ends: list[Any] = [*indices, None]
    pieces = []
    for start, end in zip([0, *indices], ends, strict=True):
        first, last = bounds(c, self.dims[axis], start, end)
        pieces.append(c.slice(self, axis, first, last))
    return tuple(pieces)


def split_along(axis: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """hsplit, vsplit and dsplit into so many parts, and at positions; along the first dim where
    there are not so many."""

    def equal(c: Context, self: Value, sections: int) -> Any:
        return views.tensor_split(c, self, sections, min(axis, self.rank - 1))

    def at(c: Context, self: Value, indices: Sequence[int]) -> Any:
        return split_at(c, self, indices, min(axis, self.rank - 1))

    return equal, at


def flipped(axis: int) -> Callable[..., Value]:
    """flipud and fliplr."""
    return lambda c, self: views.flip(c, self, [axis])


def diagonal_or_matrix(c: Context, self: Value, diagonal: int = 0) -> Value:
    """torch.diag: the diagonal of a matrix, a matrix with that diagonal of a vector."""
    if self.rank == 1:
        return diagonals.diagonal_embedding(c, self, diagonal)
    return diagonals.diagonal(c, self, diagonal)


def flat_diagonal(c: Context, self: Value, offset: int = 0) -> Value:
    """A matrix with all elements on that diagonal."""
    line = c.builder.reshape(self, (math.prod(self.dims),))
    return diagonals.diagonal_embedding(c, line, offset)


def products(c: Context, tensors: Sequence[Value]) -> Value:
    """cartesian_prod: all ways to take one element of each vector, the last one fastest."""
    if len(tensors) == 1:
        return tensors[0]
    sizes = [value.dims[0] for value in tensors]
    grids = [c.builder.broadcast(value, sizes, [at]) for at, value in enumerate(tensors)]
    count = math.prod(sizes)
    return c.concatenate([c.builder.reshape(grid, (count, 1)) for grid in grids], 1)


def combinations(c: Context, self: Value, r: int = 2, with_replacement: bool = False) -> Value:
    """All ways to take r elements of a vector, each of which may come again `with_replacement`."""
    ways = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(ways(range(static(self.dims[0])), r)), np.int64)
    if not r:
        return c.full(0, (0,), self.element)
    if (name := name_of(c.dims[0])) and c.data.lacks(c.dims[0]):
        c.data.bind(name, c.scalar(len(rows), I64))
    return take(c, self, c.array(rows.reshape(len(rows), r)), 0, wrap=False)


def reshaped_each(c: Context, tensors: Sequence[Value]) -> Any:
    """Each tensor with the declared dims: atleast_1d and its like of several tensors."""
    return tuple(c.builder.reshape(v, c.type_of(at).dims) for at, v in enumerate(tensors))


def flattened(c: Context, tensors: Sequence[Value]) -> Value:
    """All elements of all tensors, one after the other."""
    parts = [c.builder.reshape(value, (math.prod(value.dims),)) for value in tensors]
    return c.concatenate([c.convert(part, c.element) for part in parts], 0)


def unflattened(c: Context, flat: Value, tensors: Sequence[Value]) -> Any:
    """What `flattened` makes, as tensors of these dims again."""
    found, start = [], 0
    for like in tensors:
        size = math.prod(like.dims)
        part = c.slice(flat, 0, start, start + size)
        found.append(c.builder.reshape(part, like.dims))
        start += size
    return tuple(found)


def padded(
    c: Context,
    sequences: Sequence[Value],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Value:
    """pad_sequence: [n, ...] each -> [longest, sequences, ...], shorter ones padded."""
    longest = c.dims[1 if batch_first else 0]
    parts = []
    for value in sequences:
        beside = longest - value.dims[0]
        pads: list[Any] = [(0, 0, 0)] * value.rank
        pads[0] = (0, beside, 0) if padding_side == "right" else (beside, 0, 0)
        parts.append(c.pad(c.convert(value, c.element), padding_value, pads))
    return views.stack(c, parts, 0 if batch_first else 1)


_SPLITS = {name: split_along(axis) for axis, name in enumerate(("vsplit", "hsplit", "dsplit"))}

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}.int": equal for name, (equal, _) in _SPLITS.items()},
    **{f"aten.{name}.array": at for name, (_, at) in _SPLITS.items()},
    **{f"aten.atleast_{rank}d.Sequence": reshaped_each for rank in (1, 2, 3)},
    "aten.cartesian_prod.default": products,
    "aten.column_stack.default": columns,
    "aten.combinations.default": combinations,
    "aten.diag.default": diagonal_or_matrix,
    "aten.diagflat.default": flat_diagonal,
    "aten.dstack.default": stacked(3, 2),
    "aten.flatten_dense_tensors.default": flattened,
    "aten.fliplr.default": flipped(1),
    "aten.flipud.default": flipped(0),
    "aten.hstack.default": stacked(1, 1),
    "aten.pad_sequence.default": padded,
    "aten.row_stack.default": stacked(2, 0),
    "aten.tensor_split.indices": split_at,
    "aten.unflatten_dense_tensors.default": unflattened,
    "aten.vstack.default": stacked(2, 0),
}
