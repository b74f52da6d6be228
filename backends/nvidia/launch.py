"""What an emitter of GPU kernels hands over: code, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...specs.generated import plan_pb2


@dataclass(frozen=True)
class Memory:
    """Memory of a kernel: operand or result `slot` (operands first, then results), or, where
    `slot` is negative, the kernel's scratch; `offset` in bytes."""

    slot: int
    offset: int = 0


SCRATCH = -1


@dataclass(frozen=True)
class TensorMap:
    """A box of global memory that the copy engine reads or writes, as cuTensorMapEncodeTiled
    takes it: dims fastest first in elements, strides in bytes of dims 1.., box in elements,
    `swizzle` in bytes (0, 32, 64 or 128). Elements outside are read as 0 and not written. `steps`:
    every so many-th element of the box is copied, () for all."""

    memory: Memory
    element: str  # element type's name, "bf16"
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Immediate:
    """Little-endian bytes of a parameter that is a number."""

    data: bytes


Argument = Memory | TensorMap | Immediate
Extent = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One start of an entry; sizes in blocks (`grid`), threads (`block`), blocks (`cluster`).
    `persistent`: blocks walk tiles by their number, one block on each multiprocessor; any number of
    whole clusters is right."""

    symbol: str
    grid: Extent
    block: Extent
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0  # dynamic shared memory of a block
    cluster: Extent = (1, 1, 1)
    persistent: bool = False

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z


@dataclass(frozen=True)
class KernelCode:
    """One kernel: `text` is LLVM IR that defines the entries of `launches`, or PTX (`language`).

    Launches run one after the other on one stream. `scratch_bytes` of global memory belong to the
    kernel while it runs; their contents are undefined at first.
    """

    text: str
    launches: tuple[Launch, ...]
    flops: float
    bytes: float  # read plus written, each counted once
    scratch_bytes: int = 0
    notes: tuple[str, ...] = ()
    language: str = "llvm"
    approximate: tuple[str, ...] = ()  # operations that may be by approximate formulas


def message(launch: Launch, symbol: str) -> Any:
    """The plan_pb2.Launch of a launch whose entry is called `symbol` in its module."""
    made = plan_pb2.Launch(
        entry=symbol, grid=launch.grid, block=launch.block, shared_bytes=launch.shared_bytes
    )
    if launch.cluster != (1, 1, 1):
        made.cluster.extend(launch.cluster)
    made.persistent = launch.persistent
    for argument in launch.arguments:
        one = made.arguments.add()
        if isinstance(argument, Immediate):
            one.immediate = argument.data
        elif isinstance(argument, TensorMap):
            one.tensor_map.memory.CopyFrom(_memory(argument.memory))
            one.tensor_map.element_type = argument.element
            one.tensor_map.dims.extend(argument.dims)
            one.tensor_map.strides.extend(argument.strides)
            one.tensor_map.box.extend(argument.box)
            one.tensor_map.swizzle = argument.swizzle
            one.tensor_map.steps.extend(argument.steps)
        else:
            one.memory.CopyFrom(_memory(argument))
    return made


def _memory(memory: Memory) -> Any:
    scratch = memory.slot < 0
    slot = 0 if scratch else memory.slot
    return plan_pb2.LaunchMemory(slot=slot, scratch=scratch, offset=memory.offset)
