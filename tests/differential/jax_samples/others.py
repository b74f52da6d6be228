"""Samples of jax.nn, jax.image, jax.random and jax.tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random as R  # noqa: N812

from .table import (
    FLOATS,
    INEXACT,
    SINGLE,
    Table,
    f,
    i,
    matrix,
    n,
    p,
    part,
    truth,
    w,
)

nn = Table("jax.nn", FLOATS)
t = nn
t("relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish mish log_sigmoid "
  "hard_sigmoid hard_silu hard_swish hard_tanh squareplus tanh identity elu celu selu leaky_relu "
  "gelu softmax log_softmax logsumexp logmeanexp standardize glu", n(3, 4))  # fmt: skip
t("log1mexp", p(3, 4))
t("elu celu leaky_relu squareplus", n(3, 4), 0.3)
t("gelu", n(3, 4), approximate=False)
t("softmax log_softmax standardize", n(3, 4), axis=0, where=truth(3, 4))
t("logsumexp", n(3, 4), 1, n(3, 4), True, True)
t("logsumexp logmeanexp", n(3, 4), axis=0, where=truth(3, 4))
t("glu", n(4, 3), 0)
t("one_hot", i(5, high=6), 4, types=SINGLE)
t("one_hot", i(2, 3, low=-1, high=5), 4, dtype=jnp.bfloat16, axis=0, types=SINGLE)
t("softmax sigmoid relu", n(3, 4), types=("complex64", "int32"))
t("dot_product_attention", n(2, 5, 4, 8), n(2, 6, 2, 8), n(2, 6, 2, 8))
t("dot_product_attention", n(2, 5, 2, 8), n(2, 5, 2, 8), n(2, 5, 2, 8), is_causal=True,
  types=SINGLE)  # fmt: skip
t("dot_product_attention", n(2, 5, 2, 8), n(2, 5, 2, 8), n(2, 5, 2, 8), n(1, 2, 5, 5),
  truth(2, 1, 5, 5), query_seq_lengths=i(2, low=1), key_value_seq_lengths=i(2, low=1),
  local_window_size=(2, 1), types=SINGLE)  # fmt: skip
t.by("scaled_matmul", lambda a, b, s, r: jax.nn.scaled_matmul(
    a.astype("float8_e4m3fn"), b.astype("float8_e4m3fn"), s.astype("float8_e8m0fnu"),
    r.astype("float8_e8m0fnu")), n(1, 3, 64), n(1, 5, 64), p(1, 3, 2), p(1, 5, 2),
    types=SINGLE)  # fmt: skip
t.by("scaled_dot_general get_scaled_dot_general_config", lambda a, b: jax.nn.scaled_dot_general(
    a, b, (((2,), (2,)), ((0,), (0,))),
    configs=[jax.nn.get_scaled_dot_general_config("mxfp8")] * 3), n(1, 4, 64), n(1, 8, 64),
    types=SINGLE)  # fmt: skip

initializers = Table("jax.nn.initializers", SINGLE)
INITIALIZERS = (
    "glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform "
    "lecun_normal lecun_uniform normal orthogonal truncated_normal uniform xavier_normal "
    "xavier_uniform delta_orthogonal"
)
for name in INITIALIZERS.split():  # fmt: skip
    shape = (3, 4, 5) if name == "delta_orthogonal" else (4, 5)
    initializers.by(
        name,
        lambda k, name=name, shape=shape: getattr(jax.nn.initializers, name)()(
            R.wrap_key_data(k), shape
        ),
        i(2, high=99, dtype="uint32"),
    )
initializers.by(
    "variance_scaling",
    lambda k: jax.nn.initializers.variance_scaling(2.0, "fan_avg", "truncated_normal")(
        R.wrap_key_data(k), (4, 5)
    ),
    i(2, dtype="uint32"),
)
initializers.by(
    "constant ones zeros", lambda: jax.nn.initializers.constant(2.0)(jax.random.key(0), (4, 5))
)
initializers.none("a type", "Initializer")

image = Table("jax.image", FLOATS)
t = image
for method in ("nearest", "linear", "cubic", "lanczos3", "lanczos5"):
    t("resize", n(5, 6, 2), (7, 4, 2), method)
t("resize", n(5, 6), (3, 9), "linear", antialias=False)
t("resize", w(5, 6), (3, 9), "nearest", types=("int32", "uint8"))
t("scale_and_translate", n(5, 6), (7, 4), (0, 1), f(2, kind="positive"), f(2, kind="part"), "cubic")
image.none("a type", "ResizeMethod")

random = Table("jax.random", SINGLE)
KINDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}


def drawn(
    names: str, function: Callable[..., Any], *more: Any, types: tuple[str, ...] = ("float32",)
) -> None:
    """Samples of a distribution with keys of each kind."""
    for kind, words in KINDS.items():

        def call(key: Any, *values: Any, kind: str = kind) -> Any:
            return function(R.wrap_key_data(key, impl=kind), *values)

        random.by(names, call, i(words, high=2**31 - 1, dtype="uint32"), *more, types=types)


SHAPED = "cauchy exponential gumbel laplace logistic maxwell normal uniform"
for name in SHAPED.split():
    for dtype in ("float32", "bfloat16", "float16"):
        drawn(name, lambda k, name=name, dtype=dtype: getattr(R, name)(k, (3, 5), dtype))
    drawn(name, lambda k, name=name: getattr(R, name)(k, (3, 5)), types=("float64",))
drawn("ball", lambda k: R.ball(k, 3, 2.0, (4,)))
drawn("normal", lambda k: R.normal(k, (5,), "complex64"))
drawn("uniform", lambda k, a: R.uniform(k, (5,), minval=a, maxval=3), n())
drawn("bernoulli", lambda k, a: R.bernoulli(k, a, (3, 5)), part(5))
drawn("bernoulli", lambda k, a: R.bernoulli(k, a, mode="high"), part(5))
drawn("beta", R.beta, p(5), p(5), types=("float32", "float64"))
drawn("binomial", lambda k, c, a: R.binomial(k, c, a), f(6, kind="positive"), part(6))
drawn("binomial", lambda k, a: R.binomial(k, 40, a, (6,)), part(6))
for dtype in ("uint8", "uint16", "uint32"):
    drawn("bits", lambda k, dtype=dtype: R.bits(k, (7,), dtype))
drawn("bits", lambda k: R.bits(k, (7,), "uint64"), types=("int64",))
drawn("categorical", R.categorical, n(3, 5))
drawn("categorical", lambda k, x: R.categorical(k, x, axis=0, shape=(2, 5)), n(3, 5))
drawn("categorical", lambda k, x: R.categorical(k, x, shape=(2, 2), replace=False), n(5))
drawn("chisquare", R.chisquare, p(5))
drawn("choice", lambda k, x: R.choice(k, x, (6,)), n(5, 2))
drawn("choice", lambda k, x: R.choice(k, x, (3,), replace=False), n(5))
drawn("choice", lambda k, x, q: R.choice(k, x, (4,), p=q / q.sum()), n(5), p(5))
drawn("choice", lambda k, x, q: R.choice(k, x, (3,), replace=False, p=q / q.sum()), n(5), p(5))
drawn("clone", lambda k: R.key_data(R.clone(k)))
drawn("dirichlet", R.dirichlet, p(2, 4))
drawn("double_sided_maxwell", lambda k, a, s: R.double_sided_maxwell(k, a, s, (5,)), n(), p())
drawn("f", R.f, p(5), p(5))
drawn("fold_in", lambda k, d: R.key_data(R.fold_in(k, d)), i(high=99))
drawn("gamma loggamma", R.gamma, p(6), types=("float32", "float64"))
drawn("loggamma", R.loggamma, p(6), types=("float32", "bfloat16"))
drawn("generalized_normal", lambda k: R.generalized_normal(k, 1.5, (5,)))
drawn("geometric", R.geometric, part(5))
drawn("key_data wrap_key_data", lambda k: R.key_data(k))
for kind in KINDS:
    random.by("PRNGKey key key_data", lambda s, kind=kind: (
        R.key_data(R.key(s, impl=kind)), R.PRNGKey(s, impl=kind)), i(high=99))  # fmt: skip
drawn("lognormal", R.lognormal, p(5))
drawn("multinomial", lambda k, q: R.multinomial(k, 9, q / q.sum()), p(4))
for method in ("cholesky", "eigh", "svd"):
    drawn(
        "multivariate_normal",
        lambda k, m, c, method=method: (
            jnp.abs(R.multivariate_normal(k, m * 0, c, (4,), method=method))
            if method == "cholesky"
            else R.multivariate_normal(k, m, jnp.diag(jnp.diag(c)), (4,), method="cholesky")
        ),
        n(3),
        matrix(3, 3),
    )
drawn("orthogonal", lambda k: R.orthogonal(k, 3, (2,)))
drawn("pareto", R.pareto, p(5))
drawn("permutation", R.permutation, n(5, 2))
drawn("permutation", lambda k, x: R.permutation(k, x, 1, independent=True), n(3, 5))
drawn("poisson", R.poisson, p(6))
drawn("poisson", lambda k, x: R.poisson(k, x * 20, (6,)), p(6))
drawn("rademacher", lambda k: R.rademacher(k, (7,)))
for dtype in ("int8", "int32", "uint16"):
    drawn("randint", lambda k, dtype=dtype: R.randint(k, (7,), 2, 100, dtype))
drawn("randint", lambda k, a: R.randint(k, (7,), -a, a), i(high=9))
drawn("rayleigh", R.rayleigh, p(5))
drawn("split", lambda k: R.key_data(R.split(k, 3)))
drawn("split", lambda k: R.key_data(R.split(k, (2, 2))))
drawn("t", R.t, p(5))
drawn("triangular", lambda k, a: R.triangular(k, a - 1, a, a + 2), n(5))
drawn("truncated_normal", lambda k, a: R.truncated_normal(k, a - 1, a + 0.5), n(5))
drawn("wald", R.wald, p(5))
drawn("weibull_min", lambda k, a, c: R.weibull_min(k, a, c, (5,)), p(), p())
random.none("a question about types", "key_dtype key_impl")

tree = Table("jax.tree", INEXACT)
t = tree
t.by("map reduce leaves flatten unflatten structure transpose", lambda x, y: jax.tree.map(
    jnp.add, {"a": x, "b": (y, x)}, {"a": x, "b": (y, x)}), n(3), n(2))  # fmt: skip
t.by("reduce reduce_associative all", lambda x, y: jax.tree.reduce(
    lambda a, b: a + b.sum(), [x, y], 0), n(3), n(2))  # fmt: skip
t.by("map_with_path leaves_with_path flatten_with_path broadcast static", lambda x:
     jax.tree.leaves_with_path({"a": x})[0][1], n(3))  # fmt: skip
