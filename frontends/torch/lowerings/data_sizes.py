"""Operators whose results have sizes that data decide: nonzero, masked_select, masks as indices,
unique, repeat_interleave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, name_of
from ....hlo.types import I1, I32, I64, TensorType
from ..context import Blocked, Context, axis_of, broadcast_dims, static
from ..data_sizes import set_size
from . import indexing
from .running import running_of
from .scatters import scatter_line, write_at
from .sorting import sorted_along


def _line(c: Context, count: Dim, element: Any = I32) -> Value:
    return c.iota((count,), 0, element)


def product(dims: Sequence[Dim]) -> Dim:
    """How many elements such dims have."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _flat(c: Context, value: Value) -> Value:
    return c.builder.reshape(value, (product(value.dims),))


def _compacted(c: Context, chosen: Value) -> tuple[Value, Value]:
    """The positions of a vector's true elements, one after the other, and how many there are: an
    i32 vector of its length, and a scalar."""
    (length,) = chosen.dims
    ones = c.convert(chosen, I32)
    count = c.reduce("add", ones, [0])
    if length == 0:
        return c.full(0, (0,), I32), count
    # Every element writes its position where the next chosen one belongs, which has the largest of
    # these: no branch, and in any order.
    places = c("subtract", running_of(c, "add", ones, 0), ones)
    return scatter_line(c, c.full(0, (length,), I32), places, _line(c, length), "maximum"), count


def _cut(c: Context, whole: Value, axis: int, count: Value, kind: TensorType, limit: Dim) -> Value:
    """The first `count` elements, at most `limit`, as the declared type."""
    dim = kind.dims[axis]
    if isinstance(dim, int):
        return c.builder.reshape(c.slice(whole, axis, 0, dim), kind.dims)
    if (name := name_of(dim)) and c.data.lacks(dim):
        c.data.bind(name, c.builder.convert(count, I64), limit)
    return set_size(c.builder, whole, axis, count, kind)


def _coordinates(c: Context, flat: Value, dims: Sequence[Dim]) -> list[Value]:
    """Row-major positions as positions along each dim, i64."""
    found = []
    for size in reversed(dims):
        length = c.builder.broadcast(c.size(size), flat.dims, ())
        length = c("maximum", length, c.full(1, flat.dims, I64))
        found.append(c("remainder", flat, length))
        flat = c("divide", flat, length)
    return found[::-1]


def _is_true(c: Context, value: Value) -> Value:
    return c.convert(value, I1)


def nonzero(c: Context, self: Value) -> Value:
    """One row of positions for each element that is not zero."""
    order, count = _compacted(c, _flat(c, _is_true(c, self)))
    (length,) = order.dims
    if not self.rank:
        return _cut(c, c.full(0, (1, 0), I64), 0, count, c.type, 1)
    columns = [
        c.builder.reshape(place, (length, 1))
        for place in _coordinates(c, c.convert(order, I64), self.dims)
    ]
    return _cut(c, c.concatenate(columns, 1), 0, count, c.type, length)


def nonzero_columns(c: Context, self: Value) -> Any:
    """The positions along each dim, as vectors."""
    order, count = _compacted(c, _flat(c, _is_true(c, self)))
    (length,) = order.dims
    columns = _coordinates(c, c.convert(order, I64), self.dims)
    return tuple(_cut(c, x, 0, count, c.type_of(n), length) for n, x in enumerate(columns))


def masked_select(c: Context, self: Value, mask: Value) -> Value:
    """The elements where the mask is true, in row-major order."""
    dims = broadcast_dims(self.dims, mask.dims)
    order, count = _compacted(c, _flat(c, c.spread(mask, dims)))
    (length,) = order.dims
    value = _flat(c, c.spread(self, dims))
    if length != 0:
        value = indexing.take(c, value, order, 0, wrap=False)
    return _cut(c, value, 0, count, c.type, length)


def _has_mask(indices: Sequence[Value | None]) -> bool:
    return any(i is not None and i.element is I1 for i in indices)


