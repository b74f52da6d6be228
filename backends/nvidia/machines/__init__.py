"""Descriptions of GPUs for cost models: a typical one of some architectures, one file each.

Clocks, units, capacities, memory: data sheets of A100 SXM (40 GB), L40S, H100 SXM, less what random
data lose to power on H100 (830 of 989 TFLOP/s, as cuBLAS). Latencies, bytes per cycle, rates of
wgmma by columns, mma.sync at 65 % of Hopper's peak: Luo et al., arXiv 2402.13499. L2 of H100, 2.5
times memory: kernels of 128 x 256 tiles without multicast that reach 660 TFLOP/s (fast.cu). Rates
by tile, other L2 caches, costs of launches and tiles are estimates: we have measured none yet. A
launch costs `sync.step` inside a CUDA graph, `sync.dispatch` outside. In: an architecture's name.
Out: its `Machine` (`optimizer/machine.py`). Imported by `backends/nvidia`.
"""

from __future__ import annotations

import functools
from importlib import resources

from ....hlo.errors import UserError
from ....optimizer.machine import Machine, digest, from_json, read_machine

# The file of each architecture.
TYPICAL = {
    "sm_80": "sm_80", "sm_86": "sm_89", "sm_89": "sm_89", "sm_90a": "sm_90a",
    "sm_100a": "sm_90a", "sm_120a": "sm_89",
}  # fmt: skip


@functools.cache
def typical(name: str) -> Machine:
    """The typical machine of an architecture's file: "sm_80", "sm_89" or "sm_90a"."""
    file = f"{name}.json"
    return from_json(resources.files(__name__).joinpath(file).read_text("utf-8"), file)


def machine_of(architecture: str, choice: str | None = None) -> Machine:
    """The machine that code for an architecture is made for; `choice`: the path of a file."""
    if choice is not None:
        if choice == "host":
            raise UserError("machine 'host' is a CPU; target nvidia takes the path of a file")
        found = read_machine(choice)
        if found.blocks is None:
            raise UserError(
                f"machine '{found.name}' has no blocks of threads; target nvidia takes a GPU's"
            )
        return found
    return typical(TYPICAL[architecture])


def label(machine: Machine) -> str:
    """What provenance calls a machine: its name, with a digest unless it is a typical one."""
    if machine.name in TYPICAL.values() and machine == typical(machine.name):
        return machine.name
    return f"{machine.name} {digest(machine)}"
