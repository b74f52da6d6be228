"""Proves of a plan's merged launches that each starts its steps as they would be started alone.

Steps that are one launch run at a time, each on blocks of its own and with arguments of its own:
they follow each other, control enters them at the first one alone, none waits for another one, and
what one writes no other touches. Shares no code with merges.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..hlo.errors import CompilerBug
from ..specs.generated import plan_pb2
from .prove_tables import check_table, sizes_of


def check_merges(
    plan: plan_pb2.Plan,
    after: Sequence[Sequence[int]],
    accesses: Sequence[Sequence[Any]],
    overlap: Callable[[Any, Any], bool],
    waits: Sequence[Sequence[tuple[int, int]]],
    meets: Sequence[bool],
) -> None:
    """Raise CompilerBug unless a plan's merged launches are right. after: where control goes on
    from each step; accesses: the memory that it touches; waits: (step, threshold) of what it waits
    for; meets: whether all before it is complete."""
    targets = {t for n, following in enumerate(after) for t in following if t != n + 1}
    seen: set[int] = set()
    for merge in plan.merges:
        steps = sorted(one.step for one in merge.steps)
        row = [*range(steps[0], min(steps[-1] + 1, len(plan.steps)))] if steps else []
        if len(steps) < 2 or steps != row or seen & {*steps}:
            raise CompilerBug(f"steps {steps} are merged, but do not follow each other apart")
        seen.update(steps)
        written: dict[int, list[Any]] = {}
        for number in steps:
            if number != steps[0] and (number in targets or meets[number]):
                raise CompilerBug(
                    f"step {number} is merged, and does not begin with step {steps[0]}"
                )
            if any(other in steps and threshold for other, threshold in waits[number]):
                raise CompilerBug(f"step {number} waits for one that it is merged with")
            written[number] = [one for one in accesses[number] if one.write]
        for number in steps:
            for other, some in written.items():
                both = [(a, b) for a in accesses[number] for b in some]
                if other != number and any(overlap(a, b) for a, b in both):
                    raise CompilerBug(f"merged steps {other} and {number} touch the same memory")
        _check_blocks(plan, merge)


def _check_blocks(plan: plan_pb2.Plan, merge: plan_pb2.Merge) -> None:
    """Every block of the launch is one of one step, whose grid has as many; it has the threads and
    the memory that the step's own has, and arguments of its own."""
    end, cells = 0, []
    for one in merge.steps:
        if plan.steps[one.step].WhichOneof("action") != "run":
            raise CompilerBug(f"step {one.step} is merged, and runs no kernel")
        launches = plan.kernels[plan.steps[one.step].run.kernel].launches
        blocks = [launch.grid[0] * launch.grid[1] * launch.grid[2] for launch in launches]
        if one.first_block != end or [one.blocks] != blocks:
            raise CompilerBug(f"step {one.step} is merged with blocks that are not its own")
        end += one.blocks
        (launch,) = launches
        x, y, z = launch.block
        clusters = launch.cluster or [0, 1, 1]
        # Copies of the engine are counted by all threads, and clusters by their blocks.
        mapped = any(argument.HasField("tensor_map") for argument in launch.arguments)
        fits = x == merge.threads if mapped or launch.cluster else x <= merge.threads
        if not fits or y * z != 1 or [*clusters] != [merge.cluster, 1, 1]:
            raise CompilerBug(f"step {one.step} is merged in blocks that are not as its own")
        if launch.shared_bytes > merge.shared_bytes:
            raise CompilerBug(f"step {one.step} is merged in blocks with too little memory")
        sizes = sizes_of(launch)
        if len(sizes) != len(one.places):
            raise CompilerBug(f"step {one.step} is merged, and has arguments without a place")
        cells += zip(one.places, sizes, strict=True)
    check_table(cells, merge.table_bytes, "a merged launch")
