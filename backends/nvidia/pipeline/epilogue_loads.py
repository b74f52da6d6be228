"""Windows that only what follows the loop reads, such as a residual: brought by the copy engine.

The role that copies sends them through stages of the loop's ring, behind the loop's last round and
before the first of the next tile: no memory of their own, and they are there when they are needed.
Threads read them as accumulators lie, by ldmatrix where that is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm import elements
from .. import layouts
from ..frame import Unfit, load_matrices
from ..layout_code import sum_of
from ..layouts import SharedAccess
from . import fragment
from . import instructions as hopper
from .analysis import panel_of
from .check import Check
from .functions import plain
from .registers import Fetch
from .work import COLUMN, ROW, Panel, PipelineWork, Roles

if TYPE_CHECKING:
    from .configuration import Ring
    from .consumer import Consumer


@dataclass(frozen=True, eq=False)
class EpilogueLoad:
    """A window behind the loop, and how many of its chunks come in one stage."""

    panel: Panel
    chunks: int

    @property
    def fills(self) -> Sequence[range]:
        """The chunks of each stage."""
        total = self.panel.chunks
        return [
            range(n, min(n + self.chunks, total)) for n in range(0, total, self.chunks)
        ]  # fmt: skip

    @property
    def chunk_bytes(self) -> int:
        return self.panel.outer * self.panel.swizzle


def find_epilogue_loads(work: PipelineWork, ring: Ring) -> tuple[EpilogueLoad, ...]:
    """The windows that come through a ring of the loop; one stage stays for the loop's own."""
    check = Check(work)
    check.run()
    roles: dict[Value, set[Roles]] = {}
    for value, seen in check.seen:
        roles.setdefault(value, set()).add(seen)
    early = _early(work)
    known = {panel.op for panel in work.panels}
    found: list[EpilogueLoad] = []
    left = ring.stages - 1
    for op in work.kernel.regions[0].ops:
        if op.name != "tile_load" or op in known or op in early or op.result not in roles:
            continue
        panel = _panel(check, op, roles[op.result])
        if panel is None or panel.outer * panel.swizzle > ring.stage_bytes:
            continue
        each = ring.stage_bytes // (panel.outer * panel.swizzle)
        fills = -(-panel.chunks // each)
        if fills <= left:
            left -= fills
            found.append(EpilogueLoad(panel, -(-panel.chunks // fills)))
    return tuple(found)


def _panel(check: Check, load: Op, roles: set[Roles]) -> Panel | None:
    """The window in chunks of whole rows of the tile, or None where it has no such form."""
    element = load.operands[0].element
    if len(roles) > 1 or not element.is_float or element.bits not in (16, 32):
        return None
    try:
        panel = panel_of(load, load.result, False)
        for offset in load.offsets:
            check.scalar(offset)
    except Unfit:
        return None
    (own,) = roles
    wanted = [ROW if place in panel.outer_places else "" for place in range(len(panel.order))]
    wanted[0] = COLUMN
    if len(panel.outer_places) != 1 or panel.outer != check.work.rows:
        return None
    return panel if [own[dim] for dim in panel.order] == wanted else None


def _early(work: PipelineWork) -> set[Op]:
    """What is computed before the loop or in it."""
    assert work.loop is not None
    found: set[Op] = set()
    pending = [*work.loop.operands, *work.loop.regions[0].captures()]
    while pending:
        op = pending.pop().op
        if op is not None and op not in found:
            found.add(op)
            pending.extend(op.operands)
    return found


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
        for stage in self.stages:
            consumer.release(consumer.plan.epilogue_ring, stage)

    def _fetch(self, load: EpilogueLoad, starts: Sequence[llvm.Value]) -> Fetch:
        f, panel, consumer = self.f, load.panel, self.consumer
        element = panel.op.operands[0].element
        made, place = fragment.chunk(panel.chunk, panel.width)
        matrices = layouts.matrix_access(made, place, panel.width)
        plan = matrices.addresses if matrices else layouts.addresses(made, place, panel.width)
        own = f.mul(consumer.group, consumer.plan.rows * panel.swizzle)
        common = sum_of(f, plan.terms, consumer.thread, hopper.WARPGROUP)
        where: dict[tuple[int, int], tuple[SharedAccess, int]] = {}
        for access in plan.accesses:
            for number, register in enumerate(access.registers):
                where[fragment.place(made.coordinates(register=register))] = access, number
        rows, columns = fragment.rows(hopper.ROWS), fragment.columns(panel.chunk)
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

        def fetch(i: int, j: int) -> llvm.Value:
            access, number = where[i % rows, j % columns]
            key = load, access, i // rows, j // columns
            raw = consumer.evaluator.once(key, lambda: loaded(access, *key[2:]))
            return plain(elements.widen(f, f.extract(raw, number), element))

        return fetch
