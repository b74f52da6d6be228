"""Fourier transforms of windows of a signal, and back: stft, istft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import real_type
from ..context import Context, static
from .fourier import complex_to_complex, complex_to_real, real_to_complex
from .padding import pad
from .strided import unfold, view_as_real


def _window(c: Context, window: Value | None, length: int, n_fft: int, like: Value) -> Value:
    """The window of n_fft elements: `window`, or ones, with zeros on both sides."""
    if window is None:
        window = c.full(1, (length,), like.element)
    low = (n_fft - length) // 2
    return c.pad(window, 0, [(low, n_fft - length - low, 0)])


def _windowed(c: Context, frames: Value, window: Value) -> Value:
    """[batch, frames, n_fft] times the window, as complex numbers where one of both is."""
    return c("multiply", *c.together(frames, window))


def stft(
    c: Context,
    self: Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Value | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Value:
    """[time] or [batch, time] -> [..., frequencies, frames]: the transform of each window of the
    signal, `hop_length` apart."""
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    signal = self
    if align_to_window:
        signal = _bordered(c, signal, (n_fft - length) // 2, "constant")
    rank = signal.rank
    frames = unfold(c, signal, rank - 1, n_fft, hop)
    if window is not None or length < n_fft:
        frames = _windowed(c, frames, _window(c, window, length, n_fft, self))
    scale, is_complex = int(normalized), frames.element.is_complex
    if onesided is None:
        onesided = not is_complex
    if is_complex:
        result = complex_to_complex(c, frames, [rank], scale, True)
    else:
        result = real_to_complex(c, frames, [rank], scale, onesided)
    result = c.builder.transpose(result, [*range(rank - 1), rank, rank - 1])
    return result if c.element.is_complex else view_as_real(c, result)


def _bordered(c: Context, signal: Value, amount: int, mode: str) -> Value:
    """The signal with so many elements more at both ends."""
    wide = c.builder.reshape(signal, (*(1,) * (3 - signal.rank), *signal.dims))
    wide = pad(c, wide, [amount, amount], mode)
    return c.builder.reshape(wide, (*signal.dims[:-1], wide.dims[-1]))


def centred_stft(
    c: Context,
    self: Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Value | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    *args: Any,
    **kwargs: Any,
) -> Value:
    """stft whose windows have their middle at multiples of `hop_length`, by what is put at the
    signal's ends."""
    signal = _bordered(c, self, n_fft // 2, pad_mode) if center else self
    return stft(c, signal, n_fft, hop_length, win_length, window, *args, **kwargs)


def _overlapped(c: Context, frames: Value, hop: int) -> Value:
    """[batch, frames, n] -> [batch, time]: the sum of frames that begin `hop` apart. Each is cut
    into pieces of `hop` elements, of which those of one place lie side by side."""
    batch, count, size = frames.dims
    pieces = -(-static(size) // hop)
    frames = c.pad(frames, 0, [(0, 0, 0), (0, 0, 0), (0, pieces * hop - size, 0)])  # type: ignore
    total: Value | None = None
    for number in range(pieces):
        part = c.slice(frames, 2, number * hop, (number + 1) * hop)
        part = c.pad(part, 0, [(0, 0, 0), (number, pieces - 1 - number, 0), (0, 0, 0)])
        total = part if total is None else c("add", total, part)
    assert total is not None
    line = c.builder.reshape(total, (batch, (count + pieces - 1) * hop))
    return c.slice(line, 1, 0, size + hop * (count - 1))


def istft(
    c: Context,
    self: Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Value | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Dim | None = None,
    return_complex: bool = False,
) -> Value:
    """[..., frequencies, frames] -> [..., time]: the signal of which stft makes this, windows that
    overlap added up, divided by the sum of their squares."""
    hop, size = hop_length or n_fft // 4, win_length or n_fft
    *lead, frequencies, count = self.dims
    batch = lead[0] if lead else 1
    frames = c.builder.reshape(self, (batch, frequencies, count))
    frames = c.builder.transpose(frames, [0, 2, 1])
    scale = 1 if normalized else 2
    if return_complex:
        frames = complex_to_complex(c, frames, [2], scale, False)
    else:
        frames = complex_to_real(c, frames, [2], scale, n_fft)
    shape = _window(c, window, size, n_fft, c.part("real", self))
    squares = c("multiply", shape, shape)
    squares = c.builder.broadcast(squares, (1, count, n_fft), [2])
    sums = [_overlapped(c, v, hop) for v in (_windowed(c, frames, shape), squares)]
    whole = sums[0].dims[1]
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    wave, envelope = (c.slice(v, 1, start, c.smaller(end, whole)) for v in sums)
    lowest = c.reduce("minimum", c("abs", envelope), [0, 1])
    fine = c.compare("GE", lowest, c.full(1e-11, (), real_type(envelope.element)))
    c.check(fine, "torch.istft: windows overlap to zero somewhere, where there is no signal")
    wave = c("divide", *c.together(wave, envelope))
    if length is not None:
        wave = c.pad(wave, 0, [(0, 0, 0), (0, c.larger(end - whole, 0), 0)])  # type: ignore
    return c.builder.reshape(wave, (*lead, wave.dims[1]))


TABLE: dict[str, Callable[..., Any]] = {
    "aten.istft.default": istft,
    "aten.stft.center": centred_stft,
    "aten.stft.default": stft,
}
