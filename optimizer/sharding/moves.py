"""The moves from one state of a tensor to another, and the cheapest chain of them.

    slice           a device keeps a part of its block: nothing moves
    permute         blocks of one size, on other devices
    all_to_all      the minor atoms of one dim go to another dim, in any order
    all_gather      the minor atoms of a dim go
    reduce_scatter  unreduced atoms cut a dim, in any order; all_reduce: they go
    exchange        every device gets each box that it lacks from a device that has it; unreduced
                    values are folded by who gets them

`cheapest` walks states by A*: no chain of moves brings a device fewer bytes than it lacks, so that
bound leads the search. No state has larger blocks, or fewer of them, than both ends: no tensor is
gathered to be cut again.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .blocks import BlockState, Numbers, TensorBlocks
from .interconnect import Link, quickest, seconds, slowest

SLICE, PERMUTE, ALL_TO_ALL, ALL_GATHER = "slice", "permute", "all_to_all", "all_gather"
REDUCE_SCATTER, ALL_REDUCE, EXCHANGE = "reduce_scatter", "all_reduce", "exchange"

MAXIMUM_ATOMS = 5  # that a search moves; with more, whole axes are its atoms
MAXIMUM_PERMUTES = 120  # from one state: all of those of five atoms
MAXIMUM_MOVES = 20_000  # that a search looks at

# Others 2: of chains that take equally long, fewer calls, and collectives before an exchange.
_EFFORT = {SLICE: 0, EXCHANGE: 3}
_NOISE = 1 - 1e-9  # a bound that is less by the rounding of its sums


class ChainStep(NamedTuple):
    """One move. `group`: the atoms along which devices take part, in the order of their places;
    `dim` and `to`: the dim that gives atoms, and the one that gets them."""

    kind: str
    before: BlockState
    after: BlockState
    group: Numbers = ()
    dim: int | None = None
    to: int | None = None


class ChainProblem(NamedTuple):
    """What the cheapest chain depends on: atoms have sizes and links here, and no names."""

    sizes: Numbers
    links: tuple[Link, ...]
    dims: tuple[int, ...]
    itemsize: int
    source: BlockState
    target: BlockState
    exchange: bool  # whether a chain may end with one
    memory: int | None  # bytes of blocks that no move may exceed


class ChainResult(NamedTuple):
    """`proven`: no chain of these moves is cheaper; otherwise the search ended at its bound."""

    steps: tuple[ChainStep, ...]
    seconds: float
    proven: bool


@functools.lru_cache(maxsize=8192)
def cheapest(problem: ChainProblem) -> ChainResult | None:
    """The chain of least seconds, then of fewest calls, then of collectives; None without one."""
    return _ChainSearch(problem).run()


class _ChainSearch:
    def __init__(self, problem: ChainProblem) -> None:
        self.problem, self.target = problem, problem.target
        count = int(np.prod(problem.sizes, dtype=np.int64))
        digits = np.unravel_index(np.arange(count), problem.sizes) if problem.sizes else ()
        self.blocks = TensorBlocks(problem.sizes, digits, problem.dims, problem.itemsize)
        ranks = range(len(problem.dims))
        alike = [problem.source.alike(self.target, dim) for dim in ranks]
        self.fixed = tuple(map(len, alike))
        kept = {atom for atoms in alike for atom in atoms}
        self.movable = [atom for atom in range(len(problem.sizes)) if atom not in kept]
        ends = (problem.source, problem.target)
        self.largest = max(map(self.blocks.bytes, ends))
        self.fewest = min(map(self.blocks.total, ends))
        links = [problem.links[atom] for atom in self.movable]
        self.least = quickest(links)
        named = {atom for end in ends for atom in end.atoms}
        self.reached = slowest(problem.links[atom] for atom in self.movable if atom in named)
        self._bounds: dict[BlockState, float] = {}
        self._links: dict[Numbers, Link] = {}
        self.cost: dict[BlockState, tuple[float, int]] = {problem.source: (0.0, 0)}
        self.came: dict[BlockState, ChainStep] = {}
        self.counter = itertools.count()
        self.heap = [(0.0, 0, next(self.counter), problem.source)]
        self.seen = 0

    def run(self) -> ChainResult | None:
        if self.problem.exchange:
            self.relax_incumbent()
        for state in self.ordered():
            if state == self.target or self.seen > MAXIMUM_MOVES:
                break
            for step, price in self.moves(state, self.budget(state)):
                self.seen += 1
                self.relax(step, price)
        if self.target not in self.cost:
            return None
        return ChainResult(self._steps(), self.cost[self.target][0], self.seen <= MAXIMUM_MOVES)

    def ordered(self) -> Iterator[BlockState]:
        """States, the one whose chain to the target may be cheapest first; each once."""
        done: set[BlockState] = set()
        while self.heap:
            state = heapq.heappop(self.heap)[-1]
            if state not in done:
                done.add(state)
                yield state

    def budget(self, state: BlockState) -> float:
        """Seconds that a move from here may take and still lead to a cheaper chain."""
        known = self.cost.get(self.target)
        return math.inf if known is None else known[0] - self.cost[state][0]

    def relax(self, step: ChainStep, price: float) -> None:
        memory = self.problem.memory
        if step.before not in self.cost or memory is not None and peak(self.blocks, step) > memory:
            return
        spent, calls = self.cost[step.before]
        spent, calls = spent + price, calls + _EFFORT.get(step.kind, 2)
        if step.after not in self.cost or (spent, calls) < self.cost[step.after]:
            self.cost[step.after], self.came[step.after] = (spent, calls), step
            guess = spent + self.bound(step.after)
            heapq.heappush(self.heap, (guess, calls, next(self.counter), step.after))

    def relax_incumbent(self) -> None:
        """A first chain: unreduced values folded everywhere, and an exchange."""
        state, target = self.problem.source, self.target
        group = self.blocks.folded(state, target)
        if group:
            reduced = state.cut({}, target.pending)
            self.relax(*self.priced(*self._all_reduce(state, group)))
            state = reduced
        for step, price in self._exchange(state):
            self.relax(step, price)

    def _steps(self) -> tuple[ChainStep, ...]:
        """The way to the target, slices that follow one another as one."""
        found: list[ChainStep] = []
        state = self.target
        while state != self.problem.source:
            step = self.came[state]
            if found and step.kind == found[-1].kind == SLICE:
                found[-1] = step._replace(after=found[-1].after)
            else:
                found.append(step)
            state = step.before
        return tuple(reversed(found))

    def bound(self, state: BlockState) -> float:
        """Seconds that any chain from here takes at least."""
        found = self._bounds.get(state)
        if found is None:
            if state.pending == self.target.pending:
                size = float(self.blocks.missing(state, self.target).mean())
            else:
                size = float(self.blocks.held(self.target).mean()) * self.problem.itemsize
            found = seconds(self.least, 1, size) * _NOISE if size else 0.0
            self._bounds[state] = found
        return found

    def moves(self, state: BlockState, budget: float) -> Iterator[tuple[ChainStep, float]]:
        """Every move from here to a state that a chain may pass, with its seconds."""
        for step, _ in self._slices(state):
            if self._passes(step.after):
                yield step, 0.0
        if seconds(self.least, 1, 0.0) > budget:
            return
        if self.problem.exchange:
            yield from self._exchange(state)
        for step, size in itertools.chain(
            self._gathers(state), self._exchanged_dims(state), self._reductions(state),
            self._permutes(state, budget),
        ):  # fmt: skip
            if self._passes(step.after):
                yield self.priced(step, size)

    def priced(self, step: ChainStep, size: float) -> tuple[ChainStep, float]:
        messages = 1 if step.kind == PERMUTE else self.blocks.parts(step.group) - 1
        if step.kind == ALL_REDUCE:
            messages *= 2
        return step, seconds(self.link(step.group), messages, size)

    def link(self, group: Numbers) -> Link:
        found = self._links.get(group)
        if found is None:
            found = self._links[group] = slowest(self.problem.links[atom] for atom in group)
        return found

    def _passes(self, state: BlockState) -> bool:
        blocks = self.blocks
        return blocks.bytes(state) <= self.largest and blocks.total(state) >= self.fewest

    def _free(self, state: BlockState) -> list[int]:
        """Atoms along which all devices hold the same."""
        used = state.atoms
        return [atom for atom in self.movable if atom not in used]

    def _slices(self, state: BlockState) -> Iterator[tuple[ChainStep, float]]:
        for atom in self._free(state):
            for dim, atoms in enumerate(state.dims):
                finer = (*atoms, atom)
                if self.blocks.nested(dim, atoms, finer, state.grain(dim)):
                    yield ChainStep(SLICE, state, state.cut({dim: finer}), (), None, dim), 0.0

    def _tails(self, state: BlockState) -> Iterator[tuple[int, Numbers, Numbers]]:
        """(dim, atoms that stay, minor atoms that go) where blocks join to larger blocks."""
        for dim, atoms in enumerate(state.dims):
            for stay in range(self.fixed[dim], len(atoms)):
                if self.blocks.nested(dim, atoms[:stay], atoms, state.grain(dim)):
                    yield dim, atoms[:stay], atoms[stay:]

    def _gathers(self, state: BlockState) -> Iterator[tuple[ChainStep, float]]:
        size = self.blocks.bytes(state)
        for dim, stay, tail in self._tails(state):
            step = ChainStep(ALL_GATHER, state, state.cut({dim: stay}), tail, dim)
            yield step, size * (self.blocks.parts(tail) - 1)

    def _exchanged_dims(self, state: BlockState) -> Iterator[tuple[ChainStep, float]]:
        for dim, stay, tail in self._tails(state):
            count = self.blocks.parts(tail)
            for to, atoms in enumerate(state.dims):
                for order in itertools.permutations(tail) if to != dim else ():
                    finer = atoms + order
                    if self.blocks.nested(to, atoms, finer, state.grain(to)):
                        after = state.cut({dim: stay, to: finer})
                        size = padded(self.blocks, state, to, finer, count)
                        yield (
                            ChainStep(ALL_TO_ALL, state, after, tail, dim, to),
                            size - size / count,
                        )

    def _reductions(self, state: BlockState) -> Iterator[tuple[ChainStep, float]]:
        folded = self.blocks.folded(state, self.target)
        for length in range(1, len(folded) + 1):
            for group in itertools.combinations(folded, length):
                count = self.blocks.parts(group)
                left = tuple(atom for atom in state.pending if atom not in group)
                yield self._all_reduce(state, group)
                for (to, atoms), order in itertools.product(
                    enumerate(state.dims), itertools.permutations(group)
                ):
                    finer = atoms + order
                    if self.blocks.nested(to, atoms, finer, state.grain(to)):
                        after = state.cut({to: finer}, left)
                        size = padded(self.blocks, state, to, finer, count)
                        step = ChainStep(REDUCE_SCATTER, state, after, order, None, to)
                        yield step, size - size / count

    def _all_reduce(self, state: BlockState, group: Numbers) -> tuple[ChainStep, float]:
        left = tuple(atom for atom in state.pending if atom not in group)
        size, count = self.blocks.bytes(state), self.blocks.parts(group)
        step = ChainStep(ALL_REDUCE, state, state.cut({}, left), group)
        return step, 2 * (size - size / count)

    def _permutes(self, state: BlockState, budget: float) -> Iterator[tuple[ChainStep, float]]:
        size = self.blocks.bytes(state)
        if seconds(self.least, 1, size / self.blocks.devices) > budget:
            return
        kept = [atoms[:n] for atoms, n in zip(state.dims, self.fixed, strict=True)]
        pool = [atom for atom in self.movable if atom not in state.pending]
        parts = [
            self.blocks.parts(atoms[n:]) for atoms, n in zip(state.dims, self.fixed, strict=True)
        ]
        ways = self._ways(0, kept, parts, pool)
        for dims in itertools.islice(ways, MAXIMUM_PERMUTES):
            if dims == state.dims:
                continue
            after = state._replace(dims=dims)
            moving = int(self.blocks.moving(state, after).sum())
            group = _different(state, after)
            yield ChainStep(PERMUTE, state, after, group), size * moving / self.blocks.devices

    def _ways(
        self, dim: int, kept: list[Numbers], parts: list[int], pool: list[int]
    ) -> Iterator[tuple[Numbers, ...]]:
        """All lists of atoms of the pool that cut each dim further, into that many parts; those
        that have the target's atoms in their places first."""
        if dim == len(kept):
            yield ()
            return
        for atoms in self._fillings(dim, kept[dim], parts[dim], pool):
            rest = [atom for atom in pool if atom not in atoms]
            for others in self._ways(dim + 1, kept, parts, rest):
                yield (atoms, *others)

    def _fillings(self, dim: int, atoms: Numbers, parts: int, pool: list[int]) -> Iterator[Numbers]:
        if parts == 1:
            yield atoms
            return
        wanted = self.target.dims[dim][len(atoms) : len(atoms) + 1]
        for atom in sorted(pool, key=lambda atom: atom not in wanted):
            if parts % self.problem.sizes[atom] == 0:
                rest = [other for other in pool if other != atom]
                more = (*atoms, atom)
                yield from self._fillings(dim, more, parts // self.problem.sizes[atom], rest)

    def _exchange(self, state: BlockState) -> Iterator[tuple[ChainStep, float]]:
        """The rest of the way at once, unless the values to fold need more room than the ends."""
        blocks = self.blocks
        values = blocks.parts(blocks.folded(state, self.target))
        if state == self.target or values * blocks.bytes(self.target) > self.largest:
            return
        size = float(blocks.missing(state, self.target).mean())
        messages = float(blocks.messages(state, self.target).max())
        step = ChainStep(EXCHANGE, state, self.target, _different(state, self.target))
        yield step, seconds(self.reached, messages, size) if size else 0.0


def peak(blocks: TensorBlocks, step: ChainStep) -> int:
    """Bytes of a device's blocks before and after a move, which are there at one time; where it
    folds, first the values to fold beside the block before, then beside their result."""
    before, after = blocks.bytes(step.before), blocks.bytes(step.after)
    folded = blocks.folded(step.before, step.after) if step.kind == EXCHANGE else ()
    values = blocks.parts(folded) * after
    return max(before + values, values + after) if folded else before + after


def padded(blocks: TensorBlocks, state: BlockState, to: int, finer: Numbers, count: int) -> int:
    """Bytes of a block whose dim `to` is made to fall into `count` blocks of `finer`."""
    dims = list(blocks.local(state))
    dims[to] = blocks.block(to, finer, state.grain(to)) * count
    return int(np.prod(dims, dtype=np.int64)) * blocks.itemsize


def _different(one: BlockState, other: BlockState) -> Numbers:
    """The atoms that the two states use in different ways, ascending."""
    found: set[int] = set(one.pending) ^ set(other.pending)
    for dim, (left, right) in enumerate(zip(one.dims, other.dims, strict=True)):
        start = len(one.alike(other, dim))
        found.update(left[start:], right[start:])
    return tuple(sorted(found))
