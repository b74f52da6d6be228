"""Windows that only what follows the loop reads, as threads read them that came through its ring
(`optimizer/asynchronous/epilogue_loads.py`): as accumulators lie, by ldmatrix where that is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....optimizer.asynchronous.epilogue_loads import EpilogueLoad
from ... import llvm
from ...llvm import elements
from ..frame import load_matrices
from ..layout_code import sum_of
from ..layouts import SharedAccess
from . import fragment
from . import instructions as hopper
from .functions import plain
from .registers import Fetch

if TYPE_CHECKING:
    from .consumer import Consumer


class Arrivals:
    """The windows of the epilogue of one tile as a warp group that multiplies sees them."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer, self.f = consumer, consumer.f
        self.stages: list[llvm.Value] = []

    def wait(self) -> None:
        """Until all are there; the evaluator reads them from here on."""
        consumer, plan = self.consumer, self.consumer.plan
        self.stages = []
        for load in plan.epilogue_loads:
            ring, starts = plan.epilogue_ring, []
            for _ in load.fills:
                consumer.wait(ring)
                stage = consumer.states[ring][0]
                self.stages.append(stage)
                starts.append(consumer.stage_offset(ring, stage))
                consumer.advance(ring)
            consumer.evaluator.arrived[load.panel.op] = self._fetch(load, starts)

    def release(self) -> None:
        """Behind the last read of all threads of the group: the stages can be filled again."""
        consumer = self.consumer
        if self.stages:
            hopper.meet(self.f, self.f.add(consumer.group, 1), hopper.WARPGROUP)
        for number, stage in enumerate(self.stages):
            consumer.release(consumer.plan.epilogue_ring, stage, len(self.stages) - number)

    def _fetch(self, load: EpilogueLoad, starts: Sequence[llvm.Value]) -> Fetch:
        f, panel, consumer = self.f, load.panel, self.consumer
        element = panel.op.operands[0].element
        made, matrices, plan = fragment.chunk(panel.chunk, panel.width)
        own = f.mul(consumer.group, consumer.plan.rows * panel.swizzle)
        common = sum_of(f, plan.terms, consumer.thread, hopper.WARPGROUP)
        where: dict[fragment.Place, tuple[SharedAccess, int]] = {}
        for access in plan.accesses:
            for number, register in enumerate(access.registers):
                where[made.registers[register]] = access, number
        kind = elements.memory_type(f, element)

        def loaded(access: SharedAccess, block: int, chunk: int) -> llvm.Value:
            """A vector of the access's elements."""
            stage, inside = divmod(chunk, load.chunks)
            offset = inside * load.chunk_bytes + block * hopper.ROWS * panel.swizzle + access.add
            start = f.add(f.add(starts[stage], own), f.xor(common, access.xor))
            at = hopper.shared(f, f.add(start, offset))
            vector = llvm.vector(len(access.registers), kind)
            if matrices is None:
                return f.load(vector, at, align=plan.bytes)
            words = load_matrices(f, at, matrices.count)
            return f.bitcast(f.joined(words), vector)

        def fetch(row: int, column: int) -> llvm.Value:
            access, number = where[row % hopper.ROWS, column % panel.chunk]
            key = load, access, row // hopper.ROWS, column // panel.chunk
            raw = consumer.evaluator.once(key, lambda: loaded(access, *key[2:]))
            return plain(elements.widen(f, f.extract(raw, number), element))

        return fetch
