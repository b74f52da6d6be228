"""Compiled programs on emulated CPUs: an aarch64, and x86-64 without AVX and without AVX-512.

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
from typing import Any, NamedTuple

from girih.backends.cpu.codegen import host_target, level_target

from .machines import ROOT, Guest, Unavailable, guests
from .programs import SEVERAL

HOST = host_target()
SHARDS = 4
SECONDS = 900  # for one process


class Question(NamedTuple):
    """A process of a guest: `task` of guest.py on a folder."""

    guest: Guest
    task: str
    folder: Path
    shard: int = 0
    shards: int = 1


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
        own = sorted({guest.level for guest in ready})
        levels = sorted({*own, *(guest.above for guest in ready)})
        jobs = [("models", folder, *levels), *(("cases", folder, level) for level in own)]
        list(pool.map(_compile, jobs))
        print(f"compiled for {', '.join(levels)} in {time.monotonic() - began:.0f} s", flush=True)
        questions = [_questions(guest, folder) for guest in ready]
        for level in [level for level in SEVERAL.split() if level_target(level).runs_on(HOST)][-1:]:
            here = Guest("this machine", level, "", (sys.executable,))
            questions.append([Question(here, "several", folder / SEVERAL)])
        answers = [pool.map(_ask, row) for row in questions]
        return sum(map(_report, questions, answers)) > 0


def _compile(job: Iterable[Any]) -> None:
    command = [sys.executable, "-m", "girih.tests.emulated.programs", *map(str, job)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")


def _questions(guest: Guest, folder: Path) -> list[Question]:
    """What one CPU is asked."""
    own, above, several = (folder / name for name in (guest.level, guest.above, SEVERAL))
    found = [Question(guest, "run", own, shard, SHARDS) for shard in range(SHARDS)]
    found.append(Question(guest, "compile", own))
    unfit = [above]
    if guest.level in SEVERAL.split():
        found.append(Question(guest, "several", several))
    else:
        unfit.append(several)
    return found + [Question(guest, t, at) for t in ("refuse", "recompile") for at in unfit]


def _ask(question: Question) -> tuple[str, dict[str, str], float]:
    """(task, its verdicts by name, seconds)."""
    guest, task, folder, *shard = question
    path = (*guest.path, *(guest.compiler if "compile" in task else ()))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **dict(guest.variables)}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    command = [*guest.command, "-m", "girih.tests.emulated.guest", task]
    command += [str(folder), guest.level, *map(str, shard)]
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS
    )
    seconds = time.monotonic() - began
    if done.returncode:
        return task, {"the process": f"status {done.returncode}: {done.stderr[-2000:]}"}, seconds
    return task, json.loads(done.stdout), seconds


def _report(asked: list[Question], answers: Iterable[tuple[str, dict[str, str], float]]) -> int:
    """Prints what a guest found; how much of it is wrong."""
    guest = asked[0].guest
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
