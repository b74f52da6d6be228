"""connect: which kernels become one, because what passes between them is better kept in scratch.

Every data edge between two kernels starts at the place LAUNCH: the value is stored by one and read
by the other. A move lowers an edge to SCRATCH: both become one tile function in which the value
exists one tile at a time. Moves stand in a queue by predicted gain; the best is made, its
neighbours are judged anew, until none gains anything. No kernel is known here by what it is about:
a group is whatever has a tile function (`write.writable`) and is predicted to be faster.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ...hlo.errors import CompilerBug
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.text import canonical_op
from ...hlo.verify import FUSED, Level
from ..fusable import CONTRACTIONS
from ..machine import Machine
from ..orders.graph import Role
from ..overwriting import hinders_of
from ..peak import Peak, bytes_beside, peak_of
from ..regions import in_order_of_demand, map_bodies
from ..tiles.blocks import BlockCounter, LargestGrain
from ..tiles.build import Group, build_kernel, make_group
from ..tiles.cost import USABLE, level_of, rates
from ..tiles.estimate import Plan, plans
from ..tiles.masks import without_masks
from ..tiles.streaming import Stream, streams
from ..tiles.turns import without_idle_turns
from ..tiles.write import Unwritable, writable
from ..tuning import Choices
from .order import donations
from .require_static import is_static

MOST_OPERATIONS = 120  # of one group: bounds the size of one function
# A connected group must be predicted to be faster by this factor, where what is not stored would
# have stayed in a cache. Where it would not, or where it decides how much memory is needed, the
# group may even be a little slower: memory that a program does not need is worth as much.
MARGIN, MARGIN_FOR_MEMORY = 1.08, 0.97
TRIES = 4  # tilings that are asked about
_NEAR = (0.999, 0.97, 0.9)  # of the peak, where moves are taken back; the nearest is asked first
_NOISE = 0.01  # of a predicted time
_KINDS = frozenset({"loop", "rows", "contract"})


@dataclass(eq=False)
class _Node:
    """Kernels that are one: `members` in the order of the region."""

    members: list[Op]
    plan: Plan | None
    sources: list[Op]  # what computes their inputs, behind reshapes
    inputs: frozenset[Value]  # behind reshapes as well
    dims: tuple[int, ...]  # of what leaves it
    parts: tuple[_Node, ...] = ()  # the two that the last move made one

    @property
    def time(self) -> float:
        if self.plan is None:
            raise CompilerBug("a kernel without an estimate takes part in connecting")
        return self.plan.time


@dataclass(frozen=True)
class Connect:
    """FUSED -> FUSED. `walk`: whether sums may be formed in another order (streaming). `choices`:
    what chooses among the best tilings; None takes the best predicted. `accepts`: whether a tile
    function has a kernel; None: all of them have. `suits`: whether a tile function's products go
    to the units of the largest grain, where a machine has several. `finite`: whether tensors may be
    taken to hold finite numbers, so that windows which are masked wholly are not walked. `in_tiles`:
    whether the target's tile functions write results where operands lie."""

    machine: Machine
    walk: bool = True
    choices: Choices | None = None
    accepts: Callable[[Op], bool] | None = None
    suits: Callable[[Op], bool] | None = None
    finite: bool = False
    in_tiles: bool = False
    memo: dict[str, tuple[Group, list[Plan]]] = field(default_factory=dict, compare=False)
    made: dict[str, Op | None] = field(default_factory=dict, compare=False)
    connected: dict[tuple[Any, ...], Plan | None] = field(default_factory=dict, compare=False)
    texts: dict[str, int] = field(default_factory=dict, compare=False)
    name: ClassVar[str] = "connect"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        hinders, static = hinders_of(self.in_tiles), is_static(module)

        def needs(region: Region, role: Role) -> Peak | None:
            """The peak of a region of this module; None where sizes are not known."""
            pairs = donations(module) if role == "entry" else ()
            return peak_of(region, pairs, hinders, role=role) if static else None

        def change(region: Region, role: Role) -> Region:
            inner = map_bodies(region, lambda op, body: change(body, "other"))
            return _Queue(self, inner, lambda one: needs(one, role)).run()

        entry = module.body
        return module.with_bodies(lambda one: change(one, "entry" if one is entry else "other"))

    def plan(self, group: Group) -> Plan | None:
        """The best tiling of a group; equal groups are judged once."""
        return next(iter(self.plans(group)), None)

    def plans(self, group: Group) -> list[Plan]:
        """The best tilings, fastest first; their streams may be those of an equal group."""
        key = canonical_op(_as_op(group))
        if key not in self.memo:
            self.memo[key] = group, self._plans(group)
        return self.memo[key][1]

    def considered(self) -> list[tuple[Group, Plan | None]]:
        """Every group that was judged so far, with its best tiling."""
        return [(group, next(iter(found), None)) for group, found in self.memo.values()]

    def _plans(self, group: Group) -> list[Plan]:
        dims = group.roots[0].dims
        if not dims or any(root.dims != dims for root in group.roots):
            return []
        if not all(map(writable, group.ops)):
            return []
        ways = self.ways(group)
        if self.machine.blocks is None:
            return plans(group, self.machine, ways)
        found = plans(group, self.machine, ways, counter=BlockCounter)
        return [*self.suited(group, ways, found), *found]

    def suited(
        self, group: Group, ways: Sequence[Stream | None], others: Sequence[Plan]
    ) -> list[Plan]:
        """The fastest tiling for the units of the largest grain, if it is faster than others."""
        if self.suits is None or not any(op.name in CONTRACTIONS for op in group.ops):
            return []
        best = others[0].time if others else math.inf
        for plan in plans(group, self.machine, ways, TRIES, LargestGrain):
            if plan.time >= best:
                break
            try:
                way = ways[plan.way]
                op = build_kernel(group, group.inputs, plan.sizes, "group", way, plan.step)
            except Unwritable:
                continue
            if self.suits(self.tidied(op)):
                return [plan]
        return []

    def tidied(self, op: Op) -> Op:
        """The tile function without what does nothing."""
        if self.machine.blocks is not None:
            op = without_masks(op)
        return without_idle_turns(op) if self.finite else op

    def ways(self, group: Group) -> list[Stream | None]:
        """The ways to walk a group; the first is not to."""
        return [None, *(streams(group.ops, group.roots) if self.walk else ())]

    def kernel(self, group: Group, operands: Sequence[Value], name: str) -> Op | None:
        """The tile function of the best tiling that can be written; equal groups share its body."""
        key = canonical_op(_as_op(group))
        if key not in self.made:
            self.made[key] = self._kernel(key, group, operands, name)
        op = self.made[key]
        if op is None:
            return None
        types = op.result_types
        return Op(op.definition, operands, op.attributes, op.regions, types, group.origin)

    def _kernel(self, key: str, group: Group, operands: Sequence[Value], name: str) -> Op | None:
        variants = self.variants(group, operands, name)
        if self.choices is None:
            return next((op for _, op in variants), None)
        every = list(variants)
        return self.choices.tiling(key, every) if every else None

    def variants(
        self, group: Group, operands: Sequence[Value], name: str
    ) -> Iterator[tuple[Plan, Op]]:
        """The best tilings that can be written, fastest first."""
        found = self.plans(group)
        ways = self.ways(group) if any(plan.way for plan in found) else [None]
        for plan in found:
            try:
                op = build_kernel(group, operands, plan.sizes, name, ways[plan.way], plan.step)
            except Unwritable:
                continue
            op = self.tidied(op)
            if self.accepts is None or self.accepts(op):
                yield plan, op


