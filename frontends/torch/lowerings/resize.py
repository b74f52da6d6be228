"""Resizing: nearest, linear, cubic and antialiased interpolation, and what they give back to
gradients, one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import F32, F64, I32, I64
from ..context import Blocked, Context, highest, lowest, sized, static
from .indexing import take, take_axis
from .scatters import index_add

Array = np.ndarray[Any, Any]


class AxisNumbers:
    """Numbers along one dimension that the program computes, with the operators of an array: places
    and shares where a call decides the sizes are the same formulas as where they are known."""

    def __init__(self, c: Context, value: Value) -> None:
        self.c, self.value = c, value

    def _with(self, name: str, other: Any, turned: bool = False) -> AxisNumbers:
        other = other.value if isinstance(other, AxisNumbers) else other
        other = self.c.fill(other, self.value.tensor)
        pair = (other, self.value) if turned else (self.value, other)
        return AxisNumbers(self.c, self.c(name, *pair))

    def __add__(self, other: Any) -> AxisNumbers:
        return self._with("add", other)

    def __sub__(self, other: Any) -> AxisNumbers:
        return self._with("subtract", other)

    def __rsub__(self, other: Any) -> AxisNumbers:
        return self._with("subtract", other, turned=True)

    def __mul__(self, other: Any) -> AxisNumbers:
        return self._with("multiply", other)

    __radd__, __rmul__ = __add__, __mul__

    def astype(self, kind: Any) -> AxisNumbers:
        return AxisNumbers(self.c, self.c.convert(self.value, I64 if kind is np.int64 else F32))


Numbers = Array | AxisNumbers


def _lowest(x: Numbers, limit: Any) -> Any:
    """The smaller one of each number and the limit."""
    if not isinstance(x, AxisNumbers):
        return np.minimum(x, limit)
    return x._with("minimum", limit)


def _highest(x: Numbers, limit: Any) -> Any:
    return x._with("maximum", limit) if isinstance(x, AxisNumbers) else np.maximum(x, limit)


def _floor(x: Numbers) -> Any:
    return AxisNumbers(x.c, x.c("floor", x.value)) if isinstance(x, AxisNumbers) else np.floor(x)


def _places(c: Context, size: Dim, out: Dim) -> Any:
    """0, 1, ... below out, in float32."""
    if isinstance(size, int) and isinstance(out, int):
        return np.arange(out, dtype=np.float32)
    return AxisNumbers(c, c.iota((out,), 0, F32))


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


Terms = Sequence[tuple[Any, Any]]
"""(positions, weights) along one dimension: a result is the sum of x at the positions times the
weights; None: ones."""


class ResizeKind(NamedTuple):
    """A way to resize: `terms(c, size, out, scale, corners)` along one dimension."""

    terms: Callable[[Context, Dim, Dim, float | None, bool], Terms]
    exact: bool = False  # whether values are copied, so that any type is its own


def _nearest_terms(middle: bool) -> Callable[..., Terms]:
    def terms(c: Context, size: Dim, out: Dim, scale: float | None, corners: bool) -> Terms:
        step = np.float32(1 / scale) if scale else _step(c, size, out, False)
        places = _places(c, size, out) + np.float32(0.5 if middle else 0)
        return [(_lowest(_floor(places * step).astype(np.int64), size - 1), None)]

    return terms


def _repeated(c: Context, x: Value, axis: int, out: Dim, scale: float | None) -> Value | None:
    """Each element as often as `out` is larger; None where that is no whole number."""
    size = x.dims[axis]
    factor = out // size if size != 0 else 0
    if not isinstance(factor, int) or factor * size != out or scale not in (None, factor):
        return None
    wide = (*x.dims[: axis + 1], factor, *x.dims[axis + 1 :])
    mapped = [*range(axis + 1), *range(axis + 2, len(wide))]
    dims = (*x.dims[:axis], out, *x.dims[axis + 1 :])
    return c.builder.reshape(c.builder.broadcast(x, wide, mapped), dims)


def _linear_terms(c: Context, size: Dim, out: Dim, scale: float | None, corners: bool) -> Terms:
    places = _highest(_source(c, size, out, scale, corners), 0)
    low = _lowest(places.astype(np.int64), size - 1)
    high = _lowest(low + 1, size - 1)
    share = _lowest(_highest(places - low.astype(np.float32), 0), 1)
    return [(low, 1 - share), (high, share)]


def _cubic_terms(c: Context, size: Dim, out: Dim, scale: float | None, corners: bool) -> Terms:
    a = -0.75
    places = _source(c, size, out, scale, corners)
    base = _floor(places)
    t = places - base

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    return [
        (_lowest(_highest(base.astype(np.int64) + offset, 0), size - 1), weight.astype(np.float32))
        for offset, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]


def _smoothed_terms(filter: Callable[[Array], Array], reach: int) -> Callable[..., Terms]:
    """Antialiased: the filter is stretched where the image shrinks, its weights add up to 1."""

    def terms(c: Context, size: Dim, out: Dim, scale: float | None, corners: bool) -> Terms:
        size, out = static(size), static(out)
        if corners:
            step = (size - 1) / (out - 1) if out > 1 else 0.0
        else:
            step = 1 / scale if scale else size / out
        support = reach * max(step, 1.0)
        centre = step * (np.arange(out) + 0.5)
        first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
        last = np.minimum((centre + support + 0.5).astype(np.int64), size)
        places = first[:, None] + np.arange(max(int((last - first).max(initial=0)), 1))
        away = (places - centre[:, None] + 0.5) / max(step, 1.0)
        weights = np.where(places < last[:, None], filter(away), 0.0)
        weights /= weights.sum(1, keepdims=True)
        places = np.minimum(places, size - 1)
        return [(places[:, n], weights[:, n]) for n in range(places.shape[1])]

    return terms


def _triangle(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0)


def _keys(x: Array) -> Array:
    """The cubic filter with a = -0.5, which antialiased images use."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Array) -> Array:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


