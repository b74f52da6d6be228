"""PyTorch's functional collectives become ours: four ranks interpreted together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.hlo.graph import Module
from girih.hlo.wire import decode

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "torch_collectives_child.py"
RANKS = 4


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("collectives")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path)], check=True, capture_output=True, text=True
    )
    return path, done.stdout


def check(module: Module) -> None:
    x = np.arange(RANKS * 6, dtype=np.float32).reshape(RANKS, 2, 3) ** 2
    found = girih.interpret_parallel(module, [[part] for part in x])
    gathered = x.reshape(2 * RANKS, 3)
    padded = np.stack([gathered] * RANKS).reshape(RANKS, RANKS, 2, 3)
    for rank, results in enumerate(found.results):
        wanted = (
            x.sum(0) + 1, x.mean(0), gathered, gathered.reshape(RANKS, 2, 3)[rank],
            padded[:, rank].reshape(2 * RANKS, 3), x[2],
        )  # fmt: skip
        for result, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_ranks_are_replicas(exports: tuple[Path, str]) -> None:
    module = decode((exports[0] / "program.pb").read_bytes())
    assert module.attributes["mhlo.num_replicas"] == RANKS
    check(module)


def test_a_file_states_the_size_of_the_group_of_all_ranks(exports: tuple[Path, str]) -> None:
    check(girih.import_model(exports[0] / "model.pt2"))


def test_a_group_of_some_ranks_blocks(exports: tuple[Path, str]) -> None:
    assert "nothing says which ranks the group" in exports[1]
    assert "use the group of all ranks" in exports[1]
    with pytest.raises(girih.ImportBlockers, match="nothing says which ranks the group"):
        girih.import_model(exports[0] / "part.pt2")


def test_it_is_compiled_for_as_many_processes(exports: tuple[Path, str]) -> None:
    program = girih.compile(decode((exports[0] / "program.pb").read_bytes()))
    assert program.plan.processes == RANKS
