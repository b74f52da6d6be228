"""What steps of a stretch wait for: the edges of its graph, from the waits of its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .gpu_steps import KernelStep

Edges = list[tuple[int, ...]]  # of each node, the nodes before it that it follows


def step_edges(steps: Sequence[KernelStep], begin: int) -> Edges:
    """Of each of these steps, the first of which is number `begin`, the places among them of those
    that it follows.

    What stands before them is complete. A barrier waits for all before it, and what follows a
    barrier relies on that, though it does not wait for the step itself.
    """
    found: Edges = []
    followed: list[int] = []  # by each, as bits
    before: list[int] = []  # the barrier: complete before any of `since` begins
    since: list[int] = []
    for place, step in enumerate(steps):
        if step.wait and since:
            before, since = since, []
        after = {other - begin for other in step.after if begin <= other < begin + place}
        kept: list[int] = []
        implied = 0
        for other in sorted(after.union(before), reverse=True):  # no edge that follows from others
            if not implied >> other & 1:
                kept.append(other)
                implied |= followed[other] | 1 << other
        found.append(tuple(reversed(kept)))
        followed.append(implied)
        since.append(place)
    return found


def launch_edges(edges: Edges, counts: Sequence[int]) -> Edges:
    """The edges of launches; counts: of each step, which follow each other. Those of a step that
    starts nothing are its own steps'."""
    found: Edges = []
    last: list[tuple[int, ...]] = []  # of each step, the launches that those behind it follow
    for after, count in zip(edges, counts, strict=True):
        before = tuple(sorted({launch for place in after for launch in last[place]}))
        for _ in range(count):
            found.append(before)
            before = (len(found) - 1,)
        last.append(before)
    return found


def latest_first(edges: Edges, choose: Callable[[list[int]], int] = max) -> Iterator[int]:
    """The nodes in an order that the edges allow and that is as far from theirs as it may be;
    choose: which of those that may come next does."""
    missing = [len(after) for after in edges]
    following: list[list[int]] = [[] for _ in edges]
    for node, after in enumerate(edges):
        for other in after:
            following[other].append(node)
    ready = [node for node, count in enumerate(missing) if not count]
    while ready:
        node = choose(ready)
        ready.remove(node)
        yield node
        for other in following[node]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
