"""Discrete Fourier transforms: _fft_c2c, _fft_r2c, _fft_c2r, one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ..context import Context, axis_of, static

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


def complex_to_complex(
    c: Context, self: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    axes = [axis_of(axis, self.rank) for axis in dim]
    result = self
    for axis in axes:
        size = static(self.dims[axis])
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
            result = _along(c, result, axis, "FFT", static(self.dims[axis]))
        return _scaled(c, result, normalization, False, count)
    result = _along(c, self, axes[-1], "RFFT", static(self.dims[axes[-1]]))
    for axis in axes[:-1]:
        result = _along(c, result, axis, "FFT", static(self.dims[axis]))
    return _scaled(c, result, normalization, False, count)


def complex_to_real(
    c: Context, self: Value, dim: Sequence[int], normalization: int, last_dim_size: Any
) -> Value:
    """The inverse of a halved transform, with `last_dim_size` elements in the last of `dim`."""
    axes = [axis_of(axis, self.rank) for axis in dim]
    result, size = self, static(last_dim_size)
    for axis in axes[:-1]:
        result = _along(c, result, axis, "IFFT", static(self.dims[axis]))
    result = c.slice(result, axes[-1], 0, size // 2 + 1)
    result = _along(c, result, axes[-1], "IRFFT", size)
    return _scaled(c, result, normalization, True, c.count(self.dims, axes[:-1]) * size)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._fft_c2c.default": complex_to_complex,
    "aten._fft_c2r.default": complex_to_real,
    "aten._fft_r2c.default": real_to_complex,
}
