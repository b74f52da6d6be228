"""Factors go behind products where their operand is then read in place."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.build import build_module
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.motion import SinkScales

WIDE, RIGHT = TensorType((6, 12), F32), TensorType((6, 4), F32)
DIMS = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,)}


def program(factor: float, *, sliced: bool = True, used_twice: bool = False):
    def body(b, x, y):
        if sliced:
            x = b("slice", x, start_indices=(0, 4), limit_indices=(6, 8), strides=(1, 1))
        else:
            x = b("sine", b.reshape(x, (18, 4)))
        scaled = b("multiply", x, b.constant(factor, x.tensor))
        type = TensorType((x.dims[0], 6), F32)
        product = b("dot_general", b.reshape(scaled, x.dims), y, type=type, **DIMS)
        return [product, scaled] if used_twice else [product]

    return build_module([WIDE, RIGHT], body)


def names(module) -> list[str]:
    return [op.name for op in module.body.ops if op.name not in ("constant", "reshape")]


def test_a_factor_of_a_slice_goes_behind_the_product():
    before = program(0.125)
    after = SinkScales()(before)
    verify(after, INLINED)
    assert names(after) == ["slice", "dot_general", "multiply"]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(a.dims).astype(np.float32) for a in before.body.arguments]
    for a, b in zip(interpret(after, inputs), interpret(before, inputs), strict=True):
        np.testing.assert_array_equal(a, b)  # a power of two changes no digit


def test_other_factors_need_the_licence():
    assert names(SinkScales(rounds=True)(program(0.3)))[-1] == "multiply"
    before = program(0.3)
    assert SinkScales(rounds=False)(before) is before


@pytest.mark.parametrize("options", [{"sliced": False}, {"used_twice": True}])
def test_must_not_fire(options):
    before = program(0.125, **options)
    assert SinkScales()(before) is before
