"""The cheapest states of nodes on a graph, where nodes and edges have prices: min-sum messages.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent Tree-reweighted Message Passing
for Energy Minimization", 2006): exact on trees; elsewhere a good answer and a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def cheapest(
    prices: Sequence[Array], edges: Mapping[tuple[int, int], Array], sweeps: int = 12
) -> list[int]:
    """The number of a state for each node.

    prices: of each node's states. edges: (a, b), a < b -> prices by the state of a and that of b.
    The sweep with the lowest sum wins; among equals the first.
    """
    before: list[list[tuple[int, Array]]] = [[] for _ in prices]  # (neighbour, [own, other])
    after: list[list[tuple[int, Array]]] = [[] for _ in prices]
    for (a, b), price in edges.items():
        after[a].append((b, price))
        before[b].append((a, price.T))
    messages: dict[tuple[int, int], Array] = {}
    for a, b in edges:
        messages[a, b], messages[b, a] = np.zeros(len(prices[b])), np.zeros(len(prices[a]))
    weights = [1.0 / max(len(x), len(y), 1) for x, y in zip(before, after, strict=True)]
    best, lowest = [0] * len(prices), float("inf")
    for _ in range(sweeps):
        chosen = _forward(prices, before, after, messages, weights)
        total = _total(prices, edges, chosen)
        if total < lowest * (1 - 1e-9) - 1e-9:
            best, lowest = chosen, total
        for node in reversed(range(len(prices))):
            _send(node, prices, (before[node], after[node]), messages, weights[node])
    return best


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
) -> None:
    """Messages to the first side's neighbours."""
    belief = prices[node].copy()
    for side in sides:
        for other, _ in side:
            belief += messages[other, node]
    belief *= weight
    for other, edge in sides[0]:
        message = ((belief - messages[other, node])[:, None] + edge).min(0)
        messages[node, other] = message - message.min()


def _total(
    prices: Sequence[Array], edges: Mapping[tuple[int, int], Array], chosen: Sequence[int]
) -> float:
    own = sum(float(price[state]) for price, state in zip(prices, chosen, strict=True))
    return own + sum(float(edge[chosen[a], chosen[b]]) for (a, b), edge in edges.items())
