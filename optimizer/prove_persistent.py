"""Proves of a plan that is one persistent launch that its barriers order what has to be ordered.

Shares no code with persistent.py. Along all ways that control can take it follows which steps
some block may still be in: those since the last barrier. None of these may touch what a step
touches, one of them writing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..hlo.errors import CompilerBug
from ..specs.generated import plan_pb2
from .prove_tables import check_table, sizes_of


def check_persistent(
    plan: plan_pb2.Plan,
    after: Sequence[Sequence[int]],
    accesses: Sequence[Sequence[Any]],
    overlap: Callable[[Any, Any], bool],
    resident: int,
) -> None:
    """Raise CompilerBug unless a plan's persistent launch is right. after: where control goes on
    from each step; accesses: the memory that it touches; resident: blocks of the device, at least.
    """
    said = plan.persistent
    if not 1 <= said.blocks <= resident:
        raise CompilerBug(f"a persistent launch of {said.blocks} blocks, {resident} are resident")
    if len(said.steps) != len(plan.steps):
        raise CompilerBug("a persistent launch has not the steps of its plan")
    _check_arguments(plan)
    barriers = {*said.barriers}
    pending = [0] * (
        len(plan.steps) + 1
    )  # steps that a block may be in when another one comes, as bits
    changed, seen = {0}, {0}
    while changed:
        number = changed.pop()
        if number == len(plan.steps):
            continue
        left = (0 if number in barriers else pending[number]) | 1 << number
        for target in after[number]:
            if left | pending[target] != pending[target] or target not in seen:
                pending[target] |= left
                seen.add(target)
                changed.add(target)
    for number in range(len(plan.steps)):
        if number in barriers:
            continue
        for other in range(len(plan.steps)):
            if pending[number] >> other & 1 and _conflict(
                accesses[number], accesses[other], overlap
            ):
                raise CompilerBug(
                    f"step {number} may begin while a block is in step {other}, and both touch the "
                    "same memory"
                )
    _check_asked(plan, barriers)


def _conflict(
    one: Sequence[Any], other: Sequence[Any], overlap: Callable[[Any, Any], bool]
) -> bool:
    return any((a.write or b.write) and overlap(a, b) for a in one for b in other)


def _check_arguments(plan: plan_pb2.Plan) -> None:
    """Every argument has a place of its own, and every launch room in a block."""
    said = plan.persistent
    cells = [(0, 8), (8, 8)]
    for step, own in zip(plan.steps, said.steps, strict=True):
        kind = step.WhichOneof("action")
        sizes = [8] if kind in ("branch_if_false", "switch") else []
        for launch in plan.kernels[step.run.kernel].launches if kind == "run" else ():
            x, y, z = launch.block
            fits = x <= said.threads and y * z == 1 and not launch.cluster
            if not fits or launch.shared_bytes > said.shared_bytes:
                raise CompilerBug(f"{launch.entry} does not fit into a persistent block")
            sizes += sizes_of(launch)
        if len(sizes) != len(own.places):
            raise CompilerBug("arguments of a persistent launch have no place")
        cells += zip(own.places, sizes, strict=True)
    check_table(cells, said.table_bytes, "a persistent launch")


def _check_asked(plan: plan_pb2.Plan, barriers: set[int]) -> None:
    """Where a loop decides, the host can stop it."""
    for back, step in enumerate(plan.steps):
        if step.WhichOneof("action") == "jump" and step.jump.target <= back:
            inside = range(step.jump.target, back)
            kinds = {n: plan.steps[n].WhichOneof("action") for n in inside}
            if any(k in ("branch_if_false", "switch") and n not in barriers
                   for n, k in kinds.items()):  # fmt: skip
                raise CompilerBug(f"the loop that begins at step {inside.start} cannot be stopped")