LINEAR, CUBIC = ResizeKind(_linear_terms), ResizeKind(_cubic_terms)
NEAREST, MIDDLE = ResizeKind(_nearest_terms(False), True), ResizeKind(_nearest_terms(True), True)
SMOOTH = {
    "bilinear": ResizeKind(_smoothed_terms(_triangle, 1)),
    "bicubic": ResizeKind(_smoothed_terms(_keys, 2)),
    "lanczos": ResizeKind(_smoothed_terms(_lanczos, 3)),
}  # fmt: skip


def _taken(c: Context, x: Value, axis: int, positions: Numbers) -> Value:
    if isinstance(positions, AxisNumbers):
        return take(c, x, positions.value, axis, wrap=False)
    return take_axis(c, x, axis, positions.tolist())


_FEW = 4
"""Terms up to which their sum is written out; more are a product with a matrix of their weights."""


def _weighted(c: Context, x: Value, axis: int, terms: Terms) -> Value:
    """The sum over (positions, weights) of x at the positions times the weights."""
    if len(terms) > _FEW:
        return product_along(c, x, axis, _matrix(terms, static(x.dims[axis])))
    total: Value | None = None
    for positions, weights in terms:
        part = _taken(c, x, axis, positions)
        if weights is not None:
            part = c(
                "multiply", part, c.builder.broadcast(_numbers(c, weights, x), part.dims, [axis])
            )
        total = part if total is None else c("add", total, part)
    assert total is not None
    return total


def _numbers(c: Context, weights: Numbers, like: Value) -> Value:
    if isinstance(weights, AxisNumbers):
        return c.convert(weights.value, like.element)
    return c.array(weights, like.element)


def _matrix(terms: Terms, size: int) -> Array:
    """[out, size]: the weight of each element for each result."""
    out = len(terms[0][0])
    matrix = np.zeros((out, size))
    for positions, weights in terms:
        np.add.at(matrix, (np.arange(out), positions), 1.0 if weights is None else weights)
    return matrix


def product_along(c: Context, x: Value, axis: int, matrix: Array) -> Value:
    """matrix [out, size] times x along an axis."""
    dot = c.dot(x, c.array(matrix, x.element), ((axis,), (1,)))
    order = list(range(x.rank - 1))
    order.insert(axis, x.rank - 1)
    return c.builder.transpose(dot, order)


def _scales(scales: Any, count: int) -> list[float | None]:
    given = [None] * count if scales is None else list(scales)
    if any(isinstance(scale, Value) for scale in given):
        # The quotient of sizes that PyTorch takes without it, too.
        raise Blocked("resizes by a factor that the program computes", "resize to a size")
    return [None if s is None or not math.isfinite(s) else float(s) for s in given]


def _resized(c: Context, self: Value, kind: ResizeKind, corners: bool, scales: Any) -> Value:
    """Every spatial dimension that the declared result resizes, the last one first; whole numbers
    are rounded after each, as PyTorch does."""
    x = self if kind.exact else c.wide(self)
    rounds = not kind.exact and not x.element.is_float
    for axis, scale in reversed([*enumerate(_scales(scales, self.rank - 2), 2)]):
        size, out = x.dims[axis], sized(c.dims[axis])
        if size == out and scale in (None, 1):
            continue
        repeated = _repeated(c, x, axis, out, scale) if kind.exact else None
        if repeated is not None:
            x = repeated
            continue
        terms = kind.terms(c, size, out, scale, corners)
        x = _rounded(c, x, axis, terms) if rounds else _weighted(c, x, axis, terms)
    return c.narrow(x)


