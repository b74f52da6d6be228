"""Products whose rows are only folded: a tile is folded as it is formed, the whole never stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import BF16, F32, ElementType, TensorType

BATCH, DEPTH, COLUMNS = 2, 32, 512
STARTS = {"maximum": -np.inf, "minimum": np.inf, "add": 0.0}


def folded(fold: str, rows: Any, element: ElementType = F32, batch: Any = BATCH) -> Module:
    """max(x w + 1, -1), folded over rows: [batch, rows, DEPTH] -> [batch, COLUMNS]."""

    def body(b: Any, x: Any, w: Any) -> list[Any]:
        sums = b("dot_general", x, w, type=TensorType((batch, rows, COLUMNS), element),
                 lhs_batching_dimensions=(), rhs_batching_dimensions=(),
                 lhs_contracting_dimensions=(2,), rhs_contracting_dimensions=(0,))  # fmt: skip
        return [reduced(b, clipped(b, sums), fold)]

    return build_module(
        [TensorType((batch, rows, DEPTH), element), TensorType((DEPTH, COLUMNS), element)], body
    )


def clipped(b: Any, sums: Any) -> Any:
    more = b("add", sums, b.constant(1, sums.tensor))
    return b("maximum", more, b.constant(-1, sums.tensor))


def reduced(b: Any, value: Any, fold: str) -> Any:
    start = b.constant(STARTS[fold], TensorType((), value.element))
    return b.reduce(fold, value, start, (1,))


def expected(x: np.ndarray, w: np.ndarray, fold: str) -> np.ndarray:
    values = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + 1, -1)
    return {"maximum": np.max, "minimum": np.min, "add": np.sum}[fold](values, axis=1)


def inputs(rows: int, element: ElementType = F32) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    x, w = generator.standard_normal((BATCH, rows, DEPTH)), generator.random((DEPTH, COLUMNS))
    return x.astype(element.dtype), (w - 0.5).astype(element.dtype)


def check(program: Any, arrays: tuple[np.ndarray, ...], fold: str, tolerance: float) -> None:
    wanted = expected(arrays[0], arrays[1], fold)
    (found,) = program(*arrays)
    found = np.asarray(found, np.float64)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [4096, 4001])
@pytest.mark.parametrize("fold", STARTS)
def test_rows_are_folded_as_they_are_formed(fold: str, rows: int) -> None:
    program = girih.compile(folded(fold, rows))
    assert program.memory.temporary_bytes == 0
    check(program, inputs(rows), fold, 1e-4)


def test_one_number_that_is_none_spoils_its_column_alone() -> None:
    x, w = inputs(4001)
    w[3, 7], w[:, 9] = np.nan, 0
    x[1, 4000, 5] = np.inf
    w[5, 9] = -1  # a column whose last row is minus infinity before it is clipped
    with np.errstate(invalid="ignore"):
        check(girih.compile(folded("maximum", 4001)), (x, w), "maximum", 1e-4)


@pytest.mark.parametrize("fold", ["maximum", "add"])
def test_narrow_products(fold: str) -> None:
    program = girih.compile(folded(fold, 4001, BF16))
    arrays = inputs(4001, BF16)
    check(program, arrays, fold, 2e-2)


@pytest.mark.parametrize("rows", [4096, 4001])
def test_a_convolution_of_one_tap_is_such_a_product(rows: int) -> None:
    """Its weights are packed, and windows of them read as they lie."""
    x, w = inputs(rows)

    def body(b: Any, x: Any) -> list[Any]:
        kernel = b.constant(w.reshape(1, DEPTH, COLUMNS))
        kind = TensorType((BATCH, rows, COLUMNS), F32)
        sums = b("convolution", x, kernel, type=kind, **numbers(1))
        return [reduced(b, clipped(b, sums), "maximum")]

    program = girih.compile(build_module([TensorType(x.shape, F32)], body))
    assert program.memory.temporary_bytes == 0
    (found,) = program(x)
    np.testing.assert_allclose(found, expected(x, w, "maximum"), rtol=1e-4, atol=1e-4)
