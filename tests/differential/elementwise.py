"""Elementwise functions over every kind of type, broadcasting and conversions."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .catalogue import BF16, HOSTILE, add_all, case, normal, positive, truth, unit, whole

FLOATS = {"f16": np.float16, "bf16": BF16, "f32": np.float32}

UNARY = [
    jnp.exp,
    jnp.expm1,
    jnp.tanh,
    jnp.sin,
    jnp.cos,
    jnp.tan,
    jnp.arctan,
    jnp.sinh,
    jnp.cosh,
    jnp.arcsinh,
    jnp.cbrt,
    jnp.floor,
    jnp.ceil,
    jnp.round,
    jnp.trunc,
    jnp.sign,
    jnp.abs,
    jnp.square,
    jax.lax.erf,
    jax.nn.sigmoid,
    jax.nn.gelu,
    jax.nn.silu,
    jax.nn.softplus,
    jax.nn.relu6,
    jax.nn.elu,
    jax.nn.selu,
    jax.nn.hard_swish,
    jax.nn.mish,
    jnp.signbit,
    jnp.isnan,
    jnp.isfinite,
    jax.lax.erfc,
    jnp.exp2,
    jax.nn.log_sigmoid,
    jnp.sinc,
    jnp.nan_to_num,
    jnp.deg2rad,
    jnp.spacing,
]
POSITIVE = [
    jnp.log,
    jnp.log1p,
    jnp.sqrt,
    jax.lax.rsqrt,
    jnp.log2,
    jnp.log10,
    jnp.reciprocal,
    jax.scipy.special.gammaln,
    jax.scipy.special.digamma,
]
UNIT = [jnp.arcsin, jnp.arccos, jnp.arctanh, jax.lax.erf_inv]
BINARY = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.divide,
    jnp.maximum,
    jnp.minimum,
    jnp.arctan2,
    jnp.power,
    jnp.remainder,
    jnp.fmod,
    jnp.floor_divide,
    jnp.hypot,
    jnp.copysign,
    jnp.logaddexp,
    jnp.nextafter,
    jnp.heaviside,
    jnp.less,
    jnp.equal,
    jnp.not_equal,
    jnp.fmax,
]


def together(functions: list, *inputs):
    return {f.__name__: f(*inputs) for f in functions}


for kind, dtype in FLOATS.items():
    n = 37
    add_all(
        {f"unary_{kind}": partial(together, UNARY)}, normal(3, n, dtype=dtype, scale=2), loose=4
    )
    add_all({f"positive_{kind}": partial(together, POSITIVE)}, positive(n, dtype=dtype), loose=8)
    add_all({f"unit_{kind}": partial(together, UNIT)}, unit(n, dtype=dtype), loose=8)
    add_all(
        {f"binary_{kind}": partial(together, BINARY)},
        positive(4, n, dtype=dtype),
        positive(n, dtype=dtype, seed=2),
        loose=4,
    )
add_all({"unary_f64": partial(together, UNARY)}, normal(3, 37, dtype=np.float64), wide=True)
add_all({"positive_f64": partial(together, POSITIVE)}, positive(37, dtype=np.float64), wide=True)
add_all({"unit_f64": partial(together, UNIT)}, unit(37, dtype=np.float64), wide=True)
add_all(
    {"binary_f64": partial(together, BINARY)},
    positive(4, 7, dtype=np.float64),
    positive(7, dtype=np.float64, seed=2),
    wide=True,
)
# Steep at huge arguments, where the reduction of XLA's own sine is not exact.
GENTLE = [f for f in UNARY if f not in (jnp.sin, jnp.cos, jnp.tan, jnp.sinc, jnp.spacing)]
add_all({"unary_hostile": partial(together, GENTLE)}, HOSTILE, loose=4)
add_all({"log_hostile": partial(together, POSITIVE[:6])}, HOSTILE, loose=4)
add_all(
    {
        "binary_hostile": partial(
            together,
            [
                f
                for f in BINARY
                if f
                not in (
                    jnp.power,
                    jnp.hypot,
                    jnp.floor_divide,
                    jnp.remainder,
                    jnp.arctan2,
                    jnp.nextafter,
                    jnp.heaviside,
                )
            ],
        )
    },
    HOSTILE[:, None],
    HOSTILE[None, :],
    loose=4,
)

INTEGER = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    jnp.minimum,
    jnp.bitwise_and,
    jnp.bitwise_or,
    jnp.bitwise_xor,
    jnp.less,
    jnp.greater_equal,
    jnp.not_equal,
    jnp.floor_divide,
    jnp.remainder,
    jax.lax.div,
    jax.lax.rem,
    jnp.equal,
]
for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32):
    low = -9 if np.dtype(dtype).kind == "i" else 0
    x = whole(5, 13, low=low, high=120, dtype=dtype)
    y = whole(5, 13, low=1, high=9, dtype=dtype, seed=3)
    add_all({f"binary_{np.dtype(dtype).name}": partial(together, INTEGER)}, x, y)
for dtype in (np.int64, np.uint64):
    x = whole(13, low=0, high=1 << 62, dtype=dtype)
    y = whole(13, low=1, high=1 << 33, dtype=dtype, seed=3)
    add_all({f"binary_{np.dtype(dtype).name}": partial(together, INTEGER)}, x, y, wide=True)


@case(
    whole(9, low=-(1 << 31), high=(1 << 31) - 1),
    np.array([0, 1, 5, 31, 32, 33, 40, 7, 2], np.int32),
)
def shifts(x, n):
    return (
        jax.lax.shift_left(x, n),
        jax.lax.shift_right_arithmetic(x, n),
        jax.lax.shift_right_logical(x, n),
        jax.lax.population_count(x),
        jax.lax.clz(x),
        ~x,
        x.view(jnp.float32).view(jnp.int32),
        jnp.abs(x),
        jnp.sign(x),
        -x,
    )


@case(whole(6, dtype=np.int8), np.array([0, 1, 7, 8, 9, 3], np.int8))
def shifts_int8(x, n):
    return x << n, x >> n, jax.lax.shift_right_logical(x, n), jax.lax.clz(x)


@case(np.array([-(1 << 31), 5, -7, 7, 0], np.int32), np.array([-1, 0, 2, -2, 0], np.int32))
def integer_division_corners(x, y):
    return jax.lax.div(x, y), jax.lax.rem(x, y), x // y, x % y


@case(whole(7, low=-3, high=4), whole(7, low=0, high=5, seed=5))
def integer_power(x, y):
    return x**y, x**3, x**0, jax.lax.integer_pow(x, 7)


@case(positive(7))
def float_powers(x):
    return x**2, x**3, x**-1, x**-2, x**0.5, x**1.7, x**0, x**10, 2.0**x, jnp.float_power(x, 3)


@case(truth(4, 5), truth(5, seed=9))
def logic(p, q):
    return (
        p & q,
        p | q,
        p ^ q,
        ~p,
        p == q,
        p < q,
        jnp.where(p, 1, q),
        p + q,
        p * q,
        p.sum(),
        p.all(0),
    )


@case(normal(3, 5, dtype=np.complex64), normal(3, 5, dtype=np.complex64, seed=4), loose=8)
def complex_arithmetic(x, y):
    return (
        x + y,
        x - y,
        x * y,
        x / y,
        -x,
        jnp.conj(x),
        jnp.real(x),
        jnp.imag(x),
        jnp.abs(x),
        jnp.angle(x),
        x == y,
        jnp.exp(x),
        jnp.log(x),
        jnp.sqrt(x),
        jnp.sin(x),
        jnp.cos(x),
        jnp.tanh(x),
        x * 2.0,
        jax.lax.complex(jnp.real(x), jnp.imag(y)),
        jnp.sign(x),
        x**2,
        jnp.sum(x, 0),
        jnp.prod(x, 1),
        jnp.mean(x),
        jnp.where(jnp.real(x) > 0, x, y),
        x @ y.T,
    )


@case(normal(3, 4, dtype=np.complex128), wide=True, loose=8)
def complex_128(x):
    return (
        jnp.exp(x),
        jnp.log(x),
        x * x,
        jnp.abs(x),
        x / (x + 1),
        jnp.sum(x, -1),
        x.T.conj() @ x,
        x.T @ x,
    )


TYPES = [
    jnp.bool_,
    jnp.int8,
    jnp.uint8,
    jnp.int16,
    jnp.int32,
    jnp.uint32,
    jnp.float16,
    jnp.bfloat16,
    jnp.float32,
]


def conversions(x):
    return [x.astype(kind) for kind in TYPES]


for given in (
    whole(19, low=0, high=100),
    positive(19) * 30,
    truth(19),
    whole(19, dtype=np.int8),
    positive(19, dtype=np.float16),
    positive(19, dtype=BF16),
    whole(19, low=0, high=200, dtype=np.uint8),
):
    case(given, name=f"convert_{given.dtype.name}")(conversions)
case(whole(19, low=-(1 << 30), high=1 << 30), name="convert_large_int32")(
    lambda x: [x.astype(t) for t in TYPES if t is not jnp.float16]
)
case(HOSTILE, name="convert_hostile")(
    lambda x: [
        x.astype(t)
        for t in (jnp.bool_, jnp.int32, jnp.float16, jnp.bfloat16, jnp.int8, jnp.uint8, jnp.uint32)
    ]
)
case(normal(5, 3).astype(np.float32), name="convert_fp8")(
    lambda x: [
        x.astype(t).astype(jnp.float32)
        for t in (jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3fnuz, jnp.float8_e5m2fnuz)
    ]
)
case(whole(9, low=-8, high=8), name="convert_int4")(
    lambda x: (x.astype(jnp.int4).astype(jnp.int32), (x & 7).astype(jnp.uint4).astype(jnp.float32))
)
case(normal(8), name="bitcasts")(
    lambda x: (
        jax.lax.bitcast_convert_type(x, jnp.int32),
        jax.lax.bitcast_convert_type(x, jnp.uint8),
        jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.int16), jnp.float32),
    )
)
case(normal(3, 1, 5), normal(4, 1), normal(), name="broadcasting")(
    lambda x, y, z: (
        x + y,
        x * z,
        y - z,
        jnp.broadcast_to(z, (2, 0, 3)),
        x + jnp.ones((2, 3, 4, 5)),
    )
)
case(normal(), whole(), truth(), name="rank_zero")(
    lambda x, n, p: (x + n, jnp.where(p, x, n), x * x, jnp.sin(x), x[None], n << 2, p & True)
)
case(normal(1_000_003), name="large_line", loose=8)(
    lambda x: (jnp.tanh(x) * 2 + x, jnp.sum(x), jnp.max(x), jnp.argmax(x), x[::-3], jnp.mean(x * x))
)
case(normal(0, 4), normal(4, 0), name="empty")(
    lambda x, y: (
        x + 1,
        x @ jnp.ones((4, 3)),
        y @ x,
        jnp.sum(x, 0),
        jnp.sum(x),
        jnp.concatenate([x, x]),
        y.T,
        jnp.pad(x, 1),
        jnp.max(y, 0),
        jnp.sort(x),
        jnp.cumsum(x, 1),
        jnp.prod(y),
        x.reshape(2, 0, 7),
        jnp.argsort(y, 1),
        jnp.take(jnp.ones(3), jnp.zeros((0,), int)),
        jax.nn.softmax(x),
        jnp.ones(3).at[jnp.zeros((0,), int)].set(2.0),
    )
)
case(normal(9), normal(9, seed=2), name="where_and_clip")(
    lambda x, y: (
        jnp.where(x > y, x, y * 2),
        jnp.clip(x, -0.5, 0.5),
        jax.lax.clamp(0.0, x, y + 3),
        jnp.select([x > 1, x > 0], [x, y], 7.0),
        jnp.piecewise(x, [x < 0], [jnp.exp, 1.0]),
    )
)
case(normal(6), name="reduce_precision")(lambda x: jax.lax.reduce_precision(x, 5, 4))
case(normal(5, 7), name="casts_chain")(
    lambda x: (x.astype(jnp.bfloat16) * 3 + 1).astype(jnp.float16).sum(1).astype(jnp.float32)
)
case(positive(5), name="special_functions", loose=16)(
    lambda x: (
        jax.scipy.special.betaln(x, x + 1),
        jax.lax.lgamma(x),
        jax.scipy.special.xlogy(x, x),
        jax.scipy.special.entr(x),
        jax.scipy.special.expit(x),
        jax.lax.bessel_i0e(x),
        jax.scipy.special.ndtri(x / 4),
        jax.scipy.special.ndtr(x),
        jax.lax.bessel_i1e(x),
    )
)
case(positive(5), name="incomplete_gamma", loose=32)(
    lambda x: (jax.scipy.special.gammainc(x, x + 1), jax.scipy.special.gammaincc(x + 1, x))
)
case(unit(5), name="polygamma", loose=32)(
    lambda x: (jax.scipy.special.polygamma(1, x + 2), jax.scipy.special.zeta(x + 3, 2.0))
)