def index(c: Context, self: Value, indices: Sequence[Value | None]) -> Value:
    """self[indices], in which a mask stands for the positions of its true elements."""
    if not _has_mask(indices):
        return indexing.read_at(c, self, indices)
    size = c.dims[_indexed_place(indices)]
    return indexing.read_at(c, self, _positions(c, self, indices, size))


def index_put(
    c: Context,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    """self with self[indices] = values, or += values; a mask stands for the positions of its true
    elements: there are as many values, or one for all."""
    if not _has_mask(indices):
        return write_at(c, self, indices, values, accumulate)
    given = [i for i in indices if i is not None]
    place = _indexed_place(indices)
    taken = sum(i.rank if i.element is I1 else 1 for i in given)
    rank = self.rank - taken + max(1 if i.element is I1 else i.rank for i in given)
    at = values.rank - rank + place  # the dim of the values that is as long as a mask has elements
    size = values.dims[at] if at >= 0 else 1
    if len(given) == 1 and isinstance(size, int) and size == 1:
        return _put_same(c, self, given[0], place, values, at, accumulate)
    widths = [i.dims[-1] for i in given if i.element is not I1 and i.rank]
    known = next((n for n in (size, *widths) if n != 1), None)
    return write_at(c, self, _positions(c, self, indices, known), values, accumulate)


def _put_same(
    c: Context, self: Value, mask: Value, place: int, values: Value, at: int, accumulate: bool
) -> Value:
    """self with the same values, without the dim `at` of size 1, where a mask of the dims from
    `place` on holds."""
    chosen = c.builder.broadcast(mask, self.dims, range(place, place + mask.rank))
    if at >= 0:
        dims = (*values.dims[:at], *(1,) * mask.rank, *values.dims[at + 1 :])
        values = c.builder.reshape(values, dims)
    new = c.spread(c.convert(values, self.element), self.dims)
    if accumulate:
        new = c("or" if self.element is I1 else "add", self, new)
    return c("select", chosen, new, self)


def _positions(
    c: Context, self: Value, indices: Sequence[Value | None], size: Dim | None
) -> list[Value | None]:
    """The indices of `self` with the positions of its true elements for each mask: `size` of them,
    or as many as it has elements, behind the true ones positions outside of self."""
    spread: list[Value | None] = []
    for given in indices:
        if given is None or given.element is not I1:
            spread.append(given)
            continue
        order, count = _compacted(c, _flat(c, given))
        (length,) = order.dims
        columns = _coordinates(c, c.convert(order, I64), given.dims)
        if size is None:
            valid = c.compare("LT", _line(c, length), c.spread(count, (length,)))
            sizes = [c.size(dim) for dim in given.dims]
            outside = [c.spread(number, (length,)) for number in sizes]
            pairs = zip(columns, outside, strict=True)
            spread += [c("select", valid, column, other) for column, other in pairs]
            continue
        if isinstance(size, int):
            message = "shape mismatch: a mask has to have as many true elements as there are values"
            c.check(c.compare("EQ", count, size), message)
        kind = TensorType((size,), I64)
        spread += [_cut(c, column, 0, count, kind, length) for column in columns]
    return spread


def _indexed_place(indices: Sequence[Value | None]) -> int:
    """The dim of the result that is as long as a mask has true elements."""
    axes, axis = [], 0
    for given in indices:
        width = given.rank if given is not None and given.element is I1 else 1
        if given is not None:
            axes += range(axis, axis + width)
        axis += width
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    wide = max([1, *(i.rank for i in indices if i is not None and i.element is not I1)])
    return (axes[0] if adjacent else 0) + wide - 1


def _groups(c: Context, flat: Value) -> tuple[Value, Value, Value]:
    """Of a vector in which equal elements follow each other: the number of each one's group, the
    compacted positions of those that differ from the one before, and how many these are."""
    (length,) = flat.dims
    shifted = c.pad(flat, 0, [(1, -1, 0)])
    first = c.builder.compare("EQ", _line(c, length), c.full(0, (length,), I32))
    new = c("or", first, c.builder.compare("NE", flat, shifted))
    groups = c.subtract(running_of(c, "add", c.convert(new, I32), 0), 1)
    order, count = _compacted(c, new)
    return groups, order, count


def _grouped(
    c: Context, self: Value, sort: bool, return_inverse: bool, return_counts: bool
) -> tuple[Value, Value, Value]:
    """unique: values, the group of each element, and how many each has."""
    flat = _flat(c, self)
    (length,) = flat.dims
    nothing = c.full(0, (0,), I64)
    if length == 0:
        counts = _cut(c, nothing, 0, c.scalar(0, I32), c.type_of(2), 0) if return_counts else None
        values = _cut(c, flat, 0, c.scalar(0, I32), c.type, 0)
        inverse = c.full(0, self.dims, I64) if return_inverse else nothing
        return values, inverse, nothing if counts is None else counts
    places = None
    if sort:
        flat, places = sorted_along(c, flat, 0, False)
    groups, order, count = _groups(c, flat)
    values = _cut(c, indexing.take(c, flat, order, 0, wrap=False), 0, count, c.type, length)
    inverse = counts = nothing
    wide = c.convert(groups, I64)
    if return_inverse:
        own = wide if places is None else scatter_line(c, c.full(0, (length,), I64), places, wide)
        inverse = c.builder.reshape(own, self.dims)
    if return_counts:
        ones = c.full(1, (length,), I64)
        summed = scatter_line(c, c.full(0, (length,), I64), wide, ones, "add")
        counts = _cut(c, summed, 0, count, c.type_of(2), length)
    return values, inverse, counts


def unique(
    c: Context,
    self: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, ...]:
    """The different elements in rising order."""
    return _grouped(c, self, True, return_inverse, return_counts)


def unique_two(
    c: Context, self: Value, sorted: bool = True, return_inverse: bool = False
) -> tuple[Value, ...]:
    return _grouped(c, self, True, return_inverse, False)[:2]


def unique_consecutive(
    c: Context,
    self: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Value, ...]:
    """Elements, or parts along a dim, that differ from the one before."""
    if dim is not None and self.rank:
        return _grouped_rows(c, self, axis_of(dim, self.rank), False, return_counts)
    return _grouped(c, self, False, return_inverse, return_counts)


def unique_rows(
    c: Context,
    self: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, ...]:
    """The different parts along a dim, in rising order of their elements."""
    if not self.rank:
        return _grouped(c, self, True, return_inverse, return_counts)
    return _grouped_rows(c, self, axis_of(dim, self.rank), True, return_counts)


def unique_consecutive_rows(
    c: Context, self: Value, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Value, ...]:
    return unique_consecutive(c, self, return_inverse, return_counts, dim)


def _grouped_rows(
    c: Context, self: Value, axis: int, sort: bool, return_counts: bool
) -> tuple[Value, Value, Value]:
    """unique of the parts of self along an axis: one of each, the group of each, how many each
    has."""
    if c.type.rank != self.rank:
        raise Blocked(
            f"PyTorch's export declares its result as {c.type}, of more dims than it has",
            "move the dim to the front: of that the export knows the result",
        )
    length = self.dims[axis]
    others = [d for d in range(self.rank) if d != axis]
    width = product([self.dims[d] for d in others])
    rows = c.builder.reshape(c.builder.transpose(self, [axis, *others]), (length, width))
    places = _line(c, length, I64)
    if sort:
        places = _row_order(c, rows)
        rows = indexing.take(c, rows, places, 0, wrap=False)
    shifted = c.pad(rows, 0, [(1, -1, 0), (0, 0, 0)])
    first = c.compare("EQ", _line(c, length), 0)
    new = c("or", first, c.reduce("or", c.builder.compare("NE", rows, shifted), [1]))
    groups = c.convert(c.subtract(running_of(c, "add", c.convert(new, I32), 0), 1), I64)
    order, count = _compacted(c, new)
    chosen = indexing.take(c, places, order, 0, wrap=False)
    values = _cut(c, indexing.take(c, self, chosen, axis, wrap=False), axis, count, c.type, length)
    inverse = scatter_line(c, c.full(0, (length,), I64), places, groups)
    counts = c.full(0, (0,), I64)
    if return_counts:
        ones = c.full(1, (length,), I64)
        summed = scatter_line(c, c.full(0, (length,), I64), groups, ones, "add")
        counts = _cut(c, summed, 0, count, c.type_of(2), length)
    return values, inverse, counts


def _row_order(c: Context, rows: Value) -> Value:
    """The order in which rows [n, columns] rise: stable sorts by each column, the last first."""
    length, width = rows.dims
    start = [c.scalar(0, I64), _line(c, length, I64)]
    types = [value.tensor for value in start]

    def more(turn: Value, order: Value) -> list[Value]:
        return [c.builder.compare("LT", turn, c.size(width))]

    def step(turn: Value, order: Value) -> list[Value]:
        at = c("subtract", c.subtract(c.size(width), 1), turn)
        column = c("dynamic_slice", rows, c.scalar(0, I64), at, slice_sizes=(length, 1))
        column = c.builder.reshape(column, (length,))
        given = indexing.take(c, column, order, 0, wrap=False)
        _, moved = sorted_along(c, given, 0, False)
        return [c.add(turn, 1), indexing.take(c, order, moved, 0, wrap=False)]

    regions = [c.nested(types, more), c.nested(types, step)]
    return c.builder.op("while", start, {}, regions, types).results[1]


def repeated(
    c: Context, self: Value, repeats: Value, dim: int | None = None, output_size: Any = None
) -> Value:
    """Each element as often as `repeats` says."""
    value, axis = (_flat(c, self), 0) if dim is None else (self, axis_of(dim, self.rank))
    return indexing.take(c, value, _sources(c, repeats, value.dims[axis]), axis, wrap=False)


def repeated_positions(c: Context, repeats: Value, output_size: Any = None) -> Value:
    """Each position as often as `repeats` says."""
    return c.convert(_sources(c, repeats, repeats.dims[0]), c.element)


def _sources(c: Context, repeats: Value, length: Dim) -> Value:
    """For each place of the result, the position of the element that stands there: the number of
    elements whose last place is before it, found by halving."""
    counts = c.convert(repeats, I64)
    counts = counts if counts.rank else c.builder.reshape(counts, (1,))
    counts = c.spread(counts, (length,))
    least = c.reduce("minimum", counts, [0])
    c.check(c.compare("GE", least, 0), "repeats can not be negative")
    total, ends = c.reduce("add", counts, [0]), running_of(c, "add", counts, 0)
    size = c.dims[_changed_axis(c)]
    if (name := name_of(size)) and c.data.lacks(size):
        c.data.bind(name, total)
    elif isinstance(size, int):
        c.check(c.compare("EQ", total, static(size)), "allocated size does not match required size")
    places = c.iota((size,), 0)
    found = c.full(0, (size,), I64)
    last = c.size(length)
    most, step = c.most(length), 1
    while step * 2 <= most:
        step *= 2
    while step and most:
        ahead = c.add(found, step)
        fits = c.builder.compare("LE", ahead, c.builder.broadcast(last, (size,), ()))
        end = indexing.take(c, ends, c.subtract(ahead, 1), 0, wrap=False)
        before = c("and", fits, c.builder.compare("LE", end, places))
        found = c("select", before, ahead, found)
        step //= 2
    return found


def _changed_axis(c: Context) -> int:
    """The dim of the result that is as long as the sum of the repeats."""
    args, kwargs = c.node.args, c.node.kwargs
    named = c.node.target.startswith("aten.repeat_interleave.self_Tensor")
    dim = kwargs.get("dim", args[2] if named and len(args) > 2 else None)
    return 0 if dim is None else axis_of(dim, c.type.rank)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._unique.default": unique_two,
    "aten._unique2.default": unique,
    "aten.argwhere.default": nonzero,
    "aten._unsafe_index_put.default": index_put,
    "aten._unsafe_index.Tensor": index,
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.masked_select.default": masked_select,
    "aten.nonzero.default": nonzero,
    "aten.nonzero_numpy.default": nonzero_columns,
    "aten.repeat_interleave.Tensor": repeated_positions,
    "aten.repeat_interleave.self_Tensor": repeated,
    "aten.unique_consecutive.default": unique_consecutive,
    "aten.unique_dim.default": unique_rows,
    "aten.unique_dim_consecutive.default": unique_consecutive_rows,
    "aten.where.default": nonzero_columns,
}
