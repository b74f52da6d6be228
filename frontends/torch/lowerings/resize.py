"""Resizing: nearest, linear and cubic interpolation, one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import F32, F64, I64
from ..context import Blocked, Context, sized
from .indexing import take, take_axis

Array = np.ndarray[Any, Any]


class Line:
    """Numbers along one dimension that the program computes, with the operators of an array: places
    and shares where a call decides the sizes are the same formulas as where they are known."""

    def __init__(self, c: Context, value: Value) -> None:
        self.c, self.value = c, value

    def _with(self, name: str, other: Any, turned: bool = False) -> Line:
        other = other.value if isinstance(other, Line) else other
        other = self.c.fill(other, self.value.tensor)
        pair = (other, self.value) if turned else (self.value, other)
        return Line(self.c, self.c(name, *pair))

    def __add__(self, other: Any) -> Line:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Line:
        return self._with("subtract", other)

    def __rsub__(self, other: Any) -> Line:
        return self._with("subtract", other, turned=True)

    def __mul__(self, other: Any) -> Line:
        return self._with("multiply", other)

    __radd__, __rmul__ = __add__, __mul__

    def astype(self, kind: Any) -> Line:
        return Line(self.c, self.c.convert(self.value, I64 if kind is np.int64 else F32))


Numbers = Array | Line


def _lowest(x: Numbers, limit: Any) -> Any:
    """The smaller one of each number and the limit."""
    if not isinstance(x, Line):
        return np.minimum(x, limit)
    return x._with("minimum", limit)


def _highest(x: Numbers, limit: Any) -> Any:
    return x._with("maximum", limit) if isinstance(x, Line) else np.maximum(x, limit)


def _floor(x: Numbers) -> Any:
    return Line(x.c, x.c("floor", x.value)) if isinstance(x, Line) else np.floor(x)


def _places(c: Context, size: Dim, out: Dim) -> Any:
    """0, 1, ... below out, in float32."""
    if isinstance(size, int) and isinstance(out, int):
        return np.arange(out, dtype=np.float32)
    return Line(c, c.iota((out,), 0, F32))


def _step(c: Context, size: Dim, out: Dim, corners: bool) -> Any:
    """How far apart results lie among the source: computed in float64, rounded to float32."""
    span, count = (size - 1, out - 1) if corners else (size, out)
    if isinstance(span, int) and isinstance(count, int):
        return np.float32(span / count) if count > 0 else np.float32(0)
    quotient = c("divide", c.size(span, F64), c.size(c.larger(count, 1), F64))
    return c.convert(quotient, F32)


def _source(c: Context, size: Dim, out: Dim, scale: float | None, corners: bool) -> Any:
    """Where each result element lies among the source's, in float32 as PyTorch computes it."""
    places = _places(c, size, out)
    if corners:
        return places * _step(c, size, out, True)
    step = np.float32(1 / scale) if scale else _step(c, size, out, False)
    return (places + np.float32(0.5)) * step - np.float32(0.5)


def _nearest_axis(
    c: Context, x: Value, axis: int, out: Dim, scale: float | None, exact: bool
) -> Value:
    size = x.dims[axis]
    if size == out:
        return x
    factor = out // size
    if isinstance(factor, int) and factor * size == out and scale in (None, factor):
        wide = (*x.dims[: axis + 1], factor, *x.dims[axis + 1 :])
        mapped = [*range(axis + 1), *range(axis + 2, len(wide))]
        dims = (*x.dims[:axis], out, *x.dims[axis + 1 :])
        return c.builder.reshape(c.builder.broadcast(x, wide, mapped), dims)
    step = np.float32(1 / scale) if scale else _step(c, size, out, False)
    places = _places(c, size, out) + np.float32(0.5 if exact else 0)
    return _taken(c, x, axis, _lowest(_floor(places * step).astype(np.int64), size - 1))


def _taken(c: Context, x: Value, axis: int, positions: Numbers) -> Value:
    if isinstance(positions, Line):
        return take(c, x, positions.value, axis, wrap=False)
    return take_axis(c, x, axis, positions.tolist())


