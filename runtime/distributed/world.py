"""The processes that run a program together, over MPI (mpi4py).

MPI is imported, and so started, when a program of several processes is first called. From then on
an exception that nobody catches ends all processes, not only its own: the others would wait for it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hlo.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI

Array = np.ndarray[Any, Any]
Message = tuple[int, Array]  # the other process, C-contiguous bytes

DEFAULT_TIMEOUT = 300.0  # seconds
TIMEOUT = "GIRIH_COMM_TIMEOUT"
_SPINS = 2000  # polls without a pause: a message between cores takes less
_PAUSE, _LONGEST = 20e-6, 1e-3  # seconds
_LARGEST = 1 << 30  # bytes of one message: MPI counts in 32 bits


class World:
    """All processes of the launcher. `lock`: one call at a time communicates."""

    def __init__(self, communicator: MPI.Intracomm, library: str) -> None:
        self.communicator, self.library = communicator, library
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self.timeout = _timeout()
        self.lock = threading.Lock()

    def exchange(self, outgoing: Sequence[Message], incoming: Sequence[Message], what: str) -> None:
        """Send and receive, at most one message for each other process. `what`: the operation and
        its line, for the UserError that says who did not answer in time."""
        requests: list[tuple[int, MPI.Request]] = []
        for start, messages in (
            (self.communicator.Irecv, incoming),
            (self.communicator.Isend, outgoing),
        ):
            for peer, array in messages:
                flat = array.reshape(-1).view(np.uint8)
                for begin in range(0, flat.size, _LARGEST):
                    requests.append((peer, start(flat[begin : begin + _LARGEST], peer)))
        self._wait(requests, what)

    def check_equal(self, digest: bytes, what: str) -> None:
        """UserError unless all processes call this with the same 32 bytes."""
        own = np.frombuffer(digest, np.uint8)
        others = [peer for peer in range(self.size) if peer != self.rank]
        found = np.empty((self.size, own.size), np.uint8)
        found[self.rank] = own
        self.exchange([(p, own) for p in others], [(p, found[p]) for p in others], what)
        differ = [peer for peer in others if bytes(found[peer]) != digest]
        if differ:
            raise UserError(
                f"process {self.rank} runs another program than {_processes(differ)}, or another "
                "plan of it; load the same bundle on all of them"
            )

    def abort(self) -> None:
        """End all processes of the launcher."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.communicator.Abort(1)

    def _wait(self, requests: list[tuple[int, MPI.Request]], what: str) -> None:
        deadline = time.monotonic() + self.timeout
        turns, pause = 0, _PAUSE
        while requests := [entry for entry in requests if not entry[1].Test()]:
            turns += 1
            if turns < _SPINS:
                continue
            if time.monotonic() > deadline:
                missing = sorted({peer for peer, _ in requests})
                raise UserError(
                    f"{what}: process {self.rank} waited {self.timeout:g} s for "
                    f"{_processes(missing)}; look at what they wrote, or wait longer: "
                    f"{TIMEOUT}=SECONDS"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)


@functools.cache
def the_world() -> World:
    """The launcher's processes; UserError without mpi4py or an MPI that it finds."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"a program of several processes needs MPI, and mpi4py cannot be used ({error}); "
            "pip install girih[mpi]"
        ) from error
    world = World(MPI.COMM_WORLD.Dup(), MPI.Get_library_version().partition("\n")[0])
    if world.size > 1:
        sys.excepthook = functools.partial(_end_all, world, sys.excepthook)
    return world


def end_all_processes() -> None:
    """Where this process has begun to run with others, end all of them: it failed."""
    if the_world.cache_info().currsize and the_world().size > 1:
        the_world().abort()


def joined_world(processes: int) -> World:
    """The launcher's processes, which are so many; UserError otherwise. From here on a failure of
    one ends all."""
    world = the_world()
    if world.size != processes:
        raise UserError(
            f"the program is for {processes} processes, and {world.size} "
            f"{'runs' if world.size == 1 else 'run'} it; start it as: mpiexec -n {processes} "
            "girih run FILE, or mpiexec -n "
            f"{processes} python SCRIPT"
        )
    return world


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _end_all(
    world: World,
    before: _Hook,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    before(kind, error, trace)
    print(f"process {world.rank} of {world.size} failed and ends all", file=sys.stderr)
    world.abort()


def _timeout() -> float:
    """Seconds that one wait may take."""
    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(f"{TIMEOUT} must be a number of seconds above 0, not {text!r}")
    return seconds


def _processes(numbers: Iterable[int]) -> str:
    found = [str(number) for number in numbers]
    return f"process{'es' if len(found) > 1 else ''} {', '.join(found)}"
