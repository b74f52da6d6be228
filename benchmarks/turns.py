"""How engines are timed beside each other in one process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
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
            warm = time.perf_counter() + WARM
            while time.perf_counter() < warm:
                call()
            for _ in range(times):
                started = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - started)
    return taken