def _widens_weight(op: Op) -> bool:
    """Whether a product in a fusion reads a weight through a conversion: it widens the weight in
    registers, once, where a tile function would write the wide form to scratch for each tile."""
    (body,) = op.regions
    outer = dict(zip(body.arguments, op.operands, strict=True))
    for inner in body.ops:
        if inner.name not in CONTRACTIONS:
            continue
        for value in inner.operands:
            converted = False
            while value.op is not None and len(value.op.operands) == 1:
                converted |= value.op.name == "convert"
                value = value.op.operands[0]
            source = outer[value].op if value in outer else None
            if converted and source is not None and source.name == "weight":
                return True
    return False


def _as_op(group: Group) -> Op:
    """The group as one fusion, for its canonical text."""
    from ...hlo.build import make_op

    region = Region(*_copied(group))
    return make_op("fusion", group.inputs, {"kind": "group"}, (region,), check=False)


def _copied(group: Group) -> tuple[Sequence[Value], Sequence[Op], Sequence[Value]]:
    from ..regions import extract

    region = extract(group.ops, group.inputs, group.roots)
    return region.arguments, region.ops, region.results


# Minus the gain, the numbers of consumer and producer, both, and the node that they would become.
_Move = tuple[float, tuple[int, int], _Node, _Node, _Node]


