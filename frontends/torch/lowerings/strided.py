"""Tensors read as they lie in memory: as_strided, view as another dtype, resize, unfold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import I1, I64, UI8, ElementType, TensorType, real_type
from ..context import Blocked, Context, axis_of, sized
from .indexing import take, take_axis, window_parts
from .scatters import write_through

Memory = Sequence[Dim] | None
"""How many elements of memory lie between neighbours along each dim of a tensor that begins where
its memory does, as the export says it; None where it says nothing of that kind."""


def _dense(dims: Sequence[Dim]) -> list[Dim]:
    """The strides of a row-major tensor."""
    return [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]


def _agree(strides: Sequence[Dim], others: Sequence[Dim], dims: Sequence[Dim]) -> bool:
    """Whether two strides mean the same places: that of a dim of size 1 says nothing."""
    return all(s == o for s, o, n in zip(strides, others, dims, strict=True) if n != 1)


def in_memory(c: Context, self: Value, memory: Memory) -> Value:
    """The elements as they lie in memory, a vector; blocked where a tensor is not all of it."""
    order = list(range(self.rank))
    if memory is not None and all(isinstance(n, int) for n in (*memory, *self.dims)):
        order.sort(key=lambda axis: (-memory[axis], self.dims[axis] == 1))  # type: ignore[operator]
    dims = [self.dims[axis] for axis in order]
    if memory is None or not _agree([memory[axis] for axis in order], _dense(dims), dims):
        raise Blocked("reads the memory behind a view", "use view, permute, expand or unfold")
    return c.builder.reshape(c.builder.transpose(self, order), (math.prod(dims),))


def as_strided(
    c: Context,
    self: Value,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
    memory: Memory = None,
) -> Value:
    """result[i, j, ...] is what lies at offset + i * stride[0] + j * stride[1] + ... in memory."""
    line = in_memory(c, self, memory)
    dims, steps, offset = [sized(n) for n in size], [sized(n) for n in stride], storage_offset or 0
    if offset == 0 and math.prod(dims) == line.dims[0] and _agree(steps, _dense(dims), dims):
        return c.builder.reshape(line, dims)
    if 0 in dims:
        return c.full(0, dims, self.element)
    last = offset + sum((n - 1) * step for n, step in zip(dims, steps, strict=True))
    c.require(last + 1, "<=", line.dims[0])
    places = c.full(offset, dims, I64)
    for axis, step in enumerate(steps):
        places = c("add", places, c.multiply(c.iota(dims, axis), step))
    return take(c, line, places, 0, wrap=False)


def as_strided_scatter(
    c: Context,
    self: Value,
    src: Value,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
    memory: Memory = None,
) -> Value:
    """self with as_strided(self) = src."""

    def view(places: Value) -> Value:
        return as_strided(c, places, size, stride, storage_offset, memory)

    return write_through(c, self, src, view)


def resized(
    c: Context, self: Value, size: Sequence[Any], memory_format: Any = None, memory: Memory = None
) -> Value:
    """The beginning of the memory as another size; what is behind the old tensor is 0."""
    line, count = in_memory(c, self, memory), math.prod(c.dims)
    line = c.pad(line, 0, [(0, count - line.dims[0], 0)])  # type: ignore[list-item]
    return c.builder.reshape(line, c.dims)


def resized_as(
    c: Context, self: Value, the_template: Value, memory_format: Any = None, memory: Memory = None
) -> Value:
    return resized(c, self, the_template.dims, memory_format, memory)


def view_dtype(c: Context, self: Value, dtype: ElementType) -> Value:
    """The same bytes read as another element type, whose width changes the last dim."""
    value, wanted = self, c.element
    if value.element is I1:
        value = c.convert(value, UI8)
    if value.element.is_complex:
        value = view_as_real(c, value)
        value = c.builder.reshape(value, (*self.dims[:-1], math.prod(value.dims[-2:])))
    inner = UI8 if wanted is I1 else wanted
    inner = real_type(inner) if inner.is_complex else inner
    value = _bits(c, value, inner)
    if wanted.is_complex:
        last = value.dims[-1] // 2
        value = view_as_complex(c, c.builder.reshape(value, (*value.dims[:-1], last, 2)))
    return c.builder.reshape(c.convert(value, wanted), c.dims)


def _bits(c: Context, value: Value, element: ElementType) -> Value:
    """The bits of real numbers as others, of any width."""
    dims, old, new = value.dims, value.element.bits, element.bits
    if old < new:
        ratio = new // old
        dims = (*dims[:-1], dims[-1] // ratio)
        value = c.builder.reshape(value, (*dims, ratio))
        return c("bitcast_convert", value, type=TensorType(dims, element))
    ratio = old // new
    parts = (*dims, ratio) if ratio > 1 else dims
    value = c("bitcast_convert", value, type=TensorType(parts, element))
    return value if ratio == 1 else c.builder.reshape(value, (*dims[:-1], dims[-1] * ratio))


def view_as_complex(c: Context, self: Value) -> Value:
    """[..., 2] -> complex numbers [...]."""
    last = self.rank - 1
    dims = self.dims[:-1]
    parts = [c.builder.reshape(c.slice(self, last, i, i + 1), dims) for i in (0, 1)]
    return c("complex", *parts)


def view_as_real(c: Context, self: Value) -> Value:
    """Complex numbers [...] -> [..., 2]."""
    element = real_type(self.element)
    parts = [c(name, self, type=TensorType(self.dims, element)) for name in ("real", "imag")]
    return c.concatenate([c.builder.reshape(p, (*p.dims, 1)) for p in parts], self.rank)


def unfold(c: Context, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of `size` every `step` along one dimension; the window becomes the last one."""
    if not self.rank:
        return c.slice(c.builder.reshape(self, (1,)), 0, 0, size)
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


TABLE: dict[str, Callable[..., Any]] = {
    "aten.as_strided.default": as_strided,
    "aten.as_strided_copy.default": as_strided,
    "aten.as_strided_scatter.default": as_strided_scatter,
    "aten.resize.default": resized,
    "aten.resize_as.default": resized_as,
    "aten.unfold.default": unfold,
    "aten.unfold_copy.default": unfold,
    "aten.view.dtype": view_dtype,
    "aten.view_copy.dtype": view_dtype,
    "aten.view_as_complex.default": view_as_complex,
    "aten.view_as_complex_copy.default": view_as_complex,
    "aten.view_as_real.default": view_as_real,
    "aten.view_as_real_copy.default": view_as_real,
}
