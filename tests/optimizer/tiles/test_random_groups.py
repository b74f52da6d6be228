"""Random networks of products, reductions and elementwise operations, connected eagerly."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.fusion import Fuse
from girih.optimizer.pipeline import run_pipeline
from girih.optimizer.tiles.connect import Connect

from .test_connect import eager

ROWS, WIDTHS = 24, (16, 40)
SCALAR = TensorType((), F32)


def network(chance: random.Random) -> tuple[Module, list[np.ndarray[Any, Any]]]:
    """Up to ten layers, each on one or two earlier values; several results."""
    b = Builder()
    types = [TensorType((ROWS, width), F32) for width in WIDTHS]
    types += [TensorType((n, m), F32) for n in WIDTHS for m in WIDTHS]
    x, y, *weights = b.arguments(types)
    known: list[Value] = [x, y]
    for _ in range(chance.randint(3, 10)):
        known.append(layer(b, chance, known, weights))
    used = {v for op in b.ops for v in op.operands}
    results = [v for v in known[2:] if v not in used] or known[-1:]
    if chance.random() < 0.5:
        results.append(chance.choice(known[2:]))
    module = Module({"main": Function("main", b.region(results))})
    rng = np.random.default_rng(chance.randint(0, 1000))
    return module, [(rng.standard_normal(t.dims) * 0.4).astype(np.float32) for t in types]


def layer(b: Builder, chance: random.Random, known: list[Value], weights: list[Value]) -> Value:
    x = chance.choice(known)
    kind = chance.choice(("product", "softmax", "centre", "tanh", "join"))
    if kind == "product":
        w = chance.choice([w for w in weights if w.dims[0] == x.dims[1]])
        dims: dict[str, Any] = {
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        }  # fmt: skip
        return b("dot_general", x, w, type=TensorType((ROWS, w.dims[1]), F32), **dims)
    if kind == "softmax":
        power = b("exponential", b("subtract", x, spread(b, x, "maximum", -np.inf)))
        return b("divide", power, spread(b, power, "add", 0))
    if kind == "centre":
        mean = b("multiply", spread(b, x, "add", 0), b.constant(1 / x.dims[1], x.tensor))
        return b("subtract", x, mean)
    if kind == "tanh":
        return b("tanh", x)
    return b("add", x, chance.choice([v for v in known if v.dims == x.dims]))


def spread(b: Builder, x: Value, name: str, start: float) -> Value:
    return b.broadcast(b.reduce(name, x, b.constant(start, SCALAR), (1,)), x.dims, (0,))


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_connected_networks_give_the_same(chance: random.Random) -> None:
    module, inputs = network(chance)
    fused = run_pipeline(module, [Fuse()])
    connected = Connect(eager())(fused)
    verify(connected, FUSED)
    for a, b in zip(interpret(connected, inputs), interpret(module, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
