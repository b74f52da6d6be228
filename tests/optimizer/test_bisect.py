"""girih bisect's search: a wrong pass, a wrong rule and its operation are found by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import girih
from girih.backends import find
from girih.hlo.interpret import interpret
from girih.hlo.verify import INLINED
from girih.optimizer.bisect import error_of, find_fault, reference
from girih.optimizer.pipeline import Pipeline, pipeline_for
from girih.optimizer.rule import Rule

MODEL = """
func.func @main(%x: tensor<4x6xf32>, %y: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %0 = stablehlo.add %x, %y : tensor<4x6xf32>
  %1 = stablehlo.tanh %0 : tensor<4x6xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<4x6xf32>
  %3 = stablehlo.subtract %2, %x : tensor<4x6xf32>
  %4 = stablehlo.subtract %3, %y : tensor<4x6xf32>
  return %4 : tensor<4x6xf32>
}
"""
OPTIONS = girih.Options(cache="off")


def inputs():
    generator = np.random.default_rng(0)
    return [generator.standard_normal((4, 6)).astype(np.float32) for _ in range(2)]


def fault(module, pipeline=None, tolerance=1e-4):
    pipeline = pipeline or pipeline_for(find("null", OPTIONS), OPTIONS)
    return find_fault(module, pipeline, inputs(), tolerance)


def test_the_reference_is_float64():
    module = girih.import_model(MODEL)
    (wide,), (own,) = reference(module, inputs()), interpret(module, inputs())
    assert wide.dtype == np.float64 and own.dtype == np.float32
    assert 0 < error_of([own], [wide]) < 1e-6


def test_a_right_compiler_has_no_fault():
    assert fault(girih.import_model(MODEL)) is None


def test_a_tolerance_below_the_programs_own_rounding_is_said():
    found = fault(girih.import_model(MODEL), tolerance=1e-12)
    assert found is not None and found.name == "source"


def test_a_wrong_rule_is_found_with_its_operation(monkeypatch):
    def turned(op, b):
        x, y = op.operands
        return b("subtract", y, x) if getattr(x.owner, "name", "") == "subtract" else None

    wrong = Rule("turn-difference", ("subtract",), turned)
    right = girih.optimizer.rules.RULES
    monkeypatch.setattr("girih.optimizer.passes.simplify.RULES", (*right, wrong))
    found = fault(girih.import_model(MODEL))
    assert found is not None
    assert found.name.startswith("simplify") and found.rule == "turn-difference"
    assert found.operation == "subtract" and found.hit >= 1 and found.error > 1e-4
    assert found.program is not None
    names = [op.name for op in found.program.walk()]
    assert names == ["subtract", "subtract"]


@dataclass(frozen=True)
class Wrong:
    """INLINED -> INLINED: tanh becomes negate."""

    name: ClassVar[str] = "wrong-pass"
    takes: ClassVar = INLINED
    gives: ClassVar = INLINED

    def __call__(self, module):
        return girih.import_model(MODEL.replace("stablehlo.tanh", "stablehlo.negate"))


def test_a_wrong_pass_is_found():
    right = pipeline_for(find("null", OPTIONS), OPTIONS)
    first, *rest = right.simplify
    found = fault(girih.import_model(MODEL), Pipeline((first, Wrong(), *rest)))
    assert found is not None and found.name.startswith("wrong-pass") and found.rule == ""
