"""The threads that compile kernels, for all compilations of the process."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

MAXIMUM_JOBS = 16  # compilations at once


@functools.cache
def pool() -> ThreadPoolExecutor:
    """As many threads as this process may use cores."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return ThreadPoolExecutor(min(cores, MAXIMUM_JOBS), thread_name_prefix="girih-compile")


if hasattr(os, "register_at_fork"):  # threads do not live on in a child
    os.register_at_fork(after_in_child=pool.cache_clear)
