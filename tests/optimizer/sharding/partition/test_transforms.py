"""FFTs along cut dims: there and back over another dim, or the transpose algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from girih.hlo.build import build_module
from girih.hlo.distributed import interpret_parallel
from girih.hlo.graph import Module
from girih.hlo.placement import cut, joined
from girih.hlo.sharding import Axis, Mesh
from girih.hlo.types import C64, C128, F32, Element, TensorType
from girih.optimizer.sharding.inner import inner_bytes
from girih.optimizer.sharding.partition.partitioner import sharding_of
from girih.optimizer.sharding.partition.program import partition

from .test_windows import decided

EIGHT = Mesh((("x", 8),), (3, 1, 0, 2, 7, 6, 5, 4))


def transform(
    kind: str, dims: Sequence[int], lengths: tuple[int, ...], element: Element = C64
) -> Module:
    facts = {"fft_type": kind, "fft_length": lengths}
    return build_module([TensorType(tuple(dims), element)], lambda b, x: [b("fft", x, **facts)])


def cut_along(module: Module, dim: int, mesh: Mesh, wanted: np.ndarray, tolerance: float) -> float:
    """Runs it cut along `dim` by all axes; the bytes that a device receives, as explained."""
    (op,) = module.body.ops
    factors = op.definition.divide(op)
    assert factors is not None
    held = factors.operands[0][dim]
    names = tuple(Axis(name) for name in mesh.names)
    axes = [names if held == (n,) else () for n in range(len(factors.factors))]
    made = decided(op, factors, axes, mesh)
    (value,), (result,) = made.body.arguments, made.body.results
    blocks = cut(_given(module), sharding_of(value.tensor), mesh, np.nan)
    local = partition(made)
    ran = interpret_parallel(local, [[block] for block in blocks], num_partitions=mesh.devices)
    got = joined([row[0] for row in ran.results], sharding_of(result.tensor), mesh, result.dims)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
    assert not any("all_gather" in received for received in ran.received)
    counted = sum(sum(received.values()) for received in ran.received) / mesh.devices
    size = inner_bytes(op, factors, axes, mesh)
    assert counted == pytest.approx(size)
    return counted


def _given(module: Module) -> np.ndarray:
    kind = module.body.arguments[0].tensor
    generator = np.random.default_rng(0)
    found = generator.standard_normal(kind.dims)
    if kind.element is not F32:
        found = found + 1j * generator.standard_normal(kind.dims)
    return found.astype(kind.dtype)


@pytest.mark.parametrize("kind", ["FFT", "IFFT"])
@pytest.mark.parametrize("element, tolerance", [(C64, 1e-6), (C128, 1e-14)])
def test_one_long_row(kind: str, element: Element, tolerance: float) -> None:
    """4,096 elements: three times a block but an eighth of it; a gather brings seven blocks."""
    module = transform(kind, [4096], (4096,), element)
    function = np.fft.fft if kind == "FFT" else np.fft.ifft
    wanted = function(_given(module).astype(np.complex128))
    found = cut_along(module, 0, EIGHT, wanted, tolerance)
    assert found == 3 * 512 * 7 / 8 * element.dtype.itemsize


def test_a_row_over_two_axes() -> None:
    mesh = Mesh((("x", 2), ("y", 3)))
    module = transform("FFT", [36 * 5], (36 * 5,))
    cut_along(module, 0, mesh, np.fft.fft(_given(module).astype(np.complex128)), 1e-6)


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_dim_by_itself(kind: str, dim: int) -> None:
    """Of three transformed dims, none of which eight divides."""
    lengths = (6, 5, 9)
    dims = (*lengths[:2], lengths[2] // 2 + 1) if kind == "IRFFT" else lengths
    module = transform(kind, dims, lengths, F32 if kind == "RFFT" else C64)
    functions = {
        "FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn,
    }  # fmt: skip
    wanted = functions[kind](_given(module), lengths, (0, 1, 2))
    cut_along(module, dim, EIGHT, wanted, 1e-6)
