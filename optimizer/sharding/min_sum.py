"""The cheapest states of nodes on a graph, where nodes and edges have prices: min-sum messages.

Nodes with at most two neighbours are eliminated first, exactly. On what is left, sequential
tree-reweighted message passing (Kolmogorov, "Convergent Tree-reweighted Message Passing for Energy
Minimization", 2006): exact on trees; elsewhere a good answer, and a bound on how good any can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

PATIENCE = 4

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class MinSumResult(NamedTuple):
    """`answers`: numbers of states, one for each node, the cheapest answer first. `bound`: no
    answer costs less."""

    answers: list[list[int]]
    bound: float


def cheapest(
    prices: Sequence[Array],
    edges: Mapping[tuple[int, int], Array],
    sweeps: int = 40,
    answers: int = 2,
    patience: int = PATIENCE,
) -> MinSumResult:
    """What the sweeps found, each answer once, the one with the lowest sum first; among equals the
    earlier; at most so many. They end where so many find nothing better.

    prices: of each node's states. edges: (a, b), a < b -> prices by the state of a and that of b.
    """
    eliminated = _Elimination(prices, edges)
    found, bound = _swept(*eliminated.left(), sweeps, patience)
    return MinSumResult(
        [eliminated.completed(answer) for answer in found[:answers]], eliminated.alone + bound
    )


class _Elimination:
    """The graph without the nodes whose best state follows from those of one or two others."""

    def __init__(self, prices: Sequence[Array], edges: Mapping[tuple[int, int], Array]) -> None:
        self.prices = list(prices)
        self.near: list[dict[int, Array]] = [{} for _ in prices]  # neighbour -> [own, other]
        for (a, b), price in edges.items():
            self.near[a][b], self.near[b][a] = price, price.T
        self.order: list[tuple[int, dict[int, Array]]] = []  # the eliminated, and their edges then
        waiting, gone = deque(range(len(prices))), set[int]()
        while waiting:
            node = waiting.popleft()
            if node in gone or len(self.near[node]) > 2 and len(self.prices[node]) > 1:
                continue
            gone.add(node)
            near, self.near[node] = self.near[node], {}
            self.order.append((node, near))
            self._joined(self.prices[node], near)
            for other in near:
                del self.near[other][node]
            waiting.extend(near)
        self.nodes = [node for node in range(len(prices)) if node not in gone]
        # What those cost that were the last of a part of the graph.
        self.alone = sum(float(self.prices[node].min()) for node, near in self.order if not near)

    def _joined(self, own: Array, near: Mapping[int, Array]) -> None:
        """Move an eliminated node's prices to its neighbours."""
        if len(own) == 1:
            for other, edge in near.items():
                self.prices[other] = self.prices[other] + edge[0]
        elif len(near) == 1:
            ((other, edge),) = near.items()
            self.prices[other] = self.prices[other] + (own[:, None] + edge).min(0)
        elif near:
            (a, one), (b, two) = near.items()
            price = ((own[:, None] + one)[:, :, None] + two[:, None, :]).min(0)
            if b in self.near[a]:
                price = price + self.near[a][b]
            self.near[a][b], self.near[b][a] = price, price.T

    def left(self) -> tuple[list[Array], dict[tuple[int, int], Array]]:
        """Prices and edges of the nodes that are left, numbered in their order."""
        place = {node: number for number, node in enumerate(self.nodes)}
        edges = {
            (place[a], place[b]): self.near[a][b]
            for a in self.nodes
            for b in sorted(self.near[a])
            if a < b
        }
        return [self.prices[node] for node in self.nodes], edges

    def completed(self, answer: Sequence[int]) -> list[int]:
        """States of all nodes, from those of the nodes that are left."""
        chosen = [0] * len(self.prices)
        for node, state in zip(self.nodes, answer, strict=True):
            chosen[node] = state
        for node, near in reversed(self.order):
            price = self.prices[node]
            for other, edge in near.items():
                price = price + edge[:, chosen[other]]
            chosen[node] = int(price.argmin())
        return chosen


def _swept(
    prices: Sequence[Array],
    edges: Mapping[tuple[int, int], Array],
    sweeps: int,
    patience: int,
) -> tuple[list[tuple[int, ...]], float]:
    """Answers, the cheapest first, and the highest bound."""
    before: list[list[tuple[int, Array]]] = [[] for _ in prices]  # (neighbour, [own, other])
    after: list[list[tuple[int, Array]]] = [[] for _ in prices]
    for (a, b), price in edges.items():
        after[a].append((b, price))
        before[b].append((a, price.T))
    messages: dict[tuple[int, int], Array] = {}
    for a, b in edges:
        messages[a, b], messages[b, a] = np.zeros(len(prices[b])), np.zeros(len(prices[a]))
    weights = [1.0 / max(len(x), len(y), 1) for x, y in zip(before, after, strict=True)]
    found: dict[tuple[int, ...], float] = {}
    lowest, since = float("inf"), 0  # sweeps without a better answer
    bound = sum(float(price.min()) for price in prices) if not edges else -float("inf")
    for _ in range(sweeps):
        chosen = tuple(_forward(prices, before, after, messages, weights))
        if chosen not in found:
            found[chosen] = _total(prices, edges, chosen)
        since = 0 if found[chosen] < lowest * (1 - 1e-9) - 1e-9 else since + 1
        lowest = min(lowest, found[chosen])
        if since > patience or not edges:
            break
        # What is taken off in a sweep backwards is the bound: of each node's trees, a part.
        taken = 0.0
        for node in reversed(range(len(prices))):
            sides, weight = (before[node], after[node]), weights[node]
            least, off = _send(node, prices, sides, messages, weight)
            taken += least * (1 - weight * len(before[node])) + off
        bound = max(bound, taken)
    return sorted(found, key=lambda chosen: found[chosen]), bound


def _forward(
    prices: Sequence[Array],
    before: Sequence[Sequence[tuple[int, Array]]],
    after: Sequence[Sequence[tuple[int, Array]]],
    messages: dict[tuple[int, int], Array],
    weights: Sequence[float],
) -> list[int]:
    """Messages to later nodes, and the states that follow from the choice of earlier ones."""
    chosen: list[int] = []
    for node, own in enumerate(prices):
        price = own.copy()
        for other, edge in before[node]:
            price += edge[:, chosen[other]]
        for other, _ in after[node]:
            price += messages[other, node]
        chosen.append(int(price.argmin()))
        _send(node, prices, (after[node], before[node]), messages, weights[node])
    return chosen


def _send(
    node: int,
    prices: Sequence[Array],
    sides: tuple[Sequence[tuple[int, Array]], Sequence[tuple[int, Array]]],
    messages: dict[tuple[int, int], Array],
    weight: float,
) -> tuple[float, float]:
    """Messages to the first side's neighbours. The least that the node costs as it is known there,
    and what was taken off the messages, whose least is nothing."""
    belief = prices[node].copy()
    for side in sides:
        for other, _ in side:
            belief += messages[other, node]
    least, off = float(np.minimum.reduce(belief)), 0.0
    belief *= weight
    for other, edge in sides[0]:
        message = np.minimum.reduce((belief - messages[other, node])[:, None] + edge, axis=0)
        taken = np.minimum.reduce(message)
        message -= taken
        off += float(taken)
        messages[node, other] = message
    return least, off


def _total(
    prices: Sequence[Array], edges: Mapping[tuple[int, int], Array], chosen: Sequence[int]
) -> float:
    own = sum(float(price[state]) for price, state in zip(prices, chosen, strict=True))
    return own + sum(float(edge[chosen[a], chosen[b]]) for (a, b), edge in edges.items())
