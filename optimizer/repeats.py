"""Which operations of a region stand there several times in a row, as layers of a model do.

Two stretches of operations are copies of one another if they differ in nothing but the values that
they take from outside and the names of the weights that they read. The text of operations without
their operands gives candidates: equal texts at equal distances. Operands decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..hlo.graph import Op, Region, Value
from ..hlo.types import TensorType
from .keys import Key, Keys

LEAST_COPIES = 14  # fewer take longer to find and to try than to look at one by one
LEAST_SPARED = 200  # operations that need not be looked at: less is not worth a function
PERIODS = 16  # distances at which equal operations stand most often, that are tried
VIEWS = frozenset({"broadcast_in_dim", "reshape"})  # operations that no kernel does on their own
CUTS = 4  # places at which copies may begin, that are tried


class RepeatedCopy(NamedTuple):
    """One of the equal stretches, without the sources (constants, weights) that it reads.

    operands: what it takes from outside; weights: names, in the order in which copies agree on
    them; results: what others take from it; shared: operations that belong to the stretch and
    compute the same in every copy, from what all of them read, and are none of its `ops`; views:
    operations elsewhere that cost nothing, which every copy does for itself.
    """

    ops: tuple[Op, ...]
    operands: tuple[Value, ...]
    weights: tuple[str, ...]
    results: tuple[Value, ...]
    shared: tuple[Op, ...] = ()
    views: tuple[Op, ...] = ()


class _Taken(NamedTuple):
    """What a copy takes from outside, each once, in order."""

    operands: dict[Value, None]
    weights: dict[str, None]
    views: dict[Op, None]


def repeats(
    region: Region, fits: Callable[[RepeatedCopy, RepeatedCopy], bool]
) -> list[list[RepeatedCopy]]:
    """Lists of copies, each in program order; those of one list are equal to one another.

    The first and the last copy of a row are left out: what stands around them may change them.
    fits: is asked whether copies may be cut where they are, with a copy, and with that one and its
        neighbour together; where it says no, other cuts are tried.
    """
    found = _Finder(region, fits)
    lists = []
    while (copies := found.next()) is not None:
        lists.append(copies)
    return lists


class _Finder:
    def __init__(self, region: Region, fits: Callable[[RepeatedCopy, RepeatedCopy], bool]) -> None:
        self.region, self.fits = region, fits
        self.keys = Keys()
        self.ops: list[Op] = []
        self.sources: dict[Value, Key] = {}  # what copies have to agree on in them
        self.weights: dict[Value, str] = {}  # the names of those that are weights
        for op in region.ops:
            if op.definition.pattern != "source":
                self.ops.append(op)
                continue
            for value in op.results:
                if op.definition.name == "weight":
                    self.weights[value] = op.attributes["weight"]
                    self.sources[value] = "weight", value.type
                else:
                    key = op.definition.name, self.keys.attributes(op), value.type
                    self.sources[value] = key
        self.place = {op: number for number, op in enumerate(self.ops)}
        self.common: set[Value] = set()  # what all copies of a list take from outside
        self.refused: set[tuple[int, int]] = set()  # (period, first operation): no copies there
        names: dict[Any, int] = {}
        codes = [
            -1 - number if (text := self.text(op)) is None else names.setdefault(text, len(names))
            for number, op in enumerate(self.ops)
        ]
        self.codes = np.array(codes, np.int64)
        self.taken = len(codes)  # codes of operations that a list has are below -taken

    def text(self, op: Op) -> Key | None:
        """Equal where two operations may be copies; None where it never is one."""
        if self.keys.has_effects(op) or op.definition.communicates:
            return None
        if op.regions and any(self.keys.captures(inner) for inner in op.regions):
            return None
        return (
            op.definition.name,
            self.keys.attributes(op),
            op.result_types,
            tuple([self.sources.get(value) or value.type for value in op.operands]),
            tuple([self.keys.region(inner) for inner in op.regions]),
        )

    def next(self) -> list[RepeatedCopy] | None:
        """The copies that spare most, which are then gone; None where none are left."""
        while (found := self.longest()) is not None:
            period, first, length = found
            copies = self.alike(period, first, length)
            if copies is None:
                self.refused.add((period, first))
                continue
            for copy in copies:
                for op in copy.ops:
                    self.taken += 1
                    self.codes[self.place[op]] = -1 - self.taken
            return copies
        return None

    def longest(self) -> tuple[int, int, int] | None:
        """(period, first operation, operations) of the stretch with most repeated operations."""
        best: tuple[int, int, int] | None = None
        for period in self.periods():
            same = self.codes[period:] == self.codes[:-period]
            edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
            for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                if high - low < max((LEAST_COPIES + 1) * period, LEAST_SPARED):
                    continue
                if (period, low) in self.refused:
                    continue
                if best is None or high - low > best[2] - best[0]:
                    best = period, low, high - low + period
        return best

    def periods(self) -> list[int]:
        """Distances between neighbouring equal operations, the most frequent ones, ascending."""
        last: dict[int, int] = {}
        distances: Counter[int] = Counter()
        for number, code in enumerate(self.codes.tolist()):
            if code >= 0:
                if code in last:
                    distances[number - last[code]] += 1
                last[code] = number
        return sorted(distance for distance, _ in distances.most_common(PERIODS))

    def alike(self, period: int, first: int, length: int) -> list[RepeatedCopy] | None:
        """The longest row of copies within a stretch, cut where few bytes cross and it fits."""
        for cut in self.cuts(period, first)[:CUTS]:
            row = self.row(period, first + cut, length - cut)
            spared = (len(row) - 1) * period
            if len(row) < LEAST_COPIES or spared < LEAST_SPARED:
                return None
            middle = len(row) // 2
            one, other = row[middle - 1], row[middle]
            if self.fits(one, self.copy(one.ops + other.ops)):
                return row
        return None

    def row(self, period: int, first: int, length: int) -> list[RepeatedCopy]:
        """The longest row of equal copies, one behind the other from `first` on."""
        self.common = set()
        rows: list[list[RepeatedCopy]] = [[]]
        known: Any = None
        for start in range(first, first + length - period + 1, period):
            shape, copy = self.shape(start, period)
            if shape != known:
                rows.append([])
                known = shape
            rows[-1].append(copy)
        return self.apart(max(rows, key=len)[1:-1])

    def apart(self, row: list[RepeatedCopy]) -> list[RepeatedCopy]:
        """The copies without the operations that compute the same in each."""
        if len(row) < LEAST_COPIES:
            return row
        self.common = _in_all([copy.operands for copy in row])
        names = _in_all([copy.weights for copy in row])
        known, ops = set(self.common), row[0].ops
        equal: list[int] = []
        for number, op in enumerate(ops):
            if op.operands and all(
                value in known
                or (value in self.sources and self.weights.get(value) in (None, *names))
                for value in op.operands
            ):
                equal.append(number)
                known.update(op.results)
        shared: set[int] = set()  # views stay, unless something that is computed once needs them
        needed: set[Value] = set()
        for number in reversed(equal):
            op = ops[number]
            if op.name not in VIEWS or any(value in needed for value in op.results):
                shared.add(number)
                needed.update(op.operands)
        return [self.without(copy, shared) for copy in row]

    def without(self, copy: RepeatedCopy, shared: set[int]) -> RepeatedCopy:
        ops = tuple(op for number, op in enumerate(copy.ops) if number not in shared)
        apart = tuple(copy.ops[number] for number in sorted(shared))
        return self.copy(ops)._replace(shared=apart)

    def cuts(self, period: int, first: int) -> list[int]:
        """How far behind `first` copies may begin, the places where fewest bytes cross first."""
        gained = np.zeros(2 * period + 2, np.int64)
        for at in range(2 * period):
            for value in self.ops[first + at].results:
                if not isinstance(value.type, TensorType) or not value.type.is_static:
                    continue
                last = max(self.places_of_users(value), default=-1) - first
                if at < last < at + period:  # what is needed longer crosses every cut
                    gained[at + 1] += value.type.bytes
                    gained[min(last, 2 * period) + 1] -= value.type.bytes
        crossing = np.cumsum(gained)[period : 2 * period]
        return np.argsort(crossing, kind="stable").tolist()

    def places_of_users(self, value: Value) -> list[int]:
        """Where its users stand; the region's own results are none."""
        users = (user for user, _ in self.region.uses.get(value, ()))
        return [self.place[user] for user in users if user is not None and user in self.place]

    def shape(self, start: int, period: int) -> tuple[Any, RepeatedCopy]:
        """What copies have to agree on, and what each has of its own."""
        copy = self.copy(self.ops[start : start + period])
        names: dict[Any, int] = {}  # of values and weights, in an order that copies agree on
        for taken in (*copy.operands, *copy.weights):
            names[taken] = len(names)
        codes = self.codes[start : start + period].tolist()
        rows: list[int] = []
        for code, op in zip(codes, copy.ops, strict=True):
            rows.append(code)
            for value in op.operands:
                name = names.get(value)
                if name is None and value in self.weights:
                    name = names[self.weights[value]]
                if name is not None:
                    rows.append(name)
            for value in op.results:
                names[value] = len(names)
        return (rows, [names[value] for value in copy.results]), copy

    def copy(self, ops: Sequence[Op]) -> RepeatedCopy:
        """These operations as a copy."""
        inside, local = set(ops), set[Value]()
        taken = _Taken({}, {}, {})
        for op in ops:
            for value in op.operands:
                if value not in local:
                    self.read(value, taken)
            local.update(op.results)
        results: list[Value] = []
        uses = self.region.uses
        for op in ops:
            for value in op.results:
                for user, _ in uses.get(value, ()):
                    if user not in inside:
                        results.append(value)
                        break
        parts = tuple(ops), tuple(taken.operands), tuple(taken.weights), tuple(results)
        return RepeatedCopy(*parts, views=tuple(taken.views))

    def read(self, value: Value, taken: _Taken) -> None:
        """Add what a copy takes from outside to have this value."""
        if value in self.weights:
            taken.weights[self.weights[value]] = None
        elif value not in self.sources:
            op = value.op if value in self.common else None
            if op is not None and op.name in VIEWS:
                for operand in op.operands:
                    self.read(operand, taken)
                taken.views[op] = None
            else:
                taken.operands[value] = None


def _in_all(rows: Sequence[tuple[Any, ...]]) -> set[Any]:
    """What stands at one place of every row."""
    same = (set(column) for column in zip(*rows, strict=True))
    return set().union(*(values for values in same if len(values) == 1))
