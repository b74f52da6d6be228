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


def attention(q, k, v, out):
    h = tl.tile_id(0)
    scores = tl.dot(q[h, :, :], k[h, :, :].T)
    weights = tl.exp(scores - tl.max(scores, 1, keepdims=True))
    out[h, :, :] = tl.dot(weights / tl.sum(weights, 1, keepdims=True), v[h, :, :])


def rope(x, angles, out):
    i = tl.tile_id(0)
    half = x.shape[1] // 2
    first, second = x[i : i + 1, :half], x[i : i + 1, half:]
    cos, sin = tl.cos(angles[i : i + 1, :]), tl.sin(angles[i : i + 1, :])
    out[i : i + 1, :half] = first * cos - second * sin
    out[i : i + 1, half:] = first * sin + second * cos


def mlp(x, up, down, out):
    i = tl.tile_id(0)
    hidden = tl.maximum(tl.dot(x[i : i + 1, :], up[:, :]), 0.0)
    out[i : i + 1, :] = tl.dot(hidden, down[:, :])


def conv(x, w, out):
    i = tl.tile_id(0)
    near = x[i - 1 : i, :] * w[0:1, :] + x[i + 1 : i + 2, :] * w[2:3, :]
    out[i : i + 1, :] = near + x[i : i + 1, :] * w[1:2, :]


def top_k(x, out):
    i = tl.tile_id(0)
    row = x[i : i + 1, :]
    places = tl.reshape(tl.arange(x.shape[1]), (1, x.shape[1]))
    for j in tl.static_range(out.shape[1]):
        best = tl.max(row, 1, keepdims=True)
        out[i : i + 1, j : j + 1] = best
        row = tl.where(places == tl.argmax(row, 1, keepdims=True), float("-inf"), row)


Q, K, V = RANDOM.standard_normal((3, 4, 6, 8)).astype(np.float32)
TAPS = RANDOM.standard_normal((3, 8)).astype(np.float32)
ANGLES = RANDOM.standard_normal((12, 4)).astype(np.float32)


def kernel(function: Any, contract: str) -> Any:
    out = {
        "rmsnorm": lambda x: x,
        "product": lambda x, w: tl.Array((x.shape[0], w.shape[1]), x.dtype),
        "attention": lambda q: q,
        "rope": lambda x: x,
        "mlp": lambda x: x,
        "conv": lambda x: x,
        "top_k": lambda x: tl.Array((x.shape[0], 3), x.dtype),
        "largest": lambda x: tl.Array((x.shape[0],), x.dtype),
    }[function.__name__]
    return girih.kernel(out=out, sharding=contract, grid=lambda out: out.shape[0])(function)


@pytest.mark.parametrize(
    ("function", "contract", "arrays"),
    [
        (rmsnorm, "m k -> m k; replicate={k}", (X,)),
        (product, "m k, k n -> m n; reduction={k}", (X, W)),
        (largest, "m k -> m; reduction=max{k}", (X,)),
        (attention, "h s d, h t d, h t e -> h s e; replicate={t, d, e}", (Q, K, V)),
        (rope, "m k, m r -> m k; replicate={k, r}", (X, ANGLES)),
        (mlp, "m k, k f, f n -> m n; reduction={f}; replicate={k, n}", (X, W, W.T.copy())),
        (conv, "s c, w c -> s c; halo={s: 1 1}; replicate={w}", (X, TAPS)),
        (conv, "s c, w c -> s c; halo={s: 2 1}; replicate={w}; multiple={s: 3}", (X, TAPS)),
        (top_k, "m n -> m j; replicate={n, j}", (X,)),
        (rmsnorm, "", (X,)),
        (attention, "", (Q, K, V)),
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
        (
            attention,
            "h s d, h t d, h t e -> h s e; reduction={t}; replicate={d, e}",
            (Q, K, V),
            "t",
        ),
        (mlp, "m k, k f, f n -> m n; reduction={f, k}; replicate={n}", (X, W, W.T.copy()), "k"),
        (largest, "m k -> m; reduction=min{k}", (X,), "k"),
        (top_k, "m n -> m j; reduction=max{n}; replicate={j}", (X,), "n"),
        (rope, "m k, m r -> m k; replicate={r}", (X, ANGLES), "k"),
    ],
)
def test_wrong_contracts_are_caught(function: Any, contract: str, arrays: Any, name: str) -> None:
    with pytest.raises(girih.UserError, match=rf"is wrong about '{name}': cut in 2 parts"):
        kernel(function, contract).check_contract(*arrays)


def shifted(x, out):
    i = tl.tile_id(0)
    out[i : i + 1, :] = x[i : i + 1, :] + tl.cast(i, x.dtype)


def test_a_kernel_without_a_contract_is_named() -> None:
    """The number of the tile goes into the result, so that no part can be computed for itself."""
    made = girih.kernel(out=lambda x: x, grid=lambda x: x.shape[0])(shifted)
    with pytest.raises(girih.UserError, match=r"py:\d+.*kernel 'shifted' has no contract"):
        made.check_contract(X)


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        ("s c, w c -> s c; replicate={w}", r"1 elements before and 1 behind .* halo=\{s: 1 1\}"),
        ("s c, w c -> s c; halo={s: 0 1}; replicate={w}", "1 elements before"),
    ],
)
def test_a_contract_against_the_windows(contract: str, reason: str) -> None:
    with pytest.raises(girih.UserError, match=reason):
        kernel(conv, contract).check_contract(X, TAPS)


def test_dims_that_tiles_walk_along_together() -> None:
    with pytest.raises(girih.UserError, match="tiles walk along 'm' and along other dims at once"):
        kernel(rope, "m k, r a -> m k; replicate={k, r, a}").check_contract(X, ANGLES)
