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
SHARE = 1 << 20  # bytes of weights that a thread computes at a time

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
        jobs = [pool.submit(_compute, some) for some in _shares(weights)]
        yield
        for job in jobs:
            job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _shares(weights: Iterable[Weight]) -> Iterator[list[Weight]]:
    """Each weight once, small ones together. The largest come first: nothing else is left to be
    done while the last one is computed."""
    some, size = list[Weight](), 0
    for weight in sorted(dict.fromkeys(weights), key=lambda weight: -weight.type.bytes):
        some.append(weight)
        size += weight.type.bytes
        if size >= SHARE:
            yield some
            some, size = [], 0
    yield some


def _compute(weights: Iterable[Weight]) -> None:
    for weight in weights:
        _ = weight.array
