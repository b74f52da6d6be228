"""Commands about code for GPUs, on a machine without one."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.errors import UserError
from girih.hlo.types import BF16, F32, TensorType
from girih.options import Options
from girih.runtime import trust
from girih.runtime.bundle import Bundle, Variant
from girih.runtime.bundle_writer import write
from girih.runtime.devices import cuda
from girih.runtime.parts import copied_parts

PRODUCT = """
func.func @main(%a: tensor<8x16xf32> loc("/home/me/model.py":7:1)) -> tensor<8x4xf32> {
  %w = stablehlo.constant dense<0.5> : tensor<16x4xf32>
  %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32> loc("/home/me/model.py":9:1)
  return %1 : tensor<8x4xf32>
}
"""
INPUT = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
EXPECTED = np.tanh(INPUT.sum(1, keepdims=True) * 0.5).repeat(4, 1)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    def none(number=None):
        raise UserError("no GPU in tests")

    monkeypatch.setattr(cuda, "find_gpus", none)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "product.mlir"
    path.write_text(PRODUCT)
    return path


@pytest.fixture
def both(girih_command, source, tmp_path):
    bundle = tmp_path / "both.girih"
    arguments = ("--target", "nvidia:sm_80", "--target", "cpu", "--checks", 1)
    code, out, error = girih_command("compile", source, "-o", bundle, *arguments)
    assert code == 0, error
    assert "for cpu, nvidia:sm_80" in out
    return bundle


def test_a_bundle_for_two_targets_runs_on_the_cpu_here(girih_command, both, tmp_path):
    np.save(tmp_path / "x.npy", INPUT)
    result = tmp_path / "y.npy"
    code, out, error = girih_command("run", both, tmp_path / "x.npy", "-o", result)
    assert code == 0, error
    assert "ran cpu: no GPU takes the bundle's other code: no GPU in tests" in out
    np.testing.assert_allclose(np.load(result), EXPECTED, rtol=1e-5)
    assert girih_command("verify", both)[0] == 0
    assert "1 golden case" in girih_command("verify", both, "--simulate")[1]


def test_run_on_a_simulated_gpu(girih_command, both, tmp_path):
    np.save(tmp_path / "x.npy", INPUT)
    result = tmp_path / "y.npy"
    arguments = ("run", both, tmp_path / "x.npy", "--simulate")
    code, out, error = girih_command(*arguments, "-o", result)
    assert code == 0, error
    np.testing.assert_allclose(np.load(result), EXPECTED, rtol=1e-5)
    assert "simulated, no faults found" in out and "instructions" in out
    code, out, _ = girih_command(*arguments, "--json")
    data = json.loads(out)
    assert data["target"] == "nvidia:sm_80" and data["reason"] == "it is simulated, as asked"
    assert all(kernel["counters"]["instructions"] > 0 for kernel in data["kernels"])


def test_a_fault_names_the_kernel_its_source_and_the_line(girih_command, both, tmp_path):
    """The plan's launches look 112 bytes behind where their memory begins."""
    bundle = Bundle(both)
    variant = bundle.variants["nvidia:sm_80"]
    plan = girih.load(both, simulate=True).plan
    for kernel in plan.kernels:
        for launch in kernel.launches:
            for argument in launch.arguments:
                if argument.WhichOneof("value") == "memory":
                    argument.memory.offset = 112
    broken = Variant(plan.SerializeToString(), variant.image, variant.weights, True)
    parts = copied_parts(bundle, variants={"nvidia:sm_80": broken})
    write(tmp_path / "broken.girih", parts)
    code, out, error = girih_command("run", tmp_path / "broken.girih", "--random", "--simulate")
    assert (code, out) == (2, "")
    assert error.startswith("girih: model.py:9: kernel ") and "bounds in " in error
    assert "PTX line" in error


def test_targets_that_are_not_there(girih_command, both, tmp_path):
    code, _, error = girih_command("run", both, "--random", "--target", "nvidia")
    assert code == 2 and "no GPU in tests" in error and "--simulate" in error
    code, _, error = girih_command("run", both, "--random", "--target", "nvidia:sm_90a")
    assert code == 2 and "was not compiled for 'nvidia:sm_90a', only for" in error
    girih.compile(PRODUCT).save(tmp_path / "cpu.girih")
    code, _, error = girih_command("run", tmp_path / "cpu.girih", "--random", "--simulate")
    assert code == 2 and "nothing to simulate" in error


def test_inspect_says_what_may_be_approximate(girih_command, tmp_path):
    def body(b, x, y):
        dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
        return [b("tanh", b("dot_general", x, y, type=TensorType((128, 64), F32), **dims))]

    module = build_module([TensorType((128, 64), BF16), TensorType((64, 64), BF16)], body)
    for numerics, said in (("reassociates", True), ("bitwise", False)):
        options = Options(numerics=numerics, cache="off")
        girih.compile(module, target="ptx-sim", options=options).save(tmp_path / "a.girih")
        code, out, error = girih_command("inspect", tmp_path / "a.girih")
        assert code == 0, error
        assert ("may be approximate: tanh in " in out) == said


def test_inspect_shows_launches_and_what_runs_here(girih_command, both):
    code, out, _ = girih_command("inspect", both)
    assert code == 0
    assert "variant nvidia:sm_80" in out and "their launches" in out and "argument 0" in out
    assert re.search(r"host; predicted: [\d.]+ \ws \w+, [\d.]+ \ws \w+", " ".join(out.split()))
    assert "cpu runs here: no GPU takes" in out
    data = json.loads(girih_command("inspect", both, "--json")[1])
    assert data["runs"]["target"] == "cpu"
    launches = data["variants"]["nvidia:sm_80"]["kernels"][0]["launches"]
    assert all(len(launch["grid"]) == 3 for launch in launches) and launches
    assert data["variants"]["cpu"]["cubins"] == {}


