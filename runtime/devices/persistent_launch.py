"""All steps of a plan as one cooperative launch, checked, and what it waits and is stopped by."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...specs.generated import plan_pb2
from .driver import Driver, LaunchConfiguration
from .gpu_steps import Choose, KernelStep, Parameter, Started, Where, volume
from .limits import malformed
from .resources import DeviceMemory, Moment, Stream, finally_do
from .starts import table_of

if TYPE_CHECKING:
    from .launches import Step

MEETING, STOP = -1, -2  # bases: the words of the barrier, and the word by which the host stops it
_EAGER, _PAUSE = 1e-3, 1e-4  # seconds: so long a wait asks without pause, and then with one


def persistent_launch(plan: plan_pb2.Plan, steps: Sequence[Step]) -> Started:
    """The launch; UserError where the plan contradicts itself. steps: the plan's, one by one."""
    said = plan.persistent
    if len(said.steps) != len(plan.steps) or len(steps) != len(plan.steps) or said.blocks < 1:
        raise malformed("a persistent launch has not the steps of its plan")
    cells: list[tuple[int, Any]] = [(0, Where(MEETING, 0)), (8, Where(STOP, 0))]
    for step, own in zip(steps, said.steps, strict=True):
        parameters: list[Parameter] = [step.where] if isinstance(step, Choose) else []
        for start, given, _ in step.launches if isinstance(step, KernelStep) else ():
            row = volume(start.block) == start.block[0] <= said.threads
            alone = volume(start.cluster) == 1
            if not row or not alone or start.shared_bytes > said.shared_bytes:
                raise malformed(f"kernel {start.entry} does not fit into a persistent block")
            parameters += given
        if len(own.places) != len(parameters):
            raise malformed("a persistent launch has arguments without a place")
        cells += zip(own.places, parameters, strict=True)
    start = LaunchConfiguration(
        said.entry, (said.blocks, 1, 1), (said.threads, 1, 1), (1, 1, 1), said.shared_bytes, True
    )
    return table_of(cells, said.table_bytes, "a persistent launch", start)


class Meeting:
    """What the blocks of a workspace's launches meet by, and how the host stops them."""

    BYTES = 8

    def __init__(self, driver: Driver, stream: Stream) -> None:
        self.driver, self.stream = driver, stream
        self.memory = DeviceMemory(stream, self.BYTES)
        self.flag, self.flag_address = driver.mapped_memory(4)
        self.flag[...] = 0
        finally_do(self, driver, _free, stream, self.flag)
        self.reset()

    @property
    def address(self) -> int:
        return self.memory.address

    def reset(self) -> None:
        """As before the first launch."""
        self.driver.upload(self.address, np.zeros(self.BYTES, np.uint8), self.stream.handle)

    def wait(self, synchronize: Callable[[Any], None]) -> None:
        """Return when the stream's work is done; what interrupts the wait, such as Ctrl-C, stops
        the blocks where they decide the next time."""
        moment, begun = Moment(self.driver, self.stream.handle), time.monotonic()
        try:
            while not self.driver.has_come(moment.event):
                if time.monotonic() - begun > _EAGER:
                    time.sleep(_PAUSE)
        except BaseException:
            self.flag[:1] = 1
            with contextlib.suppress(Exception):  # of what was interrupted
                synchronize(self.stream.handle)
            self.flag[...] = 0
            self.reset()
            raise
        synchronize(self.stream.handle)


def _free(stream: Stream, flag: np.ndarray[Any, Any]) -> None:
    stream.driver.synchronize(stream.handle)
    stream.driver.free_host_memory(flag)
