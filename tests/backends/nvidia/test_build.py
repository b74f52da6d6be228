"""A schedule becomes a plan with launches and one module of PTX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from girih.backends import find
from girih.backends.cache import KernelCache
from girih.backends.nvidia import build as room
from girih.backends.nvidia import target_of
from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.target import ARCHITECTURES
from girih.hlo.build import Builder, build_module
from girih.hlo.errors import UserError
from girih.hlo.graph import Value
from girih.hlo.types import F32, TensorType
from girih.imports import import_model
from girih.optimizer.pipeline import lowering_pipeline, run_pipeline, simplify_pipeline
from girih.optimizer.schedule import Schedule, schedule
from girih.options import Options

MODEL = """
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> (tensor<4x3xf32>, tensor<4x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %1 = stablehlo.tanh %0 : tensor<4x3xf32>
  %2 = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b, TOTALORDER
      : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %2 : tensor<4x3xf32>, tensor<4x8xf32>
}
"""


def steps(path: Path, text: str = MODEL) -> Schedule:
    (path / "model.mlir").write_text(text)
    options = Options()
    module = run_pipeline(import_model(path / "model.mlir"), simplify_pipeline(options))
    return schedule(run_pipeline(module, lowering_pipeline(find("nvidia", options), options)))


def built(made: Schedule, **options: Any) -> tuple[Any, str]:
    (plan,), image = find("nvidia:sm_80", Options(**options)).build([(made, ("a note",))])
    return plan, image.decode()


def test_plan_and_module(tmp_path: Path) -> None:
    plan, ptx = built(steps(tmp_path), cache="off")
    assert plan.target == "nvidia:sm_80" and plan.triple == "nvptx64-nvidia-cuda"
    assert list(plan.features) == ["ptx80"] and "a note" in plan.notes
    assert plan.format_version == "1.2"
    entries = re.findall(r"\.entry ([\w$]+)\(", ptx)
    assert "contract_dot_general_tanh_0$tile" in entries and "opaque_sort_1$sort" in entries
    launched = {launch.entry for kernel in plan.kernels for launch in kernel.launches}
    launched.update(merge.entry for merge in plan.merges)
    assert launched == set(entries) and len(entries) == len(set(entries)) > 1
    assert len(re.findall(r"^\.version", ptx, re.MULTILINE)) == 1
    for step in plan.steps:
        arguments = len(step.run.arguments)
        for launch in plan.kernels[step.run.kernel].launches:
            slots = [a.memory.slot for a in launch.arguments if not a.memory.scratch]
            assert all(slot < arguments for slot in slots)
            assert all(extent > 0 for extent in (*launch.grid, *launch.block))


def test_scratch_lies_in_the_arena() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        return [b.reduce("add", x, b.constant(0, TensorType((), F32)), [0])]

    made = schedule(build_module([TensorType((8192, 64), F32)], body))
    (plan,), _ = find("nvidia:sm_90a", Options(cache="off")).build([(made, ())])
    runs = [step.run for step in plan.steps if plan.kernels[step.run.kernel].scratch_bytes]
    assert runs and plan.format_version == "1.4" and plan.memory.scratch_bytes == 0
    for run in runs:
        buffer = plan.buffers[run.scratch.buffer]
        assert buffer.bytes == plan.kernels[run.kernel].scratch_bytes <= plan.memory.arena_bytes


def test_equal_input_gives_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(steps(tmp_path), cache="off")
    monkeypatch.setattr(room, "CACHE", KernelCache())
    again = built(steps(tmp_path), cache="off")
    assert first[1] == again[1]
    assert first[0].SerializeToString(deterministic=True) == again[0].SerializeToString(
        deterministic=True
    )


def test_kernels_are_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("girih.backends.cache", "girih.backends.nvidia.build"):
        monkeypatch.setattr(f"{name}.compiler_digest", lambda: "c0ffee")
    monkeypatch.setattr(room, "CACHE", KernelCache())
    made = steps(tmp_path)
    first = built(made, cache=str(tmp_path / "kernels"))
    monkeypatch.setattr(room, "CACHE", KernelCache())
    monkeypatch.setattr(room, "emit", None)  # nothing is emitted again
    again = built(made, cache=str(tmp_path / "kernels"))
    assert first[1] == again[1]
    assert first[0].SerializeToString(deterministic=True) == again[0].SerializeToString(
        deterministic=True
    )


@pytest.mark.requires_ptxas
@pytest.mark.parametrize("name", ("sm_80", "sm_89", "sm_90a"))
def test_modules_assemble(name: str, tmp_path: Path) -> None:
    backend = find(f"nvidia:{name}", Options(cache="off"))
    _, image = backend.build([(steps(tmp_path), ())])
    assert backend.assemble is not None
    (architecture, cubin), *others = backend.assemble(image).items()
    assert architecture == name and cubin[:4] == b"\x7fELF" and not others
    assert assemble(image.decode(), ARCHITECTURES[name]).faults() == []


def test_simulated_programs_have_no_cubins() -> None:
    backend = find("ptx-sim:sm_80", Options())
    assert backend.name == "nvidia:sm_80" and backend.assemble is None


def test_one_module_of_several() -> None:
    part = ".version 8.0\n.target sm_80\n.address_size 64\n{}.visible .entry {}()\n{{\nret;\n}}\n"
    shared = ".extern .shared .align 1024 .b8 shared[];\n"
    texts = [part.format("", "a"), part.format(shared, "b"), part.format(shared, "c")]
    texts[1] = texts[1].replace(".version 8.0", ".version 8.4")
    module = room.merged(texts, ARCHITECTURES["sm_80"])
    assert module.startswith(".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared")
    assert module.count("shared[]") == 1 and module.count(".entry") == 3
    assert room.merged([], ARCHITECTURES["sm_80"]).count("\n") == 3


@pytest.mark.parametrize("name", ("nvidia:sm_10", "ptx-sim:90", "nvidia90"))
def test_unknown_targets(name: str) -> None:
    with pytest.raises(UserError, match="unknown architecture|no NVIDIA target"):
        target_of(name)
