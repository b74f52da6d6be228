"""What moves of elements cost: sectors of global memory beside the fewest that would do.

The machine of these tests has one multiprocessor, so that small arrays are moved as large ones are:
in accesses of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.types import BF16, F32, F64, I8, I32, ElementType, TensorType

from .. import harness
from .support import check, counted, kind
from .test_loop import pad, sliced

ELEMENTS = [I8, BF16, F32, F64]
SECTOR = 32

Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def one_multiprocessor(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = replace(harness.TARGET.architecture, multiprocessors=1)
    monkeypatch.setattr(harness, "TARGET", replace(harness.TARGET, architecture=architecture))


def traffic(types: list[TensorType], body: Body, moved: int) -> tuple[float, int, float]:
    """Sectors by the fewest for so many bytes, bank conflicts, and bytes of a request."""
    _, reports = counted(types, body)

    def total(name: str) -> int:
        return sum(report.counters.get(name, 0) for report in reports)

    sectors = total("global_sectors") / (moved / SECTOR)
    return sectors, total("bank_conflicts"), moved / total("global_requests")


def turned(*order: int) -> Body:
    return lambda b, x: [b("transpose", x, permutation=order)]


TRANSPOSES = [
    ((256, 384), (1, 0)), ((8, 128, 64), (0, 2, 1)),
    ((64, 8, 128), (2, 1, 0)), ((16, 32, 64), (1, 2, 0)), ((16, 32, 64), (2, 0, 1)),
    ((16, 32, 64), (1, 0, 2)), ((4, 16, 8, 64), (0, 2, 1, 3)), ((4, 16, 8, 32), (0, 3, 1, 2)),
    ((4, 32, 16, 16), (0, 2, 3, 1)), ((128, 6, 64), (2, 0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(("dims", "order"), TRANSPOSES, ids=str)
def test_transposes(dims: tuple[int, ...], order: tuple[int, ...], element: ElementType) -> None:
    whole = kind(*dims, element=element)
    sectors, conflicts, _ = traffic([whole], turned(*order), 2 * whole.bytes)
    assert sectors <= 1.15 and conflicts == 0


ODD = [((65, 97), (1, 0)), ((250, 130), (1, 0)), ((33, 7, 65), (2, 1, 0))]


@pytest.mark.parametrize("element", [I8, F32], ids=str)
@pytest.mark.parametrize(("dims", "order"), ODD, ids=str)
def test_odd_transposes(
    dims: tuple[int, ...], order: tuple[int, ...], element: ElementType
) -> None:
    """One element at a time: rows that begin anywhere touch a sector more on each side."""
    whole = kind(*dims, element=element)
    sectors, conflicts, _ = traffic([whole], turned(*order), 2 * whole.bytes)
    assert sectors <= 1 + 2.8 / element.itemsize**0.5 and conflicts == 0


def gathered(b: Any, table: Any, rows: Any) -> Any:
    columns = table.dims[1]
    return [
        b("gather", table, rows, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,),
          index_vector_dim=1, slice_sizes=(1, columns))
    ]  # fmt: skip


def moves(e: ElementType) -> dict[str, tuple[list[TensorType], Body, int, float]]:
    """Operands, operation, bytes that have to move, and the limit for sectors."""
    size, scalar, index = e.itemsize, kind(element=e), kind(element=I32)
    wide = kind(64, 512, element=e)

    def joined(b: Any, x: Any, y: Any) -> Any:
        return [b("concatenate", x, y, dimension=1)]

    return {
        "concatenate": (
            [kind(64, 128, element=e), kind(64, 256, element=e)], joined, 2 * 64 * 384 * size, 1.15
        ),
        "slice": (
            [wide], lambda b, x: [sliced(b, x, (0, 128), (64, 384), (1, 1))], 2 * 64 * 256 * size,
            1.15,
        ),
        # What a row of threads reads begins in the middle of an access: each is read twice.
        "slice from the middle": (
            [wide], lambda b, x: [sliced(b, x, (0, 3), (64, 259), (1, 1))], 2 * 64 * 256 * size,
            1.6,
        ),
        "every second element": (
            [wide], lambda b, x: [sliced(b, x, (0, 0), (64, 512), (1, 2))], 3 * 64 * 256 * size,
            1.7,
        ),
        "reverse": ([wide], lambda b, x: [b("reverse", x, dimensions=(1,))], 2 * wide.bytes, 1.15),
        "padded rows": (
            [kind(2, 28, 28, 64, element=e), scalar],
            lambda b, x, v: [pad(b, x, v, (0, 1, 1, 0), (0, 1, 1, 0), (0,) * 4)],
            2 * (28 * 28 + 30 * 30) * 64 * size, 1.15,
        ),
        "gather": (
            [kind(50, 256, element=e), kind(64, 1, element=I32)], gathered,
            2 * 64 * 256 * size + 256, 1.15,
        ),
        "dynamic_slice": (
            [kind(128, 256, element=e), index, index],
            lambda b, x, i, j: [b("dynamic_slice", x, i, j, slice_sizes=(64, 256))],
            2 * 64 * 256 * size, 1.15,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("name", moves(F32))
def test_moves(name: str, element: ElementType) -> None:
    types, body, moved, limit = moves(element)[name]
    sectors, _, request = traffic(types, body, moved)
    assert sectors <= limit
    assert request >= 256 or name == "padded rows" and request >= 200


@pytest.mark.parametrize("element", [I8, F64], ids=str)
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("stride", [1, 2, 3, 8])
def test_slices_of_any_start_and_stride(element: ElementType, start: int, stride: int) -> None:
    """Accesses that reach over what is wanted never leave the array."""

    def body(b: Any, x: Any) -> Any:
        return [sliced(b, x, (0, start), (16, 517), (1, stride))]

    check([kind(16, 517, element=element)], body)


@settings(max_examples=12, deadline=None)
@given(
    size=st.integers(1, 700),
    start=st.integers(0, 40),
    stride=st.integers(1, 9),
    rows=st.integers(1, 5),
    element=st.sampled_from(ELEMENTS),
)
def test_any_slice(size: int, start: int, stride: int, rows: int, element: ElementType) -> None:
    limit = start + (size - 1) * stride + 1
    check(
        [kind(rows, limit, element=element)],
        lambda b, x: [sliced(b, x, (0, start), (rows, limit), (1, stride))],
    )
