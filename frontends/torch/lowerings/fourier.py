"""Discrete Fourier transforms, one dimension after the other; windows and frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import C64, C128, F64, real_type
from ..context import Blocked, Context, axes_of, axis_of
from .views import roll

_SCALES: tuple[Callable[[int], float], ...] = (
    lambda n: 1,
    lambda n: 1 / math.sqrt(n),
    lambda n: 1 / n,
)
"""The factor of PyTorch's normalisations 0 (none), 1 (by root of n) and 2 (by n)."""


def _along(c: Context, x: Value, axis: int, kind: str, length: int) -> Value:
    """The transform of `kind` along one axis; its length as `fft_length` counts it."""
    order = [d for d in range(x.rank) if d != axis] + [axis]
    last = c.builder.transpose(x, order)
    result = c("fft", last, fft_type=kind, fft_length=(length,))
    return c.builder.transpose(result, sorted(range(x.rank), key=order.__getitem__))


def _scaled(c: Context, x: Value, normalization: int, inverse: bool, count: int) -> Value:
    """HLO's inverse divides by n, PyTorch's does not by itself."""
    factor = _SCALES[normalization](count) * (count if inverse else 1)
    return x if factor == 1 else c.multiply(x, factor)


def _length(size: Any) -> int:
    """How many elements a transform has: its formulas are those of a number."""
    if not isinstance(size, int):
        raise Blocked(
            f"transforms {size} elements, of which each call has others",
            "give example inputs that fix it, or pad to a length by n=",
        )
    return size


