"""Moves between kernels for the sake of memory, where most of it is needed.

Kernels that became one may need more memory than they did apart: what they read lives together, and
fewer results may lie where an operand does. Or less: what passes between them is not stored. So
moves that were made for their time are taken back, and others are made, as long as this is worth
it: a part of all memory is worth as much as that part of all time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any, NamedTuple

from ...hlo.deciding import largest
from ...hlo.graph import Region, Value
from ..peak import Peak, bytes_beside
from .nodes import KernelNode, Nodes, Rebuilt

# Of the peak: steps that need so much are changed together, for one that stays keeps the peak up.
_NEAR = (0.999, 0.97, 0.9)
_LITTLE = 0.001  # of all memory: less is worth nothing
_SLOWER = 1.1  # than both apart: what one kernel may be that is made for memory
_SLOWEST = 1.02  # than before: what all nodes together may be


class _SpareState(NamedTuple):
    """A region of certain nodes, what it needs, and the seconds that all nodes take."""

    built: Rebuilt
    need: Peak
    time: float


_Concerned = Callable[[_SpareState, float], Iterable[Any]]
_Change = Callable[[_SpareState, Set[Any]], bool]


def spared(
    nodes: Nodes, needs: Callable[[Region], Peak | None], weights: int | None = None
) -> Region:
    """The region of these nodes, with more or fewer moves as long as that is worth it.

    needs: the peak of a region; None where that is not known. weights: as for `bytes_beside`.
    """
    return _Spare(nodes, needs, weights).run()


class _Spare:
    def __init__(
        self, nodes: Nodes, needs: Callable[[Region], Peak | None], weights: int | None
    ) -> None:
        self.nodes, self.needs = nodes, needs
        self.most = _SLOWEST * nodes.time
        self.beside = bytes_beside(nodes.region, weights)

    def run(self) -> Region:
        built = self.nodes.rebuild()
        alone = len(self.nodes.all) < 2 and not built.kernels
        need = None if alone else self.needs(built.region)
        if need is None:
            return built.region
        state = _SpareState(built, need, self.nodes.time)
        while (better := self.better(state)) is not None:
            state = better
        return state.built.region

    def better(self, state: _SpareState) -> _SpareState | None:
        """What the first worthwhile change gives; None if there is none, and nothing is changed."""
        ways: list[tuple[_Concerned, _Change]] = [
            (self.running, self.taken_back),
            (self.living, self.made),
        ]
        for concerned, change in ways:
            tried: set[frozenset[Any]] = set()
            for near in _NEAR:
                chosen = frozenset(concerned(state, near * state.need.bytes))
                if chosen in tried:
                    continue
                tried.add(chosen)
                saved = self.nodes.state()
                if change(state, chosen):
                    built = self.nodes.rebuild()
                    need = self.needs(built.region)
                    if need is not None:
                        found = _SpareState(built, need, self.nodes.time)
                        if self.worth(state, found):
                            return found
                self.nodes.restore(saved)
        return None

    def worth(self, before: _SpareState, after: _SpareState) -> bool:
        """Whether memory is spared, and as large a part of it as of the time is lost."""
        old, new = self.beside + before.need.bytes, self.beside + after.need.bytes
        if new > (1 - _LITTLE) * old or after.time > self.most:
            return False
        return after.time * new < before.time * old

    def running(self, state: _SpareState, least: float) -> Iterable[KernelNode]:
        """The nodes whose kernels run while so many bytes live."""
        needs = state.need.needs
        return (node for op, node in state.built.kernels.items() if needs.get(op, 0) >= least)

    def taken_back(self, state: _SpareState, chosen: Set[KernelNode]) -> bool:
        """Takes back the last move of these nodes; whether there are any."""
        for node in state.built.kernels.values():
            if node in chosen:
                self.nodes.separate(node)
        return bool(chosen)

    def living(self, state: _SpareState, least: float) -> Iterable[Value]:
        """The values that live while so many bytes do."""
        return state.need.living(least)

    def made(self, state: _SpareState, chosen: Set[Value]) -> bool:
        """Makes moves after which these values are not stored, as long as there are any, those of
        the most bytes first; whether there were. What a kernel reads that is made so lives there
        then."""
        there = {old for old, new in state.built.values.items() if new in chosen} | chosen
        moving, changed = True, False
        while moving:
            moving = False
            for _, producer, consumer in self.moves(there):
                if self.nodes.alive(producer) and self.nodes.alive(consumer):
                    merged = self.nodes.merged(producer, consumer)
                    if merged and merged.time < _SLOWER * (producer.time + consumer.time):
                        self.nodes.join(merged)
                        there |= merged.inputs
                        moving = changed = True
        return changed

    def moves(self, living: Set[Value]) -> list[tuple[int, KernelNode, KernelNode]]:
        """Bytes of living values that only one node reads, the most first; who makes and reads
        them."""
        found: list[tuple[int, KernelNode, KernelNode]] = []
        for consumer in self.nodes.all:
            for producer in self.nodes.producers(consumer):
                inside = {*producer.members, *consumer.members}
                spared = sum(
                    largest(value.tensor.bytes)
                    for value in self.nodes.between(producer, consumer)
                    if value in living and not self.nodes.leaves(value, inside)
                )
                if spared:
                    found.append((spared, producer, consumer))
        return sorted(found, key=lambda move: -move[0])
