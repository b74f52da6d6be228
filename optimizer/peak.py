"""What a region's kernels need in memory, in an order that is found quickly: how passes before
`order` know whether what they do costs memory where most of it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..hlo.graph import Op, Region
from .measure import Scratch, size_of
from .orders.graph import Pairs, Role, TaskGraph, task_graph
from .orders.ready import least_net_order, list_order
from .overwriting import Hinders


@dataclass(frozen=True)
class Peak:
    """The most bytes that live at one step of a region, beside its arguments.

    needs: bytes that live while each operation runs, its operands and results included.
    """

    bytes: int
    needs: Mapping[Op, int]


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
    done = live = 0
    for number in order:
        need, live = graph.step(done, live, number)
        needs[graph.tasks[number].op] = need
        done |= 1 << number
    return Peak(max((*needs.values(), graph.end_bytes)), needs)


def bytes_beside(region: Region) -> int:
    """Bytes that a region takes from outside whatever its order: arguments, captures, weights."""
    weights = [op.result for op in region.ops if op.name == "weight"]
    values = dict.fromkeys((*region.arguments, *region.captures(), *weights))
    return sum(size_of(value.tensor.bytes) for value in values)
