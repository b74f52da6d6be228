"""The role that copies: one thread starts the copies of all panels, tile after tile."""

from __future__ import annotations

from collections.abc import Sequence

from ....optimizer.asynchronous.configuration import Ring
from ....optimizer.asynchronous.work import Panel
from ... import llvm
from ...llvm import Value
from ..frame import rolled
from . import instructions as hopper
from .epilogue_loads import EpilogueLoad
from .rings import Role


class Producer(Role):
    """Fills the rings in the order in which they are read. `maps` are the panels' tensor maps."""

    maps: dict[Panel, Value]

    def run(self, maps: dict[Panel, Value]) -> None:
        self.maps = maps
        with self.each_tile():
            for ring in self.plan.rings:
                if not ring.moves:
                    self.fill(ring)
            self.loop()
            for load in self.plan.epilogue_loads:
                self.fill_epilogue_load(load)

    def loop(self) -> None:
        loop = self.plan.work.loop
        moving = [ring for ring in self.plan.rings if ring.moves]
        if loop is None or not moving:
            return
        f = self.f
        lower, upper = (self.evaluator.number(value) for value in loop.operands[:2])
        with f.for_range(lower, upper, loop.step, self.flat(moving), metadata=rolled(f)) as inner:
            self.resume(moving, inner.carried)
            with self.evaluator.inside():
                index = loop.regions[0].arguments[0]
                self.evaluator.bind(index, self.evaluator.given(index, [inner.index]))
                for ring in moving:
                    self.fill(ring)
            inner.carry(*self.flat(moving))
        self.resume(moving, inner.results)

    def fill(self, ring: Ring) -> None:
        """Waits for the ring's next stage and starts its copies."""
        f = self.f
        stage, parity = self.states[ring]
        hopper.barrier_wait(f, self.empty(ring, stage), parity)
        full = self.full(ring, stage)
        hopper.barrier_expect(f, full, sum(panel.bytes for panel in ring.panels))
        start = self.stage_offset(ring, stage)
        for panel, share in zip(ring.panels, ring.shares, strict=True):
            with f.within(panel.op):
                self.copy(panel, f.add(start, ring.place(panel)), full, share)
        self.advance(ring)

    def fill_epilogue_load(self, load: EpilogueLoad) -> None:
        """Starts the copies of a window behind the loop, in as many stages as it takes."""
        f, panel, ring = self.f, load.panel, self.plan.epilogue_ring
        with f.within(panel.op):
            coordinates = [self.evaluator.number(panel.op.offsets[dim]) for dim in panel.order]
            for chunks in load.fills:
                stage, parity = self.states[ring]
                hopper.barrier_wait(f, self.empty(ring, stage), parity)
                full = self.full(ring, stage)
                hopper.barrier_expect(f, full, len(chunks) * load.chunk_bytes)
                start = self.stage_offset(ring, stage)
                for number, chunk in enumerate(chunks):
                    self.copy_chunk(
                        panel, chunk, f.add(start, number * load.chunk_bytes), full, coordinates, 0
                    )
                self.advance(ring)

    def copy(self, panel: Panel, at: Value, full: Value, share: int) -> None:
        """Starts the copies of one panel, or of this block's part of it for the whole cluster."""
        f, load = self.f, panel.op
        coordinates = [self.evaluator.number(load.offsets[dim]) for dim in panel.order]
        blocks = 0
        if share > 1:
            rows = panel.outer // share
            place = panel.outer_places[-1]
            dim = panel.order[place]
            part = panel.sizes[dim] // share * panel.steps[dim]
            coordinates[place] = f.add(coordinates[place], f.mul(self.rank, part))
            at = f.add(at, f.mul(self.rank, rows * panel.swizzle))
            blocks = (1 << share) - 1
        for chunk in range(panel.chunks):
            there = f.add(at, chunk * panel.outer * panel.swizzle)
            self.copy_chunk(panel, chunk, there, full, coordinates, blocks)

    def copy_chunk(
        self, panel: Panel, chunk: int, at: Value, full: Value, coordinates: Sequence[Value],
        blocks: int,
    ) -> None:  # fmt: skip
        """Starts the copy of one chunk of columns of a panel that begins at `coordinates`."""
        f = self.f
        inner = f.add(coordinates[0], llvm.constant("i32", chunk * panel.chunk))
        places = [inner, *coordinates[1:]]
        hopper.copy_in(f, hopper.shared(f, at), full, self.maps[panel], places, blocks)