def _weighted(c: Context, x: Value, axis: int, terms: Sequence[tuple[Any, Any]]) -> Value:
    """The sum over (positions, weights) of x at the positions times the weights."""
    total: Value | None = None
    for positions, weights in terms:
        part = _taken(c, x, axis, positions)
        if isinstance(weights, Line):
            line = c.convert(weights.value, x.element)
        else:
            line = c.array(weights, x.element)
        factor = c.builder.broadcast(line, part.dims, [axis])
        part = c("multiply", part, factor)
        total = part if total is None else c("add", total, part)
    assert total is not None
    return total


def _linear_axis(
    c: Context, x: Value, axis: int, out: Dim, scale: float | None, corners: bool
) -> Value:
    size = x.dims[axis]
    if size == out and (scale is None or scale == 1):
        return x
    places = _highest(_source(c, size, out, scale, corners), 0)
    low = _lowest(places.astype(np.int64), size - 1)
    high = _lowest(low + 1, size - 1)
    share = _lowest(_highest(places - low.astype(np.float32), 0), 1)
    return _weighted(c, x, axis, [(low, 1 - share), (high, share)])


def _cubic_axis(
    c: Context, x: Value, axis: int, out: Dim, scale: float | None, corners: bool
) -> Value:
    size, a = x.dims[axis], -0.75
    if size == out and (scale is None or scale == 1):
        return x
    places = _source(c, size, out, scale, corners)
    base = _floor(places)
    t = places - base

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    terms = [
        (_lowest(_highest(base.astype(np.int64) + offset, 0), size - 1), weight.astype(np.float32))
        for offset, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]
    return _weighted(c, x, axis, terms)


def _along(
    c: Context, self: Value, scales: Any, each: Callable[[Value, int, Dim, float | None], Value]
) -> Value:
    """`each` applied to every spatial dimension that the declared result resizes."""
    count = self.rank - 2
    given = [None] * count if scales is None else list(scales)
    x = self
    for number in range(count):
        axis = number + 2
        scale = given[number]
        if isinstance(scale, Value):  # the quotient of sizes that PyTorch takes without it, too
            raise Blocked("resizes by a factor that the program computes", "resize to a size")
        scale = None if scale is None or not math.isfinite(scale) else float(scale)
        x = each(x, axis, sized(c.dims[axis]), scale)
    return x


def nearest(exact: bool, by_vector: bool) -> Callable[..., Value]:
    """upsample_nearestNd and _upsample_nearest_exactNd."""

    def resize(c: Context, self: Value, scales: Any) -> Value:
        return _along(
            c, self, scales, lambda x, axis, out, s: _nearest_axis(c, x, axis, out, s, exact)
        )

    def vector(c: Context, input: Value, output_size: Any, scale_factors: Any = None) -> Value:
        return resize(c, input, scale_factors)

    def plain(c: Context, self: Value, output_size: Any, *scales: Any, **named: Any) -> Value:
        return resize(c, self, [*scales, *named.values()] or None)

    return vector if by_vector else plain


def smooth(axis_body: Callable[..., Value], by_vector: bool) -> Callable[..., Value]:
    """upsample_linear1d, upsample_bilinear2d, upsample_trilinear3d, upsample_bicubic2d."""

    def resize(c: Context, self: Value, corners: bool, scales: Any) -> Value:
        x = c.wide(self)
        result = _along(
            c, x, scales, lambda v, axis, out, s: axis_body(c, v, axis, out, s, corners)
        )
        return c.narrow(result)

    def vector(
        c: Context, input: Value, output_size: Any, align_corners: bool, scale_factors: Any = None
    ) -> Value:
        return resize(c, input, align_corners, scale_factors)

    def plain(
        c: Context, self: Value, output_size: Any, align_corners: bool, *scales: Any, **named: Any
    ) -> Value:
        return resize(c, self, align_corners, [*scales, *named.values()] or None)

    return vector if by_vector else plain


_KINDS = {"default": False, "vec": True}

TABLE: dict[str, Callable[..., Any]] = {
    **{
        f"aten.{prefix}{n}d.{kind}": nearest(exact, by_vector)
        for prefix, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True))
        for n in (1, 2, 3)
        for kind, by_vector in _KINDS.items()
    },
    **{
        f"aten.upsample_{name}.{kind}": smooth(body, by_vector)
        for name, body in (
            ("linear1d", _linear_axis), ("bilinear2d", _linear_axis),
            ("trilinear3d", _linear_axis), ("bicubic2d", _cubic_axis),
        )
        for kind, by_vector in _KINDS.items()
    },
}  # fmt: skip
