"""Targets that a program can run on, each in a module of its own that is imported when needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...hlo.errors import UserError

Array = np.ndarray[Any, Any]

# Target -> where its variant class is.
TARGETS = {"cpu": ("cpu", "CpuVariant"), "null": ("null", "NullVariant")}


class DeviceVariant(Protocol):
    """A plan, its code and weights, ready to run; immutable, shared by all threads."""

    def new_context(self) -> Any:
        """What one call at a time needs: arena, scratch, tables."""
        ...

    def run(
        self,
        context: Any,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        profile: bool = False,
    ) -> Sequence[Any] | None:
        """Read `inputs`, fill `outputs`; all C-contiguous and of the plan's types."""
        ...


def check_machine(plan: Any) -> None:
    """UserError if this machine cannot run the plan's code: another processor, missing features."""
    if plan.target == "cpu":
        importlib.import_module(".cpu", __name__).check_machine(plan)


def open_variant(
    plan: Any, image: bytes | memoryview, weights: Mapping[str, Array], threads: int | None
) -> DeviceVariant:
    """The variant of a plan on this machine; UserError if the machine cannot run it."""
    if plan.target not in TARGETS:
        raise UserError(
            f"this girih runs the targets {', '.join(TARGETS)}; the program is for {plan.target!r}"
        )
    module, name = TARGETS[plan.target]
    variant = getattr(importlib.import_module(f".{module}", __name__), name)
    return variant(plan, image, weights, threads)
