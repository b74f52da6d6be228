"""Shared memory of a block: places by live range, and barriers where an access needs one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from ... import llvm
from .. import frame
from ..layouts import LinearLayout

LINE = 128  # bytes: all banks once; swizzled rows begin there
ALIGNMENT = 1024  # of swizzled tiles: what the widest swizzle repeats after
EVERYTHING = 1 << 62


class MemoryPiece(NamedTuple):
    """Bytes [start, start + size) of a memory; `memory` None is shared memory."""

    memory: Hashable
    start: int
    size: int

    def touches(self, other: MemoryPiece) -> bool:
        if self.memory is not other.memory:
            return False
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True)
class PaddedTile:
    """A padded tile in shared memory: `layout` says which element (row, column) lies at an offset,
    both in elements of `size` bytes; `stage`: bytes from the piece's start on, i32."""

    piece: MemoryPiece
    layout: LinearLayout
    size: int
    stage: llvm.Value | None = None

    @property
    def bytes(self) -> int:
        return bytes_of(self.layout, self.size)


def bytes_of(layout: LinearLayout, size: int) -> int:
    """Bytes of a layout of elements of `size` bytes."""
    return layout.size("offset") * size


class Arena:
    """Offsets of pieces, first fit. `size` is the most that was ever taken."""

    def __init__(self) -> None:
        self.size = 0
        self._taken: dict[int, int] = {}

    def take(self, size: int, line: int = LINE) -> MemoryPiece:
        """A piece of that many bytes."""
        size = -(-max(size, 1) // LINE) * LINE
        start = 0
        for other in sorted(self._taken):
            if start + size <= other:
                break
            start = max(start, -(-(other + self._taken[other]) // line) * line)
        self._taken[start] = size
        self.size = max(self.size, start + size)
        return MemoryPiece(None, start, size)

    def give(self, piece: MemoryPiece) -> None:
        """Takes a piece back."""
        del self._taken[piece.start]


class Hazards:
    """What was read and written since all threads met. An access that another thread's access
    must not overtake puts a barrier before itself."""

    def __init__(self, entry: frame.Entry) -> None:
        self.entry = entry
        self.barriers = 0
        self.copies = False  # asynchronous ones are on their way
        self._read: list[MemoryPiece] = []
        self._written: list[MemoryPiece] = []
        self._unknown = False

    def read(self, *pieces: MemoryPiece) -> None:
        """Threads are about to read what others may have written."""
        if self._unknown or any(p.touches(other) for p in pieces for other in self._written):
            self.meet()
        self._read += pieces

    def write(self, piece: MemoryPiece) -> None:
        """Threads are about to write what others may still read, or have written."""
        if self._unknown or any(piece.touches(o) for o in (*self._read, *self._written)):
            self.meet()
        self._written.append(piece)

    def meet(self) -> None:
        """A barrier of the block; what was copied has arrived."""
        self._arrive()
        frame.barrier(self.entry.function)
        self.barriers += 1
        self._read.clear()
        self._written.clear()
        self._unknown = False

    def forget(self) -> None:
        """Control comes from several places: anything may have been touched."""
        self._arrive()
        self._unknown = True

    def _arrive(self) -> None:
        if self.copies:
            commit(self.entry.function)
            wait(self.entry.function, 0)
        self.copies = False


def commit(f: llvm.Function) -> None:
    """The copies so far are a group."""
    f.call("llvm.nvvm.cp.async.commit.group", "void", declare=True)


def wait(f: llvm.Function, groups: int) -> None:
    """Until all but the last `groups` groups of this thread have arrived."""
    f.call("llvm.nvvm.cp.async.wait.group", "void", llvm.constant("i32", groups), declare=True)
