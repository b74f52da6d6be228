"""Time of a step of annotated programs: JAX with virtual devices beside as many processes of girih.

    python benchmarks/sharding_time.py [--devices 4] [--rounds 3] [ID...]

Each program of `models/annotated_*.py` on a mesh of 4 devices: XLA compiles it for 4 devices of
one process, girih for 4 processes that `mpiexec` starts; both use all cores of this machine, and
inputs lie where they are needed before the clock starts. The time of a step is that of the slowest
process. They take turns, `rounds` times, each in processes of its own, and each round gives the
median of its calls; told are the best and the median of the rounds, and how far girih's result is
from JAX's. Results go to benchmarks/results/sharding_time.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results" / "sharding_time.json"
USUAL = ("a1", "a2", "a3", "b1", "b2", "b3", "c3", "d1", "e2", "f1")
SECONDS = 2.0  # of calls in a round


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("programs", nargs="*", default=USUAL, metavar="ID")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in chosen.programs:
        rows[name] = row = _compared(name, chosen.devices, chosen.rounds)
        print(
            f"{name:>4}  jax {row['jax_best']:8.2f} ms best, {row['jax']:8.2f} median   girih "
            f"{row['girih_best']:8.2f}, {row['girih']:8.2f}   {row['ratio']:.2f} x   difference "
            f"{row['difference']:.1e}",
            flush=True,
        )
    ratio = geometric_mean(row["ratio"] for row in rows.values())
    print(f"geometric mean of girih / jax, medians: {ratio:.2f}")
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(f"{chosen.devices} devices", {}).update(rows)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def _compared(name: str, devices: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        own, theirs = [], []
        here = [sys.executable, str(Path(__file__).resolve())]
        bundle, known = Path(folder, "p.girih"), Path(folder, "jax.npz")
        module = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        _run([*here, "--compile", name, str(devices), str(bundle)], module)
        launcher = [str(Path(sys.prefix, "bin", "mpiexec")), "-n", str(devices)]
        difference = 0.0
        for _ in range(rounds):
            theirs.append(_run([*here, "--jax", name, str(devices), str(known)], module))
            lines = _run([*launcher, *here, "--rank", name, str(bundle), str(known)], None)
            own.append(lines)
            difference = max(difference, lines["difference"])
        ours, jax_ms = [one["ms"] for one in own], [one["ms"] for one in theirs]
        return {
            "girih": median(ours),
            "girih_best": min(one["best"] for one in own),
            "jax": median(jax_ms),
            "jax_best": min(one["best"] for one in theirs),
            "ratio": median(ours) / median(jax_ms),
            "difference": difference,
        }


def _run(command: list[str], environment: dict[str, str] | None) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=580)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}


def _example(name: str) -> Any:
    from models.annotated_networks import NETWORKS
    from models.annotated_operations import OPERATIONS

    return {**NETWORKS, **OPERATIONS}[name]


def _compile(name: str, devices: int, bundle: str) -> None:
    import girih

    example = _example(name)
    sizes = example.sizes(devices)
    girih.compile(example.module(), mesh=sizes).save(bundle)


def _jax(name: str, devices: int, known: str) -> None:
    import jax

    example = _example(name)
    sizes = example.sizes(devices)
    grid = np.array(jax.devices()[:devices]).reshape(tuple(sizes.values()))
    mesh = jax.sharding.Mesh(grid, tuple(sizes))
    compiled = example.lowered(mesh).compile()
    order = sorted(example.arguments)
    (places,) = compiled.input_shardings[0]

    def given() -> dict[str, Any]:
        arrays = dict(zip(order, example.inputs(), strict=True))
        return {n: jax.device_put(arrays[n], places[n]) for n in order}

    inputs = given()
    results = jax.block_until_ready(compiled(inputs))
    flat = [np.asarray(one) for one in jax.tree.leaves(results)]
    np.savez(known, *flat)

    def call() -> None:
        jax.block_until_ready(compiled(given() if example.donated else inputs))

    if example.donated:  # the copies that donation costs are no part of a step

        def step() -> float:
            arrays = jax.block_until_ready(given())
            begin = time.perf_counter()
            jax.block_until_ready(compiled(arrays))
            return time.perf_counter() - begin
    else:

        def step() -> float:
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin

    print(json.dumps(_timed(step, lambda seconds: seconds)))


def _rank(name: str, bundle: str, known: str) -> None:
    from mpi4py import MPI

    import girih

    world = MPI.COMM_WORLD
    program = girih.load(bundle, allow_native=True, verify="lazy")
    example = _example(name)
    layout = program.layout
    assert layout is not None and program.mesh is not None
    from girih.hlo.placement import cut_for

    blocks = [
        np.ascontiguousarray(cut_for(array, sharding, program.mesh, world.rank))
        for array, sharding in zip(example.inputs(), layout.arguments, strict=True)
    ]
    inputs = program.signature.inputs.unflatten(blocks)
    results = program.signature.outputs.flatten(program(*inputs), "output")
    whole = [block.gather() for block in results]
    with np.load(known) as wanted:
        pairs = [(one, wanted[f"arr_{n}"]) for n, one in enumerate(whole)]
    difference = max(
        float(np.max(np.abs(one - other)) / (np.max(np.abs(other)) + 1e-30)) for one, other in pairs
    )

    def step() -> float:
        world.Barrier()
        begin = time.perf_counter()
        program.call_flat(blocks)
        return time.perf_counter() - begin

    found = _timed(step, lambda seconds: world.allreduce(seconds, MPI.MAX))
    if world.rank == 0:
        print(json.dumps({**found, "difference": difference}))


def _timed(step: Any, slowest: Any) -> dict[str, float]:
    """Milliseconds of a call: median and best."""
    for _ in range(3):
        last = slowest(step())
    count = max(5, min(200, int(SECONDS / max(last, 1e-6))))
    found = [slowest(step()) * 1e3 for _ in range(count)]
    return {"ms": median(found), "best": min(found)}


if __name__ == "__main__":
    modes = {"--compile": _compile, "--jax": _jax, "--rank": _rank}
    if len(sys.argv) > 1 and sys.argv[1] in modes:
        mode, name, *rest = sys.argv[1:]
        modes[mode](name, *(int(text) if text.isdecimal() else text for text in rest))
    else:
        main()
