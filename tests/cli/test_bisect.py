"""`girih bisect`: right programs, wrong rules and wrong kernels, by name."""

from __future__ import annotations

import json

import pytest

import girih
from girih.backends.cpu import build
from girih.backends.llvm import arithmetic
from girih.optimizer.rule import Rule
from girih.optimizer.rules import RULES

pytest.importorskip("llvmlite")

MODEL = """
func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x5xf32>) -> tensor<4x5xf32> {
  %0 = stablehlo.tanh %x : tensor<4x6xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
    : (tensor<4x6xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>
  %2 = stablehlo.exponential %1 : tensor<4x5xf32>
  return %2 : tensor<4x5xf32>
}
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    return tmp_path / "m.mlir"


def test_a_right_program_has_no_fault(girih_command, source):
    code, out, err = girih_command("bisect", source)
    assert code == 0 and "all passes and kernels agree" in out + err


def test_a_wrong_rule_by_name_with_a_program_and_a_test(
    girih_command, source, tmp_path, monkeypatch
):
    wrong = Rule("exp-is-tanh", ("exponential",), lambda op, b: b("tanh", op.operands[0]))
    monkeypatch.setattr("girih.optimizer.passes.simplify.RULES", (*RULES, wrong))
    file = tmp_path / "fault.girih"
    code, out, err = girih_command("bisect", source, "-o", file)
    said = out + err
    assert code == 0 and "'exp-is-tanh'" in said and "exponential" in said
    assert "def test_exp_is_tanh" in said
    test = said[said.index("import numpy as np") :]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(test[: test.rindex("is None") + 7], "pasted", "exec"), names)
    with pytest.raises(AssertionError):
        names["test_exp_is_tanh"]()


def test_a_wrong_kernel_by_its_operations(girih_command, source, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "CACHE", build.KernelCache())  # none of others, none for others
    monkeypatch.setitem(arithmetic._FLOAT, "exponential", arithmetic._FLOAT["tanh"])
    file = tmp_path / "fault.girih"
    code, out, err = girih_command("bisect", source, "--json", "-o", file)
    assert code == 0, err
    assert "exponential" in str(girih.import_model(file))
    fault = json.loads(out)["fault"]
    assert fault["name"] == "kernel" and "exponential" in fault["operation"]
    assert fault["error"] > 0.1
