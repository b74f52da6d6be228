"""Offsets of windows as sums of tile ids and loop variables."""

from __future__ import annotations

from typing import Any

from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, Value, arguments
from girih.hlo.offsets import EVERYTHING, Offsets
from girih.hlo.ops.tile import INDEX
from girih.hlo.types import F32, I32, I64, TensorType

KIND = TensorType((100,), F32)


def kernel(compute: Any, grid: tuple[int, ...] = (5, 7)) -> tuple[Offsets, list[Value]]:
    """The offsets of the scalars that `compute(b, i, j)` returns."""
    found: list[Value] = []

    def body(b: Any, x: Value, out: Value) -> list[Value]:
        found.extend(compute(b, b("tile_id", axis=0), b("tile_id", axis=1)))
        b.op("tile_store", [out, b("tile_load", x, found[0], sizes=(4,)), found[0]])
        return []

    region = build_region([KIND, KIND], body)
    op: Op = make_op("kernel_call", arguments([KIND]), {"kernel": "k", "grid": grid}, (region,))
    return Offsets(op), found


def test_sums_of_tile_ids_are_affine() -> None:
    def compute(b: Any, i: Value, j: Value) -> list[Value]:
        def number(n: int) -> Value:
            return b.constant(n, INDEX)

        sum_ = b("subtract", b("multiply", number(8), i), b("add", j, number(3)))
        return [sum_, b("negate", b("add", sum_, b("multiply", j, number(2)))), i, j]

    offsets, (first, second, i, j) = kernel(compute)
    assert offsets.of(first).constant == -3 and offsets.of(first).terms == ((i, 8), (j, -1))
    assert offsets.range(offsets.of(first)) == (-9, 29)
    assert dict(offsets.of(second).terms) == {i: -8, j: -1}
    assert not offsets.inside(offsets.of(first), 4, 100), "it may be negative"
    assert offsets.inside(offsets.of(i), 96, 100) and not offsets.inside(offsets.of(i), 97, 100)


def test_what_is_no_sum_stands_for_itself_with_the_range_of_its_operation() -> None:
    def compute(b: Any, i: Value, j: Value) -> list[Value]:
        three = b.constant(3, INDEX)
        product = b("multiply", i, j)
        huge = b("multiply", i, b.constant(2**30, INDEX))
        parts = [b("remainder", j, three), b("divide", j, three), b("minimum", i, three)]
        return [product, huge, *parts]

    offsets, values = kernel(compute)
    for value in values:
        assert offsets.of(value).terms == ((value, 1),)
    ranges = [offsets.range(offsets.of(value)) for value in values]
    assert ranges == [EVERYTHING, EVERYTHING, (0, 2), (0, 2), (0, 3)]


def test_loop_variables_end_with_their_last_turn() -> None:
    seen: list[Value] = []

    def compute(b: Any, i: Value, j: Value) -> list[Value]:
        def step(b: Any, k: Value) -> list[Value]:
            seen.append(k)
            return []

        bounds = [b.constant(1, INDEX), b.constant(12, INDEX)]
        b.op("tile_for", bounds, {"step": 4}, (build_region([INDEX], step),))
        b.op("tile_for", [i, j], {}, (build_region([INDEX], step),))
        return [i]

    offsets, _ = kernel(compute)
    assert [offsets.range(offsets.of(k)) for k in seen] == [(1, 9), (0, 5)]


def test_offsets_of_i64_are_followed_where_they_come_from_i32() -> None:
    def compute(b: Any, i: Value, j: Value) -> list[Value]:
        wide = TensorType((), I64)
        eight = b.constant(8, wide)
        sum_ = b("add", b("multiply", b.convert(i, I64), eight), b.convert(j, I64))
        return [i, sum_, b.convert(b("power", sum_, eight), I32), j]

    offsets, (i, sum_, unknown, j) = kernel(compute)
    assert offsets.of(sum_).terms == ((i, 8), (j, 1))
    assert offsets.of(unknown).terms == ((unknown, 1),)  # no variable of i64 in one of i32
