"""Rules for integers whose range is proven: comparisons, clamps, remainders, divisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import F32, I1, I32, UI32, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .ranges import interval

LINE = TensorType((60,), I32)
FLOATS = TensorType((60,), F32)
UNSIGNED = TensorType((60,), UI32)


def counted(b: Any, type: TensorType = LINE) -> Value:
    return b("iota", type=type, iota_dimension=0)


def number(b: Any, value: int, type: TensorType = LINE) -> Value:
    return b.constant(value, type)


def _integers(op: Op) -> bool:
    return op.operands[0].element.is_integer and op.type.is_static


def _compare_examples() -> Iterator[Example]:
    for direction, bound, fires in (
        ("LT", 0, True), ("LT", 60, True), ("LT", 59, False), ("LE", 59, True), ("GE", 0, True),
        ("GE", 1, False), ("GT", 59, True), ("GT", 58, False), ("EQ", 60, True), ("NE", 60, True),
        ("EQ", 59, False), ("LE", -1, True), ("GT", -1, True), ("NE", 0, False), ("LE", 58, False),
    ):  # fmt: skip
        yield example(
            f"iota {direction} {bound}",
            [],
            lambda b, d=direction, n=bound: b.compare(d, counted(b), number(b, n)),
            fires=fires,
        )
    small = TensorType((60,), I32)

    def fixed(b: Any, x: Value, low: int) -> Value:
        within = b("clamp", number(b, low), x, number(b, 9))
        below = b.compare("LT", within, number(b, 0))
        return b.compare("LT", b("select", below, b("add", within, number(b, 10)), within),
                         number(b, 10))  # fmt: skip

    yield example("fixed up", [small], lambda b, x: fixed(b, x, -10))
    yield example("out of range", [small], lambda b, x: fixed(b, x, -11))
    yield example(
        "sum that wraps",
        [small],
        lambda b, x: b.compare("GT", b("add", b("maximum", x, number(b, 0)), number(b, 1)),
                               number(b, 0)),
        fires=False,
    )  # fmt: skip


@structural("compare-decided", "compare", examples=_compare_examples, lowers="comparisons")
def compare_decided(op: Op, b: Rewriter) -> Value | None:
    """compare(x, y) of integers -> true, false [their ranges decide it, such as iota < size]"""
    if not _integers(op):
        return None
    direction = op.comparison_direction
    x, y = (interval(operand, b) for operand in op.operands)
    if direction in ("GT", "GE"):
        x, y = y, x
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction in ("EQ", "NE"):
        apart, equal = x[1] < y[0] or y[1] < x[0], x[0] == x[1] == y[0] == y[1]
        if not (apart or equal):
            return None
        holds = equal is (direction == "EQ")
    elif x[1] < y[0] or (direction == "LE" and x[1] == y[0]):
        holds = True
    elif x[0] > y[1] or (direction == "LT" and x[0] == y[1]):
        holds = False
    else:
        return None
    return b.splat(holds, op.type.with_element(I1))


def _clamp_examples() -> Iterator[Example]:
    for low, high in ((0, 59), (-1, 60), (1, 59), (0, 58)):
        yield example(
            f"iota in {low} to {high}",
            [],
            lambda b, i=low, j=high: b("clamp", number(b, i), counted(b), number(b, j)),
            fires=low <= 0 and high >= 59,
        )
    for low, high in ((0, 59), (1, 59)):
        yield example(
            f"{low} maximum, {high} minimum",
            [],
            lambda b, i=low, j=high: b(
                "minimum", b("maximum", counted(b), number(b, i)), number(b, j)
            ),
        )
    yield example(
        "maximum of less", [], lambda b: b("maximum", counted(b), number(b, 58)), fires=False
    )
    yield example(
        "minimum of more", [], lambda b: b("minimum", counted(b), number(b, 1)), fires=False
    )


@structural("clamp-in-range", "clamp", "maximum", "minimum", examples=_clamp_examples)
def clamp_in_range(op: Op, b: Rewriter) -> Value | None:
    """clamp(l, x, h), max(x, l), min(x, h) of integers -> x [its range is inside]"""
    if not _integers(op):
        return None
    if op.name == "clamp":
        low, x, high = op.operands
        least, most = interval(x, b)
        inside = interval(low, b)[1] <= least and most <= interval(high, b)[0]
        return x if inside else None
    for x, bound in (op.operands, op.operands[::-1]):
        own, other = interval(x, b), interval(bound, b)
        if own[0] >= other[1] if op.name == "maximum" else own[1] <= other[0]:
            return x
    return None


def _remainder_examples() -> Iterator[Example]:
    for divisor in (61, 60, 59):
        yield example(
            f"iota by {divisor}",
            [],
            lambda b, n=divisor: b("remainder", counted(b), number(b, n)),
            fires=divisor >= 60,
        )
    yield example("anything", [LINE], lambda b, x: b("remainder", x, number(b, 60)), fires=False)

    def floats(b: Any, x: Value) -> Value:
        low, high = b.constant(-2.0, FLOATS), b.constant(2.0, FLOATS)
        return b("remainder", b("clamp", low, x, high), b.constant(3.0, FLOATS))

    yield example("of floats", [FLOATS], floats, fires=False)
    yield example(
        "below zero",
        [LINE],
        lambda b, x: b("remainder", b("clamp", number(b, -61), x, number(b, 3)), number(b, 60)),
        fires=False,
    )


@structural("remainder-in-range", "remainder", examples=_remainder_examples)
def remainder_in_range(op: Op, b: Rewriter) -> Value | None:
    """remainder(x, y) of integers -> x [abs x < y]"""
    if not _integers(op):
        return None
    x, y = (interval(operand, b) for operand in op.operands)
    return op.operands[0] if max(-x[0], x[1]) < y[0] else None


def _power_examples() -> Iterator[Example]:
    for name in ("divide", "remainder"):
        for divisor, fires in ((2, True), (8, True), (1 << 30, True), (12, False), (-8, False)):
            yield example(
                f"{name} by {divisor}",
                [LINE],
                lambda b, x, name=name, n=divisor: b(
                    name, b("maximum", x, number(b, 0)), number(b, n)
                ),
                fires=fires,
            )
        yield example(
            f"{name} of negative numbers",
            [LINE],
            lambda b, x, name=name: b(name, b("maximum", x, number(b, -1)), number(b, 8)),
            fires=False,
        )
        yield example(
            f"{name} unsigned",
            [UNSIGNED],
            lambda b, x, name=name: b(name, x, number(b, 16, UNSIGNED)),
        )
    yield example("by one", [LINE], lambda b, x: b("divide", x, number(b, 3)), fires=False)


@structural("integer-by-power-of-two", "divide", "remainder", examples=_power_examples,
            lowers="integer divisions")  # fmt: skip
def integer_by_power_of_two(op: Op, b: Rewriter) -> Value | None:
    """x / 2^k -> shift x right by k; remainder(x, 2^k) -> x & (2^k - 1) [integers x >= 0, k > 0]"""
    if not _integers(op):
        return None
    divisor = b.scalar(op.operands[1])
    if divisor is None or int(divisor) < 2 or int(divisor) & (int(divisor) - 1):
        return None
    x = op.operands[0]
    if interval(x, b)[0] < 0:
        return None
    if op.name == "remainder":
        return b("and", x, b.splat(int(divisor) - 1, x.tensor))
    return b("shift_right_logical", x, b.splat(int(divisor).bit_length() - 1, x.tensor))


RULES: tuple[Rule, ...] = (
    compare_decided,
    clamp_in_range,
    remainder_in_range,
    integer_by_power_of_two,
)
