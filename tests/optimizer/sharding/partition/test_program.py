"""Each room's cases, cut at random, on all devices: the results of the whole program. What lies
beyond the tensors' ends is NaN in the inputs, and reaches nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.cases import Example, all_examples
from girih.hlo.errors import UserError
from girih.hlo.factors import FactorKind, Factors
from girih.hlo.graph import Dense, Module, Op, Value
from girih.hlo.interpret import interpret
from girih.hlo.ops import numerics
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, I1, I32, QuantizedType, TensorType
from girih.hlo.verify import SHARDED, verify
from girih.optimizer.sharding.partition.program import partition

from ..decided import Decider, run

SUMMING = ("dot_general", "dot", "einsum", "unary_einsum", "reduce", "gather", "scatter")
PLACED = ("iota", "dynamic_iota", "dynamic_update_slice", "constant", "rng", "rng_bit_generator")
MESHES = (
    Mesh((("x", 2),)),
    Mesh((("x", 3),)),
    Mesh((("x", 2), ("y", 4)), (3, 1, 0, 2, 7, 6, 5, 4)),
)


def cuttable(op: Op, factors: Factors, number: int) -> bool:
    factor = factors.factors[number]
    if factor.kind is FactorKind.PASS:
        if op.name == "scatter" and factor.placed:
            held = [d for d, numbers in enumerate(factors.operands[0]) if number in numbers]
            return all(d in op.inserted_window_dims for d in held)
        return not factor.placed or op.name in PLACED
    if op.name == "dynamic_slice":
        return True
    return factor.kind is FactorKind.REDUCTION and op.name in SUMMING


def _examples() -> list[Example]:
    found = []
    for example in all_examples():
        op = example.op
        kinds = [value.type for value in (*op.operands, *op.results)]
        plain = all(
            isinstance(kind, TensorType)
            and kind.is_static
            and not isinstance(kind.element, QuantizedType)
            for kind in kinds
        )
        skipped = op.definition.communicates or op.name in ("convolution", "sharding_constraint")
        if plain and not skipped and op.results and op.definition.shard(op) is not None:
            found.append(example)
    return found


EXAMPLES = _examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_cases_of_rooms(example: Example) -> None:
    try:
        wanted = interpret(example.module, example.inputs)
    except UserError:
        pytest.skip("the case has no results")
    meshes = MESHES[:1] if example.op.definition.pattern == "elementwise" else MESHES
    for seed, mesh in enumerate(meshes):
        generator = random.Random(f"{example.name} {seed}")
        decided = Decider(mesh, cuttable, generator).module(example.module)
        verify(decided, SHARDED)
        found = run(partition(decided), example.inputs, np.nan)
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            if numerics.is_float(one.dtype) or one.dtype.kind == "c":
                one, other = (np.asarray(numerics.wide(x)) for x in (one, other))
                np.testing.assert_allclose(one, other, 1e-5, 1e-6, err_msg=str(decided))
            else:
                np.testing.assert_array_equal(one, other, err_msg=str(decided))


def test_a_loop_of_products() -> None:
    """A contraction that is cut, its partial sums carried by an addition, in a loop."""
    mesh = Mesh((("x", 4),))
    rows, whole = (parse_sharding(f"<@mesh, {text}>") for text in ('[{}, {"x"}]', "[{}, {}]"))
    columns = parse_sharding('<@mesh, [{"x"}, {}]>')
    partial = parse_sharding('<@mesh, [{}, {}], unreduced={"x"}>')
    scalar = TensorType((), I32, parse_sharding("<@mesh, []>"))
    flag = TensorType((), I1, scalar.sharding)
    x = TensorType((3, 7), F32, rows)

    def cond(b: Builder, i: Value, x: Value) -> list[Value]:
        limit = b("constant", type=scalar, value=Dense.of(np.asarray(3, np.int32)))
        return [b("compare", i, limit, type=flag, comparison_direction="LT")]

    def body(b: Builder, i: Value, x: Value) -> list[Value]:
        one = b("constant", type=scalar, value=Dense.of(np.asarray(1, np.int32)))
        array = np.arange(49, dtype=np.float32).reshape(7, 7) / 100
        kind = TensorType((7, 7), F32, columns)
        w = b("constant", type=kind, value=Dense.of(array))
        facts: Any = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
        product = b("dot_general", x, w, type=TensorType((3, 7), F32, partial), **facts)
        twice = b("add", product, product, type=product.tensor)
        reduced = b("sharding_constraint", twice, type=x.type)
        return [b("add", i, one, type=scalar), reduced]

    def main(b: Builder, x: Value) -> list[Value]:
        zero = b("constant", type=scalar, value=Dense.of(np.asarray(0, np.int32)))
        regions = [build_region([scalar, x.type], part) for part in (cond, body)]
        found = b.op("while", [zero, x], {}, regions, [scalar, x.type]).results[1]
        return [b("sharding_constraint", found, type=x.tensor.with_sharding(whole))]

    decided = replace(build_module([x], main), meshes={"mesh": mesh})
    verify(decided, SHARDED)
    given = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    (wanted,) = interpret(decided, [given])
    (found,) = run(partition(decided), [given], np.nan)
    np.testing.assert_allclose(found, wanted, 1e-5)


def test_a_program_without_shardings_is_refused() -> None:
    with pytest.raises(UserError, match="no shardings"):
        partition(_plain())


def _plain() -> Module:
    return next(example.module for example in EXAMPLES if example.op.name == "add")
