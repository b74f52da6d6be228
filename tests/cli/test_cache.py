"""`girih cache`: list, explain, clear."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from girih.backends.cpu import build, codegen

pytest.importorskip("llvmlite")

MODEL = """
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %1 = stablehlo.tanh %0 : tensor<4x3xf32>
  return %1 : tensor<4x3xf32>
}
"""


@pytest.fixture
def unchanged_sources(monkeypatch):
    """As in an installed package: the compiler's sources do not change while it runs."""
    monkeypatch.setattr("girih.backends.cache.compiler_digest", lambda: "c0ffee")
    monkeypatch.setattr("girih.backends.cpu.build.compiler_digest", lambda: "c0ffee")
    monkeypatch.setattr(build, "CACHE", build.KernelCache())


def test_explain_ls_clear(girih_command, unchanged_sources, tmp_path, monkeypatch):
    folder = ("--folder", tmp_path / "kernels")
    (tmp_path / "m.mlir").write_text(MODEL)
    (tmp_path / "wide.mlir").write_text(MODEL.replace("4x", "5x"))

    def answers(name, *settings):
        code, out, err = girih_command(
            "cache", "explain", tmp_path / name, *folder, "--json", *settings
        )
        assert code == 0, err
        return [row["answer"] for row in json.loads(out)]

    assert answers("m.mlir") == ["miss: the cache is empty"]
    bundle, setting = tmp_path / "m.girih", f"cache={tmp_path / 'kernels'}"
    code, _, err = girih_command("compile", tmp_path / "m.mlir", "-o", bundle, "-s", setting)
    assert code == 0, err
    assert answers("m.mlir") == ["hit"]
    (wide,) = answers("wide.mlir")
    assert "f32[4,8]" in wide and "f32[5,8]" in wide
    host = codegen.host_target()
    other_cpu = replace(host, features=(*host.features, "other"))
    with monkeypatch.context() as patch:
        patch.setattr("girih.backends.cpu.facade.host_target", lambda level: other_cpu)
        (other,) = answers("m.mlir", "-s", "numerics=bitwise")
    assert "another target" in other and "+'other'" in other

    code, out, _ = girih_command("cache", "ls", *folder, "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 2  # the kernel and the executor
    assert any("dot_general tanh" in row["operations"] for row in rows)
    code, out, _ = girih_command("cache", "ls", *folder)
    assert code == 0 and "2 kernels" in out
    code, out, _ = girih_command("cache", "clear", *folder)
    assert code == 0 and "deleted 2 kernels" in out
    assert answers("m.mlir") == ["miss: the cache is empty"]


BF16 = MODEL.replace("f32", "bf16")
SQUARE = MODEL.replace("4x8x", "96x96x").replace("8x3x", "96x96x").replace("4x3x", "96x96x")


def test_explain_asks_for_what_was_compiled(girih_command, unchanged_sources, tmp_path):
    """Also where numerics leave out instructions, and where a tuning has chosen the cut."""
    cache, bundle = tmp_path / "kernels", tmp_path / "m.girih"
    (tmp_path / "bf16.mlir").write_text(BF16)
    (tmp_path / "square.mlir").write_text(SQUARE)

    def compiled(name, *words):
        words = ("-o", bundle, "-s", f"cache={cache}", *words)
        code, _, err = girih_command("compile", tmp_path / name, *words)
        assert code == 0, err

    def answers(source, *words):
        words = ("--folder", cache, "--json", *words)
        code, out, err = girih_command("cache", "explain", source, *words)
        assert code == 0, err
        return {row["answer"] for row in json.loads(out)}

    compiled("bf16.mlir", "-s", "numerics=bitwise")
    assert answers(tmp_path / "bf16.mlir", "-s", "numerics=bitwise") == {"hit"}
    compiled("square.mlir", "--measure", "2", "-s", "threads=1")
    build.CACHE.kernels.clear()  # a later process, which keeps what it compiles
    compiled("m.girih")
    assert answers(bundle) == {"hit"}
    code, out, _ = girih_command("cache", "ls", "--folder", cache, "--json")
    listed = {row["operations"] for row in json.loads(out)}
    assert code == 0 and listed == {"dot_general tanh", "executor"}
