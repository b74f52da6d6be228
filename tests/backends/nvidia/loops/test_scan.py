"""Running totals: prefixes and suffixes of lines of any length, bodies in the elements' order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia.kernels import emit
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.types import BF16, C64, F32, F64, I1, I32, I64, ElementType, TensorType

from .. import harness
from .support import inputs_for, kind


def running(
    dims: tuple[int, ...], dimension: int, element: ElementType, name: str = "add",
    backward: bool = False, start: Any = 0,
) -> Op:  # fmt: skip
    scalars = [TensorType((), element)] * 2
    body = build_region(scalars, lambda b, x, y: [b(name, x, y)])
    length = dims[dimension]

    def whole(b: Any, x: Any) -> Any:
        window = tuple(length if d == dimension else 1 for d in range(len(dims)))
        ends = (0, length - 1) if backward else (length - 1, 0)
        padding = tuple(ends if d == dimension else (0, 0) for d in range(len(dims)))
        attributes = {"window_dimensions": window, "padding": padding}
        operands = [x, b.constant(start, TensorType((), element))]
        return b.op("reduce_window", operands, attributes, [body]).results

    return build_region([kind(*dims, element=element)], whole).ops[-1]


def check(op: Op, inputs: list[np.ndarray], tolerance: float = 0.0, launches: int = 1) -> None:
    code = emit(op, harness.TARGET)
    assert not code.notes and len(code.launches) == launches
    harness.check(op, inputs, tolerance=tolerance, emitter=lambda: code)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("dims", "dimension", "launches"),
    [((2,), 0, 1), ((7, 33), 1, 1), ((33, 7), 0, 1), ((300, 5), 1, 1), ((3, 1000), 1, 1),
     ((2, 40, 3), 1, 1), ((1, 9000), 1, 1), ((40000,), 0, 2), ((1, 33001), 1, 2),
     ((9, 4096), 1, 1)],
)  # fmt: skip
def test_shapes(dims: tuple[int, ...], dimension: int, launches: int, backward: bool) -> None:
    op = running(dims, dimension, F32, backward=backward)
    values = np.random.default_rng(0).integers(-9, 9, dims).astype(np.float32)
    start = np.zeros((), np.float32)
    check(op, [values, start], launches=launches)


@pytest.mark.parametrize(
    ("element", "name", "start"),
    [
        (F64, "add", 0), (BF16, "maximum", -np.inf), (I32, "multiply", 1), (I64, "add", 0),
        (I1, "or", False), (C64, "add", 0),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("size", [33, 3000])
def test_types(element: ElementType, name: str, start: Any, size: int) -> None:
    op = running((2, size), 1, element, name)
    first = np.full((), start, np.float32).astype(element.dtype)
    inputs = [*inputs_for([kind(2, size, element=element)]), first]
    check(op, inputs, 1e-4 if element in (C64, F64) else 0.0)


def test_the_order_of_elements_is_kept() -> None:
    """x, y -> y where y is not 0: the last number that is not 0, so far."""
    scalars = [TensorType((), I32)] * 2

    def last(b: Any, x: Any, y: Any) -> Any:
        zero = b.constant(0, TensorType((), I32))
        return [b("select", b.compare("EQ", y, zero), x, y)]

    body = build_region(scalars, last)
    for size in (100, 5000, 33000):

        def whole(b: Any, x: Any, size: int = size) -> Any:
            attributes = {"window_dimensions": (size,), "padding": ((size - 1, 0),)}
            operands = [x, b.constant(7, TensorType((), I32))]
            return b.op("reduce_window", operands, attributes, [body]).results

        op = build_region([kind(size, element=I32)], whole).ops[-1]
        generator = np.random.default_rng(0)
        values = generator.integers(1, 1000, size) * (generator.integers(0, 9, size) == 0)
        code = emit(op, harness.TARGET)
        inputs = [values.astype(np.int32), np.full((), 7, np.int32)]
        (got,) = harness.run(op, inputs, code=code)
        places = np.maximum.accumulate(np.where(values != 0, np.arange(size), -1))
        wanted = np.where(places < 0, 7, values[places])
        np.testing.assert_array_equal(got, wanted)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 9), size=st.integers(2, 3000), backward=st.booleans())
def test_any_line(rows: int, size: int, backward: bool) -> None:
    op = running((rows, size), 1, I32, backward=backward)
    values = inputs_for([kind(rows, size, element=I32)])
    check(op, [*values, np.zeros((), np.int32)])
