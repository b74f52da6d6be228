"""Choices by masks and by bags of positions: embedding_bag, masked_scatter, nonzero_static, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.clauses import is_same
from ....hlo.types import I1, I64
from ..context import Blocked, Context, lowest, place_of, static
from .indexing import take
from .reductions import extreme_place, vector_norm
from .running import running_of
from .scatters import index_add, scatter_add, scatter_line

_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    c: Context,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value | None, ...]:
    """Sum, mean or maximum of the rows of each bag; bag i begins at offsets[i].

    The other results serve gradients: the bag of each index, how many rows each bag has, and which
    row each maximum is of.
    """
    count, bags = indices.dims[0], c.dims[0]
    starts = c.convert(c.slice(offsets, 0, 0, bags), I64)
    dims = (bags, count)
    place = c.iota(dims, 1)
    inside = c.builder.compare("GE", place, c.builder.broadcast(starts, dims, [0]))
    # A bag ends where the next one begins.
    following = c.slice(c.convert(offsets, I64), 0, 1, offsets.dims[0])
    if not include_last_offset:
        following = c.concatenate([following, c.full(count, (1,), I64)], 0)
    before = c.builder.compare("LT", place, c.builder.broadcast(following, dims, [0]))
    inside = c("and", inside, before)
    if padding_idx >= 0:
        real = c.builder.compare("NE", indices, c.full(padding_idx, (count,), indices.element))
        inside = c("and", inside, c.builder.broadcast(real, dims, [1]))
    rows = c.wide(take(c, weight, indices, 0, wrap=False))
    sizes = None if mode == _SUM else c.reduce("add", c.convert(inside, I64), [1])
    rest = [_extra(c, 1, _bag_of(c, starts, indices)), _extra(c, 2, sizes)]
    if mode == _MAX:
        whole = (bags, count, rows.dims[1])
        chosen = c.builder.broadcast(inside, whole, [0, 1])
        candidates = c.select(
            chosen, c.builder.broadcast(rows, whole, [1, 2]), lowest(rows.element)
        )
        some = c.reduce("or", inside, [1])
        if not c.used[3]:
            result, at = c.reduce("maximum", candidates, [1]), None
        else:
            result, at = extreme_place(c, candidates, 1, True)
            at = take(c, indices, at, 0)
            at = c.select(c.builder.broadcast(some, at.dims, [0]), at, 0)
        some = c.builder.broadcast(some, result.dims, [0])
        return c.narrow(c.select(some, result, 0)), *rest, _extra(c, 3, at)
    shares = c.convert(inside, rows.element)
    if per_sample_weights is not None:
        scale = c.convert(per_sample_weights, rows.element)
        shares = c("multiply", shares, c.builder.broadcast(scale, dims, [1]))
    result = c.dot(shares, rows, ((1,), (0,)))
    if mode == _MEAN:
        size = c.reduce("add", c.convert(inside, rows.element), [1])
        size = c("maximum", size, c.full(1, size.dims, size.element))
        result = c("divide", result, c.builder.broadcast(size, result.dims, [0]))
    return c.narrow(result), *rest, _extra(c, 3, sizes)


def padded_embedding_bag(
    c: Context,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> tuple[Value | None, ...]:
    """The same, `padding_idx` counted from either end; None for none."""
    none = -1 if padding_idx is None else place_of(c, padding_idx, weight.dims[0])
    return embedding_bag(
        c, weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
        include_last_offset, static(none),
    )  # fmt: skip


def _extra(c: Context, number: int, value: Value | None) -> Value | None:
    """A result that only gradients read; zeros where PyTorch has nothing to say, or more places."""
    if not c.used[number]:
        return None
    wanted = c.type_of(number)
    if value is None or wanted.dims[0] == 0:
        return c.full(0, wanted.dims, wanted.element)
    value = c.convert(value, wanted.element)
    if is_same(value.dims[0], wanted.dims[0]):
        return value
    pads: list[Any] = [(0, 0, 0)] * value.rank
    pads[0] = (0, wanted.dims[0] - value.dims[0], 0)
    return c.pad(value, 0, pads)


def embedding_bag_backward(
    c: Context,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    if sparse:
        raise Blocked("gives a sparse gradient", "use sparse=False")
    if is_same(offset2bag.dims[0], 0):
        offset2bag = _bag_of(c, offsets, indices)
    return embedding_bag_dense_backward(
        c, grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
        mode, per_sample_weights, padding_idx,
    )  # fmt: skip


def embedding_bag_dense_backward(
    c: Context,
    grad: Value,
    indices: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """The gradient of each bag for the rows that it was made of, in the part that they had."""
    x = c.wide(grad)
    zero = c.full(0, c.dims, x.element)
    if mode == _MAX:
        some = c.compare("GT", c.slice(bag_size, 0, 0, x.dims[0]), 0)
        x = c.select(c.builder.broadcast(some, x.dims, [0]), x, 0)
        return c.narrow(scatter_add(c, zero, 0, maximum_indices, x))
    rows = take(c, x, offset2bag, 0, wrap=False)
    scale = c.full(1, indices.dims, x.element)
    if mode == _MEAN:
        sizes = c.convert(take(c, bag_size, offset2bag, 0, wrap=False), x.element)
        scale = c("divide", scale, c.binary("maximum", sizes, 1))
    if per_sample_weights is not None:
        scale = c("multiply", scale, c.convert(per_sample_weights, x.element))
    if scale_grad_by_freq:
        ones = c.full(1, indices.dims, x.element)
        times = index_add(c, c.full(0, c.dims[:1], x.element), 0, indices, ones)
        scale = c("divide", scale, take(c, times, indices, 0, wrap=False))
    if padding_idx >= 0:
        scale = c.select(c.compare("NE", indices, padding_idx), scale, 0)
    rows = c("multiply", rows, c.builder.broadcast(scale, rows.dims, [0]))
    return c.narrow(index_add(c, zero, 0, indices, rows))


def embedding_bag_weights_backward(
    c: Context,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    """The gradient of each sample's weight: its bag's gradient times its row."""
    if is_same(offset2bag.dims[0], 0):
        offset2bag = _bag_of(c, offsets, indices)
    rows = c.wide(take(c, weight, indices, 0, wrap=False))
    asked = c.wide(take(c, grad, offset2bag, 0, wrap=False))
    found = c.reduce("add", c("multiply", rows, asked), [1])
    if padding_idx >= 0:
        found = c.select(c.compare("NE", indices, padding_idx), found, 0)
    return c.narrow(found)


def embedding_renorm(
    c: Context, self: Value, indices: Value, max_norm: float, norm_type: float
) -> Value:
    """The table with those of the rows that are read scaled whose norm is more than `max_norm`."""
    x = c.wide(self)
    norms = c.wide(vector_norm(c, x, norm_type, [1]))
    flat = c.builder.reshape(indices, (math.prod(indices.dims),))
    reads = index_add(c, c.full(0, norms.dims, I64), 0, flat, c.full(1, flat.dims, I64))
    scales = c("and", c.compare("GT", reads, 0), c.compare("GT", norms, max_norm))
    factor = c.select(scales, c.divide(max_norm, c.add(norms, 1e-7)), 1)
    return c.narrow(c("multiply", x, c.builder.broadcast(factor, x.dims, [0])))


def _bag_of(c: Context, offsets: Value, indices: Value) -> Value:
    """The bag of each index: how many begin before or at it, less one."""
    dims = (offsets.dims[0], indices.dims[0])
    begin = c.builder.broadcast(c.convert(offsets, I64), dims, [0])
    begun = c.builder.compare("GE", c.iota(dims, 1), begin)
    return c.subtract(c.reduce("add", c.convert(begun, I64), [0]), 1)


def masked_scatter(c: Context, self: Value, mask: Value, source: Value) -> Value:
    """self with the elements where `mask` holds replaced by those of `source`, in order."""
    chosen = c.spread(mask, c.dims)
    target = c.spread(self, c.dims)
    size, count = math.prod(c.dims), math.prod(source.dims)
    if size == 0 or count == 0:
        return target
    flat = c.builder.reshape(chosen, (size,))
    rank = c.subtract(running_of(c, "add", c.convert(flat, I64), 0), 1)
    values = c.builder.reshape(source, (count,))
    if isinstance(count, int):
        rank = c("clamp", c.scalar(0, I64), rank, c.scalar(count - 1, I64))
    else:  # reading clamps it; there may be no element to read
        values = c.concatenate([values, c.full(0, (1,), values.element)], 0)
    given = take(c, values, rank, 0, wrap=False)
    return c("select", chosen, c.builder.reshape(given, c.dims), target)


def nonzero_static(c: Context, self: Value, size: int, fill_value: int = -1) -> Value:
    """The positions of the first `size` elements that are not zero, then `fill_value`."""
    count = self.tensor.size
    flat = c.builder.reshape(c.convert(self, I1), (count,))
    rank = c.subtract(running_of(c, "add", c.convert(flat, I64), 0), 1)
    rank = c.select(flat, rank, size)  # outside of the result: not written
    places = scatter_line(c, c.full(-1, (size,), I64), rank, c.iota((count,), 0))
    found = c.builder.compare("GE", places, c.full(0, places.dims, I64))
    columns = []
    step = count
    for extent in map(static, self.dims):
        step //= max(extent, 1)
        column = c("divide", places, c.full(max(step, 1), places.dims, I64))
        column = c("remainder", column, c.full(max(extent, 1), column.dims, I64))
        columns.append(c.builder.reshape(c.select(found, column, fill_value), (size, 1)))
    return c.concatenate(columns, 1) if columns else c.full(0, (size, 0), I64)


def is_in(
    c: Context,
    elements: Value,
    test_elements: Value,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Value:
    """Whether each element is among the others."""
    count = test_elements.tensor.size
    dims = (*elements.dims, count)
    others = c.builder.reshape(test_elements, (count,))
    wide = c.builder.broadcast(elements, dims, range(elements.rank))
    left, right = c.together(wide, others, dims=dims)
    found = c.reduce("or", c.builder.compare("EQ", left, right), [elements.rank])
    return c("not", found) if invert else found


def is_in_scalar(
    c: Context,
    elements: Value,
    test_element: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Value:
    return c.compare("NE" if invert else "EQ", elements, test_element)


def is_scalar_in(
    c: Context,
    element: Any,
    test_elements: Value,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Value:
    """Whether a number is among them."""
    same = c.compare("EQ", test_elements, element)
    found = c.reduce("or", same, range(same.rank))
    return c("not", found) if invert else found


TABLE: dict[str, Callable[..., Any]] = {
    "aten._embedding_bag.default": embedding_bag,
    "aten._embedding_bag_backward.default": embedding_bag_backward,
    "aten._embedding_bag_dense_backward.default": embedding_bag_dense_backward,
    "aten._embedding_bag_per_sample_weights_backward.default": embedding_bag_weights_backward,
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": padded_embedding_bag,
    "aten.isin.Scalar_Tensor": is_scalar_in,
    "aten.embedding_renorm.default": embedding_renorm,
    "aten.isin.Tensor_Scalar": is_in_scalar,
    "aten.isin.Tensor_Tensor": is_in,
    "aten.masked_scatter.default": masked_scatter,
    "aten.nonzero_static.default": nonzero_static,
}
