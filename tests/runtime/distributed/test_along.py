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
from girih.hlo.types import C64, F32, I32, TensorType

from ...optimizer.sharding.families import fold
from ...optimizer.sharding.test_uneven import BODIES, rows_cut
from .launch import needs_mpi
from .test_mesh import printed

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


def experts() -> tuple[Module, list[np.ndarray]]:
    """Tokens, sorted by expert, against their experts' matrices, of which each process has some."""
    facts = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "lhs_ragged_dimensions": (0,), "rhs_group_dimensions": (0,),
    }  # fmt: skip
    weights, x = (GENERATOR.standard_normal(d, np.float32) for d in ((10, 64, 48), (9, 64)))
    sizes = GENERATOR.multinomial(7, [1 / 10] * 10).astype(np.int32)
    kinds = [TensorType(weights.shape, F32), TensorType(x.shape, F32), TensorType((10,), I32)]
    module = build_module(kinds, lambda b, w, x, n: [b("chlo.ragged_dot", x, w, n, **facts)])
    return module, [weights, x, sizes]


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
        ("experts", "sharding_constraint"), ("long transform", "fft"), ("small transform", "fft"),
    ],
)  # fmt: skip
def test_algorithms_along_cut_dims(name: str, sends: str, tmp_path: Path) -> None:
    made = {
        "pool gradient": pool_gradient,
        "experts": experts,
        "long transform": lambda: transform(65536),
        "small transform": lambda: transform(6, 10),
    }
    module, inputs = made[name]() if name in made else rows(name)
    cut = rows_cut(module, PROCESSES)
    assert girih.partition(cut).communications[-1].op.name == sends
    girih.compile(cut, mesh={"x": PROCESSES}).save(tmp_path / "p.girih")
    arrays: dict[str, Any] = {f"x{n}": x for n, x in enumerate(inputs)}
    arrays |= {f"y{n}": y for n, y in enumerate(interpret(module, inputs))}
    np.savez(tmp_path / "data.npz", **arrays)  # pyright: ignore[reportArgumentType]
    said = printed(PROCESSES, tmp_path, CALLS, tmp_path / "p.girih", tmp_path / "data.npz")
    assert said.count("equal") == PROCESSES
