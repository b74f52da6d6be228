"""Samples of jax.lax, jax.lax.linalg and jax.ops."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax as L  # noqa: N812
from jax import vmap

from .table import (
    ALL,
    BITS,
    FLOATS,
    INEXACT,
    INTEGERS,
    NUMBERS,
    REAL,
    SINGLE,
    Table,
    f,
    i,
    matrix,
    n,
    p,
    rising,
    truth,
    u,
    w,
)

lax = Table("jax.lax")
t = lax
FEW = ("float32", "int32", "bool", "complex64")
PAIR = ("float32", "float64")

# Elementwise.
t("abs neg sign square", n(3, 4), types=NUMBERS)
t("conj real imag", n(3, 4), types=("complex64",))
t("integer_pow", n(3, 4), 3, types=NUMBERS)
t("integer_pow", p(3, 4), -2, types=INEXACT)
t("sin cos tan sinh cosh tanh asinh exp exp2 expm1 atan logistic", n(3, 4), types=INEXACT)
t("asin acos atanh", u(3, 4), types=INEXACT)
t("acosh", p(3, 4), types=INEXACT)
t("log log1p sqrt rsqrt cbrt reciprocal", p(3, 4), types=INEXACT)
t("ceil floor is_finite erf erfc bessel_i0e bessel_i1e", n(3, 4), types=FLOATS)
t("round", n(3, 4), types=FLOATS)
t("round", n(3, 4), L.RoundingMethod.TO_NEAREST_EVEN, types=FLOATS)
t("lgamma digamma", p(3, 4), types=FLOATS)
t("lgamma digamma", n(3, 4), types=FLOATS)
t("erf_inv", u(3, 4), types=FLOATS)
t("igamma igammac igamma_grad_a random_gamma_grad", p(3, 4), p(3, 4), types=PAIR)
t("igamma igammac", p(3, 4), p(3, 4), types=("bfloat16", "float16"))
t("betainc", p(3, 4), p(3, 4), f(3, 4, kind="positive"), types=SINGLE)
t.by("betainc", lambda a, b, x: L.betainc(a, b, x / 4), p(3, 4), p(3, 4), p(3, 4), types=FLOATS)
t.by("polygamma", lambda x: L.polygamma(jnp.full_like(x, 2), x), p(3, 4), types=PAIR)
t.by("zeta", lambda x, q: L.zeta(x + 1, q), p(3, 4), p(3, 4), types=PAIR)
t("bitwise_not", n(3, 4), types=BITS)
t("population_count clz", n(3, 4), types=INTEGERS)
t("add sub mul", n(3, 4), n(3, 4), types=NUMBERS)
t("div", n(3, 4), p(3, 4), types=NUMBERS)
t("rem", n(3, 4), p(3, 4), types=REAL)
t("max min", n(3, 4), n(3, 4))
t("eq ne", n(3, 4), n(3, 4))
t("lt le gt ge", n(3, 4), n(3, 4), types=REAL)
t("pow", p(3, 4), n(3, 4), types=INEXACT)
t("pow", n(3, 4), i(3, 4), types=NUMBERS)
t("atan2", n(3, 4), n(3, 4), types=INEXACT)
t("nextafter", n(3, 4), n(3, 4), types=FLOATS)
t("complex", n(3, 4), n(3, 4), types=PAIR)
t("bitwise_and bitwise_or bitwise_xor", n(3, 4), n(3, 4), types=BITS)
t("shift_left shift_right_arithmetic shift_right_logical", n(3, 4), w(3, 4, low=0, high=5),
  types=INTEGERS)  # fmt: skip
t("mulhi", n(3, 4), n(3, 4), types=INTEGERS)
t("clamp", -0.5, n(3, 4), 1.0, types=FLOATS)
t.by("clamp", lambda a, x, b: L.clamp(a, x, b), n(), n(3, 4), n(3, 4), types=REAL)
t("select select_n", truth(3, 4), n(3, 4), n(3, 4))
t("select_n", i(3, 4, high=3), n(3, 4), n(3, 4), n(3, 4))
t("reduce_precision", n(3, 4), 5, 4, types=FLOATS)
t("convert_element_type", n(3, 4), jnp.float32, types=REAL)
t("convert_element_type", n(3, 4), jnp.int16, types=REAL)
t("convert_element_type", n(3, 4), jnp.complex64)
t("bitcast_convert_type", n(3, 4), jnp.uint8)
t("bitcast_convert_type", n(3, 4), jnp.int32, types=SINGLE)
t("stop_gradient optimization_barrier", n(3, 4))
t.by("dce_sink", lambda x: L.dce_sink(x) or x, n(3))

# Shapes and creation.
t("broadcast", n(3, 4), (2,))
t("broadcast_in_dim", n(3, 1), (2, 3, 4), (1, 2))
t("broadcast_to_rank", n(3, 4), 4)
t("broadcasted_iota", jnp.int32, (3, 4), 1, types=SINGLE)
t("iota", jnp.float32, 5, types=SINGLE)
t("full", (2, 3), 1.5, types=SINGLE)
t("full_like", n(3, 4), 1)
t("empty", (2, 3), jnp.float32, types=SINGLE)
t("reshape", n(3, 4), (2, 6))
t("reshape", n(3, 4), (6, 2), (1, 0))
t("collapse", n(2, 3, 4), 1)
t("expand_dims", n(3, 4), (0, 2))
t("squeeze", n(1, 3, 1), (0, 2))
t("transpose", n(2, 3, 4), (2, 0, 1))
t("rev", n(3, 4), (1,))
t("tile", n(3, 4), (2, 1))
t("concatenate", [n(3, 4), n(2, 4)], 0)
t("stack", [n(3, 4), n(3, 4)], 1)
t("unstack", n(3, 4), 1)
t("split", n(6, 4), (1, 3, 2), 0)
t("pad", n(3, 4), n(), ((1, 2, 1), (-1, 0, 0)))
t("slice", n(5, 6), (1, 0), (4, 6), (1, 2))
t("slice_in_dim", n(5, 6), 1, 5, 2, 1)
t("index_in_dim", n(5, 6), 2, 0)
t("shape_as_value", (2, 3), types=SINGLE)
t("dynamic_slice", n(5, 6), (i(), i()), (2, 3))
t("dynamic_slice_in_dim", n(5, 6), i(high=9), 3, 1)
t("dynamic_index_in_dim", n(5, 6), i(low=-3), 1, False)
t("dynamic_update_slice", n(5, 6), n(2, 3), (i(), i(high=9)))
t("dynamic_update_slice_in_dim", n(5, 6), n(2, 6), i(), 0)
t("dynamic_update_index_in_dim", n(5, 6), n(6), i(), 0)

# Indexing.
t.by("gather", lambda x, at: L.gather(
    x, at, L.GatherDimensionNumbers((1,), (0,), (0,)), (1, 4)), n(5, 4), i(3, 1))  # fmt: skip
t.by("gather", lambda x, at: L.gather(
    x, at, L.GatherDimensionNumbers((0, 1), (), (0, 1)), (2, 3), mode="fill", fill_value=7),
    n(5, 4), i(3, 2), types=FEW)  # fmt: skip
t.by("gather", lambda x, at: L.gather(
    x, at, L.GatherDimensionNumbers((1,), (1,), (1,), (0,), (0,)), (1, 1, 2), mode="clip"),
    n(3, 4, 5), i(3, 1, high=7), types=FEW)  # fmt: skip
t("index_take", n(5, 4), [i(3)], (0,))
ROWS = L.ScatterDimensionNumbers((1,), (0,), (0,))
t("scatter scatter_add scatter_min scatter_max scatter_sub", n(5, 4), i(3, 1, high=6), n(3, 4),
  ROWS)  # fmt: skip
t("scatter_mul", n(5, 4), i(3, 1), n(3, 4), ROWS)
t("scatter_apply", n(5, 4), i(3, 1), jnp.square, ROWS, update_shape=(3, 4), types=FEW)
t.by("scatter_add scatter", lambda x, at, y: L.scatter_add(
    x, at, y, L.ScatterDimensionNumbers((1, 2), (), (0, 1)), mode="clip"),
    n(5, 4), i(3, 2, low=-1, high=6), n(3, 2, 2), types=FEW)  # fmt: skip

# Reductions.
t("reduce_sum reduce_prod", n(3, 4, 5), (0, 2), types=NUMBERS)
t("reduce_max reduce_min", n(3, 4, 5), (0, 2))
t("reduce_and reduce_or reduce_xor", w(3, 4, 5), (1,), types=BITS)
t("argmax argmin", n(3, 4), 1, jnp.int32, types=(*REAL, "bool"))
t.by("reduce", lambda x: L.reduce(x, jnp.ones((), x.dtype), L.add, (1,)), n(3, 4))
t.by("reduce", lambda x, y: L.reduce(
    (x, y), (jnp.zeros((), x.dtype), jnp.int32(0)),
    lambda a, b: (L.select(a[0] >= b[0], a[0], b[0]), L.select(a[0] >= b[0], a[1], b[1])), (1,)),
    n(3, 4), i(3, 4), types=REAL)  # fmt: skip
t("cumsum cumprod cummax cummin", n(3, 4), 1, types=NUMBERS)
t("cumsum cumprod cummax cummin cumlogsumexp", n(3, 4), 0, True, types=FLOATS)
t.by("reduce_window", lambda x: L.reduce_window(
    x, jnp.zeros((), x.dtype), L.add, (1, 3), (1, 2), "SAME"), n(3, 8), types=NUMBERS)  # fmt: skip
t.by(
    "reduce_window",
    lambda x: L.reduce_window(x, -5.0, L.max, (2, 3), (1, 1), ((1, 0), (1, 1)), (2, 1), (1, 2)),
    n(4, 8),
    types=FLOATS,
)
t.by("associative_scan", lambda x: L.associative_scan(L.mul, x, axis=1), n(3, 5), types=NUMBERS)
t.by(
    "associative_scan",
    lambda x, y: L.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, y), reverse=True
    ),
    n(6),
    n(6),
    types=FEW[:2],
)

# Products.
t("dot", n(3, 4), n(4, 5), types=NUMBERS)
t("dot", n(4), n(4), types=NUMBERS)
t("batch_matmul", n(2, 3, 4), n(2, 4, 5), types=NUMBERS)
t("dot_general", n(2, 3, 4), n(4, 2, 5), (((2,), (0,)), ((0,), (1,))), types=ALL)
t("dot_general", n(2, 3, 4), n(4, 2, 5), (((2,), (0,)), ((0,), (1,))),
  preferred_element_type=jnp.float32, types=("bfloat16", "float16", "uint8"))  # fmt: skip
# Of numbers that bfloat16 has: XLA's CPU leaves out the rounding that the algorithm names.
t.by("dot_general", lambda x, y: L.dot_general(
    L.reduce_precision(x, 8, 7), L.reduce_precision(y, 8, 7), (((1,), (0,)), ((), ())),
    precision=L.DotAlgorithmPreset.BF16_BF16_F32), n(3, 4), n(4, 5), types=SINGLE)  # fmt: skip
t("dot_general", n(3, 4), n(4, 5), (((1,), (0,)), ((), ())), precision="highest", types=SINGLE)
for name in ("F32_F32_F32", "BF16_BF16_F32_X3"):
    t("dot_general", n(3, 4), n(4, 5), (((1,), (0,)), ((), ())),
      precision=getattr(L.DotAlgorithmPreset, name), types=SINGLE)  # fmt: skip
t.by("ragged_dot", lambda x, y: L.ragged_dot(x, y, jnp.array([2, 0, 3])), n(6, 3), n(3, 3, 4),
     types=NUMBERS)  # fmt: skip
t("ragged_dot", n(6, 3), n(2, 3, 4), i(2, low=1), types=SINGLE)
t.by("ragged_dot", lambda x, y: L.ragged_dot(
    x, y, jnp.array([2, 3]), preferred_element_type=jnp.float32), n(6, 3), n(2, 3, 4),
    types=("bfloat16", "float16"))  # fmt: skip
RAGGED = L.RaggedDotDimensionNumbers
t.by("ragged_dot_general", lambda x, y, s: L.ragged_dot_general(
    x, y, s, RAGGED((((1,), (1,)), ((), ())), (0,), (0,))), n(6, 3), n(2, 3, 4), i(2, low=1),
    types=FEW)  # fmt: skip
t.by("ragged_dot_general", lambda x, y, s: L.ragged_dot_general(
    x, y, s, RAGGED((((0,), (0,)), ((), ())), (0,), ())), n(6, 3), n(6, 4), i(3, low=1, high=3),
    types=FEW)  # fmt: skip
t.by("ragged_dot_general", lambda x, y, s: L.ragged_dot_general(
    x, y, s, RAGGED((((2,), (1,)), ((0,), (0,))), (0,), ())), n(6, 2, 3), n(6, 3, 4),
    i(2, low=1), types=FEW)  # fmt: skip
t.by("ragged_dot_general", lambda x, y, s: L.ragged_dot_general(
    x, y, s, RAGGED((((2,), (2,)), ((0,), (1,))), (1,), (0,))), n(2, 6, 3), n(3, 2, 3, 4),
    i(2, 3, low=0, high=3), types=FEW)  # fmt: skip
t.by("ragged_dot_general", lambda x, y, s: L.ragged_dot_general(
    x, y, s, RAGGED((((1,), (1,)), ((0,), (0,))), (1,), ())), n(2, 6, 3), n(2, 6, 4),
    i(2, 3, low=0, high=3), types=FEW)  # fmt: skip
t("conv", n(1, 2, 6, 6), n(3, 2, 3, 3), (1, 1), "SAME", types=NUMBERS)
t("conv_with_general_padding", n(1, 2, 6, 6), n(3, 2, 3, 3), (2, 1), ((1, 1), (0, 2)), (1, 2),
  (1, 1), types=NUMBERS)  # fmt: skip
t("conv_general_dilated", n(2, 8, 4), n(3, 2, 6), (2,), "VALID",
  dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2, types=INEXACT)  # fmt: skip
t("conv_general_dilated", n(4, 3, 8), n(6, 3, 3), (1,), ((1, 0),), batch_group_count=2,
  types=("float32", "bfloat16"))  # fmt: skip
t("conv_general_dilated", n(1, 2, 4, 5, 4), n(3, 2, 2, 3, 2), (1, 2, 1), "SAME",
  rhs_dilation=(1, 1, 2), types=SINGLE)  # fmt: skip
t("conv_general_dilated", n(1, 2, 6), n(3, 2, 3), (1,), "SAME",
  preferred_element_type=jnp.float32, types=("bfloat16",))  # fmt: skip
t("conv_general_dilated_patches", n(1, 2, 6, 6), (3, 3), (1, 1), "SAME", types=PAIR)
t("conv_general_dilated_local", n(1, 2, 6, 6), n(3, 18, 4, 4), (1, 1), "VALID", (3, 3),
  types=PAIR)  # fmt: skip
t("conv_transpose", n(1, 5, 5, 2), n(3, 3, 2, 3), (2, 2), "SAME", types=INEXACT)
t("conv_transpose", n(1, 5, 5, 2), n(3, 3, 3, 2), (2, 2), "VALID", transpose_kernel=True,
  types=SINGLE)  # fmt: skip
t("fft", n(3, 8), L.FftType.FFT, (8,), types=("complex64",))
t("fft", n(3, 8), L.FftType.RFFT, (8,), types=PAIR)

# Order.
t("sort", n(3, 6))
t("sort", n(3, 6), 0, False, types=REAL)
t("sort", (n(3, 6), i(3, 6)), num_keys=2, types=REAL)
t("sort_key_val", n(3, 6), i(3, 6), types=REAL)
t("top_k", n(3, 6), 2, types=REAL)
t("approx_max_k approx_min_k", n(3, 16), 2, types=("float32", "bfloat16"))
t("approx_max_k", n(16, 3), 2, 0, aggregate_to_topk=True, types=SINGLE)

# Control.
t.by("cond", lambda c, x: L.cond(c, jnp.sin, jnp.cos, x), truth(), n(3), types=INEXACT)
t.by("switch", lambda c, x: L.switch(c, [jnp.negative, jnp.square, lambda v: v], x), i(high=6),
     n(3), types=NUMBERS)  # fmt: skip
t.by("while_loop", lambda x: L.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 2),
                                          (0, x)), n(3), types=NUMBERS)  # fmt: skip
t.by("fori_loop", lambda k, x: L.fori_loop(0, k, lambda j, v: v + j.astype(v.dtype), x), i(), n(3),
     types=NUMBERS)  # fmt: skip
t.by("scan", lambda x, y: L.scan(lambda c, a: (c + a, c * a), x, y), n(3), n(5, 3), types=NUMBERS)
t.by("scan", lambda x, y: L.scan(lambda c, a: (c + a, c * a), x, y, reverse=True, unroll=2), n(3),
     n(5, 3), types=NUMBERS)  # fmt: skip
t.by("map", lambda x: L.map(jnp.cumsum, x), n(3, 4), types=NUMBERS)
t.by("map", lambda x: L.map(jnp.sort, x, batch_size=2), n(5, 4), types=REAL)
t.by("custom_linear_solve", lambda a, x: L.custom_linear_solve(
    lambda v: a @ v, x, lambda _, v: jnp.linalg.solve(a, v), symmetric=True), matrix(3, 3), n(3),
    types=PAIR)  # fmt: skip
t.by("custom_root", lambda x: L.custom_root(
    lambda y: y * y - x, x, lambda g, y0: L.fori_loop(0, 20, lambda _, y: 0.5 * (y + x / y), y0),
    lambda g, y: y / g(1.0)), p(), types=PAIR)  # fmt: skip
t.by("composite", lambda x: L.composite(lambda v: v * 2, "mine.double")(x), n(3), types=NUMBERS)
t.by("platform_dependent", lambda x: L.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), n(3),
     types=INEXACT)  # fmt: skip
t.by("create_token after_all", lambda x: (L.after_all(L.create_token(x)), x)[1], n(3))
t.by("with_sharding_constraint pbroadcast", lambda x: x, n(3), types=SINGLE)

# Random bits.
t("rng_bit_generator", i(4, dtype="uint32"), (3, 5), types=SINGLE)
t("rng_bit_generator", i(4, dtype="uint32"), (3, 5), jnp.uint8, types=SINGLE)
t.by(
    "rng_bit_generator",
    lambda k: L.rng_bit_generator(k, (7,), algorithm=L.RandomAlgorithm.RNG_THREE_FRY),
    i(2, dtype="uint64"),
    types=("int64",),
)
t.by(
    "rng_bit_generator",
    lambda k: L.rng_bit_generator(k, (7,), algorithm=L.RandomAlgorithm.RNG_PHILOX),
    i(2, dtype="uint64"),
    types=("int64",),
)

for name, call in {
    "psum": lambda x: L.psum(x, "i"), "pmax": lambda x: L.pmax(x, "i"),
    "pmin": lambda x: L.pmin(x, "i"), "pmean": lambda x: L.pmean(x, "i"),
    "all_gather": lambda x: L.all_gather(x, "i"),
    "all_to_all": lambda x: L.all_to_all(x, "i", 0, 0),
    "psum_scatter": lambda x: L.psum_scatter(x, "i"),
    "ppermute": lambda x: L.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]),
    "pshuffle": lambda x: L.pshuffle(x, "i", [2, 0, 1]),
    "pswapaxes": lambda x: L.pswapaxes(x, "i", 0),
    "axis_index": lambda x: x + L.axis_index("i").astype(x.dtype),
    "axis_size": lambda x: x * L.axis_size("i"),
}.items():  # fmt: skip
    t.by(name, vmap(call, axis_name="i"), n(3, 3), types=("float32", "int32"))

t.none("a type, or a question about types and shapes",
       "AccuracyMode ConvDimensionNumbers ConvGeneralDilatedDimensionNumbers DotAlgorithm "
       "DotAlgorithmPreset DotDimensionNumbers FftType GatherDimensionNumbers GatherScatterMode "
       "Precision PrecisionLike RaggedDotDimensionNumbers RandomAlgorithm RoundingMethod "
       "ScatterDimensionNumbers Tolerance broadcast_shapes conv_dimension_numbers "
       "conv_general_permutations conv_general_shape_tuple conv_shape_tuple "
       "conv_transpose_shape_tuple dtype padtype_to_pads reduce_window_shape_tuple")  # fmt: skip
t.none("between processes: tests/frontends/test_shard_map.py and test_jax_parallel.py",
       "pcast precv psend ragged_all_to_all stage")  # fmt: skip

linalg = Table("jax.lax.linalg", ("float32", "float64", "complex64"))
t = linalg
t("cholesky", matrix(2, 4, 4))
t.by("cholesky_update", lambda a, v: L.linalg.cholesky_update(jnp.linalg.cholesky(a).T, v),
     matrix(4, 4), n(4), types=PAIR)  # fmt: skip
t.by("eigh", lambda a: jnp.abs(L.linalg.eigh(a)[0]), matrix(2, 4, 4))
t.by("eigh", lambda a: L.linalg.eigh(a)[1], matrix(2, 4, 4))
t.by("eig", lambda a: jnp.sort(jnp.abs(L.linalg.eig(a)[0])), n(4, 4))
t.by("svd", lambda a: L.linalg.svd(a, compute_uv=False), n(2, 4, 3))
t("lu", n(2, 4, 3))
t("qr", n(2, 4, 3))
t("hessenberg", n(2, 4, 4))
t("tridiagonal", matrix(2, 4, 4))
t("schur", n(4, 4))
t("qdwh", n(4, 3), types=("float32",))
t("lu_pivots_to_permutation", i(3), 5, types=SINGLE)
t.by("householder_product", lambda a: L.linalg.householder_product(*jnp.linalg.qr(
    a, mode="raw")[:1], jnp.ones((3,), a.dtype)), n(3, 3))  # fmt: skip
t.by("ormqr", lambda a, c: L.linalg.ormqr(a, jnp.ones((3,), a.dtype), c), n(3, 3), n(3, 2))
t("symmetric_product", n(4, 3), f(4, 4), types=SINGLE)
t("triangular_solve", matrix(2, 4, 4), n(2, 4, 3), left_side=True, lower=True)
t("tridiagonal_solve", n(5), p(5), n(5), n(5, 2))
t.none("a type", "EigImplementation EighImplementation SvdAlgorithm")

ops = Table("jax.ops", REAL)
t = ops
t("segment_sum segment_prod segment_max segment_min", n(6, 2), i(6, high=5), num_segments=5)
t("segment_sum segment_prod segment_max segment_min", rising(6), i(6, low=-1, high=5),
  num_segments=4, mode="drop", bucket_size=2, types=("float32", "int32"))  # fmt: skip
