"""What the processes of annotated models send each other is what was explained, byte for byte, and
their results are the simulator's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.distributed import interpret_parallel
from girih.hlo.placement import cut
from girih.hlo.types import TensorType
from girih.optimizer.sharding.partition.program import WHOLE

from .launch import launched, needs_mpi

pytest.importorskip("jax")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, needs_mpi]

NAMES = ("b1", "d1", "e2", "f1", "i1")

RANK = """
import json, sys
import numpy as np
import girih
from mpi4py import MPI

folder, *names = sys.argv[1:]
rank = MPI.COMM_WORLD.Get_rank()
found = {}
for name in names:
    program = girih.load(f"{folder}/{name}.girih", threads=1)
    with np.load(f"{folder}/{name}.{rank}.npz") as data:
        given = [data[f"i{number}"] for number in range(len(program.signature.arguments))]
        results, state = program.stateless(*given)
        flat = program.signature.outputs.flatten(results, "output")
        for number, result in enumerate(flat):
            wanted = data[f"o{number}"]
            scale = np.abs(wanted).max(initial=1e-30)
            assert result.shape == wanted.shape and result.dtype == wanted.dtype
            error = np.abs(result.astype(np.float64) - wanted).max(initial=0) / scale
            bound = 2e-6 if result.ndim else 1e-5  # d1's loss is one sum of millions
            assert error <= bound, (name, rank, number, error)
    found[name] = dict(program.received)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
"""


def saved(name: str, count: int, folder: Path) -> float:
    """Writes the local program's bundle, and the inputs and results of each process; bytes that a
    device receives, the mean of all, as they are explained."""
    from girih.benchmarks.models.annotated_networks import NETWORKS
    from girih.benchmarks.models.annotated_operations import OPERATIONS

    example = {**NETWORKS, **OPERATIONS}[name]
    parts = girih.partition(example.module(count))
    random = np.random.default_rng(0)
    values = [argument.value(random) for _, argument in sorted(example.arguments.items())]
    blocks: list[list[Any]] = []
    for value, facts in zip(values, parts.local.main.argument_attributes, strict=True):
        whole = facts[WHOLE]
        assert isinstance(whole, TensorType) and whole.sharding is not None
        assert whole.dims == value.shape
        blocks.append(cut(value, whole.sharding, parts.mesh))
    given = [[block[rank] for block in blocks] for rank in range(count)]
    run = interpret_parallel(parts.local, given)
    for rank in range(count):
        arrays = {f"i{number}": array for number, array in enumerate(given[rank])}
        arrays |= {f"o{number}": array for number, array in enumerate(run.results[rank])}
        np.savez(folder / f"{name}.{rank}.npz", **arrays)  # pyright: ignore[reportArgumentType]
    local = replace(parts.local, signature=None)  # of blocks
    girih.compile(local).save(folder / f"{name}.girih")
    return parts.bytes


@pytest.mark.parametrize("count", [2, 4, 8])
def test_received_bytes_are_those_explained(tmp_path, count):
    explained = {name: saved(name, count, tmp_path) for name in NAMES}
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    done = launched(count, script, tmp_path, *NAMES)
    assert done.returncode == 0, done.stderr
    received = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    for name in NAMES:
        total = sum(sum(row[name].values()) for row in received)
        assert total == explained[name] * count, name
