"""What a region's kernels need in memory, in an order that is found quickly: how passes before
`order` know whether what they do costs memory where most of it is needed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from ..hlo.graph import Op, Region, Value
from .measure import Scratch, size_of
from .orders.graph import Pairs, Role, TaskGraph, task_graph
from .orders.ready import least_net_order, list_order
from .overwriting import Hinders

NEAR = 0.9  # of the peak


@dataclass(frozen=True)
class Peak:
    """The most bytes that live at one step of a region, beside its arguments.

    needs: bytes that live while each operation runs, its operands and results included.
    values: what lives in memory of its own at a step that needs nearly as much as any.
    """

    bytes: int
    needs: Mapping[Op, int]
    values: frozenset[Value]


def peak_of(
    region: Region,
    pairs: Pairs,
    hinders: Hinders,
    scratch: Scratch | None = None,
    role: Role = "entry",
) -> Peak:
    """The peak in the better one of two orders that are made one operation at a time.

    pairs, hinders, scratch, role: see `task_graph`.
    """
    graph = task_graph(region, pairs, hinders, scratch, role)
    return min((_peak(graph, order(graph)) for order in (list_order, least_net_order)),
               key=lambda peak: peak.bytes)  # fmt: skip


def _peak(graph: TaskGraph, order: list[int]) -> Peak:
    needs: dict[Op, int] = {}
    made: dict[int, int] = {}  # of each value, the step that makes it, and the last that reads it
    read: dict[int, int] = {}
    done = live = 0
    for step, number in enumerate(order):
        task = graph.tasks[number]
        need, live = graph.step(done, live, number)
        needs[task.op] = need
        done |= 1 << number
        made.update(dict.fromkeys(task.makes, step))
        read.update(dict.fromkeys(task.reads, step))
    most = max((*needs.values(), graph.end_bytes))
    near = (need >= NEAR * most for need in needs.values())
    full = list(itertools.accumulate(near, initial=0))
    values = frozenset(
        graph.values[value]
        for value, first in made.items()
        if graph.sizes[value]
        and full[len(order) if graph.kept[value] else read.get(value, first) + 1] > full[first]
    )
    return Peak(most, needs, values)


def bytes_beside(region: Region) -> int:
    """Bytes that a region takes from outside whatever its order: arguments, captures, weights."""
    weights = [op.result for op in region.ops if op.name == "weight"]
    values = dict.fromkeys((*region.arguments, *region.captures(), *weights))
    return sum(size_of(value.tensor.bytes) for value in values)
