"""Expressions: whatever simplifies them, the numbers stay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.optimizer.tiles.expressions import (
    Expression,
    choose,
    common_divisor,
    evaluate,
    expression,
    maximum,
    minimum,
    never_above,
    variable,
)

HIGH = {"t0": 7, "s0": 9, "r0": 5}
VARIABLES = [variable(name, 0 if name != "s0" else 1, high) for name, high in HIGH.items()]
NUMBERS = st.integers(-6, 6)


@st.composite
def formulas(draw: Any, depth: int = 3) -> tuple[Expression, Any]:
    """An expression, and a function that computes the same from a dict with Python's integers."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            number = draw(NUMBERS)
            return expression(number), lambda values: number
        place = draw(st.integers(0, 2))
        return VARIABLES[place], lambda values: values[list(HIGH)[place]]
    (a, f), (b, g) = draw(formulas(depth - 1)), draw(formulas(depth - 1))
    c = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "gcd", "choose"]))
    if kind == "choose":
        return choose(a, b, b, a - 1), lambda v: g(v) if f(v) <= g(v) else f(v) - 1
    made: dict[str, tuple[Any, Any]] = {
        "+": (lambda: a + b, lambda v: f(v) + g(v)),
        "-": (lambda: a - b, lambda v: f(v) - g(v)),
        "*": (lambda: a * b, lambda v: f(v) * g(v)),
        "//": (lambda: a // c, lambda v: f(v) // c),
        "%": (lambda: a % c, lambda v: f(v) % c),
        "min": (lambda: minimum(a, b), lambda v: min(f(v), g(v))),
        "max": (lambda: maximum(a, b), lambda v: max(f(v), g(v))),
        "gcd": (
            lambda: common_divisor(maximum(a, 0), c),
            lambda v: math.gcd(max(f(v), 0), c),
        ),
    }
    build, compute = made[kind]
    return build(), compute


@settings(max_examples=150, deadline=None)
@given(formulas(), formulas(), st.integers(0, 7), st.integers(1, 9), st.integers(0, 5))
def test_simplifying_keeps_the_value(first: Any, second: Any, t: int, s: int, r: int) -> None:
    values = {"t0": t, "s0": s, "r0": r}
    (a, f), (b, g) = first, second
    assert [int(x) for x in evaluate([a, b], values)] == [f(values), g(values)]
    for made, wanted in ((a, f(values)), (b, g(values))):
        low, high = made.range
        assert (low is None or low <= wanted) and (high is None or wanted <= high)
    if never_above(a, b):
        assert f(values) <= g(values)


def test_equal_expressions_are_one_object() -> None:
    t, s = VARIABLES[:2]
    assert t * s + 3 - s is s * t - s + 3
    assert maximum(t * s - 1, t * s + s) is t * s + s
    assert (4 * t + 7) // 4 is t + 1
    assert str((4 * t + 6) % 4) == "2"


def test_names_with_other_bounds_are_other_variables() -> None:
    small, large = variable("s9", 1, 4), variable("s9", 1, 100)
    assert minimum(small, 10) is small
    assert minimum(large, 10) is not large and minimum(large, 10).range.high == 10


def test_evaluates_arrays() -> None:
    t, s, _ = VARIABLES
    sizes, ids = np.arange(1, 9), np.arange(0, 8)[:, None]
    (got,) = evaluate([minimum(t * s + s, 20) - t * s], {"s0": sizes, "t0": ids})
    assert np.array_equal(got, np.minimum(ids * sizes + sizes, 20) - ids * sizes)
