"""Ten programs of a kernel or a few, whose texts at every stage are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import BF16, F32, I8, I32, TensorType

SCALAR = TensorType((), F32)


def product() -> Module:
    """A large product in bf16: tiles of 128 x 256 x 64 by the units of a warp group."""

    def body(b: Builder, x: Any, w: Any) -> list[Any]:
        sums = _dot(b, x, w, TensorType((4096, 4096), F32))
        return [b.convert(sums, BF16)]

    return build_module([TensorType((4096, 4096), BF16)] * 2, body)


def attention() -> Module:
    def body(b: Builder, q: Any, k: Any, v: Any) -> list[Any]:
        scores = _batched(b, q, k, 2, TensorType((4, 512, 512), F32))
        powers = _softmax(b, b("multiply", scores, b.constant(0.125, scores.tensor)))
        result = _batched(b, b.convert(powers, BF16), v, 1, TensorType((4, 512, 64), F32))
        return [b.convert(result, BF16)]

    return build_module([TensorType((4, 512, 64), BF16)] * 3, body)


def softmax() -> Module:
    return build_module([TensorType((64, 1000), F32)], lambda b, x: [_softmax(b, x)])


def layernorm() -> Module:
    def body(b: Builder, x: Any, scale: Any, offset: Any) -> list[Any]:
        def mean(value: Any) -> Any:
            total = b.reduce("add", value, b.constant(0.0, SCALAR), (1,))
            return b.broadcast(
                b("divide", total, b.constant(256.0, total.tensor)), value.dims, (0,)
            )

        centred = b("subtract", x, mean(x))
        variance = mean(b("multiply", centred, centred))
        root = b("rsqrt", b("add", variance, b.constant(1e-5, x.tensor)))
        scaled = b("multiply", b("multiply", centred, root), b.broadcast(scale, x.dims, (1,)))
        return [b("add", scaled, b.broadcast(offset, x.dims, (1,)))]

    row = TensorType((256,), F32)
    return build_module([TensorType((128, 256), F32), row, row], body)


def convolution() -> Module:
    facts = {
        **numbers(2), "kernel_output_feature_dimension": 0, "kernel_spatial_dimensions": (1, 2),
        "kernel_input_feature_dimension": 3, "padding": ((1, 1), (1, 1)),
    }  # fmt: skip

    def body(b: Builder, x: Any, w: Any) -> list[Any]:
        y = b("convolution", x, w, **facts)
        return [b("maximum", y, b.constant(0, y.tensor))]

    return build_module([TensorType((2, 16, 16, 64), BF16), TensorType((64, 3, 3, 64), BF16)], body)


def transpose() -> Module:
    return build_module(
        [TensorType((96, 64, 40), F32)], lambda b, x: [b.transpose(x, (2, 1, 0))]
    )  # fmt: skip


def gather() -> Module:
    facts = {
        "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,),
        "index_vector_dim": 1, "slice_sizes": (1, 128),
    }  # fmt: skip
    kinds = [TensorType((500, 128), F32), TensorType((64,), I32)]
    return build_module(kinds, lambda b, table, rows: [b("gather", table, rows, **facts)])


def scan() -> Module:
    """Running totals along rows."""

    def body(b: Builder, x: Any) -> list[Any]:
        add = build_region([SCALAR, SCALAR], lambda b, x, y: [b("add", x, y)])
        facts = {"window_dimensions": (1, 512), "padding": ((0, 0), (511, 0))}
        return [*b.op("reduce_window", [x, b.constant(0.0, SCALAR)], facts, [add]).results]

    return build_module([TensorType((16, 512), F32)], body)


def int8_product() -> Module:
    """Both operands lie along the sum, as units that multiply bytes read them."""
    kinds = [TensorType((256, 512), I8), TensorType((128, 512), I8)]
    return build_module(kinds, lambda b, x, w: [_dot(b, x, w, TensorType((256, 128), I32), 1)])


def elementwise() -> Module:
    kind = TensorType((1000, 24), F32)
    return build_module([kind, kind], lambda b, x, y: [b("tanh", b("add", b("sine", x), y))])


PROGRAMS: dict[str, Callable[[], Module]] = {
    made.__name__: made
    for made in (
        product, attention, softmax, layernorm, convolution, transpose, gather, scan,
        int8_product, elementwise,
    )
}  # fmt: skip


def _dot(b: Builder, x: Any, y: Any, result: TensorType, along: int = 0) -> Any:
    facts: dict[str, Any] = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (along,)
    }  # fmt: skip
    return b("dot_general", x, y, type=result, **facts)


def _batched(b: Builder, x: Any, y: Any, along: int, result: TensorType) -> Any:
    """Products of equal batches, summed over the last dim of x and `along` of y."""
    facts: dict[str, Any] = {
        "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,),
        "lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (along,),
    }  # fmt: skip
    return b("dot_general", x, y, type=result, **facts)


def _softmax(b: Builder, x: Any) -> Any:
    last, kept = x.rank - 1, tuple(range(x.rank - 1))
    top = b.reduce("maximum", x, b.constant(-np.inf, SCALAR), (last,))
    powers = b("exponential", b("subtract", x, b.broadcast(top, x.dims, kept)))
    total = b.reduce("add", powers, b.constant(0.0, SCALAR), (last,))
    return b("divide", powers, b.broadcast(total, x.dims, kept))
