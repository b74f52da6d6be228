"""What a program needs of a device's memory, in words: for the error where there is too little."""

from __future__ import annotations

from ...specs.generated import plan_pb2
from ..profile import origin_text
from .launches import Program

_LISTED = 6  # buffers that are named


def memory_need(plan: plan_pb2.Plan, program: Program) -> str:
    """The bytes of each part, and what lives at the step at which temporaries are largest."""
    parts = {
        "weights": program.weight_bytes,
        "temporaries": plan.memory.arena_bytes,
        "scratch": program.scratch_bytes,
        "arguments": sum(program.inputs),
        "results": sum(program.outputs),
    }
    total = sum(parts.values())
    listed = ", ".join(f"{name} {_megabytes(size)}" for name, size in parts.items() if size)
    need = f"The program needs {_megabytes(total)} for one call at a time: {listed or 'nothing'}."
    step, live = peak(plan)
    if not live:
        return need
    largest = sorted(live, key=lambda buffer: -buffer.bytes)
    shown = "; ".join(_describe(buffer) for buffer in largest[:_LISTED])
    more = f"; {len(live) - _LISTED} more" if len(live) > _LISTED else ""
    size = _megabytes(sum(_padded(plan, buffer) for buffer in live))
    return f"{need} Temporaries are largest at {_name(plan, step)}: {size} in {shown}{more}"


def peak(plan: plan_pb2.Plan) -> tuple[int, list[plan_pb2.Buffer]]:
    """The first step with the highest sum of live temporaries, as they lie, and these."""
    temporary = [b for b in plan.buffers if b.place == plan_pb2.ARENA and b.bytes]
    change: dict[int, int] = {}
    for buffer in temporary:
        size = _padded(plan, buffer)
        change[buffer.first_step] = change.get(buffer.first_step, 0) + size
        change[buffer.last_step + 1] = change.get(buffer.last_step + 1, 0) - size
    best = now = step = 0
    for at in sorted(change):
        now += change[at]
        if now > best:
            best, step = now, at
    return step, [b for b in temporary if b.first_step <= step <= b.last_step]


def _padded(plan: plan_pb2.Plan, buffer: plan_pb2.Buffer) -> int:
    """The bytes that a buffer takes in the arena."""
    alignment = plan.arena_alignment or 1
    return -(-buffer.bytes // alignment) * alignment


def _describe(buffer: plan_pb2.Buffer) -> str:
    dims = ",".join(map(str, buffer.dims))
    steps = f"steps {buffer.first_step} to {buffer.last_step}"
    return f"{buffer.element_type}[{dims}] {_megabytes(buffer.bytes)} ({steps})"


def _name(plan: plan_pb2.Plan, step: int) -> str:
    if step < len(plan.steps) and plan.steps[step].WhichOneof("action") == "run":
        kernel = plan.kernels[plan.steps[step].run.kernel]
        place = origin_text(kernel)
        return f"step {step}, kernel {kernel.name}{place and f' ({place})'}"
    return f"step {step}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
