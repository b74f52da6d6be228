"""Running a bundle imports no framework, no compiler, and only a few modules of hlo."""

from __future__ import annotations

import subprocess
import sys

import pytest

import girih
from girih.runtime.program import Program

from .fakes import FLAT, plan_for

FORBIDDEN = ("jax", "jaxlib", "torch", "llvmlite", "transformers", "onnx")
SINGLE = (
    "girih", "girih.hlo", "girih.hlo.classes", "girih.hlo.errors", "girih.hlo.extras",
    "girih.hlo.files", "girih.hlo.signature", "girih.hlo.size_text", "girih.hlo.sizes",
    "girih.hlo.trees",
    "girih.hlo.symbols", "girih.hlo.types", "girih.workers",
)  # fmt: skip
WHOLE = ("girih.runtime", "girih.specs", "girih.cli")

# Makes the forbidden packages unimportable, then says at exit what of girih was imported.
GUARD = f"""
import sys, atexit

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            raise ModuleNotFoundError(f"{{name}} must not be imported", name=name)

sys.meta_path.insert(0, Refuse())
atexit.register(lambda: print(*[n for n in sys.modules if n.partition(".")[0] == "girih"]))
"""

ADD = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.add %a, %b : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""


def _is_allowed(name: str) -> bool:
    return name in SINGLE or name.startswith(WHOLE)


def run_guarded(code: str, *arguments: str) -> tuple[str, set[str]]:
    """What the code prints, and the modules of girih that it imported beyond those allowed."""
    done = subprocess.run(
        [sys.executable, "-c", GUARD + code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    printed, _, modules = done.stdout.rstrip("\n").rpartition("\n")
    strange = {name for name in modules.split() if not _is_allowed(name)}
    return printed, strange


def test_importing_girih_is_cheap():
    _, strange = run_guarded("import girih")
    assert not strange
    code = "import time; t = time.perf_counter(); import girih; print(time.perf_counter() - t)"
    times = [float(run_guarded(code)[0]) for _ in range(3)]
    assert min(times) < 0.15


def test_loading_imports_the_runtime_alone(tmp_path):
    program = Program.from_parts(b"", FLAT, {"null": (plan_for(FLAT, "null"), b"")})
    program.save(tmp_path / "x.girih")
    code = "import sys, girih; print(girih.load(sys.argv[1]).memory.arena_bytes)"
    printed, strange = run_guarded(code, str(tmp_path / "x.girih"))
    assert printed == "512" and not strange


@pytest.fixture(scope="module")
def add_bundle(tmp_path_factory):
    """A compiled bundle that adds two arrays."""
    pytest.importorskip("llvmlite")
    path = tmp_path_factory.mktemp("bundle") / "add.girih"
    girih.compile(ADD).save(path)
    return path


def test_running_imports_the_runtime_alone(add_bundle):
    code = """
import girih, numpy
ones = numpy.ones((2, 3), "f4")
print(girih.load(sys.argv[1], allow_native=True)(ones, ones)[0].sum())
"""
    printed, strange = run_guarded(code, str(add_bundle))
    assert printed == "12.0" and not strange


def test_the_command_run_imports_the_runtime_alone(add_bundle):
    code = """
from girih.cli import main
main(["run", sys.argv[1], "--random", "--allow-native", "--json"])
"""
    printed, strange = run_guarded(code, str(add_bundle))
    assert '"shape"' in printed and not strange
