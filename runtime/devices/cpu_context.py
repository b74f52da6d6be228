"""What one call of a CPU program at a time has of its own, written anew where sizes change.

Contexts of a plan serve calls of all sizes: one that was at others is written anew.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .memory import Pages

if TYPE_CHECKING:
    from .cpu import CpuSized, CpuVariant

    Array = np.ndarray[Any, np.dtype[Any]]

WORDS = 16  # of a context that the executor reads, and room to a whole line
ARENA_END, TRACE, TICKS = 5, 7, 9  # which of them
RECORDS, OWN, OWN_BYTES, TURNS, COUNTERS = range(11, 16)
_HUGE = 1 << 22  # bytes of a context from which on large pages are asked for
# Bytes beside a call's memory. Kernels leave padding out by masks: processors read nothing there,
# but take very long to find that no page is there either.
_MARGIN = 1 << 16


class ContextWords(NamedTuple):
    """The words of a context: what is fixed of each, and the number, among the values of a call's
    sizes (`CpuSized.values`), of what is added to it. To those `inside` the context's own address
    is added, to those `in_arena` that of the arena, to those `in_worker` that of the only worker's
    own memory."""

    fixed: Array
    added: Array
    inside: Array
    in_arena: Array
    in_worker: Array


def call_pages(size: int) -> Pages:
    """Memory for a call's arena and scratch."""
    return Pages(size, huge=size >= _HUGE, margin=_MARGIN)


class CallMemory:
    """Memory of calls, each block of `size` bytes, as many as any size needs of any entry point; no
    call is in those of `free`."""

    def __init__(self) -> None:
        self.size = 0
        self.free: deque[Pages] = deque()

    def take(self) -> Pages:
        try:
            found = self.free.pop()
        except IndexError:
            found = None
        if found is None or found.size < self.size:
            return call_pages(self.size)
        return found


class CpuContext:
    """The memory of one call at a time: arena, scratch, slots. `sized`: of the next call."""

    def __init__(self, variant: CpuVariant) -> None:
        self.variant, self.sized = variant, variant.own
        self.block = block = variant.block.fixed.copy()
        self.io = variant.io_type.from_buffer(block, 8 * WORDS)  # pyright: ignore[reportArgumentType]
        self.address: int = ctypes.addressof(self.io) - 8 * WORDS
        self._memory: Pages | None = None
        if variant.blocks is None:
            self._memory = call_pages(variant.call_bytes)
        # What workers of a plan with task ranges count in, and what each has of its own.
        self.counting: Pages | None = None
        if variant.ranges:
            self.counting = Pages(variant.ranges.memory()[2])
            turns = variant.ranges.memory()[0]
            count = variant.ranges.count.to_bytes(8, "little")
            self.counting.memory[turns : turns + 8] = count
        self._written: CpuSized | None = None
        self._base, self._own = 0, block  # the arena's address; what does not depend on sizes
        self.bound: tuple[Array, ...] = ()  # arrays that a bound call refers to

    @property
    def words(self) -> Array:
        """What the executor reads first."""
        return self.block[:WORDS]

    @property
    def slots(self) -> Array:
        """What the arguments of kernels point to."""
        return self.variant.slots_of(self.block)

    def enter(self) -> None:
        """Get ready for a call: take memory, where that is shared with other contexts, and write
        what its sizes decide."""
        memory = self._memory
        if memory is None:
            assert self.variant.blocks is not None
            self._memory = memory = self.variant.blocks.take()
        if self.sized is self._written and self._base == memory.address:
            return
        fixed, added, inside, in_arena, in_worker = self.variant.block
        if self._base != memory.address:
            own = fixed.copy()
            own[inside] += self.address
            own[in_arena] += memory.address
            if self.counting is not None:
                counters = self.counting.address
                turns, workers, _ = self.variant.ranges.memory()
                own[[COUNTERS, TURNS, OWN]] = counters, counters + turns, counters + workers
                own[in_worker] += counters + workers
            self._written, self._own, self._base = None, own, memory.address
        # Words that stay the same are never something else: a late worker may be reading them.
        np.add(self._own, self.sized.values.take(added), self.block)
        self._written = self.sized

    def leave(self) -> None:
        """Give it back."""
        blocks = self.variant.blocks
        if blocks is not None and self._memory is not None:
            blocks.free.append(self._memory)
            self._memory = None

    def set_trace(self, address: int, records: int) -> None:
        """Where workers log their steps, `records` each; address 0 = no log."""
        self.block[TRACE : TRACE + 2] = address, records

    @property
    def traced_ticks(self) -> int:
        """Ticks between begin and end of the last call that had a log."""
        return int(self.block[TICKS + 1] - self.block[TICKS])
