"""Kernels of a region as nodes of a graph that may become one: what passes between two, whether
they may be one, and the region with a tile function for each node of several kernels."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from ...hlo.errors import CompilerBug
from ...hlo.graph import Op, Region, Value, arguments
from ...hlo.regions import in_order_of_demand, rename
from ...hlo.text import canonical_op
from ..cost.estimate import Tiling
from .build import TileGroup, make_group

MOST_OPERATIONS = 120  # of one group: bounds the size of one function


Wiring = tuple[Any, ...]  # what decides the group that kernels become, see `Nodes.wiring`


class KnownGroups:
    """Groups that kernels become, each once: in all regions of a program, and for all likely calls
    that it is lowered for. texts: a number for each kernel's canonical text, which wirings name."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.of_wirings: dict[Wiring, TileGroup | None] = {}
        self.of_texts: dict[str, TileGroup] = {}

    def connected(
        self, wiring: Wiring, flatten: Callable[[], TileGroup | None]
    ) -> TileGroup | None:
        """The group of a wiring: what `flatten()` gives, or what it gave for an equal one."""
        if wiring not in self.of_wirings:
            self.of_wirings[wiring] = flatten()
        return self.of_wirings[wiring]

    def equal(self, group: TileGroup) -> TileGroup:
        """The first group that computes the same, of which more may be known."""
        return self.of_texts.setdefault(group.text, group)


class TilingPlanner(Protocol):
    """What judges groups and writes them."""

    @property
    def connected(self) -> dict[Wiring, Tiling | None]:
        """The plans of the groups that were judged already, by their wiring."""
        ...

    @property
    def groups(self) -> KnownGroups: ...

    def plan(self, group: TileGroup) -> Tiling | None: ...

    def alone(self, group: TileGroup) -> Tiling | None: ...

    def kernel(self, group: TileGroup, operands: Sequence[Value], name: str) -> Op | None: ...


@dataclass(eq=False)
class KernelNode:
    """Kernels that are one: `members` in the order of the region."""

    members: list[Op]
    plan: Tiling | None
    sources: list[Op]  # what computes their inputs, behind reshapes
    inputs: frozenset[Value]  # behind reshapes as well
    dims: tuple[int, ...]  # of what leaves it
    parts: tuple[KernelNode, ...] = ()  # the two that the last move made one

    @property
    def time(self) -> float:
        if self.plan is None:
            raise CompilerBug("a kernel without an estimate takes part in connecting")
        return self.plan.time


class Rebuilt(NamedTuple):
    """A region with a kernel for each node; the nodes of several operations by their kernels, and
    the values that stand for those of the region before."""

    region: Region
    kernels: dict[Op, KernelNode]
    values: dict[Value, Value]


