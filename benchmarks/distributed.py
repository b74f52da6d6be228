"""Collectives of compiled programs against those of MPI's library, in the same processes.

    python benchmarks/distributed.py [--environment DIR] [--processes 4] [--seconds 4]

Each program is one collective on f32, from 4 KiB to 64 MiB of each process's operand (all-gather:
of its result); the library does the same between NumPy arrays that stay, where a program's result
is a new one. Both run in turns, beginning behind
a barrier; milliseconds are medians, and the best, of process 0. `--environment` is a virtual
environment whose mpiexec and python run the processes (default: this one): with another MPI
installed there, that is compared. The gate is that an all-reduce of 64 MiB takes at most 0.75 of
the library's time. Writes benchmarks/results/distributed.json, a section for each MPI.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import girih
from girih.cli.network import collective

RESULTS = Path(__file__).resolve().parent / "results" / "distributed.json"
SIZES = [1 << shift for shift in (12, 16, 20, 22, 24, 26)]  # bytes
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GATE = 0.75
TOLERANCE = 1e-5

Json = dict[str, Any]


def name(kind: str, size: int) -> str:
    return f"{kind}_{size}.girih"


def measured(folder: Path, seconds: float) -> None:
    """In each process: prints a line of JSON for each program (process 0)."""
    programs = {(k, s): girih.load(folder / name(k, s)) for k in KINDS for s in SIZES}
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank == 0:
        print(json.dumps({"library": MPI.Get_library_version().splitlines()[0]}), flush=True)
    for (kind, size), program in programs.items():
        whole = size // 4
        given = whole // world.size if kind == "all_gather" else whole
        made = whole // world.size if kind == "reduce_scatter" else whole
        x = np.random.default_rng(world.rank).standard_normal(given, np.float32)
        found = np.empty(made, np.float32)
        library = {
            "all_reduce": world.Allreduce,
            "all_gather": world.Allgather,
            "reduce_scatter": world.Reduce_scatter_block,
            "all_to_all": world.Alltoall,
        }[kind]
        ours: list[float] = []
        theirs: list[float] = []
        begun, result = time.monotonic(), found
        while True:
            for _ in range(50 if size < 1 << 20 else 1):
                world.Barrier()
                started = time.perf_counter()
                result = program(x)
                ours.append(time.perf_counter() - started)
                world.Barrier()
                started = time.perf_counter()
                library(x, found)
                theirs.append(time.perf_counter() - started)
            spent = world.bcast(time.monotonic() - begun)
            if spent > seconds and len(ours) > 5:
                break
        error = float(np.abs(np.asarray(result) - found).max())
        assert error <= TOLERANCE, (kind, size, error)
        if world.rank == 0:
            row = {"kind": kind, "bytes": size, "calls": len(ours)}
            for label, times in (("girih", ours), ("library", theirs)):
                row[f"{label}_ms"] = round(statistics.median(times) * 1e3, 4)
                row[f"{label}_best_ms"] = round(min(times) * 1e3, 4)
            row["ratio"] = round(row["girih_ms"] / row["library_ms"], 3)
            row["best_ratio"] = round(row["girih_best_ms"] / row["library_best_ms"], 3)
            print(json.dumps(row), flush=True)


def compared(environment: Path, processes: int, seconds: float) -> Json:
    """What the processes measure."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for size in SIZES:
                source = Path(folder) / "source.mlir"
                source.write_text(collective(kind, size, processes))
                girih.compile(source).save(Path(folder) / name(kind, size))
        command = [environment / "bin" / "mpiexec", "-n", processes]
        command += [environment / "bin" / "python", Path(__file__).resolve()]
        command += ["--measure", folder, "--seconds", seconds]
        # Open MPI refuses more processes than cores, and root, unless it is told.
        allow = {
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        before = os.getloadavg()[0]
        done = subprocess.run(
            [str(word) for word in command], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **allow}, check=True,
        )  # fmt: skip
    head, *rows = map(json.loads, done.stdout.splitlines())
    return {
        **head,
        "processes": processes,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(before, 2),
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Collectives against MPI's library.")
    parser.add_argument("--environment", type=Path, default=Path(sys.prefix))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measured(arguments.measure, arguments.seconds)
        return 0
    section = compared(arguments.environment, arguments.processes, arguments.seconds)
    for row in section["rows"]:
        print(
            f"{row['kind']:>14} {row['bytes']:>9} bytes: {row['girih_ms']:9.3f} ms, library "
            f"{row['library_ms']:9.3f} ms, ratio {row['ratio']:.2f}, of the best "
            f"{row['best_ratio']:.2f}"
        )
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    report[section["library"].replace("\t", " ").rstrip()] = section
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(RESULTS)
    gate = next(r for r in section["rows"] if (r["kind"], r["bytes"]) == ("all_reduce", 1 << 26))
    print(f"gate: all-reduce of 64 MiB: {gate['ratio']:.2f} of the library's time (<= {GATE})")
    return int(gate["ratio"] > GATE)


if __name__ == "__main__":
    raise SystemExit(main())