def test_doctor_tells_of_code_that_does_not_run_here(girih_command, both, tmp_path):
    code, out, _ = girih_command("doctor", both)
    assert code == 0 and "does not run here: no GPU in tests" in out
    bundle = Bundle(both)
    variants = {"nvidia:sm_80": bundle.variants["nvidia:sm_80"]}
    write(tmp_path / "gpu.girih", copied_parts(bundle, variants=variants))
    code, out, _ = girih_command("doctor", tmp_path / "gpu.girih")
    assert code == 1 and "problem: variants/nvidia:sm_80: no GPU in tests" in out


def test_retarget(girih_command, source, tmp_path):
    bundle, more = tmp_path / "cpu.girih", tmp_path / "more.girih"
    assert girih_command("compile", source, "-o", bundle)[0] == 0
    before = Bundle(bundle)
    code, out, error = girih_command("retarget", bundle, "--add", "nvidia:sm_80", "-o", more)
    assert code == 0, error
    assert "cpu kept" in out and "nvidia:sm_80 compiled" in out
    after = Bundle(more)
    assert list(after.variants) == ["cpu", "nvidia:sm_80"] and after.is_trusted
    assert after.program == before.program
    assert bytes(after.variants["cpu"].image) == bytes(before.variants["cpu"].image)
    simulated = girih.load(more, simulate=True)
    np.testing.assert_allclose(simulated(INPUT)[0], EXPECTED, rtol=1e-5)
    code, out, error = girih_command("retarget", more, "--add", "nvidia:sm_90a", "--json")
    assert code == 0, error
    kept = {name: about["kept"] for name, about in json.loads(out)["variants"].items()}
    assert kept == {"cpu": True, "nvidia:sm_80": True, "nvidia:sm_90a": False}
    assert girih.load(more, simulate=True).target == "nvidia:sm_90a"
    np.testing.assert_allclose(girih.load(more)(INPUT)[0], EXPECTED, rtol=1e-5)


def test_retarget_gives_the_cpu_to_a_bundle_for_gpus(girih_command, source, tmp_path):
    bundle = tmp_path / "gpu.girih"
    assert girih_command("compile", source, "-o", bundle, "--target", "nvidia:sm_80")[0] == 0
    assert girih_command("run", bundle, "--random")[0] == 2
    assert girih_command("retarget", bundle, "--add", "cpu")[0] == 0
    np.testing.assert_allclose(girih.load(bundle)(INPUT)[0], EXPECTED, rtol=1e-5)


def test_retarget_refuses(girih_command, both):
    code, _, error = girih_command("retarget", both, "--add", "ptx-sim")
    assert code == 2 and "run it with --simulate" in error
    code, _, error = girih_command("retarget", both, "--add", "nvidia:sm_33")
    assert code == 2 and "unknown architecture 'sm_33'" in error


def test_code_of_a_stranger_is_not_sealed(girih_command, both, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs.girih"
    write(theirs, Bundle(both), seal=False)
    code, out, _ = girih_command("retarget", theirs, "--add", "nvidia:sm_90a")
    assert code == 0 and "was not compiled by you, so the bundle is not sealed" in out
    assert not Bundle(theirs).is_trusted
    everything = ("--add", "cpu", "--add", "nvidia:sm_80", "--add", "nvidia:sm_90a")
    assert girih_command("retarget", theirs, *everything)[0] == 0
    assert Bundle(theirs).is_trusted and trust.machine_key()


def test_a_program_that_was_just_compiled_says_what_it_lacks():
    program = girih.compile(PRODUCT, target="nvidia:sm_80")
    with pytest.raises(UserError, match="no GPU in tests; or compile for the target ptx-sim"):
        program(INPUT)


def test_a_list_of_targets_without_any():
    with pytest.raises(UserError, match="target: the list is empty"):
        girih.compile(PRODUCT, target=[])


def test_weights_are_stored_once(girih_command, tmp_path):
    """Those that every target reads as they are; a target's own forms are its own."""
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    source = f"""
    func.func @main(%a: tensor<2x64xf32>) -> tensor<2x64xf32> {{
      %w = stablehlo.constant dense<"0x{weights.tobytes().hex().upper()}"> : tensor<64x64xf32>
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
          : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32>
      return %0 : tensor<2x64xf32>
    }}"""
    program = girih.compile(source, target=["cpu", "nvidia:sm_80"])
    assert set(program.parts.variants) == {"cpu", "nvidia:sm_80"} and program.target == "cpu"
    program.save(tmp_path / "w.girih")
    x = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)
    for found in (program(x), girih.load(tmp_path / "w.girih", simulate=True)(x)):
        np.testing.assert_allclose(found[0], x @ weights, rtol=1e-4, atol=1e-4)
    first = girih.compile(source, target="nvidia:sm_80").parts
    stored = sum(array.nbytes for array in program.parts.weights.values())
    own = sum(v.nbytes for v in program.parts.variants["nvidia:sm_80"].weights.values())
    assert stored <= weights.nbytes * 2 and own <= weights.nbytes
    assert sum(array.nbytes for array in first.weights.values()) >= weights.nbytes
