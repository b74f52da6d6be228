"""Random networks of products, reductions and elementwise operations, connected eagerly."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.machine import to_json
from girih.optimizer.passes.connect import Connect
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.pipeline import run_pipeline

from ..passes.test_connect import eager

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


@pytest.fixture(scope="module")
def eager_machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("machines") / "eager.json"
    path.write_text(to_json(eager()))
    return str(path)


@settings(max_examples=15, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_connected_networks_run(eager_machine: str, chance: random.Random) -> None:
    module, inputs = network(chance)
    options = girih.Options(machine=eager_machine, cache="off", threads=2)
    results = girih.compile(module, options=options)(*inputs)
    for a, b in zip(results, interpret(module, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_result_that_another_one_reads_in_larger_tiles() -> None:
    b = Builder()
    x, w = b.arguments([TensorType((ROWS, 40), F32), TensorType((40, 40), F32)])
    twice = b("add", x, x)
    dims: dict[str, Any] = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
    }  # fmt: skip
    product = b("dot_general", twice, w, type=TensorType((ROWS, 40), F32), **dims)
    module = Module({"main": Function("main", b.region([product, twice]))})
    connected = Connect(eager())(run_pipeline(module, [Fuse()]))
    verify(connected, FUSED)
    assert [op.name for op in connected.body.ops] == ["kernel_call"]
    inputs = [np.arange(n * 40, dtype=np.float32).reshape(n, 40) / 999 for n in (ROWS, 40)]
    for a, b_ in zip(interpret(connected, inputs), interpret(module, inputs), strict=True):
        np.testing.assert_allclose(a, b_, rtol=1e-5, atol=1e-5)
