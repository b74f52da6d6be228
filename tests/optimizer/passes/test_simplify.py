"""Loops, branches and tied weights under all rules (test_rules.py has the rules)."""

from __future__ import annotations

import numpy as np

from girih.hlo.build import build_module, build_region
from girih.hlo.verify import verify
from girih.optimizer.passes.simplify import Simplify
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline

from .modules import COUNT, LINE, f32, names, same, weighted


def test_loop_carries_become_captures() -> None:
    def body(b, x, w):
        cond = build_region(
            [COUNT, LINE, LINE, LINE],
            lambda c, i, v, k, dead: [c.compare("LT", i, c.constant(3, COUNT))],
        )
        step = build_region(
            [COUNT, LINE, LINE, LINE],
            lambda c, i, v, k, dead: [
                c("add", i, c.constant(1, COUNT)), c("add", v, k), k, c("negate", dead),
            ],
        )  # fmt: skip
        loop = b.op("while", [b.constant(0, COUNT), x, w, x], {}, [cond, step])
        return [loop.results[1], loop.results[2]]

    module = build_module([LINE, LINE], body)
    after = Simplify()(module)
    verify(after)
    loop = next(op for op in after.walk() if op.name == "while")
    assert len(loop.operands) == 2
    assert same(module, after, f32([1, 2, 3, 4]), f32([1, 1, -1, 0]))


W = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_tied_weight_is_not_scaled_for_one_of_its_uses() -> None:
    def body(b, x, w):
        across = b.transpose(b("exponential", w), (1, 0))
        y = b("dot_general", x, across, lhs_contracting_dimensions=(1,),
              rhs_contracting_dimensions=(0,))  # fmt: skip
        return [b("multiply", y, b.constant(0.5, y.tensor)), w]

    module, _ = weighted(body, w=W)
    after = Simplify()(module)
    (product,) = (op for op in after.walk() if op.name == "dot_general")
    assert all(value.op is None or value.op.name != "multiply" for value in product.operands)

    def alone(b, x, w):
        return body(b, x, w)[:1]

    module, _ = weighted(alone, w=W)
    after = run_pipeline(module, simplify_pipeline(), check=True)
    assert names(after) == ["weight", "dot_general"]
