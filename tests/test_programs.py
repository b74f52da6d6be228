"""The program cache: the same bytes cold and warm, never a wrong, damaged or foreign program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih import foreign, programs
from girih.hlo.build import build_module
from girih.hlo.errors import UserError
from girih.hlo.graph import Module, Region, Weight
from girih.hlo.types import F32, TensorType
from girih.optimizer.passes.dce import Dce
from girih.programs import ProgramCache

from .frontends.kernel.foreign_sources import LLVM_TWICE

pytestmark = [
    pytest.mark.program_cache,
    pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's"),
]

CONTRACTED = {
    "lhs_batching_dimensions": (),
    "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,),
    "rhs_contracting_dimensions": (0,),
}
MODEL = """
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %1 = stablehlo.tanh %0 : tensor<4x3xf32>
  return %1 : tensor<4x3xf32>
}
"""
_IN_A_PROCESS = """
import sys, girih
from girih import programs
programs._compiler = lambda: "c0ffee"
folder, source, out = sys.argv[1:]
girih.compile(open(source).read(), options=girih.Options(cache=folder)).save(out)
"""


@pytest.fixture(autouse=True)
def unchanged_sources(monkeypatch):
    monkeypatch.setattr(programs, "_compiler", lambda: "c0ffee")


def saved(
    folder: Path, source: Any = MODEL, target: Any = "cpu", **options: Any
) -> tuple[bytes, list[str]]:
    """The bundle's bytes, and the stages that ran."""
    stages: list[str] = []
    chosen = girih.Options(cache=str(folder / "cache"), **options)
    program = girih.compile(source, target=target, options=chosen, progress=stages.append)
    program.save(folder / "out.girih")
    return (folder / "out.girih").read_bytes(), stages


def alone(folder: Path, source: Any, **options: Any) -> bytes:
    """The bundle's bytes where nothing is kept."""
    program = girih.compile(source, options=girih.Options(cache="off", **options))
    program.save(folder / "alone.girih")
    return (folder / "alone.girih").read_bytes()


def entries(folder: Path) -> list[Path]:
    return [entry.path for entry in ProgramCache(folder / "cache").entries()]


@pytest.mark.parametrize("target", ["cpu", "null", "ptx-sim", ["cpu", "cpu:avx2", "nvidia:sm_80"]])
def test_warm_is_cold_byte_for_byte_and_runs_no_pass(tmp_path, target):
    cold, stages = saved(tmp_path, target=target)
    warm, again = saved(tmp_path, target=target)
    assert cold == warm
    assert "simplify" in stages and "simplify" not in again and "emit" not in again
    assert len(entries(tmp_path)) == (1 if isinstance(target, str) else 3)


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_kept_program_runs(tmp_path, target):
    x, w = np.ones((4, 8), np.float32), np.ones((8, 3), np.float32)
    options = girih.Options(cache=str(tmp_path))
    first, second = (girih.compile(MODEL, target=target, options=options)(x, w) for _ in range(2))
    assert np.array_equal(first, second) and np.allclose(second, np.tanh(8))


def test_other_options_sources_and_compilers_have_other_entries(tmp_path, monkeypatch):
    saved(tmp_path)
    for number, options in enumerate(
        ({"numerics": "bitwise"}, {"disable": ("order",)}, {"fold_bytes": 5}, {"strict": True}), 2
    ):
        assert "simplify" in saved(tmp_path, **options)[1]
        assert len(entries(tmp_path)) == number
    assert "simplify" in saved(tmp_path, MODEL.replace("tanh", "exponential"))[1]
    assert "simplify" not in saved(tmp_path, threads=1)[1]
    monkeypatch.setattr(programs, "_compiler", lambda: "another")
    assert "simplify" in saved(tmp_path)[1]
    monkeypatch.setattr(programs, "_compiler", lambda: None)
    assert "simplify" in saved(tmp_path)[1] and len(entries(tmp_path)) == 7


def weighted(values: np.ndarray):
    weight = Weight("w", values)

    def body(b, x):
        w = b("weight", type=weight.type, weight="w")
        return [b("dot_general", x, w, **CONTRACTED)]

    module = build_module([TensorType((4, values.shape[0]), F32)], body)
    return module.with_weights({"w": weight})


def test_other_data_of_weights_is_the_same_entry_with_the_bytes_of_its_own(tmp_path):
    values = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    cold = saved(tmp_path, weighted(values))[0]
    warm, stages = saved(tmp_path, weighted(values.copy()))
    assert warm == cold and "simplify" not in stages
    changed = values.copy()
    changed[3, 5] += 1
    warm, stages = saved(tmp_path, weighted(changed))
    assert "simplify" not in stages and warm != cold
    assert warm == alone(tmp_path, weighted(changed))
    assert "simplify" in saved(tmp_path, weighted(np.concatenate([values, values])))[1]
    assert len(entries(tmp_path)) == 2


