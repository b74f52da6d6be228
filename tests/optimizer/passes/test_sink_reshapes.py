"""Reshapes go behind what follows a contraction."""

from __future__ import annotations

import numpy as np

from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.sink_reshapes import SinkReshapes

from .modules import MATRIX, f32, names, same

OTHER, LONG = TensorType((4, 2), F32), TensorType((6,), F32)


def product(b, x, y):
    return b("dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))


def test_what_follows_a_product_has_its_dims() -> None:
    def body(b, x, y, z):
        return [b("tanh", b("add", b.reshape(product(b, x, y), (6,)), z))]

    module = build_module([MATRIX, OTHER, LONG], body)
    after = SinkReshapes()(module)
    verify(after, INLINED)
    assert names(after) == ["dot_general", "reshape", "add", "tanh", "reshape"]
    assert all(op.result.dims == (3, 2) for op in list(after.walk())[:-1])
    generator = np.random.default_rng(0)
    given = [generator.normal(size=kind.dims) for kind in (MATRIX, OTHER, LONG)]
    assert same(module, after, *map(f32, given))


def test_a_value_that_needs_the_product_itself_stays_in_front() -> None:
    """Where the other operand is computed from the same product, nothing can be sunk."""

    def body(b, x, y):
        flat = b.reshape(product(b, x, y), (6,))
        return [b("add", flat, b("reverse", flat, dimensions=(0,)))]

    module = build_module([MATRIX, OTHER], body)
    assert SinkReshapes()(module) is module


def test_programs_without_products_stay_as_they_are() -> None:
    module = build_module([MATRIX], lambda b, x: [b("negate", b.reshape(x, (12,)))])
    assert SinkReshapes()(module) is module
