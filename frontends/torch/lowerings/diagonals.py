"""Diagonals and triangles: tril, triu, diagonal, diag_embed, block_diag, trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import I64
from ..context import Context, Operand, axis_of
from .scatters import write_through


def triangle(lower_part: bool) -> Callable[..., Value]:
    """tril and triu: zero above or below a diagonal."""

    def lower(c: Context, self: Value, diagonal: int = 0) -> Value:
        dims = self.dims[-2:]
        rows = c.add(c.iota(dims, 0), diagonal)
        kept = c.builder.compare("GE" if lower_part else "LE", rows, c.iota(dims, 1))
        return c.select(c.spread(kept, self.dims), self, 0)

    return lower


def diagonal(c: Context, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two dimensions, as the last one."""
    return diagonal_of(c, self, offset, dim1, dim2, c.dims[-1])


def diagonal_of(c: Context, self: Value, offset: int, dim1: int, dim2: int, count: Dim) -> Value:
    """`diagonal`, which has `count` elements: a strided slice of the flattened pair."""
    first, second = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    rest = [axis for axis in range(self.rank) if axis not in (first, second)]
    value = c.builder.transpose(self, [*rest, first, second])
    rows, columns = value.dims[-2:]
    flat = c.builder.reshape(value, (*value.dims[:-2], rows * columns))
    start = offset if offset >= 0 else -offset * columns
    if count == 0:
        return c.slice(flat, flat.rank - 1, 0, 0)
    stop = start + (count - 1) * (columns + 1) + 1
    return c.slice(flat, flat.rank - 1, start, stop, columns + 1)


def matrix_diagonal(
    c: Context, A: Value, *, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Value:
    """torch.linalg.diagonal: that of the last two dimensions."""
    return diagonal(c, A, offset, dim1, dim2)


def filled_diagonal(c: Context, self: Value, fill_value: Operand, wrap: bool = False) -> Value:
    """self[i, i, ...] = fill_value; with `wrap` the diagonal of a tall matrix begins again one row
    below its end."""
    places = [c.iota(self.dims, axis) for axis in range(self.rank)]
    if wrap and self.rank == 2:
        turn = c.full(self.dims[1] + 1, self.dims, I64)
        places[0] = c("remainder", places[0], turn)
    same = [c.builder.compare("EQ", places[0], place) for place in places[1:]]
    chosen = functools.reduce(lambda one, other: c("and", one, other), same)
    return c.select(chosen, c.fill(fill_value, self.tensor), self)


def diagonal_scatter(
    c: Context, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """self with that diagonal of two dimensions = src."""
    count = src.dims[-1]
    return write_through(c, self, src, lambda at: diagonal_of(c, at, offset, dim1, dim2, count))


def diagonal_embedding(
    c: Context, self: Value, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Value:
    """The last dimension as a diagonal of two new ones, zero beside it."""
    rank = self.rank + 1
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    if first > second:
        first, second, offset = second, first, -offset
    size = c.dims[first]
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    # along the longer of the two sides the diagonal begins |offset| later
    low = (max(-offset, 0), max(offset, 0))
    pads = [(0, 0, 0)] * self.rank
    pads[-1] = (low[0], size - low[0] - self.dims[-1], 0)  # type: ignore[operator]
    wide = c.builder.broadcast(c.pad(self, 0, pads), c.dims, [*rest, first])
    row, column = c.iota((size, size), 0), c.iota((size, size), 1)
    here = c.builder.compare("EQ", c.add(row, offset), column)
    return c.select(c.builder.broadcast(here, c.dims, [first, second]), wide, 0)


def trace(c: Context, self: Value) -> Value:
    """The sum of the diagonal of a matrix."""
    count = c.smaller(*self.dims)
    line = c.convert(diagonal_of(c, self, 0, 0, 1, count), c.element)
    return c.narrow(c.reduce("add", c.wide(line), [0]))


def block_diagonal(c: Context, tensors: Sequence[Value]) -> Value:
    """Matrices along the diagonal, zero beside them; vectors are rows."""
    parts, start = [], 0
    for value in tensors:
        value = c.convert(value, c.element)
        value = c.builder.reshape(value, ((1, 1, *value.dims)[-2:]))
        columns = value.dims[1]
        after = c.dims[1] - start - columns
        parts.append(c.pad(value, 0, [(0, 0, 0), (start, after, 0)]))  # type: ignore[list-item]
        start += columns
    return c.concatenate(parts, 0)


TABLE: dict[str, Callable[..., Any]] = {
    "aten.block_diag.default": block_diagonal,
    "aten.diag_embed.default": diagonal_embedding,
    "aten.diagonal.default": diagonal,
    "aten.diagonal_copy.default": diagonal,
    "aten.fill_diagonal.default": filled_diagonal,
    "aten.linalg_diagonal.default": matrix_diagonal,
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.trace.default": trace,
    "aten.tril.default": triangle(True),
    "aten.triu.default": triangle(False),
}
