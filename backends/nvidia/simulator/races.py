"""Races in shared memory: accesses of two threads to one place with no barrier between them.

For each granule of shared memory the last writer and the readers since are kept, with the number of
barriers that their block and their warp had passed. Any barrier of a block counts for all of it,
so what is reported is a race, but not every race is.
"""

from __future__ import annotations

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
        self.written = np.zeros((2, size), np.int32)  # barriers of the block, of the warp
        self.was_read = np.zeros((2, size), np.int32)
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

    def _unordered(self, threads: np.ndarray, others: np.ndarray, when: np.ndarray) -> np.ndarray:
        """Where nothing orders an access of `others` (in the encoding of readers) before now."""
        warp = threads >> 5
        same_block = when[0] == self.block[self.cta_of[threads]]
        suspect = (others != NOBODY) & (others != threads) & same_block
        other_warp = np.where(others >= 0, others >> 5, -3 - others)
        met = (other_warp == warp) & (when[1] != self.warp[warp])
        return suspect & ~met

    def read(self, S: Batch, A: Any, n: int, pieces: list[Any], size: int) -> None:
        for piece in pieces:
            found = self._places(A, piece, size)
            if found is None:
                continue
            place, threads = found
            if self.filled is not None and not self.filled[place].all() and n not in self.told:
                self.told.add(n)
                first = int(np.nonzero(~self.filled[place])[0][0])
                offset = int(place[first]) * self.granule % max(self.state.shared_stride, 1)
                text = f"reads shared memory at {offset}, which nobody has written"
                S.fault("uninitialised", text, n, threads[first : first + 1])
            wrong = self._unordered(threads, self.writer[place], self.written[:, place])
            if wrong.any():
                self._report(n, "reads", "wrote", place, threads, self.writer[place], wrong)
            before = self.reader[place]
            fresh = self.was_read[0, place] != self.block[self.cta_of[threads]]
            warp = threads >> 5
            alone = fresh | (before == NOBODY) | (before == threads)
            old_warp = np.where(before >= 0, before >> 5, -3 - before)
            mixed = np.where(old_warp == warp, -3 - warp, MANY)
            self.reader[place] = np.where(alone, threads, mixed)
            several = self.reader[place] != np.where(alone, threads, mixed)
            if several.any():  # threads of this vector read one place
                first = self.reader[place[several]]
                first_warp = np.where(first >= 0, first >> 5, -3 - first)
                both = np.where(first_warp == warp[several], -3 - warp[several], MANY)
                self.reader[place[several]] = np.where(first == MANY, MANY, both)
                differs = self.reader[place[several]] != both
                self.reader[place[several][differs]] = MANY
            self.was_read[0, place] = self.block[self.cta_of[threads]]
            self.was_read[1, place] = self.warp[warp]

    def write(self, S: Batch, A: Any, n: int, pieces: list[Any], size: int, values: Any) -> None:
        for piece in pieces:
            found = self._places(A, piece, size)
            if found is None:
                continue
            place, threads = found
            if self.filled is not None:
                self.filled[place] = True
            readers = self.reader[place]
            wrong = self._unordered(threads, readers, self.was_read[:, place])
            if wrong.any():
                self._report(n, "writes", "read", place, threads, readers, wrong)
            writers = self.writer[place]
            wrong = self._unordered(threads, writers, self.written[:, place])
            self.writer[place] = threads
            self.written[0, place] = self.block[self.cta_of[threads]]
            self.written[1, place] = self.warp[threads >> 5]
            again = self.writer[place] != threads
            if (wrong.any() or again.any()) and self._changes(piece, values, again.any()):
                others = np.where(wrong, writers, self.writer[place])
                self._report(n, "writes", "wrote", place, threads, others, wrong | again)

    def update(self, A: Any, pieces: list[Any], size: int) -> None:
        """Atomics: they race with nobody here, but what they write is written."""
        for piece in pieces:
            found = self._places(A, piece, size)
            if found is not None and self.filled is not None:
                self.filled[found[0]] = True

    def _changes(self, piece: Any, values: list[Any], within: bool) -> bool:
        """Would the stores leave something else than what is there, or than each other?"""
        elements, index, chosen = piece
        for j, value in enumerate(values):
            value = value[chosen] if chosen is not None and value.ndim else value
            spot = np.atleast_1d(index + j)
            value = np.broadcast_to(value, spot.size if value.ndim == 0 else value.size)
            spot = np.broadcast_to(spot, value.size)
            plain = value.view(f"u{value.itemsize}") if value.dtype.kind == "f" else value
            if within:
                order = np.argsort(spot, kind="stable")
                s, v = spot[order], plain[order]
                if ((s[1:] == s[:-1]) & (v[1:] != v[:-1])).any():
                    return True
            else:
                held = elements[spot]
                held = held.view(f"u{held.itemsize}") if held.dtype.kind == "f" else held
                if (held != plain).any():
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
