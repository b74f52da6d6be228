"""Orders that are made one task at a time: of all ready ones, the one with the lowest key."""

from __future__ import annotations

from collections.abc import Callable

from .graph import Moved, TaskGraph

Key = Callable[[Moved, int, int], tuple[int, ...]]  # of a move, bytes that live before it, the peak


def ready_order(graph: TaskGraph, key: Key) -> list[int]:
    """All tasks; of equal keys, the task that stands first in the region."""
    done = live = peak = 0
    moves: list[int] = []
    ready = set(graph.ready(0, graph.all & ~graph.lazy))
    while ready:
        best = min((*key(graph.move(done, live, number), live, peak), number) for number in ready)
        number = best[-1]
        need, live, done = graph.move(done, live, number)
        peak = max(peak, need)
        moves.append(number)
        ready.remove(number)
        ready.update(graph.ready(done, graph.after[number]))
    return graph.tasks_of(moves)


def list_order(graph: TaskGraph) -> list[int]:
    """Of all ready tasks, the one after which least is added to what lives."""
    return ready_order(graph, lambda moved, live, peak: (moved.live - live,))


def least_net_order(graph: TaskGraph) -> list[int]:
    """Of the ready tasks that need no more than was needed before, the one that adds least; where
    there is none, the one that needs least (LPMF)."""
    return ready_order(
        graph,
        lambda moved, live, peak: (0, moved.live - live) if moved.need <= peak else (1, moved.need),
    )
