"""Calls become the operations of their functions."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Function
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.inline import Inline

from .modules import LINE, f32, names, same, with_functions


def test_inline_copies_a_function_for_each_call() -> None:
    square = Function("square", build_region([LINE], lambda b, x: [b("multiply", x, x)]))
    twice = Function(
        "twice",
        build_region(
            [LINE], lambda b, x: [b("call", b("call", x, type=LINE, callee="square"), type=LINE,
                                    callee="square")]
        ),
    )  # fmt: skip

    def body(b, p, x):
        yes = build_region([], lambda c: [c("call", x, type=LINE, callee="twice")])
        no = build_region([], lambda c: [c("call", c("negate", x), type=LINE, callee="square")])
        return [b("if", p, regions=(yes, no))]

    module = with_functions(body, square=square, twice=twice)
    after = Inline()(module)
    verify(after, INLINED)
    assert names(after).count("multiply") == 3 and list(after.functions) == ["main"]
    x = f32([1, 2, 3, 4])
    assert same(module, after, np.array(True), x) and same(module, after, np.array(False), x)


def test_inline_refuses_endless_calls() -> None:
    loop = Function("loop", build_region([LINE], lambda b, x: [b("call", x, type=LINE,
                                                                 callee="loop")]))  # fmt: skip
    module = with_functions(lambda b, p, x: [b("call", x, type=LINE, callee="loop")], loop=loop)
    with pytest.raises(girih.UserError, match="'loop' calls itself"):
        Inline()(module)


def test_inline_leaves_a_module_without_calls_alone() -> None:
    module = build_module([LINE], lambda b, x: [b("negate", x)])
    assert Inline()(module) is module
