"""The null backend: accepts every operation and runs nothing. It plans memory and steps, so that
what the optimizer decides can be read and compared without a code generator."""

from __future__ import annotations

from collections.abc import Callable

from ...hlo.graph import Module
from ...hlo.verify import FUSED, verify
from ...optimizer.fusion import Fuse
from ...optimizer.plan import KernelFacts, Planner
from ...optimizer.schedule import schedule
from .. import Compiled


def lower_null(module: Module, say: Callable[[str], None]) -> Compiled:
    """A plan without code."""
    say("fuse")
    fused = Fuse()(module)
    verify(fused, FUSED)
    say("schedule")
    steps = schedule(fused)
    plan = Planner(steps, "null", lambda key, op: KernelFacts(1), fused.notes).run()
    weights = {name: weight.array for name, weight in module.weights.items()}
    constants = {name: dense.array for name, dense in steps.constants.items()}
    return Compiled(plan, b"", module, weights, constants)
