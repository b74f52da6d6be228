"""Tensors from nothing: full, zeros, ones, arange, eye, linspace, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import C128, F32, F64
from ..context import Context, Number, Operand, sized

LARGEST_LISTED = 4096
"""Ranges of floats up to so many elements are listed as constants, longer ones computed."""


def constant(value: Number) -> Callable[..., Value]:
    """zeros, ones, empty: one value everywhere."""

    def lower(c: Context, *args: Any, **kwargs: Any) -> Value:
        return c.full(value, c.dims, c.element)

    return lower


def full(c: Context, size: Any, fill_value: Operand, **kwargs: Any) -> Value:
    return c.fill(fill_value, c.type)


def full_like(c: Context, self: Value, fill_value: Operand, **kwargs: Any) -> Value:
    return c.fill(fill_value, c.type)


def new_full(c: Context, self: Value, size: Any, fill_value: Operand, **kwargs: Any) -> Value:
    return c.fill(fill_value, c.type)


def fill(c: Context, self: Value, value: Operand) -> Value:
    return c.fill(value, c.type)


def copy(c: Context, self: Value, src: Operand, non_blocking: bool = False) -> Value:
    """src in the dims and type of self."""
    return c.fill(src, self.tensor)


def scalar_tensor(c: Context, s: Operand, **kwargs: Any) -> Value:
    return c.fill(s, c.type)


def arange(c: Context, start: Number, end: Number, step: Number = 1, **kwargs: Any) -> Value:
    """start, start + step, ... below end."""
    count, element = c.dims[0], c.element
    if element.is_integer:
        numbers = (start, step)
        start, step = (int(v) if isinstance(v, (float, int)) else v for v in numbers)
        values = c.iota((count,), 0, element)
        values = values if step == 1 else c.multiply(values, step)
        return values if start == 0 else c.add(values, start)
    if not isinstance(count, int):
        places = c.multiply(c.convert(c.iota((count,), 0), F64), step)
        return c.convert(c.add(places, start), element)
    if count <= LARGEST_LISTED:
        return c.array(np.float64(start) + np.arange(count) * np.float64(step), element)  # type: ignore[arg-type]
    places = c.convert(c.iota((count,), 0), F32)
    return c.convert(c.add(c.multiply(places, step), start), element)


def arange_to(c: Context, end: Number, **kwargs: Any) -> Value:
    return arange(c, 0, end)


def linspace(c: Context, start: Operand, end: Operand, steps: Any, **kwargs: Any) -> Value:
    """`steps` values from start to end, both included, counted from the nearer end."""
    return c.convert(line_of(c, start, end, sized(steps)), c.element)


def logspace(
    c: Context, start: Operand, end: Operand, steps: Any, base: float = 10.0, **kwargs: Any
) -> Value:
    """base ** linspace(start, end, steps)."""
    line = line_of(c, start, end, sized(steps))
    return c.convert(c("power", c.full(base, line.dims, line.element), line), c.element)


def line_of(c: Context, start: Operand, end: Operand, steps: Dim) -> Value:
    """linspace in f64, or in c128; of whole numbers, where the result is of them."""
    work = C128 if c.element.is_complex else F64
    given = c.element if c.element.is_integer else work
    dims = (steps,)
    low, high = (c.spread(c.convert(c.convert(v, given), work), dims) for v in (start, end))
    last = c.convert(c.size(c.larger(steps - 1, 1), F64), work)
    step = c("divide", c("subtract", high, low), c.spread(last, dims))
    place = c.iota(dims, 0)
    behind = c("subtract", c.spread(c.size(steps - 1), dims), place)
    rising = c("add", low, c("multiply", step, c.convert(place, work)))
    falling = c("subtract", high, c("multiply", step, c.convert(behind, work)))
    near = c.builder.compare("LE", place, behind)
    if isinstance(steps, int) and steps == 1:
        return low
    return c("select", near, rising, falling)


def eye(c: Context, n: int, m: int | None = None, **kwargs: Any) -> Value:
    same = c.builder.compare("EQ", c.iota(c.dims, 0), c.iota(c.dims, 1))
    return c.convert(same, c.element)


def triangle_indices(lower_part: bool) -> Callable[..., Value]:
    """tril_indices and triu_indices: rows and columns of a triangle."""

    def lower(c: Context, row: int, col: int, offset: int = 0, **kwargs: Any) -> Value:
        find = np.tril_indices if lower_part else np.triu_indices
        return c.array(np.stack(find(row, offset, col)), c.element)

    return lower


def size_of(c: Context, self: Value, dim: int) -> Any:
    """A size, as a number or a symbolic dim."""
    return self.dims[dim]


def count_of(c: Context, self: Value) -> Dim:
    result: Dim = 1
    for size in self.dims:
        result *= size
    return result


_ENDS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")

TABLE: dict[str, Callable[..., Any]] = {
    "aten.arange.default": arange_to,
    "aten.arange.start": arange,
    "aten.arange.start_step": arange,
    "aten.copy.default": copy,
    "aten.empty.memory_format": constant(0),
    "aten.empty_like.default": constant(0),
    "aten.empty_permuted.default": constant(0),
    "aten.empty_strided.default": constant(0),
    "aten.eye.default": eye,
    "aten.eye.m": eye,
    "aten.fill.Scalar": fill,
    "aten.fill.Tensor": fill,
    "aten.full.default": full,
    "aten.full_like.default": full_like,
    **{f"aten.linspace.{kind}": linspace for kind in _ENDS},
    **{f"aten.logspace.{kind}": logspace for kind in _ENDS},
    "aten.new_empty.default": constant(0),
    "aten.new_empty_strided.default": constant(0),
    "aten.new_full.default": new_full,
    "aten.new_ones.default": constant(1),
    "aten.new_zeros.default": constant(0),
    "aten.ones.default": constant(1),
    "aten.ones_like.default": constant(1),
    "aten.range.default": arange,
    "aten.range.step": arange,
    "aten.scalar_tensor.default": scalar_tensor,
    "aten.sym_numel.default": count_of,
    "aten.sym_size.int": size_of,
    "aten.tril_indices.default": triangle_indices(True),
    "aten.triu_indices.default": triangle_indices(False),
    "aten.zero.default": constant(0),
    "aten.zeros.default": constant(0),
    "aten.zeros_like.default": constant(0),
}
