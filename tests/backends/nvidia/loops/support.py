"""Fusions for the tests of loops, checked in the simulator beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from girih.backends.nvidia.launch import KernelCode
from girih.backends.nvidia.simulator import Report
from girih.backends.nvidia.target import NvidiaTarget
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.types import TensorType

from ...support import inputs_for as inputs_for
from ...support import kind as kind
from .. import harness


def operation(types: Sequence[TensorType], body: Callable[..., Any], fusion: str) -> Op:
    return harness.fusion(fusion, build_region(types, body))


def emit(op: Op, on: NvidiaTarget | None = None) -> KernelCode:
    """The kernel of an operation that stays one; by default on the harness's target."""
    (code,) = harness.emitted(op, on or harness.TARGET).codes.values()
    return code


def check(
    types: Sequence[TensorType],
    body: Callable[..., Any],
    fusion: str = "loop",
    tolerance: float = 0.0,
    *,
    fast: bool = True,
    inputs: Sequence[np.ndarray] | None = None,
) -> KernelCode:
    """The fusion's kernel agrees with the interpreter. `fast`: it is not the plain way's."""
    op = operation(types, body, fusion)
    code = emit(op)
    assert bool(code.notes) != fast, code.notes
    harness.check(op, inputs or inputs_for(types), tolerance=tolerance, emitter=lambda: code)
    return code


def counted(
    types: Sequence[TensorType], body: Callable[..., Any], fusion: str = "loop"
) -> tuple[KernelCode, list[Report]]:
    """The kernel, and what the simulator counted of each launch."""
    op = operation(types, body, fusion)
    code = emit(op)
    reports: list[Report] = []
    harness.run(op, inputs_for(types), code=code, reports=reports, counters=True, checks=False)
    return code, reports
