"""What an emitter of GPU kernels hands over: code, and how it is launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...hlo.deciding import largest
from ...hlo.graph import Op, Value
from ...hlo.symbols import Dim, SymbolicDim, symbols_of
from ...optimizer.asynchronous.work import box_width
from ...specs.generated import plan_pb2


@dataclass(frozen=True)
class KernelMemory:
    """Memory of a kernel: operand or result `slot` (operands first, then results), or, where
    `slot` is negative, the kernel's scratch; `offset` in bytes."""

    slot: int
    offset: Dim = 0


SCRATCH = -1


@dataclass(frozen=True)
class KernelTensorMap:
    """A box of global memory that the copy engine reads or writes, as cuTensorMapEncodeTiled
    takes it: dims fastest first in elements, strides in bytes of dims 1.., box in elements,
    `swizzle` in bytes (0, 32, 64 or 128). Elements outside are read as 0 and not written. `steps`:
    every so many-th element of the box is copied, () for all."""

    memory: KernelMemory
    element: str  # element type's name, "bf16"
    dims: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()


def tensor_map(
    memory: Value,
    slot: int,
    order: Sequence[int],
    swizzle: int,
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> KernelTensorMap:
    """The map of boxes of a row-major array, of `sizes` elements, every so many-th of the array's;
    `order`, `sizes` and `steps` have the fastest dim first."""
    steps = steps or [1] * len(sizes)
    box = tuple(box_width(size, step) for size, step in zip(sizes, steps, strict=True))
    every = tuple(steps) if any(step != 1 for step in steps) else ()
    width = memory.element.bits // 8
    strides = [width * math.prod(memory.dims[dim + 1 :]) for dim in order]
    dims = tuple(memory.dims[dim] for dim in order)
    name = memory.element.name
    return KernelTensorMap(KernelMemory(slot), name, dims, tuple(strides[1:]), box, swizzle, every)


@dataclass(frozen=True)
class Immediate:
    """Little-endian bytes of a parameter that is a number."""

    data: bytes


@dataclass(frozen=True)
class Size:
    """A parameter that is a size, which the call decides, as i64."""

    size: SymbolicDim


Argument = KernelMemory | KernelTensorMap | Immediate | Size
Extent = tuple[Dim, Dim, Dim]


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


class EmitterDecisions(Protocol):
    """What an emitter of tile functions has decided; `kernel` is the one that it has seen."""

    @property
    def kernel(self) -> Op: ...

    def layouts(self) -> Mapping[Value, str]:
        """Where tiles lie."""
        ...

    def lines(self, names: Mapping[Value, str]) -> list[str]:
        """What runs when, of values with these names."""
        ...


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
    scratch_bytes: Dim = 0
    notes: tuple[str, ...] = ()
    language: str = "llvm"
    approximate: tuple[str, ...] = ()  # operations that may be by approximate formulas
    decided: EmitterDecisions | None = field(default=None, compare=False, repr=False)

    @property
    def sizes(self) -> tuple[SymbolicDim, ...]:
        """What a call decides of the launches, in the order in which they name it."""
        found: dict[SymbolicDim, None] = {}
        for launch in self.launches:
            named: list[Dim] = [*launch.grid]
            for argument in launch.arguments:
                if isinstance(argument, Size):
                    named.append(argument.size)
                elif isinstance(argument, KernelTensorMap):
                    named += [argument.memory.offset, *argument.dims, *argument.strides]
                elif isinstance(argument, KernelMemory):
                    named.append(argument.offset)
            found.update(dict.fromkeys(one for one in named if symbols_of(one)))
        return tuple(found)


def message(launch: Launch, symbol: str, sizes: tuple[SymbolicDim, ...] = ()) -> Any:
    """The plan_pb2.Launch of a launch whose entry is called `symbol` in its module. `sizes`: its
    kernel's."""

    def formula(size: Any) -> int:
        return 1 + sizes.index(size) if isinstance(size, SymbolicDim) else 0

    made = plan_pb2.Launch(
        entry=symbol, grid=map(largest, launch.grid), block=launch.block,
        shared_bytes=launch.shared_bytes,
    )  # fmt: skip
    if any(map(formula, launch.grid)):
        made.grid_formulas.extend(map(formula, launch.grid))
    if launch.cluster != (1, 1, 1):
        made.cluster.extend(launch.cluster)
    made.persistent = launch.persistent
    for argument in launch.arguments:
        one = made.arguments.add()
        if isinstance(argument, Immediate):
            one.immediate = argument.data
        elif isinstance(argument, Size):
            one.size = sizes.index(argument.size)
        elif isinstance(argument, KernelTensorMap):
            one.tensor_map.memory.CopyFrom(_memory(argument.memory, formula))
            one.tensor_map.element_type = argument.element
            one.tensor_map.dims.extend(map(largest, argument.dims))
            one.tensor_map.strides.extend(map(largest, argument.strides))
            if any(map(formula, argument.dims)):
                one.tensor_map.dim_formulas.extend(map(formula, argument.dims))
            if any(map(formula, argument.strides)):
                one.tensor_map.stride_formulas.extend(map(formula, argument.strides))
            one.tensor_map.box.extend(argument.box)
            one.tensor_map.swizzle = argument.swizzle
            one.tensor_map.steps.extend(argument.steps)
        else:
            one.memory.CopyFrom(_memory(argument, formula))
    return made


def _memory(memory: KernelMemory, formula: Callable[[Any], int]) -> Any:
    scratch = memory.slot < 0
    slot = 0 if scratch else memory.slot
    return plan_pb2.LaunchMemory(
        slot=slot, scratch=scratch, offset=largest(memory.offset),
        offset_formula=formula(memory.offset),
    )  # fmt: skip
