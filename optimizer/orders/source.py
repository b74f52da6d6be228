"""The order in which a program is written."""

from __future__ import annotations

from .graph import TaskGraph


def source_order(graph: TaskGraph) -> list[int]:
    """All tasks as they stand, but after those that they wait for."""
    return graph.tasks_of(graph.topological)
