"""Several operations of a program as one tile function on an architecture without warp groups."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import girih


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, 1e-5), (ml_dtypes.bfloat16, 2e-2)], ids=["f32", "bf16"]
)
def test_attention_is_one_kernel(dtype: Any, tolerance: float) -> None:
    random = np.random.default_rng(2)
    q, k, v = ((random.standard_normal((2, rows, 16)) / 2).astype(dtype) for rows in (16, 160, 160))
    program = girih.compile(attention, q, k, v, target="ptx-sim:sm_80")
    (kernel,) = program.plan.kernels
    assert kernel.name.startswith("tile")
    got = np.asarray(program(q, k, v)).astype(np.float64)
    wide = [jnp.asarray(x.astype(np.float32)) for x in (q, k, v)]
    wanted = np.asarray(attention(*wide)).astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
