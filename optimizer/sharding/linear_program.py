"""Prices for memory and for what uses share, and the best mixture of states: a linear program.

Of each node some states are known, those of answers that `search.py` has found, or all. Variables
say how much of a node is in which state, and of a value how much comes from one way to another;
what several uses want alike is paid once; at each moment that counts no more is held than there is
memory. What the program answers is a price for memory and for each use's part of what is shared,
under which `min_sum.py` searches all states again. With whole numbers it is the best choice among
the known states; over all states it is a bound.

HiGHS solves it, through scipy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from .alike import Alike
from .transit import NEVER
from .value_costs import Array, Numbers, ValueCost

NODES = 50  # of the search for whole numbers
NEAR = 1e-3  # to the best whole numbers, of what they cost
SMALL = 20_000  # columns, of programs that the simplex method solves faster


class Solved(NamedTuple):
    """`cost`: of the mixture. `moments`: price of a byte that is held at that time. `parts`: of
    each value, for each use, which part of the price it pays, by ways: one where there is one use.
    `mixture`: how much of each node's states."""

    cost: float
    moments: Mapping[int, float]
    parts: Sequence[Sequence[Array | float]]
    mixture: Sequence[Array]


class Whole(NamedTuple):
    """The best choice of known states that was found; none costs less than `bound`."""

    chosen: list[int]
    bound: float


class Brought(NamedTuple):
    """How much of a value comes to one use from one way to another: a sum of columns for each
    pair."""

    left: Numbers
    wanted: Numbers
    columns: Numbers


@dataclass
class _ConstraintRows:
    """Rows of a matrix, and what they are equal to or at most."""

    rows: list[int]
    columns: list[int]
    entries: list[float]
    limits: list[float]

    def add(self, columns: Sequence[int], entries: Sequence[float], limit: float) -> int:
        number = len(self.limits)
        self.rows.extend([number] * len(columns))
        self.columns.extend(columns)
        self.entries.extend(entries)
        self.limits.append(limit)
        return number

    def matrix(self, width: int) -> Any:
        sparse = import_module("scipy.sparse")
        shape = len(self.limits), width
        return sparse.csr_matrix((self.entries, (self.rows, self.columns)), shape=shape)


def columns(alike: Alike) -> int:
    """About how many the program over all states has."""
    found = sum(map(len, alike.prices))
    for value in alike.values:
        left = len(np.unique(value.made))
        found += sum(left * len(np.unique(use.ways)) for use in value.uses)
    return found


