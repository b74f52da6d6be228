"""Whether a second worker of a CPU is worth it: of a kernel, of a step, and of a whole call.

Also the runtime's question where calls decide sizes, so nothing else is imported here.
"""

from __future__ import annotations

# Of one worker, in a microsecond; bytes from a cache that all share, and from main memory.
FLOPS, NEAR_BYTES, FAR_BYTES = 40e3, 20e3, 8e3
_STEP, _CALL, _BARRIER = 1.5, 40.0, 0.5  # microseconds: a shorter step; to wake workers; to meet
_UNITS, _UNIT_BYTES = 20000.0, 8  # elements of a kernel that are too few, and bytes of one


def step_time(flops: float, moved: float) -> float:
    """Microseconds in which one worker runs a step."""
    return flops / FLOPS + moved / NEAR_BYTES


def step_pays(flops: float, moved: float) -> bool:
    """Whether several workers take part in a step: meeting costs as much as a shorter one."""
    return step_time(flops, moved) > _STEP


def kernel_pays(work: float, moved: float) -> bool:
    """Whether a kernel is for several workers; work: elements, each as an addition in memory."""
    return max(work, moved / _UNIT_BYTES) >= _UNITS


def step_saves(flops: float, moved: float) -> float:
    """Microseconds that a second worker saves of a step whose data come from main memory."""
    return max(flops / FLOPS, moved / FAR_BYTES) / 2


def call_loses(meetings: float) -> float:
    """Microseconds that workers cost a call in which they meet so often."""
    return _CALL + _BARRIER * meetings
