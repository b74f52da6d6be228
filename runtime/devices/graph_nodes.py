"""Regions as the nodes of one graph: kernels with their edges, loops and branches as conditional
nodes, and launches that set their conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .driver import Condition, GraphNode
from .edges import launch_edges, step_edges
from .gpu_steps import KernelStep, Where
from .regions import Again, BranchRegion, LoopRegion, Region, StepRange


class Sets(NamedTuple):
    """A launch that sets a condition; `where`: what it reads, None: the condition never holds."""

    condition: Condition
    where: Where | None

    @property
    def name(self) -> str:
        return "condition"

    @property
    def bases(self) -> tuple[int, ...]:
        return () if self.where is None else (self.where.base,)


class GraphNodes:
    """The nodes of a program's graph. `launches`: what they start, as `launches_of` gives it for a
    step, or as `sets` gives it for what sets a condition."""

    def __init__(
        self,
        steps: Sequence[Any],
        region: Region,
        launches_of: Callable[[int], Sequence[Any]],
        sets: Callable[[Sets], Any],
    ) -> None:
        self.steps, self.launches_of, self.sets = steps, launches_of, sets
        self.launches: list[Any] = []
        self.handles: dict[int, int] = {}  # by loop
        self.count = 0  # of handles
        self.nodes = self.of(region)

    def of(self, region: Region) -> tuple[GraphNode, ...]:
        """The nodes of a region, whose items follow each other."""
        made: list[GraphNode] = []
        before: tuple[int, ...] = ()  # the last nodes
        for item in region:
            if isinstance(item, StepRange):
                before = self.stretch(made, item, before) or before
            elif isinstance(item, Again):
                where, handle = item.where, self.handle_of(item.loop)
                condition = Condition(handle, 0, 1, 1, 2)
                before = (self.add(made, Sets(condition, where), before),)
            elif isinstance(item, LoopRegion):
                handle = self.handle_of(item.number)
                made.append(GraphNode(before, handle=handle, loop=True, body=self.of(item.body)))
                before = (len(made) - 1,)
            else:
                before = self.branch(made, item, before)
        return tuple(made)

    def stretch(
        self, made: list[GraphNode], item: StepRange, before: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Adds the launches of steps; those that no other one of them follows."""
        works = [step for step in self.steps[item.begin : item.end] if isinstance(step, KernelStep)]
        each = [self.launches_of(number) for number in range(item.begin, item.end)]
        edges = launch_edges(step_edges(works, item.begin), [*map(len, each)])
        first, followed = len(made), {other for after in edges for other in after}
        for number, after in enumerate(edges, len(self.launches)):
            made.append(GraphNode(tuple(first + n for n in after) or before, number))
        self.launches += [launch for some in each for launch in some]
        return tuple(first + n for n in range(len(edges)) if n not in followed)

    def branch(
        self, made: list[GraphNode], item: BranchRegion, before: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Adds a conditional node for each arm that does something. None of them begins before the
        conditions of all are set: an arm may write what they are read from."""
        arms = {number: arm for number, arm in enumerate(item.arms) if arm}
        handles = {number: self.new_handle() for number in arms}
        count = len(item.arms)
        set_by = tuple(
            self.add(made, Sets(Condition(handle, 0, item.size, number, count), item.where), before)
            for number, handle in handles.items()
        )
        first = len(made)
        for number, arm in arms.items():
            made.append(GraphNode(set_by, handle=handles[number], body=self.of(arm)))
        return tuple(range(first, len(made))) or before

    def add(self, made: list[GraphNode], sets: Sets, before: tuple[int, ...]) -> int:
        made.append(GraphNode(before, len(self.launches)))
        self.launches.append(self.sets(sets))
        return len(made) - 1

    def handle_of(self, loop: int) -> int:
        if loop not in self.handles:
            self.handles[loop] = self.new_handle()
        return self.handles[loop]

    def new_handle(self) -> int:
        self.count += 1
        return self.count - 1


def sizes_of(nodes: Sequence[GraphNode]) -> tuple[int, int]:
    """How many nodes and edges there are, those of bodies as well."""
    bodies = [sizes_of(node.body) for node in nodes]
    edges = sum(len(node.after) for node in nodes) + sum(edges for _, edges in bodies)
    return len(nodes) + sum(count for count, _ in bodies), edges
