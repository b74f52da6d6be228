"""What the compiler does beside its passes: weights on threads, garbage later."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..hlo.graph import Weight

MAXIMUM_THREADS = 8

_lock = threading.Lock()
_paused = 0  # compilations under way that keep the collector from running
_was_enabled = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Python's cyclic collector waits: operations and values refer to each other, none of them is
    garbage before a pass ends, and looking for it takes as long as the passes themselves."""
    global _paused, _was_enabled
    with _lock:
        if _paused == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _lock:
            _paused -= 1
            if _paused == 0 and _was_enabled:
                gc.enable()


@contextlib.contextmanager
def computed(weights: Iterable[Weight]) -> Iterator[None]:
    """The data of all these weights is there at the end; threads compute it meanwhile."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pool = ThreadPoolExecutor(min(count or 1, MAXIMUM_THREADS), "girih-weights")
    try:
        # The largest first: nothing else is left to be done while the last one is computed.
        order = sorted(weights, key=lambda weight: -weight.type.bytes)
        jobs = [pool.submit(lambda weight: weight.array, weight) for weight in order]
        yield
        for job in jobs:
            job.result()
    finally:
        pool.shutdown(cancel_futures=True)
