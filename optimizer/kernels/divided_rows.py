"""Few long rows: into how many parts blocks of threads divide each row of a `rows` fusion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...hlo.deciding import at_hint, common_divisor, estimating
from ...hlo.graph import Region
from ...hlo.symbols import Dim
from ..cost.model import streamed
from ..fusable import outer_rank
from ..machine import Machine

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


@estimating()
def parts_of(region: Region, machine: Machine, able: Capabilities) -> int:
    """Blocks per row; 1 where one block is enough, or where rows have no one length."""
    outer = outer_rank(region)
    dims = {op.operands[0].dims for op in region.ops if op.name == "reduce"}
    if outer is None or len({math.prod(one[outer:]) for one in dims}) != 1:
        return 1
    rows = at_hint(math.prod(region.results[0].dims[:outer]))
    length = math.prod(dims.pop()[outer:])
    count = at_hint(length)
    if not rows or not count or 2 * rows > able.processors:
        return 1
    long = [value for value in region.arguments if value.tensor.size >= length]
    sizes = [value.element.itemsize for value in (*long, *region.results)]
    least = able.row_parts.least(common_divisor(able.vector_width(sizes), length))
    parts = max(1, min(-(-2 * able.processors // rows), count // least))
    size, runs = sum(value.tensor.bytes for value in long), _runs(region, outer)
    alone, together = (
        streamed(machine, size, runs, tasks, launches)
        for tasks, launches in ((rows, 1), (rows * parts, runs + 1))
    )
    return parts if together < alone else 1


def _runs(region: Region, outer: int) -> int:
    """How often rows are gone over: for reductions that wait for others, and for the results."""
    stages: dict[object, int] = {}  # how many reductions lie behind a value, one after another
    found: set[tuple[int, tuple[Dim, ...]]] = set()
    for op in region.ops:
        stage = max((stages.get(value, 0) for value in op.operands), default=0)
        if op.name == "reduce":
            found.add((stage, op.operands[0].dims[outer:]))
            stage += 1
        stages.update(dict.fromkeys(op.results, stage))
    return len(found) + len({root.dims[outer:] for root in region.results})
