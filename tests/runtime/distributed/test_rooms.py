"""Every operation that communicates, compiled and run by real processes: the interpreter's bits,
and the bytes that it counts."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import girih

from . import rooms
from .launch import launched, needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]

RANK = """
import json, os, sys
import numpy as np
import girih
from mpi4py import MPI

folder, *names = sys.argv[1:]
rank = MPI.COMM_WORLD.Get_rank()
found = {}
for name in names:
    simulate = bool(os.environ["SIMULATE"])
    program = girih.load(f"{folder}/{name}.girih", threads=1, simulate=simulate)
    with np.load(f"{folder}/{name}.npz") as data:
        results = program(data[f"i{rank}"])
        results = results if isinstance(results, (list, tuple)) else [results]
        for number, result in enumerate(results):
            assert result.tobytes() == data[f"o{rank}_{number}"].tobytes(), (name, rank, number)
    found[name] = dict(program.received)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.mark.parametrize(
    ("count", "target"), [(2, "cpu"), (4, "cpu"), (8, "cpu"), (2, "ptx-sim"), (4, "ptx-sim:sm_80")]
)
def test_bits_and_bytes_are_the_interpreters(tmp_path, count, target):
    """On simulated GPUs too, whose memory and launches are watched."""
    names = [*rooms.PROGRAMS, "on_grid"]
    wanted: dict[str, list[dict[str, int]]] = {}
    for name in names:
        grid = name == "on_grid"
        module = rooms.on_grid(count // 2) if grid else rooms.program(name, count)
        given = rooms.inputs(count)
        run = girih.interpret_parallel(module, given)
        arrays = {f"i{rank}": x for rank, (x,) in enumerate(given)}
        for rank, row in enumerate(run.results):
            arrays |= {f"o{rank}_{number}": x for number, x in enumerate(row)}
        np.savez(tmp_path / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]
        girih.compile(module, target=target).save(tmp_path / f"{name}.girih")
        wanted[name] = run.received
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    simulated = "1" if target.startswith("ptx-sim") else ""
    done = launched(count, script, tmp_path, *names, SIMULATE=simulated)
    assert done.returncode == 0, done.stderr
    received = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    for name in names:
        found = [row[name] for row in received]
        if name != "dynamic_roots":  # who is the root is not known to who sends
            total = [sum(map(Counter, rows), Counter()) for rows in (found, wanted[name])]
            assert total[0] == total[1], name
