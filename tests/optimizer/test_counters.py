"""Turns and ranges of counted loops, against counting."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module, Op
from girih.hlo.types import I1, TensorType, element_type
from girih.optimizer.counters import NEEDLESS, RULES, counters, proven, ranges, turns
from girih.optimizer.passes.fuse import Fuse

COMPARISONS = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
}  # fmt: skip


def loop(kind: TensorType, first: int, step: int, direction: str, limit: int, **asked: Any) -> Op:
    return program(kind, first, step, direction, limit, **asked).body.ops[-1]


def program(
    kind: TensorType, first: int, step: int, direction: str, limit: int, **asked: Any
) -> Module:
    def condition(b: Any, i: Any) -> Any:
        if asked.get("mirrored"):
            return [b.compare(direction, b.constant(limit, kind), i)]
        return [b.compare(direction, i, b.constant(limit, kind))]

    def turn(b: Any, i: Any) -> Any:
        return [b("add", i, b.constant(step, kind))]

    def build(b: Any) -> Any:
        regions = (build_region([kind], condition), build_region([kind], turn))
        return b.op("while", [b.constant(first, kind)], {}, regions, [kind]).results

    return build_module([], build)


def counted(kind: TensorType, first: int, step: int, direction: str, limit: int) -> list[int]:
    """The counter's value in every turn, at most 300 of them."""
    one, by = (np.array(n).astype(kind.dtype) for n in (first, step))
    values: list[int] = []
    with np.errstate(over="ignore"):
        while COMPARISONS[direction](int(one), limit) and len(values) < 300:
            values.append(int(one))
            one = (one + by).astype(kind.dtype)
    return values


@pytest.mark.parametrize("name", ["i8", "ui8"])
def test_turns_and_ranges_are_those_of_counting(name: str) -> None:
    kind = TensorType((), element_type(name))
    edges = [-128, -127, -2, 0, 3, 126, 127] if name == "i8" else [0, 1, 3, 9, 253, 254, 255]
    steps = [-3, -1, 1, 2, 5] if name == "i8" else [1, 2, 5, 255]
    known = 0
    for first, step, direction, limit in product(edges, steps, COMPARISONS, edges):
        op = loop(kind, first, step, direction, limit)
        found, values = counters(op), counted(kind, first, step, direction, limit)
        count = turns(op, found)
        facts = ranges(op, found, count)
        if count is not None:
            known += 1
            assert count == len(values), (first, step, direction, limit)
        for low, high in facts.values():
            assert all(low <= value <= high for value in values), (first, step, direction, limit)
            if count:
                assert (low, high) == (min(values), max(values))
    assert known > 300


def test_the_bound_may_stand_on_the_left() -> None:
    kind = TensorType((), element_type("i32"))
    op = loop(kind, 0, 1, "GT", 5, mirrored=True)
    assert turns(op, counters(op)) == 5


SPANS = [(low, high) for low in range(-3, 4) for high in range(low, 4)]


@pytest.mark.parametrize("direction", COMPARISONS)
def test_comparisons_of_ranges_are_decided_exactly_where_they_can_be(direction: str) -> None:
    kind = TensorType((), element_type("i32"))

    def build(b: Any, x: Any, y: Any) -> Any:
        return [b.compare(direction, x, y)]

    region = build_module([kind, kind], build).body
    x, y = region.arguments
    for left, right in product(SPANS, SPANS):
        found = {
            COMPARISONS[direction](a, b)
            for a in range(left[0], left[1] + 1) for b in range(right[0], right[1] + 1)
        }  # fmt: skip
        truth = proven(region, {x: left, y: right}).truths.get(region.results[0])
        assert truth == (found.pop() if len(found) == 1 else None)


FORMULAS = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "negate": lambda a: -a, "maximum": max, "minimum": min, "select": lambda a, b: b,
    "remainder": lambda a, b: int(np.fmod(a, b)) if b else a,
    "divide": lambda a, b: int(a / b) if b else -1,
    "clamp": lambda low, value, high: min(max(low, value), high),
    "convert": int, "reshape": int, "broadcast_in_dim": int,
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_results_lie_in_their_ranges(name: str) -> None:
    formula = FORMULAS[name]
    count = formula.__code__.co_argcount if hasattr(formula, "__code__") else 2
    count = 1 if formula is int else count
    spans = SPANS if count < 3 else SPANS[::3]
    for given in product(spans, repeat=count):
        low, high = RULES[name](*given)
        same = NEEDLESS[name](*given) if name in NEEDLESS else None
        for values in product(*(range(a, b + 1) for a, b in given)):
            result = formula(*values)
            if high < 1 << 100:
                assert low <= result <= high, (given, values)
                assert same is None or result == values[same], (given, values)


def test_predicates_are_no_integers() -> None:
    kind = TensorType((), I1)
    region = build_module([kind], lambda b, x: [b("and", x, x)]).body
    assert not proven(region, {}).truths


@pytest.mark.parametrize("step, direction, limit, count", [(1, "LT", 9, 9), (-2, "GT", -7, 4)])
def test_turns_are_counted_where_scalars_stand_in_fusions(
    step: int, direction: str, limit: int, count: int
) -> None:
    kind = TensorType((), element_type("i32"))
    module = Fuse()(program(kind, 0, step, direction, limit))
    (fused,) = (one for one in module.body.ops if one.name == "while")
    made = fused.regions[0].results[0].op
    assert made is not None and made.name == "fusion"
    assert turns(fused, counters(fused)) == count
