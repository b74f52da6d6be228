"""sort and top_k: lines of any length, any comparator, stable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia.kernels import emit
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.types import BF16, F32, F64, I8, I32, I64, UI8, ElementType, TensorType

from .. import harness
from .support import inputs_for, kind


def sort(types: Sequence[TensorType], dimension: int, body: Any) -> Op:
    """A sort of operands of those types."""
    scalars = [TensorType((), t.element) for t in types for _ in range(2)]
    comparator = build_region(scalars, body)

    def whole(b: Any, *xs: Any) -> Any:
        attributes = {"dimension": dimension, "is_stable": True}
        return b.op("sort", list(xs), attributes, [comparator]).results

    return build_region(types, whole).ops[-1]


def total_order(b: Any, x: Any, y: Any, *rest: Any) -> Any:
    return [b("compare", x, y, comparison_direction="LT", compare_type="TOTALORDER")]


def descending(b: Any, x: Any, y: Any, *rest: Any) -> Any:
    return [b.compare("GT", x, y)]


def by_two_keys(b: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
    first, same = b.compare("LT", x, y), b.compare("EQ", x, y)
    return [b("or", first, b("and", same, b.compare("GT", i, j)))]


def bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def check(op: Op, inputs: Sequence[np.ndarray]) -> int:
    code = emit(op, harness.TARGET)
    assert not code.notes
    for got, wanted in zip(
        harness.run(op, inputs, code=code), harness.expected(op, inputs), strict=True
    ):
        np.testing.assert_array_equal(bytes_of(got), bytes_of(wanted))
    return len(code.launches)


@pytest.mark.parametrize(
    ("dims", "dimension", "launches"),
    [((1,), 0, 1), ((2,), 0, 1), ((7, 33), 1, 1), ((33, 7), 0, 1), ((300, 5), 1, 1),
     ((3, 1000), 1, 1), ((2, 4, 3), 1, 1), ((2048,), 0, 1), ((2, 2049), 1, 2), ((1, 5000), 1, 3),
     ((2100, 2), 0, 2)],
)  # fmt: skip
def test_shapes(dims: tuple[int, ...], dimension: int, launches: int) -> None:
    types = [kind(*dims, element=I32), kind(*dims)]
    keys = np.random.default_rng(0).integers(0, 20, dims).astype(np.int32)

    def less(b: Any, x: Any, y: Any, *rest: Any) -> Any:
        return [b.compare("LT", x, y)]

    assert check(sort(types, dimension, less), [keys, *inputs_for(types[1:])]) == launches


@pytest.mark.parametrize("element", [F32, F64, BF16, I8, UI8, I64], ids=str)
@pytest.mark.parametrize("size", [100, 2500])
def test_keys(element: ElementType, size: int) -> None:
    types = [kind(2, size, element=element)]
    inputs = inputs_for(types)
    if element.is_float:
        inputs[0][0, :6] = [np.nan, -np.nan, -0.0, 0.0, np.inf, -np.inf]
    check(sort(types, 1, total_order if element.is_float else descending), inputs)


@pytest.mark.parametrize("size", [100, 2500])
def test_any_comparator(size: int) -> None:
    types = [kind(2, size), kind(2, size, element=I32)]
    generator = np.random.default_rng(0)
    values = generator.integers(0, 9, (2, size)).astype(np.float32)
    check(
        sort(types, 1, by_two_keys), [values, generator.integers(0, 5, (2, size)).astype(np.int32)]
    )


@pytest.mark.parametrize(
    ("rows", "length", "k"), [(5, 40, 3), (2, 40, 40), (1, 2000, 7), (3, 5000, 5), (1, 9000, 600)]
)
def test_top(rows: int, length: int, k: int) -> None:
    def whole(b: Any, x: Any) -> Any:
        return b.op("chlo.top_k", [x], {"k": k}).results

    op = build_region([kind(rows, length)], whole).ops[-1]
    values = np.random.default_rng(0).integers(0, 500, (rows, length)).astype(np.float32)
    values[0, 3] = np.nan
    check(op, [values])
