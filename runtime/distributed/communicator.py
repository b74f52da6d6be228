"""What a program of several GPUs asks of whoever carries its bytes: NCCL (nccl.py), or MPI between
simulated GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from .world import World

if TYPE_CHECKING:
    from ..devices.driver import Simulator
    from .library import Collective

Array = np.ndarray[Any, Any]


class PeerBuffer(NamedTuple):
    """Device memory that goes to another process, or comes from it."""

    peer: int
    address: int
    nbytes: int


class Communicator(Protocol):
    """All processes of a program, each with one GPU. What is sent and received stands on a stream:
    calls return when it is posted there. `what` names the operation and its line, for the UserError
    where it is not posted in so many seconds, or has failed."""

    def another(self, seconds: float) -> Communicator:
        """One for the messages of another program, which are not taken for those of this one where
        processes call programs in different orders; all ask for it in one order."""
        ...

    def prepare(self, groups: Sequence[Sequence[int]], seconds: float) -> None:
        """Collectives of these groups are to come; all processes call it in one order."""
        ...

    def exchange(
        self,
        outgoing: Sequence[PeerBuffer],
        incoming: Sequence[PeerBuffer],
        stream: Any,
        what: str,
        seconds: float,
    ) -> None:
        """All of them at once; at most one of each for another process."""
        ...

    def collect(
        self, one: Collective, operand: int, result: int, stream: Any, seconds: float
    ) -> None:
        """A collective on memory at these addresses."""
        ...

    def check(self, what: str) -> None:
        """UserError where what was posted has failed since."""
        ...

    def abort(self) -> None:
        """End all that is under way; nothing can be posted any more."""
        ...


class SimulatedCommunicator:
    """Simulated GPUs, whose memory is the host's: MPI carries the bytes, and all is done when a
    call returns, as in their streams."""

    def __init__(self, world: World, driver: Simulator, tag: int = 0) -> None:
        self.world, self.driver, self.tag = world, driver, tag

    def another(self, seconds: float) -> SimulatedCommunicator:
        return SimulatedCommunicator(self.world, self.driver, self.world.next_tag())

    def prepare(self, groups: Sequence[Sequence[int]], seconds: float) -> None:
        self.world.communicator_of(groups)

    def exchange(
        self,
        outgoing: Sequence[PeerBuffer],
        incoming: Sequence[PeerBuffer],
        stream: Any,
        what: str,
        seconds: float,
    ) -> None:
        span = self.driver.span
        sent = [(part.peer, span(part.address, part.nbytes)) for part in outgoing]
        got = [(part.peer, span(part.address, part.nbytes)) for part in incoming]
        with self.world.lock:
            self.world.exchange(sent, got, what, seconds, self.tag)

    def collect(
        self, one: Collective, operand: int, result: int, stream: Any, seconds: float
    ) -> None:
        width = one.dtype.itemsize
        given = self.driver.span(operand, one.given * width).view(one.dtype)
        made = self.driver.span(result, one.made * width).view(one.dtype)
        one.run(self.world, given, made, seconds)

    def check(self, what: str) -> None:
        """What fails is told at once."""

    def abort(self) -> None:
        """Nothing is under way."""
