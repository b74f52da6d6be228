"""Writing at computed positions: scatter, scatter_reduce, index_add, slice_scatter, put, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.ops.clauses import is_same
from ....hlo.symbols import Dim, ceildiv
from ....hlo.types import I1, I64, TensorType
from ..context import (
    Blocked,
    Context,
    Operand,
    axis_of,
    bounds,
    identity,
    is_low,
    place_of,
    scalar_region,
)  # fmt: skip
from .indexing import indexed_axes, positions_vector, wrapped

_REDUCTIONS = {"sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply",
               "amax": "maximum", "amin": "minimum", "mean": "add"}  # fmt: skip

Write = Callable[[Value, Operand, str], Value]
"""write(target, updates, body): updates combined with the elements that they come to."""


def scattered(
    c: Context, target: Value, positions: Value, updates: Value, body: str, **numbers: Any
) -> Value:
    """`scatter` with that combination ("" replaces); sums of bf16 and f16 run in f32."""
    element = target.element
    if body in ("add", "multiply") and is_low(element):
        target, updates = c.wide(target), c.wide(updates)
    work = target.element
    name = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}.get(body, body)
    name = name if work is I1 else body
    region = scalar_region(work, lambda b, old, new: b(name, old, new) if name else new)
    op = c.builder.op(
        "scatter", [target, positions, updates],
        {"indices_are_sorted": False, "unique_indices": False, **numbers}, [region],
    )  # fmt: skip
    return c.convert(op.result, element)


def scatter_line(c: Context, target: Value, places: Value, updates: Value, body: str = "") -> Value:
    """A vector with updates at places; those outside of it are left out."""
    return scattered(
        c, target, places, updates, body, update_window_dims=(), inserted_window_dims=(0,),
        input_batching_dims=(), scatter_indices_batching_dims=(),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip


def write_through(c: Context, outer: Value, value: Value, view: Callable[[Value], Value]) -> Value:
    """`outer` changed so that view(outer) is `value`, of a view that only moves elements: the view
    of the positions says where each stands."""
    size = math.prod(outer.dims)
    places = view(c.builder.reshape(c.iota((size,), 0), outer.dims))
    count = math.prod(places.dims)
    flat = c.builder.reshape(c.fill(value, places.tensor.with_element(outer.element)), (count,))
    line = c.builder.reshape(outer, (size,))
    written = scatter_line(c, line, c.builder.reshape(places, (count,)), flat)
    return c.builder.reshape(written, outer.dims)


def _reduced(
    c: Context, self: Value, write: Write, source: Value, reduce: str, include_self: bool
) -> Value:
    """self with elements reduced with those of `source` that come to them; without include_self
    these are reduced alone. Means of integers are rounded down."""
    if reduce not in _REDUCTIONS:
        raise Blocked(f"reduces by '{reduce}'", "use sum, prod, mean, amax or amin")
    body = _REDUCTIONS[reduce]
    x, updates = c.wide(self), c.convert(source, self.element)
    target = x if include_self else write(x, identity(body, x.element), "")
    result = write(target, c.wide(updates), body)
    if reduce == "mean":
        count = write(c.full(int(include_self), x.dims, x.element), 1, "add")
        count = c.binary("maximum", count, 1)
        whole = x.element.is_integer
        result = c.floor_divide(result, count) if whole else c("divide", result, count)
    return c.convert(result, self.element)


# At positions of several dims.


def write_at(
    c: Context, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """self with self[indices] = values, or += values; no index is a mask."""
    axes, positions, dims, place = indexed_axes(c, self, indices)
    rest = [size for axis, size in enumerate(self.dims) if axis not in axes]
    wanted = (*rest[:place], *dims, *rest[place:])
    updates = c.spread(c.convert(values, self.element), wanted)
    windows = (*range(place), *range(place + len(dims), len(wanted)))
    return scattered(
        c, self, positions[0] if len(axes) == 1 else positions_vector(c, positions), updates,
        "add" if accumulate else "", update_window_dims=windows,
        inserted_window_dims=tuple(axes), input_batching_dims=(),
        scatter_indices_batching_dims=(), scatter_dims_to_operand_dims=tuple(axes),
        index_vector_dim=len(dims),
    )  # fmt: skip


def put(c: Context, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """self with self.flatten()[index] = source, or += source."""
    size = math.prod(self.dims)
    places = c.builder.reshape(index, (math.prod(index.dims),))
    places = wrapped(c, places, size)
    updates = c.builder.reshape(source, places.dims)
    line = c.builder.reshape(self, (size,))
    written = scatter_line(c, line, places, updates, "add" if accumulate else "")
    return c.builder.reshape(written, self.dims)


# Along one dim, each element at its own position.


def combine_along(
    c: Context, self: Value, dim: int, index: Value, updates: Operand, body: str
) -> Value:
    """self with self[i, index[i, j], ...] combined with updates[i, j, ...]."""
    if not self.rank:
        flat = combine_along(
            c, c.builder.reshape(self, (1,)), 0, c.builder.reshape(index, (1,)),
            c.builder.reshape(updates, (1,)) if isinstance(updates, Value) else updates, body,
        )  # fmt: skip
        return c.builder.reshape(flat, ())
    axis = axis_of(dim, self.rank)
    if isinstance(updates, Value):
        for d in range(updates.rank):
            updates = c.slice(updates, d, 0, index.dims[d])
    updates = c.fill(updates, TensorType(index.dims, self.element))
    others = tuple(d for d in range(self.rank) if d != axis)
    index = c.convert(index, I64)
    whole = all(is_same(self.dims[d], index.dims[d]) for d in others)
    if whole:
        return scattered(
            c, self, index, updates, body, update_window_dims=(), inserted_window_dims=(axis,),
            input_batching_dims=others, scatter_indices_batching_dims=others,
            scatter_dims_to_operand_dims=(axis,), index_vector_dim=self.rank,
        )  # fmt: skip
    places = [index if d == axis else c.iota(index.dims, d) for d in range(self.rank)]
    return scattered(
        c, self, positions_vector(c, places), updates, body, update_window_dims=(),
        inserted_window_dims=tuple(range(self.rank)), input_batching_dims=(),
        scatter_indices_batching_dims=(), scatter_dims_to_operand_dims=tuple(range(self.rank)),
        index_vector_dim=self.rank,
    )  # fmt: skip


def scatter(
    c: Context, self: Value, dim: int, index: Value, src: Operand, reduce: str = ""
) -> Value:
    if index.rank != self.rank:  # it has no elements
        return self
    return combine_along(c, self, dim, index, src, _REDUCTIONS[reduce] if reduce else "")


def scatter_value(
    c: Context, self: Value, dim: int, index: Value, value: Operand, reduce: str = ""
) -> Value:
    return scatter(c, self, dim, index, value, reduce)


def scatter_add(c: Context, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter(c, self, dim, index, src, "sum")


def scatter_reduce(
    c: Context,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if index.rank != self.rank:  # it has no elements
        return self

    def write(target: Value, updates: Operand, body: str) -> Value:
        return combine_along(c, target, dim, index, updates, body)

    return _reduced(c, self, write, src, reduce, include_self)


# Along one dim, whole slices.


def _index_write(
    c: Context, self: Value, dim: int, index: Value, source: Operand, body: str
) -> Value:
    """self with whole slices self[..., index, ...] combined with `source`."""
    if not self.rank:
        line = _index_write(c, c.builder.reshape(self, (1,)), 0, index, source, body)
        return c.builder.reshape(line, ())
    axis = axis_of(dim, self.rank)
    index = wrapped(c, index if index.rank else c.builder.reshape(index, (1,)), self.dims[axis])
    dims = (*self.dims[:axis], index.dims[0], *self.dims[axis + 1 :])
    if isinstance(source, Value) and source.rank == len(dims):
        source = c.builder.reshape(source, dims)
    updates = c.fill(source, TensorType(dims, self.element))
    windows = tuple(d for d in range(self.rank) if d != axis)
    return scattered(
        c, self, index, updates, body, update_window_dims=windows, inserted_window_dims=(axis,),
        input_batching_dims=(), scatter_indices_batching_dims=(),
        scatter_dims_to_operand_dims=(axis,), index_vector_dim=1,
    )  # fmt: skip


def index_add(
    c: Context, self: Value, dim: int, index: Value, source: Value, alpha: Any = 1
) -> Value:
    if alpha != 1 and source.element is I1:
        scaled = c("and", source, c.full(bool(alpha), source.dims, I1))
    else:
        scaled = source if alpha == 1 else c.multiply(source, alpha)
    return _index_write(c, self, dim, index, scaled, "add")


def index_copy(c: Context, self: Value, dim: int, index: Value, source: Value) -> Value:
    return _index_write(c, self, dim, index, source, "")


def index_fill(c: Context, self: Value, dim: int, index: Value, value: Operand) -> Value:
    return _index_write(c, self, dim, index, value, "")


def index_reduce(
    c: Context,
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    def write(target: Value, updates: Operand, body: str) -> Value:
        return _index_write(c, target, dim, index, updates, body)

    return _reduced(c, self, write, source, reduce, include_self)


# Parts.


def overwrite(
    c: Context, target: Value, source: Value, axis: int, start: Dim, step: int = 1
) -> Value:
    """target with target[start : start + n * step : step] = source along one axis."""
    if step == 1 and any(map(c.data.decides, (*target.dims, *source.dims))):
        starts = [c.size(start if d == axis else 0) for d in range(target.rank)]
        return c("dynamic_update_slice", target, source, *starts)
    size, count = target.dims[axis], source.dims[axis]
    if count == 0:
        return target
    if step == 1:
        parts = []
        if start != 0:
            parts.append(c.slice(target, axis, 0, start))
        parts.append(source)
        if not is_same(start + count, size):
            parts.append(c.slice(target, axis, start + count, size))
        return c.concatenate(parts, axis)
    pads = [(0, 0, 0)] * target.rank
    pads[axis] = (start, size - start - (count - 1) * step - 1, step - 1)
    if all(isinstance(number, int) for number in (size, count, start)):
        line = np.zeros(size, np.bool_)
        line[start : start + count * step : step] = True
        chosen = c.array(line)
    else:
        place = c.subtract(c.iota((size,), 0), start)
        inside = c("and", c.compare("GE", place, 0), c.compare("LT", place, count * step))
        at_step = c("remainder", place, c.full(step, (size,), I64))
        chosen = c("and", inside, c.compare("EQ", at_step, 0))
    chosen = c.builder.broadcast(chosen, target.dims, [axis])
    return c("select", chosen, c.pad(source, 0, pads), target)


def slice_scatter(
    c: Context,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    """self with self[start:end:step] = src along one dimension."""
    axis = axis_of(dim, self.rank)
    first, last = bounds(c, self.dims[axis], start, None if end == 2**63 - 1 else end)
    count = ceildiv(last - first, step)
    dims = (*self.dims[:axis], count, *self.dims[axis + 1 :])
    return overwrite(c, self, c.fill(src, TensorType(dims, self.element)), axis, first, step)


def select_scatter(c: Context, self: Value, src: Value, dim: int, index: int) -> Value:
    """self with self[index] = src along one dimension."""
    axis = axis_of(dim, self.rank)
    at = place_of(c, index, self.dims[axis])
    dims = (*self.dims[:axis], 1, *self.dims[axis + 1 :])
    return overwrite(c, self, c.builder.reshape(c.convert(src, self.element), dims), axis, at)


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.index_fill.{kind}": index_fill for kind in ("int_Scalar", "int_Tensor")},
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_reduce.default": index_reduce,
    "aten.put.default": put,
    "aten.scatter.reduce": scatter,
    "aten.scatter.src": scatter,
    "aten.scatter.value": scatter_value,
    "aten.scatter.value_reduce": scatter_value,
    "aten.scatter_add.default": scatter_add,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.select_scatter.default": select_scatter,
    "aten.slice_scatter.default": slice_scatter,
}
