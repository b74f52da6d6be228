"""Blocks of one launch that meet in global memory: nothing orders them.

For each granule of what threads store, the block that did is kept. Another block that stores other
bits there, or loads from there, is a fault, but in kernels with atomics or fences, by which blocks
may agree. Copies of the copy engine are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .access import Piece
    from .engine import Batch
    from .translate import Program
    from .windows import Windows

_AGREEING = frozenset({"atom", "red", "membar", "fence", "multimem"})
_ORDERED = frozenset({"acquire", "release", "relaxed", "volatile", "acq_rel"})
_SPACES = frozenset({"shared", "local", "param", "const"})


def followed(program: Program) -> int:
    """The bytes of a granule: those of the smallest store; 0 for a program whose blocks may have
    an order, or that stores nothing to global memory."""
    sizes = []
    for node in program.nodes:
        parts = node.instruction.parts
        if parts[0] in _AGREEING or _ORDERED & set(parts):
            if parts[:2] == ("fence", "proxy") or "mbarrier_init" in parts:
                continue
            return 0
        if parts[0] == "st" and not _SPACES & {part.partition("::")[0] for part in parts}:
            sizes.append({"8": 1, "16": 2}.get(parts[-1].lstrip("bufs"), 4))
    return min(sizes, default=0)


class Blocks:
    """Of one launch; batches follow each other."""

    def __init__(self, granule: int, memory: Windows) -> None:
        self.granule, self.memory = granule, memory
        # By allocation: its address, and of each granule the number of the block + 1.
        self._owners: dict[int, tuple[int, np.ndarray]] = {}

    def _owners_of(self, elements: np.ndarray) -> tuple[int, np.ndarray] | None:
        found = self._owners.get(id(elements.base))
        if found is None:
            base = self.memory.base_of(elements)
            if base is None:
                return None
            owners = np.zeros(elements.nbytes // self.granule, np.int32)
            found = self._owners[id(elements.base)] = base, owners
        return found

    def _places(self, S: Batch, A: Any, piece: Piece, size: int) -> tuple[Any, Any, Any]:
        """Threads, and for each of their granules its place and the thread's block + 1."""
        elements, index, chosen = piece
        threads = S.threads(A)
        if chosen is not None:
            threads = threads[chosen]
        blocks = (S.cta_numbers[S.lanes[threads] // S.threads_per_cta] + 1)[:, None]
        first = np.broadcast_to(index * elements.itemsize // self.granule, threads.size)
        places = first[:, None] + np.arange(max(size // self.granule, 1))
        return threads, places, blocks

    def stored(self, S: Batch, A: Any, n: int, pieces: list[Piece], size: int, values: Any) -> None:
        for piece in pieces:
            found = self._owners_of(piece[0])
            if found is None:
                continue
            base, owners = found
            threads, places, blocks = self._places(S, A, piece, size)
            before = owners[places]
            owners[places] = blocks
            met = (before != 0) & (before != blocks)
            if met.any() and _changes(piece, values, met.any(1)):
                self._tell(S, n, base, "stores where", "stored", threads, places, before, met)
            after = owners[places]
            met = after != blocks
            if met.any() and _differ(piece, values):
                self._tell(S, n, base, "stores where", "stores", threads, places, after, met)

    def loaded(self, S: Batch, A: Any, n: int, pieces: list[Piece], size: int) -> None:
        for piece in pieces:
            found = self._owners.get(id(piece[0].base))
            if found is None:
                continue
            base, owners = found
            threads, places, blocks = self._places(S, A, piece, size)
            before = owners[places]
            met = (before != 0) & (before != blocks)
            if met.any():
                self._tell(S, n, base, "loads what", "stored", threads, places, before, met)

    def _tell(
        self, S: Batch, n: int, base: int, does: str, did: str, threads: np.ndarray,
        places: np.ndarray, others: np.ndarray, met: np.ndarray,
    ) -> None:  # fmt: skip
        thread, part = (int(one[0]) for one in np.nonzero(met))
        where = self.memory.name(base + int(places[thread, part]) * self.granule)
        other = S.index_of(int(others[thread, part]) - 1)
        text = f"{does} block {other} {did}: {where}; blocks have no order"
        S.fault("blocks", text, n, threads[thread : thread + 1])


def _stored(piece: Piece, values: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions and the bits that are stored there."""
    _, index, chosen = piece
    for j, value in enumerate(values):
        value = value[chosen] if chosen is not None and value.ndim else value
        spot, value = np.broadcast_arrays(np.atleast_1d(index + j), np.atleast_1d(value))
        yield spot, np.ascontiguousarray(value).view(f"u{value.itemsize}")


def _changes(piece: Piece, values: Any, chosen: np.ndarray) -> bool:
    """Would the stores of the `chosen` threads leave something else than what is there?"""
    for spot, value in _stored(piece, values):
        held = piece[0][spot].view(value.dtype)
        if ((held != value) & (chosen if chosen.size == held.size else True)).any():
            return True
    return False


def _differ(piece: Piece, values: Any) -> bool:
    """Do threads store different values at one place?"""
    for spot, value in _stored(piece, values):
        order = np.argsort(spot, kind="stable")
        spot, value = spot[order], value[order]
        if ((spot[1:] == spot[:-1]) & (value[1:] != value[:-1])).any():
            return True
    return False
