"""The role that copies: one thread starts the copies of all panels, tile after tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ....optimizer.asynchronous.configuration import Ring
from ....optimizer.asynchronous.work import Panel
from ... import llvm
from ...llvm import Value
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
        lower, upper = (self.evaluator.number(value) for value in loop.operands[:2])
        with self.rounds(lower, upper, loop.step, moving) as inner, self.evaluator.inside():
            index = loop.regions[0].arguments[0]
            self.evaluator.bind(index, self.evaluator.given(index, [inner.index]))
            for ring in moving:
                self.fill(ring)

    @contextmanager
    def stage(self, ring: Ring, count: int) -> Iterator[tuple[Value, Value]]:
        """The ring's next stage once it is empty: where it begins, and the barrier at which the
        `count` bytes that come count."""
        f, (stage, parity) = self.f, self.states[ring]
        self.note("fill", ring)
        hopper.barrier_wait(f, self.empty(ring, stage), parity)
        full = self.full(ring, stage)
        hopper.barrier_expect(f, full, count)
        yield self.stage_offset(ring, stage), full
        self.advance(ring)

    def fill(self, ring: Ring) -> None:
        """Starts the copies of the ring's next stage."""
        with self.stage(ring, sum(panel.bytes for panel in ring.panels)) as (start, full):
            for panel, share in zip(ring.panels, ring.shares, strict=True):
                with self.f.within(panel.op):
                    self.copy(panel, self.f.add(start, ring.place(panel)), full, share)

    def fill_epilogue_load(self, load: EpilogueLoad) -> None:
        """Starts the copies of a window behind the loop, in as many stages as it takes."""
        f, panel, size = self.f, load.panel, load.chunk_bytes
        with f.within(panel.op):
            coordinates = [self.evaluator.number(panel.op.offsets[dim]) for dim in panel.order]
            for chunks in load.fills:
                with self.stage(self.plan.epilogue_ring, len(chunks) * size) as (start, full):
                    for number, chunk in enumerate(chunks):
                        at = f.add(start, number * size)
                        self.copy_chunk(panel, chunk, at, full, coordinates, 0)

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
