"""Weak accesses to global memory by blocks that communicate, and what orders them.

Those of two blocks to one place, one of them a store, need a happens-before between them
(`knowledge`); otherwise they are a race, told with both places. So what a weak load reads is
unique, and memory itself may hold it. Threads of one block are not looked at, nor
copies of the copy engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .access import resolve_global
from .knowledge import SEVERAL, Knowledge
from .semantics import is_global

if TYPE_CHECKING:
    from .access import Piece
    from .engine import Batch
    from .translate import Program

MANY = -1  # readers in several blocks


def _granule(program: Program) -> int:
    """The bytes of the smallest access to global memory that may matter."""
    sizes = [4]
    for node in program.nodes:
        parts = node.instruction.parts
        if parts[0] in ("ld", "st", "atom", "red") and is_global(node.instruction):
            sizes.append({"8": 1, "16": 2}.get(parts[-1].lstrip("bufs"), 4))
    return min(sizes)


class Touched:
    """Of one allocation: the last store of each granule, and the loads of each block since."""

    def __init__(self, base: int, count: int, blocks: int) -> None:
        self.base = base
        self.block = np.zeros(count, np.int32)  # + 1, of the last store; 0: none
        self.clock = np.zeros(count, np.int32)
        self.thread = np.zeros(count, np.int32)
        self.node = np.zeros(count, np.int32)
        self.strong = np.zeros(count, bool)  # was the last store
        self.location = np.zeros(count, np.int32)  # + 1
        self.constant = np.zeros(count, np.int32)  # instruction of a load through .nc, + 1
        # Loads: the block + 1, or MANY; by block what it was.
        self.reader = np.zeros(count, np.int32)
        self.read_clock = np.zeros((blocks, count), np.int32)
        self.read_thread = np.zeros((blocks, count), np.int32)
        self.read_node = np.zeros((blocks, count), np.int32)


class Meetings:
    """Of one batch, which holds all blocks of its launch."""

    def __init__(self, state: Batch) -> None:
        self.state = state
        self.granule = _granule(state.program)
        self.knowledge = Knowledge(state.cta_count, state.threads_per_cta)
        self.block_of = state.thread_numbers // state.threads_per_cta
        self.progress = 0  # grows with everything that a waiting thread may wait for
        self._touches: dict[int, Touched | None] = {}

    # ------------------------------------------------------------ places

    def touched_of(self, elements: np.ndarray) -> Touched | None:
        """None for memory that is not global."""
        key = id(elements.base)
        if key not in self._touches:
            base = self.state.memory.base_of(elements)
            count = elements.nbytes // self.granule
            self._touches[key] = (
                None if base is None else Touched(base, count, self.state.cta_count)
            )
        return self._touches[key]

    def granules_of(self, A: Any, piece: Piece, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Threads, and for each its granules."""
        elements, index, chosen = piece
        threads = self.state.threads(A)
        if chosen is not None:
            threads = threads[chosen]
        first = np.broadcast_to(index * elements.itemsize // self.granule, threads.size)
        return threads, first[:, None] + np.arange(max(size // self.granule, 1))

    # ------------------------------------------------------------ races

    def stored(self, S: Batch, A: Any, n: int, pieces: list[Piece], size: int, values: Any) -> None:
        """Threads store, weakly."""
        for piece in pieces:
            touched = self.touched_of(piece[0])
            if touched is None:
                continue
            threads, places = self.granules_of(A, piece, size)
            self.check(n, touched, threads, places, True, False)
            self.overwrites(n, touched, threads, places)
            self.stamp(n, touched, threads, places, False)
            met = touched.block[places] != self.block_of[threads][:, None] + 1
            if met.any():  # blocks of this vector
                self.tell_stored(n, touched, threads, places, met, "stores")
            self.progress += 1

    def overwrites(self, n: int, touched: Touched, threads: np.ndarray, places: np.ndarray) -> None:
        """Weak stores are about to replace what strong accesses have made."""
        raise NotImplementedError

    def loaded(self, S: Batch, A: Any, n: int, pieces: list[Piece], size: int) -> None:
        """Threads load, weakly."""
        constant = "nc" in S.nodes[n].instruction.parts
        for piece in pieces:
            touched = self.touched_of(piece[0])
            if touched is None:
                continue
            threads, places = self.granules_of(A, piece, size)
            if constant:
                met = touched.block[places] > 0
                if met.any():
                    self.tell_stored(n, touched, threads, places, met, "loads through .nc")
                touched.constant[places] = n + 1
                continue
            self.check(n, touched, threads, places, False, False)
            self._note_loads(n, touched, threads, places)

    def copied(self, threads: np.ndarray, n: int, addresses: np.ndarray, sizes: np.ndarray) -> None:
        """Each thread has started a copy of so many bytes from global memory."""
        for nbytes in np.unique(sizes).tolist():
            alike = sizes == nbytes
            pieces = resolve_global(self.state, threads[alike], n, addresses[alike], 0, "u1", 1)
            self.loaded(self.state, threads[alike], n, pieces, nbytes)

    def check(
        self, n: int, touched: Touched, threads: np.ndarray, places: np.ndarray, stores: bool,
        strong: bool,
    ) -> None:  # fmt: skip
        own = self.block_of[threads][:, None] + 1
        last = touched.block[places]
        met = (last != 0) & (last != own)
        if strong:
            met &= ~touched.strong[places]
        if met.any():
            who, part = np.nonzero(met)
            spot = places[who, part]
            known = self.knowledge.known(
                threads[who], touched.block[spot] - 1, touched.clock[spot], touched.thread[spot]
            )
            met[who, part] = ~known
            if not known.all():
                self.tell_stored(n, touched, threads, places, met, _verb(stores))
        if not stores:
            return
        if touched.constant[places].any():
            who, part = (int(one[0]) for one in np.nonzero(touched.constant[places]))
            place = int(places[who, part])
            other = int(touched.constant[place]) - 1
            text = f"which is loaded through .nc at {self.line(other)}"
            self.race(n, touched, place, _verb(stores), text, int(threads[who]))
        reader = touched.reader[places]
        for who, part in np.argwhere((reader != 0) & (reader != own)):
            self._check_readers(n, touched, int(threads[who]), int(places[who, part]))

    def _check_readers(self, n: int, touched: Touched, thread: int, place: int) -> None:
        own = int(self.block_of[thread])
        blocks = np.nonzero(touched.read_clock[:, place])[0]
        blocks = blocks[blocks != own]
        readers = touched.read_thread[blocks, place]
        clocks = touched.read_clock[blocks, place] - 1
        known = self.knowledge.known(thread, blocks, clocks, readers)
        if not known.all():
            first = int(np.nonzero(~known)[0][0])
            block, node = int(blocks[first]), int(touched.read_node[blocks[first], place])
            text = f"which {self.who(int(readers[first]), block)} loads at {self.line(node)}"
            self.race(n, touched, place, "stores", text, thread)

    def stamp(self, n: int, touched: Touched, threads: Any, places: Any, strong: bool) -> None:
        blocks = self.block_of[threads][:, None]
        touched.block[places] = blocks + 1
        touched.clock[places] = self.knowledge.clock[blocks]
        touched.thread[places] = threads[:, None]
        touched.node[places] = n
        touched.strong[places] = strong
        touched.reader[places] = 0

    def _note_loads(self, n: int, touched: Touched, threads: Any, places: Any) -> None:
        blocks = np.broadcast_to(self.block_of[threads][:, None], places.shape)
        threads = np.broadcast_to(threads[:, None], places.shape)
        now = self.knowledge.clock[blocks] + 1
        again = touched.read_clock[blocks, places] == now
        others = again & (touched.read_thread[blocks, places] != threads)
        touched.read_clock[blocks, places] = now
        touched.read_thread[blocks, places] = np.where(others, SEVERAL, threads)
        several = touched.read_thread[blocks, places] != threads  # others of this vector
        touched.read_thread[blocks[several], places[several]] = SEVERAL
        touched.read_node[blocks, places] = n
        reader = touched.reader[places]
        alone = np.where((reader == 0) | (reader == blocks + 1), blocks + 1, MANY)
        touched.reader[places] = alone
        several = touched.reader[places] != alone
        touched.reader[places[several]] = MANY

    # ------------------------------------------------------------ faults

    def line(self, n: int) -> str:
        instruction = self.state.nodes[n].instruction
        return f"PTX line {instruction.line}: {instruction.text}"

    def who(self, thread: int, block: int) -> str:
        if thread >= 0:
            return self.state.describe(thread)
        return f"block {self.state.index_of(int(self.state.cta_numbers[block]))}"

    def tell_stored(
        self, n: int, touched: Touched, threads: Any, places: Any, met: Any, verb: str
    ) -> None:
        who, part = (int(one[0]) for one in np.nonzero(met))
        place = int(places[who, part])
        other, node = int(touched.thread[place]), int(touched.node[place])
        text = f"which {self.state.describe(other)} stores at {self.line(node)}"
        self.race(n, touched, place, verb, text, int(threads[who]))

    def race(
        self, n: int, touched: Touched, place: int, verb: str, other: str, thread: int
    ) -> None:
        where = self.state.memory.name(touched.base + place * self.granule)
        text = f"{verb} {where}, {other}; no release and acquire order the two"
        self.state.fault("race", text, n, np.array([thread]))


def _verb(stores: bool) -> str:
    return "stores" if stores else "loads"
