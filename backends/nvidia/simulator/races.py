"""Races in shared memory: accesses of two threads to one place with no barrier between them.

For each granule of shared memory the last writer and the readers since are kept, with the number of
barriers that their block and their warp had passed. Any barrier of a block counts for all of it,
so what is reported is a race, but not every race is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .engine import Batch

NOBODY = -1
MANY = -2  # readers in several warps; -3 - w: several readers, all in warp w


def _smallest_access(state: Batch) -> int:
    sizes = [4]
    for node in state.nodes:
        parts = node.instruction.parts
        if parts[0] in ("ld", "st") and not {"global", "local", "param", "const"} & set(parts):
            sizes.append({"8": 1, "16": 2}.get(parts[-1].lstrip("bufs"), 4))
    return min(sizes)


class Races:
    def __init__(self, state: Batch) -> None:
        self.state = state
        self.granule = _smallest_access(state)
        size = state.shared.size // self.granule
        self.writer = np.full(size, NOBODY, np.int32)
        self.reader = np.full(size, NOBODY, np.int32)
        # how many barriers of the block, and of the warp, had been passed
        self.written = np.full((2, size), -1, np.int32)
        self.was_read = np.full((2, size), -1, np.int32)
        self.block = np.zeros(state.cta_count, np.int32)
        self.warp = np.zeros(state.T // 32, np.int32)
        self.cta_of = state.thread_numbers // state.threads_per_cta
        # Operations write shared memory without a word to us; barriers do not.
        known = ("bar", "barrier")
        silent = (n.bound is None or n.instruction.parts[0] in known for n in state.nodes)
        self.filled = np.zeros(size, bool) if all(silent) else None
        self.told: set[int] = set()

    def blocks_met(self, ctas: np.ndarray) -> None:
        self.block[ctas] += 1

    def warps_met(self, warps: np.ndarray) -> None:
        self.warp[warps] += 1

    def _places(self, A: Any, piece: Any, size: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Granules and their threads."""
        elements, index, chosen = piece
        state = self.state
        if not np.shares_memory(elements, state.shared):
            return None
        threads = state.threads(A)
        if chosen is not None:
            threads = threads[chosen]
        first = np.broadcast_to(index * elements.itemsize // self.granule, threads.size)
        count = size // self.granule
        if count > 1:
            first = (first[:, None] + np.arange(count)).reshape(-1)
            threads = np.repeat(threads, count)
        return first, threads

    def _now(self, threads: np.ndarray) -> Any:
        """Barriers that the blocks of `threads` have passed."""
        return self.block[0] if self.block.size == 1 else self.block.take(self.cta_of.take(threads))

    def _unordered(
        self, threads: np.ndarray, others: np.ndarray, same_block: np.ndarray, met: np.ndarray
    ) -> np.ndarray:
        """Where nothing orders an access of `others` (in the encoding of readers) before now:
        none of `same_block` barriers since, and no barrier of the warp since `met`."""
        warp = threads >> 5
        suspect = (others != NOBODY) & (others != threads) & same_block
        other_warp = np.where(others >= 0, others >> 5, -3 - others)
        return suspect & ~((other_warp == warp) & (met != self.warp[warp]))

    def read(self, S: Batch, A: Any, n: int, pieces: list[Any], size: int) -> None:
        for piece in pieces:
            found = self._places(A, piece, size)
            if found is None:
                continue
            place, threads = found
            if self.filled is not None and n not in self.told and not self.filled.take(place).all():
                self._tell_unwritten(n, place, threads)
            now, warp = self._now(threads), threads >> 5
            recent = self.written[0].take(place) == now
            if recent.any():
                writers, met = self.writer.take(place), self.written[1].take(place)
                wrong = self._unordered(threads, writers, recent, met)
                if wrong.any():
                    self._report(n, "reads", "wrote", place, threads, writers, wrong)
            again = self.was_read[0].take(place) == now
            reader = threads
            if again.any():
                before = self.reader.take(place)
                alone = ~again | (before == NOBODY) | (before == threads)
                old_warp = np.where(before >= 0, before >> 5, -3 - before)
                reader = np.where(alone, threads, np.where(old_warp == warp, -3 - warp, MANY))
            self.reader[place] = reader
            several = self.reader.take(place) != reader
            if several.any():  # threads of this vector read one place
                first = self.reader[place[several]]
                first_warp = np.where(first >= 0, first >> 5, -3 - first)
                both = np.where(first_warp == warp[several], -3 - warp[several], MANY)
                both = np.where(first == MANY, MANY, both)
                self.reader[place[several]] = both
                differs = self.reader[place[several]] != both
                self.reader[place[several][differs]] = MANY
            self.was_read[0, place] = now
            self.was_read[1, place] = self.warp[warp]

    def _tell_unwritten(self, n: int, place: np.ndarray, threads: np.ndarray) -> None:
        assert self.filled is not None
        self.told.add(n)
        first = int(np.nonzero(~self.filled[place])[0][0])
        offset = int(place[first]) * self.granule % max(self.state.shared_stride, 1)
        text = f"reads shared memory at {offset}, which nobody has written"
        self.state.fault("uninitialised", text, n, threads[first : first + 1])

    def write(self, S: Batch, A: Any, n: int, pieces: list[Any], size: int, values: Any) -> None:
        for piece in pieces:
            found = self._places(A, piece, size)
            if found is None:
                continue
            place, threads = found
            if self.filled is not None:
                self.filled[place] = True
            now = self._now(threads)
            recent = self.was_read[0].take(place) == now
            if recent.any():
                readers, met = self.reader.take(place), self.was_read[1].take(place)
                wrong = self._unordered(threads, readers, recent, met)
                if wrong.any():
                    self._report(n, "writes", "read", place, threads, readers, wrong)
            recent = self.written[0].take(place) == now
            if recent.any():
                writers, met = self.writer.take(place), self.written[1].take(place)
                wrong = self._unordered(threads, writers, recent, met)
                mine = np.atleast_1d(wrong.reshape(-1, max(size // self.granule, 1)).any(1))
                if wrong.any() and self._changes(piece, values, mine):
                    self._report(n, "writes", "wrote", place, threads, writers, wrong)
            self.writer[place] = threads
            self.written[0, place] = now
            self.written[1, place] = self.warp[threads >> 5]
            last = self.writer.take(place)
            again = last != threads
            if again.any() and self._differ(piece, values):
                self._report(n, "writes", "wrote", place, threads, last, again)

    def update(self, A: Any, pieces: list[Any], size: int) -> None:
        """Atomics: they race with nobody here, but what they write is written."""
        for piece in pieces:
            found = self._places(A, piece, size)
            if found is not None and self.filled is not None:
                self.filled[found[0]] = True

    @staticmethod
    def _elements(piece: Any, values: list[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions and the bits that are stored there."""
        _, index, chosen = piece
        for j, value in enumerate(values):
            value = value[chosen] if chosen is not None and value.ndim else value
            spot, value = np.broadcast_arrays(np.atleast_1d(index + j), np.atleast_1d(value))
            yield spot, np.ascontiguousarray(value).view(f"u{value.itemsize}")

    def _changes(self, piece: Any, values: list[Any], chosen: np.ndarray) -> bool:
        """Would the stores of the `chosen` threads leave something else than what is there?"""
        for spot, value in self._elements(piece, values):
            held = piece[0][spot].view(value.dtype)
            if ((held != value) & (chosen if chosen.size == held.size else True)).any():
                return True
        return False

    def _differ(self, piece: Any, values: list[Any]) -> bool:
        """Do threads store different values at one place?"""
        for spot, value in self._elements(piece, values):
            order = np.argsort(spot, kind="stable")
            spot, value = spot[order], value[order]
            if ((spot[1:] == spot[:-1]) & (value[1:] != value[:-1])).any():
                return True
        return False

    def _report(
        self, n: int, now: str, before: str, place: Any, threads: Any, others: Any, wrong: Any
    ) -> None:
        first = int(np.nonzero(wrong)[0][0])
        state = self.state
        offset = int(place[first]) * self.granule % max(state.shared_stride, 1)
        other = int(others[first])
        who = state.describe(other) if other >= 0 else "another thread"
        state.fault(
            "race",
            f"{now} shared memory at {offset}, which {who} {before} with no barrier between",
            n,
            threads[first : first + 1],
        )
