"""Which cores this process may use: its affinity, and the quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..distributed.launch import launched_here

_UNLIMITED = 1 << 20
_SYSTEM = Path("/")


def default_threads() -> int:
    """The physical cores that this process may use, by affinity and quota, shared with those
    that a launcher has started beside it on this machine; at least 1."""
    beside = launched_here()
    allowed = allowed_cpus()
    if not allowed:
        return max(1, (os.cpu_count() or 1) // beside)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), quota()) // beside)


def allowed_cpus() -> list[int]:
    """The logical CPUs that this thread may run on, in order; empty where nobody tells."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def worker_cpus(count: int, allowed: Iterable[int]) -> list[int]:
    """For each of `count` workers a logical CPU of its own: one of each physical core first. The
    first is the caller's. Empty if there are not as many."""
    first: dict[str, int] = {}
    second = []
    for cpu in allowed:
        core = _siblings(cpu)
        if core in first:
            second.append(cpu)
        else:
            first[core] = cpu
    cpus = [*first.values(), *second]
    return cpus[:count] if len(cpus) >= count else []


def _siblings(cpu: int) -> str:
    """Names the physical core of a logical CPU."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return topology.read_text().strip()
    except OSError:
        return str(cpu)


def quota(root: Path = _SYSTEM) -> int:
    """Whole CPUs granted by the control groups, rounded up; a large number without a limit.

    `root` is where /proc and /sys are. Reads version 2 (cpu.max) and version 1 (cpu.cfs_*_us); a
    group's limit holds for all groups below it. Inside a container the paths that the process sees
    may not exist there: then the group that the container calls its root is looked at.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return _UNLIMITED
    found = [_UNLIMITED]
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            for folder in _upwards(root / "sys/fs/cgroup", group):
                found += _granted(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for mounted in (controllers, "cpu"):
                for folder in _upwards(root / "sys/fs/cgroup" / mounted, group):
                    found += _granted(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
    return min(found)


def _upwards(top: Path, group: str) -> Iterator[Path]:
    """A group's folder and those above it, up to the hierarchy's top."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:count])


def _granted(*files: Path) -> list[int]:
    """CPUs of a "limit period" pair in one file or two; empty without a limit."""
    try:
        limit, period = " ".join(file.read_text() for file in files).split()
        if limit == "max" or int(limit) <= 0 or int(period) <= 0:
            return []
        return [-(-int(limit) // int(period))]
    except (OSError, ValueError):
        return []
