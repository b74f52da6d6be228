"""Algorithms along cut dims: the results of the whole program, and few bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.ops.examples import binary_body
from girih.hlo.sharding import Axis
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding.inner import inner_bytes
from girih.optimizer.sharding.partition.program import partition

from ..decided import Decider, run
from .test_windows import EIGHT, MESHES, assigned, check, one

F0 = TensorType((), F32)
MONOIDS = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf, "multiply": 1.0}


def running(name: str, dims: tuple[int, ...], dim: int, backward: bool) -> Module:
    size = dims[dim]
    edge = (0, size - 1) if backward else (size - 1, 0)

    def body(b: Builder, x: Value) -> Sequence[Value]:
        init = b.constant(np.float32(MONOIDS[name]))
        attributes = {
            "window_dimensions": tuple(size if d == dim else 1 for d in range(len(dims))),
            "padding": tuple(edge if d == dim else (0, 0) for d in range(len(dims))),
        }
        return b.op(
            "reduce_window", [x, init], attributes, binary_body(name, F32)(build_region)
        ).results

    return build_module([TensorType(dims, F32)], body)


@pytest.mark.parametrize("seed", range(150))
def test_running_totals(seed: int) -> None:
    generator = random.Random(seed)
    dims = tuple(generator.choice((2, 3, 7, 10, 16)) for _ in range(2))
    name, dim = generator.choice(list(MONOIDS)), generator.randrange(2)
    module = running(name, dims, dim, generator.random() < 0.5)
    mesh = MESHES[seed % len(MESHES)]
    decider = Decider(mesh, lambda op, factors, number: op.name == "reduce_window", generator)
    x = np.random.default_rng(seed).integers(-2, 3, dims).astype(np.float32)
    found = run(partition(decider.module(module)), [x], np.nan)
    np.testing.assert_allclose(found[0], interpret(module, [x])[0], rtol=1e-5)


def test_a_total_from_a_broadcast_zero_is_a_running_one() -> None:
    """As JAX writes `cumsum`: nothing is padded, so that totals alone are sent."""
    module = running("add", (16, 3), 0, False)

    def body(b: Builder, x: Value) -> Sequence[Value]:
        zero = b("broadcast_in_dim", b.constant(np.float32(0)), type=F0, broadcast_dimensions=())
        op = module.body.ops[-1]
        return b.op("reduce_window", [x, zero], op.attributes, op.regions).results

    op = build_module([TensorType((16, 3), F32)], body).body.ops[-1]
    assert op.definition.decompose(Builder(), op, *op.operands) is None
    factors = op.definition.shard(op)
    assert factors is not None
    number = factors.operands[0][0][0]
    axes = [(Axis("x"),) if n == number else () for n in range(len(factors.factors))]
    assert inner_bytes(op, factors, axes, EIGHT) == 7 * 3 * 4


def test_a_running_total_receives_totals() -> None:
    module = running("add", (64, 5), 0, False)
    op = module.body.ops[-1]
    factors = op.definition.shard(op)
    assert factors is not None
    number = factors.operands[0][0][0]
    axes = [(Axis("x"),) if n == number else () for n in range(len(factors.factors))]
    assert inner_bytes(op, factors, axes, EIGHT) == 7 * 5 * 4


@pytest.mark.parametrize("seed", range(150))
def test_the_largest_of_a_cut_row(seed: int) -> None:
    generator = random.Random(seed)
    dims = (*[generator.choice((2, 3, 5)) for _ in range(seed % 3)], 24)
    module = one("chlo.top_k", [dims], k=generator.choice((1, 3, 7)))
    mesh = MESHES[seed % len(MESHES)]
    check(module, assigned(module, mesh, generator), mesh)
