"""Reductions over trailing dims as passes over a row.

Each pass reads the row once and computes all reductions that depend on earlier passes only; the
last passes compute the roots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...hlo.deciding import surely_at_most
from ...hlo.graph import Op, Region, Value
from .frame import weight
from .monoid import Reduction

MAXIMUM_SCRATCH = 4 << 20


@dataclass
class RowPass:
    """One run over the elements of a row: reductions of one stage, or roots."""

    inner: tuple[int, ...]
    reductions: list[Reduction] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    saves: list[Value] = field(default_factory=list)

    def targets(self, region: Region) -> list[Value]:
        wanted = [value for r in self.reductions for value in r.inputs]
        return wanted + [region.results[number] for number in self.roots]


def plan(region: Region, outer: int, straight: Callable[[int], bool]) -> list[RowPass]:
    """The passes in order, with what each keeps for later ones (none where code is straight)."""
    stages: dict[Value, int] = {}  # how many reductions lie behind a value, one after another
    for op in region.ops:
        own = max((stages.get(value, 0) for value in op.operands), default=0)
        for result in op.results:
            stages[result] = own + (op.name == "reduce")
    passes: dict[tuple[int, bool, tuple[int, ...]], RowPass] = {}
    for op in region.ops:
        if op.name == "reduce":
            inner = op.operands[0].dims[outer:]
            stage = max(stages.get(value, 0) for value in op.operands)
            key = stage, False, inner
            passes.setdefault(key, RowPass(inner)).reductions.append(Reduction(op))
    last = len(region.ops)
    for number, root in enumerate(region.results):
        inner = root.dims[outer:]
        passes.setdefault((last, True, inner), RowPass(inner)).roots.append(number)
    ordered = [passes[key] for key in sorted(passes)]
    looped = [step for step in ordered if not straight(math.prod(step.inner))]
    _choose_saves(region, outer, looped)
    return ordered


def cone(targets: Sequence[Value], stop: set[Value]) -> dict[Op, None]:
    """The operations computed per element for these values, without those behind reductions or
    kept values."""
    found: dict[Op, None] = {}
    stack = [value for value in targets if value not in stop]
    while stack:
        op = stack.pop().op
        if op is None or op in found or op.name == "reduce":
            continue
        found[op] = None
        stack.extend(value for value in op.operands if value not in stop)
    return found


def _choose_saves(region: Region, outer: int, passes: Sequence[RowPass]) -> None:
    saved: set[Value] = set()
    total = 0
    for number, step in enumerate(passes):
        if any(r.single is None for r in step.reductions):
            continue
        mine = cone(step.targets(region), saved)
        for later in passes[number + 1 :]:
            if math.prod(later.inner) != math.prod(step.inner):
                continue
            targets = later.targets(region)
            theirs = cone(targets, saved)
            shared = {op for op in theirs if op in mine and _per_element(op, outer)}
            if not shared:
                continue
            frontier = [
                op.results[0]
                for op in theirs
                if op in shared
                and op.results[0].dims[outer:] == step.inner
                and (
                    op.results[0] in targets
                    or any(op.results[0] in user.operands for user in theirs if user not in shared)
                )
            ]
            kept = cone(frontier, saved)
            behind = sum(weight(op) for op in kept)
            read = {v for op in kept for v in op.operands if v.op is None and v.rank > outer}
            behind += len(read)
            size = sum(math.prod(step.inner) * max(4, v.element.itemsize) for v in frontier)
            if behind > 3 * len(frontier) and surely_at_most(total + size, MAXIMUM_SCRATCH):
                for value in frontier:
                    if value not in saved:
                        step.saves.append(value)
                        saved.add(value)
                total += size


def _per_element(op: Op, outer: int) -> bool:
    """Whether it is computed for each element of a row rather than once per row."""
    return math.prod(op.results[0].dims[outer:]) != 1 and not op.definition.known
