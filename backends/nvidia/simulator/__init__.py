"""Executes PTX in numpy: what a kernel computes, and what is wrong with it, without a GPU.

    module = parse(ptx_text)
    memory = GlobalMemory()
    address = memory.allocate(4096)
    memory.write(address, array)
    arguments = [address.to_bytes(8, "little")]
    report = launch(module, "kernel", (8, 1, 1), (128, 1, 1), arguments, memory)
    memory.read(address, np.float32, 1024)

PTX text becomes blocks of instructions (`parser`, `flow`), a block becomes one Python function over
numpy arrays whose elements are threads (`translate`), and `schedule` runs blocks until all threads
have left. Instructions stand in rooms (`instructions` lists them), one function each.
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
