"""Control flow, gradients, random numbers, closures, trees and small models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .catalogue import case, normal, positive, truth, whole

X = normal(4, 6)


@case(X, np.int32(5))
def loops(x, n):
    return (
        lax.fori_loop(0, 4, lambda i, y: y * 0.5 + i, x),
        lax.fori_loop(0, n, lambda i, y: jnp.sin(y) + i, x),
        lax.while_loop(
            lambda s: s[0] < n,
            lambda s: (s[0] + 1, s[1] @ jnp.eye(6) * 0.9, s[1]),
            (jnp.int32(0), x, x + 1),
        ),
        lax.fori_loop(0, 0, lambda i, y: y * 2, x),
        lax.fori_loop(3, n, lambda i, y: y.at[i % 4].set(i), x),
        lax.while_loop(lambda y: jnp.sum(y) < 100, lambda y: y * 2 + 1, jnp.abs(x)),
        lax.fori_loop(0, 3, lambda i, s: (s[1], s[0]), (x, x * 2)),
        lax.fori_loop(0, 3, lambda i, s: (s[1] + 1, s[2], s[0]), (x, x * 2, x)),
    )


@case(X, normal(7, 6, seed=2))
def scans(x, s):
    return (
        lax.scan(lambda c, y: (c * 0.9 + y, c.sum(1)), x, s),
        lax.scan(lambda c, y: (c + y, None), x[0], s, reverse=True),
        lax.scan(lambda c, y: (c + 1, (c, y * c)), 0, s[:, 0]),
        lax.scan(lambda c, _: (c * 2, c), x, None, length=3),
        lax.scan(lambda c, y: lax.scan(lambda d, z: (d + z, d * z), c, y), 1.0, s),
        lax.scan(lambda c, y: (c, y), x, s[:0]),
        lax.scan(lambda c, y: ((c[1], c[0] + y), c[0]), (x[0], x[1]), s, unroll=2),
        lax.map(lambda y: y @ x.T, s),
    )


@case(X, truth()[()], np.int32(7), whole(4, low=0, high=3), loose=4)
def conditions(x, p, n, i):
    branches = [jnp.sin, lambda y: y * 2, lambda y: y.T.reshape(4, 6)]
    return (
        lax.cond(p, lambda y: y + 1, lambda y: y - 1, x),
        lax.cond(x.sum() > 0, lambda y: (y, y.sum()), lambda y: (y * 2, 0.0), x),
        lax.switch(n, branches, x),
        lax.switch(n - 9, branches, x),
        lax.switch(1, branches, x),
        jax.vmap(lambda j, y: lax.switch(j, branches[:2], y))(i, x),
        lax.fori_loop(
            0,
            3,
            lambda j, y: lax.cond(
                j % 2 == 0, lambda z: z + 1, lambda z: lax.fori_loop(0, j, lambda k, w: w * 2, z), y
            ),
            x,
        ),
        lax.scan(lambda c, y: (lax.switch(y, [jnp.sin, jnp.cos, lambda z: -z], c), c[0]), x, i),
        lax.cond(p, lambda: x, lambda: x * 0),
        lax.cond(p, lambda: 1, lambda: 2),
        lax.while_loop(
            lambda s: (s[0] < 6) & (s[1].max() < 50),
            lambda s: (s[0] + 1, lax.cond(s[0] > 2, lambda y: y * 2, lambda y: y + 1, s[1])),
            (0, x),
        ),
    )


@case(normal(6), loose=8)
def vmapped_while(x):
    def newton(a):
        return lax.while_loop(lambda y: jnp.abs(y * y - a) > 1e-2, lambda y: (y + a / y) / 2, a)

    return jax.vmap(newton)(jnp.abs(x) + 0.5), jax.vmap(
        lambda a: lax.fori_loop(0, 3, lambda i, y: y * a, a)
    )(x)


@case(normal(5, 4), normal(4, 4, seed=3), loose=32)
def gradient_of_scan(x, w):
    def loss(w, x):
        _, ys = lax.scan(lambda h, y: (jnp.tanh(h @ w + y), jnp.tanh(h @ w + y)), jnp.zeros(4), x)
        return jnp.sum(ys**2)

    return jax.value_and_grad(loss, (0, 1))(w, x), jax.grad(jax.checkpoint(loss))(w, x)


GRADIENTS = {
    "logsumexp": jax.nn.logsumexp,
    "sort": lambda x: (jnp.sort(x, 1) * jnp.arange(6)).sum(),
    "max": lambda x: x.max(1).sum(),
    "cumsum": lambda x: jnp.sin(jnp.cumsum(x, 1)).sum(),
    "cumprod": lambda x: jnp.cumprod(x, 1).sum(),
    "prod": lambda x: x.prod(0).sum(),
    "gather": lambda x: (x[jnp.array([0, 2, 2, 3])] ** 2).sum(),
    "where": lambda x: jnp.where(x > 0, x**2, jnp.sin(x)).sum(),
    "top_k": lambda x: (lax.top_k(x, 3)[0] ** 2).sum(),
    "norm": jnp.linalg.norm,
    "gelu": lambda x: jax.nn.gelu(x).sum(),
    "erf": lambda x: lax.erf(x).sum(),
    "var": jnp.var,
    "softmax": lambda x: (jax.nn.softmax(x) ** 2).sum(),
    "abs": lambda x: jnp.abs(x).sum(),
    "pad": lambda x: (jnp.pad(x, 1, mode="reflect") ** 2).sum(),
    "roll": lambda x: (jnp.roll(x, 1, 1) * x).sum(),
    "matmul": lambda x: jnp.tanh(x @ x.T).sum(),
    "cummax": lambda x: (lax.cummax(x, 1) ** 2).sum(),
    "sinc": lambda x: jnp.sinc(x).sum(),
    "logistic": lambda x: jax.nn.log_sigmoid(x).sum(),
    "arctan2": lambda x: jnp.arctan2(x, x[::-1] + 3).sum(),
    "power": lambda x: (jnp.abs(x) ** 1.5).sum(),
    "index": lambda x: x.at[1].mul(3.0).at[2, 2].set(0.0).sum(),
    "dynamic": lambda x: (lax.dynamic_slice(x, (1, 2), (2, 2)) ** 2).sum(),
    "lgamma": lambda x: lax.lgamma(jnp.abs(x) + 1).sum(),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda: (x**2).sum(), lambda: x.sum()),
    "clip": lambda x: jnp.clip(x, -0.5, 0.5).sum(),
}
case(X, name="gradients", loose=32)(
    lambda x: {name: jax.grad(f)(x) for name, f in GRADIENTS.items()}
)
case(X, name="second_derivatives", loose=64)(
    lambda x: (
        jax.hessian(lambda y: jnp.sum(jnp.sin(y) * y[::-1]))(x[0]),
        jax.jacrev(jnp.tanh)(x[0]),
        jax.jacfwd(jax.nn.softmax)(x[0]),
        jax.jvp(lambda y: y @ y.T, (x,), (x + 1,)),
        jax.grad(lambda y: jax.grad(lambda z: (z**3).sum())(y).sum())(x),
    )
)
case(normal(3, 4, 6), name="vmaps", loose=16)(
    lambda x: (
        jax.vmap(lambda y: y @ y.T)(x),
        jax.vmap(jnp.sort, 2, 1)(x),
        jax.vmap(jax.vmap(jnp.cumsum))(x),
        jax.vmap(jnp.argmax)(x),
        jax.vmap(lambda a, b: jnp.outer(a, b), (0, None))(x[0], x[1, 0]),
        jax.vmap(jax.grad(lambda y: jnp.sum(jnp.sin(y) ** 2)))(x),
    )
)

KEY = np.array([7, 42], np.uint32)


@case(KEY, loose=8)
def random_numbers(raw):
    key = jax.random.wrap_key_data(raw)
    a, b, c, d = jax.random.split(key, 4)
    return (
        jax.random.uniform(a, (5, 7)),
        jax.random.normal(b, (33,)),
        jax.random.randint(c, (9,), 0, 100),
        jax.random.bernoulli(d, 0.3, (11,)),
        jax.random.permutation(a, 12),
        jax.random.categorical(b, jnp.arange(4.0), shape=(6,)),
        jax.random.key_data(jax.random.fold_in(c, 3)),
        jax.random.gumbel(d, (4,)),
        jax.random.truncated_normal(a, -1, 1, (5,)),
        jax.random.bits(b, (3,), jnp.uint8),
        jax.random.exponential(c, (3,)),
        jax.random.normal(d, (5,), jnp.bfloat16),
        jax.random.uniform(a, ()),
        jax.random.choice(b, 10, (4,), replace=False),
        jax.random.uniform(c, (3,), jnp.float16),
        jax.random.laplace(d, (3,)),
        jax.random.cauchy(a, (3,)),
    )


case(KEY, name="random_gamma", loose=64)(
    lambda k: jax.random.gamma(jax.random.wrap_key_data(k), 2.0, (3,))
)
case(KEY, name="random_poisson")(
    lambda k: jax.random.poisson(jax.random.wrap_key_data(k), 3.0, (5,))
)
case(name="random_constant_key", loose=4)(lambda: jax.random.normal(jax.random.key(0), (4, 5)))
case(normal(6, 8), KEY, name="dropout")(
    lambda x, k: jnp.where(
        jax.random.bernoulli(jax.random.wrap_key_data(k), 0.8, x.shape), x / 0.8, 0
    )
)

BIG, TABLE = normal(300, 400, scale=0.1), whole(1000, dtype=np.int32)
case(normal(5, 300), name="closed_over_weights", loose=32)(
    lambda x: (
        x @ jnp.asarray(BIG),
        x @ (jnp.asarray(BIG) * 2 + 1),
        jnp.asarray(TABLE)[:7] + 1,
        jnp.asarray(BIG).sum(),
        (x * 2) @ jnp.asarray(BIG),
    )
)
case(
    {"b": [normal(3), (normal(2, 2), None)], "a": {"z": whole(4), "c": truth(2)}, "e": ()},
    (normal(),),
    name="trees",
)(lambda t, u: {"out": (t["b"][0] * u[0], [t["a"], None]), "empty": [], "same": t["b"][1][0]})
case(normal(4), normal(3), name="unused_and_repeated")(
    lambda x, y: (x, x, 3, jnp.zeros(2), [x + 1, x + 1])
)
case(X, name="nested_jit")(
    lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) + jax.jit(jnp.sin)(y * 2))(x)
)
case(X, name="custom_gradient")(
    lambda x: jax.grad(lambda y: jnp.sum(jax.nn.relu(y) + jax.nn.silu(y) + jax.nn.relu6(y)))(x)
)
case(X, 2.5, 3, True, name="python_scalars")(
    lambda x, a, n, p: (x * a + n, jnp.where(p, a, n), n + 1, a)
)
case(
    positive(3, 4, dtype=np.float64), whole(5, dtype=np.int64), name="wide_mix", wide=True, loose=4
)(
    lambda x, n: (
        jnp.cumsum(n),
        jnp.linalg.norm(x),
        x.astype(jnp.float32) @ x.T.astype(jnp.float32),
        n.astype(jnp.float64) / 3,
        jnp.argsort(n),
        x[n % 3],
        jax.random.normal(jax.random.key(1), (3,)),
        jnp.median(x),
        jnp.bincount(n - n.min(), length=20),
    )
)


@case(
    normal(2, 8, 16),
    normal(16, 48, scale=0.2),
    normal(16, 16, scale=0.2),
    normal(16, 64, scale=0.2),
    normal(64, 16, scale=0.1),
    loose=64,
)
def transformer_step(x, qkv, out, up, down):
    def model(weights, x):
        qkv, out, up, down = weights
        q, k, v = (y.reshape(2, 8, 4, 4).transpose(0, 2, 1, 3) for y in jnp.split(x @ qkv, 3, -1))
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ k.swapaxes(-1, -2) / 2, -1e9)
        x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(2, 8, 16) @ out
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return jnp.mean((x + jax.nn.gelu(y @ up) @ down) ** 2)

    loss, grads = jax.value_and_grad(model)((qkv, out, up, down), x)
    return loss, jax.tree.map(
        lambda w, g: w - 0.1 * g / (jnp.sqrt(jnp.sum(g * g)) + 1e-6), (qkv, out, up, down), grads
    )


@case(
    normal(2, 12, 12, 3),
    normal(3, 3, 3, 8, scale=0.3),
    normal(3, 3, 8, 8, scale=0.2),
    normal(8, 10),
    whole(2, low=0, high=10),
    loose=64,
)
def convolution_training_step(x, w1, w2, w3, labels):
    def model(w, x):
        for i in (0, 1):
            x = jax.nn.relu(
                lax.conv_general_dilated(
                    x, w[i], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.mean((1, 2)) @ w[2]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    return jax.value_and_grad(model)((w1, w2, w3), x)


@case(
    normal(1, 5),
    normal(5, 20, scale=0.4),
    normal(5, 20, scale=0.4, seed=1),
    normal(9, 1, 5),
    loose=16,
)
def lstm(h, w, u, xs):
    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (h, h * 0), xs)


@case(normal(11, 8), whole(1, low=0, high=11))
def decoding(table, first):
    def step(state):
        i, tokens, cache = state
        cache = lax.dynamic_update_slice(cache, table[tokens[i]][None], (i, 0))
        scores = jnp.where(jnp.arange(6) <= i, cache @ cache[i], -jnp.inf)
        logits = (jax.nn.softmax(scores) @ cache) @ table.T
        return i + 1, tokens.at[i + 1].set(jnp.argmax(logits)), cache

    start = (0, jnp.zeros(7, jnp.int32).at[0].set(first[0]), jnp.zeros((6, 8)))
    return lax.while_loop(lambda s: s[0] < 6, step, start)


@case(normal(4, 6), np.int32(3), loose=16)
def loops_that_read_their_start(x, n):
    z = jnp.sin(x)
    y = z.reshape(24)

    def turn(i, s):
        return s[1], s[2], s[0] + z

    return (
        lax.fori_loop(0, n, lambda i, a: lax.fori_loop(0, n, lambda j, b: b * 0.5 + a + z, a), z),
        lax.fori_loop(0, n, lambda i, a: lax.cond(i > 1, lambda: a * y, lambda: y + a), y),
        lax.cond(n > 2, lambda: lax.fori_loop(0, n, lambda i, a: a @ z.T @ z * 0.1, z), lambda: z),
        lax.fori_loop(0, n, turn, (z, z * 2, z)),
        lax.scan(lambda a, i: (a.at[i].set(z[0] * i), a.sum()), z, jnp.arange(4)),
    )
