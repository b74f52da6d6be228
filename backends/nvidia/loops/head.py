"""The beginning of a kernel of a fusion: parameters, addresses, and the emitter of its elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ....hlo.deciding import estimating, surely_at_most
from ....hlo.graph import Region
from ....hlo.symbols import Dim
from ....optimizer.windows import NONE, Windows
from ... import llvm
from ...plain.frame import read_bytes
from ...plain.windows import distance
from ..frame import THREADS, Entry, Parameter, Unit
from ..launch import SCRATCH, Extent, KernelCode, KernelMemory, Launch
from ..target import NvidiaTarget
from .threads import ThreadEmitter

ALIGNMENT = 16  # bytes, of memory that is given to kernels: of the widest accesses


class FusionKernel:
    """Entries of one fusion, under construction, and their launches in order.

    `windows`: the results that begin inside of what is given for them (optimizer/windows.py).
    An operand of a result's type may lie where that result is written (`may_overwrite` of
    optimizer/overwriting.py), so only the others are known to stay as they are.
    """

    def __init__(self, region: Region, target: NvidiaTarget, windows: Windows = NONE) -> None:
        self.region, self.target, self.windows = region, target, windows
        self.unit = Unit(target)
        self.launches: list[Launch] = []
        self.scratch, self.pieces = 0, 0

    @cached_property
    def parameters(self) -> list[Parameter]:
        """One per operand and result, in order."""
        roots = [root.type for root in self.region.results]
        given = [value.type for value in self.region.arguments]
        kept = [not any(kind is root for root in roots) for kind in given]
        alone = [not any(kind is root for kind in given) for root in roots]
        operands = [
            Parameter(f"x{n}", KernelMemory(n), readonly=one, unique=one)
            for n, one in enumerate(kept)
        ]
        first = len(operands)
        results = [
            Parameter(f"y{n}", KernelMemory(first + n), unique=one) for n, one in enumerate(alone)
        ]
        return operands + results

    def scratch_memory(self, size: int) -> Parameter:
        """A piece of the kernel's scratch, as a parameter of an entry."""
        offset = self.scratch
        self.scratch += -(-size // 256) * 256
        self.pieces += 1
        label = f"s{offset}" if isinstance(offset, int) else f"piece{self.pieces}"
        return Parameter(label, KernelMemory(SCRATCH, offset))

    def entry(
        self,
        symbol: str,
        threads: int = THREADS,
        extra: Sequence[Parameter] = (),
        minimum_blocks: int = 0,
    ) -> FusionEntry:
        """An entry under construction, whose parameters `extra` come last."""
        parameters = [*self.parameters, *extra]
        entry = self.unit.kernel(symbol, parameters, threads, minimum_blocks=minimum_blocks)
        return FusionEntry(self, entry)

    def finish(self, flops: float) -> KernelCode:
        moved = float(sum(read_bytes(value, self.region) for value in self.region.arguments))
        with estimating():
            moved += float(sum(root.tensor.bytes for root in self.region.results))
        return self.unit.code(self.launches, flops, moved, scratch=self.scratch)


class FusionEntry:
    """One entry: `pointers` of the region's arguments, `outputs` of its results, `extra` ones."""

    def __init__(self, kernel: FusionKernel, entry: Entry) -> None:
        self.kernel, self.region, self.entry = kernel, kernel.region, entry
        self.threads, parameters = entry.threads, kernel.parameters
        self.function = self.entry.function
        self.scopes = self.entry.scopes
        count = len(self.region.arguments)
        self.pointers = self.entry.pointers[:count]
        self.outputs = self.entry.pointers[count : len(parameters)]
        types = [value.tensor for value in self.region.arguments]
        for slot, window in kernel.windows.items():
            behind = distance(self.function, window, types, self.pointers)
            self.outputs[slot - count] = self.function.pointer(
                self.outputs[slot - count], behind, "i8"
            )
        self.extra = self.entry.pointers[len(parameters) :]
        self.thread = self.entry.thread()
        self.block = self.entry.block()
        self.shared_bytes = self._used = 0

    def emitter(self) -> ThreadEmitter:
        return ThreadEmitter(self.entry, self.region, self.pointers)

    def shared(self, size: int, align: int = 16) -> int:
        """The offset of a new piece of shared memory."""
        offset = -(-self._used // align) * align
        self._used = offset + size
        self.shared_bytes = max(self.shared_bytes, self._used)
        return offset

    def release(self) -> None:
        """Shared memory begins anew, for code that other blocks run."""
        self._used = 0

    def at(self, offset: int) -> llvm.Value:
        """The address of a byte of shared memory."""
        return self.entry.shared(offset)

    def finish(self, grid: int | Extent) -> None:
        self.kernel.launches.append(self.entry.finish(grid, self.shared_bytes))


def unaligned(windows: Windows) -> str:
    """Why results that begin inside of what is given for them cannot be written, "" if they can."""
    if any(window.step % ALIGNMENT for window in windows.values()):
        return f"rows of a stack that are no multiples of {ALIGNMENT} bytes"
    return ""


def may_be_empty(*counts: Dim) -> str:
    """Why there is no code for so many elements: a call may ask for none of them; else ""."""
    surely = all(surely_at_most(1, count) for count in counts)
    return "" if surely else "a call may ask for no element"


def nothing(region: Region, target: NvidiaTarget, flops: float) -> KernelCode:
    """The kernel of results without elements."""
    kernel = FusionKernel(region, target)
    kernel.entry("empty", 32).finish(1)
    return kernel.finish(flops)
