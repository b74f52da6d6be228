"""scatter: every body, in the order of the updates, with windows or without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia.kernels import emit
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.types import BF16, F32, I32, I64, ElementType, TensorType

from .. import harness
from .support import kind


def scatter(
    dims: tuple[int, ...], count: int, window: tuple[int, ...], body: Any,
    element: ElementType = F32, index: ElementType = I32, **attributes: Any,
) -> Op:  # fmt: skip
    """Updates [count, *window] of rows (or of what `attributes` say) of an array."""
    scalars = [TensorType((), element)] * 2
    region = build_region(scalars, body)
    given = {
        "update_window_dims": tuple(range(1, 1 + len(window))), "inserted_window_dims": (0,),
        "input_batching_dims": (), "scatter_indices_batching_dims": (),
        "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1, **attributes,
    }  # fmt: skip
    depth = len(given["scatter_dims_to_operand_dims"])
    types = [
        kind(*dims, element=element), kind(count, depth, element=index),
        kind(count, *window, element=element),
    ]  # fmt: skip

    def whole(b: Any, x: Any, i: Any, u: Any) -> Any:
        return b.op("scatter", [x, i, u], given, [region]).results

    return build_region(types, whole).ops[-1]


def added(b: Any, x: Any, y: Any) -> Any:
    return [b("add", x, y)]


def replaced(b: Any, x: Any, y: Any) -> Any:
    return [y]


def mixed(b: Any, x: Any, y: Any) -> Any:
    """Neither commutes nor associates."""
    half = b.constant(0.5, TensorType((), x.element))
    return [b("add", b("multiply", x, half), y)]


def check(op: Op, high: int, seed: int = 0, **options: Any) -> None:
    generator = np.random.default_rng(seed)
    x, i, u = (value.tensor for value in op.operands)
    inputs = [
        generator.standard_normal(x.dims).astype(np.float32).astype(x.dtype),
        generator.integers(-1, high, i.dims).astype(i.dtype),
        generator.standard_normal(u.dims).astype(np.float32).astype(u.dtype),
    ]
    code = emit(op, harness.TARGET)
    assert not code.notes
    (got,) = harness.run(op, inputs, code=code, **options)
    (wanted,) = harness.expected(op, inputs)
    np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("body", [added, replaced, mixed])
@pytest.mark.parametrize(
    ("dims", "count", "window"),
    [((20, 16), 50, (16,)), ((300,), 700, ()), ((5, 3, 8), 9, (3, 8)), ((40, 6), 2500, (6,)),
     ((7, 10), 4, (6,)), ((50, 4), 1, (4,)), ((9,), 0, ())],
)  # fmt: skip
def test_rows(dims: tuple[int, ...], count: int, window: tuple[int, ...], body: Any) -> None:
    """Indices outside are left out; many updates of one row are applied in their order."""
    check(scatter(dims, count, window, body), dims[0] + 2)


@pytest.mark.parametrize(("element", "index"), [(BF16, I64), (I32, I32)], ids=str)
def test_types(element: ElementType, index: ElementType) -> None:
    check(scatter((30, 8), 90, (8,), added, element, index), 31)


def test_places_of_two_dims() -> None:
    op = scatter(
        (12, 10), 200, (), added, inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(1, 0)
    )
    check(op, 12)


def test_one_window_that_moves() -> None:
    attributes: dict[str, Any] = {
        "update_window_dims": (1, 2), "inserted_window_dims": (), "index_vector_dim": 1,
        "scatter_dims_to_operand_dims": (0, 1),
    }  # fmt: skip
    for seed in range(4):
        check(scatter((12, 40), 1, (3, 8), added, **attributes), 36, seed)


def test_in_place() -> None:
    check(scatter((20, 16), 50, (16,), added), 20, shared=[(0, 0)])
