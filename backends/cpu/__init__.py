"""The CPU backend: kernels as LLVM IR, compiled and linked when the program is compiled, so that a
bundle runs without LLVM."""

from __future__ import annotations

from typing import Any

from ...optimizer.schedule import Schedule
from ...options import Options
from .. import Backend


def backend(options: Options) -> Backend:
    """The backend for this machine, or for the lower level that the options ask for."""
    from .build import build
    from .codegen import host_target
    from .contract.packing import packing_for

    target = host_target(options.cpu_level)

    def build_for_target(schedule: Schedule, notes: tuple[str, ...]) -> tuple[Any, bytes]:
        return build(schedule, target, notes)

    return Backend("cpu", build_for_target, lambda op: packing_for(op, target))
