"""Fusions for the tests of loops, checked in the simulator beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.launch import KernelCode
from girih.backends.nvidia.simulator import Report
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.types import F32, ElementType, TensorType

from .. import harness

SCALAR = TensorType((), F32)


def kind(*dims: int, element: ElementType = F32) -> TensorType:
    return TensorType(dims, element)


def inputs_for(types: Sequence[TensorType], seed: int = 0) -> list[np.ndarray]:
    """Random arrays: normal floats, small integers."""
    generator = np.random.default_rng(seed)
    made = []
    for type in types:
        if type.element.is_integer:
            limit = min(100, (1 << (type.element.bits - 1)) - 1)
            made.append(np.asarray(generator.integers(0, limit, type.dims)).astype(type.dtype))
        elif type.element.is_bool:
            made.append(np.asarray(generator.integers(0, 2, type.dims)).astype(bool))
        elif type.element.is_complex:
            parts = [generator.standard_normal(type.dims) for _ in range(2)]
            made.append(np.asarray(parts[0] + 1j * parts[1]).astype(type.dtype))
        else:
            made.append(np.asarray(generator.standard_normal(type.dims)).astype(type.dtype))
    return made


def operation(types: Sequence[TensorType], body: Callable[..., Any], fusion: str) -> Op:
    return harness.fusion(fusion, build_region(types, body))


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
    code = emit(op, harness.TARGET)
    assert bool(code.notes) != fast, code.notes
    harness.check(op, inputs or inputs_for(types), tolerance=tolerance, emitter=lambda: code)
    return code


def counted(
    types: Sequence[TensorType], body: Callable[..., Any], fusion: str = "loop"
) -> tuple[KernelCode, list[Report]]:
    """The kernel, and what the simulator counted of each launch."""
    op = operation(types, body, fusion)
    code = emit(op, harness.TARGET)
    reports: list[Report] = []
    harness.run(op, inputs_for(types), code=code, reports=reports, counters=True, checks=False)
    return code, reports
