"""The distributed demo: a training step in JAX and a Llama in PyTorch, three annotations each (for
a layer), on four processes.

    make demo-distributed        (or: python examples/sharded/run.py)

Each program is compiled for a mesh of 2 x 2 devices; what these send is explained, with a page of
pictures; four processes run it, and give what one process gives. The training goes on for 30 steps,
from one to the next of which each process has its blocks of the weights alone. The Llama's bundle
moves to a mesh of 4 x 1.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import llama  # noqa: E402
import numpy as np  # noqa: E402
import training  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.panel import Panel  # noqa: E402

import girih  # noqa: E402

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
STEPS, TOLERANCE = 30, 1e-5
console = Console(width=None if sys.stdout.isatty() else 124, highlight=False)


def main() -> int:
    if sys.argv[1:2] == ["train"]:
        return train(Path(sys.argv[2]), Path(sys.argv[3]))
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if importlib.util.find_spec("mpi4py") is None or launcher is None:
        console.print("this demo needs MPI: pip install mpi4py mpich")
        return 1
    OUT.mkdir(exist_ok=True)
    console.print(Panel("[b]girih[/b]: a few annotations, one program on four processes"))
    good = trained([launcher, "-n", "4"])
    good &= served([launcher, "-n", "4"])
    console.print("What each device holds, in pictures: examples/sharded/out/*.html")
    return 0 if good else 1


def trained(start: list[str]) -> bool:
    """Training in JAX, on four processes and on one."""
    bundle, losses = OUT / "training.girih", OUT / "losses.npy"
    girih.compile(training.module(), mesh=training.MESH).save(bundle)
    command("explain", "sharding", bundle, "--html", OUT / "training.html")
    subprocess.run([*start, sys.executable, __file__, "train", bundle, losses], check=True)
    found = np.load(losses)
    weights, x, y = training.examples()
    alone, wanted = girih.compile(training.module()), []
    for _ in range(STEPS):
        loss, weights = alone(weights, x, y)
        wanted.append(float(loss))
    error = float(np.max(np.abs(found - wanted) / np.abs(wanted)))
    console.print(
        f"{STEPS} steps on four processes: the loss fell from {found[0]:.4f} to {found[-1]:.4f}; "
        f"one process gives the same within {error:.1e}\n"
    )
    return error < TOLERANCE and found[-1] < found[0]


def train(bundle: Path, losses: Path) -> int:
    """One of the four processes: weights stay cut from step to step."""
    program = girih.load(bundle)
    weights, x, y = training.examples()
    found = []
    for _ in range(STEPS):
        loss, weights = program(weights, x, y)
        found.append(float(loss))
    whole = {name: block.gather().shape for name, block in weights.items()}
    if program.rank == 0:
        own = {name: block.shape for name, block in weights.items()}
        print(f"a process has blocks {own} of weights {whole}", flush=True)
        np.save(losses, np.array(found))
    return 0


def served(start: list[str]) -> bool:
    """A Llama in PyTorch, on two meshes of four processes, and on one process."""
    bundle, tokens = OUT / "llama.girih", OUT / "tokens.npz"
    girih.compile(llama.module(), mesh=llama.MESH).save(bundle)
    command("explain", "sharding", bundle, "--html", OUT / "llama.html")
    words = np.random.default_rng(0).integers(0, 96, (4, 16))
    np.savez(tokens, tokens=words)
    wanted = girih.compile(llama.module())(words)
    command("repartition", bundle, "--mesh", "data=4,model=1")
    good = True
    for mesh in ("data=2,model=2", "data=4,model=1"):
        given = (tokens, "-o", OUT / "scores.npz", "--mesh", mesh)
        command("run", bundle, *given, start=start)
        with np.load(OUT / "scores.npz") as found:
            (scores,) = found.values()
        error = float(np.max(np.abs(scores - wanted)) / np.max(np.abs(wanted)))
        console.print(f"on the mesh {mesh}: one process gives the same within {error:.1e}\n")
        good &= error < TOLERANCE
    return good


def command(*arguments: object, start: list[str] | None = None) -> None:
    """Run a command of girih's, shown as a user types it."""
    shown = [*(["mpiexec", *start[1:]] if start else []), "girih", *map(str, arguments)]
    console.print("[b]$ " + " ".join(shown).replace(str(HERE) + os.sep, "") + "[/b]")
    run = [*(start or []), sys.executable, "-m", "girih", *map(str, arguments)]
    subprocess.run(run, check=True)


if __name__ == "__main__":
    sys.exit(main())
