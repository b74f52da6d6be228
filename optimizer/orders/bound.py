"""What any order needs: while one task runs, values of its ancestors are alive for its descendants.

At a task, whatever the order: a value that an ancestor makes and the task itself, a descendant or
the region's end reads; what the task makes; what it needs inside. What it makes may lie where an
operand lies that nobody has to read later.
"""

from __future__ import annotations

import numpy as np

from ..certify import Forced, OrderBound, Tasks
from ..certify import Task as Certified
from .graph import TaskGraph, bits


def forced_live(graph: TaskGraph) -> OrderBound:
    """The highest bound over all tasks and the end, with what is alive there."""
    best, where = graph.end_bytes, None
    descendants, sizes, users = graph.descendants, graph.sizes, graph.users
    passing = _passing(graph)
    end = 1 << len(graph.tasks)
    for number, task in enumerate(graph.tasks):
        later = descendants[number] | end
        live = graph.made[number] + passing[number]
        dead = {value for value in task.reads if not users[value] & later}
        taken = _taken(graph, number, dead)
        live -= sum(sizes[value] for value in taken)
        early = sum(sizes[value] for value in dead & task.gone if value not in taken)
        live = max(live, live - early + task.inside)
        if live > best:
            best, where = live, number
    return OrderBound(where, tuple(_forced(graph, where)), best)


def _passing(graph: TaskGraph) -> list[int]:
    """For each task the bytes that its ancestors make and it, its descendants or the end read."""
    count = len(graph.tasks)
    live = np.zeros(count, np.int64)
    for maker, task in enumerate(graph.tasks):
        for value in task.makes:
            if graph.sizes[value]:
                between = graph.descendants[maker]
                if not graph.kept[value]:
                    before = graph.users[value]
                    for user in bits(graph.users[value]):
                        before |= graph.ancestors[user]
                    between &= before
                packed = np.frombuffer(between.to_bytes(-(-count // 8), "little"), np.uint8)
                there = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
                live[there] += graph.sizes[value]
    return live.tolist()


def _forced(graph: TaskGraph, where: int | None) -> list[Forced]:
    """What is alive at a task, or at the end, in all orders."""
    if where is None:
        return [Forced(value, "returned") for value, kept in enumerate(graph.kept) if kept]
    needed = graph.descendants[where] | 1 << where | 1 << len(graph.tasks)
    passing = [
        Forced(value, "passes")
        for maker in bits(graph.ancestors[where])
        for value in graph.tasks[maker].makes
        if graph.users[value] & needed
    ]
    return passing + [Forced(value, "made here") for value in graph.tasks[where].makes]


def certified(graph: TaskGraph) -> Tasks:
    """The graph as the data that `check_order_bound` takes."""
    returned = frozenset(value for value, kept in enumerate(graph.kept) if kept)
    return Tasks(
        tuple(
            Certified(
                task.reads, task.makes, tuple(bits(before)), task.inside, task.over, task.gone
            )
            for task, before in zip(graph.tasks, graph.before, strict=True)
        ),
        tuple(graph.sizes),
        returned,
        at_end=graph.end_bytes - sum(graph.sizes[value] for value in returned),
    )


def _taken(graph: TaskGraph, number: int, dead: set[int]) -> set[int]:
    """A largest set of operands whose place the task's results may take (paths that augment)."""
    owner: dict[int, int] = {}
    choices = dict(graph.tasks[number].over)

    def assign(result: int, seen: set[int]) -> bool:
        for value in choices[result]:
            if value in dead and value not in seen:
                seen.add(value)
                if value not in owner or assign(owner[value], seen):
                    owner[value] = result
                    return True
        return False

    for result in choices:
        assign(result, set())
    return set(owner)
