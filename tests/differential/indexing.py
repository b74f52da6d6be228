"""Gathers, scatters, slices and everything that moves values without computing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .catalogue import BF16, add_all, case, normal, truth, whole

X = normal(7, 9, 5)
ROWS = whole(6, low=-9, high=9)
INSIDE = whole(6, low=0, high=7)
MODES = ("clip", "fill", "wrap", "promise_in_bounds")


@case(X, ROWS, INSIDE)
def takes(x, i, j):
    return (
        x[i],
        x[j, 2],
        x[:, j],
        x[j, j],
        x[j, :, jnp.minimum(j, 4)],
        x[j[:, None], j[None, :]],
        jnp.take(x, i, axis=0),
        jnp.take(x, i, axis=1, mode="clip"),
        jnp.take(x, i, axis=2, mode="wrap"),
        jnp.take(x, i),
        x[..., -1],
        x[::2, 1:8:3],
        x[::-1, :, 2],
        x[3],
        x[j].sum(0),
        x[2, j, None],
        x.at[i].get(mode="fill", fill_value=7.0),
        x[jnp.array(2)],
        x[jnp.array(-1), 1],
    )


@case(X, whole(7, 4, 5, low=0, high=9), whole(7, 9, 2, low=0, high=5))
def takes_along_axis(x, i, j):
    return (
        jnp.take_along_axis(x, i, 1),
        jnp.take_along_axis(x, j, 2),
        jnp.take_along_axis(x, jnp.argsort(x, 0), 0),
    )


@case(X, ROWS, INSIDE, normal(6, 9, 5, seed=4))
def scatters(x, i, j, u):
    u = jnp.round(u * 4) / 4
    k = jnp.array([0, 3, 5, 1, 6, 2])
    return (
        x.at[k].set(u),
        x.at[i].add(u),
        x.at[j].add(1.0),
        x.at[j].max(u),
        x.at[j].min(u),
        x.at[k].multiply(u),
        x.at[:, k].set(2.0),
        x.at[k, k].set(0.0),
        x.at[2].set(1.0),
        x.at[1:3].add(5.0),
        x.at[..., 0].set(-1.0),
        x.at[k, 1:4].set(3.0),
        x.at[i].set(1.0, mode="drop"),
        x.at[::2].multiply(2),
        x.at[k[:, None], k].add(1.0),
        x.at[k].apply(jnp.abs),
        x.at[0, 0, 0].set(9.0),
        x.at[jnp.array(5)].set(0.0),
    )


@case(whole(12, 3), whole(5, low=0, high=12), truth(12, 3))
def scatters_of_integers(x, i, p):
    return (
        x.at[i].add(2),
        x.at[i].mul(3),
        x.at[i].max(4),
        p.at[i].set(True),
        x.astype(jnp.int8).at[i].add(1),
        x.astype(jnp.bfloat16).at[i].add(1),
        x.at[i, 1].set(7),
    )


@case(X, np.int32(3), np.int32(-20), np.int32(100))
def dynamic_slices(x, a, b, c):
    return (
        jax.lax.dynamic_slice(x, (a, b, c), (3, 4, 2)),
        jax.lax.dynamic_index_in_dim(x, c, 1),
        jax.lax.dynamic_update_slice(x, jnp.ones((2, 3, 5)), (a, c, b)),
        x[a],
        x[a, a],
        x.at[a].set(0.0),
        jax.lax.dynamic_slice_in_dim(x, a, 2, 0) * 2,
        jax.lax.dynamic_update_index_in_dim(x, x[0] + 1, a, 0),
        jax.lax.dynamic_update_slice(x * 2, x[:2] + 1, (a, 0, 0)) + 1,
    )


@case(X, np.uint8(200), np.int8(-3))
def small_index_types(x, i, j):
    return (
        x.at[i].get(mode="clip"),
        jax.lax.dynamic_slice_in_dim(x, j, 2, 0),
        x[j],
        jnp.take(x, i, 0, mode="clip"),
    )


@case(normal(4, 5), normal(4, 5, seed=2))
def shape_work(x, y):
    return (
        jnp.concatenate([x, y, x], 1),
        jnp.stack([x, y], 1),
        jnp.roll(x, 2),
        jnp.roll(x, (1, -2), (0, 1)),
        jnp.flip(x),
        jnp.flip(x, 1),
        jnp.tile(x, (2, 3)),
        jnp.repeat(x, 3, 0),
        jnp.repeat(x, jnp.array([1, 0, 2, 3]), 0, total_repeat_length=6),
        jnp.pad(x, ((1, 2), (0, 3)), constant_values=7.0),
        jnp.pad(x, 2, mode="edge"),
        jnp.pad(x, 2, mode="reflect"),
        jnp.pad(x, 3, mode="wrap"),
        jnp.pad(x, 1, mode="symmetric"),
        x.T.reshape(-1),
        jnp.split(x, [1, 3], 1),
        jnp.diag(x),
        jnp.diag(x[0], 1),
        jnp.tril(x),
        jnp.triu(x, 1),
        jnp.rot90(x),
        jnp.kron(x, y[:2, :2]),
        jnp.meshgrid(x[0], y[:, 0]),
        jnp.hstack([x, y]),
        jnp.vstack([x, y]),
        x[None, :, None],
        jnp.expand_dims(x, (0, 3)),
        jnp.swapaxes(x[None], 0, 2),
        jnp.moveaxis(x[None], 2, 0),
        jnp.eye(4) * x[:, :4],
        jnp.vander(x[0], 3),
        jnp.outer(x[0], y[0]),
        jnp.tri(4, 5) * x,
        jnp.resize(x, (3, 7)),
        jnp.full_like(x, 3),
    )


@case(normal(3, 4, 5, 6))
def transposes(x):
    import itertools

    return [x.transpose(order) for order in itertools.permutations(range(4))]


@case(normal(37, 65), normal(8, 40, 24, dtype=BF16), whole(33, 70, dtype=np.int8))
def large_transposes(x, y, z):
    return (
        x.T,
        x.T * 2 + 1,
        y.transpose(2, 1, 0),
        y.transpose(1, 0, 2),
        z.T,
        y.transpose(0, 2, 1).reshape(-1),
    )


@case(normal(4, 6))
def pads_of_lax(x):
    pad = jax.lax.pad
    return (
        pad(x, 1.0, [(1, 2, 1), (0, 0, 2)]),
        pad(x, 0.0, [(-1, 2, 0), (3, -2, 0)]),
        pad(x, 0.0, [(-1, -1, 1), (0, -3, 1)]),
        pad(x, 2.0, [(0, 0, 0), (-3, -3, 0)]),
    )


@case(whole(3, 4, low=0, high=10), normal(10, 8))
def embedding(i, table):
    return (
        jax.nn.one_hot(i, 10),
        table[i],
        jax.nn.one_hot(i, 10) @ table,
        jax.nn.one_hot(i, 5, axis=0),
        jax.nn.one_hot(i, 10, dtype=jnp.int32),
        table[i].mean(1),
    )


@case()
def iotas():
    return (
        jnp.arange(10),
        jnp.arange(3, 20, 4, dtype=jnp.float32),
        jnp.linspace(0, 1, 7),
        jnp.zeros((2, 3)),
        jnp.ones((0,)),
        jax.lax.broadcasted_iota(jnp.uint8, (3, 4), 1),
        jnp.eye(3, 5, 1),
        jnp.full((), 3),
        jnp.indices((2, 3)),
        jax.lax.broadcasted_iota(jnp.bfloat16, (300,), 0),
        jnp.logspace(0, 2, 4),
    )


@case(normal(6, 8))
def views_of_one_value(x):
    return (
        x,
        x,
        x.reshape(48),
        x.reshape(8, 6),
        x.T,
        x + 0.0,
        x[:3],
        x[3:],
        jax.lax.stop_gradient(x),
    )


@case(normal(2, 8, 8, 3))
def resizing(x):
    return (
        jax.image.resize(x, (2, 16, 16, 3), "nearest"),
        jax.image.resize(x, (2, 5, 11, 3), "linear"),
        jax.image.resize(x, (2, 12, 4, 3), "cubic"),
        x.reshape(2, 4, 2, 4, 2, 3).transpose(0, 1, 3, 2, 4, 5),
    )


@case(normal(5, 6), whole(4, 2, low=0, high=5))
def gather_forms(x, i):
    numbers = jax.lax.GatherDimensionNumbers
    window = numbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0, 1))
    point = numbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(1, 0))
    line = numbers(offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0, 1))
    return (
        jax.lax.gather(x, i, window, (2, 3), mode="clip"),
        jax.lax.gather(x, i, point, (1, 1), mode="fill"),
        jax.lax.gather(x, i, line, (1, 4), mode="clip"),
        jax.lax.gather(x, i + 3, line, (1, 4), mode="fill"),
    )


@case(normal(5, 6), whole(4, 2, low=0, high=4), normal(4, 2, 3))
def scatter_forms(x, i, u):
    i = i.at[1].set(
        77
    )  # windows that are outside in part are dropped by XLA, written in part by StableHLO
    numbers = jax.lax.ScatterDimensionNumbers
    window = numbers((1, 2), (), (0, 1))
    u = jnp.round(u)
    return (
        jax.lax.scatter_add(x, i, u, window),
        jax.lax.scatter_add(x, i, u, window, mode="clip"),
        jax.lax.scatter_min(x, i, u, window),
        jax.lax.scatter_mul(x, i, u, window),
        jax.lax.scatter_max(x, i, u, window, mode="clip"),
    )


@case(normal(3, 5, 6), whole(3, 2, low=0, high=5), whole(3, low=0, high=5))
def batched_indexing(x, i, s):
    return (
        jax.vmap(lambda a, b: a[b])(x, i),
        jax.vmap(lambda a, b: a.at[b].set(0.0))(x, i),
        jax.vmap(lambda a, b: jax.lax.dynamic_slice(a, (b, b), (2, 3)))(x, s),
        jax.vmap(lambda a, b: jax.lax.dynamic_update_slice(a, jnp.zeros((2, 2)), (b, b)))(x, s),
        jax.vmap(lambda a, b: jnp.roll(a, b, 0))(x, s),
        jax.vmap(jnp.take, (0, 0))(x, i),
    )


@case(normal(200, 64), whole(5000, low=0, high=200), normal(5000, 64, seed=5))
def large_gather_and_scatter(x, i, u):
    return x[i], x.at[i].max(u), x[:, ::3].T


add_all(
    {"take_empty": lambda x: (x[:, jnp.zeros((0,), int)], x[0:0], jnp.roll(x[0:0], 1), x[5:2])},
    normal(3, 4),
)
