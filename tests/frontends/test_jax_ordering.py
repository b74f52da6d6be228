"""top_k, approximate top_k and sorts of JAX, with NaNs, signed zeros and ties: JAX's own order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import girih

TIES = np.array(
    [[3, 1, np.nan, 3, -0.0, 0.0, -np.inf], [0.0, -0.0, np.inf, np.nan, 1, 1, -1]], np.float32
)
WHOLE = np.array([[5, -1, 5, 7, -128, 127, 7]], np.int8)

FUNCTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
    "top_k": (lambda x: lax.top_k(x, 4), TIES),
    "top_k_integers": (lambda x: lax.top_k(x, 7), WHOLE),
    "top_k_bf16": (lambda x: lax.top_k(x.astype(jnp.bfloat16), 3), TIES),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 3), TIES[:, 3:]),
    "approx_min_k": (lambda x: lax.approx_min_k(x, 2, reduction_dimension=0), TIES[:, :2]),
    "sort": (lambda x: jnp.sort(x, axis=-1), TIES),
    "sort_descending": (lambda x: jnp.sort(x, axis=0, descending=True), TIES),
    "argsort": (lambda x: jnp.argsort(x, stable=True), TIES),
    "argsort_integers": (lambda x: jnp.argsort(x, axis=-1), WHOLE),
    "sort_pairs": (
        lambda x: lax.sort((x, lax.iota(np.int32, 7)), num_keys=1, is_stable=True), TIES[0],
    ),
    "sort_two_keys": (
        lambda x: lax.sort((jnp.round(x), -x), num_keys=2), np.linspace(-2, 2, 9, dtype=np.float32),
    ),
    "argmax": (lambda x: (jnp.argmax(x, -1), jnp.nanargmin(x, -1)), TIES),
    "median": (lambda x: jnp.nanmedian(x, -1), TIES),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_order_is_that_of_jax(name: str) -> None:
    function, x = FUNCTIONS[name]
    jitted = jax.jit(function)
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jitted(x))]
    module = girih.import_model(jitted, x)
    for found in (girih.interpret(module, [x]), jax.tree.leaves(girih.compile(module)(x))):
        for a, b in zip(found, wanted, strict=True):
            a = np.asarray(a)
            assert a.dtype == b.dtype and a.shape == b.shape
            if a.dtype.kind == "V":
                a, b = a.astype(np.float32), b.astype(np.float32)
            np.testing.assert_array_equal(a, b)
            if a.dtype.kind == "f":
                finite = ~np.isnan(b)
                np.testing.assert_array_equal(np.signbit(a)[finite], np.signbit(b)[finite])
