"""Sorting: sort, argsort, topk, kthvalue; nan counts as the largest value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.build import build_region
from ....hlo.graph import Region, Value
from ....hlo.types import I64, ElementType, TensorType
from ..context import Context, axis_of, static


def _before(element: ElementType, descending: bool) -> Region:
    """Whether one (value, position) pair stands before another."""
    scalar, position = TensorType((), element), TensorType((), I64)

    def body(b: Any, left: Value, right: Value, *positions: Value) -> list[Value]:
        if descending:
            left, right = right, left
        less = b.compare("LT", left, right)
        if element.is_float:
            rising = b("and", b.compare("NE", right, right), b.compare("EQ", left, left))
            less = b("or", less, rising)
        return [less]

    return build_region([scalar, scalar, position, position], body)


def sorted_along(c: Context, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """Sorted values and where they came from; equal values keep their order."""
    op = c.builder.op(
        "sort", [x, c.iota(x.dims, axis)], {"dimension": axis, "is_stable": True},
        [_before(x.element, descending)],
    )  # fmt: skip
    return op.results[0], op.results[1]


def sort(
    c: Context,
    self: Value,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = None,
) -> tuple[Value, Value]:
    if not self.rank:
        return self, c.full(0, (), I64)
    return sorted_along(c, self, axis_of(dim, self.rank), descending)


def sort_stable(
    c: Context, self: Value, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return sort(c, self, dim, descending)


def argsort(
    c: Context, self: Value, dim: int = -1, descending: bool = False, stable: bool = False
) -> Value:
    return sort(c, self, dim, descending)[1]


def topk(
    c: Context, self: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """The k largest (or smallest) values along one dimension, best first, and their positions."""
    if not self.rank:
        return self, c.full(0, (), I64)
    axis = axis_of(dim, self.rank)
    values, places = sorted_along(c, self, axis, largest)
    count = static(k)
    return c.slice(values, axis, 0, count), c.slice(places, axis, 0, count)


def kthvalue(
    c: Context, self: Value, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    """The k-th smallest value along one dimension, and its position."""
    axis = axis_of(dim, self.rank)
    parts = sorted_along(c, self, axis, False)
    values, places = (c.slice(part, axis, k - 1, k) for part in parts)
    return c.builder.reshape(values, c.dims), c.builder.reshape(places, c.dims)


TABLE: dict[str, Callable[..., Any]] = {
    "aten.argsort.default": argsort,
    "aten.argsort.stable": argsort,
    "aten.kthvalue.default": kthvalue,
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.topk.default": topk,
}
