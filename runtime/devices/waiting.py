"""How long a GPU's exchanges may take, once its stream has come to them.

Nothing waits between kernels and exchanges. Where the host waits for a stream in any case, this
knows which exchanges are on it: each has a moment when it is reached and one when it is done, and
the time between is what the other processes may take. Kernels have no deadline.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...hlo.errors import UserError
from ..distributed.communicator import Communicator
from ..distributed.world import TIMEOUT
from .driver import Driver

_PATIENCE = 2e-3  # seconds without a pause
_PAUSE, _LONGEST = 20e-6, 1e-3  # seconds
_give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))


class _Posted(NamedTuple):
    """An exchange on a stream: `what` names the operation and its line."""

    what: str
    reached: Any
    done: Any


class Waiting:
    """The exchanges of one stream that may be under way, each of which may take `seconds`."""

    def __init__(self, driver: Driver, communicator: Communicator, seconds: float) -> None:
        self.driver, self.communicator, self.seconds = driver, communicator, seconds
        self._posted: deque[_Posted] = deque()

    @contextmanager
    def posted(self, what: str, stream: Any) -> Iterator[None]:
        """Around what posts an exchange."""
        driver = self.driver
        while self._posted and driver.has_come(self._posted[0].done):
            self._forget()
        reached = driver.record(stream)
        try:
            yield
        except BaseException:
            driver.destroy_event(reached)
            raise
        self._posted.append(_Posted(what, reached, driver.record(stream)))

    def synchronize(self, stream: Any) -> None:
        """Return when the stream's work is done; UserError, after all exchanges are ended, where
        one has failed or has taken too long."""
        while self._posted:
            self._finish()
        self.driver.synchronize(stream)

    def settle(self, event: Any) -> None:
        """Return when the event has come, an event of this stream; errors likewise."""
        while self._posted and not self.driver.has_come(event):
            self._finish()
        self.driver.settle(event)

    def _finish(self) -> None:
        """Wait for the first exchange."""
        driver, first = self.driver, self._posted[0]
        if not driver.has_come(first.done):
            driver.settle(first.reached)
            begin, pause = time.monotonic(), _PAUSE
            while not driver.has_come(first.done):
                self.communicator.check(first.what)
                now = time.monotonic()
                if now > begin + self.seconds:
                    self.communicator.abort()
                    raise UserError(
                        f"{first.what}: this process waited {self.seconds:g} s for the others; "
                        "look at what they wrote, or wait longer: --comm-timeout SECONDS, "
                        f"girih.load(..., comm_timeout=) or {TIMEOUT}"
                    )
                if now < begin + _PATIENCE:
                    _give_way()
                    continue
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        self._forget()

    def _forget(self) -> None:
        first = self._posted.popleft()
        self.driver.destroy_event(first.reached)
        self.driver.destroy_event(first.done)
