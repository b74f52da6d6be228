"""What a region's kernels need in memory, in an order that is found quickly: how passes before
`order` know whether what they do costs memory where most of it is needed. Bytes that a call decides
are the most that they can be."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from ..hlo.graph import Op, Region, Value
from .measure import Scratch, most_of
from .orders.graph import Pairs, Role, TaskGraph, task_graph
from .orders.ready import least_net_order, list_order
from .overwriting import Hinders


@dataclass(frozen=True)
class Peak:
    """The most bytes that live at one step of a region, beside its arguments.

    needs: bytes that live while each operation runs, its operands and results included, in order.
    lives: the first and the last step of each value that has memory of its own.
    """

    bytes: int
    needs: Mapping[Op, int]
    lives: Mapping[Value, tuple[int, int]]

    def living(self, least: float) -> set[Value]:
        """The values that live at a step that needs so many bytes."""
        full = (need >= least for need in self.needs.values())
        count = list(itertools.accumulate(full, initial=0))
        return {
            value for value, (first, last) in self.lives.items() if count[last + 1] > count[first]
        }


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
    lives: dict[int, tuple[int, int]] = {}
    done = live = 0
    for step, number in enumerate(order):
        task = graph.tasks[number]
        need, live = graph.step(done, live, number)
        needs[task.op] = need
        done |= 1 << number
        held = [value for value in task.reads if value in lives]  # what has bytes
        lives.update((value, (lives[value][0], step)) for value in held)
        lives.update((value, (step, step)) for value in task.makes if graph.sizes[value])
    last = len(order) - 1
    ends = {
        graph.values[value]: (first, last if graph.kept[value] else read)
        for value, (first, read) in lives.items()
    }
    return Peak(max((*needs.values(), graph.end_bytes)), needs, ends)


def bytes_beside(region: Region, weights: int | None = None) -> int:
    """Bytes that a region takes from outside whatever its order: arguments, captures, weights.

    weights: bytes of all of the program, where the region is one of its parts.
    """
    read = [op.result for op in region.ops if op.name == "weight"] if weights is None else ()
    values = dict.fromkeys((*region.arguments, *region.captures(), *read))
    return sum(most_of(value.tensor.bytes) for value in values) + (weights or 0)
