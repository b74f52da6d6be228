"""What it costs that values come to their uses: of one value, and of all together for one choice.

A value that several uses want alike is brought once, so that the price of a choice is not a sum
over pairs of operations. `min_sum` finds an answer as if it were; `Improvement` goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.intp]]

ROUNDS = 3  # in which each node takes a better state


@dataclass(frozen=True, eq=False)
class ValueUse:
    """One use of a value: by which node (none: it is wanted in one way), how often a step, and in
    which way each state of the node wants it."""

    node: int | None
    times: float
    ways: Numbers


@dataclass(eq=False)
class ValueCost:
    """`prices`: [way in which it is left, way in which it is wanted] -> bytes. `made`: in which way
    each state of the node that makes it leaves it; a value that no node makes has one."""

    maker: int | None
    made: Numbers
    uses: Sequence[ValueUse]
    prices: Array
    levels: Array = field(init=False)  # how often a step uses come, each number once
    _wanted: Array = field(init=False)  # [level, way] -> how many uses

    def __post_init__(self) -> None:
        found = sorted({use.times for use in self.uses})
        self.levels = np.array(found)[:, None]
        self._level = {times: number for number, times in enumerate(found)}
        self._wanted = np.zeros((len(found), self.prices.shape[1]))

    def clear(self) -> None:
        self._wanted[:] = 0.0

    def count(self, use: ValueUse, state: int, more: int) -> None:
        """A use wants it as a state of its node does, or no longer."""
        self._wanted[self._level[use.times], use.ways[state]] += more

    def times(self) -> Array:
        """[way in which it is wanted] -> how often a step it is brought so."""
        if len(self.levels) == 1:
            return (self._wanted[0] > 0) * self.levels[0]
        return ((self._wanted > 0) * self.levels).max(0)


class Improvement:
    """One choice of states for all nodes, and how it becomes better."""

    def __init__(self, prices: Sequence[Array], values: Sequence[ValueCost]) -> None:
        self.prices, self.values = prices, values
        self.chosen: list[int] = []
        self._makes: list[list[ValueCost]] = [[] for _ in prices]
        self._takes: list[list[tuple[ValueCost, list[ValueUse], Array]]] = [[] for _ in prices]
        # Of equal layers, which are one node here: what one makes, the next one takes.
        self._both: list[list[tuple[ValueCost, list[ValueUse], Array]]] = [[] for _ in prices]
        selections: dict[tuple[tuple[int, ...], int], Array] = {}
        for value in values:
            own: dict[int, list[ValueUse]] = {}
            for use in value.uses:
                if use.node is not None:
                    own.setdefault(use.node, []).append(use)
            for node, uses in own.items():
                key = tuple(id(use.ways) for use in uses), value.prices.shape[1]
                if key not in selections:
                    selections[key] = _selection(uses, value.prices.shape[1])
                takes = self._both if node == value.maker else self._takes
                takes[node].append((value, uses, selections[key]))
            if value.maker is not None and value.maker not in own:
                self._makes[value.maker].append(value)

    def best(self, answers: Sequence[Sequence[int]]) -> tuple[list[int], float]:
        """The cheapest of what these answers become, and its price; among equals the first."""
        best, lowest = list[int](), float("inf")
        for answer in answers:
            self.start(answer)
            self.run()
            price = self.price()
            if price < lowest * (1 - 1e-9):
                best, lowest = self.chosen, price
        return best, lowest

    def start(self, chosen: Sequence[int]) -> None:
        self.chosen = list(chosen)
        for value in self.values:
            value.clear()
            for use in value.uses:
                value.count(use, 0 if use.node is None else chosen[use.node], 1)

    def run(self) -> None:
        """Take better states one by one, until none is better alone."""
        waiting = set(range(len(self.prices)))
        for _ in range(ROUNDS):
            again: set[int] = set()
            for node in range(len(self.prices)):
                if node in waiting and self._better(node):
                    near = self._near(node)
                    waiting |= near
                    again |= near
            waiting = again
            if not waiting:
                return

    def price(self) -> float:
        found = sum(float(own[s]) for own, s in zip(self.prices, self.chosen, strict=True))
        for value in self.values:
            found += float(value.prices[self._left(value)] @ value.times())
        return found

    def _left(self, value: ValueCost) -> int:
        return int(value.made[0 if value.maker is None else self.chosen[value.maker]])

    def _near(self, node: int) -> set[int]:
        found: set[int] = set()
        takes = (*self._takes[node], *self._both[node])
        for value in (*self._makes[node], *(value for value, _, _ in takes)):
            if value.maker is not None:
                found.add(value.maker)
            found.update(use.node for use in value.uses if use.node is not None)
        return found - {node}

    def around(self, node: int) -> Array:
        """What each state of a node costs with all others as they are, beside what is the same."""
        price, chosen = self.prices[node].copy(), self.chosen[node]
        for value in self._makes[node]:
            price += (value.prices @ value.times())[value.made]
        for value, uses, selection in self._takes[node]:
            times = self._of_others(value, uses, chosen)
            more = np.maximum(times, uses[0].times) - times
            price += selection @ (value.prices[self._left(value)] * more)
        for value, uses, selection in self._both[node]:
            times = np.maximum(self._of_others(value, uses, chosen), selection * uses[0].times)
            price += (value.prices[value.made] * times).sum(1)
        return price

    @staticmethod
    def _of_others(value: ValueCost, uses: Sequence[ValueUse], chosen: int) -> Array:
        """[way] -> how often it is brought so for other uses than these of a node."""
        for use in uses:
            value.count(use, chosen, -1)
        times = value.times()
        for use in uses:
            value.count(use, chosen, 1)
        return times

    def _better(self, node: int) -> bool:
        """Whether another state is better than the chosen one; it is taken."""
        before = self.chosen[node]
        if len(self.prices[node]) == 1:
            return False
        price = self.around(node)
        best = int(price.argmin())
        if price[best] >= price[before] * (1 - 1e-9) - 1e-6:
            return False
        for value, uses, _ in (*self._takes[node], *self._both[node]):
            for use in uses:
                value.count(use, before, -1)
                value.count(use, best, 1)
        self.chosen[node] = best
        return best != before


def _selection(uses: Sequence[ValueUse], ways: int) -> Array:
    """[state, way] -> 1 where the state wants it so at any of the node's uses of the value."""
    found = np.zeros((len(uses[0].ways), ways))
    for use in uses:
        found[np.arange(len(use.ways)), use.ways] = 1.0
    return found
