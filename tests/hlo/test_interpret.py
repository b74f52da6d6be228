"""The interpreter: programs, captured values, bodies of every kind, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.errors import UserError
from girih.hlo.graph import Function, Module, Weight
from girih.hlo.interpret import interpret
from girih.hlo.ops.examples import f32
from girih.hlo.types import BF16, F32, I1, I32, TensorType

S, V = TensorType((), F32), TensorType((4,), F32)
X = f32([3, -1, 2, 7])


def test_inputs_are_checked() -> None:
    module = build_module([V], lambda b, x: [x])
    with pytest.raises(UserError, match="takes 1 inputs, got 2"):
        interpret(module, [X, X])
    with pytest.raises(UserError, match=r"input 0 must be f32\[4\], got float64\[4\]"):
        interpret(module, [X.astype(np.float64)])


def test_call_composite_and_weight() -> None:
    double = Function("double", build_region([V], lambda b, x: [b("add", x, x)]))
    b = Builder()
    (x,) = b.arguments([V])
    called = b("call", x, type=V, callee="double")
    composed = b.op("composite", [called], {"name": "n", "decomposition": "double"}, (), [V]).result
    weight = b("weight", type=V, weight="w")
    main = Function("main", b.region([b("add", composed, weight)]))
    weights = {"w": Weight("w", f32([1, 2, 3, 4]))}
    module = Module({"main": main, "double": double}, weights=weights)
    assert np.array_equal(interpret(module, [X])[0], 4 * X + [1, 2, 3, 4])


def test_tuples_come_apart_at_the_edge() -> None:
    def body(b: Any, x: Any) -> Any:
        pair = b("tuple", x, b("negate", x))
        return [b("get_tuple_element", pair, index=1), pair, b("create_token")]

    results = interpret(build_module([V], body), [X])
    assert [list(r) for r in results] == [list(-X), list(X), list(-X)]


def test_regions_see_outer_values_at_any_depth() -> None:
    """A while whose body holds an if that reads a value of the function."""

    def main(b: Any, x: Any) -> Any:
        twice = b("add", x, x)
        start = b.constant(0, TensorType((), I32))
        kinds = [TensorType((), I32), V]

        def cond(b: Any, i: Any, y: Any) -> Any:
            return [b.compare("LT", i, b.constant(3, kinds[0]))]

        def step(b: Any, i: Any, y: Any) -> Any:
            even = b.compare("EQ", b("and", i, b.constant(1, kinds[0])), b.constant(0, kinds[0]))
            added = b.op(
                "if", [even], {},
                [build_region([], lambda b: [b("add", y, twice)]),
                 build_region([], lambda b: [b("negate", y)])],
            )  # fmt: skip
            return [b("add", i, b.constant(1, kinds[0])), added.result]

        regions = (build_region(kinds, cond), build_region(kinds, step))
        return [b.op("while", [start, x], {}, regions).results[1]]

    module = build_module([V], main)
    expected = X
    for i in range(3):
        expected = expected + 2 * X if i % 2 == 0 else -expected
    assert np.array_equal(interpret(module, [X])[0], expected)


def stubborn(b: Any, x: Any, y: Any) -> Any:
    """x + y through a branch, which cannot be lifted to whole arrays."""
    branches = [
        build_region([], lambda b: [b("add", x, y)]),
        build_region([], lambda b: [b("add", y, x)]),
    ]
    return [b.op("if", [b.compare("GT", x, y)], {}, branches).result]


def test_bodies_that_cannot_be_lifted_run_element_by_element() -> None:
    def main(b: Any, x: Any) -> Any:
        body = build_region([S, S], stubborn)
        zero = b.constant(0, S)
        total = b("reduce", x, zero, regions=(body,), dimensions=(0,))
        mapped = b("map", x, x, regions=(build_region([S, S], stubborn),), dimensions=(0,))

        def before(b: Any, x: Any, y: Any) -> Any:
            less = b.compare("LT", x, y)
            yes = build_region([], lambda b: [b.constant(True, TensorType((), I1))])
            no = build_region([], lambda b: [b.constant(False, TensorType((), I1))])
            return [b.op("if", [less], {}, [yes, no]).result]

        ordered = b("sort", x, regions=(build_region([S, S], before),), dimension=0)
        return [total, mapped, ordered]

    total, mapped, ordered = interpret(build_module([V], main), [X])
    assert total == X.sum()
    assert np.array_equal(mapped, 2 * X)
    assert np.array_equal(ordered, np.sort(X))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 100, 257])
def test_sort_is_stable_for_any_length(length: int) -> None:
    keys = np.random.default_rng(length).integers(0, 5, (3, length)).astype(np.int32)
    places = np.broadcast_to(np.arange(length, dtype=np.int32), keys.shape)
    kinds = [TensorType((), I32)] * 4
    kind = TensorType(keys.shape, I32)

    def main(b: Any, k: Any, p: Any) -> Any:
        region = build_region(kinds, lambda b, x, y, i, j: [b.compare("GT", x, y)])
        return b.op("sort", [k, p], {"dimension": 1}, [region]).results

    got = interpret(build_module([kind, kind], main), [keys, places])
    order = np.argsort(-keys, axis=1, kind="stable")
    assert np.array_equal(got[0], np.take_along_axis(keys, order, 1))
    assert np.array_equal(got[1], order)


def test_small_floats_are_summed_wide_and_rounded_once() -> None:
    ones = np.ones(1000, BF16.dtype)
    scalar = TensorType((), BF16)

    def main(b: Any, x: Any) -> Any:
        return [b.reduce("add", x, b.constant(0, scalar), (0,))]

    (total,) = interpret(build_module([TensorType((1000,), BF16)], main), [ones])
    assert float(total) == 1000.0
