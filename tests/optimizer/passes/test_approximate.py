"""Marks of what may be computed approximately: where a formula, a licence and a product meet."""

from __future__ import annotations

from typing import Any

import pytest

from girih.backends.nvidia.pipeline.functions import FORMULAS
from girih.hlo.build import build_module
from girih.hlo.graph import APPROXIMATE, EXACT, Module, Origin
from girih.hlo.types import F32, F64, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.licence import ASSUMES_FINITE, BITWISE, IGNORES_ZERO_SIGN, REASSOCIATES, Ledger
from girih.optimizer.passes.approximate import Approximate
from girih.optimizer.passes.fuse import Fuse

SQUARE = TensorType((8, 8), F32)
LINE = TensorType((8,), F32)


def fused(body: Any, *types: TensorType) -> Module:
    return Fuse()(build_module(types, body))


def product(b: Any, x: Any, y: Any) -> Any:
    return b("dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))


def layer(b: Any, x: Any, y: Any, r: Any) -> list[Any]:
    """A product, and one operation of each formula's form behind it."""
    b.origin = (Origin("model.py", 3),)
    p = product(b, x, y)
    scaled = b("subtract", b("multiply", p, b.constant(0.5, SQUARE)), y)
    return [b("tanh", b("divide", scaled, b.broadcast(r, (8, 8), (0,))))]


def marks(module: Module) -> list[str]:
    return [op.name for op in module.walk() if APPROXIMATE in op.attributes]


def test_operations_of_a_formula_are_marked() -> None:
    ledger = Ledger()
    after = Approximate(FORMULAS, ledger=ledger)(fused(layer, SQUARE, SQUARE, LINE))
    verify(after, FUSED)
    assert sorted(marks(after)) == ["divide", "subtract", "tanh"]
    assert ledger.hits == {f"approximate-{op}": 1 for op in ("divide", "subtract", "tanh")}
    assert ledger.licences == REASSOCIATES
    assert ledger.places["approximate-tanh"] == {"model.py:3": 1}


@pytest.mark.parametrize(
    "licences", [BITWISE, IGNORES_ZERO_SIGN, IGNORES_ZERO_SIGN | ASSUMES_FINITE]
)
def test_nothing_is_marked_without_a_licence(licences: Any) -> None:
    before = fused(layer, SQUARE, SQUARE, LINE)
    ledger = Ledger()
    assert Approximate(FORMULAS, licences, ledger)(before) is before and not ledger.hits


def test_other_forms_and_types_are_left_as_they_are() -> None:
    def plain(b: Any, x: Any, y: Any) -> list[Any]:
        p = product(b, x, y)
        return [b("divide", b("subtract", p, x), y)]

    wide = SQUARE.with_element(F64)
    for before in (
        fused(plain, SQUARE, SQUARE),
        fused(lambda b, x, y: [b("tanh", product(b, x, y))], wide, wide),
        fused(lambda b, x: [b("tanh", x)], SQUARE),
    ):
        assert Approximate(FORMULAS)(before) is before


def test_exact_operations_are_left_as_they_are() -> None:
    def body(b: Any, x: Any, y: Any) -> list[Any]:
        return [b.op("tanh", [product(b, x, y)], {EXACT: True}).result]

    before = fused(body, SQUARE, SQUARE)
    assert Approximate(FORMULAS)(before) is before
