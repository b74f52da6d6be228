"""Running reductions along one dimension: cumsum, cummax, logcumsumexp; diff."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.build import build_region
from ....hlo.graph import Region, Value
from ....hlo.types import I64, ElementType, TensorType
from ..context import Context, Number, axis_of, highest, identity, lowest, scalar_region
from .reductions import better


def running_of(c: Context, body: str, x: Value, axis: int) -> Value:
    """The reduction of all elements up to each one, along an axis."""
    name = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
    body = name.get(body, body) if x.element.is_bool else body
    region = scalar_region(x.element, lambda b, before, here: b(body, before, here))
    return _running(c, [x], axis, [identity(body, x.element)], region)[0]


def _running(
    c: Context, values: Sequence[Value], axis: int, starts: Sequence[Number], region: Region
) -> list[Value]:
    """`region` folded over all elements up to each one: a window that ends there."""
    x = values[0]
    size = c.most(x.dims[axis])
    if isinstance(size, int) and size == 0:
        return list(values)
    size = c.larger(size, 1)
    windows, padding = [1] * x.rank, [(0, 0)] * x.rank
    windows[axis], padding[axis] = size, (size - 1, 0)
    initial = [c.scalar(n, v.element) for n, v in zip(starts, values, strict=True)]
    ones = (1,) * x.rank
    facts = {
        "window_dimensions": tuple(windows), "window_strides": ones, "base_dilations": ones,
        "window_dilations": ones, "padding": tuple(padding),
    }  # fmt: skip
    types = [value.tensor for value in values]
    operands = [*values, *initial]
    return list(c.builder.op("reduce_window", operands, facts, [region], types).results)


def running(body: str) -> Callable[..., Value]:
    """cumsum and cumprod; bf16 and f16 accumulate in f32."""

    def lower(c: Context, self: Value, dim: int, dtype: Any = None) -> Value:
        x = c.wide(c.convert(self, c.element))
        if not x.rank:
            return c.narrow(x)
        return c.narrow(running_of(c, body, x, axis_of(dim, x.rank)))

    return lower


def running_extreme(largest: bool) -> Callable[..., tuple[Value, Value | None]]:
    """cummax and cummin: the extreme so far, and the last place where it stands."""

    def lower(c: Context, self: Value, dim: int) -> tuple[Value, Value | None]:
        if not self.rank:
            return self, c.full(0, (), I64)
        axis = axis_of(dim, self.rank)
        if not c.used[1]:
            return running_of(c, "maximum" if largest else "minimum", self, axis), None
        worst = lowest(self.element) if largest else highest(self.element)
        pair = [self, c.iota(self.dims, axis)]
        region = better(largest, self.element, last=True)
        values, places = _running(c, pair, axis, [worst, -1], region)
        return values, places

    return lower


def _log_sum(element: ElementType) -> Region:
    """log(exp(x) + exp(y)) of two scalars; complex ones are ordered by their real parts."""
    scalar = TensorType((), element)

    def body(b: Any, x: Value, y: Value) -> list[Value]:
        left, right = (b("real", v) for v in (x, y)) if element.is_complex else (x, y)
        lower = b.compare("LT", left, right)
        large, small = b("select", lower, y, x), b("select", lower, x, y)
        if not element.is_complex:  # nan wins
            large = b("maximum", x, y)
        grown = b("add", large, b("log_plus_one", b("exponential", b("subtract", small, large))))
        nothing = b.constant(-math.inf, left.tensor)
        top = b("real", large) if element.is_complex else large
        infinite = b.constant(math.inf, left.tensor)
        plain = b("or", b.compare("EQ", top, nothing), b.compare("EQ", top, infinite))
        return [b("select", plain, large, grown)]

    return build_region([scalar, scalar], body)


def log_running_sum(c: Context, self: Value, dim: int) -> Value:
    """logcumsumexp: log(cumsum(exp(self)))."""
    x = c.wide(c.convert(self, c.element))
    if not x.rank:
        return c.narrow(x)
    region = _log_sum(x.element)
    return c.narrow(_running(c, [x], axis_of(dim, x.rank), [-math.inf], region)[0])


def differences(
    c: Context,
    self: Value,
    n: int = 1,
    dim: int = -1,
    prepend: Value | None = None,
    append: Value | None = None,
) -> Value:
    """Each element minus the one before it, n times; self for n = 0."""
    if n == 0:
        return self
    axis = axis_of(dim, self.rank)
    parts = [part for part in (prepend, self, append) if part is not None]
    value = c.concatenate([c.convert(part, c.element) for part in parts], axis)
    for _ in range(n):
        size = value.dims[axis]
        if isinstance(size, int) and size == 0:
            break
        value = differences_of(c, value, axis)
    return value


def differences_of(c: Context, x: Value, axis: int) -> Value:
    """Each element but the first less the one before it."""
    size = x.dims[axis]
    after, before = c.slice(x, axis, 1, size), c.slice(x, axis, 0, size - 1)
    return c("xor" if x.element.is_bool else "subtract", after, before)


TABLE: dict[str, Callable[..., Any]] = {
    "aten.cummax.default": running_extreme(True),
    "aten.cummin.default": running_extreme(False),
    "aten.cumprod.default": running("multiply"),
    "aten.cumsum.default": running("add"),
    "aten.diff.default": differences,
    "aten.logcumsumexp.default": log_running_sum,
}
