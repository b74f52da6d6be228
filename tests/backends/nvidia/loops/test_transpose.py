"""Transposes through shared memory: right, coalesced, and without bank conflicts."""

from __future__ import annotations

from typing import Any

import pytest

from girih.hlo.types import BF16, C64, F16, F32, F64, I1, I8, ElementType

from .support import check, counted, kind


def turned(b: Any, x: Any, *order: int) -> Any:
    return b("transpose", x, permutation=order)


@pytest.mark.parametrize("element", [F32, F64, BF16, F16, I8, I1, C64], ids=str)
@pytest.mark.parametrize("dims", [(64, 64), (256, 128), (40, 72), (33, 65), (9, 300)], ids=str)
def test_matrices(element: ElementType, dims: tuple[int, int]) -> None:
    check([kind(*dims, element=element)], lambda b, x: [turned(b, x, 1, 0)])


@pytest.mark.parametrize(
    ("dims", "order"),
    [
        ((4, 64, 128), (0, 2, 1)), ((16, 5, 48), (2, 1, 0)), ((2, 64, 3, 32), (0, 2, 3, 1)),
        ((8, 3, 70), (1, 2, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_more_dims(dims: tuple[int, ...], order: tuple[int, ...]) -> None:
    check([kind(*dims)], lambda b, x: [turned(b, x, *order)])


@pytest.mark.parametrize("dims", [(64, 128), (70, 90)], ids=str)
def test_fused_with_plain_operands(dims: tuple[int, int]) -> None:
    rows, columns = dims

    def body(b: Any, x: Any, y: Any, z: Any) -> Any:
        total = b("add", turned(b, x, 1, 0), y)
        return [b("multiply", total, b.broadcast(z, (columns, rows), (1,))), total]

    check([kind(rows, columns), kind(columns, rows), kind(rows)], body)


def test_two_transposed_operands_of_different_widths() -> None:
    def body(b: Any, x: Any, y: Any) -> Any:
        return [b("add", turned(b, x, 1, 0), b.convert(turned(b, y, 1, 0), F32))]

    check([kind(128, 256), kind(128, 256, element=BF16)], body)


@pytest.mark.parametrize("element", [F32, BF16, I8], ids=str)
def test_both_sides_are_coalesced_and_no_banks_conflict(element: ElementType) -> None:
    code, (report,) = counted([kind(256, 256, element=element)], lambda b, x: [turned(b, x, 1, 0)])
    assert code.launches[0].shared_bytes
    assert report.counters["global_sectors"] == 2 * 256 * 256 * element.itemsize // 32
    assert report.counters.get("bank_conflicts", 0) == 0


def test_single_elements_have_no_conflicts_either() -> None:
    _, (report,) = counted([kind(65, 97)], lambda b, x: [turned(b, x, 1, 0)])
    assert report.counters.get("bank_conflicts", 0) == 0
