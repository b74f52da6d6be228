"""The most promising partial orders of every length: a few of each."""

from __future__ import annotations

from .graph import TaskGraph
from .state import OrderState, OrderWalker

WORK = 60_000  # moves that are looked at, about; more tasks get a narrower beam


def beam_order(graph: TaskGraph, floor: int = 0, work: int = WORK) -> list[int]:
    """All tasks. Of partial orders of as many tasks, those with the lowest peak go on, of equal
    peaks those after which least lives.

    floor: bytes that any order needs. work: how many moves are looked at, about.
    """
    walker = OrderWalker(graph, graph.all, floor)
    first = walker.settled(walker.start(0, 0))
    lengths: dict[int, dict[int, OrderState]] = {first.done.bit_count(): {first.done: first}}
    last = (graph.all & ~graph.lazy).bit_count()
    left = last
    while True:
        length = min(lengths)
        states = sorted(lengths.pop(length).values(), key=lambda s: (s.peak, s.live, s.done))
        if not states[0].ready:
            return graph.tasks_of(states[0].way())
        left = max(1, last - (length - (states[0].done & graph.lazy).bit_count()))
        share = max(1, (work - walker.tried) // left)
        begun = walker.tried
        for state in states:
            for number in state.ready:
                found = walker.settled(walker.follow(state, number))
                kept = lengths.setdefault(found.done.bit_count(), {})
                known = kept.get(found.done)
                if known is None or found.peak < known.peak:
                    kept[found.done] = found
            if walker.tried - begun >= share:
                break
