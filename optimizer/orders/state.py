"""Partial orders, as the searches know them."""

from __future__ import annotations

from typing import NamedTuple

from .graph import TaskGraph


class OrderState(NamedTuple):
    """What has run and lives, the peak on the way, what can run next; how it was reached: the last
    moves, and the state before them."""

    done: int
    live: int
    peak: int
    ready: tuple[int, ...]
    moves: tuple[int, ...] = ()
    before: OrderState | None = None

    def way(self) -> list[int]:
        """All moves on the way here."""
        parts: list[tuple[int, ...]] = []
        state: OrderState | None = self
        while state is not None:
            parts.append(state.moves)
            state = state.before
        return [move for part in reversed(parts) for move in part]


class OrderWalker:
    """Goes from state to state among some tasks of a graph.

    floor: bytes that any order needs: a peak up to there costs nothing.
    tried: moves that were looked at, the measure of a search's work.
    """

    def __init__(self, graph: TaskGraph, among: int, floor: int) -> None:
        self.graph, self.among, self.floor = graph, among & ~graph.lazy, floor
        self.tried = 0

    def start(self, done: int, live: int) -> OrderState:
        ready = self.graph.ready(done, self.among & ~done)
        return OrderState(done, live, self.floor, tuple(ready))

    def follow(self, state: OrderState, number: int) -> OrderState:
        """The state after one more move."""
        need, live, done = self.graph.move(state.done, state.live, number)
        self.tried += 1
        return OrderState(done, live, max(state.peak, need), (), (number,), state)

    def settled(self, state: OrderState) -> OrderState:
        """The same state, or one behind it: a task that adds nothing to what lives, and needs no
        more than the peak, never does harm where it runs now."""
        graph = self.graph
        growing = graph.growing
        done, live, peak, ready, moves, before = state
        if before is not None and not ready:
            found = [*before.ready]
            for number in moves:
                found.remove(number)
                found += graph.ready(done, graph.after[number] & self.among)
        else:
            found = list(ready)
        taken = list(moves)
        changed = True
        while changed:
            changed = False
            for number in found:
                if growing[number]:
                    continue
                self.tried += 1
                moved = graph.move(done, live, number)
                if moved.live <= live and moved.need <= peak:
                    _, live, done = moved
                    taken.append(number)
                    found.remove(number)
                    found += graph.ready(done, graph.after[number] & self.among)
                    changed = True
                    break
        return OrderState(done, live, peak, tuple(sorted(found)), tuple(taken), before)
