"""NVIDIA's architectures: what code for each of them may use, as data.

Facts: PTX ISA 9.0 (instructions and the versions that brought them), CUDA C++ Programming Guide,
table "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from dataclasses import dataclass

from ...hlo.errors import UserError
from ...optimizer.machine import Machine
from .. import llvm
from ..llvm.target import Target
from .machines import machine_of

TRIPLE = "nvptx64-nvidia-cuda"
WARP = 32  # threads
REGISTERS = 255  # most 32-bit registers of a thread


@dataclass(frozen=True)
class Architecture:
    """One compute capability. `version`: major * 10 + minor; `accelerated`: instructions that no
    other architecture has ("a"), so that its code runs there only. `ptx`: the oldest PTX version
    that has all we use, times ten; an older driver refuses newer ones."""

    name: str
    version: int
    ptx: int
    shared_bytes: int  # most dynamic shared memory of a block
    threads: int  # resident on one multiprocessor
    blocks: int  # resident on one multiprocessor
    multiprocessors: int  # of the largest product
    registers: int = 65536  # 32-bit ones of a multiprocessor
    accelerated: bool = False
    tensor_copies: bool = False  # the tensor memory accelerator (TMA) and mbarrier transactions
    clusters: bool = False
    warpgroups: bool = False  # wgmma, setmaxnreg
    narrow_floats: bool = False  # mma.sync and conversions of e4m3 and e5m2

    @property
    def parameter_bytes(self) -> int:
        """Most of an entry's parameters, all together."""
        return 32764 if self.ptx >= 81 else 4352


_TABLE = (
    Architecture("sm_80", 80, 80, 163 << 10, 2048, 32, 108),
    Architecture("sm_86", 86, 80, 99 << 10, 1536, 16, 84),
    Architecture("sm_89", 89, 81, 99 << 10, 1536, 24, 144, narrow_floats=True),
    Architecture(
        "sm_90a", 90, 81, 227 << 10, 2048, 32, 132, accelerated=True,
        tensor_copies=True, clusters=True, warpgroups=True, narrow_floats=True,
    ),
    Architecture(
        "sm_100a", 100, 86, 227 << 10, 2048, 32, 148, accelerated=True,
        tensor_copies=True, clusters=True, narrow_floats=True,
    ),
    Architecture(
        "sm_120a", 120, 87, 99 << 10, 1536, 24, 188, accelerated=True,
        tensor_copies=True, clusters=True, narrow_floats=True,
    ),
)  # fmt: skip
ARCHITECTURES = {one.name: one for one in _TABLE}
DEFAULT = "sm_90a"


@dataclass(frozen=True)
class NvidiaTarget(Target):
    """Code of one thread for an architecture: one lane, as emitters of plain loops see it.
    machine: which prices of kernels are about."""

    architecture: Architecture
    machine: Machine

    vector_bits = 64  # no vectors: a register of the widest element

    @property
    def name(self) -> str:
        """As a plan says it: "nvidia:sm_90a"."""
        return f"nvidia:{self.architecture.name}"

    def step_lanes(self, bits: int) -> int:
        return 1

    def lanes(self, element: str) -> int:
        return 1

    def module(self) -> llvm.Module:
        """An empty module; functions inline wherever they are called."""
        return llvm.Module("nounwind", fused=True, architecture="nvptx64")


def target(name: str, machine: str | None = None) -> NvidiaTarget:
    """The target of an architecture's name, "sm_90a"; UserError for others. machine: the path of a
    machine's file; the typical one of the architecture by default."""
    found = ARCHITECTURES.get(name)
    if found is None:
        raise UserError(
            f"target nvidia: unknown architecture '{name}'; known are {', '.join(ARCHITECTURES)}"
        )
    return NvidiaTarget(found, machine_of(name, machine))
