"""Simulated devices: GPUs' code runs without a GPU."""

from __future__ import annotations

from typing import Any

from .runtime.devices.driver import OutOfMemory


def simulated_gpu(target: str) -> Any:
    """A simulated device for a target such as "nvidia:sm_90a": a runtime/devices/driver.py
    `Driver`. The backend and its simulator are imported when one is asked for."""
    from .backends.nvidia.simulator.driver import SimulatedGpu
    from .backends.nvidia.target import target as find_target

    name = target.partition("@")[0].partition(":")[2]
    return SimulatedGpu(find_target(name).architecture, OutOfMemory)
