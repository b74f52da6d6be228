"""`rows` and `reduce` fusions: normalisations, reductions of any dims, the plain way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.hlo.types import BF16, C64, F32, F64, I1, I32, ElementType

from ..support import SCALAR, argmax, kind, layer_norm, softmax
from .test_loops_elementwise import LEVELS, check

pytestmark = pytest.mark.usefixtures("each_level")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, 5, 16, 64, 100, 1000])
def test_softmax(size: int, level: str | None) -> None:
    code = check([kind(4, 6, size)], lambda b, x: [softmax(b, x, 2)], "rows", 2e-6, level)
    assert code.tiles == 24 and not code.notes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [5, 100, 768])
def test_layer_norm(size: int, level: str | None) -> None:
    types = [kind(4, 6, size), kind(size), kind(size)]
    check(types, lambda b, x, s, t: [layer_norm(b, x, s, t, 2)], "rows", 2e-6, level)


def test_expensive_values_are_kept_for_later_passes() -> None:
    code = check([kind(8, 1000)], lambda b, x: [softmax(b, x, 1)], "rows", 2e-6)
    assert code.scratch_bytes >= 4 * 1000
    code = check([kind(8, 1000)] + [kind(1000)] * 2,
                 lambda b, x, s, t: [layer_norm(b, x, s, t, 1)], "rows", 2e-6)  # fmt: skip
    assert code.scratch_bytes == 0  # subtracting again is cheaper


def test_long_ordered_fold_is_split_over_lanes() -> None:
    """Segments are joined in order, so the first of equal values still wins."""
    types = [kind(2, 1003), SCALAR, kind(element=I32)]

    def body(b: Any, x: Any, v: Any, i: Any) -> Any:
        return argmax(b, b("floor", x), (1,), (v, i))

    check(types, body, "rows")


def test_whole_array_as_one_row() -> None:
    check([kind(1000)], lambda b, x: [softmax(b, x, 0)], "rows", 1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "name, element", [("maximum", BF16), ("add", I32), ("add", C64), ("or", I1), ("minimum", F64)]
)
def test_row_reductions(name: str, element: ElementType, level: str | None) -> None:
    types = [kind(40, 61, element=element), kind(element=element)]
    tolerance = 1e-5 if element is C64 else 0.0
    check(types, lambda b, x, i: [b.reduce(name, x, i, (1,))], "rows", tolerance, level)


@pytest.mark.parametrize("fusion, dims", [("rows", (1,)), ("reduce", (0,)), ("reduce", (0, 1))])
def test_ordered_bodies(fusion: str, dims: tuple[int, ...]) -> None:
    types = [kind(40, 61), SCALAR, kind(element=I32)]
    check(types, lambda b, x, v, i: argmax(b, x, dims, (v, i)), fusion)


SHAPES = [
    ((100, 37), (0,)), ((100, 370), (0,)), ((3, 100, 33), (1,)), ((3, 10, 33), (0, 2)),
    ((3, 4, 5, 6), (0, 2)), ((3, 4, 5, 6), (1, 3)), ((70, 90), (0, 1)), ((5, 1, 7), (1,)),
    ((9, 3), (0,)), ((3, 0), (1,)), ((0, 3), (1,)),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", [F32, I32, BF16, F64, C64])
@pytest.mark.parametrize("dims, reduced", SHAPES)
def test_reduce(
    dims: tuple[int, ...], reduced: tuple[int, ...], element: ElementType, level: str | None
) -> None:
    tolerance = {F32: 1e-5, I32: 0.0, BF16: 2e-2, F64: 1e-12, C64: 1e-5}[element]

    def body(b: Any, x: Any) -> Any:
        zero = b.constant(0, kind(element=element))
        return [b.reduce("add", b("multiply", x, x), zero, reduced)]

    check([kind(*dims, element=element)], body, "reduce", tolerance, level)


def test_several_reductions_of_one_shape() -> None:
    def body(b: Any, x: Any) -> Any:
        total = b.reduce("add", x, b.constant(0, SCALAR), (0,))
        largest = b.reduce("maximum", x, b.constant(-np.inf, SCALAR), (0,))
        return [total, largest]

    check([kind(50, 70)], body, "reduce", 1e-5)


def test_other_fusions_run_one_operation_after_another() -> None:
    code = check([kind(8, 33)], lambda b, x: [b.transpose(softmax(b, x, 1), (1, 0))], "rows", 1e-5)
    assert code.notes and not code.parallel


@pytest.mark.parametrize("dims", [(3_000_017,), (2, 700_003)], ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_long_sums_lose_little(dims: tuple[int, ...], level: str | None) -> None:
    """Of as many squares a single accumulator a lane would lose 1e-5 of the sum and more."""

    def body(b: Any, x: Any) -> Any:
        return [b.reduce("add", b("multiply", x, x), b.constant(0, SCALAR), (len(dims) - 1,))]

    check([kind(*dims)], body, "reduce", 1e-6, level)
