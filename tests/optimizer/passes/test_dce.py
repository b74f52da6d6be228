"""What nothing needs goes."""

from __future__ import annotations

from girih.hlo.build import build_region
from girih.hlo.graph import Function, Weight
from girih.optimizer.passes.dce import Dce

from .modules import LINE, f32, with_functions


def test_dce_drops_functions_and_weights_without_use() -> None:
    spare = Function("spare", build_region([LINE], lambda b, x: [b("negate", x)]))
    module = with_functions(lambda b, p, x: [x], spare=spare)
    module = module.with_weights({"w": Weight("w", f32([1, 2]))})
    after = Dce()(module)
    assert list(after.functions) == ["main"] and not after.weights
