"""The best order: dynamic programming over the sets of tasks that have run.

What can follow depends on the set alone, so only the way with the lowest peak to each set is
followed, the lowest of all first: when all tasks have run, no other way is better. Until then the
peak of the way that is followed is a bound: all ways come by one that is at least as high.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from .graph import TaskGraph
from .state import OrderState, OrderWalker


class OrderResult(NamedTuple):
    """What a search knows: a way with a peak below what was known (None: there was none, or it was
    not found), its peak; what no way can be below; how many states were followed."""

    moves: list[int] | None
    peak: int
    bound: int
    states: int
    tried: int


def best_moves(
    graph: TaskGraph, among: int, done: int, live: int, floor: int, known: int, work: int
) -> OrderResult:
    """Moves for the tasks `among`, after those of `done` while `live` bytes live.

    floor: bytes that any order needs. known: the peak of a way that is known; only lower ones are
    looked for. work: after so many moves that were looked at it gives up.
    """
    walker = OrderWalker(graph, among, floor)
    serial = states = 0
    queue: list[tuple[int, int, int, int, OrderState]] = []
    seen: dict[int, int] = {}

    def push(state: OrderState) -> None:
        nonlocal serial
        if state.peak < known and seen.get(state.done, known) > state.peak:
            seen[state.done] = state.peak
            serial += 1
            key = state.peak, -state.done.bit_count(), state.live, serial
            heapq.heappush(queue, (*key, state))

    push(walker.settled(walker.start(done, live)))
    while queue:
        *_, state = heapq.heappop(queue)
        if seen[state.done] < state.peak:
            continue
        if not state.ready:
            return OrderResult(state.way(), state.peak, state.peak, states, walker.tried)
        if walker.tried >= work:
            return OrderResult(None, known, max(floor, state.peak), states, walker.tried)
        states += 1
        for number in state.ready:
            follow = walker.follow(state, number)
            if follow.peak < known:
                push(walker.settled(follow))
    return OrderResult(None, known, known, states, walker.tried)
