"""order: of several small strategies for a region's operations, the lowest simulated peak wins."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...hlo.graph import Module, Op, Region, Value
from ...hlo.types import TensorType
from ...hlo.verify import FUSED, Level
from ..regions import aliases, map_bodies

EXTERNAL = frozenset({"constant", "weight"})  # no bytes of the arena


@dataclass(frozen=True)
class Order:
    """FUSED -> FUSED: every region of control flow, and the entry, in its best order."""

    name: ClassVar[str] = "order"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        functions = {}
        for name, function in module.functions.items():
            pairs = donations(module) if name == module.entry else []
            functions[name] = function.with_body(order_region(function.body, pairs))
        if all(functions[name] is old for name, old in module.functions.items()):
            return module
        return module.with_functions(functions)


Pairs = Sequence[tuple[int, int]]  # (argument, result that takes over its memory)


def donations(module: Module) -> list[tuple[int, int]]:
    """The arguments that a caller gives up, with the results that replace them."""
    if module.signature is None:
        return []
    return [
        (index, argument.aliases)
        for index, argument in enumerate(module.signature.arguments)
        if argument.donated and argument.aliases is not None
    ]


def order_region(region: Region, pairs: Pairs = ()) -> Region:
    """The region, and the bodies of its control flow, in the order of the lowest peak; itself if
    that is its own order."""
    region = map_bodies(region, _order_body)
    graph = _Graph(region)
    best, lowest = list(region.ops), graph.peak(region.ops)
    for strategy in STRATEGIES:
        ops = strategy(graph)
        peak = graph.peak(ops)
        if peak < lowest:
            best, lowest = ops, peak
    best = readers_first(graph, best, pairs)
    if best == list(region.ops):
        return region
    return Region(region.arguments, best, region.results)


def _order_body(op: Op, body: Region) -> Region:
    """A loop's body replaces each carried value by the result of the same number."""
    carries = op.name == "while" and len(body.results) == len(op.operands)
    return order_region(body, [(i, i) for i in range(len(op.operands))] if carries else ())


class _Graph:
    """What orders are made and judged by: who needs whom, and how many bytes each value holds."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.root: dict[Value, Value] = {}
        for op in region.ops:
            if aliases(op):
                for operand, result in zip(op.operands, op.results, strict=True):
                    self.root[result] = self.root.get(operand, operand)
        self.reads = {op: self.inputs(op) for op in region.ops}
        self.makes = {
            op: [
                value for value in op.results if value not in self.root and op.name not in EXTERNAL
            ]
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
        sized = isinstance(value.type, TensorType) and value.type.is_static
        return value.type.bytes if sized else 0  # pyright: ignore[reportAttributeAccessIssue]

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
        waits[op] = {source[value] for value in _needed(op) if value in source}
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


def readers_first(graph: _Graph, ops: list[Op], pairs: Pairs) -> list[Op]:
    """The same order, but who reads an argument comes before what replaces it, where that can be:
    then the replacement is computed in the argument's own memory."""
    position = {op: number for number, op in enumerate(ops)}
    source = {value: op for op in ops for value in op.results}
    waits: dict[Op, set[Op]] = {op: {source[v] for v in _needed(op) if v in source} for op in ops}
    region = graph.region
    for argument_index, result_index in pairs:
        argument = region.arguments[argument_index]
        result = region.results[result_index]
        maker = source.get(graph.root.get(result, result))
        if maker is None:
            continue
        for reader in graph.users.get(argument, ()):
            if reader is maker or position[reader] < position[maker]:
                continue
            if not _reaches(maker, reader, waits):
                waits[maker].add(reader)
    return _topological(ops, position, waits)


def _needed(op: Op) -> list[Value]:
    return [*op.operands, *(value for body in op.regions for value in body.captures())]


def _reaches(start: Op, end: Op, waits: dict[Op, set[Op]]) -> bool:
    """Whether `end` has to come after `start`."""
    stack, seen = [end], {end}
    while stack:
        op = stack.pop()
        if op is start:
            return True
        for other in waits[op] - seen:
            seen.add(other)
            stack.append(other)
    return False


def _topological(ops: Sequence[Op], position: dict[Op, int], waits: dict[Op, set[Op]]) -> list[Op]:
    """Everything after what it waits for, else as it was."""
    done: list[Op] = []
    placed: set[Op] = set()
    for first in ops:
        stack = [first]
        while stack:
            op = stack[-1]
            if op in placed:
                stack.pop()
                continue
            missing = sorted((o for o in waits[op] if o not in placed), key=position.__getitem__)
            if missing:
                stack += missing[::-1]
            else:
                placed.add(op)
                done.append(op)
                stack.pop()
    return done


STRATEGIES: tuple[Callable[[_Graph], list[Op]], ...] = (list_order,)
