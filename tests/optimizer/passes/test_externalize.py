"""externalize: large constants become weights, small ones and splats stay."""

from __future__ import annotations

import jax
import numpy as np

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Dense, Function, Module
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.passes.externalize import Externalize


def sums(*constants: np.ndarray) -> Module:
    """x + c for each constant c."""
    builder = Builder()
    (x,) = builder.arguments([TensorType((2000,), F32)])
    ops = [builder.op("constant", [], {"value": Dense.of(array)}).result for array in constants]
    results = [builder("add", x, op) for op in ops]
    return Module({"main": Function("main", builder.region(results))})


def test_a_large_constant_becomes_a_weight_and_equal_ones_the_same() -> None:
    table = np.arange(2000, dtype=np.float32)
    module = sums(table, table + 1, table.copy())
    after = Externalize()(module)
    verify(after)
    assert len(after.weights) == 2
    assert not any(op.name == "constant" for op in after.walk())
    x = np.ones(2000, np.float32)
    for new, old in zip(girih.interpret(after, [x]), girih.interpret(module, [x]), strict=True):
        np.testing.assert_array_equal(new, old)


def test_constants_of_equal_bytes_and_other_dims_are_others() -> None:
    table = np.arange(2000, dtype=np.float32)
    shapes = (40, 50), (50, 40)
    builder = Builder()
    given = builder.arguments([TensorType(dims, F32) for dims in shapes])
    tables = [builder.constant(table.reshape(dims)) for dims in shapes]
    sums = [builder("add", x, y) for x, y in zip(given, tables, strict=True)]
    module = Module({"main": Function("main", builder.region(sums))})
    after = Externalize()(module)
    verify(after)
    assert len(after.weights) == 2
    inputs = [np.ones(dims, np.float32) for dims in shapes]
    for found, dims in zip(girih.compile(module)(*inputs), shapes, strict=True):
        np.testing.assert_array_equal(found, 1 + table.reshape(dims))


def test_splats_and_small_constants_stay() -> None:
    module = sums(np.broadcast_to(np.float32(2), 2000))
    assert Externalize()(module) is module


def test_constants_inside_loops_are_found() -> None:
    table = np.arange(400, dtype=np.float32)  # small enough to be imported as a constant

    def loop(x: np.ndarray) -> np.ndarray:
        return jax.lax.fori_loop(0, 3, lambda i, y: y * 0.5 + table, x)

    x = np.ones(400, np.float32)
    module = girih.import_model(jax.jit(loop), x)
    after = Externalize(limit=1000)(module)
    verify(after)
    assert after is not module
    (new,), (old,) = girih.interpret(after, [x]), girih.interpret(module, [x])
    np.testing.assert_array_equal(new, old)