class _Queue:
    """The moves of one region."""

    def __init__(
        self, settings: Connect, region: Region, needs: Callable[[Region], Peak | None]
    ) -> None:
        self.settings, self.region, self.needs = settings, region, needs
        self.position = {op: number for number, op in enumerate(region.ops)}
        self.homes: dict[Op, _Node] = {}
        self.numbers: dict[Op, int] = {}
        self.nodes: list[_Node] = []
        self.moves: list[_Move] = []
        self.order: dict[_Node, int] = {}
        self.known_readers: dict[Op, list[_Node]] = {}

    def run(self) -> Region:
        for op in self.region.ops:
            if op.name == "fusion" and op.kind in _KINDS and not _widens_weight(op):
                node = self.node([op])
                if node is not None:
                    self.homes[op] = node
                    self.nodes.append(node)
        self.peak = self.needs(self.region) if len(self.nodes) > 1 else None
        self.time = sum(node.time for node in self.nodes)
        self.beside = bytes_beside(self.region) if self.peak else 0
        for node in self.nodes:
            self.register(node)
        for node in self.nodes:
            self.propose(node)
        while self.moves:
            self.move(heapq.heappop(self.moves))
        return self.spared()

    # Moves.

    def register(self, node: _Node) -> None:
        """Tell what the node reads and which number it has; equal gains go to lower numbers."""
        self.order[node] = len(self.order)
        for source in node.sources:
            self.known_readers.setdefault(source, []).append(node)

    def propose(self, consumer: _Node) -> None:
        """Queue the moves of a node with those that it reads from, or reads the same as."""
        for producer in (*self.producers(consumer), *self.siblings(consumer)):
            self.queue(producer, consumer)

    def queue(self, producer: _Node, consumer: _Node) -> None:
        gain, merged = self.judgement(producer, consumer)
        if merged is not None and gain > 0:
            rank = self.order[consumer], self.order[producer]
            heapq.heappush(self.moves, (-gain, rank, producer, consumer, merged))

    def move(self, best: _Move) -> None:
        """Make the move of the largest gain, if both nodes are still there."""
        _, _, producer, consumer, merged = best
        if not self.alive(producer) or not self.alive(consumer):
            return
        if self.reaches_around(set(merged.members)):
            return  # another move has put something between the two since they were judged
        for op in merged.members:
            self.homes[op] = merged
        self.nodes = [n for n in self.nodes if n is not producer and n is not consumer]
        self.nodes.append(merged)
        self.register(merged)
        self.propose(merged)
        readers = (n for op in merged.members for n in self.known_readers.get(op, ()))
        for reader in dict.fromkeys(readers):
            if reader is not merged and self.alive(reader):
                self.queue(merged, reader)
        for other in self.nodes:
            if merged in self.siblings(other, (merged,)):
                self.queue(merged, other)

    def alive(self, node: _Node) -> bool:
        """Whether the node has not become a part of another one."""
        return self.homes[node.members[-1]] is node

    def judgement(self, producer: _Node, consumer: _Node) -> tuple[float, _Node | None]:
        """The seconds that both as one node would gain, and that node."""
        if not self.worth_judging(producer, consumer):
            return 0.0, None
        merged = self.merged(producer, consumer)
        if merged is None:
            return 0.0, None
        time = self.believed(producer, consumer, merged.time)
        # Memory that is not needed is worth its part of the time, but never a kernel that is slower
        # than one where much memory is spared.
        worth = min(self.worth(producer, consumer), time - MARGIN_FOR_MEMORY * merged.time)
        return producer.time + consumer.time + worth - time, merged

    def worth_judging(self, producer: _Node, consumer: _Node) -> bool:
        """Whether the values between the two, and one launch, could be worth the margin at all."""
        machine = self.settings.machine
        values = self.between(producer, consumer) or producer.inputs & consumer.inputs
        bytes = sum(value.tensor.bytes for value in values)
        level = max(1, int(level_of(machine, 2 * bytes / machine.executors)))
        rate = rates(machine, machine.executors, "write")[level] * machine.executors
        most = 2 * bytes / rate + machine.sync.step + self.worth(producer, consumer)
        if machine.blocks is not None:
            most += machine.blocks.fill
        if machine.blocks is not None:
            longer = max(producer.time, consumer.time)
            return most > self.believed(producer, consumer, longer) - longer
        margin = self.margin(producer, consumer)
        return most > (1 - 1 / margin) * (producer.time + consumer.time)

    def between(self, producer: _Node, consumer: _Node) -> set[Value]:
        """The values that the consumer reads of what the producer makes."""
        made = {result for op in producer.members for result in op.results}
        read = {self.behind_reshapes(value) for op in consumer.members for value in op.operands}
        return read & made

    def margin(self, producer: _Node, consumer: _Node) -> float:
        """What the prediction must win by."""
        machine = self.settings.machine
        shared = [level for level in machine.levels[:-1] if level.shared]
        room = USABLE * (shared or machine.levels)[-1].capacity
        values = self.between(producer, consumer)
        large = 2 * sum(value.tensor.bytes for value in values) > room
        return MARGIN_FOR_MEMORY if large else MARGIN

    def worth(self, producer: _Node, consumer: _Node) -> float:
        """The seconds that memory is worth which is needed at the peak, and no more if both are
        one: a part of all memory is worth as much as that part of the time."""
        if self.peak is None:
            return 0.0
        values = self.between(producer, consumer) & self.peak.values
        inside = {*producer.members, *consumer.members}
        saved = sum(value.tensor.bytes for value in values if self.read_by(value) <= inside)
        return saved / (self.beside + self.peak.bytes) * self.time

    def read_by(self, value: Value) -> set[Op | None]:
        """The operations that read a value, also behind reshapes; None for the region's end."""
        found: set[Op | None] = set()
        for user, _ in self.region.uses.get(value, ()):
            if user is not None and user.name == "reshape":
                found |= self.read_by(user.result)
            else:
                found.add(user)
        return found

    def believed(self, producer: _Node, consumer: _Node, time: float) -> float:
        """The prediction for both as one, with what it must win by. Where beginning a kernel costs
        much, kernels of very different sizes meet: then the smaller one is what is doubted."""
        margin = self.margin(producer, consumer)
        if self.settings.machine.blocks is None:
            return margin * time
        return (1 + _NOISE) * time + (margin - 1) * min(producer.time, consumer.time)

    def producers(self, consumer: _Node) -> list[_Node]:
        """Other nodes that compute what this one reads, also behind reshapes."""
        found: dict[_Node, None] = {}
        for source in consumer.sources:
            node = self.homes.get(source)
            if node is not None and node is not consumer:
                found[node] = None
        return list(found)

    def siblings(self, node: _Node, among: Sequence[_Node] | None = None) -> list[_Node]:
        """Earlier nodes, of all or `among` some, that read one of the same tensors and give results
        of the same dims: where a kernel costs much to begin, one is better than two."""
        if self.settings.machine.blocks is None:
            return []
        first = self.position[node.members[0]]
        return [
            other
            for other in (self.nodes if among is None else among)
            if other is not node
            and other.dims == node.dims
            and self.position[other.members[0]] < first
            and any(value.rank for value in node.inputs & other.inputs)
            and not self.between(other, node)
        ]

    def behind_reshapes(self, value: Value) -> Value:
        while value.op is not None and value.op in self.position and value.op.name == "reshape":
            value = value.op.operands[0]
        return value

    def merged(self, producer: _Node, consumer: _Node) -> _Node | None:
        """Both as one node, if that is legal and has a tiling."""
        members = sorted({*producer.members, *consumer.members}, key=self.position.__getitem__)
        between = self.reshapes(members)
        everything = sorted({*members, *between}, key=self.position.__getitem__)
        if self.reaches_around(set(everything)):
            return None
        node = self.node(everything)
        return node and replace(node, parts=(producer, consumer))

    def node(self, members: list[Op]) -> _Node | None:
        """Kernels as one, if they have a tiling; those that are connected alike are judged once."""
        wiring, inputs = self.wiring(members)
        known = self.settings.connected
        if wiring not in known:
            group = self.flatten(members)
            fits = group is not None and (len(members) == 1 or len(group.ops) <= MOST_OPERATIONS)
            known[wiring] = self.settings.plan(group) if group is not None and fits else None
        plan = known[wiring]
        if plan is None:
            return None
        read = dict.fromkeys(map(self.behind_reshapes, inputs))
        sources = dict.fromkeys(value.op for value in read if value.op is not None)
        return _Node(members, plan, list(sources), frozenset(read), members[-1].results[0].dims)

    def wiring(self, members: Sequence[Op]) -> tuple[tuple[Any, ...], list[Value]]:
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
            texts = self.settings.texts
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

    def flatten(self, members: Sequence[Op]) -> Group | None:
        """All operations inside the members, as one group; None where too much leaves it."""
        chosen = set(members)
        inside = {result for op in members for result in op.results}
        mapping: dict[Value, Value] = {}
        inputs: dict[Value, None] = {}
        ops: list[Op] = []
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
                new = Op(
                    op.definition, [local[v] for v in op.operands], op.attributes, op.regions,
                    op.result_types, op.origin,
                )  # fmt: skip
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
        self.leaving = [
            result
            for op in members
            for result in op.results
            if any(user not in chosen for user, _ in self.region.uses.get(result, ()))
        ]
        needed, read = in_order_of_demand(set(ops), roots)
        return make_group(needed, read, roots)

    # The last move of a node is taken back where its kernel runs while most memory is needed, and
    # less of it is without that move: what both read lives together in one kernel, and there are
    # fewer results that may lie where an operand does.

    def spared(self) -> Region:
        """The new region, with moves taken back as long as that is worth it."""
        region, kernels = self.rebuild(self.nodes)
        need = self.needs(region) if kernels else None
        if need is None:
            return region
        time = sum(node.time for node in self.nodes)
        searching = True
        while searching:
            searching = False
            for near in _NEAR:
                nodes, taken = self.taken_back(near * need.bytes, need, kernels)
                if not taken:
                    continue
                slower = time + sum(sum(p.time for p in n.parts) - n.time for n in taken)
                other, its_kernels = self.rebuild(nodes)
                its_need = self.needs(other)
                # A part of the time is worth as much as that part of the memory.
                if its_need is not None and slower * (self.beside + its_need.bytes) < time * (
                    self.beside + need.bytes
                ):
                    self.nodes, time = nodes, slower
                    region, kernels, need = other, its_kernels, its_need
                    searching = True
                    break
        return region

    def taken_back(
        self, least: float, need: Peak, kernels: Mapping[Op, _Node]
    ) -> tuple[list[_Node], list[_Node]]:
        """All nodes, where those whose kernels run while `least` bytes live are their parts again;
        and which these are."""
        taken = [node for op, node in kernels.items() if need.needs.get(op, 0) >= least]
        chosen = set(taken)
        nodes = [part for n in self.nodes for part in (n.parts if n in chosen else (n,))]
        return nodes, taken

    # The new region.

    def rebuild(self, nodes: Sequence[_Node]) -> tuple[Region, dict[Op, _Node]]:
        """The region with a kernel for each node, and of which nodes of several parts these are."""
        connected = [node for node in nodes if len(node.members) > 1]
        kernels: dict[Op, _Node] = {}
        if not connected:
            return self.region, kernels
        home = {op: node for node in connected for op in node.members}
        mapping: dict[Value, Value] = {}
        ops: list[Op] = []
        for unit in self.sorted(home):
            if isinstance(unit, _Node):
                self.emit(unit, mapping, ops)
                kernels[ops[-1]] = unit
            else:
                ops.append(self.copied(unit, mapping))
        results = [mapping.get(v, v) for v in self.region.results]
        return Region(self.region.arguments, ops, results), kernels

    def sorted(self, home: Mapping[Op, _Node]) -> list[_Node | Op]:
        """Connected nodes and all other operations, each after what it reads; else as they stood.

        A node stands where its last member stood, or later than what now comes before it."""
        waiting: dict[_Node | Op, int] = {}
        readers: dict[_Node | Op, list[_Node | Op]] = {}
        place: dict[_Node | Op, int] = {}
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
        found: list[_Node | Op] = []
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
        from ..regions import rename

        nested = [rename(body, mapping) for body in op.regions]
        new = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
        mapping.update(zip(op.results, new.results, strict=True))
        return new

    def emit(self, node: _Node, mapping: dict[Value, Value], ops: list[Op]) -> None:
        """The node's kernel, or its members as they were where no tiling can be written."""
        group = self.flatten(node.members)
        if group is None:
            raise CompilerBug("a connected group cannot be flattened again")
        leaving = list(self.leaving)
        operands = [mapping.get(value, value) for value in group.inputs]
        kernel = self.settings.kernel(group, operands, "group")
        if kernel is None:
            ops.extend(self.copied(op, mapping) for op in node.members)
            return
        ops.append(kernel)
        mapping.update(zip(leaving, kernel.results, strict=True))
