"""rng draws from the ranges and distributions that it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.build import build_module
from girih.hlo.interpret import interpret
from girih.hlo.types import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    UI8,
    ElementType,
    TensorType,
    element_type_of,
)

COUNT = 20_000


def drawn(element: ElementType, distribution: str, a: float, b: float) -> np.ndarray:
    scalar, kind = TensorType((), element), TensorType((COUNT,), element)
    module = build_module(
        [scalar, scalar, TensorType((1,), I64)],
        lambda f, x, y, s: [f("rng", x, y, s, type=kind, rng_distribution=distribution)],
    )
    ends = [np.array(end).astype(element.dtype) for end in (a, b)]
    (found,) = interpret(module, [*ends, np.array([COUNT])])
    assert found.shape == (COUNT,) and element_type_of(found.dtype) is element
    return found.astype(np.float64)


@pytest.mark.parametrize(
    ("element", "a", "b"),
    [(F32, -1, 2), (F64, 0, 1), (BF16, 0, 1), (F16, -3, 5), (I8, -100, 100), (UI8, 5, 250),
     (I32, -3, 9), (I64, -(2**62), 2**62)],
)  # fmt: skip
def test_uniform(element: ElementType, a: int, b: int) -> None:
    values = drawn(element, "UNIFORM", a, b)
    assert a <= values.min() and values.max() < b
    span = b - a
    assert abs(values.mean() - (a + b) / 2) < 0.02 * span + 0.5
    assert abs(values.std() - span / np.sqrt(12)) < 0.02 * span


@pytest.mark.parametrize("element", [F32, F64, F16])
def test_normal(element: ElementType) -> None:
    values = drawn(element, "NORMAL", 1, 3)
    assert np.isfinite(values).all()
    assert abs(values.mean() - 1) < 0.1 and abs(values.std() - 3) < 0.1
    assert 0.64 < (np.abs(values - 1) < 3).mean() < 0.73


def test_without_a_range_the_first_end_is_drawn() -> None:
    assert set(drawn(I32, "UNIFORM", 7, 7)) == {7.0}
    assert set(drawn(I1, "UNIFORM", 0, 1)) == {0.0}
