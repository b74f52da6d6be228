"""Programs whose kernels belong together, as JAX functions with inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy


def f32(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(dims)).standard_normal(dims).astype(np.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * 0.125
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, -1), v)


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * 0.125
    i = jnp.arange(scores.shape[-1])
    scores = jnp.where(i[None, :] <= i[-scores.shape[-2] :, None], scores, -jnp.inf)
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, -1), v)


def biased_attention(q: Any, k: Any, v: Any, bias: Any, keep: Any) -> Any:
    scores = jnp.where(keep, jnp.einsum("bhid,bhjd->bhij", q, k) + bias, -1e9)
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, -1), v)


def cosine_attention(q: Any, k: Any, v: Any) -> Any:
    """Weights are exponentials that nothing is subtracted from."""
    weights = jnp.exp(jnp.einsum("id,jd->ij", q, k) * 0.1)
    return (weights @ v) / weights.sum(-1, keepdims=True)


def logsumexp(x: Any) -> Any:
    return jax.nn.logsumexp(x, -1)


def argmax(x: Any) -> Any:
    return jnp.argmax(x, -1)


def variance(x: Any) -> Any:
    return jnp.var(x, -1)


def group_statistics(x: Any) -> Any:
    """1 / standard deviation of each group of channels, over long maps."""
    mean = x.mean((2,), keepdims=True)
    return jax.lax.rsqrt(((x - mean) ** 2).mean(2) + 1e-5)


def norm_matmul(x: Any, scale: Any, shift: Any, w: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift) @ w


def two_layers(x: Any, w: Any, u: Any) -> Any:
    return jax.nn.gelu(x @ w, approximate=False) @ u


def softmax_matmul(x: Any, w: Any) -> Any:
    return jax.nn.softmax(x, -1) @ w


def _convolve(x: Any, w: Any, **options: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", **options)


def two_convolutions(x: Any, w: Any, u: Any) -> Any:
    return _convolve(jax.nn.relu(_convolve(x, w)), u)


def separable_convolution(x: Any, w: Any, u: Any) -> Any:
    return _convolve(jax.nn.relu(_convolve(x, w, feature_group_count=x.shape[1])), u)


Program = tuple[Callable[..., Any], list[np.ndarray]]


def qkv(*dims: int, keys: int | None = None) -> list[np.ndarray]:
    *batch, length, depth = dims
    other = (*batch, keys or length, depth)
    return [f32(*dims), f32(*other, seed=1), f32(*other, seed=2)]


SMALL: dict[str, Program] = {
    "attention": (attention, qkv(1, 2, 48, 16)),
    "attention_odd": (attention, qkv(2, 3, 37, 5, keys=53)),
    "causal": (causal_attention, qkv(1, 2, 40, 8)),
    "biased": (
        biased_attention,
        [*qkv(1, 2, 40, 8), f32(1, 2, 40, 40), np.random.default_rng(1).random((40, 40)) > 0.3],
    ),
    "cosine": (cosine_attention, qkv(50, 8, keys=70)),
    "logsumexp": (logsumexp, [f32(30, 100)]),
    "argmax": (argmax, [f32(30, 100)]),
    "variance": (variance, [f32(30, 100) * 3 + 1000]),
    "group_statistics": (group_statistics, [f32(9, 30, 90) + 7]),
    "norm_matmul": (norm_matmul, [f32(50, 24), f32(24), f32(24), f32(24, 20)]),
    "two_layers": (two_layers, [f32(50, 16), f32(16, 40), f32(40, 24)]),
    "softmax_matmul": (softmax_matmul, [f32(50, 40), f32(40, 17)]),
    "two_convolutions": (two_convolutions, [f32(1, 5, 21, 19), f32(7, 5, 3, 3), f32(6, 7, 3, 3)]),
    "separable": (separable_convolution, [f32(2, 6, 17, 20), f32(6, 1, 3, 3), f32(9, 6, 1, 1)]),
}
