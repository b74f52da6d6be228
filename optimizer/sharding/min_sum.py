"""The cheapest states of nodes on a graph, where nodes and edges have prices: min-sum messages.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent Tree-reweighted Message Passing
for Energy Minimization", 2006): exact on trees; elsewhere a good answer and a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

PATIENCE = 10

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def cheapest(
    prices: Sequence[Array], edges: Mapping[tuple[int, int], Array], sweeps: int = 40
) -> list[list[int]]:
    """Numbers of states, one for each node: what the sweeps found, each answer once, the one with
    the lowest sum first; among equals the earlier.

    prices: of each node's states. edges: (a, b), a < b -> prices by the state of a and that of b.
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
    found: dict[tuple[int, ...], float] = {}
    since = 0  # sweeps without a better answer
    for _ in range(sweeps):
        chosen = tuple(_forward(prices, before, after, messages, weights))
        lowest = min(found.values(), default=float("inf"))
        if chosen not in found:
            found[chosen] = _total(prices, edges, chosen)
        since = 0 if found[chosen] < lowest * (1 - 1e-9) - 1e-9 else since + 1
        if since > PATIENCE:
            break
        for node in reversed(range(len(prices))):
            _send(node, prices, (before[node], after[node]), messages, weights[node])
    return [list(chosen) for chosen in sorted(found, key=lambda chosen: found[chosen])]


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
