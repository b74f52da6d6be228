"""Twenty `shard_map` programs: interpreted, and compiled and run by real processes, as JAX runs
them on eight devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.distributed.launch import launched, needs_mpi

import girih
from girih.hlo.processes import grid_of

pytest.importorskip("jax")

NAMES = (
    "elementwise", "psum", "psum_of_each_axis", "extremes", "pmean", "ppermute", "all_to_all",
    "psum_scatter", "all_gather", "axis_index", "loop_of_permutes", "while_of_sums", "branch",
    "scan", "partial", "nested", "product", "mixed", "cube", "gradient",
)  # fmt: skip

RANK = """
import sys
import numpy as np
import girih
from mpi4py import MPI

folder, *names = sys.argv[1:]
for name in names:
    program = girih.load(f"{folder}/{name}.girih", threads=1)
    with np.load(f"{folder}/{name}.npz") as data:
        found = program(*(data[f"in{n}"] for n in range(len(program.signature.arguments))))
        flat = program.signature.outputs.flatten(found, "output")
        for number, result in enumerate(flat):
            wanted = data[f"out{number}"]
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5, err_msg=name)
    if MPI.COMM_WORLD.Get_rank() == 0:
        open(f"{folder}/{name}.ran", "w").close()
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("shard_map") / "known.npz"
    script = Path(__file__).with_name("shard_map_programs.py")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, script, path], check=True, env=environment)
    return dict(np.load(path))


def arrays(known: dict[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    while f"{prefix}{len(found)}" in known:
        found.append(known[f"{prefix}{len(found)}"])
    return found


def module_of(known: dict[str, np.ndarray], name: str) -> girih.Module:
    return girih.import_model(str(known[f"{name}.text"]))


def test_there_are_twenty(known):
    assert {name.removesuffix(".text") for name in known if name.endswith(".text")} == set(NAMES)
    assert len(NAMES) == 20


@pytest.mark.parametrize("name", NAMES)
def test_every_device_has_the_result_of_jax(known, name):
    module, wanted = module_of(known, name), arrays(known, f"{name}.out")
    count = grid_of(module)[1]
    found = girih.interpret_parallel(module, [arrays(known, f"{name}.in")] * count)
    for results in found.results:
        assert len(results) == len(wanted) > 0
        for result, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("count", [2, 4, 8])
def test_compiled_processes_have_the_results_of_jax(known, tmp_path, count):
    names: list[str] = []
    for name in NAMES:
        module = module_of(known, name)
        if grid_of(module)[1] == count:
            names.append(name)
            girih.compile(module).save(tmp_path / f"{name}.girih")
            own = {
                f"{what}{number}": array
                for what in ("in", "out")
                for number, array in enumerate(arrays(known, f"{name}.{what}"))
            }
            np.savez(tmp_path / f"{name}.npz", **own)  # pyright: ignore[reportArgumentType]
    assert names
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    done = launched(count, script, tmp_path, *names)
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in tmp_path.glob("*.ran")} == set(names)
