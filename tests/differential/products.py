"""Products, convolutions, pooling, normalisations and attention, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .catalogue import BF16, add_all, case, normal, truth, whole

EINSUMS = [
    ("ij,jk->ik", (5, 7), (7, 9)),
    ("ij,kj->ik", (5, 7), (9, 7)),
    ("ji,jk->ki", (7, 5), (7, 9)),
    ("bij,bjk->bik", (3, 5, 7), (3, 7, 9)),
    ("bhqd,bkhd->bhqk", (2, 3, 5, 8), (2, 6, 3, 8)),
    ("ijk,jki->", (2, 3, 4), (3, 4, 2)),
    ("i,j->ij", (5,), (6,)),
    ("ij,j->i", (5, 7), (7,)),
    ("i,ij->j", (5,), (5, 7)),
    ("i,i->", (9,), (9,)),
    ("ijk,kl->lij", (2, 3, 4), (4, 5)),
    ("abc,adc->bad", (2, 3, 4), (2, 5, 4)),
    ("ij,ij->ij", (3, 4), (3, 4)),
    ("bij,bjk->kbi", (3, 5, 7), (3, 7, 1)),
    ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 2, 3)),
    ("bi,bj->bij", (3, 4), (3, 5)),
    ("aib,bja->ij", (2, 3, 4), (4, 5, 2)),
    ("bqhd,bkhd->bqkh", (2, 5, 3, 8), (2, 6, 3, 8)),
    ("ii,ij->j", (4, 4), (4, 3)),
    ("ij,kl->", (2, 3), (4, 5)),
    ("bthc,bshc->bhts", (1, 17, 4, 16), (1, 17, 4, 16)),
    ("n,nd->d", (1,), (1, 33)),
    ("xy,yz->zx", (1, 70), (70, 33)),
]


def _einsums(*arrays):
    return [jnp.einsum(form[0], arrays[2 * i], arrays[2 * i + 1]) for i, form in enumerate(EINSUMS)]


case(
    *(normal(*d, seed=i) for form in EINSUMS for i, d in enumerate(form[1:])),
    name="einsums",
    loose=16,
)(_einsums)
case(
    *(whole(*d, seed=i, dtype=np.int8) for form in EINSUMS for i, d in enumerate(form[1:])),
    name="einsums_int8",
)(_einsums)
case(
    *(normal(*d, seed=i, dtype=BF16) for form in EINSUMS for i, d in enumerate(form[1:])),
    name="einsums_bf16",
    loose=4,
)(_einsums)
case(
    *(normal(*d, seed=i, dtype=np.float64) for form in EINSUMS for i, d in enumerate(form[1:])),
    name="einsums_f64",
    wide=True,
    long=True,
)(_einsums)
case(
    *(normal(*d, seed=i, dtype=np.complex64) for form in EINSUMS for i, d in enumerate(form[1:])),
    name="einsums_complex",
    loose=16,
)(_einsums)
case(
    *(normal(*d, seed=i, dtype=np.float16) for form in EINSUMS for i, d in enumerate(form[1:])),
    name="einsums_f16",
    loose=8,
    long=True,
)(_einsums)


@case(normal(6, 8), whole(8, 5, dtype=np.int8), truth(8, 5))
def mixed_products(x, n, p):
    return (
        x @ n.astype(jnp.float32),
        x @ p.astype(jnp.float32),
        lax.dot_general(
            x.astype(jnp.bfloat16),
            n.astype(jnp.bfloat16),
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        ),
        lax.dot_general(n, n, (((0,), (0,)), ((), ())), preferred_element_type=jnp.int32),
        p.T @ p,
        lax.dot_general(x, x, (((0, 1), (0, 1)), ((), ()))),
        jnp.dot(x, x.T, precision="highest"),
        jnp.vdot(x, x),
        jnp.inner(x, x),
        jnp.tensordot(x, x, 2),
        jnp.matmul(x[None, None], x.T[None]),
        x[0] @ x[1],
    )


@case(normal(7, 5, 3), normal(4, 3, 5))
def odd_layouts(x, y):
    return (
        jnp.einsum("abc,dcb->ad", x, y),
        jnp.einsum("abc,dce->bade", x, y),
        x.transpose(1, 0, 2) @ y[0, :, :][None],
        (x[::2] @ y[1]) * 2,
        x[:, ::-1] @ y[2],
        jnp.pad(x, ((0, 0), (1, 1), (0, 0))) @ y[3],
        (x * 2)[..., :2] @ y[0, :2],
        x.reshape(35, 3) @ y[1, :, ::2],
        jnp.concatenate([x, x], -1) @ jnp.concatenate([y[0], y[1]], 0),
        x @ jnp.broadcast_to(y[0, 0], (3, 5)),
    )


case(normal(130, 257), normal(257, 190), normal(190), name="matmul_with_epilogue", loose=64)(
    lambda x, w, b: (
        jax.nn.gelu(x @ w + b),
        jax.nn.relu(x @ w) * b,
        (x @ w + b).astype(jnp.bfloat16),
        (x @ w).sum(1),
        jax.nn.softmax(x @ w),
    )
)
case(normal(1, 511), normal(511, 300), normal(300, 511, seed=6), name="vector_products", loose=64)(
    lambda x, w, v: (x @ w, x @ v.T, w.T @ x[0], v @ x[0], x[0] @ w, (v @ x.T).T + 1)
)

CONVOLUTIONS = {
    "same": {"window_strides": (1, 1), "padding": "SAME"},
    "valid": {"window_strides": (1, 1), "padding": "VALID"},
    "strided": {"window_strides": (2, 2), "padding": "SAME"},
    "uneven": {"window_strides": (2, 1), "padding": ((1, 0), (2, 3))},
    "rhs_dilated": {"window_strides": (1, 1), "padding": "SAME", "rhs_dilation": (2, 3)},
    "lhs_dilated": {"window_strides": (1, 1), "padding": ((2, 2), (1, 2)), "lhs_dilation": (2, 2)},
    "negative_pad": {"window_strides": (1, 2), "padding": ((-1, 0), (0, -2))},
    "both_dilated": {
        "window_strides": (2, 2),
        "padding": ((3, 3), (2, 2)),
        "lhs_dilation": (2, 3),
        "rhs_dilation": (1, 2),
    },
}
LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("NHWC", "OIHW", "NCHW"),
    ("HWNC", "HWOI", "CNHW"),
]


def _layout(array, source, target):
    return array.transpose([source.index(c) for c in target])


def _convolutions(options, groups=1):
    def run(x, w):
        return [
            lax.conv_general_dilated(
                _layout(x, "NHWC", a),
                _layout(w, "HWIO", b),
                dimension_numbers=(a, b, c),
                feature_group_count=groups,
                **options,
            )
            for a, b, c in LAYOUTS
        ]

    return run


for label, options in CONVOLUTIONS.items():
    case(normal(2, 9, 11, 4), normal(3, 3, 4, 6), name=f"convolution_{label}", loose=16)(
        _convolutions(options)
    )
for label in ("same", "strided", "rhs_dilated", "lhs_dilated"):
    case(normal(2, 9, 11, 8), normal(3, 3, 4, 6), name=f"grouped_{label}", loose=16)(
        _convolutions(CONVOLUTIONS[label], 2)
    )
    case(normal(1, 9, 11, 8), normal(3, 3, 1, 16), name=f"depthwise_{label}", loose=16)(
        _convolutions(CONVOLUTIONS[label], 8)
    )
case(normal(4, 6, 7, 4), normal(3, 3, 4, 6), name="convolution_batch_groups", loose=16)(
    lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), batch_group_count=2
    )
)
case(normal(2, 20, 3), normal(5, 3, 7), name="convolution_1d", loose=16)(
    lambda x, w: (
        lax.conv_general_dilated(x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        lax.conv_general_dilated(
            x, w, (1,), [(4, 0)], rhs_dilation=(1,), dimension_numbers=("NWC", "WIO", "NWC")
        ),
        jnp.convolve(x[0, :, 0], w[:, 0, 0]),
        jnp.correlate(x[0, :, 0], w[:, 0, 0], mode="same"),
    )
)
case(normal(1, 5, 6, 7, 3), normal(2, 3, 3, 3, 4), name="convolution_3d", loose=16)(
    lambda x, w: [
        lax.conv_general_dilated(x, w, s, p, dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))
        for s, p in (((1, 1, 1), "SAME"), ((2, 1, 2), "VALID"))
    ]
)
case(normal(2, 3), normal(3, 4), name="convolution_0d", loose=4)(
    lambda x, w: lax.conv_general_dilated(
        x, w, (), (), dimension_numbers=lax.ConvDimensionNumbers((0, 1), (1, 0), (0, 1))
    )
)
case(normal(2, 5, 6, 3), normal(3, 3, 3, 4), name="convolution_transposed", loose=16)(
    lambda x, w: (
        lax.conv_transpose(x, w, (2, 2), "SAME"),
        lax.conv_transpose(x, w, (2, 3), "VALID"),
        lax.conv_transpose(x, w, (1, 1), "SAME", rhs_dilation=(2, 1)),
    )
)
for kind in (np.float16, BF16, np.int8, np.complex64):
    values = whole if kind is np.int8 else normal
    case(
        values(1, 6, 7, 3, dtype=kind),
        values(3, 3, 3, 4, dtype=kind),
        name=f"convolution_{np.dtype(kind).name}",
        loose=8,
    )(_convolutions(CONVOLUTIONS["same"]))
case(normal(1, 9, 9, 3), normal(3, 3, 3, 4), name="convolution_gradients", loose=32)(
    lambda x, w: [
        jax.grad(
            lambda x, w, o=o: jnp.sum(
                jnp.sin(
                    lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **o)
                )
            ),
            (0, 1),
        )(x, w)
        for o in (
            CONVOLUTIONS["same"],
            CONVOLUTIONS["strided"],
            CONVOLUTIONS["uneven"],
            CONVOLUTIONS["rhs_dilated"],
        )
    ]
)
case(normal(2, 9, 9, 4), normal(3, 3, 1, 8), name="depthwise_gradients", loose=32)(
    lambda x, w: jax.grad(
        lambda x, w: jnp.sum(
            lax.conv_general_dilated(
                x,
                w,
                (2, 2),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=4,
            )
            ** 2
        ),
        (0, 1),
    )(x, w)
)


def _pool(x, init, computation, window, strides, padding):
    return lax.reduce_window(x, init, computation, (1, *window, 1), (1, *strides, 1), padding)


@case(normal(2, 9, 10, 3), loose=8)
def pooling(x):
    return (
        _pool(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"),
        _pool(x, 0.0, lax.add, (3, 3), (2, 1), "SAME"),
        _pool(x, jnp.inf, lax.min, (3, 2), (1, 3), "SAME"),
        _pool(x, 1.0, lax.mul, (2, 2), (1, 1), "VALID"),
        lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME", window_dilation=(1, 2, 2, 1)
        ),
        lax.reduce_window(
            x,
            0.0,
            lax.add,
            (1, 3, 3, 1),
            (1, 1, 1, 1),
            [(0, 0), (1, 2), (0, 3), (0, 0)],
            base_dilation=(1, 2, 1, 1),
        ),
        jax.nn.relu(_pool(x, 0.0, lax.add, (2, 2), (2, 2), "VALID") / 4),
        lax.reduce_window(
            x.astype(jnp.int32), jnp.int32(0), lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"
        ),
        lax.reduce_window(
            x.astype(jnp.bfloat16),
            jnp.bfloat16(-jnp.inf),
            lax.max,
            (2, 2, 2, 3),
            (1, 1, 1, 1),
            "SAME",
        ),
    )


case(normal(2, 9, 10, 3), name="pooling_gradients", loose=16)(
    lambda x: (
        jax.grad(lambda x: jnp.sum(_pool(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID") ** 2))(x),
        jax.grad(lambda x: jnp.sum(_pool(x, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME") ** 2))(x),
        jax.grad(lambda x: jnp.sum(_pool(x, 0.0, lax.add, (3, 3), (2, 2), "SAME") ** 2))(x),
        jax.grad(lambda x: jnp.sum(_pool(x, jnp.inf, lax.min, (3, 2), (1, 1), "VALID") ** 3))(x),
    )
)


def _layer_norm(x, g, b):
    m = x.mean(-1, keepdims=True)
    return (x - m) * lax.rsqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def _norms(x, g, b):
    n, h, w, c = x.shape
    groups = x.reshape(n, h, w, 2, c // 2)
    return (
        _layer_norm(x, g, b),
        x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * g,
        (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5) * g + b,
        (
            (groups - groups.mean((1, 2, 4), keepdims=True))
            / jnp.sqrt(groups.var((1, 2, 4), keepdims=True) + 1e-5)
        ).reshape(x.shape)
        * g,
        (x - x.mean((1, 2), keepdims=True)) * lax.rsqrt(x.var((1, 2), keepdims=True) + 1e-5),
        x / jnp.linalg.norm(x, axis=-1, keepdims=True),
    )


case(normal(2, 5, 6, 8), normal(8), normal(8, seed=3), name="normalisations", loose=16)(_norms)
case(
    normal(2, 5, 6, 8, dtype=BF16),
    normal(8, dtype=BF16),
    normal(8, seed=3, dtype=BF16),
    name="normalisations_bf16",
    loose=4,
)(_norms)
case(normal(2, 5, 6, 8), normal(8), normal(8, seed=3), name="normalisation_gradients", loose=64)(
    lambda x, g, b: [
        jax.grad(lambda x, g, b, i=i: jnp.sum(jnp.sin(_norms(x, g, b)[i])), (0, 1, 2))(x, g, b)
        for i in range(6)
    ]
)


def _attention(q, k, v, causal):
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v)


QKV = [normal(2, 9, 4, 8, seed=i) for i in range(3)]
case(*QKV, name="attention", loose=16)(
    lambda q, k, v: (
        _attention(q, k, v, False),
        _attention(q, k, v, True),
        _attention(q, jnp.repeat(k[:, :, :2], 2, 2), jnp.repeat(v[:, :, :2], 2, 2), True),
        jax.nn.dot_product_attention(q, k[:, :, :2], v[:, :, :2], is_causal=True),
        jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        _attention(q[:, :1], k, v, False),
        jax.nn.dot_product_attention(q, k, v, local_window_size=2),
    )
)
case(*(x.astype(BF16) for x in QKV), name="attention_bf16", loose=4)(
    lambda q, k, v: _attention(q, k, v, False)
)
case(*QKV, name="attention_gradients", loose=64)(
    lambda q, k, v: jax.grad(
        lambda q, k, v: jnp.sum(jnp.cos(_attention(q, k, v, True))), (0, 1, 2)
    )(q, k, v)
)


@case(normal(1, 6, 4, 8), whole(6))
def rotary(x, position):
    angle = position[:, None] / 10000 ** (jnp.arange(4) / 4)
    c, s = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1), jnp.stack(
        [a * c, b * s], -1
    ).reshape(x.shape)


LINALG = {
    "matrix_power": lambda x: jnp.linalg.matrix_power(x, 3),
    "multi_dot": lambda x: jnp.linalg.multi_dot([x, x, x]),
    "expm": lambda x: x @ x - x.T,
}
add_all(LINALG, normal(5, 5), loose=64)
# On CPU, JAX itself writes these as calls of LAPACK.
FACTORED = {
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.T + 5 * jnp.eye(5)),
    "triangular_solve": lambda x: lax.linalg.triangular_solve(
        jnp.tril(x) + 5 * jnp.eye(5), x, left_side=True, lower=True
    ),
    "solve": lambda x: jnp.linalg.solve(x, x),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
}
add_all(FACTORED, normal(5, 5), loose=64)
for label in ("fft", "ifft", "rfft", "fft2"):
    case(normal(4, 8), name=label, loose=8)(getattr(jnp.fft, label))