def test_a_pass_that_asks_for_data_keeps_nothing(tmp_path, monkeypatch):
    values = np.ones((64, 48), np.float32)
    run = Dce.__call__
    for ask in (lambda weight: weight.array, lambda weight: weight.view):
        looking: list[Any] = []

        def call(self, module, ask=ask, looking=looking):
            looking += [ask(weight) for weight in module.weights.values()]
            return run(self, module)

        with monkeypatch.context() as patch:
            patch.setattr(Dce, "__call__", call)
            saved(tmp_path, weighted(values))
        assert looking and not entries(tmp_path)
    saved(tmp_path, weighted(values))
    assert len(entries(tmp_path)) == 1


def test_what_no_verification_would_take_is_refused_as_without_a_cache(tmp_path):
    module = girih.import_model(MODEL)
    body = module.body
    backwards = Region(body.arguments, body.ops[::-1], body.results)
    for _ in range(2):
        with pytest.raises(UserError, match="used before it is defined"):
            saved(tmp_path, module.with_main(backwards))
    assert not entries(tmp_path)


def test_large_constants_of_a_module_are_told_apart(tmp_path):
    table = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)

    def module(values: np.ndarray) -> Module:
        return build_module(
            [TensorType((4, 64), F32)],
            lambda b, x: [b("dot_general", x, b.constant(values), **CONTRACTED)],
        )

    cold = saved(tmp_path, module(table))[0]
    warm, stages = saved(tmp_path, module(table.copy()))
    assert warm == cold and "simplify" not in stages
    other, stages = saved(tmp_path, module(-table))
    assert "simplify" in stages and other == alone(tmp_path, module(-table))


def test_foreign_code_is_kept_and_told_apart(tmp_path):
    def module(text: str) -> Module:
        kernel = girih.foreign_kernel(
            "twice",
            out=lambda x: x,
            codes=(foreign.Llvm(text, "twice", tiles=lambda x: x.size),),
            reference=lambda x: x + x,
            inputs=["x"],
        )
        return kernel.module(np.ones((3, 4), np.float32))

    cold = saved(tmp_path, module(LLVM_TWICE))[0]
    warm, stages = saved(tmp_path, module(LLVM_TWICE))
    assert warm == cold and "simplify" not in stages
    assert "simplify" in saved(tmp_path, module(LLVM_TWICE + "\n; changed\n"))[1]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other", "empty"])
def test_a_damaged_entry_is_compiled_again_with_a_warning(tmp_path, damage):
    cold, _ = saved(tmp_path)
    (path,) = entries(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 4
    path.write_bytes({"truncated": data[:-70], "flipped": data, "empty": b""}.get(damage, b"PK\3"))
    with pytest.warns(RuntimeWarning, match="program cache was damaged"):
        again, stages = saved(tmp_path)
    assert again == cold and "simplify" in stages
    assert "simplify" not in saved(tmp_path)[1]


def test_every_flipped_byte_is_noticed(tmp_path):
    cold, _ = saved(tmp_path)
    (path,) = entries(tmp_path)
    whole = path.read_bytes()
    cache, digest = ProgramCache(tmp_path / "cache"), path.stem
    module = girih.import_model(MODEL)
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        try:
            with pytest.warns(RuntimeWarning, match="damaged"):
                assert cache.load(digest, {"main": module}) is None
        except pytest.fail.Exception:  # padding between members is nobody's content
            assert saved(tmp_path)[0] == cold


def test_others_files_and_read_only_folders(tmp_path):
    cold, _ = saved(tmp_path)
    (path,) = entries(tmp_path)
    path.chmod(0o666)
    assert "simplify" in saved(tmp_path)[1]
    folder = tmp_path / "cache"
    folder.chmod(0o777)
    assert "simplify" in saved(tmp_path)[1]
    folder.chmod(0o500)
    assert saved(tmp_path, fold_bytes=3)[1]
    folder.chmod(0o700)
    assert saved(tmp_path)[0] == cold


def test_off_and_measured_keep_nothing(tmp_path):
    girih.compile(MODEL, options=girih.Options(cache="off"))
    saved(tmp_path, measure=1)
    assert entries(tmp_path) == []


def test_the_capacity_bounds_what_is_kept_as_data(tmp_path, monkeypatch):
    values = np.ones((64, 48), np.float32)
    table = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    large = build_module([TensorType((64, 48), F32)], lambda b, x: [b("add", x, b.constant(table))])
    monkeypatch.setattr(programs, "CAPACITY", 2 * table.nbytes - 1)
    saved(tmp_path, large)
    assert entries(tmp_path) == []
    monkeypatch.setattr(programs, "CAPACITY", 1 << 20)
    saved(tmp_path, large)
    saved(tmp_path, weighted(values))
    assert len(entries(tmp_path)) == 2


def test_processes_at_once(tmp_path):
    source = tmp_path / "m.mlir"
    source.write_text(MODEL)
    outs = [tmp_path / f"{n}.girih" for n in range(2)]
    command = [sys.executable, "-c", _IN_A_PROCESS, str(tmp_path / "cache"), str(source)]
    running = [subprocess.Popen([*command, str(out)]) for out in outs]
    assert [process.wait(120) for process in running] == [0, 0]
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert len(entries(tmp_path)) == 1
