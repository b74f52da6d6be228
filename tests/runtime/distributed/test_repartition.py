"""One bundle on other meshes: compiled from the program in it, without a framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.hlo.interpret import interpret
from girih.runtime.bundle import Bundle
from girih.runtime.plans import parse_plan

from ..test_imports import GUARD
from . import launch
from .test_mesh import SAID, network, printed

REPARTITION = """
from girih.cli import main
for data, model in ((1, 1), (8, 1), (1, 8), (4, 2), (3, 2)):
    mesh = f"data={data},model={model}"
    try:
        main(["repartition", sys.argv[1], "--mesh", mesh])
    except SystemExit as stopped:
        assert not stopped.code, (mesh, stopped.__context__)
print("no", *sorted({"jax", "torch", "jaxlib"} & set(sys.modules)))
"""

CALL = """
import sys
import numpy as np
import girih
given = np.load(sys.argv[2])
found = girih.load(sys.argv[1], allow_native=True)(given["x"]).gather()
np.testing.assert_allclose(found, given["y"], rtol=0, atol=1e-3)
print("equal")
"""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with code for six meshes, and data."""

    folder = tmp_path_factory.mktemp("moved")
    module, x = network(), np.random.default_rng(1).standard_normal((50, 256), np.float32)
    bundle = folder / "p.girih"
    girih.compile(module, mesh={"data": 2, "model": 4}, shardings=SAID).save(bundle)
    (wanted, _) = interpret(module, [x, np.zeros((), np.float32)])
    np.savez(folder / "data.npz", x=x, y=wanted)
    guard = GUARD.replace("'llvmlite', ", "")  # it compiles
    done = subprocess.run(
        [sys.executable, "-c", guard + REPARTITION, str(bundle)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "\nno\n" in done.stdout
    return folder


def test_it_runs_on_one_device(moved: Path) -> None:
    given = np.load(moved / "data.npz")
    program = girih.load(moved / "p.girih", allow_native=True)
    assert program.mesh is None and len(program.parts.variants) == 6
    np.testing.assert_allclose(program(given["x"]), given["y"], rtol=0, atol=1e-3)


@pytest.mark.mpi
@launch.needs_mpi
@pytest.mark.parametrize("count", [6, 8])
def test_processes_choose_by_their_number(moved: Path, count: int) -> None:
    """Of four meshes of eight devices the first; 50 rows on 3 x 2 are cut unevenly."""
    said = printed(count, moved, CALL, moved / "p.girih", moved / "data.npz")
    assert said.count("equal") == count


def test_code_for_gpus_moves_to_other_meshes(tmp_path: Path) -> None:
    """For the targets that the bundle has code for."""
    bundle = tmp_path / "p.girih"
    module = network(12, 24, 18)
    program = girih.compile(module, target="ptx-sim", mesh={"data": 2, "model": 2}, shardings=SAID)
    program.save(bundle)
    code = "from girih.cli import main; main(['repartition', *__import__('sys').argv[1:]])"
    command = [sys.executable, "-c", code, str(bundle), "--mesh", "data=1,model=3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(girih.UserError, match="is for data=2,model=2 and for model=3, and 1 proc"):
        girih.load(bundle, allow_native=True, simulate=True)
    variants = Bundle(bundle).variants
    assert list(variants) == ["nvidia:sm_90a@data=2,model=2", "nvidia:sm_90a@model=3"]
    plan = parse_plan(variants["nvidia:sm_90a@model=3"])
    assert (plan.processes, plan.format_version) == (3, "1.6")
    (step,) = [step.exchange for step in plan.steps if step.exchange.part_of][:1]
    assert step.copy == "exchange_copy$"
