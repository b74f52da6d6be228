"""Who still reads or writes shared memory behind the threads' backs.

Per word (4 bytes) of a cluster's shared memory: `dirty` (a thread wrote it and has not passed a
proxy fence), `writer` and `when` (the thread that wrote it last, and how many barriers it had met
by then), `reader` and `read_at` (the same of the thread that loaded it last), `arriving` (a copy in
flight will write it), `leaving` (a copy or a product in flight will read it).
Loads and stores of threads, and the issue of asynchronous operations, are checked against these, so
a missing wait is found even where the order of this run happens to hide it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .engine import At, Batch

POISON = np.uint32(0xFFFFFFFF)  # not-a-number in every float type


class Traffic:
    """`index` everywhere: places of words in `state.shared` (CTA number * stride + offset, / 4)."""

    def __init__(self, state: Batch) -> None:
        self.state = state
        size = state.shared.size // 4
        self.words = state.shared_view("u4")
        self.dirty = np.zeros(size, np.int32)  # thread + 1
        self.arriving = np.zeros(size, bool)
        self.leaving = np.zeros(size, np.int16)
        self.barriers = np.zeros(size, bool)  # words of mbarriers
        self.writer = np.zeros(size, np.int32)  # thread + 1
        self.when = np.zeros(size, np.int32)
        self.met = np.zeros(state.T + 1, np.int32)  # of thread + 1
        self.reader = np.zeros(size, np.int32)  # thread + 1
        self.read_at = np.zeros(size, np.int32)
        self.passed = np.zeros(state.T + 1, np.int32)  # like `met`, and barriers of warps
        # Threads may also agree through memory, which is not followed.
        others = {node.instruction.parts[0] for node in state.nodes}
        self.ordered = not others & {"atom", "red", "membar"}
        if state.checks:
            state.on_shared_store.append(self.stored)
            state.on_shared_load.append(self.loaded)
            state.on_barrier.append(self.meet)

    @staticmethod
    def of(state: Batch) -> Traffic:
        found = state.data.get("traffic")
        if found is None:
            found = state.data["traffic"] = Traffic(state)
        return found

    def _words(self, cta: Any, offset: Any, nbytes: int) -> np.ndarray:
        start = np.atleast_1d(np.asarray(cta) * self.state.shared_stride + np.asarray(offset)) // 4
        if nbytes <= 4:
            return start[:, None]
        return start[:, None] + np.arange(nbytes // 4)

    def stored(self, threads: np.ndarray, cta: Any, offset: Any, nbytes: int, number: int) -> None:
        """Threads store, by instruction `number`."""
        index = self._words(cta, offset, nbytes)
        if self.leaving[index].any():
            text = "store into shared memory that an operation in flight still reads"
            self.state.fault("race", text, number, threads)
        if self.arriving[index].any():
            text = "store into the destination of a copy in flight"
            self.state.fault("race", text, number, threads)
        if self.barriers[index].any():
            self.state.fault("barrier", "store over an mbarrier in use", number, threads)
        self.wrote(threads, index)

    def wrote(self, threads: np.ndarray, index: np.ndarray) -> None:
        """These threads have written [thread, word]."""
        owner = np.broadcast_to(threads + 1, index.shape[:1])[:, None]
        self.dirty[index] = self.writer[index] = owner
        self.when[index] = self.met[owner]

    def loaded(self, threads: np.ndarray, cta: Any, offset: Any, nbytes: int, number: int) -> None:
        """Threads load."""
        index = self._words(cta, offset, nbytes)
        if self.arriving[index].any():
            text = "load from the destination of a copy in flight"
            self.state.fault("race", text, number, threads)
        owner = np.broadcast_to(threads + 1, index.shape[:1])[:, None]
        self.reader[index] = owner
        self.read_at[index] = self.passed[owner]

    def meet(self, threads: np.ndarray) -> None:
        """These threads arrive at a barrier."""
        self.met[threads + 1] += 1
        self.passed[threads + 1] += 1

    def meet_in_warp(self, threads: np.ndarray) -> None:
        """These threads meet those of their warp."""
        self.passed[threads + 1] += 1

    def fence(self, threads: np.ndarray) -> None:
        """What these threads have written may be read by copies and products from now on."""
        fenced = np.zeros(self.state.T + 1, bool)
        fenced[threads + 1] = True
        self.dirty[fenced[self.dirty]] = 0

    # What the issue of an asynchronous operation checks and claims.

    def begin_read(self, at: At, index: np.ndarray, what: str, thread: int = -1) -> None:
        """`thread` issues it for itself; -1: for a warp group."""
        if at.state.checks:
            if self.dirty[index].any():
                at.fault(
                    "proxy",
                    f"{what} reads shared memory that threads wrote without fence.proxy.async "
                    "after it",
                )
            if self.arriving[index].any():
                at.fault("race", f"{what} reads the destination of a copy in flight")
            writer = self.writer[index]
            if self.ordered and writer.any():
                alone = (writer > 0) & (self.when[index] == self.met[writer])
                alone &= (writer - 1) // 32 != thread // 32
                if alone.any():
                    text = f"{what} reads what a thread wrote that has met no barrier since"
                    at.fault("race", text, writer[alone][:1] - 1)
        self.leaving[index] += 1

    def end_read(self, index: np.ndarray) -> None:
        self.leaving[index] -= 1

    def check_readers(self, at: At, index: np.ndarray, what: str) -> None:
        """Whoever has loaded what is overwritten has to have met somebody since."""
        reader = self.reader[index]
        alone = (reader > 0) & (self.read_at[index] == self.passed[reader])
        alone &= ~np.isin((reader - 1) // 32, at.threads // 32)
        if self.ordered and alone.any():
            text = f"{what} overwrites what a thread has loaded that has met no barrier since"
            at.fault("race", text, reader[alone][:1] - 1)
        self.reader[index] = 0

    def begin_write(self, at: At, index: np.ndarray, what: str) -> None:
        """Poisons the destination."""
        if at.state.checks:
            if self.leaving[index].any():
                at.fault(
                    "race",
                    f"{what} overwrites shared memory that an operation in flight still reads",
                )
            if self.arriving[index].any():
                at.fault("race", f"{what} writes where another copy in flight writes")
            if self.barriers[index].any():
                at.fault("barrier", f"{what} writes over an mbarrier in use")
        self.arriving[index] = True
        self.dirty[index] = self.writer[index] = 0
        self.words[index] = POISON

    def end_write(self, index: np.ndarray, data: np.ndarray) -> None:
        """`data`: the bytes, as many as `index` has in words."""
        self.arriving[index] = False
        self.words[index] = np.ascontiguousarray(data).view(np.uint32).reshape(index.shape)


def words_from(place: int, nbytes: int) -> np.ndarray:
    """Words of `nbytes` neighbouring bytes."""
    return place // 4 + np.arange(nbytes // 4)


def spread(at: At, value: Any) -> np.ndarray:
    """A source as one element per thread, also where it is the same for all."""
    return np.broadcast_to(value, at.threads.shape)


def global_bytes(at: At, address: int, nbytes: int, what: str) -> np.ndarray:
    """Bytes of global memory; a fault where they are not all inside one allocation."""
    memory = at.state.memory
    found = memory.span(address, nbytes)
    if found is None:
        segment = memory.find(address)
        where = memory.place(address) if segment is None else memory.over(segment)
        at.fault("bounds", f"{what} of {nbytes} bytes at {address:#x}, {where}")
        return np.zeros(nbytes, np.uint8)
    return found


def shared_place(at: At, address: np.ndarray, nbytes: int, align: int, what: str,
                 threads: np.ndarray | None = None) -> np.ndarray:  # fmt: skip
    """Places in `state.shared` of shared (cluster) addresses, checked."""
    state = at.state
    cta, offset = state.locate_shared(at.threads if threads is None else threads, address)
    size = state.shared_bytes
    wrong = (offset < 0) | (offset + nbytes > size)
    if wrong.any():
        first = int(offset[wrong][0])
        at.fault("bounds", f"{what} of {nbytes} bytes at {first}, the block has {size} bytes")
    if align > 1 and (offset % align).any():
        first = int(offset[offset % align != 0][0])
        at.fault("alignment", f"{what} at shared address {first}, which is no multiple of {align}")
    return cta * state.shared_stride + offset
