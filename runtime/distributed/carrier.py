"""Who carries the bytes of the processes that run together, and messages of the host by them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...hlo.errors import UserError
from ..devices.driver import Driver
from ..devices.waiting import Waiting
from .communicator import Communicator, PeerBuffer, SimulatedCommunicator
from .nccl import Nccl
from .world import Message, Processes, World, mpi_world, processes

Array = np.ndarray[Any, Any]


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
            found = Nccl.started(world, driver, seconds)
            if not isinstance(world, World):
                world.carry_by(functools.partial(exchange_by, driver, found))  # pyright: ignore[reportAttributeAccessIssue]
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
    with driver:
        stream = driver.create_stream()
        memory: list[int] = []

        def parts(messages: Sequence[Message]) -> list[PeerBuffer]:
            found = [
                PeerBuffer(peer, driver.allocate(array.nbytes, stream), array.nbytes)
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
