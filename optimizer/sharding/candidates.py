"""The ways in which one operation can be computed on a mesh: which axes cut each of its factors,
and over which its operands stay unreduced.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...hlo.factors import Dims, Factor, FactorKind, Factors
from ...hlo.graph import Op, Value
from ...hlo.sharding import SUM, Axis, DimSharding, Mesh, Sharding
from ...hlo.types import TensorType
from ..cost.assumed import BYTES_PER_COMMUNICATION, FLOPS_PER_BYTE, MEMORY_PER_BYTE
from .content import content
from .inner import inner_bytes, inner_calls
from .linear import TAKERS, carriers
from .parts import Part, Parts, of_axes, overlap, product, to_axes
from .projection import MERGING, FactorSharding, join, project

MOST = 24
"""Ways of one operation that are looked at; the first ones are those of propagation."""

Lying = Sharding | None  # of what is no tensor: None
Assignment = dict[int, Parts]


@dataclass(frozen=True)
class CandidateState:
    """How operands and results lie when an operation is computed in one way, and what that costs,
    in bytes that a device receives; `sent`: those that it does receive inside of the operation."""

    operands: tuple[Lying, ...]
    results: tuple[Lying, ...]
    price: float
    sent: float = 0.0


@dataclass(frozen=True, eq=False)
class Ways:
    """Ways in which a tensor lies, each once. `Candidates.ways` makes one object for equal ones."""

    lyings: tuple[Lying, ...]
    unreduced: tuple[tuple[Parts, str], ...]  # over which axes, by which fold, some of them are


class Column(NamedTuple):
    """One operand or result in all states of an operation: how it lies, and in which way of these
    in each state."""

    ways: Ways
    numbers: np.ndarray[tuple[int, ...], np.dtype[np.intp]]


@dataclass(frozen=True, eq=False)
class States:
    """The states of an operation; of equal operations the same object. `prices`: of each state;
    `whole`: the number of the one in which the fewest axes are used."""

    states: tuple[CandidateState, ...]
    operands: tuple[Column, ...]
    results: tuple[Column, ...]
    prices: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    whole: int


class Candidates:
    """Makes the states of operations on one mesh."""

    def __init__(self, mesh: Mesh, name: str) -> None:
        self.mesh, self.name = mesh, name
        self.known: dict[Sharding, Sharding] = {}  # so that equal ones are one
        self._ways: dict[tuple[Lying, ...], Ways] = {}
        self._makers: dict[Hashable, _Maker] = {}
        self._maker_of: dict[Op, _Maker | None] = {}
        self._without: dict[tuple[Ways, ...], States] = {}
        self._constraints: dict[tuple[Ways, Ways, Ways], States] = {}
        self._placed: dict[tuple[int, ...], States] = {}

    def whole(self, value: Value) -> Lying:
        """Every device has all of it."""
        if not isinstance(value.type, TensorType):
            return None
        made = Sharding(self.name, (DimSharding(),) * value.rank)
        return self.known.setdefault(made, made)

    def ways(self, lyings: Iterable[Lying]) -> Ways:
        """Of these, each once; equal lyings become one object."""
        known = self.known
        one = (None if each is None else known.setdefault(each, each) for each in lyings)
        key = tuple(dict.fromkeys(one))
        found = self._ways.get(key)
        if found is None:
            unreduced = {
                (of_axes(self.mesh, lying.unreduced), lying.reduction): None
                for lying in key
                if lying is not None and lying.unreduced
            }
            found = self._ways[key] = Ways(key, tuple(unreduced))
        return found

    def of(
        self, op: Op, said: Sequence[Ways], arriving: Sequence[Ways], wanted: Sequence[Ways]
    ) -> States:
        """The states of an operation; one of them is that nothing is cut.

        said: how propagation lets operands and results lie, one way each. arriving: for each
        operand, how it may come; wanted: for each result, how it may be used.
        """
        if op.name == "sharding_constraint":
            return self._kept(said[1], arriving[0], wanted[0])
        if op not in self._maker_of:
            self._maker_of[op] = self._maker(op)
        maker = self._maker_of[op]
        if maker is None:
            lying = [self.ways([self.whole(value)]) for value in (*op.operands, *op.results)]
            key = tuple(lying)
            if key not in self._without:
                count, only = len(op.operands), [ways.lyings[0] for ways in lying]
                states = [CandidateState(tuple(only[:count]), tuple(only[count:]), 0.0)]
                self._without[key] = self._columns(states)
            return self._without[key]
        pending = tuple(self._pending(op, arriving))
        answer = (*said, *arriving, *wanted, pending)
        found = maker.answers.get(answer)
        if found is None:
            ways = [[each.lyings for each in some] for some in (arriving, wanted)]
            states = self._of(maker, [only.lyings[0] for only in said], ways[0], ways[1], pending)
            found = maker.answers[answer] = self._columns(states)
        return found

    def every(self, op: Op, arriving: Sequence[Ways]) -> States | None:
        """The states of an operation for each way in which whole axes of the mesh cut its factors
        evenly, or none of them; None of what has no factors. arriving: as for `of`."""
        if op not in self._maker_of:
            self._maker_of[op] = self._maker(op)
        maker = self._maker_of[op]
        if maker is None:
            return None
        pending = tuple(self._pending(op, arriving))
        answer = ("every", pending)
        found = maker.answers.get(answer)
        if found is None:
            states = self._stated(maker, maker.everything(), pending)
            found = maker.answers[answer] = self._columns(list(states))
        return found

    def placed(self, kind: TensorType) -> States:
        """The states of what is only held: each way in which whole axes cut its dims evenly."""
        found = self._placed.get(kind.dims)
        if found is None:
            states: list[CandidateState] = []
            for cuts in _divided(self.mesh, kind.dims):
                dims = (to_axes(self.mesh, cuts.get(dim, ())) for dim in range(kind.rank))
                lying = Sharding(self.name, tuple(map(DimSharding, dims)))
                states.append(CandidateState((lying,), (lying,), 0.0))
            found = self._placed[kind.dims] = self._columns(states)
        return found

    def _kept(self, said: Ways, arriving: Ways, wanted: Ways) -> States:
        """The states of what a user constrains."""
        key = said, arriving, wanted
        found = self._constraints.get(key)
        if found is None:
            lyings = _constrained(said.lyings[0], arriving.lyings, wanted.lyings)
            states = [CandidateState((way,), (way,), 0.0) for way in lyings]
            found = self._constraints[key] = self._columns(states)
        return found

    def _columns(self, states: Sequence[CandidateState]) -> States:
        def columns(rows: Sequence[tuple[Lying, ...]]) -> tuple[Column, ...]:
            return tuple(map(self._column, zip(*rows, strict=True)))

        return States(
            tuple(states),
            columns([state.operands for state in states]),
            columns([state.results for state in states]),
            np.array([state.price for state in states]),
            min(range(len(states)), key=lambda number: _axes(states[number])),
        )

    def _column(self, lyings: Sequence[Lying]) -> Column:
        ways = self.ways(lyings)
        places = {lying: number for number, lying in enumerate(ways.lyings)}
        return Column(ways, np.array([places[lying] for lying in lyings], np.intp))

    def _of(
        self,
        maker: _Maker,
        said: Sequence[Lying],
        arriving: Sequence[Sequence[Lying]],
        wanted: Sequence[Sequence[Lying]],
        pending: Sequence[tuple[Parts, str, frozenset[int]]],
    ) -> list[CandidateState]:
        assignments = maker.assignments(said, arriving, wanted)
        return list(self._stated(maker, assignments, pending, MOST))

    def _stated(
        self,
        maker: _Maker,
        assignments: Iterable[Assignment],
        pending: Sequence[tuple[Parts, str, frozenset[int]]],
        most: int | None = None,
    ) -> Iterable[CandidateState]:
        """The states of assignments, each once; of no further assignment where there are `most`."""
        found: dict[tuple[tuple[Lying, ...], tuple[Lying, ...]], CandidateState] = {}
        for assignment in assignments:
            for over, fold, which in [((), SUM, frozenset[int]()), *pending]:
                state = maker.state(assignment, over, fold, which)
                if state is not None:
                    found.setdefault((state.operands, state.results), state)
            if most is not None and len(found) >= most:
                break
        return found.values()

    def _maker(self, op: Op) -> _Maker | None:
        """Equal operations have one, which remembers."""
        key = content(op) or op
        if key not in self._makers:
            factors = op.definition.divide(op)
            if factors is None:
                return None
            self._makers[key] = _Maker(self, op, factors)
        return self._makers[key]

    def _pending(self, op: Op, arriving: Sequence[Ways]) -> list[tuple[Parts, str, frozenset[int]]]:
        """(axes, fold, operands) that may stay unreduced."""
        found: dict[tuple[Parts, str, frozenset[int]], None] = {}
        for number, ways in enumerate(arriving):
            for axes, fold in ways.unreduced:
                for which in carriers(op, fold):
                    if number in which:
                        found[axes, fold, which] = None
        return list(found)


def _constrained(
    said: Lying, arriving: Sequence[Lying], wanted: Sequence[Lying]
) -> Iterator[Lying]:
    """How a value that the user constrains may lie: as said; and where it comes as terms of a sum,
    so that each device adds a part of what is said, which those take that need no more."""
    yield said
    assert said is not None
    over = {axis for way in arriving if way is not None for axis in way.unreduced}
    for way in wanted:
        if way is None or way == said or way.unreduced:
            continue
        pairs = list(zip(way.dims, said.dims, strict=True))
        finer = all(dim.axes[: len(coarse.axes)] == coarse.axes for dim, coarse in pairs)
        added = {axis for dim, coarse in pairs for axis in dim.axes[len(coarse.axes) :]}
        if finer and added <= over:
            yield way


class _Maker:
    """The states of one operation."""

    def __init__(self, known: Candidates, op: Op, factors: Factors) -> None:
        self.op, self.factors, self.mesh, self.name = op, factors, known.mesh, known.name
        self.known = known.known
        self.answers: dict[Hashable, States] = {}
        self._along: dict[tuple[int, Sharding], Assignment] = {}
        self._states: dict[Hashable, CandidateState | None] = {}
        self.values = (*op.operands, *op.results)
        self.sizes = [factor.size for factor in factors.factors]
        self.flops = op.definition.flops(op)

    def assignments(
        self,
        said: Sequence[Lying],
        arriving: Sequence[Sequence[Lying]],
        wanted: Sequence[Sequence[Lying]],
    ) -> Iterator[Assignment]:
        """Which axes cut each factor, each way once: what propagation says first."""
        seen: set[tuple[tuple[int, Parts], ...]] = set()
        order = sorted(range(len(self.values)), key=lambda n: -_bytes(self.values[n]))
        own = [self.along(n, said[n]) for n in range(len(self.values))]
        ways = [self.along(n, w) for n, ways in enumerate((*arriving, *wanted)) for w in ways]
        offered = {tuple(way.items()): way for way in ways}.values()
        seeds: list[list[Assignment]] = [[own[n] for n in order], []]
        for n in order:
            seeds.append([own[n]])
            seeds.append([own[n], *(own[m] for m in order if m != n)])
        for offer in offered:
            seeds.append([offer, *(own[n] for n in order)])
            seeds.append([offer])
        found: list[Assignment] = []
        for seed in seeds:
            merged = self.merged(seed)
            key = tuple(sorted(merged.items()))
            if key not in seen:
                seen.add(key)
                found.append(merged)
                yield merged
        whole = self.factors.of_kind(FactorKind.REPLICATE)
        for assignment in list(found):
            # Axes of a factor that every device needs all of divide the work along another one.
            if self.op.definition.pattern != "contract" and not any(map(assignment.get, whole)):
                continue
            for merged in self.moved(assignment):
                key = tuple(sorted(merged.items()))
                if key not in seen:
                    seen.add(key)
                    yield merged

    def everything(self) -> Iterator[Assignment]:
        """Each way in which whole axes cut factors evenly."""
        held = {n for dims in self.factors.tensors for factors in dims for n in factors}
        sizes = [size if n in held else 1 for n, size in enumerate(self.sizes)]
        return _divided(self.mesh, sizes)

    def along(self, number: int, lying: Lying) -> Assignment:
        """What a tensor that lies so says of the factors."""
        if lying is None:
            return {}
        found = self._along.get((number, lying))
        if found is None:
            cuts = self.projected(self.factors.tensors[number], lying)
            found = {n: cut.axes for n, cut in sorted(cuts.items()) if cut.axes}
            self._along[number, lying] = found
        return found

    def projected(self, dims: Dims, lying: Sharding) -> Mapping[int, FactorSharding]:
        """What a tensor that lies so says of the factors that it holds."""
        across = self.op.name in MERGING
        return project(dims, lying, self.sizes, self.mesh, across).factors

    def merged(self, seeds: Iterable[Mapping[int, Parts]]) -> Assignment:
        """The first says; the others, of factors that are not cut, by axes that are free."""
        found: Assignment = {}
        taken: list[Part] = []
        for seed in seeds:
            for number, axes in seed.items():
                if number in found or self.sizes[number] < 2:
                    continue
                if not any(overlap(part, other) for part in axes for other in taken):
                    found[number] = axes
                    taken.extend(axes)
        return found

    def moved(self, assignment: Assignment) -> Iterator[Assignment]:
        """One factor's axes cut another one instead, which has an element for each part."""
        for number, axes in assignment.items():
            for other, factor in enumerate(self.factors.factors):
                if other == number or factor.kind is not FactorKind.PASS:
                    continue
                before = assignment.get(other, ())
                if factor.size >= product(axes) * product(before):
                    rest = {n: a for n, a in assignment.items() if n != number}
                    yield {**rest, other: (*before, *axes)}

    def taken(self, assignment: Assignment, part: Part) -> bool:
        return any(overlap(part, other) for axes in assignment.values() for other in axes)

    def gives_terms(self, factor: Factor) -> bool:
        """Whether results are unreduced over the axes that cut it."""
        if factor.kind is FactorKind.REDUCTION:
            return True
        return factor.kind is FactorKind.REPLICATE and self.op.name in TAKERS

    def state(
        self, assignment: Assignment, over: Parts, fold: str, which: frozenset[int]
    ) -> CandidateState | None:
        """How the tensors lie then; None where the operation cannot be computed so."""
        key = tuple(sorted(assignment.items())), over, fold, which
        if key not in self._states:
            self._states[key] = self._state(assignment, over, fold, which)
        return self._states[key]

    def _state(
        self, assignment: Assignment, over: Parts, fold: str, which: frozenset[int]
    ) -> CandidateState | None:
        if any(self.taken(assignment, part) for part in over):
            return None
        axes = [to_axes(self.mesh, assignment.get(n, ())) for n in range(len(self.sizes))]
        inside = inner_bytes(self.op, self.factors, axes, self.mesh)
        if inside is None:
            return None
        folds = {fold} if over else set()
        left = list(over)
        kept = dict(assignment)  # of which a result can be cut
        for number, factor in enumerate(self.factors.factors):
            if assignment.get(number) and self.gives_terms(factor):
                folds.add(factor.reduction)
                left += assignment[number]
                kept.pop(number)
        if len(folds) > 1:
            return None
        kind, count = next(iter(folds), SUM), len(self.op.operands)
        lying: list[Lying] = []
        for number, value in enumerate(self.values):
            if not isinstance(value.type, TensorType):
                lying.append(None)
                continue
            dims = self.dims(number, assignment if number < count else kept)
            if dims is None:
                return None
            pending = () if number < count and number not in which else over
            pending = tuple(left) if number >= count else pending
            unreduced = self.mesh.merged(to_axes(self.mesh, sorted(pending)))
            made = Sharding(self.name, dims, (), unreduced, kind if unreduced else SUM)
            lying.append(self.known.setdefault(made, made))
        cut = math.prod(product(parts) for parts in assignment.values())
        memory = sum(
            _bytes(value) / math.prod(self.mesh.parts(dim.axes) for dim in found.dims)
            for value, found in zip(self.values, lying, strict=True)
            if found is not None
        )
        inside += BYTES_PER_COMMUNICATION * inner_calls(self.op, self.factors, axes, self.mesh)
        price = inside + self.flops / cut / FLOPS_PER_BYTE + memory / MEMORY_PER_BYTE
        return CandidateState(tuple(lying[:count]), tuple(lying[count:]), price, inside)

    def dims(self, number: int, assignment: Assignment) -> tuple[DimSharding, ...] | None:
        """The axes of a tensor's dims; None where they would not cut its factors so."""
        held = self.factors.tensors[number]
        found: list[DimSharding] = []
        for factors in held:
            axes: list[Part] = []
            for factor in factors:
                join(axes, assignment.get(factor, ()))
            found.append(DimSharding(self.mesh.merged(to_axes(self.mesh, axes))))
        made = tuple(found)
        again = self.projected(held, Sharding(self.name, made))
        for factors in held:
            if len(factors) > 1 and self.sizes[factors[-1]] % product(
                assignment.get(factors[-1], ())
            ):
                return None  # the dim has other blocks than its factors
            for factor in factors:
                cut = again.get(factor)
                if cut is None or cut.overflow or cut.axes != assignment.get(factor, ()):
                    return None
        return made


def _axes(state: CandidateState) -> int:
    """How many axes cut operands and results, or leave them unreduced."""
    lyings = [lying for lying in (*state.operands, *state.results) if lying is not None]
    return sum(len(lying.unreduced) + sum(len(d.axes) for d in lying.dims) for lying in lyings)


def _divided(mesh: Mesh, sizes: Sequence[int]) -> Iterator[Assignment]:
    """Each way in which whole axes of the mesh, in its order, cut some of these sizes evenly; first
    the ways in which most axes do."""
    axes = of_axes(mesh, (Axis(name) for name in mesh.names if mesh.size(Axis(name)) > 1))
    ways: list[Assignment] = [{}]
    for axis in axes:
        more: list[Assignment] = []
        for way in ways:
            for number, size in enumerate(sizes):
                parts = (*way.get(number, ()), axis)
                if size and size % product(parts) == 0:
                    more.append({**way, number: parts})
            more.append(way)
        ways = more
    ways.sort(key=lambda way: -sum(map(len, way.values())))
    return iter(ways)


def _bytes(value: Value) -> int:
    return value.type.bytes if isinstance(value.type, TensorType) else 0