class LinearProgram:
    """Over some states of each node.

    kept: numbers of the states. memory: bytes; moments: at which no more is held.
    """

    def __init__(
        self,
        alike: Alike,
        kept: Sequence[Iterable[int]],
        memory: float | None,
        moments: Sequence[int],
    ) -> None:
        self.alike, self.kept = alike, [np.array(sorted(states), np.intp) for states in kept]
        self.costs: list[float] = []
        self.most: list[float] = []
        self.equal, self.below = _ConstraintRows([], [], [], []), _ConstraintRows([], [], [], [])
        self.one = self._column(0.0, 1.0)
        self.equal.add([self.one], [1.0], 1.0)
        self.first: list[int] = []  # column of each node's first state
        for prices, states in zip(alike.prices, self.kept, strict=True):
            self.first.append(len(self.costs))
            columns = [self._column(float(prices[state])) for state in states]
            self.equal.add(columns, [1.0] * len(columns), 1.0)
        # (value, left, wanted) -> use -> row that says what it pays
        self.shares: dict[tuple[int, int, int], dict[int, int | None]] = {}
        for number, value in enumerate(alike.values):
            self._value(number, value)
        self.moments = {moment: self._moment(moment, memory or 0.0) for moment in moments}
        self.memory = memory or 1.0

    def _column(self, cost: float, most: float = float("inf")) -> int:
        self.costs.append(cost)
        self.most.append(most)
        return len(self.costs) - 1

    def _value(self, number: int, value: ValueCost) -> None:
        brought = [self._brought(value, use) for use in range(len(value.uses))]
        pairs: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for use, found in enumerate(brought):
            for left, wanted, column in zip(*map(np.ndarray.tolist, found), strict=True):
                pairs[left, wanted][use].append(column)
        for (left, wanted), uses in pairs.items():
            price = float(value.prices[left, wanted])
            if price >= NEVER / 2:
                for columns in uses.values():
                    for column in columns:
                        self.most[column] = 0.0
            elif price > 0:
                self._paid(number, (left, wanted), price, uses)

    def _paid(
        self,
        number: int,
        pair: tuple[int, int],
        price: float,
        uses: Mapping[int, Sequence[int]],
    ) -> None:
        """The columns of a pair, by use, cost what the most of these bring."""
        value = self.alike.values[number]
        rows: dict[int, int | None] = dict.fromkeys(uses)
        if len(uses) == 1:
            ((use, columns),) = uses.items()
            for column in columns:
                self.costs[column] += price * value.uses[use].times
        else:
            paid = self._column(price)
            for use, columns in uses.items():
                entries = [value.uses[use].times] * len(columns)
                rows[use] = self.below.add([*columns, paid], [*entries, -1.0], 0.0)
        self.shares[number, *pair] = rows

    def _brought(self, value: ValueCost, use: int) -> Brought:
        node, ways = value.uses[use].node, value.uses[use].ways
        made = value.made[:1] if value.maker is None else value.made[self.kept[value.maker]]
        wanted = ways[:1] if node is None else ways[self.kept[node]]
        here = self._columns(value.maker, len(made))
        there = self._columns(node, len(wanted))
        if value.maker == node and node is not None:
            return Brought(made, wanted, here)
        if len(set(made.tolist())) == 1:
            return Brought(np.repeat(made[:1], len(wanted)), wanted, there)
        if len(set(wanted.tolist())) == 1:
            return Brought(made, np.repeat(wanted[:1], len(made)), here)
        allowed = value.prices < NEVER / 2
        pairs = [(m, w) for m in np.unique(made) for w in np.unique(wanted) if allowed[m, w]]
        columns = np.array([self._column(0.0) for _ in pairs], np.intp)
        left, right = (np.array(side, np.intp) for side in zip(*pairs, strict=True))
        for places, ends, states in ((left, made, here), (right, wanted, there)):
            for way in np.unique(ends):
                flows, own = columns[places == way].tolist(), states[ends == way].tolist()
                self.equal.add([*flows, *own], [1.0] * len(flows) + [-1.0] * len(own), 0.0)
        return Brought(left, right, columns)

    def _columns(self, node: int | None, count: int) -> Numbers:
        if node is None:
            return np.full(count, self.one)
        return self.first[node] + np.arange(count)

    def _moment(self, moment: int, memory: float) -> int:
        """What is held then, as a part of the memory."""
        columns: list[int] = []
        entries: list[float] = []
        for held in self.alike.held:
            count = float(held.count[moment])
            if count:
                states = np.zeros(1, np.intp) if held.node is None else self.kept[held.node]
                columns.extend(self._columns(held.node, len(states)).tolist())
                entries.extend((count * held.sizes[states] / memory).tolist())
        return self.below.add(columns, entries, 1.0)

    @property
    def _scale(self) -> float:
        """Of costs, so that they are near one."""
        return max(max(self.costs), 1.0)

    def solve(self) -> Solved | None:
        """None where nothing that is known is within the memory."""
        optimize = import_module("scipy.optimize")
        width, scale = len(self.costs), self._scale
        found = optimize.linprog(
            np.array(self.costs) / scale,
            A_ub=self.below.matrix(width) if self.below.limits else None,
            b_ub=self.below.limits or None,
            A_eq=self.equal.matrix(width),
            b_eq=self.equal.limits,
            bounds=list(zip([0.0] * width, self.most, strict=True)),
            method="highs-ds" if width < SMALL else "highs-ipm",
        )
        if found.x is None:
            return None
        paid = -scale * found.ineqlin.marginals if self.below.limits else np.zeros(0)
        moments = {t: max(float(paid[row]), 0.0) / self.memory for t, row in self.moments.items()}
        return Solved(scale * float(found.fun), moments, self._parts(paid), self._mixture(found.x))

    def _mixture(self, columns: Array) -> list[Array]:
        found: list[Array] = []
        for first, states, prices in zip(self.first, self.kept, self.alike.prices, strict=True):
            mixed = np.zeros(len(prices))
            mixed[states] = columns[first : first + len(states)]
            found.append(mixed)
        return found

    def _parts(self, paid: Array) -> list[list[Array | float]]:
        """What each use pays of the price of each pair: equal parts where nothing is known."""
        found: list[list[Array | float]] = []
        for value in self.alike.values:
            count = len(value.uses)
            if count < 2:
                found.append([1.0] * count)
            else:
                found.append([np.full(value.prices.shape, 1 / count) for _ in range(count)])
        for (number, left, wanted), rows in self.shares.items():
            value = self.alike.values[number]
            if len(value.uses) < 2:
                continue
            own = np.zeros(len(value.uses))
            for use, row in rows.items():
                own[use] = 1.0 if row is None else max(float(paid[row]), 0.0)
            if any(row is not None for row in rows.values()):
                own /= value.prices[left, wanted]
            own = own / own.sum() if own.sum() > 1 else own + (1 - own.sum()) / len(own)
            for use, part in enumerate(found[number]):
                if isinstance(part, np.ndarray):
                    part[left, wanted] = own[use]
        return found

    def whole(self) -> Whole | None:
        """The best choice of known states that the search finds; None where it finds none."""
        optimize = import_module("scipy.optimize")
        width, scale = len(self.costs), self._scale
        limits = [optimize.LinearConstraint(self.equal.matrix(width), *[self.equal.limits] * 2)]
        if self.below.limits:
            below = self.below.matrix(width)
            limits.append(optimize.LinearConstraint(below, -np.inf, self.below.limits))
        integral = np.zeros(width)
        for first, states in zip(self.first, self.kept, strict=True):
            integral[first : first + len(states)] = 1
        found = optimize.milp(
            np.array(self.costs) / scale,
            integrality=integral,
            bounds=optimize.Bounds(0.0, self.most),
            constraints=limits,
            options={"node_limit": NODES, "mip_rel_gap": NEAR},
        )
        if found.x is None:
            return None
        chosen = [int(mixed.argmax()) for mixed in self._mixture(found.x)]
        return Whole(chosen, scale * float(found.mip_dual_bound))
