"""Equal layers of a program share their states: what `automatic.py` searches is as large as one
layer of each kind.

Operations are alike where they can be computed in the same ways, and so can those around them, some
operations far; at least eight of them. They are one node, whose prices are those of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...hlo.graph import Value
from ...hlo.types import TensorType
from .candidates import Ways
from .choice import ChoiceGraph
from .memory import Lifetimes, local_bytes
from .value_costs import Array, ValueCost, ValueUse

FEWEST = 8  # that share states
FAR = 4  # operations, in which those around alike ones are alike

_Key = Hashable


@dataclass(frozen=True, eq=False)
class Held:
    """Bytes of values that nodes make, which lie alike. `node`: None of what lies in one way;
    `sizes`: by its state; `count`: how many are held, by the number of the operation that runs."""

    node: int | None
    sizes: Array
    count: Array


@dataclass(frozen=True, eq=False)
class Alike:
    """What a graph's states cost and hold, where nodes that are alike have one number: `number` of
    each node. `prices`: of states, for all of them; `values`: of what comes from one to another;
    `sources`: whether nothing comes to a node; `held`: what memory it takes, `end` the number of
    moments."""

    number: Sequence[int]
    prices: Sequence[Array]
    values: Sequence[ValueCost]
    sources: Sequence[bool]
    held: Sequence[Held]
    end: int


def alike(graph: ChoiceGraph) -> Alike:
    """Of a graph whose nodes have their states."""
    values = [value for value in graph.uses if isinstance(value.type, TensorType)]
    number = _numbers(graph, values)
    counts = Counter(number)
    first: dict[int, int] = {}
    for node, own in enumerate(number):
        first.setdefault(own, node)
    nodes = [graph.nodes[first[own]] for own in range(len(first))]
    prices = [counts[n] * node.times * node.known.prices for n, node in enumerate(nodes)]
    costs = _costs(graph, values, number)
    taken = {use.node for value in costs for use in value.uses if value.maker is not None}
    sources = [n not in taken for n in range(len(prices))]
    return Alike(number, prices, costs, sources, *_held(graph, number))


def _numbers(graph: ChoiceGraph, values: Sequence[Value]) -> list[int]:
    """Of each node; equal ones are alike. In the order of the program."""
    takes: list[list[tuple[int, int, int]]] = [[] for _ in graph.nodes]
    gives: list[list[tuple[int, int, int]]] = [[] for _ in graph.nodes]
    for value in values:
        maker, result = _maker(graph, value)
        for use in graph.uses[value]:
            reader = -1 if use.node is None else use.node.number
            if maker >= 0:
                gives[maker].append((result, reader, use.operand))
            if reader >= 0:
                takes[reader].append((use.operand, maker, result))
    keys: list[_Key] = [(id(node.known), node.times) for node in graph.nodes]
    kinds = _ordered(keys)
    for _ in range(FAR):
        around: list[_Key] = [-1, *kinds]
        keys = [
            (
                kinds[node],
                tuple((operand, around[maker + 1], n) for operand, maker, n in takes[node]),
                tuple((n, around[reader + 1], operand) for n, reader, operand in gives[node]),
            )
            for node in range(len(kinds))
        ]
        before, kinds = max(kinds, default=0), _ordered(keys)
        if max(kinds, default=0) == before:
            break
    counts = Counter(kinds)
    single = ((node, None) for node in range(len(kinds)))
    return _ordered([k if counts[k] >= FEWEST else next(single) for k in kinds])


def _maker(graph: ChoiceGraph, value: Value) -> tuple[int, int]:
    """The number of the node that makes a value, and which of its results; -1 where none does."""
    if value in graph.fixed:
        return -1, 0
    node, result = graph.made[value]
    return node.number, result


def _ordered(keys: Sequence[_Key]) -> list[int]:
    """Equal numbers for equal keys, in the order in which these come."""
    found: dict[_Key, int] = {}
    return [found.setdefault(key, len(found)) for key in keys]


def _costs(graph: ChoiceGraph, values: Sequence[Value], number: Sequence[int]) -> list[ValueCost]:
    """Values that alike nodes make, and alike nodes read, together."""
    found: dict[_Key, tuple[ValueCost, list[int]]] = {}
    for value in values:
        cost = graph.cost(value)
        uses = [
            ValueUse(None if use.node is None else number[use.node], use.times, use.ways)
            for use in cost.uses
        ]
        maker = None if cost.maker is None else number[cost.maker]
        read = tuple((use.node, use.times, id(use.ways)) for use in uses)
        key = maker, id(cost.made), id(cost.prices), read
        if key not in found:
            found[key] = replace(cost, maker=maker, uses=uses), [0]
        found[key][1][0] += 1
    return [
        cost if count == 1 else replace(cost, prices=count * cost.prices)
        for cost, (count,) in found.values()
    ]


def _held(graph: ChoiceGraph, number: Sequence[int]) -> tuple[list[Held], int]:
    lifetimes = Lifetimes(graph.module.body)
    known: dict[tuple[TensorType, Ways, int], Array] = {}
    spans: Mapping[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    sizes: dict[int, Array] = {}
    for value, (start, end) in lifetimes.spans.items():
        if value in graph.fixed:
            ways, node, numbers = graph.only(graph.fixed[value]), -1, np.zeros(1, np.intp)
        else:
            maker, result = graph.made[value]
            ways, numbers = maker.known.results[result]
            node = number[maker.number]
        key = value.tensor, ways, id(numbers) if node >= 0 else -1
        if key not in known:
            own = [
                local_bytes(value.tensor, lying, graph.mesh)
                for lying in ways.lyings
                if lying is not None
            ]
            known[key] = np.array(own, np.float64)[numbers]
        size = known[key]
        sizes[id(size)] = size
        spans[node, id(size)].append((max(start, 0), end))
    found: list[Held] = []
    for (node, size), lines in spans.items():
        count = np.zeros(lifetimes.end + 2)
        for start, end in lines:
            count[start] += 1
            count[end + 1] -= 1
        found.append(Held(None if node < 0 else node, sizes[size], count[:-1].cumsum()))
    return found, lifetimes.end + 1
