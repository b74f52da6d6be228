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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...hlo.deciding import current, estimating
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.regions import map_bodies
from ...hlo.sizes import SizeConstraint
from ...hlo.verify import FUSED, Level
from ..asynchronous.configuration import PipelineConfiguration
from ..asynchronous.fits import fits
from ..cost.blocks import BlockCounter, LargestGrain, counter_of
from ..cost.estimate import Counter, Tiling, crossing, plans
from ..cost.model import USABLE, level_of, rates
from ..machine import Machine
from ..orders.graph import Role
from ..overwriting import hinders_of
from ..peak import Peak, peak_of
from ..rolled import WEIGHT_BYTES
from ..tiles import contraction
from ..tiles.build import TileGroup
from ..tiles.contraction import lone_contraction
from ..tiles.masks import without_masks
from ..tiles.nodes import KernelNode, KnownGroups, Nodes, Wiring
from ..tiles.spare import spared
from ..tiles.streaming import StreamedGroup
from ..tiles.tilings import built
from ..tiles.turns import without_idle_turns
from ..tiles.write import Unwritable, writable
from ..tuning import Choices, Variant
from .order import donations
from .require_static import is_static

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities

# A connected group must be predicted to be faster by this factor, where what is not stored would
# have stayed in a cache. Where it would not, the group may even be a little slower: all other
# kernels have more of the memory's bandwidth then.
MARGIN, MARGIN_FOR_MEMORY = 1.08, 0.97
TRIES = 4  # tilings that are asked about
_NOISE = 0.01  # of a predicted time
_KINDS = frozenset({"loop", "rows", "contract"})
# Blocks of threads share long folds, which tile functions do not.
_KINDS_OF_EXECUTORS = _KINDS | {"reduce"}


class Judged(NamedTuple):
    """Equal kernels of a program: what they compute, by which tiling, and how many there are. text:
    of the group, canonical.
    tiled: a tile function, whose tiles are as large at all sizes; else its code cuts it anew."""

    text: str
    group: TileGroup
    plan: Tiling
    tiled: bool
    count: int


