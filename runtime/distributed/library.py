"""A collective step of a plan, as the processes' library computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...hlo.types import element_type
from ...specs.generated import plan_pb2
from ..devices.limits import malformed
from .transfers import place_of
from .world import World

Array = np.ndarray[Any, Any]

_KINDS = {  # MPI's functions; they do not wait, so that a wait has a deadline
    "all_reduce": "Iallreduce",
    "all_gather": "Iallgather",
    "reduce_scatter": "Ireduce_scatter_block",
    "all_to_all": "Ialltoall",
}


class Collective:
    """One step of a plan, as process number `rank` takes part in it. groups: of processes, of
    equal size; own: this process's. given, made: elements of `dtype` that it gives and gets."""

    def __init__(self, plan: plan_pb2.Plan, step: plan_pb2.Collective, rank: int) -> None:
        self.groups = [list(group.processes) for group in step.groups]
        if sorted(n for group in self.groups for n in group) != list(range(plan.processes)):
            raise malformed("the groups of a collective are not all processes, each once")
        if len({len(group) for group in self.groups}) > 1:
            raise malformed("the groups of a collective have different sizes")
        self.own = next((group for group in self.groups if rank in group), self.groups[0])
        self.kind, count = step.kind, len(self.own)
        if step.kind not in _KINDS:
            raise malformed(f"no library has a collective '{step.kind}'")
        self.element = step.element_type
        self.dtype = np.dtype(element_type(step.element_type).dtype)
        if step.kind in ("all_gather", "all_to_all"):  # bytes are moved, not numbers
            self.element, given = "ui8", step.elements * self.dtype.itemsize
            self.dtype = np.dtype(np.uint8)
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
        self.peers = [number for number in self.own if number != rank]
        place, whole = self.own.index(rank) if rank in self.own else 0, max(given, made)
        part = whole * (place + 1) // count - whole * place // count
        others = {
            "all_reduce": (count - 1) * part + whole - part,
            "reduce_scatter": (count - 1) * part,
        }.get(step.kind, whole - part)
        self.bytes = others * self.dtype.itemsize  # what it gets, were nothing sent twice
        self.what = f"{place_of(step.origin)}{step.kind}"

    def run(self, world: World, given: Array, made: Array, seconds: float) -> None:
        """The step on these arrays, over MPI; waits so many seconds at most."""
        start = getattr(world.communicator_of(self.groups), _KINDS[self.kind])
        size = self.made * self.dtype.itemsize
        with world.lock:
            world.finish(start(given, made), self.peers, size, self.what, seconds)
