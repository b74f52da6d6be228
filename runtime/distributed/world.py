"""The processes that run a program together, over MPI (mpi4py); store.py has those without it.

MPI is imported, and so started, when a program of several processes is first loaded or called. An
exception that nobody catches ends all processes, not only its own: the others would wait for it. A
process that ends says so to the others, so that one that still waits for it fails at once. Every
wait has a deadline; that for the end of the others has one from each word that they still run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hlo.errors import UserError
from .words import Words

if TYPE_CHECKING:
    from mpi4py import MPI

Array = np.ndarray[Any, Any]
Message = tuple[int, Array]  # the other process, C-contiguous bytes

DEFAULT_TIMEOUT = 300.0  # seconds
TIMEOUT = "GIRIH_COMM_TIMEOUT"
_REMEDY = (
    "; look at what they wrote, and whether all make the same calls in the same order, or wait "
    "longer: --comm-timeout SECONDS, "
    f"girih.load(..., comm_timeout=) or {TIMEOUT}"
)
_PATIENCE, _SLOWEST = 2e-3, 1e8  # seconds without a pause, and bytes a second
_PAUSE, _LONGEST = 20e-6, 1e-3  # seconds
# Processes that share a core wait for each other's turn on it.
_give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
_LONGEST_AT_END = 20e-3  # seconds: the others may have much to do before they end
_FORWARDED = 0.5  # seconds in which a launcher reads what was written: it drops the rest at the end
_LARGEST = 1 << 30  # bytes of one message: MPI counts in 32 bits
_DATA, _FIRST, _MEETING = 0, 2, 29431  # tags; the last on the communicator of all programs
_TAGS = 32767 - _FIRST  # for messages of programs: every library has so many


class _Waiting(NamedTuple):
    """A message under way. comes: from the other process, else to it."""

    peer: int
    request: MPI.Request
    bytes: int
    comes: bool


class Processes(ABC):
    """All processes of the launcher. `lock`: one call at a time communicates. `seconds`: what a
    wait may take where nothing else is said; as for the program that was loaded last. Arrays and
    bytes are the host's."""

    def __init__(self, rank: int, size: int, seconds: float) -> None:
        self.rank, self.size, self.seconds = rank, size, seconds
        self.lock = threading.RLock()
        self.communicators: dict[Any, Any] = {}  # by the GPU that they are for

    @property
    def others(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    @abstractmethod
    def exchange(
        self,
        outgoing: Sequence[Message],
        incoming: Sequence[Message],
        what: str,
        seconds: float | None = None,
        tag: int = _DATA,
    ) -> None:
        """Send and receive, at most one message for each other process. `what`: the operation and
        its line, for the UserError that says who did not answer in so many seconds, or sent
        another number of bytes. `tag`: only messages with the same one are received."""

    @abstractmethod
    def collect(self, own: bytes, what: str, seconds: float) -> list[bytes]:
        """The bytes of all processes, equally many, by their number; errors as `exchange`."""

    @abstractmethod
    def next_tag(self) -> int:
        """Of a program's messages, so that those of another are not taken for them where processes
        call programs in different orders. All processes ask for it in the same order."""

    @abstractmethod
    def meet(self) -> None:
        """Wait for all other processes."""

    @abstractmethod
    def leave(self) -> None:
        """At the end of this process, which others may still wait for."""

    @abstractmethod
    def abort(self) -> None:
        """End this process, and with it all of the launcher."""

    def check_equal(self, facts: Mapping[str, bytes], what: str, seconds: float) -> None:
        """UserError unless all processes call this with the same facts, of the same names."""
        digests = [hashlib.sha256(fact).digest() for fact in facts.values()]
        found = self.collect(b"".join(digests), what, seconds)
        for number, name in enumerate(facts):
            part = slice(32 * number, 32 * (number + 1))
            differ = [peer for peer in self.others if found[peer][part] != digests[number]]
            if differ:
                raise UserError(
                    f"process {self.rank} has another {name} than {processes(differ)}; load the "
                    "same bundle, with the same target, on all of them"
                )


class World(Processes):
    """The processes that MPI's launcher has started."""

    def __init__(self, mpi: Any, seconds: float) -> None:
        everyone = mpi.COMM_WORLD
        super().__init__(everyone.Get_rank(), everyone.Get_size(), seconds)
        self.mpi, self.library = mpi, mpi.Get_library_version().partition("\n")[0]
        self.communicator: MPI.Intracomm = everyone
        self._status = mpi.Status()
        self._communicators: dict[tuple[tuple[int, ...], ...], MPI.Comm] = {}
        self._words: Words | None = None
        self._programs = 0
        self._abandoned: list[_Waiting] = []  # MPI may still write to what they refer to

    def meet(self) -> None:
        """Wait for all other processes, and leave the messages of other libraries alone from then
        on."""
        sent, found = np.zeros(1, np.uint8), np.zeros((self.size, 1), np.uint8)
        incoming = [(peer, found[peer]) for peer in self.others]
        outgoing = [(peer, sent) for peer in self.others]
        what = "the start of the processes"
        self._wait(self._requests(outgoing, incoming, _MEETING), what, self.seconds)
        self.communicator, request = self.communicator.Idup()
        self._wait(
            [_Waiting(peer, request, 0, False) for peer in self.others[:1]], what, self.seconds
        )
        several = self.mpi.Query_thread() == self.mpi.THREAD_MULTIPLE
        self._words = Words(self.communicator, self.others, self.lock, several)

    def exchange(
        self,
        outgoing: Sequence[Message],
        incoming: Sequence[Message],
        what: str,
        seconds: float | None = None,
        tag: int = _DATA,
    ) -> None:
        limit = self.seconds if seconds is None else seconds
        self._wait(self._requests(outgoing, incoming, tag), what, limit)

    def next_tag(self) -> int:
        self._programs += 1
        return _FIRST + self._programs % _TAGS

    def communicator_of(self, groups: Sequence[Sequence[int]]) -> MPI.Comm:
        """Of this process's one of the groups, which all processes ask for together."""
        key = tuple(map(tuple, groups))
        if key not in self._communicators:
            own = next(place for place, group in enumerate(key) if self.rank in group)
            order = key[own].index(self.rank)
            self._communicators[key] = self.communicator.Split(own, order)
        return self._communicators[key]

    def finish(
        self, request: MPI.Request, peers: Iterable[int], size: int, what: str, seconds: float
    ) -> None:
        """Wait, as `exchange` does, for a collective of these other processes, of so many bytes."""
        self._wait([_Waiting(peer, request, size, False) for peer in peers], what, seconds)

    def collect(self, own: bytes, what: str, seconds: float) -> list[bytes]:
        sent = np.frombuffer(own, np.uint8)
        found = np.empty((self.size, sent.size), np.uint8)
        found[self.rank] = sent
        outgoing = [(peer, sent) for peer in self.others]
        with self.lock:
            self.exchange(outgoing, [(peer, found[peer]) for peer in self.others], what, seconds)
        return [row.tobytes() for row in found]

    def abort(self) -> None:
        abort_all(self.mpi)

    def leave(self) -> None:
        """Tell the others that this process ends, and wait until they do: MPI ends for all at once.
        That may take as long as they say that they run; one that says nothing ends all."""
        if self._words is None or self.mpi.Is_finalized():
            return
        self._words.end()
        if self._abandoned:
            abort_all(self.mpi)
        pause = _PAUSE
        while not self._words.are_over:
            if silent := self._words.silent(self.seconds):
                print(
                    f"the end of the processes: process {self.rank} waited {self.seconds:g} s for "
                    f"a word from {processes(silent)}{_REMEDY}",
                    file=sys.stderr,
                )
                abort_all(self.mpi)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_AT_END)

    def _requests(
        self, outgoing: Sequence[Message], incoming: Sequence[Message], tag: int
    ) -> list[_Waiting]:
        found: list[_Waiting] = []
        for start, messages, comes in (
            (self.communicator.Irecv, incoming, True),
            (self.communicator.Isend, outgoing, False),
        ):
            for peer, array in messages:
                flat = array.reshape(-1).view(np.uint8)
                for begin in range(0, flat.size, _LARGEST):
                    part = flat[begin : begin + _LARGEST]
                    request = start(part, peer, tag)
                    found.append(_Waiting(peer, request, part.size, comes))
        return found

    def _wait(self, requests: list[_Waiting], what: str, seconds: float) -> None:
        if self._abandoned:
            raise UserError(
                f"{what}: an earlier exchange failed, so that this process cannot go on"
            )
        try:
            self._poll(requests, what, seconds)
        except UserError:
            self._abandoned = requests
            raise

    def _poll(self, requests: Sequence[_Waiting], what: str, seconds: float) -> None:
        requests = [one for one in requests if not self._done(one, what)]
        begin, pause = time.monotonic(), _PAUSE
        deadline = begin + seconds
        # MPI moves bytes while it is asked: a pause would hold them up.
        moving = begin + _PATIENCE + sum(one.bytes for one in requests) / _SLOWEST
        while requests := [one for one in requests if not self._done(one, what)]:
            now = time.monotonic()
            if now < begin + _PATIENCE:
                _give_way()
                continue
            missing = sorted({entry.peer for entry in requests})
            if ended := [peer for peer in missing if self._has_ended(peer)]:
                raise UserError(
                    f"{what}: process {self.rank} waits for {processes(ended)}, which "
                    f"{'have' if len(ended) > 1 else 'has'} ended; all processes have to call a "
                    "program equally often"
                )
            if now > deadline:
                raise UserError(
                    f"{what}: process {self.rank} waited {seconds:g} s for "
                    f"{processes(missing)}{_REMEDY}"
                )
            if now < moving:
                _give_way()
                continue
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _done(self, entry: _Waiting, what: str) -> bool:
        """Whether a message has come, or gone; UserError where it has another size."""
        try:
            if not entry.request.Test(self._status):
                return False
        except self.mpi.Exception as error:
            raise UserError(f"{what}: with {processes([entry.peer])}: {error}") from error
        if entry.comes and (found := self._status.Get_count(self.mpi.BYTE)) != entry.bytes:
            raise UserError(
                f"{what}: process {self.rank} got {found} bytes from process {entry.peer}, and "
                f"needs {entry.bytes}; load the same bundle on all processes"
            )
        return True

    def _has_ended(self, peer: int) -> bool:
        return self._words is not None and self._words.has_ended(peer)


def abort_all(mpi: Any) -> None:
    """End all processes of the launcher."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(_FORWARDED)
    mpi.COMM_WORLD.Abort(1)


def mpi_world(world: Processes, what: str) -> World:
    """The processes, if MPI has started them; UserError where it has not, of `what` needs it."""
    if not isinstance(world, World):
        raise UserError(
            f"{what} exchanges over MPI, and torchrun or Slurm has started the processes; start "
            f"them as: mpiexec -n {world.size} ..."
        )
    return world


def comm_timeout(seconds: float | None) -> float:
    """Seconds that one wait may take: as given, else as the environment says; UserError for what is
    no such number."""
    text = os.environ.get(TIMEOUT, "")
    place, value = "comm_timeout", seconds
    if seconds is None:
        place, value = TIMEOUT, text or DEFAULT_TIMEOUT
    try:
        found = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise UserError(f"{place} must be a number of seconds above 0, not {value!r}")
    return found


def processes(numbers: Iterable[int]) -> str:
    """How messages name them: "processes 1, 3"."""
    found = [str(number) for number in numbers]
    return f"process{'es' if len(found) > 1 else ''} {', '.join(found)}"
