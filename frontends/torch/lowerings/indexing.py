"""Reading and writing at computed positions: index, gather, embedding, index_put, scatter, ..."""

from __future__ import annotations

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
    broadcast_dims,
    is_low,
    place_of,
    scalar_region,
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


def unfold(c: Context, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of `size` every `step` along one dimension; the window becomes the last one."""
    axis = axis_of(dimension, self.rank)
    count = (self.dims[axis] - size) // step + 1
    dims = (*self.dims[:axis], count, size, *self.dims[axis + 1 :])
    if isinstance(count, int):
        starts = [i * step + j for i in range(count) for j in range(size)]
        value = c.builder.reshape(take_axis(c, self, axis, starts), dims)
    else:
        value = window_parts(c, self, axis, axis + 1, size, step)
    order = [d for d in range(len(dims)) if d != axis + 1] + [axis + 1]
    return c.builder.transpose(value, order)


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


def _plan(
    c: Context, self: Value, indices: Sequence[Value | None]
) -> tuple[list[int], list[Value], tuple[Any, ...], int]:
    """Indexed axes, their positions (wrapped, of common dims), these dims, and the place where
    these dims stand in the result.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(index.element is I1 for index in given):
        raise Blocked(
            "indexes by a boolean mask: the size of the result depends on values",
            "use torch.where, or masked_fill",
        )
    dims = broadcast_dims(*[index.dims for index in given])
    spread = [
        c.spread(wrapped(c, c.convert(index, I64), self.dims[axis]), dims)
        for axis, index in zip(axes, given, strict=True)
    ]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return axes, spread, dims, axes[0] if adjacent else 0


def _vector(c: Context, positions: Sequence[Value]) -> Value:
    """Positions of several axes as vectors along a last dimension."""
    parts = [c.builder.reshape(value, (*value.dims, 1)) for value in positions]
    return c.concatenate(parts, parts[0].rank - 1)


def index(c: Context, self: Value, indices: Sequence[Value | None]) -> Value:
    """self[indices]; None stands for a whole dimension."""
    if all(index is None for index in indices):
        return self
    axes, positions, dims, place = _plan(c, self, indices)
    sizes = [1 if axis in axes else size for axis, size in enumerate(self.dims)]
    kept = self.rank - len(axes)
    offsets = (*range(place), *range(place + len(dims), kept + len(dims)))
    single = len(axes) == 1
    return c(
        "gather", self, positions[0] if single else _vector(c, positions), offset_dims=offsets,
        collapsed_slice_dims=tuple(axes), operand_batching_dims=(),
        start_indices_batching_dims=(), start_index_map=tuple(axes), index_vector_dim=len(dims),
        slice_sizes=tuple(sizes), indices_are_sorted=False,
    )  # fmt: skip


def gather(c: Context, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """result[i, j, ...] = self[i, index[i, j, ...], ...]."""
    if not self.rank:
        return c.spread(self, index.dims)
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
    return take(c, c.builder.reshape(self, (self.tensor.size,)), index, 0)


def take_along(c: Context, self: Value, indices: Value, dim: int | None = None) -> Value:
    """gather after broadcasting the other dimensions."""
    if dim is None:
        size = self.tensor.size
        flat = c.builder.reshape(indices, (indices.tensor.size,))
        return gather(c, c.builder.reshape(self, (size,)), 0, flat)
    axis = axis_of(dim, self.rank)
    mine, theirs = list(self.dims), list(indices.dims)
    mine[axis] = theirs[axis] = 1
    common = list(broadcast_dims(mine, theirs))
    common[axis] = self.dims[axis]
    wide = c.spread(self, common)
    common[axis] = indices.dims[axis]
    return gather(c, wide, axis, c.spread(indices, common))


# Writing.

_REDUCTIONS = {"sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply",
               "amax": "maximum", "amin": "minimum"}  # fmt: skip


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


def index_put(
    c: Context,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    """self with self[indices] = values, or += values."""
    masks = [index for index in indices if index is not None]
    if len(masks) == 1 and masks[0].element is I1 and indices[0] is not None:
        return _put_mask(c, self, masks[0], values, accumulate)
    axes, positions, dims, place = _plan(c, self, indices)
    rest = [size for axis, size in enumerate(self.dims) if axis not in axes]
    wanted = (*rest[:place], *dims, *rest[place:])
    updates = c.spread(c.convert(values, self.element), wanted)
    windows = (*range(place), *range(place + len(dims), len(wanted)))
    return scattered(
        c, self, positions[0] if len(axes) == 1 else _vector(c, positions), updates,
        "add" if accumulate else "", update_window_dims=windows,
        inserted_window_dims=tuple(axes), input_batching_dims=(),
        scatter_indices_batching_dims=(), scatter_dims_to_operand_dims=tuple(axes),
        index_vector_dim=len(dims),
    )  # fmt: skip


def _put_mask(c: Context, self: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """self[mask] = values where the values are the same for every masked place."""
    rest = self.dims[mask.rank :]
    if values.rank > len(rest) and values.dims[0] != 1:
        raise Blocked("assigns different values to the places of a boolean mask", "use torch.where")
    if values.rank > len(rest):
        values = c.builder.reshape(values, values.dims[values.rank - len(rest) :])
    chosen = c.builder.broadcast(mask, self.dims, range(mask.rank))
    new = c.spread(c.convert(values, self.element), self.dims)
    return c("select", chosen, c("add", self, new) if accumulate else new, self)


def _scatter_along(
    c: Context, self: Value, dim: int, index: Value, updates: Operand, body: str
) -> Value:
    """self with self[i, index[i, j], ...] combined with updates[i, j, ...]."""
    if not self.rank:
        flat = _scatter_along(
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
        c, self, _vector(c, places), updates, body, update_window_dims=(),
        inserted_window_dims=tuple(range(self.rank)), input_batching_dims=(),
        scatter_indices_batching_dims=(), scatter_dims_to_operand_dims=tuple(range(self.rank)),
        index_vector_dim=self.rank,
    )  # fmt: skip


def scatter(
    c: Context, self: Value, dim: int, index: Value, src: Operand, reduce: str = ""
) -> Value:
    return _scatter_along(c, self, dim, index, src, _REDUCTIONS[reduce] if reduce else "")


def scatter_value(
    c: Context, self: Value, dim: int, index: Value, value: Operand, reduce: str = ""
) -> Value:
    return scatter(c, self, dim, index, value, reduce)


def scatter_add(c: Context, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter_along(c, self, dim, index, src, "add")


def scatter_reduce(
    c: Context,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if reduce not in _REDUCTIONS:
        raise Blocked(f"reduces by '{reduce}'", "use sum, prod, amax or amin")
    if not include_self:
        raise Blocked("leaves the tensor's own values out (include_self=False)",
                      "start from a tensor of the reduction's neutral element")  # fmt: skip
    return _scatter_along(c, self, dim, index, src, _REDUCTIONS[reduce])


def _index_write(
    c: Context, self: Value, dim: int, index: Value, source: Operand, body: str
) -> Value:
    """self with whole slices self[..., index, ...] combined with `source`."""
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
    scaled = source if alpha == 1 else c.multiply(source, alpha)
    return _index_write(c, self, dim, index, scaled, "add")


def index_copy(c: Context, self: Value, dim: int, index: Value, source: Value) -> Value:
    return _index_write(c, self, dim, index, source, "")


def index_fill(c: Context, self: Value, dim: int, index: Value, value: Operand) -> Value:
    return _index_write(c, self, dim, index, value, "")


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


def one_hot(c: Context, self: Value, num_classes: int = -1) -> Value:
    """1 at each position's place along a new last dimension."""
    if num_classes < 0:
        raise Blocked("derives the number of classes from values", "pass num_classes")
    dims = (*self.dims, num_classes)
    wide = c.builder.broadcast(self, dims, range(self.rank))
    return c.convert(c.builder.compare("EQ", wide, c.iota(dims, self.rank)), I64)


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.index_fill.{kind}": index_fill for kind in ("int_Scalar", "int_Tensor")},
    "aten._unsafe_index.Tensor": index,
    "aten._unsafe_index_put.default": index_put,
    "aten.embedding.default": embedding,
    "aten.gather.default": gather,
    "aten.index.Tensor": index,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_put.default": index_put,
    "aten.index_select.default": index_select,
    "aten.one_hot.default": one_hot,
    "aten.scatter.reduce": scatter,
    "aten.scatter.src": scatter,
    "aten.scatter.value": scatter_value,
    "aten.scatter.value_reduce": scatter_value,
    "aten.scatter_add.default": scatter_add,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.select_scatter.default": select_scatter,
    "aten.slice_scatter.default": slice_scatter,
    "aten.take.default": take_flat,
    "aten.take_along_dim.default": take_along,
    "aten.unfold.default": unfold,
}