def complex_to_complex(
    c: Context, self: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    axes = [axis_of(axis, self.rank) for axis in dim]
    result = self
    for axis in axes:
        size = _length(self.dims[axis])
        result = _along(c, result, axis, "FFT" if forward else "IFFT", size)
    return _scaled(c, result, normalization, not forward, c.count(self.dims, axes))


def real_to_complex(
    c: Context, self: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    """The last of `dim` is halved, unless the other half is wanted as well."""
    axes = [axis_of(axis, self.rank) for axis in dim]
    count = c.count(self.dims, axes)
    if not onesided:
        result = c.convert(self, c.element)
        for axis in axes:
            result = _along(c, result, axis, "FFT", _length(self.dims[axis]))
        return _scaled(c, result, normalization, False, count)
    result = _along(c, self, axes[-1], "RFFT", _length(self.dims[axes[-1]]))
    for axis in axes[:-1]:
        result = _along(c, result, axis, "FFT", _length(self.dims[axis]))
    return _scaled(c, result, normalization, False, count)


def complex_to_real(
    c: Context, self: Value, dim: Sequence[int], normalization: int, last_dim_size: Any
) -> Value:
    """The inverse of a halved transform, with `last_dim_size` elements in the last of `dim`."""
    axes = [axis_of(axis, self.rank) for axis in dim]
    result, size = self, _length(last_dim_size)
    for axis in axes[:-1]:
        result = _along(c, result, axis, "IFFT", _length(self.dims[axis]))
    result = c.slice(result, axes[-1], 0, size // 2 + 1)
    result = _along(c, result, axes[-1], "IRFFT", size)
    return _scaled(c, result, normalization, True, c.count(self.dims, axes[:-1]) * size)


# torch.fft.

_INVERSE_SCALES = {None: 2, "backward": 2, "ortho": 1, "forward": 0}


def _normalization(norm: str | None, forward: bool) -> int:
    """The number of a normalisation by its name in torch.fft."""
    return 2 - _INVERSE_SCALES[norm] if forward else _INVERSE_SCALES[norm]


def _complex(c: Context, value: Value) -> Value:
    """The numbers as complex ones as wide as the result's parts."""
    wide = C128 if real_type(c.element) is F64 else C64
    return c.convert(value, wide)


def _resized(c: Context, x: Value, axes: Sequence[int], sizes: Sequence[int | None]) -> Value:
    """x cut, or padded by zeros at the end, to these sizes; None and -1 keep what there is."""
    pads = [(0, 0, 0)] * x.rank
    for axis, size in zip(axes, sizes, strict=True):
        if size is not None and size != -1:
            pads[axis] = (0, size - x.dims[axis], 0)  # type: ignore[assignment]
    return c.pad(x, 0, pads)


Shape = Sequence[int] | None


def _shape(x: Value, s: Shape, dim: Shape) -> tuple[list[int], list[int | None]]:
    """Axes and sizes of a transform over several dimensions: all of them, or the last."""
    if dim is None:
        dim = range(0 if s is None else x.rank - len(s), x.rank)
    axes = [axis_of(axis, x.rank) for axis in dim]
    return axes, [None] * len(axes) if s is None else list(s)


Transform = Callable[[Context, Value, list[int], list[int | None], str | None], Value]


def _complex_transform(forward: bool) -> Transform:
    """fft and ifft: of complex numbers, or of real ones as such."""

    def body(
        c: Context, x: Value, axes: list[int], sizes: list[int | None], norm: str | None
    ) -> Value:
        x = _resized(c, _complex(c, x), axes, sizes)
        return complex_to_complex(c, x, axes, _normalization(norm, forward), forward)

    return body


def _halved_transform(forward: bool) -> Transform:
    """rfft and, the inverse, ihfft: of real numbers, without the half that mirrors the other."""

    def body(
        c: Context, x: Value, axes: list[int], sizes: list[int | None], norm: str | None
    ) -> Value:
        scale = _normalization(norm, forward)
        x = _resized(c, c.convert(x, real_type(c.element)), axes, sizes)
        if forward:
            return real_to_complex(c, x, axes, scale, True)
        half = c("chlo.conj", real_to_complex(c, x, axes[-1:], scale, True))
        return complex_to_complex(c, half, axes[:-1], scale, False)

    return body


def _mirrored_transform(forward: bool) -> Transform:
    """irfft and, not the inverse, hfft: real numbers of a half that mirrors the other."""

    def body(
        c: Context, x: Value, axes: list[int], sizes: list[int | None], norm: str | None
    ) -> Value:
        scale = _normalization(norm, forward)
        last = sizes[-1]
        if last is None or last == -1:
            last = 2 * (_length(x.dims[axes[-1]]) - 1)
        x = _resized(c, _complex(c, x), axes, [*sizes[:-1], last // 2 + 1])
        if not forward:
            return complex_to_real(c, x, axes, scale, last)
        x = c("chlo.conj", complex_to_complex(c, x, axes[:-1], scale, True))
        return complex_to_real(c, x, axes[-1:], scale, last)

    return body


def along_one(body: Transform) -> Callable[..., Value]:
    def lower(
        c: Context, self: Value, n: int | None = None, dim: int = -1, norm: str | None = None
    ) -> Value:
        return body(c, self, [axis_of(dim, self.rank)], [n], norm)

    return lower


def along_several(body: Transform, usual: Shape) -> Callable[..., Value]:
    """`usual`: the dimensions where none are given."""

    def lower(
        c: Context, self: Value, s: Shape = None, dim: Shape = usual, norm: str | None = None
    ) -> Value:
        return body(c, self, *_shape(self, s, dim), norm)

    return lower


_TRANSFORMS: dict[str, Transform] = {
    "fft": _complex_transform(True), "ifft": _complex_transform(False),
    "rfft": _halved_transform(True), "ihfft": _halved_transform(False),
    "irfft": _mirrored_transform(False), "hfft": _mirrored_transform(True),
}  # fmt: skip


def shifted(inverse: bool) -> Callable[..., Value]:
    """fftshift, after which frequency 0 stands in the middle, and what undoes it."""

    def lower(c: Context, self: Value, dim: Any = None) -> Value:
        axes = axes_of(dim, self.rank)
        moves = [(self.dims[axis] + inverse) // 2 for axis in axes]
        return roll(c, self, moves, axes) if axes else self

    return lower


# Windows and frequencies.


def window(values: Callable[..., np.ndarray[Any, Any]]) -> Callable[..., Value]:
    """hann_window and its like: `values(places, count, *numbers)`; a periodic one is that of one
    element more, without it."""

    def lower(
        c: Context, window_length: Any, periodic: bool = True, *numbers: float, **kwargs: Any
    ) -> Value:
        count = _length(window_length)
        if count < 2:
            return c.full(1, c.dims, c.element)
        span = count if periodic else count - 1
        given = [*numbers, *(kwargs[name] for name in ("alpha", "beta") if name in kwargs)]
        return c.array(values(np.arange(count), span, *given), c.element)

    return lower


def _raised_cosine(alpha: float, beta: float) -> Callable[..., np.ndarray[Any, Any]]:
    def values(at: Any, span: int, alpha: float = alpha, beta: float = beta) -> Any:
        return alpha - beta * np.cos(2 * np.pi * at / span)

    return values


def _bartlett(at: Any, span: int) -> Any:
    return 1 - np.abs(2 * at / span - 1)


def _blackman(at: Any, span: int) -> Any:
    angle = 2 * np.pi * at / span
    return 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle)


def _kaiser(at: Any, span: int, beta: float = 12.0) -> Any:
    return np.i0(beta * np.sqrt(np.maximum(1 - (2 * at / span - 1) ** 2, 0))) / np.i0(beta)


# name: values, and the overloads that it has beside `default` and `periodic`
_WINDOWS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "bartlett": (_bartlett, ()),
    "blackman": (_blackman, ()),
    "hamming": (_raised_cosine(0.54, 0.46), ("periodic_alpha", "periodic_alpha_beta")),
    "hann": (_raised_cosine(0.5, 0.5), ()),
    "kaiser": (_kaiser, ("beta",)),
}


def frequencies(whole: bool) -> Callable[..., Value]:
    """fftfreq, or rfftfreq without the negative half: cycles per unit of `d` between samples."""

    def lower(c: Context, n: Dim, d: float = 1.0, **kwargs: Any) -> Value:
        at = c.iota(c.dims, 0)
        if whole:
            count = c.spread(c.size(n), c.dims)
            at = c(
                "select", c.compare("LT", c.multiply(at, 2), count), at, c("subtract", at, count)
            )
        span = c.multiply(c.size(n, F64), d)
        return c("multiply", c.convert(at, c.element), c.fill(c.divide(1, span), c.type))

    return lower


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}_window.{overload}": window(values)
       for name, (values, more) in _WINDOWS.items()
       for overload in ("default", "periodic", *more)},
    **{f"aten.fft_{name}.default": along_one(body) for name, body in _TRANSFORMS.items()},
    **{f"aten.fft_{name}2.default": along_several(body, (-2, -1))
       for name, body in _TRANSFORMS.items()},
    **{f"aten.fft_{name}n.default": along_several(body, None)
       for name, body in _TRANSFORMS.items()},
    "aten.fft_fftshift.default": shifted(False),
    "aten.fft_ifftshift.default": shifted(True),
    "aten._fft_c2c.default": complex_to_complex,
    "aten._fft_c2r.default": complex_to_real,
    "aten._fft_r2c.default": real_to_complex,
    "aten.fft_fftfreq.default": frequencies(True),
    "aten.fft_rfftfreq.default": frequencies(False),
}  # fmt: skip
