"""girih on emulated CPUs: an aarch64, and x86-64 without AVX and without AVX-512.

    python -m girih.tests.emulated [--keep FOLDER]

What programs.py compiles on this machine runs on each of them; see guest.py for what is checked.
The first run fetches QEMU and what it needs (machines.py). A CPU that cannot be emulated here is
skipped with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .machines import ROOT, Guest, Unavailable, guests

SHARDS = 4
SECONDS = 900  # for one process


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--keep", type=Path, help="where the compiled programs stay")
    keep = parser.parse_args().keep
    found = guests()
    for reason in found:
        if isinstance(reason, Unavailable):
            print(f"SKIPPED on {reason}")
    ready = [guest for guest in found if isinstance(guest, Guest)]
    if not ready:
        return 0
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = keep or Path(temporary)
        began = time.monotonic()
        levels = sorted({guest.level for guest in ready} | {guest.above for guest in ready})
        own = sorted({guest.level for guest in ready})
        jobs = [("models", folder, *levels), *(("cases", folder, level) for level in own)]
        list(pool.map(_compile, jobs))
        print(f"compiled for {', '.join(levels)} in {time.monotonic() - began:.0f} s", flush=True)
        return (
            sum([_report(guest, pool.map(_ask, _questions(guest, folder))) for guest in ready]) > 0
        )


def _compile(job: Iterable[Any]) -> None:
    command = [sys.executable, "-m", "girih.tests.emulated.programs", *map(str, job)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")


def _questions(guest: Guest, folder: Path) -> list[tuple[Guest, str, Path, int, int]]:
    """(guest, task, folder, shard, shards) of every process that is to run."""
    own, above = folder / guest.level, folder / guest.above
    runs = [(guest, "run", own, shard, SHARDS) for shard in range(SHARDS)]
    return [*runs, *((guest, task, above, 0, 1) for task in ("compile", "refuse", "recompile"))]


def _ask(question: tuple[Guest, str, Path, int, int]) -> tuple[str, dict[str, str], float]:
    """(task, its verdicts by name, seconds)."""
    guest, task, *rest = question
    path = (*guest.path, *(() if task in ("run", "refuse") else guest.compiler))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    command = [*guest.command, "-m", "girih.tests.emulated.guest", task, *map(str, rest)]
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS
    )
    seconds = time.monotonic() - began
    if done.returncode:
        return task, {"the process": f"status {done.returncode}: {done.stderr[-2000:]}"}, seconds
    return task, json.loads(done.stdout), seconds


def _report(guest: Guest, answers: Iterable[tuple[str, dict[str, str], float]]) -> int:
    """Prints what a guest found; how much of it is wrong."""
    tasks: dict[str, dict[str, str]] = {}
    total = 0.0
    for task, verdicts, seconds in answers:
        tasks.setdefault(task, {}).update(verdicts)
        total += seconds
    wrong = 0
    for task, verdicts in tasks.items():
        failed = {name: said for name, said in verdicts.items() if said != "pass"}
        wrong += len(failed) + (not verdicts)
        print(f"{guest.name}: {task}: {len(verdicts) - len(failed)} of {len(verdicts)} right")
        for name, said in failed.items():
            print(f"  {name}: {said}")
    print(f"{guest.name}: {total:.0f} s of emulation", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
