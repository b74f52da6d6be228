"""Memory of the simulated device: allocations of global memory, and address windows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ....hlo.errors import UserError

GLOBAL_BASE = 1 << 40
SHARED_BASE = 1 << 44
LOCAL_BASE = 1 << 45
PARAMETER_BASE = 1 << 46
CLUSTER_SHIFT = 24  # shared::cluster address: (rank + 1) << 24 | offset

DTYPES: dict[str, np.dtype[Any]] = {
    "u1": np.dtype(np.uint8),
    "u2": np.dtype(np.uint16),
    "u4": np.dtype(np.uint32),
    "u8": np.dtype(np.uint64),
    "i1": np.dtype(np.int8),
    "i2": np.dtype(np.int16),
    "i4": np.dtype(np.int32),
    "i8": np.dtype(np.int64),
    "f2": np.dtype(np.float16),
    "f4": np.dtype(np.float32),
    "f8": np.dtype(np.float64),
    "b1": np.dtype(np.bool_),
}


class Segment:
    """One allocation: `nbytes` at `base`; `data` is padded to 16 bytes. Of it, `low` to `end` may
    be touched."""

    __slots__ = ("base", "data", "end", "low", "nbytes", "views")

    def __init__(self, base: int, nbytes: int, poison: int) -> None:
        self.base, self.nbytes, self.low, self.end = base, nbytes, base, base + nbytes
        words = (nbytes + 15) // 16 * 2
        self.data = np.empty(words, np.uint64).view(np.uint8)
        self.data.fill(poison)
        self.views: dict[str, np.ndarray] = {"u1": self.data}

    def view(self, kind: str) -> np.ndarray:
        found = self.views.get(kind)
        if found is None:
            found = self.views[kind] = self.data.view(DTYPES[kind])
        return found

    def part(self, low: int, end: int) -> Segment:
        """The same memory, of which less may be touched."""
        part = Segment.__new__(Segment)
        part.base, part.nbytes, part.data, part.views = (
            self.base, self.nbytes, self.data, self.views,
        )  # fmt: skip
        part.low, part.end = max(low, self.low), min(end, self.end)
        return part


class GlobalMemory:
    """Global memory; addresses are integers, every allocation is 256-byte aligned.

    Fresh memory holds 0xFF bytes. Space between allocations belongs to nobody, so an access that
    runs over an end is a fault.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._next = GLOBAL_BASE
        self.modules: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()

    def allocate(self, nbytes: int, align: int = 256) -> int:
        align = max(align, 256)
        base = -(-self._next // align) * align
        self._next = base + nbytes + 256
        self._segments.append(Segment(base, nbytes, 0xFF))
        self._bases.append(base)
        return base

    def free(self, address: int) -> None:
        index = bisect_right(self._bases, address) - 1
        if index < 0 or self._bases[index] != address:
            raise UserError(f"free of {address:#x}, which is no allocation")
        del self._bases[index], self._segments[index]

    def find(self, address: int) -> Segment | None:
        """The allocation that holds `address`."""
        index = bisect_right(self._bases, address) - 1
        if index < 0:
            return None
        segment = self._segments[index]
        return segment if address < segment.end else None

    def place(self, address: int) -> str:
        """Where an address lies that no allocation holds."""
        index = bisect_right(self._bases, address) - 1
        if index < 0:
            return "before all allocations"
        segment = self._segments[index]
        past, what = address - segment.end, f"{segment.nbytes} bytes at {segment.base:#x}"
        return f"{past} bytes past the end of the allocation of {what}"

    def over(self, segment: Segment) -> str:
        """Where an access ends that begins in an allocation and leaves it."""
        return f"over the end of the allocation of {segment.nbytes} bytes at {segment.base:#x}"

    def name(self, address: int) -> str:
        """What lies at an address of an allocation."""
        segment = self.find(address)
        if segment is None:
            return f"{address:#x}"
        return f"byte {address - segment.base} of the allocation at {segment.base:#x}"

    def base_of(self, elements: np.ndarray) -> int | None:
        """The address of the allocation that an array of elements is a view of."""
        owner = elements.base
        return next((one.base for one in self._segments if one.data.base is owner), None)

    def span(self, address: int, nbytes: int) -> np.ndarray | None:
        """Writable bytes of one allocation; None where [address, address + nbytes) leaves it."""
        segment = self.find(address)
        if segment is None or address + nbytes > segment.end:
            return None
        start = address - segment.base
        return segment.data[start : start + nbytes]

    def write(self, address: int, array: np.ndarray) -> None:
        """Copies the bytes of `array`, in C order."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._span(address, data.size)[:] = data

    def read(self, address: int, dtype: Any, shape: Sequence[int] | int) -> np.ndarray:
        """A copy of an array that lies at `address`."""
        dtype = np.dtype(dtype)
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        count = int(np.prod(extents, dtype=np.int64))
        return self._span(address, count * dtype.itemsize).copy().view(dtype).reshape(extents)

    def _span(self, address: int, nbytes: int) -> np.ndarray:
        if nbytes == 0:
            return np.empty(0, np.uint8)
        found = self.span(address, nbytes)
        if found is None:
            raise UserError(f"{nbytes} bytes at {address:#x} are not inside one allocation")
        return found
