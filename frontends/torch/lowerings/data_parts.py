"""Parts of tensors by numbers that were read from tensors (`x[:n.item()]`), arithmetic on such
numbers, and assertions about data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import SymbolicDim, name_of
from ....hlo.types import I1, I64, TensorType
from ..context import Blocked, Context, axis_of
from . import control, creation, indexing, scatters, views
from .data_sizes import product


def _number(c: Context, value: Any) -> Value:
    """A number, a size or a scalar as an i64 scalar."""
    if isinstance(value, Value):
        return c.builder.reshape(c.convert(value, I64), ())
    if isinstance(value, SymbolicDim):
        return c.size(value)
    return c.scalar(value, I64)


def _is_data(c: Context, *values: Any) -> bool:
    return any(isinstance(v, Value) or c.data.decides(v) for v in values)


def slice_along(
    c: Context, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    """self[start:end:step] along one dim, where a number or the size is data."""
    axis = axis_of(dim, self.rank)
    size = self.dims[axis]
    if not _is_data(c, start, end, size):
        return views.slice_along(c, self, dim, start, end, step)
    if not isinstance(start, Value) and not start and end in (None, 2**63 - 1) and step == 1:
        return self
    count, zero = c.size(size), c.scalar(0, I64)

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
    if (name := name_of(declared)) and c.data.lacks(declared):
        c.data.bind(name, length, c.data.largest(self.dims[axis]))

    def vector(number: Value, other: Callable[[int], Value]) -> Value:
        parts = [number if d == axis else other(d) for d in range(self.rank)]
        return c.concatenate([c.builder.reshape(part, (1,)) for part in parts], 0)

    bounds = (
        vector(first, lambda d: c.scalar(0, I64)),
        vector(last, lambda d: c.size(self.dims[d])),
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
    c.check(c.compare("EQ", start, c.size(self.dims[axis])), "split sizes do not sum to the size")
    return tuple(pieces)


def split_at_data(c: Context, self: Value, positions: Value, dim: int = 0) -> tuple[Value, ...]:
    """tensor_split at positions that a tensor has, each a Python slice's end and the next one's
    start."""
    if positions.rank != 1:
        raise Blocked("splits into a number of parts that a tensor has", "give it as an int")
    axis = axis_of(dim, self.rank)
    count, zero = c.size(self.dims[axis]), c.scalar(0, I64)
    ends = [c.builder.reshape(x, ()) for x in views.unbind(c, c.convert(positions, I64))]
    wrapped = [c("select", c.compare("LT", x, 0), c("add", x, count), x) for x in ends]
    edges = [zero, *(c("clamp", zero, x, count) for x in wrapped), count]
    pieces = []
    for place, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
        pieces.append(_part(c, self, axis, start, c("maximum", start, end), 1, place))
    return tuple(pieces)


def narrow(c: Context, self: Value, dim: int, start: Any, length: Any) -> Value:
    axis = axis_of(dim, self.rank)
    if not _is_data(c, start, length, self.dims[axis]):
        return views.narrow(c, self, dim, start, length)
    count, first = c.size(self.dims[axis]), _number(c, start)
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
        return scatters.slice_scatter(c, self, src, dim, start, end, step)
    if step != 1:
        raise Blocked("writes to every few elements of a size that data decide", "use index_put")
    if src.rank < self.rank or isinstance(src.dims[axis], int) and src.dims[axis] == 1:
        raise Blocked("repeats what it writes to a part that data decide", "expand it before")
    first = _number(c, start or 0)
    if not isinstance(start or 0, int) or (start or 0) < 0:
        whole = c.size(self.dims[axis])
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
    return c.size(size) if c.data.decides(size) else size


def storage_offset(c: Context, self: Value) -> Any:
    """Where a tensor begins in memory: a size of which a program knows that it is not negative,
    which exports assert, and nothing else."""
    return SymbolicDim(f"offset_of_{c.node.args[0].name}".replace("#", "_"))


def count_of(c: Context, self: Value) -> Any:
    """How many elements it has."""
    total = product(self.dims)
    return c.size(total) if c.data.decides(total) else creation.count_of(c, self)


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
        c.check(c.builder.reshape(c.convert(condition, I1), ()), message)
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
    "aten.narrow.default": narrow,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_along,
    "aten.slice_scatter.default": slice_scatter,
    "aten.split.sizes": split_sizes,
    "aten.split_with_sizes.default": split_sizes,
    "aten.sym_constrain_range.default": in_range,
    "aten.sym_constrain_range_for_size.default": in_range,
    "aten.sym_numel.default": count_of,
    "aten.sym_size.int": size_of,
    "aten.sym_storage_offset.default": storage_offset,
    "aten.tensor_split.tensor_indices_or_sections": split_at_data,
}
