"""What any order needs: while one task runs, values of its ancestors are alive for its descendants.

At a task, whatever the order: a value that an ancestor makes and the task itself, a descendant or
the region's end reads; what the task makes; what it needs inside. What it makes may lie where an
operand lies that nobody has to read later.
"""

from __future__ import annotations

from dataclasses import dataclass

from .graph import TaskGraph, bits


@dataclass(frozen=True)
class Forced:
    """A bound, and the task at which all orders need it; None: when all tasks have run.

    values: what is alive there in all orders, what the task makes included.
    overwritten: those of them that may lie where others do.
    inside: bytes that the task needs alone.
    """

    bytes: int
    task: int | None
    values: tuple[int, ...]
    overwritten: tuple[int, ...] = ()
    inside: int = 0


def forced_live(graph: TaskGraph) -> Forced:
    """The highest bound over all tasks and the end."""
    ends = tuple(value for value, kept in enumerate(graph.kept) if kept)
    best = Forced(graph.end_bytes, None, ends)
    ancestors, descendants = graph.ancestors, graph.descendants
    sizes, users = graph.sizes, graph.users
    # Of each value: who is an ancestor of all that ... is asked for each task, so by sets of tasks.
    makers = [(number, task.makes) for number, task in enumerate(graph.tasks) if graph.made[number]]
    end = 1 << len(graph.tasks)
    for number, task in enumerate(graph.tasks):
        later = descendants[number] | end
        needed = later | 1 << number
        above = ancestors[number]
        live = graph.made[number]
        for maker, values in makers:
            if above >> maker & 1:
                for value in values:
                    if users[value] & needed:
                        live += sizes[value]
        dead = {value for value in task.reads if not users[value] & later}
        taken = _taken(graph, number, dead)
        live -= sum(sizes[value] for value in taken)
        early = sum(sizes[value] for value in dead & task.gone if value not in taken)
        live = max(live, live - early + task.inside)
        if live > best.bytes:
            values = tuple(
                value
                for maker in bits(above)
                for value in graph.tasks[maker].makes
                if users[value] & needed and sizes[value]
            )
            made = tuple(value for value in task.makes if sizes[value])
            best = Forced(live, number, (*values, *made), tuple(sorted(taken)), task.inside)
    return best


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
