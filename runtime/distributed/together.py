"""A plan for GPUs that several processes run, as this one does its part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...specs.generated import plan_pb2
from ..devices.driver import Driver
from ..devices.exchanges import Collect, Communicate
from ..devices.launches import Step
from ..devices.waiting import Waiting
from .carrier import communicator_of
from .communicator import PeerBuffer
from .started import joined_world
from .world import comm_timeout


class Together:
    """`received`: bytes that came from other processes, by operation.

    UserError where the launcher's processes are not those of the plan, have another plan or other
    `facts` (name -> what has to be equal), or two of them one GPU. Each wait for other processes
    may take `seconds`.
    """

    def __init__(
        self,
        plan: plan_pb2.Plan,
        steps: Sequence[Step],
        driver: Driver,
        facts: Mapping[str, bytes],
        seconds: float | None,
    ) -> None:
        self.driver, self.seconds = driver, comm_timeout(seconds)
        self.received: Counter[str] = Counter()
        world = joined_world(plan.processes, self.seconds)
        facts = {**facts, "plan": plan.SerializeToString(deterministic=True)}
        what = "the comparison of plans before the first step"
        with world.lock:
            world.check_equal(facts, what, self.seconds)
            self.communicator = communicator_of(world, driver, self.seconds)
        for step in steps:  # in one order on all processes
            if isinstance(step, Collect):
                self.communicator.prepare(step.collective.groups, self.seconds)

    def waiting(self) -> Waiting:
        """The exchanges of a new stream."""
        return Waiting(self.driver, self.communicator, self.seconds)

    def communicate(
        self, step: Communicate | Collect, bases: Sequence[int], stream: Any, waiting: Waiting
    ) -> None:
        """Put a step on the stream, whose memory lies behind these addresses."""
        if isinstance(step, Collect):
            one = step.collective
            operand = bases[step.operand.base] + step.operand.offset
            result = bases[step.result.base] + step.result.offset
            with waiting.posted(one.what, stream):
                self.communicator.collect(one, operand, result, stream, self.seconds)
            self.received[one.kind] += one.bytes
            return
        outgoing, incoming = (
            [
                PeerBuffer(peer, bases[where.base] + where.offset, size)
                for peer, where, size in messages
            ]
            for messages in (step.outgoing, step.incoming)
        )
        with waiting.posted(step.what, stream):
            self.communicator.exchange(outgoing, incoming, stream, step.what, self.seconds)
        self.received[step.operation] += step.received
