"""Programs next to an example: what is changed, and what the rule check finds with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from girih.hlo.graph import Function, Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, I32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.rewrite import Rewriter
from girih.optimizer.rule import example, structural
from girih.optimizer.rules.check import check_rule
from girih.optimizer.rules.contractions import convolution
from girih.optimizer.rules.neighbours import neighbours
from girih.optimizer.rules.slices import cut

LINE = TensorType((6,), F32)


def piece(b: Any, x: Value) -> Value:
    return cut(b, b("add", x, b.constant(2.0, LINE)), (0,), (4,))


def test_one_thing_is_changed_and_the_rest_is_a_program() -> None:
    near = list(neighbours(example("piece", [LINE], piece)))
    assert all(found.fires is None for found in near)
    for found in near:
        verify(Module({"main": Function("main", found.region)}))
    names = {found.name.removeprefix("piece, ") for found in near}
    assert {
        "add used elsewhere", "argument 0 varying", "a constant given", "i32 for f32",
        "add with multiply", "slice with start_indices = (1,)", "slice with limit_indices = (5,)",
        "12 for 6",
    } <= names  # fmt: skip


def test_a_loop_is_left_as_it_is() -> None:
    """A loop with another step may never end."""
    from girih.hlo.build import build_region

    count = TensorType((), I32)

    def body(b: Any, i: Value) -> Value:
        cond = build_region([count], lambda c, n: [c.compare("LT", n, c.constant(3, count))])
        step = build_region([count], lambda c, n: [c("add", n, c.constant(1, count))])
        return b("while", i, regions=(cond, step))

    assert not list(neighbours(example("loop", [count], body)))


@structural("first elements", "slice", examples=lambda: [example("piece", [LINE], piece)])
def careless(op: Any, b: Rewriter) -> Value | None:
    """slice(x + c) -> slice x + c [wrong: it takes the slice to begin at the first element]"""
    inner = op.operands[0].op
    if inner is None or inner.name != "add":
        return None
    first = cut(b, inner.operands[0], (0,), op.type.dims, op.strides)
    return b("add", first, b.constant(2.0, op.type))


def test_a_missing_condition_is_found_next_to_the_example() -> None:
    assert any("start_indices" in problem or "constant" in problem
               for problem in check_rule(careless))  # fmt: skip


def test_what_a_rule_makes_may_be_said() -> None:
    said = dataclasses.replace(
        careless, examples=lambda: [example("piece", [LINE], piece, makes=("slice",))]
    )
    assert any("that is not slice" in problem for problem in check_rule(said))


@pytest.mark.parametrize("dims", [(3, 0, 2, 2), (3, 2, 0, 2)])
def test_a_convolution_without_terms_is_zero(dims: tuple[int, ...]) -> None:
    image = TensorType((1, dims[1], 4, 4), F32)
    made = example("empty", [image, TensorType(dims, F32)], convolution)
    module = Module({"main": Function("main", made.region)})
    (result,) = interpret(module, [np.ones(image.dims, np.float32), np.ones(dims, np.float32)])
    assert not result.any()
