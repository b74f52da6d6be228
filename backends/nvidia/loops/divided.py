"""`rows` fusions of few long rows: several blocks divide each.

A pass whose reductions later ones need is a launch: blocks fold their parts of a row into scratch.
Every block of the launches after it joins the parts of its row, all in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ... import llvm
from ...llvm.elements import Register
from ...llvm.index import Affine, LoopAxis, of_axis
from ...plain.monoid import Reduction
from ...plain.passes import RowPass
from ..capabilities import ROW_PARTS
from ..target import WARP
from .head import FusionKernel
from .line import ThreadRow
from .partials import Partials
from .row_code import RowCode, RowCut


def emit(
    kernel: FusionKernel, outer: int, passes: Sequence[RowPass], cut: RowCut, parts: int
) -> None:
    """The launches of a fusion whose rows are divided into so many parts."""
    cut = replace(cut, lanes=WARP, warps=ROW_PARTS.threads // WARP)
    folds = [step for step in passes if step.reductions]
    rows = math.prod(kernel.region.results[0].dims[:outer])
    kept = [Partials(kernel, step.reductions, rows * parts) for step in folds]
    count = math.prod(folds[0].inner)
    for number, step in enumerate(folds):
        memory = [one.parameter for one in kept[: number + 1]]
        code = RowCode(kernel, f"fold{number}", outer, cut, parts, memory)
        _join(code, folds[:number], kept)
        totals = code.folded(step, parts)
        f = code.f
        with code.scopes.branch(f.compare("eq", code.part.thread, 0)):
            kept[number].put(code.emitter, code.part.extra[number], _here(code), totals)
        code.finish()
    code = RowCode(kernel, "roots", outer, cut, parts, [one.parameter for one in kept])
    _join(code, folds, kept)
    for step in passes:
        if step.roots and math.prod(step.inner) == count:
            line = code.line(step, parts)
            for place, guard in line.places():
                code.store(step, place, line.width, guard)
        elif step.roots:
            # What has other elements belongs to the first block of the row.
            assert code.number is not None
            with code.scopes.branch(code.f.compare("eq", code.number, 0)):
                for place, guard in code.line(step).places():
                    code.store(step, place, code.line(step).width, guard)
    code.finish()


def _here(code: RowCode) -> Affine:
    """The place of this block's values: (row, part)."""
    assert code.number is not None
    return code.place * code.parts + of_axis(LoopAxis(code.number, code.parts))


def _join(code: RowCode, folds: Sequence[RowPass], kept: Sequence[Partials]) -> None:
    """The reductions of launches before this one, complete in every thread."""
    for step, partials, base in zip(folds, kept, code.part.extra, strict=False):
        line = ThreadRow(code.part, code.group, code.parts, 1)

        def read(
            reduction: Reduction,
            at: Affine,
            width: int,
            partials: Partials = partials,
            base: llvm.Value = base,
        ) -> list[Register]:
            del width
            return partials.get(code.emitter, base, code.place * code.parts + at, reduction)

        for reduction, total in zip(step.reductions, line.fold(step.reductions, read), strict=True):
            code.conclude(reduction, total)
