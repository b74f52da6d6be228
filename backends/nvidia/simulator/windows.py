"""What one launch may touch of global memory: the arrays of its kernel, nothing around them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .memory import GlobalMemory, Segment


class Window(NamedTuple):
    """An array: `name` says whose it is ("operand 0"); `itemsize` in bytes."""

    address: int
    nbytes: int
    name: str
    type: str  # "f32[4,8]"
    dims: tuple[int, ...]
    itemsize: int

    def __str__(self) -> str:
        return f"{self.name}, {self.type}"

    def index(self, address: int) -> str:
        """The index of the element at an address; along the first dim it may be outside."""
        if not self.dims or not self.itemsize:
            return ""
        element = (address - self.address) // self.itemsize
        row = int(np.prod(self.dims[1:], dtype=np.int64))
        if not row:
            return ""
        rest = np.unravel_index(element % row, self.dims[1:]) if self.dims[1:] else ()
        return f"index [{', '.join(map(str, (element // row, *map(int, rest))))}]"


class Windows:
    """Stands for `GlobalMemory` in a launch. `more`: addresses of whole allocations."""

    def __init__(
        self, memory: GlobalMemory, windows: Sequence[Window], more: Sequence[int] = ()
    ) -> None:
        self.windows = sorted(window for window in windows if window.nbytes)
        ranges = [(window.address, window.address + window.nbytes) for window in self.windows]
        for address in more:
            segment = memory.find(address)
            if segment is not None:
                ranges.append((segment.base, segment.end))
        self._segments: list[Segment] = []
        for low, end in sorted(ranges):
            last = self._segments[-1] if self._segments else None
            if last is not None and low < last.end:  # arrays that share memory
                last.end = max(last.end, end)
                continue
            whole = memory.find(low)
            if whole is not None:
                self._segments.append(whole.part(low, end))
        self._lows = [segment.low for segment in self._segments]
        self._bases = {id(one.data.base): one.base for one in self._segments}

    def base_of(self, elements: np.ndarray) -> int | None:
        """The address of the allocation that an array of elements is a view of."""
        return self._bases.get(id(elements.base))

    def find(self, address: int) -> Segment | None:
        """What may be touched around an address."""
        index = bisect_right(self._lows, address) - 1
        if index < 0:
            return None
        segment = self._segments[index]
        return segment if address < segment.end else None

    def span(self, address: int, nbytes: int) -> np.ndarray | None:
        """Writable bytes; None where [address, address + nbytes) may not be touched."""
        segment = self.find(address)
        if segment is None or address + nbytes > segment.end:
            return None
        start = address - segment.base
        return segment.data[start : start + nbytes]

    def place(self, address: int) -> str:
        """Where an address lies that may not be touched, as seen from the nearest array."""
        if not self.windows:
            return "and the kernel has no arrays"
        window = min(self.windows, key=lambda one: _distance(one, address))
        past = address - window.address - window.nbytes
        if past >= 0:
            index = window.index(address)
            far = f"{past} bytes past the end of {window}"
            return f"{index} of {window}, {past} bytes past its end" if index else far
        return f"{window.address - address} bytes before {window}"

    def name(self, address: int) -> str:
        """What lies at an address that may be touched."""
        for window in self.windows:
            if window.address <= address < window.address + window.nbytes:
                index = window.index(address)
                return f"{index} of {window}" if index else str(window)
        return f"{address:#x}"

    def over(self, segment: Segment) -> str:
        """Where an access ends that begins inside and leaves it."""
        ending = [w for w in self.windows if w.address + w.nbytes == segment.end]
        return f"over the end of {ending[0]}" if ending else "over the end of its array"


def _distance(window: Window, address: int) -> int:
    if address < window.address:
        return window.address - address
    return max(0, address - window.address - window.nbytes + 1)
