"""Programs with factorisations on the simulated GPU: expansions, loops and kernels together."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.types import tensor_of

OPTIONS = girih.Options(cache="off")


def test_singular_values_and_pivots() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((2, 3, 2), np.float32)
    square = generator.standard_normal((3, 3), np.float32)

    def body(b, x, y):
        return [*b.op("linalg.svd", [x]).results[:3], *b.op("linalg.lu", [y]).results[:2]]

    program = build_module([tensor_of(a), tensor_of(square)], body)
    compiled = girih.compile(program, target="ptx-sim", options=OPTIONS)
    values, u, vt, packed, pivots = compiled.call_flat([a, square])
    np.testing.assert_allclose(values, np.linalg.svd(a, compute_uv=False), rtol=2e-6)
    np.testing.assert_allclose((u[..., :2] * values[:, None, :]) @ vt, a, atol=2e-6)
    np.testing.assert_allclose(u @ np.swapaxes(u, -1, -2), np.stack([np.eye(3)] * 2), atol=2e-6)
    wanted = girih.interpret(program, [a, square])
    np.testing.assert_allclose(packed, wanted[3], atol=2e-6)
    np.testing.assert_array_equal(pivots, wanted[4])


@pytest.mark.parametrize("name", ["linalg.eig", "linalg.schur", "linalg.hessenberg"])
def test_what_has_no_expansion_is_named_with_a_remedy(name: str) -> None:
    facts = {"low": 1, "high": 3} if name == "linalg.hessenberg" else {}

    def body(b, x):
        return list(b.op(name, [x], facts).results)

    program = build_module([tensor_of(np.eye(3, dtype=np.float32))], body)
    with pytest.raises(girih.UnsupportedError, match=f"{name}.* LAPACK computes it on target cpu"):
        girih.compile(program, target="ptx-sim", options=OPTIONS)
