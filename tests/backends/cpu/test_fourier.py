"""fft kernels beside numpy: all kinds, small and large factors, several dims, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.backends.plain.opaque.transform import radices, work_length
from girih.hlo.build import make_op
from girih.hlo.graph import arguments
from girih.hlo.types import tensor_of

from . import harness

pytestmark = pytest.mark.usefixtures("each_level")
FUNCTIONS = {
    "FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn,
}  # fmt: skip


def numbers(dims: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(len(dims))
    values = generator.standard_normal(dims)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(dims)
    return values.astype(dtype)


def check(kind: str, lengths: tuple[int, ...], batch: tuple[int, ...], wide: bool) -> None:
    real, pair = (np.float64, np.complex128) if wide else (np.float32, np.complex64)
    dims = (*batch, *lengths)
    if kind == "IRFFT":
        dims = (*dims[:-1], dims[-1] // 2 + 1)
    x = numbers(dims, real if kind == "RFFT" else pair)
    op = make_op("fft", arguments([tensor_of(x)]), {"fft_type": kind, "fft_length": lengths})
    (found,) = harness.Kernel(op)(x)
    axes = range(len(batch), len(batch) + len(lengths))
    wanted = FUNCTIONS[kind](
        x.astype(np.complex128 if kind != "RFFT" else np.float64), lengths, axes
    )
    assert found.dtype == op.result.tensor.dtype
    harness.compare(found, wanted.astype(found.dtype), 3e-14 if wide else 3e-7)


@pytest.mark.parametrize(
    "length", [1, 2, 3, 4, 6, 7, 11, 13, 16, 17, 30, 37, 64, 97, 128, 210, 289]
)
def test_lengths(length: int) -> None:
    for number, kind in list(enumerate(FUNCTIONS))[length % 2 :: 2]:
        check(kind, (length,), ((), (3,), (20,), (2, 5))[(number + length) % 4], length % 2 == 0)


@pytest.mark.parametrize("length", [1009, 2187, 4096, 10007, 3 * 4099])
def test_long_lines(length: int) -> None:
    check("FFT", (length,), (), True)
    check("IRFFT", (length,), (2,), False)


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("lengths", [(2, 3), (17, 4), (3, 4, 6)])
def test_several_dims(kind: str, lengths: tuple[int, ...]) -> None:
    check(kind, lengths, (3,) if "R" in kind else (), len(lengths) == 2)


def test_factors_multiply_to_the_length() -> None:
    for length in range(1, 300):
        factors = radices(length)
        if factors is None:
            assert work_length(length) >= 2 * length - 1
        else:
            assert int(np.prod(factors)) == length == work_length(length)
