"""Ragged products where groups are cut: experts stay where they are, results are summed."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, I32, TensorType

ROWS, DEPTH, COLUMNS, GROUPS = 32, 64, 48, 10


def experts(x: str, weights: str) -> Module:
    """Tokens, sorted by expert, against their experts' matrices."""
    facts = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "lhs_ragged_dimensions": (0,), "rhs_group_dimensions": (0,),
    }  # fmt: skip
    kinds = [
        TensorType((ROWS, DEPTH), F32, parse_sharding(f"<@mesh, {x}>")),
        TensorType((GROUPS, DEPTH, COLUMNS), F32, parse_sharding(f"<@mesh, {weights}>")),
        TensorType((GROUPS,), I32, parse_sharding("<@mesh, [{}]>")),
    ]
    made = build_module(kinds, lambda b, *v: [b("chlo.ragged_dot", *v, **facts)])
    return Module(dict(made.functions), meshes={"mesh": Mesh((("x", 4), ("y", 2)))})


def inputs() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(d) for d in ((ROWS, DEPTH), (GROUPS, DEPTH, COLUMNS))]
    sizes = generator.multinomial(ROWS - 5, [1 / GROUPS] * GROUPS)
    return [*(x.astype(np.float32) for x in arrays), sizes.astype(np.int32)]


def test_experts_that_are_cut_send_sums() -> None:
    """Ten experts in four blocks of three: an all-reduce of the results, no expert moves."""
    parts = girih.partition(experts("[{}, {}]", '[{"x"}, {}, {}]'))
    (only,) = parts.communications
    assert only.kind == "reduction"
    assert only.total == 2 * 3 / 4 * ROWS * COLUMNS * 4
    given = inputs()
    (wanted,) = interpret(experts("[{}, {}]", "[{}, {}, {}]"), given)
    np.testing.assert_allclose(parts.interpret(given)[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["[{}, {}, {}]", "[{}, {}, {?}]"])
def test_rows_that_are_cut_send_nothing(weights: str) -> None:
    parts = girih.partition(experts('[{"x", "y"}, {}]', weights))
    assert parts.communications == ()
    given = inputs()
    (wanted,) = interpret(experts("[{}, {}]", "[{}, {}, {}]"), given)
    np.testing.assert_allclose(parts.interpret(given)[0], wanted, rtol=1e-5, atol=1e-5)
