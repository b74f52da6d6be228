"""`girih bisect`: right programs, wrong rules and wrong kernels, by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

import girih
from girih.backends.cpu import build
from girih.backends.llvm import arithmetic
from girih.optimizer.licence import ASSUMES_FINITE
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


def pasted(said):
    """The test that the command has printed."""
    names: dict = {}
    exec(said[said.index("import girih\n") :], names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    return test


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
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        pasted(said)()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    pasted(said)()  # the rule is right again


def test_the_test_has_the_options_and_inputs_that_show_the_fault(
    girih_command, source, tmp_path, monkeypatch
):
    """A rule that only one option allows, wrong on large values alone."""

    def cut(op, b):
        x = op.operands[0]
        known = getattr(x.owner, "name", "") == "minimum"
        limit = b.splat(np.float32(20), op.result.type)
        return None if known else b("exponential", b("minimum", x, limit))

    wrong = Rule("exp-cut", ("exponential",), cut, licence=ASSUMES_FINITE)
    monkeypatch.setattr("girih.optimizer.passes.simplify.RULES", (*RULES, wrong))
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.full((4, 6), 9, np.float32))
    np.save("w.npy", np.full((6, 5), 8, np.float32))
    given = ["-i", "x.npy", "-i", "w.npy", "-o", "fault.girih"]
    _, narrow, _ = girih_command("bisect", source, *given)
    assert "all passes and kernels agree" in narrow
    _, said, _ = girih_command("bisect", source, *given, "--set", "numerics=assumes-finite")
    assert "'exp-cut'" in said
    with pytest.raises(AssertionError):
        pasted(said)()


def test_no_test_without_the_file_that_it_reads(girih_command, source, monkeypatch):
    wrong = Rule("exp-is-tanh", ("exponential",), lambda op, b: b("tanh", op.operands[0]))
    monkeypatch.setattr("girih.optimizer.passes.simplify.RULES", (*RULES, wrong))
    _, said, _ = girih_command("bisect", source)
    assert "'exp-is-tanh'" in said and "-o FILE" in said and "def test_" not in said


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
