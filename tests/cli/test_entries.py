"""Several entry points on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.runtime.bundle import Bundle

DOUBLE = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
COUNT = """
func.func @main(%n: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %n, %x : tensor<4xf32>
  %1 = stablehlo.multiply %n, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""


@pytest.fixture
def bundle(girih_command: Any, tmp_path: Path) -> Path:
    (tmp_path / "double.mlir").write_text(DOUBLE)
    (tmp_path / "count.mlir").write_text(COUNT)
    made = tmp_path / "both.girih"
    code, out, error = girih_command(
        "compile", "--entry", f"double={tmp_path / 'double.mlir'}", "--entry",
        f"count={tmp_path / 'count.mlir'}", "-o", made, "--checks", 1,
    )  # fmt: skip
    assert code == 0, error
    assert "double 1 kernels" in out and "count 2 kernels" in out
    return made


def test_run_names_an_entry(girih_command, bundle, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    code, _, error = girih_command("run", bundle, tmp_path / "x.npy")
    assert code == 2 and "entry points double, count: name one" in error
    code, _, error = girih_command("run", bundle, "--entry", "dubble", tmp_path / "x.npy")
    assert code == 2 and "no entry point 'dubble' (did you mean 'double'?)" in error
    code, out, error = girih_command(
        "run", bundle, "--entry", "double", tmp_path / "x.npy", "--json"
    )
    assert code == 0, error
    data = json.loads(out)
    assert data["entry"] == "double" and data["outputs"][0]["first"] == [0, 2, 4, 6]


def test_inspect_lists_entries(girih_command, bundle):
    code, out, _ = girih_command("inspect", bundle)
    assert code == 0
    for words in ("entry point double", "entry point count", "cpu, entry point count"):
        assert words in out
    code, out, _ = girih_command("inspect", bundle, "--json")
    data = json.loads(out)
    assert list(data["entries"]) == ["double", "count"]
    assert set(data["variants"]["cpu"]["entries"]) == {"double", "count"}


@pytest.mark.parametrize(
    "command", [("explain", "memory"), ("dump",), ("export",), ("bisect",), ("bench",)]
)
def test_others_take_the_name(girih_command, bundle, command):
    code, _, error = girih_command(*command, bundle)
    assert code == 2 and "entry points double, count: name one" in error
    more = ("--seconds", 0.1) if command == ("bench",) else ()
    code, out, error = girih_command(*command, bundle, "--entry", "count", *more)
    assert code == 0, error
    if command in (("dump",), ("export",)):
        assert "multiply" in out


def test_verify_doctor_convert_and_retarget(girih_command, bundle, tmp_path):
    assert girih_command("verify", bundle)[0] == 0
    assert [check.entry for check in Bundle(bundle).checks] == ["double", "count"]
    code, out, _ = girih_command("doctor", bundle, "--json")
    assert code == 0 and json.loads(out)["can"]["run"] is True
    assert json.loads(out)["operations"]["add"] == 2
    code, out, error = girih_command(
        "convert", bundle, "--format", "1.0", "-o", tmp_path / "old.girih"
    )
    assert code == 0, error
    code, out, error = girih_command("retarget", tmp_path / "old.girih", "--add", "null")
    assert code == 0, error
    program = girih.load(tmp_path / "old.girih", target="cpu")
    assert program.entry("double")(np.ones(4, np.float32))[0].tolist() == [2] * 4
    code, _, error = girih_command("repartition", bundle, "--mesh", "data=2")
    assert code == 2 and "entry points double, count" in error


def test_state_by_name(girih_command, tmp_path):
    (tmp_path / "count.mlir").write_text(COUNT)
    made = tmp_path / "count.girih"
    code, _, error = girih_command(
        "compile", tmp_path / "count.mlir", "--state", "input[0]=output[0]", "-o", made
    )
    assert code == 0, error
    session = girih.load(made).session()
    for _ in range(3):
        session(np.ones(4, np.float32))
    assert session.state["input.0"].tolist() == [3] * 4
    code, _, error = girih_command(
        "compile", tmp_path / "count.mlir", "--state", "input", "-o", made
    )
    assert code == 2 and "--state: each is ARGUMENT=RESULT" in error


def test_a_function_gives_a_dict(girih_command, tmp_path):
    (tmp_path / "made.py").write_text(
        f"TEXT = '''{DOUBLE}'''\n\n\ndef both():\n    return {{'one': TEXT, 'two': TEXT}}\n"
    )
    code, _, error = girih_command(
        "compile", f"{tmp_path / 'made.py'}:both", "-o", tmp_path / "x.girih"
    )
    assert code == 0, error
    assert girih.load(tmp_path / "x.girih").entries == ("one", "two")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one SOURCE, or --entry NAME=SOURCE"),
        (("x.mlir", "--entry", "a=x.mlir"), "give one SOURCE, or --entry NAME=SOURCE"),
        (("--entry", "x.mlir"), "--entry: each is NAME=SOURCE"),
        (("--entry", "a=x.mlir", "--entry", "a=x.mlir"), "--entry: each is NAME=SOURCE"),
        (("--entry", "a=missing.mlir"), "entry point 'a': .*no such file|missing.mlir"),
    ],
)
def test_what_cannot_be_compiled(girih_command, tmp_path, arguments, words):
    import re

    code, _, error = girih_command("compile", *arguments, "-o", tmp_path / "x.girih")
    assert code == 2 and re.search(words, error)
