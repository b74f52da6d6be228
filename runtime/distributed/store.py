"""The processes that torchrun or Slurm has started, which find each other in torch's store.

Only such processes import torch, and of it the store alone. It carries what is compared before the
first step, and NCCL's unique id; arrays go over NCCL.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ...hlo.errors import UserError
from .world import TIMEOUT, Message, Processes, processes

_PAUSE = 2e-3  # seconds


class StoreWorld(Processes):
    """Processes with numbers from the environment; UserError where torch is not installed, or its
    store does not answer in so many seconds."""

    def __init__(self, rank: int, size: int, seconds: float) -> None:
        super().__init__(rank, size, seconds)
        self._turn = 0
        self._carrier: Callable[..., None] | None = None  # of arrays
        self._store = _store(rank, size, seconds)

    def next_tag(self) -> int:
        return 0  # each program has a communicator of its own

    def meet(self) -> None:
        self.collect(b"", "the start of the processes", self.seconds)

    def collect(self, own: bytes, what: str, seconds: float) -> list[bytes]:
        with self.lock:
            self._turn += 1
            keys = [f"girih/{self._turn}/{rank}" for rank in range(self.size)]
            try:
                self._store.set(keys[self.rank], own)
                self._wait(keys, what, seconds)
                return [bytes(self._store.get(key)) for key in keys]
            except RuntimeError as error:  # torch's, of a connection that is gone
                raise UserError(
                    f"{what}: process {self.rank} has lost torch's store, whose process may have "
                    f"ended: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                ) from error

    def carry_by(self, exchange: Callable[..., None]) -> None:
        """Arrays go through a GPU's memory from now on: `carrier.exchange_by` of it."""
        self._carrier = exchange

    def exchange(
        self,
        outgoing: Sequence[Message],
        incoming: Sequence[Message],
        what: str,
        seconds: float | None = None,
        tag: int = 0,
    ) -> None:
        if self._carrier is None:
            raise UserError(
                f"{what}: processes that torchrun or Slurm has started exchange through their "
                "GPUs, and no program runs on them yet"
            )
        self._carrier(outgoing, incoming, what, self.seconds if seconds is None else seconds)

    def abort(self) -> None:
        for communicator in self.communicators.values():
            communicator.abort()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # which torchrun, or srun --kill-on-bad-exit, takes for the end of all

    def leave(self) -> None:
        """Tell that this process ends. The first one, which may hold the store, waits for the
        others."""
        try:
            self._store.add("girih/ended", 1)
            end = time.monotonic() + self.seconds
            while not self.rank and time.monotonic() < end:
                if self._store.add("girih/ended", 0) >= self.size:
                    return
                time.sleep(_PAUSE)
        except RuntimeError:
            pass  # the store has ended, and nobody needs it any more

    def _wait(self, keys: Sequence[str], what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        missing = [rank for rank in range(self.size) if rank != self.rank]
        while missing := [rank for rank in missing if not self._store.check([keys[rank]])]:
            if time.monotonic() > end:
                raise UserError(
                    f"{what}: process {self.rank} waited {seconds:g} s for {processes(missing)}; "
                    "look at what they wrote, or wait longer: --comm-timeout SECONDS, "
                    f"girih.load(..., comm_timeout=) or {TIMEOUT}"
                )
            time.sleep(_PAUSE)


def _store(rank: int, size: int, seconds: float) -> Any:
    """torch's store at MASTER_ADDR and MASTER_PORT: torchrun's own, or that of process 0."""
    try:
        from torch.distributed.rendezvous import rendezvous
    except ImportError as error:
        raise UserError(
            f"processes that torchrun or Slurm has started find each other in torch's store, and "
            f"torch cannot be used ({error}); pip install torch, or start them with mpiexec"
        ) from error
    limit = timedelta(seconds=seconds)
    try:
        store, *_ = next(iter(rendezvous("env://", rank, size, timeout=limit)))
    except (RuntimeError, ValueError) as error:
        at = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"process {rank} of {size} does not find torch's store at {at} (MASTER_ADDR, "
            f"MASTER_PORT) in {seconds:g} s: {str(error).splitlines()[0]}"
        ) from error
    return store
