"""How engines are timed beside each other in one process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Of a heap that keeps what is freed (glibc): results get memory that was touched before, or each
# engine would pay for fresh pages whenever another one's allocations moved the heap's end.
HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
# Seconds of unmeasured calls, in which the threads of the engine before go to sleep. (A pause would
# let the cores sleep too, and the first calls after one are slow for every engine.)
WARM = 0.06


def keep_heap() -> None:
    """Start this process again with a heap that is never given back, if it has none."""
    if any(os.environ.get(name) != value for name, value in HEAP.items()):
        os.environ.update(HEAP)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def in_turns(
    calls: Mapping[str, Callable[[], Any]], turns: int, times: int
) -> dict[str, list[float]]:
    """Seconds of every measured call. In a turn each engine is warmed, then measured."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            warm(call)
            taken[name] += [timed(call) for _ in range(times)]
    return taken


def warm(call: Callable[[], Any]) -> None:
    """Unmeasured calls, in which the threads of the engine before go to sleep."""
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        call()


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call; its results are given back before the clock is read again."""
    started = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - started
    del result
    return seconds


def usual_seconds(
    calls: Mapping[str, Callable[[], Any]], seconds: float, turns: int = 3
) -> tuple[dict[str, float], int]:
    """The median time of each engine's call, and of how many: `seconds` of calls per engine, in
    turns, each after as many unmeasured ones as let the threads of the one before go to sleep."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            warm(call)
            end, count = time.perf_counter() + seconds / turns, 0
            while count < 3 or time.perf_counter() < end:
                taken[name].append(timed(call))
                count += 1
    usual = {name: statistics.median(values) for name, values in taken.items()}
    return usual, min(map(len, taken.values()))


def in_children(script: str, threads: Sequence[int]) -> list[dict[str, Any]]:
    """The rows that `script` finds when it is run with `--child N --into FILE` behind its own
    arguments, once for each number of threads: libraries read their environment but once."""
    rows: list[dict[str, Any]] = []
    for count in threads:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            words = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
            environment = os.environ | HEAP | {word: str(count) for word in words}
            arguments = [*sys.argv[1:], "--child", str(count), "--into", file.name]
            subprocess.run([sys.executable, script, *arguments], check=True, env=environment)
            rows += json.loads(Path(file.name).read_text())
    return rows


def merged(rows: list[dict[str, Any]], file: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The new rows, and those of the results file that were not measured now."""
    if not file.exists():
        return rows
    new = {tuple(row[key] for key in keys) for row in rows}
    before = json.loads(file.read_text())["rows"]
    return rows + [row for row in before if tuple(row[key] for key in keys) not in new]