@dataclass(frozen=True)
class Tilings:
    """What was judged for one likely call: the tilings of groups, by text and by wiring, and what
    was decided about sizes on the way."""

    memo: dict[str, tuple[TileGroup, list[Tiling]]] = field(default_factory=dict)
    connected: dict[Wiring, Tiling | None] = field(default_factory=dict)
    guards: dict[SizeConstraint, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Connect:
    """FUSED -> FUSED. `walk`: whether sums may be formed in another order (streaming). `choices`:
    what chooses among the best tilings; None takes the best predicted. `capabilities`: what the
    target's products are made of, where units multiply while their windows come. `finite`: whether
    tensors may be taken to hold finite numbers, so that windows which are masked wholly are not
    walked.
    `in_tiles`: whether the target's tile functions write results where operands lie. `spare`:
    whether kernels may be made, or left apart, for the sake of memory. `groups`: what lowering for
    other likely calls has found of groups; `tilings`: what it has judged for the same one.
    `rebuilds`: False only judges, and leaves the module as it is."""

    machine: Machine
    walk: bool = True
    choices: Choices | None = None
    capabilities: Capabilities | None = None
    finite: bool = False
    in_tiles: bool = False
    spare: bool = True
    groups: KnownGroups = field(default_factory=KnownGroups, compare=False)
    tilings: Tilings = field(default_factory=Tilings, compare=False)
    rebuilds: bool = True
    made: dict[str, Op | None] = field(default_factory=dict, compare=False)
    judged: dict[Wiring, Judged] = field(default_factory=dict, compare=False)
    name: ClassVar[str] = "connect"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        decisions = current()
        hinders, known = hinders_of(self.in_tiles), is_static(module) or decisions is not None
        weights: Any = module.attributes.get(WEIGHT_BYTES)

        def needs(region: Region, role: Role) -> Peak | None:
            """The peak of a region of this module; None where sizes are not known."""
            pairs = donations(module) if role == "entry" else ()
            return peak_of(region, pairs, hinders, role=role) if known else None

        def change(region: Region, role: Role) -> Region:
            inner = map_bodies(region, lambda op, body: change(body, "other"))
            nodes = _Queue(self, inner).run()
            if decisions is not None:
                self.remember(nodes)
            if self.spare and self.rebuilds:
                return spared(nodes, lambda one: needs(one, role), weights)
            return nodes.rebuild().region if self.rebuilds else region

        entry = module.body
        if decisions is not None:
            decisions.guards.update(self.tilings.guards)
        after = module.with_bodies(lambda one: change(one, "entry" if one is entry else "other"))
        if decisions is not None and not self.rebuilds:
            self.tilings.guards.update(decisions.guards)
        return after

    @property
    def connected(self) -> dict[Wiring, Tiling | None]:
        """The plans of the groups that were judged already, by their wiring."""
        return self.tilings.connected

    def remember(self, nodes: Nodes) -> None:
        """Keep what predicts the nodes' times at other sizes than the hints."""
        for node in nodes.all:
            wiring, _ = nodes.wiring(node.members)
            known = self.judged.get(wiring)
            if known is None and node.plan is not None:
                flatten = partial(nodes.flatten, node.members)
                group = self.groups.connected(wiring, flatten)
                if group is not None:
                    group = self.groups.equal(group)  # whose operations a stream names
                    known = Judged(group.text, group, node.plan, len(node.members) > 1, 0)
            if known is not None:
                self.judged[wiring] = known._replace(count=known.count + 1)

    def plan(self, group: TileGroup) -> Tiling | None:
        """The best tiling of a group; equal groups are judged once."""
        return next(iter(self.plans(group)), None)

    def alone(self, group: TileGroup) -> Tiling | None:
        """How long a kernel takes that is no tile function, since a call decides how large the
        tiles would be."""
        if not self._alike(group):
            return None
        kind = counter_of(self.machine)
        return next(iter(plans(group, self.machine, [None], 1, kind, written=False)), None)

    def plans(self, group: TileGroup) -> list[Tiling]:
        """The best tilings, fastest first; their streams may be those of an equal group."""
        key, memo = group.text, self.tilings.memo
        if key not in memo:
            group = self.groups.equal(group)
            memo[key] = group, self._plans(group)
        return memo[key][1]

    def considered(self) -> list[tuple[TileGroup, Tiling | None]]:
        """Every group that was judged so far, with its best tiling."""
        return [(group, next(iter(found), None)) for group, found in self.tilings.memo.values()]

    def _plans(self, group: TileGroup) -> list[Tiling]:
        if not self._alike(group):
            return []
        found = self.best(group, counter_of(self.machine))
        return [*self.suited(group, found), *found]

    def best(self, group: TileGroup, counter: type[Counter]) -> list[Tiling]:
        """The best tilings as a counter has it. A contraction alone has those of its kernel where
        blocks of threads run it."""
        main = lone_contraction(group) if self.walk else None
        if main is not None and issubclass(counter, BlockCounter):
            with suppress(Unwritable):
                return contraction.tilings(group, main, self.machine, counter)
            return []
        return plans(group, self.machine, self.ways(group), counter=counter)

    def _alike(self, group: TileGroup) -> bool:
        """Whether a tile is as large in all roots, and holds all operations."""
        dims = group.roots[0].dims
        if not dims or any(root.dims != dims for root in group.roots):
            return False
        return all(map(writable, group.ops))

    def suited(self, group: TileGroup, others: Sequence[Tiling]) -> list[Tiling]:
        """The fastest tiling for the units of the largest grain, if it is faster than others; a
        contraction alone is done by these wherever they can."""
        able = self.capabilities
        multiplies = any(op.definition.pattern == "contract" for op in group.ops)
        if able is None or not able.asynchronous or not multiplies:
            return []
        alone = lone_contraction(group) is not None
        best = others[0].time if others and not alone else math.inf
        for plan in self.best(group, LargestGrain)[:TRIES]:
            if plan.time >= best:
                break
            try:
                op = built(group, group.inputs, "group", **plan.choice)
            except Unwritable:
                continue
            found = fits(self.tidied(op), able)
            if isinstance(found, PipelineConfiguration) and found.overlaps:
                return [plan]
        return []

    def tidied(self, op: Op) -> Op:
        """The tile function without what does nothing."""
        if self.machine.blocks is not None:
            op = without_masks(op)
        return without_idle_turns(op) if self.finite else op

    def ways(self, group: TileGroup) -> list[StreamedGroup | None]:
        """The ways to walk a group; the first is not to."""
        return [None, *(group.streams() if self.walk else ())]

    def kernel(self, group: TileGroup, operands: Sequence[Value], name: str) -> Op | None:
        """The tile function of the best tiling that can be written; equal groups share its body."""
        key = group.text
        if key not in self.made:
            self.made[key] = self._kernel(key, group, operands, name)
        op = self.made[key]
        if op is None:
            return None
        types = op.result_types
        return Op(op.definition, operands, op.attributes, op.regions, types, group.origin)

    def _kernel(
        self, key: str, group: TileGroup, operands: Sequence[Value], name: str
    ) -> Op | None:
        variants = self.variants(group, operands, name)
        if self.choices is None:
            return next((op for _, op in variants), None)
        every = [(Variant(plan.choice, plan.time), op) for plan, op in variants]
        return self.choices.tiling(key, every) if every else None

    def variants(
        self, group: TileGroup, operands: Sequence[Value], name: str
    ) -> Iterator[tuple[Tiling, Op]]:
        """The best tilings that can be written, fastest first."""
        for plan in self.plans(group):
            try:
                op = built(group, operands, name, **plan.choice)
            except Unwritable:
                continue
            # Of a convolution over features no window of a tile lies in the grains of units.
            op = self.tidied(op)
            if self.machine.blocks is None or not any(map(_sums_features, op.regions[0].walk())):
                yield plan, op


def _sums_features(op: Op) -> bool:
    """Whether it is a convolution with several input features in a group."""
    if op.name != "convolution":
        return False
    return op.operands[1].dims[op.kernel_input_feature_dimension] > 1


def _widens_weight(op: Op) -> bool:
    """Whether a product in a fusion reads a weight through a conversion: it widens the weight in
    registers, once, where a tile function would write the wide form to scratch for each tile."""
    (body,) = op.regions
    outer = dict(zip(body.arguments, op.operands, strict=True))
    for inner in body.ops:
        if inner.definition.pattern != "contract":
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


# Minus the gain, the numbers of consumer and producer, both, and the node that they would become.
_Move = tuple[float, tuple[int, int], KernelNode, KernelNode, KernelNode]


class _Queue:
    """The moves of one region."""

    def __init__(self, settings: Connect, region: Region) -> None:
        self.machine, self.region = settings.machine, region
        self.nodes = Nodes(settings, region)
        self.moves: list[_Move] = []
        self.order: dict[KernelNode, int] = {}
        self.known_readers: dict[Op, list[KernelNode]] = {}

    def run(self) -> Nodes:
        """The nodes after all moves that gain something."""
        kinds = _KINDS_OF_EXECUTORS if self.machine.blocks is None else _KINDS
        for op in self.region.ops:
            if op.name == "fusion" and op.kind in kinds and not _widens_weight(op):
                self.nodes.add(op)
        for node in self.nodes.all:
            self.register(node)
        for node in self.nodes.all:
            self.propose(node)
        while self.moves:
            self.move(heapq.heappop(self.moves))
        return self.nodes

    def register(self, node: KernelNode) -> None:
        """Tell what the node reads and which number it has; equal gains go to lower numbers."""
        self.order[node] = len(self.order)
        for source in node.sources:
            self.known_readers.setdefault(source, []).append(node)

    def propose(self, consumer: KernelNode) -> None:
        """Queue the moves of a node with those that it reads from, or reads the same as."""
        for producer in (*self.nodes.producers(consumer), *self.siblings(consumer)):
            self.queue(producer, consumer)

    def queue(self, producer: KernelNode, consumer: KernelNode) -> None:
        gain, merged = self.judgement(producer, consumer)
        if merged is not None and gain > 0:
            rank = self.order[consumer], self.order[producer]
            heapq.heappush(self.moves, (-gain, rank, producer, consumer, merged))

    def move(self, best: _Move) -> None:
        """Make the move of the largest gain, if both nodes are still there."""
        _, _, producer, consumer, merged = best
        if not self.nodes.alive(producer) or not self.nodes.alive(consumer):
            return
        if self.nodes.reaches_around(set(merged.members)):
            return  # another move has put something between the two since they were judged
        self.nodes.join(merged)
        self.register(merged)
        self.propose(merged)
        readers = (n for op in merged.members for n in self.known_readers.get(op, ()))
        for reader in dict.fromkeys(readers):
            if reader is not merged and self.nodes.alive(reader):
                self.queue(merged, reader)
        for other in self.nodes.all:
            if merged in self.siblings(other, (merged,)):
                self.queue(merged, other)

    def judgement(
        self, producer: KernelNode, consumer: KernelNode
    ) -> tuple[float, KernelNode | None]:
        """The seconds that both as one node would gain, and that node."""
        if not self.worth_judging(producer, consumer):
            return 0.0, None
        merged = self.nodes.merged(producer, consumer)
        if merged is None:
            return 0.0, None
        time = self.believed(producer, consumer, merged.time)
        return producer.time + consumer.time - time, merged

    @estimating()
    def worth_judging(self, producer: KernelNode, consumer: KernelNode) -> bool:
        """Whether the values between the two, and one launch, could be worth the margin at all."""
        machine = self.machine
        values = self.nodes.between(producer, consumer) or producer.inputs & consumer.inputs
        bytes = sum(value.tensor.bytes for value in values)
        level = max(1, int(level_of(machine, 2 * bytes / machine.executors)))
        rate = rates(machine, machine.executors, "write")[level] * machine.executors
        most = 2 * bytes / rate + machine.sync.step
        if machine.blocks is not None:
            most += machine.blocks.fill
            longer = max(producer.time, consumer.time)
            return most > self.believed(producer, consumer, longer) - longer
        most += sum(crossing(machine, value) for value in values)
        apart = producer.time + consumer.time
        return apart > self.believed(producer, consumer, apart - most)

    @estimating()
    def margin(self, producer: KernelNode, consumer: KernelNode) -> float:
        """What the prediction must win by."""
        machine = self.machine
        shared = [level for level in machine.levels[:-1] if level.shared]
        room = USABLE * (shared or machine.levels)[-1].capacity
        values = self.nodes.between(producer, consumer)
        large = 2 * sum(value.tensor.bytes for value in values) > room
        return MARGIN_FOR_MEMORY if large else MARGIN

    def believed(self, producer: KernelNode, consumer: KernelNode, time: float) -> float:
        """The prediction for both as one, with what it must win by: what has become a tile function
        before is not doubted again. Where beginning a kernel costs much, kernels of very different
        sizes meet: then the smaller one is what is doubted."""
        margin = self.margin(producer, consumer)
        if self.machine.blocks is None:
            doubted = time
            if margin > 1:
                known = sum(node.time for node in (producer, consumer) if node.parts)
                doubted = max(time - known, 0.0)
            return time + (margin - 1) * doubted
        return (1 + _NOISE) * time + (margin - 1) * min(producer.time, consumer.time)

    def siblings(
        self, node: KernelNode, among: Sequence[KernelNode] | None = None
    ) -> list[KernelNode]:
        """Earlier nodes, of all or `among` some, that read one of the same tensors and give results
        of the same dims: where a kernel costs much to begin, one is better than two."""
        if self.machine.blocks is None:
            return []
        position = self.nodes.position
        first = position[node.members[0]]
        return [
            other
            for other in (self.nodes.all if among is None else among)
            if other is not node
            and other.dims == node.dims
            and position[other.members[0]] < first
            and any(value.rank for value in node.inputs & other.inputs)
            and not self.nodes.between(other, node)
        ]
