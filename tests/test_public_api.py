"""What a new user meets: sources of any kind, errors that name places, copies, full disks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import girih

ADD = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.add %a, %b : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""
ONES = np.ones((2, 3), np.float32)
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def own_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def line_of(text: str) -> int:
    """The number of the first line of this file that ends so."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def test_every_form_of_a_program_is_a_source(tmp_path):
    program = girih.compile(ADD)
    program.save(tmp_path / "add.girih")
    data = (tmp_path / "add.girih").read_bytes()
    (tmp_path / "without_suffix").write_bytes(data)
    for source in (program, tmp_path / "add.girih", data, tmp_path / "without_suffix"):
        assert girih.compile(source)(ONES, ONES)[0].tolist() == (2 * ONES).tolist()
    with pytest.raises(girih.UserError, match="example inputs are for functions"):
        girih.compile(program, ONES)


def test_programs_are_shared_by_copies_and_not_pickled():
    program = girih.compile(ADD, target="null")
    assert copy.copy(program) is program and copy.deepcopy({"p": program})["p"] is program
    with pytest.raises(TypeError, match=r"program\.save\(path\)"):
        pickle.dumps(program)


def test_a_function_returns_what_it_declares():
    wrong = ADD.replace("-> tensor<2x3xf32>", "-> tensor<3x2xf32>")
    with pytest.raises(girih.UserError, match=r"declares to return f32\[3,2\].* f32\[2,3\]"):
        girih.import_model(wrong)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    weight = np.arange(90_000, dtype=np.float32).reshape(300, 300)
    np.save(tmp_path / "weight.npy", weight)
    script = f"""
import resource, numpy as np, girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
kind = TensorType((300, 300), F32)
weight = np.load({str(tmp_path / "weight.npy")!r})
module = build_module([kind], lambda b, x: [b("add", x, b.constant(weight, kind))])
program = girih.compile(module, target="null")
for limit in (50, 5_000, 100_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        program.save({str(tmp_path / "out.girih")!r})
    except girih.UserError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("out.girih: cannot write: File too large") == 3
    assert [path.name for path in tmp_path.glob("*out*")] == []


def test_a_lazy_negation_of_torch_is_not_lost():
    torch = pytest.importorskip("torch")
    flagged = torch.complex(torch.zeros(2, 3), torch.ones(2, 3)).conj().imag
    assert flagged.is_neg()
    assert girih.compile(ADD)(flagged, 0 * ONES)[0].tolist() == (-ONES).tolist()


def test_blockers_inside_a_library_name_the_line_that_calls_it():
    jax = pytest.importorskip("jax")

    def model(x):
        jax.debug.print("{}", x)  # the print
        return jax.pure_callback(np.sin, x, x)  # the callback

    with pytest.raises(girih.ImportBlockers) as caught:
        girih.import_model(model, np.ones((4, 4), np.float32))
    places = [blocker.place.rpartition("/")[2] for blocker in caught.value.blockers]
    lines = [line_of("# the print"), line_of("# the callback")]
    assert places == [f"{HERE}:{line}" for line in lines]


def test_kernels_of_a_library_function_name_the_line_that_calls_it():
    jax = pytest.importorskip("jax")

    def model(x):
        return jax.numpy.cumsum(jax.numpy.argsort(x))  # the sort

    program = girih.compile(model, np.ones(5, np.float32), target="null")
    assert program.plan.kernels
    for kernel in program.plan.kernels:
        for origin in kernel.origins:
            assert (Path(origin.file).name, origin.line) == (HERE, line_of("# the sort")), origin


def test_what_a_framework_cannot_trace_names_the_line():
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x):
            return x @ torch.ones(3, 3)  # the wrong product

    def function(x):
        return x if x.sum() > 0 else -x  # the branch

    for source, example, text in (
        (Model(), torch.ones(4, 4), "# the wrong product"),
        (function, jax.numpy.ones(4), "# the branch"),
    ):
        with pytest.raises(girih.UserError) as caught:
            girih.import_model(source, example)
        assert f"{HERE}:{line_of(text)}: " in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_text_without_locations_is_its_own_place(tmp_path):
    (tmp_path / "model.mlir").write_text(ADD.replace("stablehlo.add", "stablehlo.frob"))
    with pytest.raises(girih.ImportBlockers) as caught:
        girih.import_model(tmp_path / "model.mlir")
    assert [blocker.place for blocker in caught.value.blockers] == ["model.mlir:3"]
