"""Scratch of one worker: slots that are taken and given back while code is emitted."""

from __future__ import annotations

LINE = 64


class Arena:
    """Offsets of slots, first fit. `size` is the most that was ever taken."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (offset, bytes), by offset, never adjacent
        self._taken: dict[int, int] = {}

    def take(self, count: int) -> int:
        """The offset of a slot of that many bytes, and as a last vector may read behind them."""
        count = -(-count // LINE) * LINE + LINE
        for number, (offset, size) in enumerate(self._free):
            if size >= count:
                rest = [(offset + count, size - count)] if size > count else []
                self._free[number : number + 1] = rest
                break
        else:
            offset = self.size
            if self._free and sum(self._free[-1]) == self.size:
                offset = self._free.pop()[0]
            self.size = offset + count
        self._taken[offset] = count
        return offset

    def give(self, offset: int) -> None:
        """Takes a slot back."""
        self._free.append((offset, self._taken.pop(offset)))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged
