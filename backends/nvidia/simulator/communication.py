"""Blocks that communicate through global memory: the memory model of PTX between them.

In a program with fences, or with accesses that acquire, release, are relaxed or volatile, all
blocks that are resident run together. Weak accesses have to be ordered (`meetings`). Locations of
strong accesses keep the messages that were stored there (`Location`): a load may read any that
coherence allows, the newest ("eager"), the oldest and from there one further with every try
("lazy"), or any (a seed). Loads are not moved behind later accesses of their thread, and stores of
one location are in the order in which they run: what else the model allows of relaxed accesses
(load buffering, stores that overtake each other) does not occur.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .meetings import Meetings, Touched
from .semantics import Semantics, semantics

if TYPE_CHECKING:
    from .access import Piece
    from .engine import Batch

MOST_THREADS = 1 << 13  # of a launch that is no cooperative one, to be followed
HISTORY = 64  # messages of a location that may still be read
IDLE = 32  # loads that read nothing new before their thread counts as waiting


@dataclass(slots=True)
class Message:
    value: np.ndarray  # one element
    view: np.ndarray | None  # the clock that it passes on
    node: int = -1  # of the instruction that stored it; -1: there before


@dataclass(slots=True, eq=False)
class Location:
    """What strong accesses have made of one element. `first`: the number of messages[0]."""

    component: int
    size: int
    messages: list[Message]
    first: int = 0
    stale: bool = False  # a weak store has replaced all
    seen: dict[int, int] = field(default_factory=dict)  # thread: number of the message it read
    readers: dict[int, tuple[int, int]] = field(default_factory=dict)  # thread: clock, instruction

    @property
    def newest(self) -> int:
        return self.first + len(self.messages) - 1


class _Place(NamedTuple):
    """One element in memory."""

    touched: Touched
    granules: slice
    elements: np.ndarray
    index: int


class Communication(Meetings):
    """Of one batch, which holds all blocks of its launch."""

    def __init__(self, state: Batch) -> None:
        super().__init__(state)
        self.locations: list[Location] = []
        self._semantics: dict[int, Semantics] = {}
        self.released: dict[int, np.ndarray] = {}  # thread: its clock at its last fence
        self.heard: dict[int, np.ndarray] = {}  # thread: what relaxed loads read, for a fence
        self.sequential = np.zeros(0, np.int64)  # the clock of all fence.sc until now
        self.idle = np.zeros(state.T, np.int32)  # loads in turn that read nothing new ...
        self.idle_since = np.full(state.T, -1)  # ... at this progress
        self.waits: dict[int, tuple[int, int]] = {}  # thread: address, instruction
        self.suspect = False

    def _said(self, n: int) -> Semantics:
        found = self._semantics.get(n)
        if found is None:
            found = self._semantics[n] = semantics(self.state.nodes[n].instruction)
        return found

    def overwrites(self, n: int, touched: Touched, threads: np.ndarray, places: np.ndarray) -> None:
        """Weak stores are about to replace messages: every reader of these has to be known."""
        met = touched.location[places]
        for number in np.unique(met[met > 0]).tolist():
            location = self.locations[number - 1]
            who, part = (int(one[0]) for one in np.nonzero(met == number))
            thread, place = int(threads[who]), int(places[who, part])
            for reader, (clock, node) in location.readers.items():
                block = int(self.block_of[reader])
                known = self.knowledge.known(np.array([thread]), block, clock, reader)
                if block != self.block_of[thread] and not known.all():
                    text = f"which {self.who(reader, block)} loads at {self.line(node)}"
                    self.race(n, touched, place, "stores", text, thread)
            location.stale = True

    # ------------------------------------------------------------ strong accesses

    def load(self, A: Any, n: int, pieces: list[Piece], size: int) -> np.ndarray:
        """A strong load of one element by each thread."""
        said, state = self._said(n), self.state
        threads = state.threads(A)
        result = np.zeros(threads.size, pieces[0][0].dtype if pieces else np.uint8)
        for elements, index, chosen in pieces:
            members = np.arange(threads.size) if chosen is None else chosen
            touched = self.touched_of(elements)
            if touched is None or not said.strong:
                if touched is not None:
                    self.loaded(state, A, n, [(elements, index, chosen)], size)
                result[members] = elements.take(index)
                continue
            spots = np.broadcast_to(index, members.size)
            for k in self._order(members.size):
                place = self._place(touched, elements, int(spots[k]), size)
                thread = int(threads[members[k]])
                result[members[k]] = self._read(n, thread, place, said)[0]
        return result

    def store(self, A: Any, n: int, pieces: list[Piece], size: int, value: np.ndarray) -> None:
        """A strong store of one element by each thread."""
        said, state = self._said(n), self.state
        threads = state.threads(A)
        for elements, index, chosen in pieces:
            members = np.arange(threads.size) if chosen is None else chosen
            touched = self.touched_of(elements)
            spots = np.broadcast_to(index, members.size)
            values = np.broadcast_to(value, threads.size)[members]
            if touched is None or not said.strong:
                if touched is not None:
                    self.stored(state, A, n, [(elements, index, chosen)], size, [value])
                elements[spots] = values
                continue
            for k in self._order(members.size):
                place = self._place(touched, elements, int(spots[k]), size)
                self._write(n, int(threads[members[k]]), place, values[k : k + 1], said, None)

    def atomic(
        self, A: Any, n: int, piece: Piece, size: int, function: Any, values: list[Any]
    ) -> np.ndarray | None:
        """An atomic of each thread of the piece: the elements before; None where nothing but the
        order of threads decides, and the access is noted."""
        elements, index, chosen = piece
        said, touched = self._said(n), self.touched_of(elements)
        if touched is None:
            return None
        threads, places = self.granules_of(A, piece, size)
        if not said.strong:
            self.stored(self.state, A, n, [piece], size, values)
            return None
        plain = not (said.acquires or said.releases or touched.location[places].any())
        if plain and not self.released.keys() & set(threads.tolist()):
            self.check(n, touched, threads, places, True, True)
            self.stamp(n, touched, threads, places, True)
            self.progress += 1
            return None
        spots = np.broadcast_to(index, threads.size)
        before = np.zeros(threads.size, elements.dtype)
        given = [value[chosen] if chosen is not None and value.ndim else value for value in values]
        given = [np.broadcast_to(value, threads.size) for value in given]
        for k in self._order(threads.size):
            place = self._place(touched, elements, int(spots[k]), size)
            thread, operands = int(threads[k]), [value[k : k + 1] for value in given]
            location = self._location(place, size)
            held = location.messages[-1]
            value = held.value.view(elements.dtype)
            before[k] = value[0]
            after = np.asarray(function(value, *operands), elements.dtype)
            if function.__name__ == "compare_and_swap" and value[0] != operands[0][0]:
                self._read(n, thread, place, said, newest=True)  # one that fails stores nothing
                continue
            self._hear(thread, held, said)
            same = bool((after == value).all())
            self._write(n, thread, place, after, said, held.view)
            if same:
                self.progress -= 1
                self._idle(thread, place, n)
        return before

    def _order(self, count: int) -> Any:
        return self.state.random.permutation(count) if self.state.seed else range(count)

    def _place(self, touched: Touched, elements: np.ndarray, index: int, size: int) -> _Place:
        first = index * elements.itemsize // self.granule
        return _Place(touched, slice(first, first + max(size // self.granule, 1)), elements, index)

    def _location(self, place: _Place, size: int) -> Location:
        numbers = place.touched.location[place.granules]
        found = self.locations[numbers[0] - 1] if numbers[0] else None
        if found is None or found.size != size or (numbers != numbers[0]).any():
            found = Location(self.knowledge.component(), size, [])
            self.locations.append(found)
            place.touched.location[place.granules] = len(self.locations)
            found.stale = True
        if found.stale:
            value = place.elements[place.index : place.index + 1].copy()
            found.first += len(found.messages)
            found.messages = [Message(value, None)]
            found.stale = False
        return found

    def _read(
        self, n: int, thread: int, place: _Place, said: Semantics, newest: bool = False
    ) -> np.ndarray:
        size = place.elements.itemsize
        location = self._location(place, size)
        spots = np.arange(place.granules.start, place.granules.stop)[None]
        self.check(n, place.touched, np.array([thread]), spots, False, True)
        low = max(int(self.knowledge.own(thread)[location.component]), location.first)
        before = location.seen.get(thread, -1)
        number = location.newest
        if not newest:
            number = self._choose(low, number, before)
        location.seen[thread] = number
        clock = self.knowledge.own(thread)
        clock[location.component] = max(number, clock[location.component])
        block = int(self.block_of[thread])
        location.readers[thread] = int(self.knowledge.clock[block]), n
        message = location.messages[number - location.first]
        self._hear(thread, message, said)
        if number == before == location.newest:
            self._idle(thread, place, n)
        else:
            self.idle[thread] = 0
        return message.value.view(place.elements.dtype)

    def _choose(self, low: int, high: int, before: int) -> int:
        if self.state.seed:
            return int(self.state.random.integers(low, high + 1))
        if self.state.mode == "eager":
            return high
        return min(max(low, before + 1), high)

    def _hear(self, thread: int, message: Message, said: Semantics) -> None:
        if message.view is None:
            return
        if said.acquires:
            self.knowledge.learn(thread, message.view)
        else:
            self.heard[thread] = _joined(self.heard.get(thread), message.view)

    def _write(
        self, n: int, thread: int, place: _Place, value: np.ndarray, said: Semantics,
        chain: np.ndarray | None,
    ) -> None:  # fmt: skip
        """`chain`: what the message passed on that an atomic has replaced."""
        location = self._location(place, place.elements.itemsize)
        spots = np.arange(place.granules.start, place.granules.stop)[None]
        threads = np.array([thread])
        self.check(n, place.touched, threads, spots, True, True)
        self.stamp(n, place.touched, threads, spots, True)
        number = location.newest + 1
        self.knowledge.own(thread)[location.component] = number
        view = self.released.get(thread)
        if said.releases:
            view = self.knowledge.release(thread)
        if chain is not None:
            view = chain if view is None else _joined(view, chain)
        location.messages.append(Message(value.copy(), view, n))
        if len(location.messages) > HISTORY:
            del location.messages[0]
            location.first += 1
        location.seen[thread] = number
        place.elements[place.index] = value[0]
        self.progress += 1

    def fence(self, A: Any, n: int) -> None:
        said = self._said(n)
        if not said.strong:
            return
        threads = self.state.threads(A)
        for k in self._order(threads.size):
            thread = int(threads[k])
            heard = self.heard.pop(thread, None) if said.acquires else None
            if heard is not None:
                self.knowledge.learn(thread, heard)
            if said.sequential:
                self.knowledge.learn(thread, self.sequential)
            if said.releases:
                self.released[thread] = self.knowledge.release(thread)
            if said.sequential:
                self.sequential = _joined(self.sequential, self.released[thread])

    # ------------------------------------------------------------ waiting

    def _idle(self, thread: int, place: _Place, n: int) -> None:
        if self.idle_since[thread] != self.progress:
            self.idle_since[thread], self.idle[thread] = self.progress, 0
        self.idle[thread] += 1
        address = place.touched.base + place.index * place.elements.itemsize
        self.waits[thread] = address, n
        if self.idle[thread] >= IDLE:
            self.suspect = True

    def waiting(self, threads: np.ndarray) -> np.ndarray:
        """Which of these threads have long read nothing new, and nothing has happened since."""
        return (self.idle[threads] >= IDLE) & (self.idle_since[threads] == self.progress)

    def describe_wait(self, thread: int) -> str:
        address, n = self.waits[thread]
        segment = self.state.memory.find(address)
        text = f"a store to {self.state.memory.name(address)}"
        touched = None if segment is None else self.touched_of(segment.view("u1"))
        if touched is not None and segment is not None:
            place = (address - segment.base) // self.granule
            number = int(touched.location[place])
            message = self.locations[number - 1].messages[-1] if number else None
            if message is not None:
                by = f"at {self.line(message.node)}" if message.node >= 0 else "before the launch"
                text += f", which holds {message.value[0]}, stored {by}"
        return f"{text}, at {self.line(n)}"


def _joined(one: np.ndarray | None, other: np.ndarray) -> np.ndarray:
    """The componentwise maximum of clocks of any lengths."""
    if one is None:
        return other
    if one.size < other.size:
        one, other = other, one
    joined = one.copy()
    np.maximum(joined[: other.size], other, out=joined[: other.size])
    return joined
