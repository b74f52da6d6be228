"""Programs whose passes are compared: each function gives what `girih.import_model` takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from girih.hlo.build import Builder, build_module, build_region, make_op
from girih.hlo.graph import Function, Module, Weight
from girih.hlo.types import F32, I8, QuantizedType, TensorType

MATRIX, SQUARE = TensorType((6, 8), F32), TensorType((8, 8), F32)
BOUNDED = "tensor<?x3xf32, #stablehlo.bounds<4, ?>>"


def product(b: Builder, x: Any, y: Any) -> Any:
    return b("dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))


def weights() -> tuple[Module]:
    """A layer whose weight is transposed, scaled and packed, with a table that is folded."""
    b = Builder()
    (x,) = b.arguments([MATRIX])
    w = b.transpose(b("weight", type=SQUARE, weight="w"), (1, 0))
    table = b.convert(b("iota", type=TensorType((8,), F32), iota_dimension=0), F32)
    y = b("multiply", product(b, x, w), b.constant(1.0, MATRIX))
    region = b.region([b("tanh", b("add", y, b.broadcast(b("sine", table), (6, 8), (1,))))])
    data = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    return (Module({"main": Function("main", region)}, weights={"w": Weight("w", data)}),)


def quantised() -> tuple[Module]:
    kind = TensorType((6, 8), QuantizedType(I8, F32, None, (0.05,), (3,), -128, 127))
    return (build_module([kind, kind], lambda b, x, y: [b("add", x, y, type=kind)]),)


def bounded() -> tuple[str]:
    return (
        f"""
func.func @main(%x: tensor<4x3xf32>, %n: tensor<i32>) -> tensor<3xf32> {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4x3xf32>, tensor<i32>) -> {BOUNDED}
  %1 = stablehlo.exponential %0 : {BOUNDED}
  %2 = stablehlo.reduce(%1 init: %low) applies stablehlo.maximum across dimensions = [0]
    : ({BOUNDED}, tensor<f32>) -> tensor<3xf32>
  return %2 : tensor<3xf32>
}}
""",
    )


def foreign_kernel() -> tuple[Module]:
    """A kernel without code for any target, whose reference leaves passes something to do."""

    def reference(b: Builder, x: Any) -> list[Any]:
        flat = b.reshape(b.transpose(b.transpose(x, (1, 0)), (1, 0)), (48,))
        table = b.convert(b("iota", type=TensorType((48,), F32), iota_dimension=0), F32)
        scaled = b("multiply", flat, b.constant(1.0, flat.tensor))
        return [b.reshape(b("add", scaled, b("sine", table)), (6, 8))]

    def body(b: Builder, x: Any) -> list[Any]:
        facts = {"kernel": "elsewhere", "codes": ()}
        regions = (build_region([MATRIX], reference),)
        call = make_op("foreign_call", [b("negate", x)], facts, regions, [MATRIX])
        return [b("tanh", b.append(call).result)]

    return (build_module([MATRIX], body),)


def attention() -> tuple[Module]:
    def body(b: Builder, q: Any, k: Any, v: Any) -> list[Any]:
        scores = product(b, q, b.transpose(k, (1, 0)))
        low = b.constant(-np.inf, TensorType((), F32))
        top = b.broadcast(b.reduce("maximum", scores, low, (1,)), scores.dims, (0,))
        powers = b("exponential", b("subtract", scores, top))
        total = b.reduce("add", powers, b.constant(0.0, TensorType((), F32)), (1,))
        return [product(b, b("divide", powers, b.broadcast(total, scores.dims, (0,))), v)]

    return (build_module([TensorType((512, 64), F32)] * 3, body),)
