"""Reductions, scans, sorting and selection over every axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .catalogue import BF16, add_all, normal, positive, truth, whole

AXES = (None, 0, 1, 2, (0, 2), (1, 2), (0, 1), -1)


def over_axes(function):
    return lambda x: [function(x, axis=axis) for axis in AXES]


SUMS = {
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": jnp.max,
    "min": jnp.min,
    "prod": jnp.prod,
    "var": jnp.var,
    "std": jnp.std,
    "logsumexp": jax.nn.logsumexp,
    "ptp": jnp.ptp,
}
add_all({f"{n}_axes": over_axes(f) for n, f in SUMS.items()}, positive(3, 5, 19), loose=4)
add_all(
    {f"{n}_axes_bf16": over_axes(SUMS[n]) for n in ("sum", "max", "mean")},
    positive(3, 4, 9, dtype=BF16),
)
add_all(
    {f"{n}_axes_f16": over_axes(SUMS[n]) for n in ("sum", "min", "var")},
    positive(3, 4, 9, dtype=np.float16),
    loose=4,
)
add_all(
    {f"{n}_axes_f64": over_axes(SUMS[n]) for n in ("sum", "std", "logsumexp")},
    positive(3, 4, 9, dtype=np.float64),
    wide=True,
)
for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int16):
    add_all(
        {
            f"integer_reductions_{np.dtype(dtype).name}": lambda x: [
                (
                    jnp.sum(x, a),
                    jnp.max(x, a),
                    jnp.min(x, a),
                    jnp.prod(x, a),
                    jnp.any(x, a),
                    jnp.all(x, a),
                )
                for a in AXES
            ]
        },
        whole(3, 4, 9, low=1, high=50, dtype=dtype),
        long=dtype in (np.uint32, np.int16),
    )
add_all(
    {
        "boolean_reductions": lambda p: [
            (jnp.any(p, a), jnp.all(p, a), jnp.sum(p, a), jnp.count_nonzero(p, a), jnp.mean(p, a))
            for a in AXES
        ]
    },
    truth(3, 4, 9),
)


def first_and_last(x):
    return [(jnp.argmax(x, a), jnp.argmin(x, a)) for a in (None, 0, 1, -1)]


add_all({"argmax": first_and_last}, normal(4, 33))
add_all({"argmax_ties": first_and_last}, whole(7, 33, low=0, high=3))
add_all({"argmax_bf16": first_and_last}, normal(7, 40, dtype=BF16))
add_all({"argmax_u8": first_and_last}, whole(7, 40, low=0, high=9, dtype=np.uint8))
add_all({"argmax_bool": first_and_last}, truth(5, 6))
NAN = normal(4, 9)
NAN[1, 3] = NAN[2, 0] = np.nan
add_all(
    {
        "nan_reductions": lambda x: (
            jnp.max(x, 1),
            jnp.min(x, 0),
            jnp.argmax(x, 1),
            jnp.argmin(x, 0),
            jnp.nansum(x),
            jnp.nanmax(x, 0),
            jnp.nanmean(x, 1),
            jnp.sort(x, 1),
            jnp.argsort(x, 1),
            jnp.sum(x, 0),
            jnp.nanargmax(x, 1),
        )
    },
    NAN,
)
SCANS = {
    "cumsum": jnp.cumsum,
    "cumprod": jnp.cumprod,
    "cummax": jax.lax.cummax,
    "cummin": jax.lax.cummin,
    "cumlogsumexp": jax.lax.cumlogsumexp,
}
add_all(
    {n: lambda x, f=f: [f(x, axis=a) for a in (0, 1, 2)] for n, f in SCANS.items()},
    positive(3, 17, 5),
    loose=8,
)
add_all(
    {
        f"{n}_reverse": lambda x, f=f: f(x, axis=1, reverse=True)
        for n, f in SCANS.items()
        if n not in ("cumsum", "cumprod")
    },
    positive(2, 9),
    loose=8,
)
add_all(
    {"cumsum_integers": lambda x: (jnp.cumsum(x), jnp.cumsum(x, 1), jnp.cumprod(x, 0))},
    whole(4, 31, dtype=np.int32),
)
add_all({"cumsum_long": lambda x: jnp.cumsum(x)}, normal(5000), loose=64)
add_all(
    {
        "associative_scan": lambda x: jax.lax.associative_scan(
            lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (x, x + 1)
        )
    },
    normal(11, 3, scale=0.5),
    loose=8,
)


def sorts(x):
    return (
        jnp.sort(x, 0),
        jnp.sort(x, 1),
        jnp.argsort(x, 0),
        jnp.argsort(x, 1),
        jnp.sort(x, 1, descending=True),
        jnp.argsort(x, 1, descending=True),
        jnp.sort(x, None),
    )


add_all({"sorts": sorts}, normal(5, 37))
add_all({"sorts_ties": sorts}, whole(5, 37, low=0, high=4))
add_all({"sorts_u8": sorts}, whole(5, 37, low=0, high=9, dtype=np.uint8))
add_all({"sorts_bf16": sorts}, normal(5, 37, dtype=BF16))
add_all({"sorts_bool": sorts}, truth(4, 9))
add_all(
    {"sort_signed_zeros": lambda x: (jnp.sort(x), jnp.argsort(x), jnp.sign(1 / jnp.sort(x)))},
    np.array([0.0, -0.0, 1, -0.0, 0.0, -1, np.inf, -np.inf], np.float32),
)
add_all(
    {
        "sort_several": lambda k, j, v: (
            jax.lax.sort((k, j, v), num_keys=2),
            jax.lax.sort((k, v), num_keys=1),
            jnp.lexsort((j, k)),
        )
    },
    whole(40, low=0, high=4),
    whole(40, low=0, high=3, seed=8),
    normal(40),
)
add_all(
    {"top_k": lambda x: (jax.lax.top_k(x, 5), jax.lax.top_k(x[0], 1), jax.lax.top_k(-x, 37))},
    normal(5, 37),
)
add_all({"top_k_integers": lambda x: jax.lax.top_k(x, 6)}, whole(3, 20, low=0, high=5))
add_all({"approx_max_k": lambda x: jax.lax.approx_max_k(x, 4)}, normal(3, 20))
add_all(
    {
        "median_quantile": lambda x: (
            jnp.median(x),
            jnp.median(x, 1),
            jnp.quantile(x, 0.3, 1),
            jnp.percentile(x, jnp.array([5.0, 50])),
        )
    },
    normal(5, 8),
    loose=4,
)
add_all(
    {
        "searchsorted": lambda x, v: (
            jnp.searchsorted(x, v),
            jnp.searchsorted(x, v, side="right"),
            jnp.digitize(v, x),
            jnp.searchsorted(x, v, method="sort"),
            jnp.interp(v, x, x * 2),
        )
    },
    np.sort(normal(13)),
    normal(9, seed=3),
)
add_all(
    {
        "counting": lambda x: (
            jnp.bincount(x, length=12),
            jnp.histogram(x, bins=5, range=(0, 10))[0],
            jnp.unique(x, size=12, fill_value=-1),
            jnp.nonzero(x > 4, size=30, fill_value=-1)[0],
        )
    },
    whole(50, low=0, high=10),
)
add_all(
    {
        "segments": lambda x, s: (
            jax.ops.segment_sum(x, s, 6),
            jax.ops.segment_max(x, s, 6),
            jax.ops.segment_prod(x, s, 6),
        )
    },
    normal(20, 3),
    whole(20, low=0, high=6),
    loose=4,
)
add_all(
    {
        "softmaxes": lambda x: [
            (jax.nn.softmax(x, a), jax.nn.log_softmax(x, a), jax.nn.standardize(x, a))
            for a in (0, 1, 2, (1, 2))
        ]
    },
    normal(3, 5, 33),
    loose=4,
)
add_all(
    {"softmax_masked": lambda x, m: jax.nn.softmax(x, where=m)}, normal(4, 9), truth(4, 9), loose=4
)
add_all(
    {
        "reduce_custom": lambda x, i: (
            jax.lax.reduce(x, 0.0, lambda a, b: jnp.sqrt(a * a + b * b), (1,)),
            jax.lax.reduce(
                (x, i),
                (-jnp.inf, 0),
                lambda a, b: (jnp.maximum(a[0], b[0]), jnp.where(a[0] > b[0], a[1], b[1])),
                (0,),
            ),
            jax.lax.reduce(i, jnp.int32(0), jax.lax.bitwise_xor, (0, 1)),
        )
    },
    positive(5, 9),
    whole(5, 9),
    loose=8,
)
add_all(
    {
        "norms": lambda x: (
            jnp.linalg.norm(x),
            jnp.linalg.norm(x, axis=1),
            jnp.linalg.norm(x, 1, axis=0),
            jnp.linalg.norm(x, jnp.inf, axis=1),
            jnp.average(x, weights=jnp.abs(x)),
            jnp.trace(x),
            jnp.cov(x),
            jnp.corrcoef(x),
            jnp.diff(x),
            jnp.gradient(x[0]),
        )
    },
    normal(6, 11),
    loose=16,
)
add_all(
    {
        "large_reductions": lambda x: (
            x.sum(0),
            x.sum(1),
            x.max(0),
            x.mean(),
            x.var(1),
            jnp.argmin(x, 0),
            jnp.argmax(x, 1),
            x.min(),
        )
    },
    normal(700, 513),
    loose=16,
)
add_all(
    {"tall_and_flat": lambda x, y: (x.sum(0), x.sum(1), y.sum(0), y.sum(1), y.max(), x.prod(1))},
    normal(3001, 2),
    normal(2, 3001),
    loose=64,
)
add_all(
    {
        "size_one_reductions": lambda x: (
            x.sum(1),
            x.max((0, 2)),
            jnp.argmax(x, 1),
            jnp.cumsum(x, 1),
            jax.nn.softmax(x, 1),
            jnp.sort(x, 1),
            x.sum(),
            jnp.var(x, 1),
        )
    },
    normal(1, 1, 7),
)
