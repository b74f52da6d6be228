"""Descriptions of GPUs for cost models: a typical one of some architectures, one file each.

Numbers: data sheets (clock, units, capacities) and microbenchmarks of Hopper (latencies in cycles,
bytes per cycle), see docs/architecture.md; none was measured by us yet.
"""

from __future__ import annotations

import functools
from importlib import resources

from ....optimizer.machine import Machine, from_json, read_machine
from ..target import Architecture

TYPICAL = {"sm_80": "sm_80", "sm_86": "sm_80", "sm_89": "sm_80"}  # others: sm_90a


@functools.cache
def typical(name: str) -> Machine:
    """The typical machine of an architecture's file: "sm_80" or "sm_90a"."""
    file = f"{name}.json"
    return from_json(resources.files(__name__).joinpath(file).read_text("utf-8"), file)


def machine_of(architecture: Architecture, choice: str | None = None) -> Machine:
    """The machine that code for an architecture is made for; `choice`: the path of a file."""
    if choice is not None:
        return read_machine(choice)
    return typical(TYPICAL.get(architecture.name, "sm_90a"))
