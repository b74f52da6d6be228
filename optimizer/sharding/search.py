"""The cheapest states of all nodes that hold no more than there is memory, and how far from the
best they can be.

The limit is relaxed (Lagrange): a byte that is held while the most is held has a price, which grows
until the rest fits; messages find the cheapest states under such prices. Where there is scipy, a
linear program over the states of these answers says better prices, for memory and for what uses
share; messages find answers and a bound under them, whose states the program gets too; then the
best choice among these states is found with whole numbers. Small programs are solved so over all
states at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from ...hlo.extras import is_installed
from .alike import Alike
from .choice import pairwise
from .linear_program import NEAR, LinearProgram, columns
from .min_sum import cheapest
from .value_costs import Array, Improvement

SWEEPS, ANSWERS, PATIENCE = 30, 2, 10  # of messages under the same prices
MOMENTS = 6  # of a program that get a price for memory
ROUNDS = 2  # of linear programs
NEAREST = 8  # answers whose states these begin with
EXACT = 8_000  # columns of programs over all states that are solved with whole numbers
WHOLE = 80_000  # columns of those that are solved without
HELD = (
    1 / 1024
)  # price of a byte of an argument: of ways equal in the rest, the one that holds less
# Such a price is between these (bytes sent for one held): first multiplied, then halved in between.
_LEAST, _MOST, _FACTOR, _HALVINGS = 1 / 64, 4.0**7, 4.0, 4
_IMPOSSIBLE = 1e13  # bytes: a price in bounds, so that sums of it are exact enough


class SearchResult(NamedTuple):
    """States of all nodes; what they cost, without prices for memory; the most that they hold."""

    chosen: Sequence[int]
    price: float
    held: float


class ShardingSearch:
    """Answers for several limits; what is found for one serves the others. `bound` is asked for
    limits that `cheapest` knows."""

    def __init__(self, alike: Alike) -> None:
        self.alike, self.found = alike, list[SearchResult]()
        self._known: dict[tuple[tuple[int, float], ...], Sequence[int]] = {}
        self._own, self._edges = pairwise(alike.prices, alike.values)
        self._improvement = Improvement(alike.prices, alike.values)
        self._all = [set(range(len(prices))) for prices in alike.prices]
        self._kept = [set[int]() for _ in alike.prices]
        self._bounds: dict[int | None, list[float]] = {}

    def cheapest(self, memory: int | None) -> SearchResult | None:
        """The cheapest that was found of those that hold no more; None where none does."""
        self._raise_prices(memory)
        if is_installed("scipy"):
            self._mix(memory)
        fitting = [found for found in self.found if memory is None or found.held <= memory]
        return min(fitting, key=lambda found: found.price, default=None)

    def bound(self, memory: int | None) -> float:
        """What no answer costs less than that holds no more."""
        if not is_installed("scipy") or self.columns > WHOLE:
            self._raise_prices(memory)
            for moments in list(self._known):
                self._relaxed(dict(moments), memory)
        elif self.columns > EXACT or memory not in self._bounds:
            solved = self._program(self._all, memory).solve()
            self._bounds.setdefault(memory, []).append(inf if solved is None else solved.cost)
        return max(self._bounds[memory])

    def states(self, answer: SearchResult) -> list[int]:
        """Of each node of the graph."""
        return [answer.chosen[number] for number in self.alike.number]

    def _raise_prices(self, memory: int | None) -> None:
        """Memory gets a price at each moment at which too much is held, until it is not."""
        moments: dict[int, float] = {}

        def tried(more: Mapping[int, float]) -> Array:
            """What is held at each time, in the cheapest answer under these prices."""
            return self._line(self._answer({**moments, **more}))

        line = tried({})
        for _ in range(MOMENTS):
            if memory is None or line.max(initial=0.0) <= memory:
                break
            moment = int(line.argmax())
            low, high = 0.0, moments.get(moment, _LEAST / _FACTOR)
            while high < _MOST:
                low, high = high, high * _FACTOR
                line = tried({moment: high})
                if line[moment] <= memory:
                    break
            for _ in range(_HALVINGS):
                middle = (max(low, _LEAST / _FACTOR) * high) ** 0.5
                at = tried({moment: middle})
                if at[moment] <= memory:
                    high, line = middle, at
                else:
                    low = middle
            moments[moment] = high

    def _answer(self, moments: Mapping[int, float]) -> Sequence[int]:
        """The cheapest states where held bytes have prices."""
        key = tuple(sorted(moments.items()))
        if key not in self._known:
            more, _ = self._held(moments, HELD)
            own = [a + b for a, b in zip(self._own, more, strict=True)]
            answers = cheapest(own, self._edges, SWEEPS, ANSWERS, PATIENCE).answers
            self._known[key] = self._improved(answers, more)
        return self._known[key]

    def _note(self, chosen: Sequence[int]) -> None:
        """An answer, as it is."""
        self._improvement.prices = self.alike.prices
        self._improvement.start(chosen)
        held = float(self._line(chosen).max(initial=0.0))
        self.found.append(SearchResult(chosen, self._improvement.price(), held))

    def _improved(self, answers: Sequence[Sequence[int]], more: Sequence[Array]) -> Sequence[int]:
        """The cheapest of what answers become where states cost more; all are found."""
        prices = [a + b for a, b in zip(self.alike.prices, more, strict=True)]
        best, lowest = list[int](), float("inf")
        for answer in answers:
            self._improvement.prices = prices
            self._improvement.start(answer)
            self._improvement.run()
            chosen, price = self._improvement.chosen, self._improvement.price()
            if price < lowest * (1 - 1e-9):
                best, lowest = chosen, price
            self._note(chosen)
        return best

    def _held(self, moments: Mapping[int, float], always: float) -> tuple[list[Array], float]:
        """What states cost where bytes that are held then, and those that always are, have prices;
        and what holds them in one way."""
        more, fixed = [np.zeros(len(prices)) for prices in self.alike.prices], 0.0
        for held in self.alike.held:
            rate = sum(price * float(held.count[moment]) for moment, price in moments.items())
            rate += always * float(held.count.min())
            if rate and held.node is not None:
                more[held.node] = more[held.node] + rate * held.sizes
            elif rate:
                fixed += rate * float(held.sizes[0])
        return more, fixed

    def _line(self, chosen: Sequence[int]) -> Array:
        """Bytes that are held, by the number of the operation that runs."""
        line = np.zeros(self.alike.end)
        for held in self.alike.held:
            line += held.count * held.sizes[0 if held.node is None else chosen[held.node]]
        return line

    # Linear programs.

    def _mix(self, memory: int | None) -> None:
        """Answers under the prices of linear programs over the states of the best answers, and the
        best whole choice among these states; among all of a small program."""
        if self.columns <= EXACT:
            self._kept = self._all
        else:
            pairs = zip(self._all, self.alike.sources, strict=True)
            self._kept = [set(every) if source else set[int]() for every, source in pairs]
            for found in self._nearest(memory):
                self._keep(found.chosen)
            self._more(memory)
        whole = self._program(self._kept, memory).whole()
        if whole is not None:
            self._note(whole.chosen)
            self._improved([whole.chosen], self._held({}, HELD)[0])
            if self.columns <= EXACT:
                self._bounds.setdefault(memory, []).append(whole.bound)

    def _more(self, memory: int | None) -> None:
        """Keep the states of answers under the prices of linear programs."""
        for _ in range(ROUNDS):
            solved = self._program(self._kept, memory).solve()
            if solved is None:
                return
            before = sum(map(len, self._kept))
            bound = self._relaxed(solved.moments, memory, solved.parts)
            if bound >= solved.cost * (1 - NEAR) or sum(map(len, self._kept)) == before:
                return

    def _program(self, kept: Sequence[set[int]], memory: int | None) -> LinearProgram:
        return LinearProgram(self.alike, kept, memory, self._peaks(memory))

    @cached_property
    def columns(self) -> int:
        """Of the linear program over all states."""
        return columns(self.alike)

    def _peaks(self, memory: int | None) -> list[int]:
        """When the answers that were found hold most."""
        if memory is None:
            return []
        return sorted({int(self._line(found.chosen).argmax()) for found in self.found})

    def _nearest(self, memory: int | None) -> list[SearchResult]:
        """Cheap answers that hold little more than there is memory."""
        found = {tuple(found.chosen): found for found in self.found}.values()
        if memory is None:
            return sorted(found, key=lambda found: found.price)[:NEAREST]
        return sorted(found, key=lambda f: f.price * max(f.held / memory, 1.0) ** 2)[:NEAREST]

    def _keep(self, chosen: Sequence[int]) -> None:
        for states, state in zip(self._kept, chosen, strict=True):
            states.add(state)

    # Prices.

    def _relaxed(
        self,
        moments: Mapping[int, float],
        memory: int | None,
        parts: Sequence[Sequence[Array | float]] | None = None,
    ) -> float:
        """What no answer costs less than, by these prices for memory, where each use pays a part of
        what is brought to several; the answers to them are found, and kept."""
        values = self.alike.values
        parts = parts or [[1 / len(value.uses)] * len(value.uses) for value in values]
        more, fixed = self._held(moments, 0.0)
        own, edges = pairwise(self.alike.prices, values, parts)
        own = [np.minimum(a + b, _IMPOSSIBLE) for a, b in zip(own, more, strict=True)]
        edges = {edge: np.minimum(prices, _IMPOSSIBLE) for edge, prices in edges.items()}
        found = cheapest(own, edges, SWEEPS, ANSWERS, PATIENCE)
        for answer in (*found.answers, self._improved(found.answers, more)):
            self._keep(answer)
        for value, shares in zip(values, parts, strict=True):
            if value.maker is None:
                for use, part in zip(value.uses, shares, strict=True):
                    if use.node is None:
                        price = use.times * value.prices * part
                        fixed += float(price[value.made[0], use.ways[0]])
        bound = found.bound + fixed - sum(moments.values()) * (memory or 0)
        self._bounds.setdefault(memory, []).append(bound)
        return bound
