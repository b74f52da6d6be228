"""Operations from memory to memory, one after another: who does them, and where values lie.

`KernelWork` is a kernel of several launches, in which every operation has a grid of its own. A
block of a tile function (tile/block_wide.py) does the same operations with its own threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from ....hlo.symbols import SymbolicDim, ceildiv, maximum
from ....hlo.types import TensorType
from ....optimizer.windows import Window, Windows
from ... import llvm
from ...llvm.index import Affine, Scopes
from ...plain.windows import distance
from ..frame import Entry, Parameter, Unit, blocks
from ..launch import SCRATCH, KernelMemory, Launch
from ..target import WARP

ALIGNMENT = 256  # bytes, of values in scratch
THREADS = 256  # of a block

Place = Hashable  # a piece of memory, as those who do the work know it


class OperationCode(ABC):
    """Code of all threads for one operation. `pointers`: what it reads, then what it writes."""

    function: llvm.Function
    scopes: Scopes
    pointers: Sequence[llvm.Value]

    @abstractmethod
    def each(self, count: int) -> AbstractContextManager[Affine]:
        """Code for each of `count` elements, by one thread each."""

    @abstractmethod
    def turns(
        self, count: int, threads: int
    ) -> AbstractContextManager[tuple[llvm.Value, llvm.Value]]:
        """Code for each of `count` elements, by `threads` threads that take turns: the number of
        the thread and of the element, i64."""


class Worker(ABC):
    """Who does operations, one after another."""

    unit: Unit

    @abstractmethod
    def reserve(self, size: int) -> Place:
        """Memory of so many bytes."""

    @abstractmethod
    def alone(self, place: Place) -> bool:
        """Whether no operand and no other result may be that memory."""

    def threads(self, count: int) -> int:
        """How many threads there are for so many elements."""
        return count

    @abstractmethod
    def begin(self, reads: Sequence[Place], writes: Sequence[Place], threads: int) -> OperationCode:
        """The next operation, for as many threads as there are or are asked for."""

    @abstractmethod
    def end(self, step: OperationCode, threads: int) -> None:
        """The operation is complete."""


class EntryStep(OperationCode):
    """A launch of its own."""

    def __init__(self, entry: Entry, pointers: Sequence[llvm.Value]) -> None:
        self.entry, self.function = entry, entry.function
        self.scopes, self.pointers = entry.scopes, pointers

    def each(self, count: int) -> AbstractContextManager[Affine]:
        return self.entry.each(count)

    @contextmanager
    def turns(self, count: int, threads: int) -> Iterator[tuple[llvm.Value, llvm.Value]]:
        first = self.entry.position()
        with (
            self.entry.guarded(first, threads),
            self.function.for_range(first, count, threads, at_least_once=True) as loop,
        ):
            yield first, loop.index


@dataclass
class KernelWork(Worker):
    """A kernel under construction: launches so far, scratch in use. `slots`: operands and results
    that may share memory with another. `types` of the operands; `windows`: where operands and
    results begin in what is given for them."""

    unit: Unit
    slots: frozenset[int]
    types: Sequence[TensorType] = ()
    windows: Windows = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    scratch: int = 0

    def reserve(self, size: int) -> KernelMemory:
        place = KernelMemory(SCRATCH, self.scratch)
        self.scratch += ceildiv(maximum(size, 1), ALIGNMENT) * ALIGNMENT
        return place

    def alone(self, place: Place) -> bool:
        assert isinstance(place, KernelMemory)
        return place.slot not in self.slots

    def begin(self, reads: Sequence[Place], writes: Sequence[Place], threads: int) -> EntryStep:
        parameters = []
        moved: dict[int, Window] = {}
        for number, place in enumerate((*reads, *writes)):
            assert isinstance(place, KernelMemory)
            alone = self.alone(place)
            readonly = number < len(reads) and alone
            parameters.append(Parameter(f"p{number}", place, readonly, alone))
            if place.slot in self.windows:
                moved[number] = self.windows[place.slot]
        count = len(parameters)
        starts = {start.operand: 0 for window in moved.values() for start in window.starts}
        parameters += [Parameter(f"s{n}", KernelMemory(n), unique=False) for n in starts]
        name = f"part{len(self.launches)}"
        entry = self.unit.kernel(name, parameters, block_for(threads))
        given = dict(zip(starts, entry.pointers[count:], strict=True))
        pointers = entry.pointers[:count]
        for number, window in moved.items():
            behind = distance(entry.function, window, self.types, given)
            pointers[number] = entry.function.pointer(pointers[number], behind, "i8")
        return EntryStep(entry, pointers)

    def end(self, step: OperationCode, threads: int) -> None:
        assert isinstance(step, EntryStep)
        self.launches.append(step.entry.finish(blocks(threads, step.entry.threads)))


def block_for(count: int) -> int:
    """Threads of a block where there are `count` of them: whole warps."""
    if isinstance(count, SymbolicDim):
        return THREADS
    return min(THREADS, -(-max(count, 1) // WARP) * WARP)
