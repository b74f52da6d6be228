"""Sorting by keys and by other comparators, and the largest of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from girih.backends.cpu import codegen
from girih.backends.plain.opaque.order import key_of
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, Region, arguments
from girih.hlo.types import (
    BF16,
    F32,
    F64,
    I8,
    I32,
    I64,
    UI8,
    UI32,
    ElementType,
    TensorType,
    tensor_of,
)

from . import harness
from .test_loops_elementwise import LEVELS

pytestmark = pytest.mark.usefixtures("each_level")
GENERATOR = np.random.default_rng(5)
ELEMENTS = [F32, F64, BF16, I8, I32, I64, UI8, UI32]


def values(element: ElementType, *dims: int) -> np.ndarray:
    """Values of both signs with many equals; of floats also infinities, NaNs and zeros."""
    if not element.is_float:
        low = -60 if element.kind == "int" else 0
        return GENERATOR.integers(low, 60, dims).astype(element.dtype)
    made = GENERATOR.integers(-40, 40, dims) / 8
    hostile = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0])
    where = GENERATOR.random(dims) < 0.1
    made[where] = GENERATOR.choice(hostile, int(where.sum()))
    return made.astype(element.dtype)


def total(b: Any, x: Any, y: Any, direction: str = "LT") -> Any:
    kind = "TOTALORDER" if x.element.is_float else "NOTYPE"
    return b("compare", x, y, comparison_direction=direction, compare_type=kind)


def comparator(element: ElementType, body: Callable[..., Any]) -> Region:
    scalars = [TensorType((), e) for e in (element, element, I64, I64)]
    return build_region(scalars, lambda b, x, y, i, j: [body(b, x, y)])


def sorting(element: ElementType, dims: tuple[int, ...], dimension: int, body: Any) -> Any:
    keys = values(element, *dims)
    places = np.arange(keys.size, dtype=np.int64).reshape(dims)
    inputs = [keys, places]
    operands = arguments([tensor_of(x) for x in inputs])
    region = comparator(element, body)
    return make_op("sort", operands, {"dimension": dimension}, [region]), inputs


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length", [1, 2, 7, 16, 17, 33, 128, 129, 700])
def test_lengths_on_all_levels(length: int, level: str | None) -> None:
    op, inputs = sorting(F32, (3, length), 1, total)
    harness.check(op, inputs, target=codegen.host_target(level))


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
@pytest.mark.parametrize("direction", ["LT", "GT"])
def test_elements_in_both_directions(element: ElementType, direction: str) -> None:
    for dims, dimension in (((2, 300), 1), ((40, 3), 0)):
        op, inputs = sorting(element, dims, dimension, lambda b, x, y: total(b, x, y, direction))
        assert key_of(op.regions[0]) is not None
        harness.check(op, inputs)


def test_one_function_of_either_side_is_a_key() -> None:
    def magnitude(b: Any, x: Any, y: Any) -> Any:
        return total(b, b("abs", y), b("abs", x), "GT")

    op, inputs = sorting(F32, (2, 200), 1, magnitude)
    key = key_of(op.regions[0])
    assert key is not None and not key.descending
    harness.check(op, inputs)


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x, y: b.compare("LT", x, y),
        lambda b, x, y: total(b, b("abs", x), y),
        lambda b, x, y: total(b, x, x),
        lambda b, x, y: total(b, x, y, "LE"),
        lambda b, x, y: total(b, b("add", x, y), b("add", y, x)),
    ],
    ids=["floats without order", "two functions", "one side", "not strict", "both sides"],
)
def test_other_comparators_have_no_key(body: Any) -> None:
    assert key_of(comparator(F32, body)) is None


def test_a_comparator_without_key_is_merged() -> None:
    keys = GENERATOR.integers(0, 9, (2, 150)).astype(np.float32)
    places = np.arange(keys.size, dtype=np.int64).reshape(keys.shape)
    operands = arguments([tensor_of(keys), tensor_of(places)])
    region = comparator(F32, lambda b, x, y: b.compare("LT", x, y))
    harness.check(make_op("sort", operands, {"dimension": 1}, [region]), [keys, places])


def top(x: np.ndarray, k: int) -> Op:
    return make_op("chlo.top_k", arguments([tensor_of(x)]), {"k": k})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length, k", [(5, 5), (100, 7), (256, 3), (257, 1), (1500, 4), (3001, 70)])
def test_top_of_rows(length: int, k: int, level: str | None) -> None:
    x = values(F32, 3, length)
    harness.check(top(x, k), [x], target=codegen.host_target(level))


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_top_of_elements(element: ElementType) -> None:
    x = values(element, 2, 900)
    harness.check(top(x, 20), [x])


@pytest.mark.parametrize("k", [1, 64, 65])
def test_top_of_rows_that_grow(k: int) -> None:
    """Every element is a candidate: the buffer is cut again and again."""
    x = np.stack([np.arange(2999), -np.arange(2999), np.zeros(2999)]).astype(np.float32)
    harness.check(top(x, k), [x])
