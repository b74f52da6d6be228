"""What is not installed, or too old, is one sentence with the line that installs it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from girih.hlo import extras
from girih.hlo.errors import UserError

GUARD = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import numpy as np
import girih
try:
    {use}
except girih.UserError as error:
    print(error)
"""
USES = {
    "girih.compile(abs, np.ones(2))": ("jax", "tracing a function needs jax, .*girih.jax."),
    "girih.compile(abs, np.ones(3))": ("jaxlib", "needs jaxlib, which is not .*girih.jax."),
    "girih.jit(abs)": ("jax", "girih.jit needs jax, which is not installed: pip install"),
    "girih.compile('func.func @main() { return }')": (
        "llvmlite", "target cpu: compiling needs llvmlite, .*: pip install --upgrade 'girih.cpu.'"
    ),
    "girih.compile(lambda x: x + 1, np.ones(2), target='nvidia:sm_90a')": (
        "llvmlite", "target nvidia: compiling needs llvmlite, which is not installed: pip install"
    ),
    "from girih.runtime.devices.cuda import find_gpus; find_gpus()": (
        "cuda", "cuda-python is not installed .*; pip install 'girih.cuda.'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_what_is_missing(use: str) -> None:
    missing, said = USES[use]
    script = GUARD.format(missing=[missing], use=use)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert re.search(said, line), line


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_without_its_packages(package: str) -> None:
    script = GUARD.format(missing=[package], use="from girih.cli import main; main(['--help'])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    needs = f"girih: the command line needs {package}, which is not installed: pip install "
    assert done.stderr == f"{needs}--upgrade 'girih[cli]'\n"


def test_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda package: True)
    for version, works in (("0.9.0", True), ("0.8.3", False), ("0.10", True), ("1.0.dev0", True)):
        monkeypatch.setattr(extras.metadata, "version", lambda package, v=version: v)
        if works:
            extras.require("jax", "tracing")
            continue
        with pytest.raises(
            UserError, match=r"tracing needs jax 0\.9 or newer, this is 0\.8\.3: pip"
        ):
            extras.require("jax", "tracing")


def test_declared_versions_are_those_that_are_required() -> None:
    import tomllib
    from pathlib import Path

    import girih

    text = (Path(girih.__file__).parent / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    for package, extra in extras.EXTRAS.items():
        oldest = ".".join(map(str, extra.oldest))
        assert any(one.startswith(f"{package}>={oldest}") for one in declared[extra.name])


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "girih", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("girih ")


def test_files_of_other_tools(tmp_path) -> None:
    """`compile`, `load` and the doctor say what a file is, and what would help."""
    import io
    import pickle
    import zipfile

    import numpy as np
    import onnx
    import torch
    from safetensors.numpy import save_file

    import girih
    from girih.cli.doctor import examine

    np.save(tmp_path / "x.npy", np.ones(3))
    np.savez(tmp_path / "x.npz", np.ones(3))
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt")
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "script.pt")  # type: ignore[union-attr]
    save_file({"w": np.ones(2)}, tmp_path / "w.safetensors")
    graph = onnx.helper.make_graph([], "g", [], [])
    model = onnx.helper.make_model(graph, producer_name="test")
    for name in ("model.onnx", "renamed.bin"):
        (tmp_path / name).write_bytes(model.SerializeToString())
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"w": 1}))
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "x.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(60))
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"x")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "b")
    wanted = {
        "x.npy": "an array of numpy", "x.npz": "arrays of numpy", "weights.pt": "torch.save wrote",
        "script.pt": "a TorchScript model", "w.safetensors": "a file of weights",
        "model.onnx": "an ONNX model", "renamed.bin": "an ONNX model", "x.pkl": "a Python pickle",
        "x.gguf": "for llama.cpp", "x.tflite": "a TensorFlow Lite model",
        "saved": "a SavedModel of TensorFlow", "other.zip": "a zip file of another tool",
    }  # fmt: skip
    for name, what in wanted.items():
        for use in (girih.compile, girih.load):
            with pytest.raises(UserError, match=what) as caught:
                use(tmp_path / name)
            assert "; " in str(caught.value)
        if name == "saved":
            continue
        findings = examine(tmp_path / name)
        assert what in findings.kind and findings.problems and findings.problems[0].remedy
        if name != "model.onnx":  # known by its name alone as well
            with pytest.raises(UserError, match=what):
                girih.compile((tmp_path / name).read_bytes())
    exported = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), exported)
    with pytest.raises(UserError, match="an export of PyTorch .*; compile it first: girih compile"):
        girih.load(exported.getvalue())
