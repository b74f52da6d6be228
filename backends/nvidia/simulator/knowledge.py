"""What each thread knows of the accesses of other blocks: vector clocks.

A clock is a row of counts. Its components: one of each block (accesses before the block's barrier
of that count), one of each thread that has released something and of each warp that has met (their
own accesses), and one of each location with strong accesses (the first of its messages that may
still be read). An access is stamped with the count of its block and with its thread.

Threads of a block share the row of their block from one barrier of the block to the next; a thread
that learns something gets a row of its own. Any barrier of a block counts for all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SEVERAL = -1  # stands for the thread of an access that several threads made


class Knowledge:
    """Of one batch: `blocks` blocks of `threads` threads each, whole warps."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.blocks, self.threads = blocks, threads
        self.never = blocks  # a component that stays 0
        self.used = blocks + 1
        self.table = np.zeros((2 * blocks + 2, 2 * blocks + 16), np.int64)
        self.clock = np.zeros(blocks, np.int64)
        self.row_of = np.repeat(np.arange(blocks), threads)
        total = blocks * threads
        # The last element is SEVERAL's.
        self.thread_component = np.full(total + 1, self.never)
        self.warp_component = np.full(total // 32 + 1, self.never)
        self.warp_met = np.zeros(total // 32, np.int64)  # the block's count when it met
        self._free = list(range(self.table.shape[0] - 1, blocks - 1, -1))
        self._alone = np.zeros(blocks, np.int64)  # threads of a block that have rows of their own

    def component(self) -> int:
        """A new one; all clocks have 0 there."""
        if self.used == self.table.shape[1]:
            self.table = np.concatenate((self.table, np.zeros_like(self.table)), axis=1)
        self.used += 1
        return self.used - 1

    def known(self, threads: Any, blocks: Any, clocks: Any, others: Any) -> np.ndarray:
        """Do `threads` know of accesses by `others` (SEVERAL: of several threads), of `blocks`, at
        the counts `clocks`? Arrays that broadcast."""
        rows = self.row_of[threads]
        found = self.table[rows, blocks] > clocks
        found |= self.table[rows, self.thread_component[others]] > clocks
        found |= self.table[rows, self.warp_component[others >> 5]] > clocks
        return found

    def own(self, thread: int) -> np.ndarray:
        """The thread's own clock, which may be written."""
        row = int(self.row_of[thread])
        if row < self.blocks:
            if not self._free:
                count = self.table.shape[0]
                self.table = np.concatenate((self.table, np.zeros_like(self.table)))
                self._free = list(range(2 * count - 1, count - 1, -1))
            new = self._free.pop()
            self.table[new] = self.table[row]
            self.row_of[thread] = new
            self._alone[row] += 1
            row = new
        return self.table[row]

    def learn(self, thread: int, view: np.ndarray) -> None:
        """The thread acquires a clock that was released."""
        clock = self.own(thread)[: view.size]
        np.maximum(clock, view, out=clock)

    def release(self, thread: int) -> np.ndarray:
        """What a release of the thread passes on: all it knows, and its own accesses until now."""
        if self.thread_component[thread] == self.never:
            self.thread_component[thread] = self.component()
        warp, block = thread >> 5, thread // self.threads
        if self.warp_met[warp] and self.warp_component[warp] == self.never:
            self.warp_component[warp] = self.component()
        clock = self.own(thread)
        if self.warp_met[warp]:
            clock[self.warp_component[warp]] = self.warp_met[warp]
        self.clock[block] += 1
        clock[self.thread_component[thread]] = self.clock[block]
        return clock[: self.used].copy()

    def blocks_met(self, blocks: np.ndarray) -> None:
        """All threads of these blocks have met at a barrier."""
        for block in blocks[self._alone[blocks] > 0].tolist():
            members = slice(block * self.threads, (block + 1) * self.threads)
            rows = np.unique(self.row_of[members])
            self.table[block] = self.table[rows].max(0)
            self.row_of[members] = block
            self._free += rows[rows >= self.blocks].tolist()
        self._alone[blocks] = 0
        self.clock[blocks] += 1
        self.table[blocks, blocks] = self.clock[blocks]

    def warps_met(self, warps: np.ndarray) -> None:
        """All threads of these warps have met."""
        blocks = warps * 32 // self.threads
        np.add.at(self.clock, blocks, 1)
        self.warp_met[warps] = self.clock[blocks]
        for warp in warps[self._alone[blocks] > 0].tolist():
            members = slice(warp * 32, warp * 32 + 32)
            rows = np.unique(self.row_of[members])
            if rows[-1] >= self.blocks:
                joined = self.table[rows].max(0)
                for thread in range(warp * 32, warp * 32 + 32):
                    self.own(thread)[:] = joined
