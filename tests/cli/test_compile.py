"""The commands that compile, on a small StableHLO file and on a function in a Python file."""

from __future__ import annotations

import json

import numpy as np
import pytest

import girih

pytest.importorskip("llvmlite")

MODEL = """
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %1 = stablehlo.tanh %0 : tensor<4x3xf32>
  return %1 : tensor<4x3xf32>
}
"""
SOURCE = f'''
"""A model as a function returns it."""

MODEL = """{MODEL}"""


def model():
    return MODEL
'''


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.mlir").write_text(MODEL)
    return tmp_path / "model.mlir"


def test_compile_verify_run(girih_command, model, tmp_path):
    bundle = tmp_path / "model.girih"
    code, out, err = girih_command("compile", model, "-o", bundle, "--checks", 2, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["bytes"] == bundle.stat().st_size and report["kernels"] >= 1
    assert set(report["seconds"]) == {"import", "compile", "golden checks", "write"}
    code, out, err = girih_command("verify", bundle, "--json")
    assert code == 0, err
    cases = json.loads(out)["cases"]
    assert len(cases) == 2 and all(case["error"] <= case["tolerance"] for case in cases)
    code, out, err = girih_command("run", bundle, "--random")
    assert code == 0 and "float32[4,3]" in out, err


def test_compile_says_what_it_made(girih_command, model, tmp_path):
    code, out, _ = girih_command("compile", model, "-o", tmp_path / "x.girih")
    assert code == 0 and "kernels" in out and "arena" in out


def test_a_function_as_source(girih_command, tmp_path):
    (tmp_path / "models.py").write_text(SOURCE)
    code, _, err = girih_command(
        "compile", f"{tmp_path / 'models.py'}:model", "-o", tmp_path / "x.girih", "-s", "threads=1"
    )
    assert code == 0 and (tmp_path / "x.girih").exists(), err


def test_a_file_that_is_no_model(girih_command, tmp_path):
    (tmp_path / "x.mlir").write_text("func.func @main( {")
    code, out, err = girih_command("compile", tmp_path / "x.mlir", "-o", tmp_path / "x.girih")
    assert code == 2 and not out and "Traceback" not in err and err.startswith("girih: ")
    assert not (tmp_path / "x.girih").exists()


def test_dump(girih_command, model, tmp_path):
    code, out, _ = girih_command("dump", model)
    assert code == 0 and "dot_general" in out and "fusion" not in out
    code, _, _ = girih_command("dump", model, "--stage", "fuse", "-o", tmp_path / "fused.txt")
    assert code == 0 and "fusion" in (tmp_path / "fused.txt").read_text()
    code, _, err = girih_command("dump", model, "--stage", "fussion")
    assert code == 2 and "there are import, simplify, fuse, connect, " in err
    code, out, _ = girih_command("dump", model, "--json")
    report = json.loads(out)
    assert report["stage"] == "import" and report["text"].count("dot_general") == 1


def test_bench(girih_command, model):
    code, out, err = girih_command("bench", model, "--seconds", "0.1", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["contenders"][0]["name"] == "girih" and report["contenders"][0]["runs"] >= 8
    names = {row["name"] for row in report["contenders"]} | set(report["left_out"])
    assert names == {"girih", "xla", "torch"}


def test_dump_to_a_place_that_is_not_there(girih_command, model, tmp_path):
    code, out, err = girih_command("dump", model, "-o", tmp_path / "no" / "x.txt")
    assert code == 2 and not out and err.count("\n") == 1 and "cannot write" in err


def test_json_is_json_even_of_infinities(girih_command, tmp_path):
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.constant dense<[0x7F800000, 0x7FC00000]> : tensor<2xf32>
      %1 = stablehlo.add %x, %0 : tensor<2xf32>
      return %1 : tensor<2xf32>
    }
    """
    (tmp_path / "x.mlir").write_text(text)
    assert girih_command("compile", tmp_path / "x.mlir", "-o", tmp_path / "x.girih")[0] == 0
    code, out, err = girih_command("run", tmp_path / "x.girih", "--random", "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    report = json.loads(out, parse_constant=refuse)
    assert code == 0 and report["outputs"][0]["first"] == ["inf", "nan"], err


def test_measured_choices_are_kept_and_shown(girih_command, model, tmp_path):
    bundles = [tmp_path / f"{n}.girih" for n in range(3)]
    code, out, err = girih_command("compile", model, "-o", bundles[0], "--measure", 2, "--json")
    assert code == 0 and json.loads(out)["measured"] == 1, err
    code, out, _ = girih_command("inspect", bundles[0], "--json")
    (entry,) = json.loads(out)["tuning"].values()
    assert entry["kernel"].startswith("dot_general") and entry["choice"]["rows"] >= 1
    code, out, _ = girih_command("inspect", bundles[0])
    assert "1 of 1 measured choices" in out and "rows=" in out
    code, _, err = girih_command(
        "compile", model, "-o", bundles[1], "--tuning", bundles[0], "--locked"
    )
    assert code == 0, err
    code, _, err = girih_command("compile", bundles[0], "-o", bundles[2])
    assert code == 0, err
    assert len({bundle.read_bytes() for bundle in bundles}) == 1
    code, _, err = girih_command("compile", model, "-o", bundles[1], "--measure", 2, "--locked")
    assert code == 2 and "never times anything" in err


def test_notes_of_every_target(girih_command, tmp_path):
    """bf16 products are widened where the level has no instructions for them."""
    text = MODEL.replace("4x8xf32", "64x64xf32").replace("8x3xf32", "64x64xf32")
    text = text.replace("4x3xf32", "64x64xf32").replace("f32", "bf16")
    (tmp_path / "m.mlir").write_text(text)
    levels = ["--target", "cpu:avx512-bf16", "--target", "cpu:avx2"]
    code, out, err = girih_command(
        "compile", tmp_path / "m.mlir", "-o", tmp_path / "m.girih", "--json", *levels
    )
    assert code == 0, err
    (note,) = json.loads(out)["notes"]
    assert note.startswith("cpu:avx2: ") and "no products of bf16" in note


def test_adding_code_keeps_the_numerics(girih_command, model, tmp_path, monkeypatch):
    from girih import compiler

    bundle, options = tmp_path / "m.girih", []
    assert girih_command("compile", model, "-o", bundle, "-s", "numerics=bitwise")[0] == 0
    add = compiler.add_variant
    monkeypatch.setattr(
        compiler, "add_variant", lambda *given: options.append(given[3]) or add(*given)
    )
    for more in ([], ["-s", "threads=1"], ["-s", "numerics=reassociates"]):
        code, _, err = girih_command("retarget", bundle, "--add", "cpu", *more)
        assert code == 0, err
    assert [one.numerics for one in options] == ["bitwise", "bitwise", "reassociates"]
    assert options[1].threads == 1


def test_shardings_are_checked_and_noted(girih_command, model, tmp_path):
    """The file's arguments are `input[0]` and `input[1]`."""
    made = ("compile", model, "-o", tmp_path / "x.girih")
    said = ("--shard", "input.0=data", "--shard", "input.1=-,model")
    code, out, err = girih_command(*made, "--mesh", "data=2,model=?", *said)
    assert code == 0 and "shardings are not used on one device: 2 arguments" in out, err
    code, out, err = girih_command(*made, "--mesh", "data=2,model=2", *said)
    assert code == 0 and "for cpu@data=2,model=2" in out and "not used" not in out, err
    code, out, err = girih_command("inspect", tmp_path / "x.girih")
    assert code == 0 and "on the mesh data=2,model=2" in out, err
    assert 'argument input[1] <@mesh, [{}, {"model"}]>' in " ".join(out.split())
    code, _, err = girih_command("run", tmp_path / "x.girih", "--random")
    assert code == 2 and "its code is for data=2,model=2, and 1 process runs it; start it as" in err
    for mesh in ("data=1,model=1", "data=4,model=1"):
        code, out, err = girih_command("repartition", tmp_path / "x.girih", "--mesh", mesh)
        assert code == 0 and "cpu@data=2,model=2 kept" in out, err
    code, out, err = girih_command("run", tmp_path / "x.girih", "--random")
    assert code == 0 and "ran cpu: its mesh has as many devices" in out, err
    code, _, err = girih_command("run", tmp_path / "x.girih", "--random", "--mesh", "data=8")
    wanted = "has no code for the mesh data=8, only for one device and for data=2,model=2 and for"
    assert code == 2 and wanted in " ".join(err.split())
    for wrong, message in (
        (("--mesh", "data=2"), "says nothing without shardings"),
        (("--mesh", "data=two", "--shard", "x=data"), "axes are AXIS=SIZE"),
        (("--mesh", "data=2", "--shard", "data"), "each is PATTERN=SPEC"),
        (("--mesh", "data=2", "--shard", "nothing=data"), "nothing is named 'nothing'"),
        (("--mesh", "data=2", "--shard", "input.*=date"), "did you mean 'data'"),
    ):
        code, _, err = girih_command(*made, *wrong)
        assert code == 2 and message in " ".join(err.split()), err


OPEN = """
func.func @main(%x: tensor<?x3xf32>, %y: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %0 = stablehlo.add %x, %y : tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}
"""


def test_open_sizes_are_fixed_and_named(girih_command, tmp_path):
    source, output = tmp_path / "open.mlir", tmp_path / "open.girih"
    source.write_text(OPEN)
    compile_it = ("compile", str(source), "-o", str(output))
    code, _, err = girih_command(*compile_it)
    assert code == 2 and "d0 (input[0].0)" in err and "--size d0=" in err
    code, _, err = girih_command(*compile_it, "--size", "d0=n")
    assert code == 2 and "sizes n (input[0].0) have no largest value" in err
    code, _, err = girih_command(*compile_it, "--size", "d0=4", "--size", "input[1].0=5")
    assert code == 2 and "input[1].0 is to be 5" in err and "needs 4" in err
    code, _, err = girih_command(*compile_it, "--size", "rows=4")
    assert code == 2 and "no size 'rows'; it has d0" in err
    code, _, _ = girih_command(*compile_it, "--size", "d0=1..64")  # what is added is of equal sizes
    assert code == 0
    x = np.ones((7, 3), np.float32)
    np.testing.assert_array_equal(girih.load(output)(x, x)[0], x + x)
    code, _, _ = girih_command(*compile_it, "--size", "input[0].0=4")
    assert code == 0
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(girih.load(output)(x, x)[0], x + x)
