"""Each room's cases, cut at random, on all devices: the results of the whole program. What lies
beyond the tensors' ends is NaN in the inputs, and reaches nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from girih.hlo.cases import Example, all_examples
from girih.hlo.errors import UserError
from girih.hlo.factors import FactorKind, Factors
from girih.hlo.graph import Module, Op
from girih.hlo.interpret import interpret
from girih.hlo.ops import numerics
from girih.hlo.sharding import Mesh
from girih.hlo.types import QuantizedType, TensorType
from girih.hlo.verify import SHARDED, verify
from girih.optimizer.sharding.partition.program import partition

from ..decided import Decider, run

SUMMING = ("dot_general", "dot", "einsum", "unary_einsum", "reduce", "gather")
PLACED = ("iota", "dynamic_iota", "dynamic_update_slice", "constant", "rng", "rng_bit_generator")
MESHES = (
    Mesh((("x", 2),)),
    Mesh((("x", 3),)),
    Mesh((("x", 2), ("y", 4)), (3, 1, 0, 2, 7, 6, 5, 4)),
)


def cuttable(op: Op, factors: Factors, number: int) -> bool:
    factor = factors.factors[number]
    if factor.kind is FactorKind.PASS:
        return not factor.placed or op.name in PLACED
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
    for seed, mesh in enumerate(MESHES):
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


def test_a_program_without_shardings_is_refused() -> None:
    with pytest.raises(UserError, match="no shardings"):
        partition(_plain())


def _plain() -> Module:
    return next(example.module for example in EXAMPLES if example.op.name == "add")
