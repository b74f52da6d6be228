"""What a program of several GPUs asks of whoever carries its bytes: NCCL (nccl.py), or MPI between
simulated GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...hlo.errors import UserError
from .world import Message, Processes, World, mpi_world, processes

if TYPE_CHECKING:
    from ..devices.driver import Driver, Simulator
    from .library import Collective

Array = np.ndarray[Any, Any]


class Part(NamedTuple):
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
        outgoing: Sequence[Part],
        incoming: Sequence[Part],
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


def communicator_of(world: Processes, driver: Driver, seconds: float) -> Communicator:
    """The processes with their GPUs, for a new program; all ask for it in one order. UserError
    where two have one GPU, or not all come in so many seconds."""
    found = world.communicators.get(driver)
    if found is None:
        if driver.simulated:
            on_mpi = mpi_world(world, "a simulated GPU")
            found = SimulatedCommunicator(on_mpi, driver)  # pyright: ignore[reportArgumentType]
        else:
            require_own_gpus(world, driver, seconds)
            from .nccl import Nccl

            found = Nccl.started(world, driver, seconds)
            if not isinstance(world, World):
                world.carry_by(driver, found)  # pyright: ignore[reportAttributeAccessIssue]
        world.communicators[driver] = found
    return found.another(seconds)


def require_own_gpus(world: Processes, driver: Driver, seconds: float) -> None:
    """UserError where this process's GPU is another one's as well, which NCCL would wait on."""
    found = world.collect(driver.identity, "the comparison of GPUs before the first step", seconds)
    same = [rank for rank, identity in enumerate(found) if identity == driver.identity]
    if len(same) > 1:
        raise UserError(
            f"{processes(same)} have one GPU, {driver.name}: each needs one of its own; start as "
            "many on a machine as it has GPUs, and let CUDA_VISIBLE_DEVICES show each process all "
            "of them or its own"
        )


def exchange_by(
    driver: Driver,
    communicator: Communicator,
    outgoing: Sequence[Message],
    incoming: Sequence[Message],
    what: str,
    seconds: float,
) -> None:
    """Messages of the host through the memory of a GPU."""
    from ..devices.waiting import Waiting

    with driver:
        stream = driver.create_stream()
        memory: list[int] = []

        def parts(messages: Sequence[Message]) -> list[Part]:
            found = [
                Part(peer, driver.allocate(array.nbytes, stream), array.nbytes)
                for peer, array in messages
                if array.nbytes
            ]
            memory.extend(part.address for part in found)
            return found

        try:
            sent, got = parts(outgoing), parts(incoming)
            arrays = [_flat(array) for _, array in outgoing if array.nbytes]
            for part, array in zip(sent, arrays, strict=True):
                driver.upload(part.address, array, stream)
            waiting = Waiting(driver, communicator, seconds)
            with waiting.posted(what, stream):
                communicator.exchange(sent, got, stream, what, seconds)
            arrays = [_flat(array) for _, array in incoming if array.nbytes]
            waiting.synchronize(stream)
            for part, array in zip(got, arrays, strict=True):
                driver.download(array, part.address, stream)
            driver.synchronize(stream)
        finally:
            for address in memory:
                driver.free(address, stream)
            driver.destroy_stream(stream)


def _flat(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


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
        outgoing: Sequence[Part],
        incoming: Sequence[Part],
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
