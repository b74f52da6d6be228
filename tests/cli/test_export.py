"""`girih export`: a bundle, text and artifacts become StableHLO, or all reasons are listed."""

from __future__ import annotations

import json

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.bytecode import read_bytecode

pytest.importorskip("llvmlite")

TABLE = ", ".join(str(float(n)) for n in range(2048))
MODEL = f"""
func.func @main(%x: tensor<4x2048xf32>) -> tensor<4x2048xf32> {{
  %0 = stablehlo.constant dense<[{TABLE}]> : tensor<2048xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<2048xf32>) -> tensor<4x2048xf32>
  %2 = stablehlo.add %x, %1 : tensor<4x2048xf32>
  %3 = chlo.erf %2 : tensor<4x2048xf32> -> tensor<4x2048xf32>
  return %3 : tensor<4x2048xf32>
}}
"""
X = np.linspace(-2000, 2, 4 * 2048).reshape(4, 2048).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.mlir").write_text(MODEL)
    return tmp_path / "model.mlir"


def test_an_artifact_of_a_version(girih_command, model, tmp_path):
    out = tmp_path / "model.mlirbc"
    code, said, err = girih_command("export", model, "-o", out, "--version", "1.9")
    assert code == 0, err
    assert "StableHLO 1.9.0, 1 weight (8.19 kB) inside" in said.replace("\n", " ")
    assert read_bytecode(out.read_bytes()).producer == "StableHLO_v1.9.0"
    (expected,) = girih.interpret(girih.import_model(MODEL), [X])
    (found,) = girih.interpret(girih.import_model(out), [X])
    np.testing.assert_array_equal(found, expected)


def test_a_bundle_is_written_back(girih_command, model, tmp_path):
    bundle, out = tmp_path / "model.girih", tmp_path / "again.mlirbc"
    code, _, err = girih_command("compile", model, "-o", bundle)
    assert code == 0, err
    code, said, err = girih_command("export", bundle, "--to", "stablehlo", "-o", out, "--json")
    assert code == 0, err
    report = json.loads(said)
    assert report["version"] == "1.0.0" and report["form"] == "artifact"
    assert report["bytes"] == out.stat().st_size and report["weights"] == "constants"
    (expected,) = girih.interpret(girih.import_model(MODEL), [X])
    (found,) = girih.interpret(girih.import_model(out), [X])
    np.testing.assert_array_equal(found, expected)


def test_text_goes_to_stdout_and_weights_may_be_arguments(girih_command, model):
    code, said, err = girih_command("export", model, "--weights", "arguments")
    assert code == 0, err
    assert "chlo.erf" in said
    body = girih.import_model(said).body
    assert [str(argument.type) for argument in body.arguments] == ["f32[4,2048]", "f32[2048]"]


def test_text_of_a_version_has_no_chlo(girih_command, model):
    code, said, err = girih_command("export", model, "--version", "1.0.0")
    assert code == 0, err
    assert '"chlo.erf"(' not in said and "stablehlo.composite" in said


def test_reasons_are_listed(girih_command, tmp_path):
    source = tmp_path / "new.mlir"
    source.write_text(
        "func.func @main(%x: tensor<4xi2>, %y: tensor<4xf8E4M3>) "
        "-> (tensor<4xi2>, tensor<4xf8E4M3>) {\n"
        "  %0 = stablehlo.add %x, %x : tensor<4xi2>\n"
        "  %1 = stablehlo.add %y, %y : tensor<4xf8E4M3>\n"
        "  return %0, %1 : tensor<4xi2>, tensor<4xf8E4M3>\n}\n"
    )
    out = tmp_path / "new.mlirbc"
    code, _, err = girih_command("export", source, "-o", out, "--version", "1.1.0")
    assert code == 2 and not out.exists()
    said = " ".join(err.split())
    assert "the type tensor<4xi2> came with StableHLO 1.2.0" in said
    assert "the type tensor<4xf8E4M3> came with StableHLO 1.7.0" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "onnx"), "no format that girih writes"),
        (("--version", "3.0"), "no version of StableHLO"),
        (("--weights", "file"), "constants or arguments"),
        (("-o", "model.pb"), "name it .mlir for text or .mlirbc"),
        (("-o", "missing/model.mlir"), "cannot write"),
    ],
)
def test_bad_options_are_named(girih_command, model, arguments, message):
    code, _, err = girih_command("export", model, *arguments)
    assert code == 2 and message in " ".join(err.split())
