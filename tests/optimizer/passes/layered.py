"""Programs of many equal layers, for the tests of `reroll` and `unroll`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Op, Origin, Value, Weight
from girih.hlo.text import canonical_op
from girih.hlo.types import F32, TensorType
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.rolled import CALL

from .modules import f32

ROWS, WIDTH, LAYERS = 4, 8, 40
X = TensorType((ROWS, WIDTH), F32)
SQUARE = TensorType((WIDTH, WIDTH), F32)
ROW, SCALAR = TensorType((WIDTH,), F32), TensorType((), F32)
INPUTS = f32(np.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))

Layer = Callable[[Builder, Value, Value, Value, Value], Value]


def layer(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
    """x + tanh(norm(x) @ w^T) * e^v; y is the program's own input."""
    total = b.reduce("add", b("multiply", x, x), b.constant(0.0, SCALAR), (1,))
    root = b("rsqrt", b("add", total, b.constant(np.full(ROWS, 1e-3, np.float32))))
    normal = b("multiply", x, b.broadcast(root, X.dims, (0,)))
    turned = b.transpose(w, (1, 0))
    product = b("dot_general", normal, turned,
                lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))  # fmt: skip
    return b(
        "add", x, b("multiply", b("tanh", product), b.broadcast(b("exponential", v), X.dims, (1,)))
    )


def with_common_work(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
    """Each layer computes the same of the program's input, and then of its own values."""
    return layer(b, b("add", x, b("exponential", b("negate", y))), w, v, y)


def stack(
    one: Layer = layer,
    layers: int = LAYERS,
    first: Callable[[Builder, Value], Value] = lambda b, y: y,
    last: Callable[[Builder, Value], Value] = lambda b, x: x,
) -> Module:
    """`layers` equal layers with their own weights, between `first` and `last`."""
    generator = np.random.default_rng(0)
    b = Builder()
    (y,) = b.arguments([X])
    x, weights = first(b, y), {}
    for number in range(layers):
        with b.at((Origin("model.py", 10, f"layers.{number}"),)):
            made = []
            for kind, name in ((SQUARE, f"layers.{number}.w"), (ROW, f"layers.{number}.v")):
                array = (0.1 * generator.standard_normal(kind.dims)).astype(np.float32)
                weights[name] = Weight(name, array)
                made.append(b("weight", type=kind, weight=name))
            x = one(b, x, made[0], made[1], y)
    return Module({"main": Function("main", b.region([last(b, x)]))}, weights=weights)


def calls(module: Module) -> list[Op]:
    return [op for op in module.body.ops if op.name == CALL]


def texts(module: Module) -> Counter[object]:
    """What a program computes, operation by operation, and where each comes from."""
    return Counter(
        (canonical_op(op), op.origin if len(op.origin) < 4 else "many layers")
        for op in module.body.ops
        if op.operands
    )


def values(module: Module) -> Counter[bytes]:
    return Counter(weight.array.tobytes() for weight in module.weights.values())


def both(module: Module) -> tuple[Module, Module]:
    """The simplified program, and the one that is simplified layer by layer."""
    pipeline = simplify_pipeline()
    plain = run_pipeline(module, pipeline, disable=("reroll",), check=True)
    return run_pipeline(module, pipeline, check=True), plain
