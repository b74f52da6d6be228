"""The process's worker threads, which all programs share.

A worker is parked for good inside a native call, spins for a while after its last work, and then
sleeps in the kernel. Workers of a forked child are made anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import threading
from typing import Any

import numpy as np

from .cores import allowed_cpus, worker_cpus
from .memory import Pages, libc

_LINE = 64
_LINES = 12  # of the pool, before the workers' mailboxes
_SYSTEM_WORD = 24  # of the pool: libc's function, futex number


class WorkerPool:
    """`size` workers with the caller, who is worker 0; `lock` is held by who uses them.

    image: mapped code, whose function at `entry` the workers run. pinned: each on a core of its
    own, where there are enough; the caller's thread stays as it is.
    """

    def __init__(self, image: Pages, entry: int, size: int, pinned: bool) -> None:
        self.lock = threading.Lock()
        self.size = size
        self._image = image  # the workers' code stays mapped as long as they live
        self._memory = Pages(_LINE * (_LINES + size))
        self.address = self._memory.address
        words = np.frombuffer(self._memory.memory, np.int64)
        words[_SYSTEM_WORD : _SYSTEM_WORD + 2] = _system_wait()
        serve = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(image.address + entry)
        cpus = worker_cpus(size, allowed_cpus()) if pinned else []
        for worker in range(1, size):
            threading.Thread(
                target=self._serve,
                args=(serve, worker, cpus[worker] if cpus else None),
                name=f"girih-worker-{worker}",
                daemon=True,
            ).start()

    def _serve(self, serve: Any, worker: int, cpu: int | None) -> None:
        if cpu is not None:
            with contextlib.suppress(OSError):  # the core was taken away in between
                os.sched_setaffinity(0, {cpu})  # of this thread alone
        serve(self.address, worker)


@functools.cache
def _system_wait() -> tuple[int, int]:
    """The address of libc's `syscall` and the futex number, or of `sched_yield` and 0."""
    numbers = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
    number = numbers.get(platform.machine(), 0) if platform.system() == "Linux" else 0
    function = libc().syscall if number else libc().sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0, number


# By plan format version, which fixes the workers' protocol, and whether they are pinned.
_pools: dict[tuple[str, bool], WorkerPool] = {}
_retired: list[WorkerPool] = []  # every pool ever made: its workers still read its memory
_lock = threading.Lock()


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def pool_of(version: str, pinned: bool, size: int, image: Pages, entry: int) -> WorkerPool:
    """The pool of at least `size` workers that serves such programs; made, or made anew and larger,
    at first need, with the worker code of `image`."""
    key = version, pinned
    pool = _pools.get(key)
    if pool is None or pool.size < size:
        with _lock:
            pool = _pools.get(key)
            if pool is None or pool.size < size:
                # The workers of a smaller pool stay asleep; nothing refers to them any more.
                pool = _pools[key] = WorkerPool(image, entry, size, pinned)
                _retired.append(pool)
    return pool
