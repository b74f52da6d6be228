"""`loop` fusions: shapes, index operations, element types, and how memory is accessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia.compile import compile_ptx
from girih.hlo.types import (
    BF16,
    C64,
    C128,
    F8E4M3FN,
    F8E5M2,
    F16,
    F32,
    F64,
    I1,
    I4,
    I8,
    I32,
    I64,
    UI8,
    UI16,
    ElementType,
    TensorType,
)

from .. import harness
from .support import check, counted, kind, operation

PLAIN = [F32, F64, F16, BF16, C64, C128, I1, I4, I8, UI8, UI16, I32, I64, F8E4M3FN, F8E5M2]


def pad(b: Any, x: Any, value: Any, low: Any, high: Any, interior: Any) -> Any:
    return b("pad", x, value, edge_padding_low=low, edge_padding_high=high,
             interior_padding=interior)  # fmt: skip


def sliced(b: Any, x: Any, start: Any, limit: Any, strides: Any) -> Any:
    return b("slice", x, start_indices=start, limit_indices=limit, strides=strides)


BODIES: dict[str, tuple[list[TensorType], Callable[..., Any]]] = {
    "scalar": ([kind()] * 2, lambda b, x, y: [b("add", x, y)]),
    "empty": ([kind(3, 0)] * 2, lambda b, x, y: [b("add", x, y)]),
    "one": ([kind(1, 1)], lambda b, x: [b("negate", x)]),
    "odd": ([kind(1000, 37)] * 2, lambda b, x, y: [b("add", x, y)]),
    "vectors": ([kind(600000)], lambda b, x: [b("negate", x)]),
    "vectors_and_rest": ([kind(600003)], lambda b, x: [b("negate", x)]),
    "bias": (
        [kind(4, 33, 48), kind(48)],
        lambda b, x, y: [b("add", x, b.broadcast(y, (4, 33, 48), (2,)))],
    ),
    "bias_of_odd_rows": (
        [kind(601, 1023), kind(1023)],
        lambda b, x, y: [b("add", x, b.broadcast(y, (601, 1023), (1,)))],
    ),
    "per_row": (
        [kind(33, 48), kind(33)],
        lambda b, x, y: [b("multiply", x, b.broadcast(y, (33, 48), (0,)))],
    ),
    "scalar_operand": (
        [kind(640), kind()],
        lambda b, x, y: [b("add", x, b.broadcast(y, (640,), ()))],
    ),
    "two_roots": (
        [kind(33, 48), kind(33, 48)],
        lambda b, x, y: [b("add", x, y), b("compare", x, y, comparison_direction="LT")],
    ),
    "concatenate": (
        [kind(5, 7), kind(5, 9), kind(5, 0)],
        lambda b, x, y, z: [b("concatenate", x, y, z, dimension=1)],
    ),
    "concatenate_rows": (
        [kind(6, 1024), kind(10, 1024)],
        lambda b, x, y: [b("negate", b("concatenate", x, y, dimension=0))],
    ),
    "pad": ([kind(5, 7), kind()], lambda b, x, v: [pad(b, x, v, (1, 2), (3, 1), (0, 0))]),
    "pad_interior": ([kind(5, 7), kind()], lambda b, x, v: [pad(b, x, v, (1, -1), (0, 2), (1, 2))]),
    "slice": ([kind(20, 30)], lambda b, x: [sliced(b, x, (3, 2), (19, 29), (2, 3))]),
    "slice_rows": ([kind(40, 64)], lambda b, x: [sliced(b, x, (4, 0), (36, 64), (1, 1))]),
    "reverse": ([kind(12, 40)], lambda b, x: [b("reverse", x, dimensions=(1,))]),
    "reverse_rows": ([kind(12, 40)], lambda b, x: [b("reverse", x, dimensions=(0,))]),
    "iota": ([kind(12, 40)], lambda b, x: [
        b("add", x, b("iota", type=kind(12, 40), iota_dimension=1))]),
    "reshape": (
        [kind(12, 40), kind(480)],
        lambda b, x, y: [b("add", b("reshape", x, type=kind(480)), y)],
    ),
    "gelu": ([kind(70, 129)], lambda b, x: [
        b("multiply", x, b("chlo.erf", b("multiply", x, b.constant(0.70710678, kind(70, 129)))))]),
    "exponential": ([kind(1000)], lambda b, x: [b("exponential", x)]),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_shapes_and_indices(name: str) -> None:
    types, body = BODIES[name]
    tolerance = 1e-6 if name in ("gelu", "exponential") else 0.0
    check(types, body, tolerance=tolerance)


@pytest.mark.parametrize("element", PLAIN, ids=str)
@pytest.mark.parametrize("dims", [(3, 37), (16, 4096), (300001,)], ids=str)
def test_element_types(element: ElementType, dims: tuple[int, ...]) -> None:
    """A copy chosen by a predicate, which every type has."""
    types = [kind(*dims, element=I1), kind(*dims, element=element), kind(*dims, element=element)]
    check(types, lambda b, p, x, y: [b("select", p, x, y)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (F32, BF16), (BF16, F32), (F16, F64), (I8, F32), (F32, I8), (I1, F32), (F32, F8E4M3FN),
        (F8E5M2, F32),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("size", [37, 1 << 19])
def test_mixed_widths(old: ElementType, new: ElementType, size: int) -> None:
    check([kind(size, element=old)], lambda b, x: [b.convert(x, new)])


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    values = np.array([1.00390625, 1.01171875, np.nan, np.inf, -0.0, 3.4e38, 1e-40], np.float32)
    op = operation([kind(7)], lambda b, x: [b.convert(x, BF16)], "loop")
    (found,) = harness.run(op, [values])
    wanted = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_gather_of_rows() -> None:
    def body(b: Any, table: Any, rows: Any) -> Any:
        return [
            b("gather", table, rows, offset_dims=(1,), collapsed_slice_dims=(0,),
              start_index_map=(0,), index_vector_dim=1, slice_sizes=(1, 64))
        ]  # fmt: skip

    types = [kind(50, 64), kind(20, 1, element=I32)]
    inputs = [
        np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32),
        np.random.default_rng(2).integers(-5, 60, (20, 1)).astype(np.int32),
    ]
    check(types, body, inputs=inputs)


def test_results_where_operands_lie() -> None:
    """In place: every thread reads its elements before it writes them."""
    types = [kind(3000), kind(3000)]
    op = operation(types, lambda b, x, y: [b("add", x, y), b("subtract", x, y)], "loop")
    inputs = [np.arange(3000, dtype=np.float32), np.ones(3000, np.float32)]
    added, subtracted = harness.run(op, inputs, shared=[(0, 0), (1, 1)])
    np.testing.assert_array_equal(added, inputs[0] + 1)
    np.testing.assert_array_equal(subtracted, inputs[0] - 1)


@settings(max_examples=25, deadline=None)
@given(
    dims=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 100),
    element=st.sampled_from([F32, BF16, I8, F64]),
)
def test_any_shape(dims: list[int], seed: int, element: ElementType) -> None:
    """Slices of concatenations of broadcasts, of any rank."""
    generator = np.random.default_rng(seed)
    axis = int(generator.integers(len(dims)))
    last = len(dims) - 1

    def body(b: Any, x: Any, y: Any) -> Any:
        spread = b.broadcast(y, tuple(dims), (last,))
        both = b("concatenate", x, spread, x, dimension=axis)
        start = tuple(1 if d == axis else 0 for d in range(len(dims)))
        limit = tuple(size * 3 if d == axis else size for d, size in enumerate(dims))
        return [b("negate", sliced(b, both, start, limit, (1,) * len(dims)))]

    check([kind(*dims, element=element), kind(dims[last], element=element)], body)


# How memory is accessed.


@pytest.mark.parametrize("element", [F32, BF16, I8, F64], ids=str)
def test_neighbours_move_in_accesses_of_16_bytes(element: ElementType) -> None:
    types = [kind(1024, 2048, element=element)] * 2
    op = operation(types, lambda b, x, y: [b("add", x, y)], "loop")
    ptx = compile_ptx(harness.emit(op, harness.TARGET).text, harness.TARGET.architecture)
    accesses = [line for line in ptx.splitlines() if "ld.global" in line or "st.global" in line]
    assert accesses and all(".v4.b32" in line or ".v2.b64" in line for line in accesses)


def test_a_residual_addition_wastes_no_sector() -> None:
    elements = 256 * 1024
    _, reports = counted([kind(elements)] * 2, lambda b, x, y: [b("add", x, y)])
    moved = sum(report.counters["global_sectors"] for report in reports)
    assert moved == 3 * elements * 4 // 32
