"""A collective step of a plan, as the processes' library computes it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...hlo.types import element_type
from ...specs.generated import plan_pb2
from ..devices.limits import malformed
from .transfers import array_at
from .world import World

_KINDS = {  # MPI's functions; they do not wait, so that a wait has a deadline
    "all_reduce": "Iallreduce",
    "all_gather": "Iallgather",
    "reduce_scatter": "Ireduce_scatter_block",
    "all_to_all": "Ialltoall",
}


class Collective:
    """One step of a plan, as this process takes part in it."""

    def __init__(self, plan: plan_pb2.Plan, step: plan_pb2.Collective, world: World) -> None:
        groups = [list(group.processes) for group in step.groups]
        if sorted(n for group in groups for n in group) != list(range(plan.processes)):
            raise malformed("the groups of a collective are not all processes, each once")
        own = next(group for group in groups if world.rank in group)
        self.kind, count = step.kind, len(own)
        if step.kind not in _KINDS:
            raise malformed(f"no library has a collective '{step.kind}'")
        self.dtype = np.dtype(element_type(step.element_type).dtype)
        if step.kind in ("all_gather", "all_to_all"):  # bytes are moved, not numbers
            self.dtype, given = np.dtype(np.uint8), step.elements * self.dtype.itemsize
        else:
            given = step.elements
        if step.kind in ("reduce_scatter", "all_to_all") and given % count:
            raise malformed(f"the parts of a collective '{step.kind}' differ in size")
        made = {"all_gather": given * count, "reduce_scatter": given // count}.get(step.kind, given)
        for argument, elements in ((step.operand, given), (step.result, made)):
            end = argument.offset + elements * self.dtype.itemsize
            if end > plan.buffers[argument.buffer].bytes:
                raise malformed("a tensor of a collective lies outside its buffer")
        self.given, self.made = given, made
        self.peers = [number for number in own if number != world.rank]
        self.communicator = world.communicator_of(groups)
        place, whole = own.index(world.rank), max(given, made)
        part = whole * (place + 1) // count - whole * place // count
        others = {
            "all_reduce": (count - 1) * part + whole - part,
            "reduce_scatter": (count - 1) * part,
        }.get(step.kind, whole - part)
        self.bytes = others * self.dtype.itemsize  # what it gets, were nothing sent twice
        origin = step.origin
        self.what = (f"{origin.file}:{origin.line}: " if origin.file else "") + step.kind

    def run(
        self, world: World, operand: int, result: int, received: Counter[str], seconds: float
    ) -> None:
        """The step on the memory at these addresses; waits so many seconds at most."""
        given = array_at(operand, (self.given,), self.dtype)
        made = array_at(result, (self.made,), self.dtype)
        start = getattr(self.communicator, _KINDS[self.kind])
        with world.lock:
            world.finish(
                start(given, made), self.peers, self.made * self.dtype.itemsize, self.what, seconds
            )
            received[self.kind] += self.bytes
