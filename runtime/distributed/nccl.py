"""GPUs that exchange over NCCL, through the bindings of nccl4py.

Imported, as these bindings are, when a program of several GPUs runs its first step, and never else.
The bindings below `nccl.core` are used: addresses and streams are numbers here, where `nccl.core`
takes arrays of frameworks. Communicators do not block: whatever waits for other processes is asked
again and again until a deadline, and then aborted. A message is a send and a receive in one group;
graphs of kernels end where processes exchange, since NCCL's own launches cannot be told other
addresses as our kernels are.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ...hlo.errors import UserError
from .communicator import PeerBuffer
from .world import TIMEOUT, Processes

if TYPE_CHECKING:
    from ..devices.driver import Driver
    from .library import Collective

_ID_BYTES = 128
_BYTE = "Uint8"
_TYPES = {  # element types of plans, whose sums and moves are NCCL's
    "i8": "Int8", "ui8": "Uint8", "i32": "Int32", "ui32": "Uint32", "i64": "Int64",
    "ui64": "Uint64", "f16": "Float16", "bf16": "Bfloat16", "f32": "Float32", "f64": "Float64",
}  # fmt: skip
_PATIENCE = 2e-3  # seconds without a pause
_PAUSE = 200e-6  # seconds
_OLDEST = 21803  # NCCL 2.18.3: splits of communicators that do not block


class Nccl:
    """The communicator of all processes, each with one GPU, and those of their groups.

    make(config): NCCL's, which may still be in progress.
    """

    def __init__(
        self,
        world: Processes,
        driver: Driver,
        make: Callable[[int], Any],
        seconds: float,
    ) -> None:
        self.world, self.driver, self.nccl = world, driver, _bindings()
        self.aborted = False
        self._groups: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._config = self.nccl.Config()
        self._config.blocking = 0
        what = "NCCL's start"
        with world.lock, driver, self._named(what):
            self.everyone = make(self._config.ptr)
            self._settled(self.everyone, what, seconds)
        atexit.register(self._leave, os.getpid())

    @staticmethod
    def started(world: Processes, driver: Driver, seconds: float) -> Nccl:
        """By an id of process 0, which all get; UserError where they do not in so many seconds."""
        nccl = _bindings()
        own = bytes(_ID_BYTES) if world.rank else bytes(nccl.get_unique_id())
        first, *_ = world.collect(own, "NCCL's start", seconds)
        unique = nccl.UniqueId.from_buffer(first)

        def make(config: int) -> Any:
            return nccl.comm_init_rank_config(world.size, unique, world.rank, config)

        return Nccl(world, driver, make, seconds)

    def another(self, seconds: float) -> Nccl:
        def make(config: int) -> Any:
            made = self.nccl.comm_split(self.everyone, 0, self.world.rank, config)
            self._settled(self.everyone, "NCCL's start", seconds)  # which fills in the new one
            return made

        return Nccl(self.world, self.driver, make, seconds)

    def prepare(self, groups: Sequence[Sequence[int]], seconds: float) -> None:
        key = tuple(map(tuple, groups))
        if key in self._groups:
            return
        own = next(place for place, group in enumerate(key) if self.world.rank in group)
        if key[own] == tuple(range(self.world.size)):
            self._groups[key] = self.everyone
            return
        what = "NCCL's groups of processes"
        with self.world.lock, self.driver, self._named(what):
            order = key[own].index(self.world.rank)
            made = self.nccl.comm_split(self.everyone, own, order, self._config.ptr)
            self._settled(self.everyone, what, seconds)  # which fills in the new one
            self._settled(made, what, seconds)
        self._groups[key] = made

    def exchange(
        self,
        outgoing: Sequence[PeerBuffer],
        incoming: Sequence[PeerBuffer],
        stream: Any,
        what: str,
        seconds: float,
    ) -> None:
        nccl, everyone = self.nccl, self.everyone
        kind = int(nccl.DataType[_BYTE])
        with self._posting(everyone, what, seconds), self._group():
            for part in incoming:
                nccl.recv(part.address, part.nbytes, kind, part.peer, everyone, stream)
            for part in outgoing:
                nccl.send(part.address, part.nbytes, kind, part.peer, everyone, stream)

    def collect(
        self, one: Collective, operand: int, result: int, stream: Any, seconds: float
    ) -> None:
        nccl, comm = self.nccl, self._groups[tuple(map(tuple, one.groups))]
        if one.element not in _TYPES:
            raise UserError(f"{one.what}: NCCL has no elements of type {one.element}")
        kind, add = int(nccl.DataType[_TYPES[one.element]]), int(nccl.RedOp.Sum)
        with self._posting(comm, one.what, seconds):
            if one.kind == "all_reduce":
                nccl.all_reduce(operand, result, one.given, kind, add, comm, stream)
            elif one.kind == "all_gather":
                nccl.all_gather(operand, result, one.given, kind, comm, stream)
            elif one.kind == "reduce_scatter":
                nccl.reduce_scatter(operand, result, one.made, kind, add, comm, stream)
            else:
                size = one.given // len(one.own)  # elements are bytes
                own = one.own.index(self.world.rank)
                self.driver.copy(result + own * size, operand + own * size, size, stream)
                others = [place for place in range(len(one.own)) if place != own]
                with self._group():
                    for peer in others:
                        nccl.recv(result + peer * size, size, kind, peer, comm, stream)
                    for peer in others:
                        nccl.send(operand + peer * size, size, kind, peer, comm, stream)

    def check(self, what: str) -> None:
        with self.world.lock, self._named(what):
            for comm in self._all():
                self._require(comm, self.nccl.comm_get_async_error(comm), what)

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            for comm in self._all() if "everyone" in self.__dict__ else ():
                with suppress(self.nccl.NCCLError):  # it is gone
                    self.nccl.comm_abort(comm)

    def _all(self) -> list[Any]:
        """The communicators, those of groups first."""
        groups = {id(comm): comm for comm in self._groups.values()}
        groups.pop(id(self.everyone), None)
        return [*groups.values(), self.everyone]

    @contextmanager
    def _group(self) -> Iterator[None]:
        self.nccl.group_start()
        try:
            yield
        finally:
            self.nccl.group_end()

    @contextmanager
    def _posting(self, comm: Any, what: str, seconds: float) -> Iterator[None]:
        """Around what is posted on a stream; it is posted when this ends."""
        if self.aborted:
            raise UserError(
                f"{what}: an earlier exchange failed, so that this process cannot go on"
            )
        with self.world.lock, self._named(what):
            yield
            self._settled(comm, what, seconds)

    def _settled(self, comm: Any, what: str, seconds: float) -> None:
        """Wait until nothing of the communicator is in progress: it is posted then, not done."""
        nccl, begin = self.nccl, time.monotonic()
        while (state := nccl.comm_get_async_error(comm)) == nccl.Result.InProgress:
            now = time.monotonic()
            if now > begin + seconds:
                self.abort()
                raise UserError(
                    f"{what}: process {self.world.rank} waited {seconds:g} s for the others; look "
                    "at what they wrote, or wait longer: --comm-timeout SECONDS, girih.load(..., "
                    f"comm_timeout=) or {TIMEOUT}"
                )
            if now > begin + _PATIENCE:
                time.sleep(_PAUSE)
        self._require(comm, state, what)

    def _require(self, comm: Any, state: int, what: str) -> None:
        """UserError, once all is aborted, where a communicator has failed."""
        nccl = self.nccl
        if state not in (nccl.Result.Success, nccl.Result.InProgress):
            said = f"{nccl.get_error_string(state)}: {nccl.get_last_error(comm)}"
            self.abort()
            raise UserError(f"{what}: NCCL failed in process {self.world.rank}: {said}")

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """NCCL's own errors as ours."""
        try:
            yield
        except self.nccl.NCCLError as error:
            self.abort()
            raise UserError(f"{what}: NCCL failed in process {self.world.rank}: {error}") from error

    def _leave(self, process: int) -> None:
        """At the end of the process."""
        if os.getpid() != process or self.aborted:
            return
        try:
            with self.driver:
                for comm in self._all():
                    self.nccl.comm_finalize(comm)
                    self._settled(comm, "NCCL's end", self.world.seconds)
                    self.nccl.comm_destroy(comm)
        except (UserError, self.nccl.NCCLError):
            self.abort()


@functools.cache
def _bindings() -> Any:
    """nccl4py's bindings; UserError where they, or NCCL itself, are not there."""
    try:
        nccl = importlib.import_module("nccl.bindings.nccl")
    except ImportError as error:
        raise UserError(
            f"a program of several GPUs needs NCCL, and nccl4py cannot be used ({error}); "
            "pip install 'girih[nccl]'"
        ) from error
    try:
        version = nccl.get_version()
    except Exception as error:  # the binding's own types differ between its versions
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"a program of several GPUs needs NCCL, whose library cannot be loaded ({said}); "
            "install it, or the package nvidia-nccl-cu12, or nvidia-nccl-cu13"
        ) from error
    if version < _OLDEST:
        raise UserError(
            f"NCCL {version} is older than {_OLDEST}, which girih needs; install a newer one"
        )
    return nccl
