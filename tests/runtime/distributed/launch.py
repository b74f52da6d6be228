"""Starts Python scripts as the processes of an MPI launcher.

GIRIH_TEST_MPIEXEC: the launcher, with its options; by default `mpiexec` beside this Python, or the
first on the path. GIRIH_TEST_MPI_PYTHON: the Python whose mpi4py finds the launcher's library.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("GIRIH_TEST_MPI_PYTHON", sys.executable)
TIMEOUT = 120  # seconds that a whole job may take on a busy machine


@functools.cache
def launcher() -> tuple[str, ...]:
    """The command before `-n COUNT`; empty where there is no launcher."""
    if stated := os.environ.get("GIRIH_TEST_MPIEXEC"):
        return tuple(shlex.split(stated))
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        return ()
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    is_open_mpi = "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version
    return (found, "--oversubscribe") if is_open_mpi else (found,)


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not launcher(),
    reason="needs mpi4py and mpiexec: pip install mpi4py mpich",
)


def command(count: int, *arguments: Any) -> list[str]:
    """What starts so many Python processes with these arguments."""
    return [*launcher(), "-n", str(count), PYTHON, *map(str, arguments)]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """One worker per process: they share this machine's cores."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **extra}


def launched(
    count: int, *arguments: Any, timeout: float = TIMEOUT, **extra: str
) -> subprocess.CompletedProcess[str]:
    """The job after its end; subprocess.TimeoutExpired where it does not end. extra: variables of
    its environment."""
    return subprocess.run(
        command(count, *arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(extra),
        stdin=subprocess.DEVNULL,
    )
