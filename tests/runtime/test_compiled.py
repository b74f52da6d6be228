"""Bundles with real machine code: equal bytes, trust, other processors, threads, golden results."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import timeit
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import json_format

import girih
from girih import UserError
from girih.runtime.archive import Archive
from girih.runtime.bundle import MemoryParts
from girih.runtime.program import Program
from girih.specs.generated import bundle_pb2

from .test_imports import run_guarded

pytest.importorskip("llvmlite")

SOFTMAX = """
func.func @main(%x: tensor<64x96xf32>, %y: tensor<64x96xf32>) -> tensor<64x96xf32> {
  %s = stablehlo.add %x, %y : tensor<64x96xf32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%s init: %lowest) applies stablehlo.maximum across dimensions = [1]
    : (tensor<64x96xf32>, tensor<f32>) -> tensor<64xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<64xf32>) -> tensor<64x96xf32>
  %d = stablehlo.subtract %s, %mb : tensor<64x96xf32>
  %e = stablehlo.exponential %d : tensor<64x96xf32>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<64x96xf32>, tensor<f32>) -> tensor<64xf32>
  %tb = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<64xf32>) -> tensor<64x96xf32>
  %r = stablehlo.divide %e, %tb : tensor<64x96xf32>
  return %r : tensor<64x96xf32>
}
"""


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def program() -> Program:
    return girih.compile(SOFTMAX)


@pytest.fixture
def inputs():
    generator = np.random.default_rng(0)
    return [generator.standard_normal((64, 96)).astype(np.float32) for _ in range(2)]


def test_saved_and_loaded_it_gives_the_same(program, inputs, tmp_path):
    program.with_checks(inputs).save(tmp_path / "x.girih")
    loaded = girih.load(tmp_path / "x.girih")
    (result,) = loaded(*inputs)
    assert np.array_equal(result, program(*inputs)[0])
    assert np.allclose(result, softmax(inputs[0] + inputs[1]), atol=1e-6)
    assert loaded.run_checks() == [(0.0, 1e-3)]
    assert loaded.plan == program.plan
    assert np.allclose(girih.interpret(loaded.module, inputs)[0], result, atol=1e-6)


def test_two_compilations_give_equal_bytes(tmp_path):
    (tmp_path / "m.mlir").write_text(SOFTMAX)
    code = "import sys, girih; girih.compile(sys.argv[1]).save(sys.argv[2])"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        arguments = [str(tmp_path / "m.mlir"), str(tmp_path / seed)]
        subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_documents_are_what_the_schema_says(program, tmp_path):
    program.save(tmp_path / "x.girih")
    archive = Archive(tmp_path / "x.girih")
    for member, message in (
        ("manifest.json", bundle_pb2.Manifest()),
        ("signatures.json", bundle_pb2.Signatures()),
        ("provenance.json", bundle_pb2.Provenance()),
        ("seal.json", bundle_pb2.Seal()),
    ):
        json_format.Parse(bytes(archive.data(member)), message)


def test_a_strangers_code_is_compiled_anew(program, inputs, tmp_path):
    program.save(tmp_path / "x.girih", seal=False)
    with pytest.warns(UserWarning, match="not compiled by this user, so the program is compiled"):
        loaded = girih.load(tmp_path / "x.girih", threads=1)
    assert np.allclose(loaded(*inputs)[0], program(*inputs)[0], atol=1e-6)


def test_without_a_compiler_a_strangers_code_is_refused(program, tmp_path):
    program.save(tmp_path / "x.girih", seal=False)
    code = """
import girih
try:
    girih.load(sys.argv[1])
except girih.UserError as error:
    print(error)
"""
    printed, strange = run_guarded(code, str(tmp_path / "x.girih"))
    assert "allow_native=True" in printed and "girih[cpu]" in printed and not strange


def other_machine(program: Program, **changes) -> Program:
    """The program with a plan that claims another machine."""
    plan = type(program.plan)()
    plan.CopyFrom(program.plan)
    for name, value in changes.items():
        if name == "features":
            plan.features.extend(value)
        else:
            setattr(plan, name, value)
    assert isinstance(program.parts, MemoryParts)
    made = replace(program.parts.variants["cpu"], plan=plan.SerializeToString(deterministic=True))
    return Program(replace(program.parts, variants={"cpu": made}), "cpu", plan=program.plan)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"triple": "riscv64-unknown-linux-gnu"}, "for riscv64, this machine is"),
        ({"features": ["avx9000"]}, "CPU features that this machine lacks: avx9000"),
    ],
)
def test_code_for_another_machine_is_compiled_anew(program, inputs, tmp_path, changes, words):
    other_machine(program, **changes).save(tmp_path / "x.girih")
    with pytest.warns(UserWarning, match=words):
        loaded = girih.load(tmp_path / "x.girih")
    assert np.allclose(loaded(*inputs)[0], program(*inputs)[0], atol=1e-6)


def test_threads_do_not_change_results(program, inputs, tmp_path):
    program.save(tmp_path / "x.girih")
    expected = program(*inputs)[0]
    for threads in (1, 2, 3):
        assert np.array_equal(
            girih.load(tmp_path / "x.girih", threads=threads)(*inputs)[0], expected
        )
    with pytest.raises(UserError, match="threads"):
        girih.load(tmp_path / "x.girih", threads=0)


def test_concurrent_calls(program):
    generator = np.random.default_rng(1)
    cases = [generator.standard_normal((2, 64, 96)).astype(np.float32) for _ in range(4)]
    failures = []

    def work(case):
        expected = program(*case)[0]
        for _ in range(50):
            if not np.array_equal(program(*case)[0], expected):
                failures.append(case)

    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_profile_names_the_kernels(program, inputs):
    profile = program.profile(*inputs)
    names = {kernel.name for kernel in program.plan.kernels}
    assert profile.events and {event.kernel for event in profile.events} <= names
    assert np.array_equal(profile.outputs[0], program(*inputs)[0])


def test_a_call_costs_little():
    """25 us are allowed for one operation; a busy machine gets the best of many tries."""
    add = girih.compile(
        "func.func @main(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {\n"
        "  %0 = stablehlo.add %a, %b : tensor<8xf32>\n"
        "  return %0 : tensor<8xf32>\n}\n"
    )
    x = np.ones(8, np.float32)
    assert min(timeit.repeat(lambda: add(x, x), number=500, repeat=20)) / 500 < 25e-6


def test_null_target_plans(inputs):
    planned = girih.compile(SOFTMAX, target="null")
    assert planned.plan.steps and planned.memory.output_bytes == 64 * 96 * 4
    with pytest.raises(UserError, match="target 'null'"):
        planned(*inputs)
