"""Executes PTX in numpy: what a kernel computes, and what is wrong with it, without a GPU.

In: PTX text, a launch's sizes and arguments, memory. Out: the memory as it is then, and a report:
races, deadlocks, accesses outside, traffic. The text becomes blocks of instructions (`parser`,
`flow`), a block one Python function over arrays whose elements are threads (`translate`), which
`schedule` runs. `driver.py` makes a device of it. Imported by `girih`.
"""

from .launch import launch, parse
from .memory import GlobalMemory
from .report import Fault, Report, SimulationError
from .syntax import Module
from .tensor_maps import encode_tensor_map

__all__ = [
    "Fault",
    "GlobalMemory",
    "Module",
    "Report",
    "SimulationError",
    "encode_tensor_map",
    "launch",
    "parse",
]
