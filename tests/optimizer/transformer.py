"""One transformer layer in plain HLO, for tests of what follows the simplifier."""

import numpy as np

from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, TensorType

BATCH, LENGTH, HEADS, WIDTH = 1, 8, 2, 4
MODEL = HEADS * WIDTH
SCALAR = TensorType((), F32)


def dot(b: Builder, x: Value, y: Value, batch: int, left: int, right: int) -> Value:
    dims = tuple(range(batch))
    return b(
        "dot_general", x, y, lhs_batching_dimensions=dims, rhs_batching_dimensions=dims,
        lhs_contracting_dimensions=(left,), rhs_contracting_dimensions=(right,),
    )  # fmt: skip


def linear(b: Builder, x: Value, weight: Value, bias: Value) -> Value:
    product = dot(b, x, weight, 0, x.rank - 1, 1)
    return b("add", product, b.broadcast(bias, product.dims, (product.rank - 1,)))


def layer_norm(b: Builder, x: Value, scale: Value, shift: Value) -> Value:
    last = x.rank - 1
    rows = tuple(range(last))
    zero = b.constant(0.0, SCALAR)
    total = b.reduce("add", x, zero, (last,))
    count = b.constant(float(x.dims[last]), total.tensor)
    centred = b("subtract", x, b.broadcast(b("divide", total, count), x.dims, rows))
    square = b("multiply", centred, centred)
    variance = b("divide", b.reduce("add", square, zero, (last,)), count)
    inverse = b("rsqrt", b("add", variance, b.constant(1e-5, variance.tensor)))
    normal = b("multiply", centred, b.broadcast(inverse, x.dims, rows))
    scaled = b("multiply", normal, b.broadcast(scale, x.dims, (last,)))
    return b("add", scaled, b.broadcast(shift, x.dims, (last,)))


def softmax(b: Builder, x: Value) -> Value:
    last = x.rank - 1
    rows = tuple(range(last))
    top = b.reduce("maximum", x, b.constant(-np.inf, SCALAR), (last,))
    powers = b("exponential", b("subtract", x, b.broadcast(top, x.dims, rows)))
    total = b.reduce("add", powers, b.constant(0.0, SCALAR), (last,))
    return b("divide", powers, b.broadcast(total, x.dims, rows))


def gelu(b: Builder, x: Value) -> Value:
    def number(value: float) -> Value:
        return b.constant(value, x.tensor)

    inner = b("tanh", b("multiply", x, number(0.7978846)))
    return b("multiply", b("multiply", x, number(0.5)), b("add", number(1.0), inner))


def layer(b: Builder, x, wq, wk, wv, wo, w1, w2, bias, bias1, scale, shift) -> list[Value]:
    flat = (BATCH * LENGTH, MODEL)

    def heads(weight: Value) -> Value:
        split = b.reshape(linear(b, x, weight, bias), (BATCH, LENGTH, HEADS, WIDTH))
        return b.transpose(split, (0, 2, 1, 3))

    q, k, v = heads(wq), heads(wk), heads(wv)
    scores = dot(b, q, k, 2, 3, 3)
    weights = softmax(b, b("multiply", scores, b.constant(0.5, scores.tensor)))
    mixed = b.reshape(b.transpose(dot(b, weights, v, 2, 3, 2), (0, 2, 1, 3)), flat)
    attended = b.reshape(linear(b, mixed, wo, bias), x.dims)
    first = layer_norm(b, b("add", attended, x), scale, shift)
    hidden = gelu(b, linear(b, b.reshape(first, flat), w1, bias1))
    second = b.reshape(linear(b, hidden, w2, bias), x.dims)
    return [layer_norm(b, b("add", second, first), scale, shift)]


def transformer_layer() -> Module:
    square, vector = TensorType((MODEL, MODEL), F32), TensorType((MODEL,), F32)
    up, down = TensorType((4 * MODEL, MODEL), F32), TensorType((MODEL, 4 * MODEL), F32)
    types = [
        TensorType((BATCH, LENGTH, MODEL), F32), square, square, square, square, up, down,
        vector, TensorType((4 * MODEL,), F32), vector, vector,
    ]  # fmt: skip
    return build_module(types, layer)
