"""The CPU's way from a simplified module to code, stage by stage."""

from __future__ import annotations

from collections.abc import Callable

from ...hlo.graph import Module
from ...hlo.verify import FUSED, verify
from ...optimizer.fusion import Fuse
from ...optimizer.schedule import schedule
from ...options import Options
from .. import Compiled
from .build import build
from .codegen import host_target


def lower_cpu(module: Module, options: Options, say: Callable[[str], None]) -> Compiled:
    """Kernels for this machine; UnsupportedError lists all operations without one."""
    target = host_target(options.cpu_level)
    say("fuse")
    fused = Fuse()(module)
    verify(fused, FUSED)
    stored = module
    say("schedule")
    steps = schedule(fused)
    say("emit")
    plan, image = build(steps, target, fused.notes)
    weights = {name: weight.array for name, weight in stored.weights.items()}
    constants = {name: dense.array for name, dense in steps.constants.items()}
    return Compiled(plan, image, stored, weights, constants)
