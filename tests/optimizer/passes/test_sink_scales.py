"""Factors go behind products where their operand is then read in place."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.build import build_module
from girih.hlo.interpret import interpret
from girih.hlo.types import BF16, F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.sink_scales import SinkScales

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


def rounded(factor: float, *, width=F32, used_twice: bool = False):
    """A product of bf16 whose left side is scaled in `width`, and rounded, as attention's is."""

    def body(b, x, y):
        wide = b.convert(x, width)
        scaled = b.convert(b("multiply", wide, b.constant(factor, wide.tensor)), BF16)
        type = TensorType((6, 6), F32)
        product = b("dot_general", scaled, y, type=type, **DIMS)
        return [product, scaled] if used_twice else [product]

    kind = TensorType((6, 12), BF16)
    return build_module([kind, kind], body)


@pytest.mark.parametrize("factor", [0.125, 0.3])
def test_factors_that_are_rounded_go_behind_sums_that_are_wider(factor):
    """Where products read memory alone."""
    before = rounded(factor)
    assert SinkScales()(before) is before
    after = SinkScales(in_place=True)(before)
    verify(after, INLINED)
    assert names(after) == ["dot_general", "multiply"]
    rng = np.random.default_rng(0)
    kind = before.body.arguments[0].tensor.dtype
    inputs = [rng.standard_normal(a.dims).astype(kind) for a in before.body.arguments]
    exact = [np.asarray(x, np.float64) for x in inputs]
    expected = factor * exact[0] @ exact[1].T
    np.testing.assert_allclose(interpret(after, inputs)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_computed_operand_is_read_in_place():
    assert names(SinkScales(in_place=True)(program(0.125, sliced=False)))[-1] == "multiply"


def test_what_is_needed_scaled_stays():
    for before in (rounded(0.125, used_twice=True), program(0.125, sliced=False, used_twice=True)):
        assert SinkScales(in_place=True)(before) is before


def test_factors_that_are_rounded_need_the_licence():
    before = rounded(0.3)
    assert SinkScales(rounds=False, in_place=True)(before) is before
