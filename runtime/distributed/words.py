"""What processes tell each other of themselves: that they have ended, and, to those that have, that
they still run. Who has ended waits for the others only while these say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

Word = tuple["MPI.Request", np.ndarray[Any, Any]]  # under way, and its one byte

_TAG = 1
_ENDED, _RUNS = 0, 1
_BEAT = 1.0  # seconds from one word to the next
_GRACE = 0.5  # seconds that messages of a process that has ended may be under way


class Words:
    """Those between this process and the others, which all begin this together.

    lock: of who communicates. threads: whether MPI may be called from several at once; else nobody
    says that this process runs, and `silent` does not expect it of others, which are started alike.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        others: Iterable[int],
        lock: AbstractContextManager[Any],
        threads: bool,
    ) -> None:
        self._communicator, self._lock = communicator, lock
        self._begin = time.monotonic()  # of the wait for words
        self._heard: dict[int, float] = {}  # process -> when its last word was seen
        self._gone: dict[int, float] = {}  # processes that have ended -> when that was seen
        self._coming: dict[int, Word] = {}  # of those that have not
        self._going: list[Word] = []
        for peer in others:
            self._listen(peer)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        if threads:
            self._thread = threading.Thread(target=self._say_so, name="girih-mpi", daemon=True)
            self._thread.start()

    def has_ended(self, peer: int) -> bool:
        """Whether a process has ended, and nothing of it can be under way."""
        self._look(peer)
        return peer in self._gone and time.monotonic() > self._gone[peer] + _GRACE

    def end(self) -> None:
        """Say that this process has ended."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        self._begin = time.monotonic()
        for peer in (*self._coming, *self._gone):
            self._say(peer, _ENDED)

    @property
    def are_over(self) -> bool:
        """Whether all have ended, and know it of each other."""
        for peer in tuple(self._coming):
            self._look(peer)
        self._going = [word for word in self._going if not word[0].Test()]
        return not self._coming and not self._going

    def silent(self, seconds: float) -> list[int]:
        """Who has not said for so long that it runs, since this process has ended."""
        if self._thread is None:
            return []
        since = time.monotonic() - seconds - 2 * _BEAT  # words come and are sent that late
        return [
            peer for peer in self._coming if max(self._begin, self._heard.get(peer, 0.0)) < since
        ]

    def _look(self, peer: int) -> None:
        if peer not in self._coming:
            return
        request, word = self._coming[peer]
        if not request.Test():
            return
        self._heard[peer] = time.monotonic()
        if word[0] == _ENDED:
            self._gone[peer] = self._heard[peer]
            del self._coming[peer]
        else:
            self._listen(peer)

    def _listen(self, peer: int) -> None:
        word = np.empty(1, np.uint8)
        self._coming[peer] = self._communicator.Irecv(word, peer, _TAG), word

    def _say(self, peer: int, what: int) -> None:
        word = np.full(1, what, np.uint8)
        self._going.append((self._communicator.Isend(word, peer, _TAG), word))

    def _say_so(self) -> None:
        """Tell who has ended that this process runs, while it does."""
        while not self._ending.wait(_BEAT):
            with self._lock:
                for peer in tuple(self._coming):
                    self._look(peer)
                self._going = [word for word in self._going if not word[0].Test()]
                if not self._going:
                    for peer in self._gone:
                        self._say(peer, _RUNS)