class Nodes:
    """The nodes of one region. `homes`: the node that an operation belongs to."""

    def __init__(self, planner: TilingPlanner, region: Region) -> None:
        self.planner, self.region = planner, region
        self.position = {op: number for number, op in enumerate(region.ops)}
        self.homes: dict[Op, KernelNode] = {}
        self.all: list[KernelNode] = []
        self.numbers: dict[Op, int] = {}
        self.windowed: dict[Value, Value] = {}  # the tensor that a group's input is a window of
        # Groups of nodes that are kernels, with the values that leave them.
        self.flat: dict[KernelNode, tuple[TileGroup, list[Value]]] = {}

    def add(self, op: Op) -> None:
        """A kernel becomes a node, if it has a tiling."""
        node = self.node([op])
        if node is not None:
            self.homes[op] = node
            self.all.append(node)

    def join(self, merged: KernelNode) -> None:
        """The parts of a node become that node."""
        for op in merged.members:
            self.homes[op] = merged
        self.all = [node for node in self.all if node not in merged.parts]
        self.all.append(merged)

    def separate(self, merged: KernelNode) -> None:
        """A node becomes its parts again."""
        for op in merged.members:
            del self.homes[op]
        for part in merged.parts:
            self.homes.update(dict.fromkeys(part.members, part))
        self.all = [node for node in self.all if node is not merged]
        self.all += merged.parts

    def state(self) -> tuple[dict[Op, KernelNode], list[KernelNode]]:
        """What `restore` needs to go back to the nodes that there are now."""
        return dict(self.homes), list(self.all)

    def restore(self, state: tuple[dict[Op, KernelNode], list[KernelNode]]) -> None:
        self.homes, self.all = dict(state[0]), list(state[1])

    def alive(self, node: KernelNode) -> bool:
        """Whether the node has not become a part of another one."""
        return self.homes.get(node.members[-1]) is node

    @property
    def time(self) -> float:
        """Predicted seconds of all nodes."""
        return sum(node.time for node in self.all)

    # What is between nodes.

    def between(self, producer: KernelNode, consumer: KernelNode) -> set[Value]:
        """The values that the consumer reads of what the producer makes."""
        made = {result for op in producer.members for result in op.results}
        read = {self.behind_reshapes(value) for op in consumer.members for value in op.operands}
        return read & made

    def producers(self, consumer: KernelNode) -> list[KernelNode]:
        """Other nodes that compute what this one reads, also behind reshapes."""
        found: dict[KernelNode, None] = {}
        for source in consumer.sources:
            node = self.homes.get(source)
            if node is not None and node is not consumer:
                found[node] = None
        return list(found)

    def leaves(self, value: Value, members: Container[Op]) -> bool:
        """Whether somebody outside reads a value, also behind reshapes."""
        for user, _ in self.region.uses.get(value, ()):
            if user is not None and user.name == "reshape" and user in self.position:
                if self.leaves(user.result, members):
                    return True
            elif user is None or user not in members:
                return True
        return False

    def behind_reshapes(self, value: Value) -> Value:
        while value.op is not None and value.op in self.position and value.op.name == "reshape":
            value = value.op.operands[0]
        return value

    # Two as one.

    def merged(self, producer: KernelNode, consumer: KernelNode) -> KernelNode | None:
        """Both as one node, if that is legal and has a tiling."""
        members = sorted({*producer.members, *consumer.members}, key=self.position.__getitem__)
        between = self.reshapes(members)
        everything = sorted({*members, *between}, key=self.position.__getitem__)
        if self.reaches_around(set(everything)):
            return None
        node = self.node(everything)
        return None if node is None else replace(node, parts=(producer, consumer))

    def node(self, members: list[Op]) -> KernelNode | None:
        """Kernels as one, if they have a tiling; those that are connected alike are judged once."""
        wiring, inputs = self.wiring(members)
        known = self.planner.connected
        if wiring not in known:
            group = self.planner.groups.connected(wiring, lambda: self.flatten(members))
            fits = group is not None and (len(members) == 1 or len(group.ops) <= MOST_OPERATIONS)
            plan = self.planner.plan(group) if group is not None and fits else None
            if plan is None and group is not None and len(members) == 1:
                plan = self.planner.alone(group)
            known[wiring] = plan
        plan = known[wiring]
        if plan is None:
            return None
        read = dict.fromkeys(map(self.behind_reshapes, inputs))
        sources = dict.fromkeys(value.op for value in read if value.op is not None)
        return KernelNode(
            members, plan, list(sources), frozenset(read), members[-1].results[0].dims
        )

    def wiring(self, members: Sequence[Op]) -> tuple[Wiring, list[Value]]:
        """What decides the group that members become, and the values that they take from outside:
        which kernel each is, what passes between them, and what leaves."""
        chosen = set(members)
        numbers: dict[Value, int] = {}
        parts: list[Any] = []
        for op in members:
            operands = [numbers.setdefault(value, len(numbers)) for value in op.operands]
            left = []
            for result in op.results:
                numbers[result] = len(numbers)
                users = self.region.uses.get(result, ())
                left.append(any(user not in chosen for user, _ in users))
            parts.append((self.kernel_number(op), *operands, *left))
        made = {result for op in members for result in op.results}
        return tuple(parts), [value for value in numbers if value not in made]

    def kernel_number(self, op: Op) -> int:
        """Equal for operations that compute the same."""
        number = self.numbers.get(op)
        if number is None:
            texts = self.planner.groups.texts
            number = self.numbers[op] = texts.setdefault(canonical_op(op), len(texts))
        return number

    def reshapes(self, members: Sequence[Op]) -> list[Op]:
        """Reshapes between members: they belong to the group."""
        inside = {result for op in members for result in op.results}
        found: list[Op] = []
        for op in members:
            for value in op.operands:
                chain: list[Op] = []
                while value.op in self.position and value.op.name == "reshape":  # type: ignore
                    chain.append(value.op)  # type: ignore[arg-type]
                    value = value.op.operands[0]  # type: ignore[union-attr]
                if value in inside:
                    found += chain
        return found

    def reaches_around(self, members: set[Op]) -> bool:
        """Whether something outside stands between two members; a connected group is one thing."""
        last = max(self.position[op] for op in members)
        stack = self.readers(members, members)
        seen: set[Op] = set()
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            node = self.homes.get(op)
            unit = node.members if node is not None else [op]
            seen.update(unit)
            if min(self.position[one] for one in unit) > last:
                continue
            readers = self.readers(unit, seen)
            if any(reader in members for reader in readers):
                return True
            stack += readers
        return False

    def readers(self, ops: Iterable[Op], known: Container[Op]) -> list[Op]:
        """Operations of the region that read what these compute, but for those already known."""
        return [
            user
            for op in ops
            for result in op.results
            for user, _ in self.region.uses.get(result, ())
            if user is not None and user not in known
        ]

    def flatten(self, members: Sequence[Op]) -> TileGroup | None:
        """All operations inside the members, as one group; None where too much leaves it. Windows
        of a tensor are inputs of their own: a dim may be walked in one and not in another."""
        chosen = set(members)
        inside = {result for op in members for result in op.results}
        mapping: dict[Value, Value] = {}
        inputs: dict[Value, None] = {}
        ops: list[Op] = []
        windows: dict[tuple[Any, ...], Value] = {}
        for member in members:
            for value in member.operands:
                if value not in inside:
                    inputs[value] = None
            if member.name == "reshape":
                new = member.with_operands([mapping.get(v, v) for v in member.operands])
                ops.append(new)
                mapping[member.result] = new.result
                continue
            (body,) = member.regions
            local = {
                argument: mapping.get(value, value)
                for argument, value in zip(body.arguments, member.operands, strict=True)
            }
            for op in body.ops:
                operands = [local[value] for value in op.operands]
                if op.name == "slice" and operands[0] in inputs:
                    window = operands[0], op.start_indices, op.limit_indices, op.strides
                    if window not in windows:
                        (windows[window],) = arguments([operands[0].type])
                    operands = [windows[window]]
                new = Op(
                    op.definition, operands, op.attributes, op.regions, op.result_types, op.origin
                )
                local.update(zip(op.results, new.results, strict=True))
                ops.append(new)
            for outer, result in zip(member.results, body.results, strict=True):
                mapping[outer] = local[result]
        roots: list[Value] = []
        for op in members:
            for result in op.results:
                users = self.region.uses.get(result, ())
                if any(user not in chosen for user, _ in users):
                    roots.append(mapping[result])
        if not roots or any(root in inputs for root in roots):
            return None
        self.windowed.update((value, window[0]) for window, value in windows.items())
        self.leaving = [
            result
            for op in members
            for result in op.results
            if any(user not in chosen for user, _ in self.region.uses.get(result, ()))
        ]
        needed, read = in_order_of_demand(set(ops), roots)
        return make_group(needed, read, roots)

    # The new region.

    def rebuild(self) -> Rebuilt:
        """The region with a kernel for each node."""
        connected = [node for node in self.all if len(node.members) > 1]
        kernels: dict[Op, KernelNode] = {}
        mapping: dict[Value, Value] = {}
        if not connected:
            return Rebuilt(self.region, kernels, mapping)
        home = {op: node for node in connected for op in node.members}
        ops: list[Op] = []
        for unit in self.sorted(home):
            if isinstance(unit, KernelNode):
                self.emit(unit, mapping, ops)
                kernels[ops[-1]] = unit
            else:
                ops.append(self.copied(unit, mapping))
        results = [mapping.get(v, v) for v in self.region.results]
        return Rebuilt(Region(self.region.arguments, ops, results), kernels, mapping)

    def sorted(self, home: Mapping[Op, KernelNode]) -> list[KernelNode | Op]:
        """Connected nodes and all other operations, each after what it reads; else as they stood.

        A node stands where its last member stood, or later than what now comes before it."""
        waiting: dict[KernelNode | Op, int] = {}
        readers: dict[KernelNode | Op, list[KernelNode | Op]] = {}
        place: dict[KernelNode | Op, int] = {}
        for number, op in enumerate(self.region.ops):
            unit = home.get(op, op)
            place[unit] = number
            waiting.setdefault(unit, 0)
            reads = [*op.operands, *(v for body in op.regions for v in body.captures())]
            sources = dict.fromkeys(v.op for v in reads if v.op in self.position)
            for source in dict.fromkeys(home.get(s, s) for s in sources if s is not None):
                if source is not unit:
                    readers.setdefault(source, []).append(unit)
                    waiting[unit] += 1
        ready = [(place[unit], unit) for unit, count in waiting.items() if not count]
        heapq.heapify(ready)
        found: list[KernelNode | Op] = []
        while ready:
            _, unit = heapq.heappop(ready)
            found.append(unit)
            for reader in readers.get(unit, ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, (place[reader], reader))
        if len(found) != len(waiting):
            raise CompilerBug("connected kernels wait for each other")
        return found

    def copied(self, op: Op, mapping: dict[Value, Value]) -> Op:
        nested = [rename(body, mapping) for body in op.regions]
        new = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
        mapping.update(zip(op.results, new.results, strict=True))
        return new

    def emit(self, node: KernelNode, mapping: dict[Value, Value], ops: list[Op]) -> None:
        """The node's kernel, or its members as they were where no tiling can be written."""
        if node not in self.flat:
            flat = self.flatten(node.members)
            if flat is None:
                raise CompilerBug("a connected group cannot be flattened again")
            self.flat[node] = flat, list(self.leaving)
        group, leaving = self.flat[node]
        read = [self.windowed.get(value, value) for value in group.inputs]
        operands = [mapping.get(value, value) for value in read]
        kernel = self.planner.kernel(group, operands, "group")
        if kernel is None:
            ops.extend(self.copied(op, mapping) for op in node.members)
            return
        ops.append(kernel)
        mapping.update(zip(leaving, kernel.results, strict=True))
