"""The null backend: accepts every operation and runs nothing. It plans memory and steps, so that
what the optimizer decides can be read and compared without a code generator.

In: schedules. Out: plans without code. Imported by name alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...hlo.errors import UserError
from ...optimizer.plan import KernelFacts, Planner
from ...optimizer.tuning import Tuner
from ...options import Options
from ..interface import Backend, Scheduled


def backend(name: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend of target null."""
    if tuner is not None and tuner.measure:
        raise UserError("target null runs nothing, so there is nothing to measure; leave it out")
    return Backend(name, build)


def build(schedules: Sequence[Scheduled]) -> tuple[list[Any], bytes]:
    """Plans without code."""
    planners = [Planner(s, "null", lambda key, op: KernelFacts(1), notes) for s, notes in schedules]
    return [planner.run() for planner in planners], b""
