"""Where the carried values of a loop lie in turns that follow each other, so that none is copied.

A value that is replaced while it is read, or that becomes another carried value, cannot stay where
it is. Turns of the loop are then steps of their own, each from the memory of its values to that of
the next ones, until all lie where they began: a value that a kernel needs whole goes to and fro
between two places, two values that change places are named anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..hlo.deciding import largest
from ..hlo.graph import Op, Region
from . import counters
from .overwriting import Hinders, Results

COPIED_BYTES = 4096  # carried values up to this may be copied in every turn
TURNS = 6  # of a loop that are steps of their own, at most: two and three of them in common
OPERATIONS = 1 << 16  # of all these turns

Place = TypeVar("Place")


def turns(
    body: Region, first: Sequence[Place], hinders: Hinders, fresh: Callable[[int], Place]
) -> list[list[Place]]:
    """The places of all carried values at the beginning of each turn; after the last one they are
    `first` again. One turn, at whose end values are copied, where no few of them come back.

    fresh: a new place for the carried value of that number.
    """
    moves = _Moves(body, hinders, fresh)
    found = [list(first)]
    while len(found) * operations(body) <= OPERATIONS and len(found) <= TURNS:
        following = moves.after(found[-1])
        if following == found[0]:
            return found
        found.append(following)
    return found[:1]


class KnownTurns(NamedTuple):
    """What is known of a loop's condition before one of the turns that follow each other: it holds,
    but where the loop ends `here`, after so many `turns` in which it holds here."""

    turns: int
    here: bool


def known_turns(loop: Op, each: int) -> list[KnownTurns | None]:
    """Of a loop, every `each` turns of which are steps of their own, what is known before each of
    these; None: nothing."""
    count = counters.turns(loop, counters.counters(loop))
    if count is None:
        return [None] * each
    return [KnownTurns(len(range(n, count, each)), count % each == n) for n in range(each)]


def operations(body: Region) -> int:
    """How many operations a turn may come to, with as many turns of loops inside as they have at
    most where each alternates between two places."""
    return len(body.ops) + sum(
        (2 if op.name == "while" else 1) * operations(inner)
        for op in body.ops
        if op.definition.flow
        for inner in op.regions
    )


class _Moves(Generic[Place]):
    """What becomes of the places of carried values in a turn."""

    def __init__(self, body: Region, hinders: Hinders, fresh: Callable[[int], Place]) -> None:
        self.body, self.hinders, self.fresh = body, hinders, fresh
        self.results = Results(body)
        self.bytes = [argument.tensor.bytes for argument in body.arguments]
        self.large = [n for n, size in enumerate(self.bytes) if largest(size) > COPIED_BYTES]
        sources = {n: self.results.passed_on(n) for n in self.large}
        self.kept = {n: k for n, k in sources.items() if k is not None}
        self.known: dict[tuple[int, int], bool] = {}
        self.pool: dict[Place, int] = {}  # places of large values, and their bytes

    def after(self, places: Sequence[Place]) -> list[Place]:
        """The places at the end of a turn that begins with these."""
        self.pool.update((places[n], self.bytes[n]) for n in self.large)
        new = dict(enumerate(places)) | {n: places[k] for n, k in self.kept.items()}
        taken = {new[n] for n in self.kept}
        moving = []
        for n in self.large:
            if n not in self.kept:
                stays = not self.results.computed(n) or self.free(n, n)
                if stays and places[n] not in taken:
                    taken.add(places[n])
                else:
                    moving.append(n)
        for n in moving:
            new[n] = self.place(n, places, taken)
            taken.add(new[n])
        return [new[n] for n in range(len(places))]

    def place(self, n: int, places: Sequence[Place], taken: Collection[Place]) -> Place:
        """One that no value needs at the end of the turn, nor while that result is made."""
        holders = {places[k]: k for k in self.large}
        for place, size in self.pool.items():
            if size == self.bytes[n] and place not in taken:
                holder = holders.get(place)
                if holder is None or not self.results.computed(n) or self.free(holder, n):
                    return place
        place = self.fresh(n)
        self.pool[place] = self.bytes[n]
        return place

    def free(self, k: int, n: int) -> bool:
        """Whether result n may be computed where carried value k lies."""
        if (k, n) not in self.known:
            old, result = self.body.arguments[k], self.body.results[n]
            self.known[k, n] = not self.results.hindrance([old], result, self.hinders)
        return self.known[k, n]
