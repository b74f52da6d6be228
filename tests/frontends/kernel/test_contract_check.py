"""`Kernel.check_contract`: right contracts hold, wrong ones are caught with the dim's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((12, 8)).astype(np.float32)
W = RANDOM.standard_normal((8, 6)).astype(np.float32)


def rmsnorm(x, out):
    i = tl.tile_id(0)
    row = x[i : i + 1, :]
    out[i : i + 1, :] = row / tl.sqrt(tl.sum(row * row, 1, keepdims=True) / x.shape[1] + 1e-6)


def product(x, w, out):
    i = tl.tile_id(0)
    out[i : i + 1, :] = tl.dot(x[i : i + 1, :], w[:, :])


def largest(x, out):
    i = tl.tile_id(0)
    out[i : i + 1] = tl.max(x[i : i + 1, :], 1)


ROWS: dict[str, Any] = {"grid": lambda x: x.shape[0]}


def kernel(function: Any, contract: str) -> Any:
    out = {
        "rmsnorm": lambda x: x,
        "product": lambda x, w: tl.Array((x.shape[0], w.shape[1]), x.dtype),
        "largest": lambda x: tl.Array((x.shape[0],), x.dtype),
    }[function.__name__]
    return girih.kernel(out=out, sharding=contract, **ROWS)(function)


@pytest.mark.parametrize(
    ("function", "contract", "arrays"),
    [
        (rmsnorm, "m k -> m k; replicate={k}", (X,)),
        (product, "m k, k n -> m n; reduction={k}", (X, W)),
        (largest, "m k -> m; reduction=max{k}", (X,)),
    ],
)
def test_contracts_that_hold(function: Any, contract: str, arrays: Any) -> None:
    kernel(function, contract).check_contract(*arrays)


@pytest.mark.parametrize(
    ("function", "contract", "arrays", "name"),
    [
        (rmsnorm, "m k -> m k", (X,), "k"),
        (product, "m k, k n -> m n; reduction=max{k}", (X, W), "k"),
        (largest, "m k -> m; reduction={k}", (X,), "k"),
        (largest, "m k -> m; reduction=min{k}", (X,), "k"),
    ],
)
def test_wrong_contracts_are_caught(function: Any, contract: str, arrays: Any, name: str) -> None:
    with pytest.raises(girih.UserError, match=rf"is wrong about '{name}': cut in 2 parts"):
        kernel(function, contract).check_contract(*arrays)


def test_a_kernel_without_a_contract_is_named() -> None:
    with pytest.raises(girih.UserError, match=r"py:\d+.*kernel 'rmsnorm' has no contract"):
        kernel(rmsnorm, "").check_contract(X)
