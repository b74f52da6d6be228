"""What every device asks of a plan before any of it runs."""

from __future__ import annotations

from ...hlo.errors import UserError
from ...specs.generated import plan_pb2

MOST_DIMS = 64  # of a buffer, as of numpy's arrays


def malformed(reason: str) -> UserError:
    """The error for a plan that contradicts itself."""
    return UserError(f"the plan is malformed: {reason}; compile the program again")


def check_buffers(plan: plan_pb2.Plan) -> None:
    """UserError where a buffer lies outside the memory that it is given, or has more dims than any
    array; IndexError where one names an argument or a result that is not there."""
    given = {
        plan_pb2.INPUT: [plan.buffers[index].bytes for index in plan.inputs],
        plan_pb2.OUTPUT: [plan.buffers[index].bytes for index in plan.outputs],
    }
    arena = plan.memory.arena_bytes
    for buffer in plan.buffers:
        if len(buffer.dims) > MOST_DIMS:
            raise malformed(f"a buffer has {len(buffer.dims)} dims")
        if buffer.place == plan_pb2.ARENA:
            fits = buffer.offset + buffer.bytes <= arena
        elif buffer.place == plan_pb2.WORKER:
            fits = buffer.offset + buffer.bytes <= plan.worker_bytes
        else:
            sizes = given.get(buffer.place)
            fits = sizes is None or buffer.bytes <= sizes[buffer.index]
        if not fits:
            raise malformed("a buffer lies outside its memory")
