"""The order of a region's operations: several small strategies, the lowest simulated peak wins."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..hlo.graph import Module, Op, Region, Value
from ..hlo.types import TensorType
from ..hlo.verify import FUSED, Level
from .schedule import ALIASING

EXTERNAL = frozenset({"constant", "weight"})  # no bytes of the arena


@dataclass(frozen=True)
class Order:
    """FUSED -> FUSED: every region of control flow, and the entry, in its best order."""

    name: ClassVar[str] = "order"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        functions = {
            name: function.with_body(order_region(function.body))
            for name, function in module.functions.items()
        }
        if all(functions[name] is old for name, old in module.functions.items()):
            return module
        return module.with_functions(functions)


def order_region(region: Region) -> Region:
    """The region with its operations in the order of the lowest peak; itself if that is its own."""
    graph = _Graph(region)
    best, lowest = list(region.ops), graph.peak(region.ops)
    for strategy in STRATEGIES:
        ops = strategy(graph)
        peak = graph.peak(ops)
        if peak < lowest:
            best, lowest = ops, peak
    if best == list(region.ops):
        return region
    return Region(region.arguments, best, region.results)


class _Graph:
    """What orders are made and judged by: who needs whom, and how many bytes each value holds."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.root: dict[Value, Value] = {}
        for op in region.ops:
            if op.name in ALIASING:
                for operand, result in zip(op.operands, op.results, strict=True):
                    self.root[result] = self.root.get(operand, operand)
        self.reads = {op: self.inputs(op) for op in region.ops}
        self.makes = {
            op: [value for value in op.results if value not in self.root and op.name not in EXTERNAL]
            for op in region.ops
        }
        self.made = {value for values in self.makes.values() for value in values}
        self.kept = {self.root.get(value, value) for value in region.results}
        self.users: dict[Value, set[Op]] = {}
        for op, values in self.reads.items():
            for value in values:
                self.users.setdefault(value, set()).add(op)

    def inputs(self, op: Op) -> list[Value]:
        found = [*op.operands, *(v for body in op.regions for v in body.captures())]
        return list(dict.fromkeys(self.root.get(value, value) for value in found))

    def bytes(self, value: Value) -> int:
        return value.type.bytes if isinstance(value.type, TensorType) else 0

    def peak(self, ops: Sequence[Op]) -> int:
        """Highest sum of live bytes where each value dies after its last reader."""
        left = {value: len(self.users.get(value, ())) for value in self.made}
        live = peak = 0
        for op in ops:
            live += sum(self.bytes(value) for value in self.makes[op])
            peak = max(peak, live)
            for value in (*self.reads[op], *self.makes[op]):
                if value not in self.made:
                    continue
                if value in self.reads[op]:
                    left[value] -= 1
                if left[value] == 0 and value not in self.kept:
                    live -= self.bytes(value)
        return peak


def list_order(graph: _Graph) -> list[Op]:
    """Of all ready operations, the one that frees most and makes least comes first."""
    position = {op: number for number, op in enumerate(graph.region.ops)}
    source = {value: op for op in graph.region.ops for value in op.results}
    # Aliases count as readers of what they rename, so that order among them is kept.
    waits: dict[Op, set[Op]] = {op: set() for op in position}
    for op in position:
        needed = [*op.operands, *(v for body in op.regions for v in body.captures())]
        waits[op] = {source[value] for value in needed if value in source}
    effects = [op for op in position if op.definition.effects]
    for before, after in zip(effects, effects[1:], strict=False):
        waits[after].add(before)
    followers: dict[Op, list[Op]] = {op: [] for op in position}
    for op, others in waits.items():
        for other in others:
            followers[other].append(op)
    missing = {op: len(others) for op, others in waits.items()}
    left = {value: len(graph.users.get(value, ())) for value in graph.made}

    def score(op: Op) -> int:
        freed = sum(
            graph.bytes(value)
            for value in graph.reads[op]
            if value in graph.made and left[value] == 1 and value not in graph.kept
        )
        return sum(graph.bytes(value) for value in graph.makes[op]) - freed

    heap = [(score(op), position[op], op) for op, count in missing.items() if count == 0]
    heapq.heapify(heap)
    done: list[Op] = []
    placed: set[Op] = set()
    while heap:
        old, number, op = heapq.heappop(heap)
        if op in placed:
            continue
        now = score(op)
        if now < old:
            heapq.heappush(heap, (now, number, op))
            continue
        placed.add(op)
        done.append(op)
        for value in graph.reads[op]:
            if value in left:
                left[value] -= 1
                if left[value] == 1:
                    # Its last reader now frees it: let the queue see the better score.
                    for user in graph.users[value]:
                        if user not in placed and missing[user] == 0:
                            heapq.heappush(heap, (score(user), position[user], user))
        for follower in followers[op]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(heap, (score(follower), position[follower], follower))
    return done


STRATEGIES: tuple[Callable[[_Graph], list[Op]], ...] = (list_order,)
