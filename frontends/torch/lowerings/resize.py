"""Resizing: nearest, linear and cubic interpolation, one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ..context import Context, static
from .indexing import take_axis

Array = np.ndarray[Any, Any]


def _source(size: int, out: int, scale: float | None, corners: bool) -> Array:
    """Where each result element lies among the source's, in float32 as PyTorch computes it."""
    places = np.arange(out, dtype=np.float32)
    if corners:
        step = np.float32((size - 1) / (out - 1)) if out > 1 else np.float32(0)
        return places * step
    step = np.float32(1 / scale) if scale else np.float32(size / out)
    return (places + np.float32(0.5)) * step - np.float32(0.5)


def _nearest_axis(
    c: Context, x: Value, axis: int, out: int, scale: float | None, exact: bool
) -> Value:
    size = static(x.dims[axis])
    if size == out:
        return x
    if out % size == 0 and (scale is None or scale == out // size):
        factor = out // size
        wide = (*x.dims[: axis + 1], factor, *x.dims[axis + 1 :])
        mapped = [*range(axis + 1), *range(axis + 2, len(wide))]
        dims = (*x.dims[:axis], out, *x.dims[axis + 1 :])
        return c.builder.reshape(c.builder.broadcast(x, wide, mapped), dims)
    step = np.float32(1 / scale) if scale else np.float32(size / out)
    places = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
    positions = np.minimum(np.floor(places * step).astype(np.int64), size - 1)
    return take_axis(c, x, axis, positions.tolist())


def _weighted(c: Context, x: Value, axis: int, terms: Sequence[tuple[Array, Array]]) -> Value:
    """The sum over (positions, weights) of x at the positions times the weights."""
    total: Value | None = None
    for positions, weights in terms:
        part = take_axis(c, x, axis, positions.tolist())
        factor = c.builder.broadcast(c.array(weights, x.element), part.dims, [axis])
        part = c("multiply", part, factor)
        total = part if total is None else c("add", total, part)
    assert total is not None
    return total


def _linear_axis(
    c: Context, x: Value, axis: int, out: int, scale: float | None, corners: bool
) -> Value:
    size = static(x.dims[axis])
    if size == out and (scale is None or scale == 1):
        return x
    places = np.maximum(_source(size, out, scale, corners), 0)
    low = np.minimum(places.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.clip(places - low.astype(np.float32), 0, 1)
    return _weighted(c, x, axis, [(low, 1 - share), (high, share)])


def _cubic_axis(
    c: Context, x: Value, axis: int, out: int, scale: float | None, corners: bool
) -> Value:
    size, a = static(x.dims[axis]), -0.75
    if size == out and (scale is None or scale == 1):
        return x
    places = _source(size, out, scale, corners)
    base = np.floor(places)
    t = places - base

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    terms = [
        (np.clip(base.astype(np.int64) + offset, 0, size - 1), weight.astype(np.float32))
        for offset, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]
    return _weighted(c, x, axis, terms)


def _along(
    c: Context, self: Value, scales: Any, each: Callable[[Value, int, int, float | None], Value]
) -> Value:
    """`each` applied to every spatial dimension that the declared result resizes."""
    count = self.rank - 2
    given = [None] * count if scales is None else list(scales)
    x = self
    for number in range(count):
        axis = number + 2
        scale = given[number]
        scale = None if scale is None or not math.isfinite(scale) else float(scale)
        x = each(x, axis, static(c.dims[axis]), scale)
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
