"""Blocks of one launch that meet in global memory: nothing orders them.

For each granule of global memory the block that stored it is kept, and the one that loaded it.
Another block that stores other bits there, or loads what was stored, is a fault, but in kernels
with atomics or fences, by which blocks may agree. Copies of the copy engine are not followed.
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

MANY = -1
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


class _Touched:
    """Of one allocation: of each granule the number + 1 of the block that stored it, and of the
    one that loaded it, or MANY; `starts`: granules at which arrays begin."""

    def __init__(self, base: int, count: int, starts: np.ndarray) -> None:
        self.base, self.starts = base, starts
        self.stored = np.zeros(count, np.int32)
        self.loaded: np.ndarray | None = None  # made when something is loaded

    def loads(self) -> np.ndarray:
        if self.loaded is None:
            self.loaded = np.zeros(self.stored.size, np.int32)
        return self.loaded


class Blocks:
    """Of one launch; batches follow each other."""

    def __init__(self, granule: int, memory: Windows) -> None:
        self.granule, self.memory = granule, memory
        self._known: dict[int, _Touched | None] = {}

    def _touched(self, elements: np.ndarray) -> _Touched | None:
        """None for memory that is not global."""
        key = id(elements.base)
        if key not in self._known:
            self._known[key] = None
            base = self.memory.base_of(elements)
            if base is not None:
                starts = [(w.address - base) // self.granule for w in self.memory.windows]
                count = elements.nbytes // self.granule
                self._known[key] = _Touched(base, count, np.array(starts))
        return self._known[key]

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
            touched = self._touched(piece[0])
            if touched is None:
                continue
            threads, places, blocks = self._places(S, A, piece, size)
            before = touched.stored[places]
            touched.stored[places] = blocks
            after = touched.stored[places]
            loads = before if touched.loaded is None else touched.loaded[places]
            others = (
                ("stored", before, (before != 0) & (before != blocks), _changes),
                ("loads", loads, (loads != 0) & (loads != blocks), _changes),
                ("stores", after, after != blocks, _differ),
            )
            for did, who, met, matters in others:
                if met.any() and matters(piece, values, met.any(1)):
                    place = touched, places
                    self._tell(S, n, place, f"stores what {{}} {did}", threads, who, met)

    def loaded(self, S: Batch, A: Any, n: int, pieces: list[Piece], size: int) -> None:
        constant = "nc" in S.nodes[n].instruction.parts  # nobody stores there
        for piece in pieces:
            touched = self._touched(piece[0])
            if touched is None:
                continue
            threads, places, blocks = self._places(S, A, piece, size)
            # Threads that are masked load where an array begins, for nothing.
            counts = ~np.isin(places[:, 0], touched.starts)
            if not counts.all():
                threads, places, blocks = threads[counts], places[counts], blocks[counts]
            before = touched.stored[places]
            met = (before != 0) & (before != blocks)
            if met.any():
                place = touched, places
                self._tell(S, n, place, "loads what {} stored", threads, before, met)
            if not constant:
                loads = touched.loads()
                known = loads[places]
                new = np.where((known == 0) | (known == blocks), blocks, MANY)
                loads[places] = new
                loads[places[loads[places] != new]] = MANY  # several blocks of this vector

    def _tell(
        self, S: Batch, n: int, place: tuple[_Touched, np.ndarray], does: str,
        threads: np.ndarray, others: np.ndarray, met: np.ndarray,
    ) -> None:  # fmt: skip
        thread, part = (int(one[0]) for one in np.nonzero(met))
        touched, places = place
        where = self.memory.name(touched.base + int(places[thread, part]) * self.granule)
        other = int(others[thread, part])
        who = "another block" if other == MANY else f"block {S.index_of(other - 1)}"
        text = f"{does.format(who)}, {where}; blocks of a launch have no order"
        S.fault("race", text, n, threads[thread : thread + 1])


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


def _differ(piece: Piece, values: Any, _: np.ndarray) -> bool:
    """Do threads store different values at one place?"""
    for spot, value in _stored(piece, values):
        order = np.argsort(spot, kind="stable")
        spot, value = spot[order], value[order]
        if ((spot[1:] == spot[:-1]) & (value[1:] != value[:-1])).any():
            return True
    return False