def _rounded(c: Context, x: Value, axis: int, terms: Terms) -> Value:
    """The sum of whole numbers by weights, in PyTorch's fixed point: weights of 16 bits, of which
    as many stand behind the point as the largest one allows; where a call decides sizes, f32."""
    if isinstance(terms[0][0], AxisNumbers):
        total = c("round_nearest_even", _weighted(c, c.convert(x, F32), axis, terms))
    else:
        matrix = _matrix(terms, static(x.dims[axis]))
        largest, digits = matrix.max(initial=0), 0
        while digits < 22 and int(0.5 + largest * (1 << (digits + 1))) < 1 << 15:
            digits += 1
        weights = np.trunc(matrix * (1 << digits) + np.where(matrix < 0, -0.5, 0.5))
        total = product_along(c, c.convert(x, I32), axis, weights)
        total = c.add(total, (1 << digits) >> 1)
        total = c("shift_right_arithmetic", total, c.full(digits, total.dims, I32))
    ends = [c.scalar(end(c.element), total.element) for end in (lowest, highest)]
    return c.convert(c("clamp", ends[0], total, ends[1]), c.element)


def _gradient(c: Context, grad: Value, kind: ResizeKind, corners: bool, scales: Any) -> Value:
    """What each element of the result has taken, given back: the transposed product."""
    x = c.wide(grad)
    for axis, scale in enumerate(_scales(scales, grad.rank - 2), 2):
        size, out = sized(c.dims[axis]), x.dims[axis]
        if size == out and scale in (None, 1):
            continue
        terms = kind.terms(c, size, out, scale, corners)
        if not isinstance(terms[0][0], AxisNumbers):
            x = product_along(c, x, axis, _matrix(terms, static(size)).T)
            continue
        total = c.full(0, (*x.dims[:axis], size, *x.dims[axis + 1 :]), x.element)
        for positions, weights in terms:
            part = x
            if weights is not None:
                line = c.builder.broadcast(_numbers(c, weights, x), x.dims, [axis])
                part = c("multiply", x, line)
            total = index_add(c, total, axis, positions.value, part)
        x = total
    return c.narrow(x)


def resize(kind: ResizeKind, has_corners: bool, by_vector: bool) -> Callable[..., Value]:
    """upsample_KINDNd: (self, output size, corners where the kind knows them, scales)."""

    def lower(c: Context, self: Value, output_size: Any, *rest: Any, **named: Any) -> Value:
        corners, scales = _rest(rest, named, has_corners, by_vector)
        return _resized(c, self, kind, corners, scales)

    return lower


def gradient(kind: ResizeKind, has_corners: bool) -> Callable[..., Value]:
    """upsample_KINDNd_backward: (gradient, output size, input size, corners, scales)."""

    def lower(
        c: Context, grad_output: Value, output_size: Any, input_size: Any, *rest: Any, **named: Any
    ) -> Value:
        corners, scales = _rest(rest, named, has_corners, False)
        return _gradient(c, grad_output, kind, corners, scales)

    return lower


def _rest(
    rest: Sequence[Any], named: Mapping[str, Any], has_corners: bool, by_vector: bool
) -> tuple[bool, Any]:
    """Whether corners are aligned, and the scales."""
    given = [*rest, *named.values()]
    corners = bool(given.pop(0)) if has_corners else False
    if by_vector:
        return corners, given[0] if given else None
    return corners, given or None


_OVERLOADS = {"default": False, "vec": True}
_KINDS = {
    **{f"upsample_nearest{n}d": (NEAREST, False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": (MIDDLE, False) for n in (1, 2, 3)},
    "upsample_linear1d": (LINEAR, True), "upsample_bilinear2d": (LINEAR, True),
    "upsample_trilinear3d": (LINEAR, True), "upsample_bicubic2d": (CUBIC, True),
    **{f"_upsample_{name}2d_aa": (kind, True) for name, kind in SMOOTH.items()},
}  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}.{overload}": resize(kind, corners, by_vector)
       for name, (kind, corners) in _KINDS.items()
       for overload, by_vector in _OVERLOADS.items()},
    **{f"aten.{name}_backward.default": gradient(kind, corners)
       for name, (kind, corners) in _KINDS.items()},
}  # fmt: skip
