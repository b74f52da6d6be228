"""Backends turn a simplified module into a plan and code for one target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.graph import Module
from ..options import Options

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Compiled:
    """What one target adds to a bundle."""

    plan: Any  # plan_pb2.Plan
    image: bytes
    stored: Module  # the program that the bundle keeps: same meaning, weights as the plan reads them
    weights: Mapping[str, Array]  # of `stored`
    constants: Mapping[str, Array] = field(default_factory=dict)  # of this variant alone


def lower(
    module: Module, target: str, options: Options, say: Callable[[str], None]
) -> Compiled:
    """Code for a simplified module; UserError if there is no such backend."""
    if target == "cpu":
        from .cpu.lower import lower_cpu

        return lower_cpu(module, options, say)
    if target == "null":
        from .null import lower_null

        return lower_null(module, say)
    raise UserError(f"there is no backend for target '{target}'")
