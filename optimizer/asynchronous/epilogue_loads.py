"""Windows that only what follows the loop reads, such as a residual: brought as the loop's are.

The role that copies sends them through stages of the loop's ring, behind the loop's last round and
before the first of the next tile: no memory of their own, and they are there when they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...hlo.graph import Op, Value
from .analysis import panel_of
from .check import Check
from .work import COLUMN, ROW, Panel, PipelineWork, Roles

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


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


def find_epilogue_loads(
    work: PipelineWork, stages: int, stage_bytes: int, able: Capabilities
) -> tuple[EpilogueLoad, ...]:
    """The windows that come through a ring of the loop of so many stages; one stage stays for the
    loop's own."""
    check = Check(work, able.formulas)
    roles: dict[Value, set[Roles]] = {}
    for value, seen in check.seen:
        roles.setdefault(value, set()).add(seen)
    early = _early(work)
    known = {panel.op for panel in work.panels}
    found: list[EpilogueLoad] = []
    left = stages - 1
    for op in work.kernel.regions[0].ops:
        if op.name != "tile_load" or op in known or op in early or op.result not in roles:
            continue
        panel = _panel(check, op, roles[op.result], able)
        if panel is None or panel.outer * panel.swizzle > stage_bytes:
            continue
        each = stage_bytes // (panel.outer * panel.swizzle)
        fills = -(-panel.chunks // each)
        if fills <= left:
            left -= fills
            found.append(EpilogueLoad(panel, -(-panel.chunks // fills)))
    return tuple(found)


def _panel(check: Check, load: Op, roles: set[Roles], able: Capabilities) -> Panel | None:
    """The window in chunks of whole rows of the tile, or None where it has no such form."""
    element = load.operands[0].element
    if len(roles) > 1 or not element.is_float or element.bits not in (16, 32):
        return None
    assert able.boxes is not None
    panel = panel_of(load, load.result, False, able.boxes)
    if isinstance(panel, str) or any(map(check.scalar, load.offsets)):
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
