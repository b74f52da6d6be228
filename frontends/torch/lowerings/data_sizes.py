"""Operators whose results have sizes that data decide: nonzero, masked_select, unique,
repeat_interleave, slices by numbers that were read from tensors; and assertions about data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, SymbolicDim
from ....hlo.types import I1, I32, I64, TensorType
from ..context import Blocked, Context, axis_of, broadcast_dims, scalar_region, static
from ..data_sizes import set_size
from . import control, creation, indexing, views
from .sorting import sorted_along


def _line(c: Context, count: Dim, element: Any = I32) -> Value:
    return c.iota((count,), 0, element)


def _product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _flat(c: Context, value: Value) -> Value:
    return c.builder.reshape(value, (_product(value.dims),))


def _running_sum(c: Context, x: Value) -> Value:
    """The sum of all elements of a vector up to each one."""
    (length,) = x.dims
    size = c.most(length)
    if not size:
        return x
    body = scalar_region(x.element, lambda b, old, new: b("add", old, new))
    return c(
        "reduce_window", x, c.scalar(0, x.element), type=x.type, regions=(body,),
        window_dimensions=(size,), window_strides=(1,), base_dilations=(1,),
        window_dilations=(1,), padding=((size - 1, 0),),
    )  # fmt: skip


def _put(c: Context, target: Value, places: Value, updates: Value, body: str = "") -> Value:
    """A vector with updates at places; those outside of it are left out."""
    return indexing.scattered(
        c, target, places, updates, body, update_window_dims=(), inserted_window_dims=(0,),
        input_batching_dims=(), scatter_indices_batching_dims=(),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip


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
    places = c("subtract", _running_sum(c, ones), ones)
    return _put(c, c.full(0, (length,), I32), places, _line(c, length), "maximum"), count


def _cut(c: Context, whole: Value, axis: int, count: Value, kind: TensorType, limit: Dim) -> Value:
    """The first `count` elements, at most `limit`, as the declared type."""
    dim = kind.dims[axis]
    if isinstance(dim, int):
        return c.builder.reshape(c.slice(whole, axis, 0, dim), kind.dims)
    if isinstance(dim, SymbolicDim) and dim.symbols == (repr(dim),):
        name = repr(dim)
        if name not in c.data.values:
            c.data.bind(name, c.builder.convert(count, I64), limit)
    return set_size(c.builder, whole, axis, count, kind)


def _coordinates(c: Context, flat: Value, dims: Sequence[Dim]) -> list[Value]:
    """Row-major positions as positions along each dim, i64."""
    found = []
    for size in reversed(dims):
        length = c.builder.broadcast(c.number(size), flat.dims, ())
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


def index(c: Context, self: Value, indices: Sequence[Value | None]) -> Value:
    """self[indices], in which a mask stands for the positions of its true elements."""
    if not any(i is not None and i.element is I1 for i in indices):
        return indexing.index(c, self, indices)
    size = c.dims[_indexed_place(indices)]
    return indexing.index(c, self, _positions(c, indices, size))


def index_put(
    c: Context,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    """self with self[indices] = values, or += values; as many values as a mask has true elements,
    where these are not all the same."""
    masked = any(i is not None and i.element is I1 for i in indices)
    behind = len(self.dims) - sum(1 if i is None or i.element is not I1 else i.rank for i in indices)
    place = values.rank - 1 - behind
    if not masked or place < 0 or not c.data.decides(values.dims[place]):
        return indexing.index_put(c, self, indices, values, accumulate, unsafe)
    spread = _positions(c, indices, values.dims[place])
    return indexing.index_put(c, self, spread, values, accumulate, unsafe)


def _positions(
    c: Context, indices: Sequence[Value | None], size: Dim
) -> list[Value | None]:
    """The indices with the positions of its true elements, `size` of them, for each mask."""
    spread: list[Value | None] = []
    for given in indices:
        if given is None or given.element is not I1:
            spread.append(given)
            continue
        order, count = _compacted(c, _flat(c, given))
        (length,) = order.dims
        columns = _coordinates(c, c.convert(order, I64), given.dims)
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
    groups = c.subtract(_running_sum(c, c.convert(new, I32)), 1)
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
        own = wide if places is None else _put(c, c.full(0, (length,), I64), places, wide)
        inverse = c.builder.reshape(own, self.dims)
    if return_counts:
        ones = c.full(1, (length,), I64)
        summed = _put(c, c.full(0, (length,), I64), wide, ones, "add")
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
    """Elements that differ from the one before."""
    if dim is not None and self.rank != 1:
        raise Blocked("finds equal rows", "flatten it, or find equal elements")
    return _grouped(c, self, False, return_inverse, return_counts)


def unique_rows(
    c: Context,
    self: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, ...]:
    """unique along a dim, of a vector."""
    if self.rank != 1:
        raise Blocked("finds equal rows", "flatten it, or find equal elements")
    return _grouped(c, self, True, return_inverse, return_counts)


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
    total, ends = c.reduce("add", counts, [0]), _running_sum(c, counts)
    size = c.dims[_changed_axis(c)]
    if isinstance(size, SymbolicDim):
        name = repr(size)
        if size.symbols == (name,) and name not in c.data.values:
            c.data.bind(name, total)
    else:
        c.check(c.compare("EQ", total, static(size)), "allocated size does not match required size")
    places = c.iota((size,), 0)
    found = c.full(0, (size,), I64)
    last = c.number(length)
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


# Parts by numbers that were read from tensors.


def _number(c: Context, value: Any) -> Value:
    """A number, a size or a scalar as an i64 scalar."""
    if isinstance(value, Value):
        return c.builder.reshape(c.convert(value, I64), ())
    if isinstance(value, SymbolicDim):
        return c.number(value)
    return c.scalar(value, I64)


def _is_data(c: Context, *values: Any) -> bool:
    return any(isinstance(v, Value) or c.data.decides(v) for v in values)


def slice_along(
    c: Context, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    """self[start:end:step] along one dim, where a number or the size is data."""
    axis = axis_of(dim, self.rank)
    size = self.dims[axis]
    whole = not start and (end is None or (isinstance(end, int) and end == 2**63 - 1)) and step == 1
    if whole and not isinstance(start, Value):
        return self
    if not _is_data(c, start, end, size):
        return views.slice_along(c, self, dim, start, end, step)
    count, zero = c.number(size), c.scalar(0, I64)

    def clipped(value: Any, low: Value) -> Value:
        number = _number(c, value)
        if not isinstance(value, int) or value < 0:
            negative = c.builder.compare("LT", number, zero)
            number = c("select", negative, c("add", number, count), number)
        return c("clamp", low, number, count)

    first = zero if start is None or start == 0 else clipped(start, zero)
    last = count if end is None or end == 2**63 - 1 else clipped(end, first)
    return _part(c, self, axis, first, last, step)


def _part(
    c: Context, self: Value, axis: int, first: Value, last: Value, step: int, result: int = 0
) -> Value:
    """[first:last:step] of scalars that are within, as that result."""
    length = c("subtract", last, first)
    if step != 1:
        length = c("divide", c.add(length, step - 1), c.scalar(step, I64))
    kind = c.type_of(result)
    declared = kind.dims[axis]
    if isinstance(declared, SymbolicDim) and declared.symbols == (name := repr(declared),):
        if name not in c.data.values:
            c.data.bind(name, length, c.data.largest(self.dims[axis]))

    def vector(number: Value, other: Callable[[int], Value]) -> Value:
        parts = [number if d == axis else other(d) for d in range(self.rank)]
        return c.concatenate([c.builder.reshape(part, (1,)) for part in parts], 0)

    bounds = (
        vector(first, lambda d: c.scalar(0, I64)),
        vector(last, lambda d: c.number(self.dims[d])),
        vector(c.scalar(step, I64), lambda d: c.scalar(1, I64)),
    )
    return c("real_dynamic_slice", self, *bounds, type=kind)


def split_sizes(c: Context, self: Value, split_sizes: Sequence[Any], dim: int = 0) -> Any:
    """Pieces, of which numbers that were read from tensors say how long they are."""
    axis = axis_of(dim, self.rank)
    if not _is_data(c, *split_sizes, self.dims[axis]):
        return views.split_sizes(c, self, split_sizes, dim)
    start, pieces = c.scalar(0, I64), []
    for place, size in enumerate(split_sizes):
        end = c("add", start, _number(c, size))
        pieces.append(_part(c, self, axis, start, end, 1, place))
        start = end
    c.check(c.compare("EQ", start, c.number(self.dims[axis])), "split sizes do not sum to the size")
    return tuple(pieces)


def narrow(c: Context, self: Value, dim: int, start: Any, length: Any) -> Value:
    axis = axis_of(dim, self.rank)
    if not _is_data(c, start, length, self.dims[axis]):
        return views.narrow(c, self, dim, start, length)
    count, first = c.number(self.dims[axis]), _number(c, start)
    if not isinstance(start, int) or start < 0:
        negative = c.builder.compare("LT", first, c.scalar(0, I64))
        first = c("select", negative, c("add", first, count), first)
    return _part(c, self, axis, first, c("add", first, _number(c, length)), 1)


def slice_scatter(
    c: Context,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    """self with self[start:end:step] = src along one dim, where a number or a size is data."""
    axis = axis_of(dim, self.rank)
    if not _is_data(c, start, end, self.dims[axis], src.dims[axis] if src.rank else 0):
        return indexing.slice_scatter(c, self, src, dim, start, end, step)
    if step != 1:
        raise Blocked("writes to every few elements of a size that data decide", "use index_put")
    if src.rank < self.rank or isinstance(src.dims[axis], int) and src.dims[axis] == 1:
        raise Blocked("repeats what it writes to a part that data decide", "expand it before")
    first = _number(c, start or 0)
    if not isinstance(start or 0, int) or (start or 0) < 0:
        whole = c.number(self.dims[axis])
        negative = c.builder.compare("LT", first, c.scalar(0, I64))
        first = c("select", negative, c("add", first, whole), first)
    dims = (*self.dims[:axis], src.dims[axis], *self.dims[axis + 1 :])
    value = c.fill(src, TensorType(dims, self.element))
    starts = [first if d == axis else c.scalar(0, I64) for d in range(self.rank)]
    return c("dynamic_update_slice", self, value, *starts)


def select(c: Context, self: Value, dim: int, index: Any) -> Value:
    """self[index] along one dim, which vanishes."""
    axis = axis_of(dim, self.rank)
    if not _is_data(c, index, self.dims[axis]):
        return views.select(c, self, dim, index)
    place = c.builder.reshape(_number(c, index), (1,))
    wrap = not isinstance(index, int) or index < 0
    return c.builder.reshape(indexing.take(c, self, place, axis, wrap=wrap), c.dims)


# Numbers.


def size_of(c: Context, self: Value, dim: int) -> Any:
    """A size: a scalar where data decide it."""
    size = creation.size_of(c, self, dim)
    return c.number(size) if c.data.decides(size) else size


def count_of(c: Context, self: Value) -> Any:
    """How many elements it has."""
    total = _product(self.dims)
    return c.number(total) if c.data.decides(total) else creation.count_of(c, self)


def arithmetic(name: str) -> Callable[..., Any]:
    """Arithmetic on numbers of which data decide one."""
    other = control.TABLE[f"sym.{name}"]

    def lower(c: Context, left: Any, right: Any) -> Any:
        if not _is_data(c, left, right):
            return other(c, left, right)
        whole = all(
            isinstance(v, (int, SymbolicDim)) or (isinstance(v, Value) and v.element.is_integer)
            for v in (left, right)
        )
        if not whole or name not in _MEANINGS:
            return other(c, left, right)
        return _MEANINGS[name](c, _number(c, left), _number(c, right))

    return lower


def _floor_divide(c: Context, x: Value, y: Value) -> Value:
    quotient = c("divide", x, y)
    rest = c("subtract", x, c("multiply", quotient, y))
    zero = c.scalar(0, I64)
    apart = c("xor", c.builder.compare("LT", rest, zero), c.builder.compare("LT", y, zero))
    below = c("and", c.builder.compare("NE", rest, zero), apart)
    return c("subtract", quotient, c.convert(below, I64))


def _modulo(c: Context, x: Value, y: Value) -> Value:
    return c("subtract", x, c("multiply", _floor_divide(c, x, y), y))


_MEANINGS: dict[str, Callable[[Context, Value, Value], Value]] = {
    "add": lambda c, x, y: c("add", x, y),
    "sub": lambda c, x, y: c("subtract", x, y),
    "mul": lambda c, x, y: c("multiply", x, y),
    "floordiv": _floor_divide,
    "mod": _modulo,
    "max": lambda c, x, y: c("maximum", x, y),
    "min": lambda c, x, y: c("minimum", x, y),
    "eq": lambda c, x, y: c.compare("EQ", x, y),
    "ne": lambda c, x, y: c.compare("NE", x, y),
    "lt": lambda c, x, y: c.compare("LT", x, y),
    "le": lambda c, x, y: c.compare("LE", x, y),
    "gt": lambda c, x, y: c.compare("GT", x, y),
    "ge": lambda c, x, y: c.compare("GE", x, y),
}


def both(name: str) -> Callable[..., Any]:
    """`and` and `or` of conditions, of which data may decide some."""

    def lower(c: Context, left: Any, right: Any) -> Any:
        if not isinstance(left, Value) and not isinstance(right, Value):
            return left and right if name == "and" else left or right
        sides = [c.builder.reshape(c.convert(side, I1), ()) for side in (left, right)]
        return c(name, *sides)

    return lower


def asserted(c: Context, condition: Any, message: str = "", *others: Any) -> tuple[Any, ...]:
    """What data have to satisfy: a check of the call."""
    if isinstance(condition, Value):
        c.check(c.builder.reshape(_is_true(c, condition), ()), message)
    elif condition is False:
        raise Blocked(f"asserts what is false: {message}", "export it for other inputs")
    return ()


def in_range(
    c: Context, size: Any, min: Any = None, max: Any = None, **others: Any
) -> tuple[Any, ...]:
    """A number that was read from a tensor lies in a range."""
    if isinstance(size, Value):
        number = _number(c, size)
        for bound, direction in ((min, "GE"), (max, "LE")):
            if isinstance(bound, int):
                word = "at least" if direction == "GE" else "at most"
                text = f"a number that is read from a tensor has to be {word} {bound}"
                c.check(c.compare(direction, number, bound), text)
    return ()


TABLE: dict[str, Callable[..., Any]] = {
    **{f"sym.{name}": arithmetic(name) for name in _MEANINGS},
    **{f"sym.{name}_": both(name) for name in ("and", "or")},
    "aten._assert_async.msg": asserted,
    "aten._assert_async.default": asserted,
    "aten._assert_scalar.default": asserted,
    "aten._functional_assert_async.msg": asserted,
    "aten._unique.default": unique_two,
    "aten._unique2.default": unique,
    "aten.argwhere.default": nonzero,
    "aten._unsafe_index_put.default": index_put,
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.masked_select.default": masked_select,
    "aten.narrow.default": narrow,
    "aten.nonzero.default": nonzero,
    "aten.nonzero_numpy.default": nonzero_columns,
    "aten.repeat_interleave.Tensor": repeated_positions,
    "aten.repeat_interleave.self_Tensor": repeated,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_along,
    "aten.slice_scatter.default": slice_scatter,
    "aten.split.sizes": split_sizes,
    "aten.split_with_sizes.default": split_sizes,
    "aten.sym_constrain_range.default": in_range,
    "aten.sym_constrain_range_for_size.default": in_range,
    "aten.sym_numel.default": count_of,
    "aten.sym_size.int": size_of,
    "aten.unique_consecutive.default": unique_consecutive,
    "aten.unique_dim.default": unique_rows,
}
