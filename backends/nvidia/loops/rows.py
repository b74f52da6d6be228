"""`rows` fusions: reductions over trailing dims with what surrounds them.

A row belongs to a few lanes of a warp, to a warp, or to a block, by its length. Passes follow each
other as `plain.passes` orders them; a row that fits stays in registers from its first pass to its
last, a longer one is read again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.deciding import at_hint, common_divisor, estimating
from ....hlo.graph import Region
from ....optimizer.fusable import outer_rank
from ....optimizer.windows import NONE, Windows
from ...capabilities import vector_width
from ...plain.frame import computable, cost
from ...plain.passes import RowPass, plan
from ..atoms import ACCESS_BYTES
from ..launch import KernelCode
from ..target import WARP, NvidiaTarget
from . import divided
from .head import FusionKernel, may_be_empty, nothing, unaligned
from .row_code import RowCode, RowCut

KEPT = 32  # 32-bit words of a row that a thread keeps in registers
LONGEST = 16  # warps of a row
LIGHT = 64.0  # instructions per element, for which the registers of twice as many warps suffice
BUSY = 512  # threads that a multiprocessor needs to hide the latency of memory


@estimating()
def choose(
    region: Region, rows: int, count: int, target: NvidiaTarget, longest: int = LONGEST
) -> RowCut:
    """The cut of rows of so many elements, each for at most `longest` warps."""
    long = [value for value in region.arguments if value.tensor.size >= count] or [*region.results]
    sizes = [value.element.itemsize for value in (*long, *region.results)]
    words = max(1, max(sizes) // 4)
    kept = max(4, KEPT // words)
    width = common_divisor(vector_width(ACCESS_BYTES, sizes), count)
    longest = min(longest, 2 * LONGEST // words)
    lanes, warps = 1, 1
    while lanes < WARP and lanes * width < count:
        lanes *= 2
    busy = target.architecture.multiprocessors * BUSY
    while lanes == WARP and warps < longest:
        share = WARP * warps
        if count <= share * kept and (rows * share >= busy or count <= share * width):
            break
        warps *= 2
    return RowCut(lanes, warps, width, kept)


def refusal(region: Region, windows: Windows = NONE) -> str:
    """Why a `rows` fusion's region has no kernel here, "" if it has one."""
    outer = outer_rank(region)
    if outer is None:
        return "reductions that are not over the same rows"
    if any(math.prod(op.operands[0].dims) == 0 for op in region.ops if op.operands):
        return "reductions of nothing"
    if not computable(region):
        return "an operation that is not computed element by element"
    if not all(root.tensor.size for root in region.results):
        return ""
    inner = [math.prod(step.inner) for step in _passes(region, outer)]
    rows = math.prod(region.results[0].dims[:outer])
    return unaligned(windows) or may_be_empty(rows, *inner)


def emit(
    region: Region, target: NvidiaTarget, flops: float, windows: Windows = NONE, parts: int = 1
) -> KernelCode:
    """The kernel of a `rows` fusion's region; `parts`: into how many blocks divide a row that
    threads of one do not keep."""
    outer = outer_rank(region)
    assert outer is not None
    if not all(root.tensor.size for root in region.results):
        return nothing(region, target, flops)
    kernel = FusionKernel(region, target, windows)
    passes = _passes(region, outer)
    rows, longest = math.prod(region.results[0].dims[:outer]), _longest(passes)
    # Few long rows leave multiprocessors idle: at least those that work get more threads.
    few = at_hint(rows) < target.architecture.multiprocessors and cost(region) <= LIGHT
    most = 2 * LONGEST if few and at_hint(longest) > WARP * LONGEST * KEPT else LONGEST
    cut = choose(region, rows, longest, target, most)
    summed = next(math.prod(step.inner) for step in passes if step.reductions)
    if parts > 1 and cut.copies(summed, cut.width):
        divided.emit(kernel, outer, passes, cut, parts)
        return kernel.finish(flops)
    code = RowCode(kernel, "rows", outer, cut)
    for step in passes:
        code.run(step)
    code.finish()
    return kernel.finish(flops)


def _passes(region: Region, outer: int) -> Sequence[RowPass]:
    return plan(region, outer, lambda count: True)


def _longest(passes: Sequence[RowPass]) -> int:
    return max((math.prod(step.inner) for step in passes), key=at_hint)
