"""A kernel of several launches under construction: scratch memory, entries, their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..frame import Entry, Parameter, Unit, blocks
from ..launch import SCRATCH, Launch, Memory
from ..target import WARP

ALIGNMENT = 256  # bytes, of values in scratch
THREADS = 256  # of a block


@dataclass
class Work:
    """A kernel under construction: launches so far, scratch in use. `slots`: operands and results
    that may share memory with another."""

    unit: Unit
    slots: frozenset[int]
    launches: list[Launch] = field(default_factory=list)
    scratch: int = 0

    def reserve(self, size: int) -> Memory:
        """Scratch memory of so many bytes."""
        place = Memory(SCRATCH, self.scratch)
        self.scratch += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        return place

    def entry(
        self, reads: Sequence[Memory], writes: Sequence[Memory], threads: int = THREADS
    ) -> Entry:
        """An entry whose pointers are first what it reads, then what it writes."""
        parameters = [
            Parameter(f"p{number}", place, number < len(reads) and alone, alone)
            for number, place in enumerate((*reads, *writes))
            for alone in (place.slot not in self.slots,)
        ]
        return self.unit.kernel(f"part{len(self.launches)}", parameters, threads)

    def launch(self, entry: Entry, threads: int) -> None:
        """The entry runs with at least so many threads."""
        self.launches.append(entry.finish(blocks(threads, entry.threads)))


def block_for(count: int) -> int:
    """Threads of a block where there are `count` of them: whole warps."""
    return min(THREADS, -(-max(count, 1) // WARP) * WARP)
