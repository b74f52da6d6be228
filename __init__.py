"""girih: exports of JAX and PyTorch become one bundle that runs without a framework.

The names below are the public API. Each is fetched from its room at first use, so that
`import girih` costs a few milliseconds and imports no framework and no compiler.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .compiler import compile  # noqa: A004
    from .exports import export_stablehlo
    from .foreign import foreign_kernel
    from .frontends.kernel.names import cdiv
    from .frontends.kernel.values import auto
    from .frontends.shard import shard
    from .frontends.torch.joint import joint_graph
    from .frontends.torch.placements import shardings_of
    from .hlo.distributed import ParallelResults, interpret_parallel
    from .hlo.errors import (
        CompilerBug,
        ExportBlockers,
        ImportBlockers,
        MemoryLimitError,
        UnsupportedError,
        UserError,
    )
    from .hlo.graph import Module
    from .hlo.interpret import interpret
    from .imports import import_model
    from .jitted import jit
    from .kernels import Kernel, kernel
    from .options import Options
    from .partitioning import partition
    from .runtime.loading import load
    from .runtime.program import Program

_ROOMS = {
    "CompilerBug": ".hlo.errors",
    "ExportBlockers": ".hlo.errors",
    "ImportBlockers": ".hlo.errors",
    "Kernel": ".kernels",
    "Module": ".hlo.graph",
    "Options": ".options",
    "ParallelResults": ".hlo.distributed",
    "Program": ".runtime.program",
    "UnsupportedError": ".hlo.errors",
    "MemoryLimitError": ".hlo.errors",
    "UserError": ".hlo.errors",
    "auto": ".frontends.kernel.values",
    "cdiv": ".frontends.kernel.names",
    "compile": ".compiler",
    "export_stablehlo": ".exports",
    "foreign_kernel": ".foreign",
    "import_model": ".imports",
    "interpret": ".hlo.interpret",
    "interpret_parallel": ".hlo.distributed",
    "jit": ".jitted",
    "joint_graph": ".frontends.torch.joint",
    "kernel": ".kernels",
    "load": ".runtime.loading",
    "partition": ".partitioning",
    "shard": ".frontends.shard",
    "shardings_of": ".frontends.torch.placements",
}

_MODULES = ("foreign", "language")  # whose names belong to them

__all__ = [
    "CompilerBug",
    "ExportBlockers",
    "ImportBlockers",
    "Kernel",
    "MemoryLimitError",
    "Module",
    "Options",
    "ParallelResults",
    "Program",
    "UnsupportedError",
    "UserError",
    "__version__",
    "auto",
    "cdiv",
    "compile",
    "export_stablehlo",
    "foreign_kernel",
    "import_model",
    "interpret",
    "interpret_parallel",
    "jit",
    "joint_graph",
    "kernel",
    "load",
    "partition",
    "shard",
    "shardings_of",
]


def __getattr__(name: str) -> Any:
    """The public object `name`, imported from its room the first time it is asked for."""
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _ROOMS:
        raise AttributeError(f"module 'girih' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOMS[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _end_all_processes() -> None:
    importlib.import_module(".runtime.distributed.started", __name__).end_all_processes()


# MPICH's launcher leaves the others waiting where one fails before MPI starts; Open MPI's ends
# them, but may hang where they are just starting it.
if os.environ.keys() & {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}:
    from .runtime.distributed.launch import end_together

    end_together(_end_all_processes)
