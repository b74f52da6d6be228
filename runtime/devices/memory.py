"""Memory straight from the kernel."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

from ...hlo.errors import UserError

PAGE = 4096


def pages(size: int) -> int:
    """The bytes of the whole pages, at least one, that hold `size` bytes."""
    return max(-(-size // PAGE), 1) * PAGE


class Pages:
    """Memory from the kernel, page aligned, zero at first, freed with the last reference. margin:
    bytes, whole pages, that may be read before and behind it; they need no memory of their own."""

    def __init__(self, size: int, *, huge: bool = False, margin: int = 0) -> None:
        # Private: a forked child gets its own, and Linux gives large pages to such memory alone.
        kind = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
        try:
            self.memory = mmap.mmap(-1, pages(size) + 2 * margin, **kind)
        except (OSError, OverflowError, ValueError) as error:
            raise UserError(f"the system gives no {size} bytes of memory: {error}") from error
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self.memory)
        self.size, self.address = pages(size), ctypes.addressof(self._anchor) + margin
        for begin in (0, margin + self.size):  # the kernel's one page of zeros is in their place
            self.memory[begin : begin + margin : PAGE]


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library that the process runs on."""
    return ctypes.CDLL(None, use_errno=True)
