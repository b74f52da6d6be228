"""Algorithms along cut dims, compiled and run by real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.types import C64, F32, TensorType

from ...optimizer.sharding.families import fold
from ...optimizer.sharding.test_uneven import BODIES, rows_cut
from .launch import needs_mpi
from .test_mesh import launched

pytestmark = [pytest.mark.mpi, needs_mpi]
GENERATOR = np.random.default_rng(0)
PROCESSES = 4


def rows(name: str) -> tuple[Module, list[np.ndarray]]:
    x = GENERATOR.integers(-50, 50, (50257, 2)).astype(np.float32)
    return build_module([TensorType(x.shape, F32)], BODIES[name]), [x]


def pool_gradient() -> tuple[Module, list[np.ndarray]]:
    """Windows of three that overlap, over blocks that they do not fit."""
    arrays = [GENERATOR.integers(-5, 5, (n, 2)).astype(np.float32) for n in (101, 51)]
    scalar = TensorType((), F32)
    larger = build_region([scalar] * 2, lambda b, x, y: [b.compare("GE", x, y)])
    facts = {
        "window_dimensions": (3, 1), "window_strides": (2, 1), "padding": ((1, 1), (0, 0)),
    }  # fmt: skip

    def body(b: Any, x: Any, y: Any) -> Any:
        operands = [x, y, b.constant(np.float32(0))]
        return b.op("select_and_scatter", operands, facts, [larger, fold("add")]).results

    return build_module([TensorType(x.shape, F32) for x in arrays], body), arrays


def transform(*dims: int) -> tuple[Module, list[np.ndarray]]:
    x = GENERATOR.standard_normal(dims) + 1j * GENERATOR.standard_normal(dims)
    facts = {"fft_type": "FFT", "fft_length": dims}
    module = build_module([TensorType(dims, C64)], lambda b, x: [b("fft", x, **facts)])
    return module, [x.astype(np.complex64)]


CALLS = """
import sys
import numpy as np
import girih
data = np.load(sys.argv[2])
program = girih.load(sys.argv[1])
found = program(*(data[name] for name in data.files if name.startswith("x")))
found = found if isinstance(found, (list, tuple)) else [found]
for number, value in enumerate(found):
    whole, wanted = value.gather(), data[f"y{number}"]
    if whole is not None:
        assert whole.dtype == wanted.dtype
        np.testing.assert_allclose(whole, wanted, 1e-5, 1e-6 * np.abs(wanted).max())
print("equal")
"""


@pytest.mark.parametrize(
    "name, sends",
    [
        ("sort", "sort"), ("argmax", "reduce"), ("top_k", "chlo.top_k"),
        ("running total", "reduce_window"), ("pool gradient", "select_and_scatter"),
        ("long transform", "fft"), ("small transform", "fft"),
    ],
)  # fmt: skip
def test_algorithms_along_cut_dims(name: str, sends: str, tmp_path: Path) -> None:
    made = {
        "pool gradient": pool_gradient,
        "long transform": lambda: transform(65536),
        "small transform": lambda: transform(6, 10),
    }
    module, inputs = made[name]() if name in made else rows(name)
    cut = rows_cut(module, PROCESSES)
    assert [row.op.name for row in girih.partition(cut).communications] == [sends]
    girih.compile(cut, mesh={"x": PROCESSES}).save(tmp_path / "p.girih")
    arrays = {f"x{n}": x for n, x in enumerate(inputs)}
    arrays |= {f"y{n}": y for n, y in enumerate(interpret(module, inputs))}
    np.savez(tmp_path / "data.npz", **arrays)
    printed = launched(PROCESSES, tmp_path, CALLS, tmp_path / "p.girih", tmp_path / "data.npz")
    assert printed.count("equal") == PROCESSES
