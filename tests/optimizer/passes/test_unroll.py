"""Programs whose layers were functions for a while are what they would be without that."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Value
from girih.options import Options

from .layered import INPUTS, WIDTH, Layer, X, both, layer, stack, texts, values, with_common_work
from .modules import same


@pytest.mark.parametrize("one", [layer, with_common_work])
def test_simplified_as_without_it(one: Layer) -> None:
    """Also what layers have in common, and weights that are derived of theirs."""
    rolled, plain = both(stack(one))
    assert texts(rolled) == texts(plain)
    assert any("#exponential" in name for name in rolled.weights)
    assert values(rolled) == values(plain)
    assert same(rolled, plain, INPUTS)


def test_what_is_known_around_the_layers_is_carried_through_them() -> None:
    """The last row alone is needed, so every layer computes one row; or all rows are equal."""

    def one_row(b: Builder, x: Value) -> Value:
        return b("slice", x, start_indices=(3, 0), limit_indices=(4, WIDTH), strides=(1, 1))

    def dense(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
        product = b("dot_general", x, w,
                    lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))  # fmt: skip
        shift = b.broadcast(v, X.dims, (1,))
        return b("logistic", b("tanh", b("exponential", b("sine", b("add", product, shift)))))

    rolled, plain = both(stack(dense, last=one_row))
    assert texts(rolled) == texts(plain) and same(rolled, plain, INPUTS)
    assert all(op.result.dims[0] == 1 for op in rolled.body.ops if op.name == "dot_general")

    rolled, plain = both(stack(first=lambda b, y: b.constant(np.zeros(X.dims, np.float32))))
    assert same(rolled, plain, INPUTS)
    assert len(rolled.body.ops) == len(plain.body.ops)


def test_the_same_plan_and_the_same_bits_on_the_cpu() -> None:
    module = stack()
    options = [Options(cache="off"), Options(cache="off", disable=("reroll",))]
    rolled, plain = (girih.compile(module, options=one) for one in options)
    assert np.array_equal(rolled(INPUTS)[0], plain(INPUTS)[0])
    assert len(rolled.plan.steps) == len(plain.plan.steps)
    assert len(rolled.plan.kernels) == len(plain.plan.kernels)
    assert rolled.memory.arena_bytes == plain.memory.arena_bytes
    sizes = [sum(w.nbytes for w in one.parts.weights.values()) for one in (rolled, plain)]
    assert sizes[0] == sizes[1]
