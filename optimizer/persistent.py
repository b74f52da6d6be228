"""All steps of a plan as one cooperative launch: whether they can be, where blocks meet, and where
arguments lie."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ..hlo.errors import UserError
from ..specs.generated import plan_pb2
from .merges import ALIGNMENT, places_of

HEADER = 16  # bytes of the table before the arguments: addresses of the barrier and of the host


class Persistence(NamedTuple):
    """What a target gives a persistent launch: the blocks that are resident together whatever they
    need, and bytes of parameters."""

    blocks: int
    parameter_bytes: int


def persistent(plan: plan_pb2.Plan, waiting: Collection[int], given: Persistence) -> None:
    """Sets the plan's `persistent`; UserError, with the line, where its steps cannot be one launch.

    waiting: the steps that touch what others before them may not be done with.
    """
    made = plan.persistent
    looping = _in_loops(plan)
    end = HEADER
    for number, step in enumerate(plan.steps):
        kind = step.WhichOneof("action")
        own = made.steps.add()
        if kind == "run":
            end = _add_run(plan, step.run, own, end)
        elif kind in ("branch_if_false", "switch"):
            own.places.append(end)
            end += 8
        elif kind != "jump":
            raise refused(step, "processes exchange here")
        if number in waiting or (kind in ("branch_if_false", "switch") and number in looping):
            made.barriers.append(number)
    made.table_bytes = -(-end // ALIGNMENT) * ALIGNMENT
    made.blocks = max(1, min(made.blocks, given.blocks))
    made.threads = max(made.threads, 32)
    if made.table_bytes > given.parameter_bytes:
        raise UserError(
            f"schedule='persistent': the arguments of all kernels are {made.table_bytes} bytes, an "
            f"entry takes {given.parameter_bytes}; take 'graph' or 'host', or leave it out"
        )


def _add_run(plan: plan_pb2.Plan, run: Any, own: Any, end: int) -> int:
    """Adds the launches of a step; where the table ends then."""
    kernel, made = plan.kernels[run.kernel], plan.persistent
    if run.sizes:
        raise refused(run, "calls decide its sizes", kernel)
    for launch in kernel.launches:
        x, y, z = launch.block
        if y * z != 1:
            raise refused(run, f"its blocks of {x} x {y} x {z} threads are no rows", kernel)
        if launch.cluster:
            raise refused(run, "it runs in clusters", kernel)
        made.threads = max(made.threads, -(-x // 32) * 32)
        made.shared_bytes = max(made.shared_bytes, launch.shared_bytes)
        made.blocks = max(made.blocks, launch.grid[0] * launch.grid[1] * launch.grid[2])
        places, size = places_of(launch)
        begin = -(-end // ALIGNMENT) * ALIGNMENT if size else end
        own.places.extend([begin + place for place in places])
        end = begin + size
    return end


def refused(step: Any, why: str, kernel: Any = None) -> UserError:
    """The error for a step that is in the way, a run of a `kernel`, or what processes do."""
    places = [*kernel.origins] if kernel is not None else []
    if kernel is not None and step.HasField("origin"):
        places.insert(0, step.origin)
    line = f"{places[0].file}:{places[0].line}: " if places and places[0].file else ""
    what = f"kernel {kernel.name}: " if kernel is not None else ""
    return UserError(
        f"{line}schedule='persistent': {what}{why}, so that no one launch runs all steps; take "
        "'graph' or 'host', or leave it out"
    )


def _in_loops(plan: plan_pb2.Plan) -> set[int]:
    """The steps between the begin of a loop and a jump back to it."""
    found: set[int] = set()
    for number, step in enumerate(plan.steps):
        if step.WhichOneof("action") == "jump" and step.jump.target <= number:
            found.update(range(step.jump.target, number + 1))
    return found
