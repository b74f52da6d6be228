"""Products of a sequence's parts in a loop: one product before it, where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.hlo.build import build_module
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, TensorType
from girih.optimizer.licence import IGNORES_ZERO_SIGN, Ledger
from girih.optimizer.passes.loops import Loops

from .modules import COUNT, names
from .test_loops import loop, rewritten

TURNS, DEPTH, COLUMNS = 12, 3, 5
WEIGHT = TensorType((DEPTH, COLUMNS), F32)

# By name: the sequence's dims, the part's as the product takes it, the dim that turns go along.
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "rows": ((TURNS, DEPTH), (1, DEPTH), 0),
    "batches": ((TURNS, 2, DEPTH), (2, DEPTH), 0),
    "batch first": ((2, TURNS, DEPTH), (2, DEPTH), 1),
    "vectors": ((TURNS, DEPTH), (DEPTH,), 0),
}


def summed(
    form: str = "rows", turns: int = TURNS, add: int = 0, factor: int = 1, carried: bool = False
) -> Module:
    """The sum over turns of products of part `factor * i + add` and a weight."""
    dims, part, along = FORMS[form]
    sums = TensorType((*part[:-1], COLUMNS), F32)

    def build(b: Any, sequence: Value, w: Value) -> Any:
        def body(b: Any, i: Value, total: Value, *own: Value) -> list[Value]:
            index = b("multiply", i, b.constant(factor, COUNT))
            index = b("add", index, b.constant(add, COUNT))
            starts = [index if dim == along else b.constant(0, COUNT) for dim in range(len(dims))]
            sizes = tuple(1 if dim == along else size for dim, size in enumerate(dims))
            read = b("dynamic_slice", sequence, *starts, slice_sizes=sizes)
            row = b("reshape", read, type=TensorType(part, F32))
            product = b(
                "dot_general", row, own[0] if own else w,
                lhs_contracting_dimensions=(len(part) - 1,), rhs_contracting_dimensions=(0,),
                lhs_batching_dimensions=(), rhs_batching_dimensions=(),
            )  # fmt: skip
            changed = [b("negate", one) for one in own]
            return [b("add", b("tanh", total), product), *changed]

        start = [b.constant(0.0, sums), *([w] if carried else [])]
        return [loop(b, start, body, turns)[1]]

    return build_module([TensorType(dims, F32), WEIGHT], build)


def arguments(form: str = "rows") -> tuple[np.ndarray, np.ndarray]:
    """Small integers, whose products are the same in every order."""
    rng = np.random.default_rng(0)
    shapes = FORMS[form][0], (DEPTH, COLUMNS)
    one, other = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return one, other


def inside(module: Module) -> list[str]:
    (found,) = (op for op in module.body.ops if op.name == "while")
    return [op.name for op in found.regions[1].ops]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("add, factor", [(0, 1), (TURNS - 1, -1), (5, 1), (-7, 3)])
def test_one_product_takes_the_place_of_many(form: str, add: int, factor: int) -> None:
    """Also where parts are read backwards, or an index is clamped."""
    module = summed(form, add=add, factor=factor)
    after, ledger = rewritten(module, *arguments(form), unrolled_turns=0)
    assert "dot_general" in names(after) and "dot_general" not in inside(after)
    assert ledger.hits["loops-project"] == 1


@pytest.mark.parametrize(
    "module, budgets",
    [
        (summed(turns=TURNS // 2 - 1), {}),  # most of the sequence is not read
        (summed(carried=True), {}),
        (summed(), {"projected_bytes": 4 * TURNS * COLUMNS - 1}),
    ],
    ids=["short", "carried", "large"],
)
def test_products_stay_where_one_would_not_pay(module: Module, budgets: dict[str, int]) -> None:
    after, ledger = rewritten(module, *arguments(), unrolled_turns=0, **budgets)
    assert "dot_general" in inside(after) and not ledger.hits["loops-project"]


def test_products_stay_where_sums_keep_their_order() -> None:
    ledger = Ledger(allowed=IGNORES_ZERO_SIGN)
    after = Loops(unrolled_turns=0, ledger=ledger)(summed())
    assert "dot_general" in inside(after)
