"""Where a program communicates: how each operation is computed, all of them together.

    choice = choose(propagate(module))
    verify(choice.module, DECIDED)

Each operation has states (`candidates.py`): axes for its factors, and axes over which it leaves
sums for later. A state costs what devices send inside, and a little for work and memory; an edge
between two operations, what it costs that the value which one leaves comes to the other as it
wants it. The cheapest states together are found by messages (`min_sum.py`). What the user said of
values holds: arguments, constraints, values that control flow carries lie as propagation says. Of a
sum that is constrained before its terms are added, who reads a part gets that part's sum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...hlo.contracts import require_contract
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.ops.manual import axis_of
from ...hlo.sharding import DimSharding, Sharding
from ...hlo.types import TensorType
from ..cost.assumed import BYTES_PER_COMMUNICATION
from ..counters import counters, turns
from .candidates import Candidates, CandidateState, Lying, States, Ways
from .decide import Decided, decided
from .min_sum import cheapest
from .propagated import Propagated
from .transit import NEVER, Transit
from .value_costs import Array, Improvement, Numbers, ValueCost, ValueUse

USUAL_TURNS = 8  # of a loop, where data decides
ANSWERS = 2  # of messages, that are compared where uses share what is brought to them


@dataclass(frozen=True)
class Way:
    """Another state of an operation, and what the step would cost more with it, all others as they
    are: `bytes` that a device receives; `price` with what is computed and what memory is read and
    written."""

    state: CandidateState
    bytes: float
    price: float


@dataclass(frozen=True, eq=False, repr=False)
class ShardingChoice:
    """`decided`: the program at level DECIDED, beside the one that it is of; `price`: what the
    choice is expected to cost a device in a step, with its prices for work and memory."""

    decided: Decided
    price: float
    graph: ChoiceGraph

    @property
    def module(self) -> Module:
        """The program at level DECIDED."""
        return self.decided.module

    def others(self, op: Op) -> tuple[Way, ...]:
        """The states of an operation of the propagated program that were not chosen, the cheapest
        first; none where there was no choice."""
        return self.graph.others(op)


@dataclass
class ChoiceNode:
    """An operation that can be computed in several ways; `times` a step."""

    op: Op | None  # None: only held, by `automatic.py`
    times: float
    number: int
    said: tuple[Ways, ...]  # how operands and results lie, as propagation says
    states: States | None = None

    @property
    def known(self) -> States:
        assert self.states is not None
        return self.states


@dataclass
class OperandUse:
    """One operand: of a node, by its number, or one that has to come as `wanted`."""

    node: ChoiceNode | None
    operand: int
    wanted: Lying
    times: float


def choose(found: Propagated) -> ShardingChoice:
    """Decide how each tensor lies where it is made and where it is used.

    found: a program and how propagation lets its tensors lie. UserError for a kernel without a
    contract whose operands would be cut.
    """
    graph = ChoiceGraph(found)
    graph.fill()
    states, price = graph.solve()
    return ShardingChoice(decided(found, graph.fixed, graph.wanted, states), price, graph)


class ChoiceGraph:
    def __init__(self, found: Propagated) -> None:
        self.module, self.said = found.module, found.shardings
        used = (s.mesh for s in found.shardings.values())
        self.name = next(used, next(iter(found.module.meshes)))
        self.mesh = found.module.meshes[self.name]
        self.candidates = Candidates(self.mesh, self.name)
        self.transit = Transit(self.mesh)
        self.nodes: list[ChoiceNode] = []
        self.made: dict[Value, tuple[ChoiceNode, int]] = {}  # by which node, which of its results
        self.fixed: dict[Value, Lying] = {}  # how values lie that no node makes
        self.uses: dict[Value, list[OperandUse]] = {}
        self.wanted: dict[tuple[Op | Region, int], Lying] = {}  # operands that have no choice
        self._unions: dict[tuple[Ways | None, ...], Ways] = {}
        self._orders: dict[tuple[Ways, Ways | None], Numbers] = {}
        self._selected: dict[tuple[States, int, int], Numbers] = {}
        self.chosen: list[int] = []  # the number of each node's state
        body = self.module.body
        for value in body.arguments:
            self.argument(value)
        self.region(body, 1.0)
        for number in range(len(body.results)):
            self.result(body, number)

    def argument(self, value: Value) -> None:
        self.fixed[value] = self.lying(value)

    def result(self, region: Region, number: int) -> None:
        value = region.results[number]
        self.want(region, number, value, self.lying(value), 1.0)

    # The graph.

    def lying(self, value: Value) -> Lying:
        """As propagation says, in canonical form."""
        said = self.said.get(value)
        if not isinstance(value.type, TensorType):
            return None
        if said is None:
            return self.candidates.whole(value)
        dims = tuple(DimSharding(self.mesh.merged(dim.axes)) for dim in said.dims)
        return Sharding(self.name, dims)

    def want(
        self, owner: Op | Region, number: int, value: Value, lying: Lying, times: float
    ) -> None:
        self.wanted[owner, number] = lying
        self.uses.setdefault(value, []).append(OperandUse(None, number, lying, times))

    def region(self, region: Region, times: float) -> None:
        for op in region.ops:
            if op.name == "while":
                self.loop(op, times)
            elif op.definition.flow == "branch":
                self.branches(op, times)
            elif op.name == "sdy.manual_computation":
                self._manual(op, times)
            elif op.name != "sharding_group":
                self._operation(op, times)

    def _operation(self, op: Op, times: float) -> None:
        if op.definition.pattern == "kernel" and any(map(_is_cut, map(self.lying, op.operands))):
            require_contract(op)
        said = tuple(self.only(self.lying(value)) for value in (*op.operands, *op.results))
        node = ChoiceNode(op, times, len(self.nodes), said)
        self.nodes.append(node)
        for number, value in enumerate(op.operands):
            self.uses.setdefault(value, []).append(OperandUse(node, number, None, times))
        self.made.update((value, (node, number)) for number, value in enumerate(op.results))

    def loop(self, op: Op, times: float) -> None:
        cond, body = op.regions
        count = turns(op, counters(op))
        inner = times * (USUAL_TURNS if count is None else max(count, 1))
        for number, value in enumerate(op.operands):
            lying = self.lying(body.arguments[number])
            self.want(op, number, value, lying, times)
            for same in (cond.arguments[number], body.arguments[number], op.results[number]):
                self.fixed[same] = lying
        self.region(cond, inner)
        self.want(cond, 0, cond.results[0], self.candidates.whole(cond.results[0]), inner)
        self.region(body, inner)
        for number, value in enumerate(body.results):
            self.want(body, number, value, self.fixed[body.arguments[number]], inner)

    def branches(self, op: Op, times: float) -> None:
        self.want(op, 0, op.operands[0], self.candidates.whole(op.operands[0]), times)
        for value in op.results:
            self.fixed[value] = self.lying(value)
        for body in op.regions:
            self.region(body, times)
            for number, value in enumerate(body.results):
                self.want(body, number, value, self.fixed[op.results[number]], times)

    def _manual(self, op: Op, times: float) -> None:
        cuts = (*op.in_shardings, *op.out_shardings)
        for number, (value, said) in enumerate(zip((*op.operands, *op.results), cuts, strict=True)):
            lying: Lying = None
            if isinstance(value.type, TensorType):
                dims = tuple(DimSharding(self.mesh.merged(map(axis_of, axes))) for axes in said)
                lying = Sharding(self.name, dims)
            if number < len(op.operands):
                self.want(op, number, value, lying, times)
            else:
                self.fixed[value] = lying

    # States.

    def only(self, lying: Lying) -> Ways:
        return self.candidates.ways([lying])

    def fill(self) -> None:
        """The states of all nodes: with the ways of earlier ones, then with those of later ones
        too."""
        for backwards in (False, True, False):
            for node in reversed(self.nodes) if backwards else self.nodes:
                if node.op is None:
                    continue
                arriving = [self._arriving(value) for value in node.op.operands]
                wanted = [self._wanted(value) for value in node.op.results]
                node.states = self.candidates.of(node.op, node.said, arriving, wanted)

    def _arriving(self, value: Value) -> Ways:
        if value in self.fixed:
            return self.only(self.fixed[value])
        node, number = self.made[value]
        return node.known.results[number].ways

    def _wanted(self, value: Value) -> Ways:
        return self._together([self._targets(use) for use in self.uses.get(value, ())])

    def _targets(self, use: OperandUse) -> Ways | None:
        """None of a node that has no states yet."""
        if use.node is None:
            return self.only(use.wanted)
        states = use.node.states
        return None if states is None else states.operands[use.operand].ways

    def _together(self, several: Sequence[Ways | None]) -> Ways:
        key = tuple(several)
        if key not in self._unions:
            lyings = [lying for ways in key if ways is not None for lying in ways.lyings]
            self._unions[key] = self.candidates.ways(lyings)
        return self._unions[key]

    # The cheapest.

    def solve(self) -> tuple[dict[Op, CandidateState], float]:
        """A state for each node's operation, and what all cost together."""
        prices = [node.times * node.known.prices for node in self.nodes]
        values = [self.cost(value) for value in self.uses if isinstance(value.type, TensorType)]
        improvement = Improvement(prices, values)
        answers = cheapest(*pairwise(prices, values), answers=ANSWERS).answers
        # Where a value is brought to many uses at once they err by much: what propagation says, and
        # what the fewest axes cut, are good beginnings too.
        said, whole = [0] * len(self.nodes), [node.known.whole for node in self.nodes]
        best, lowest = improvement.best([*answers, said, whole])
        self.chosen = best
        pairs = zip(self.nodes, best, strict=True)
        chosen = {node.op: node.known.states[n] for node, n in pairs if node.op is not None}
        return chosen, lowest

    def others(self, op: Op) -> tuple[Way, ...]:
        if not op.results or op.results[0] not in self.made:
            return ()
        node, _ = self.made[op.results[0]]
        chosen = self.chosen[node.number]
        dearer, more = (answer.around(node.number) for answer in self._answers)
        found = [
            Way(state, float(more[n] - more[chosen]), float(dearer[n] - dearer[chosen]))
            for n, state in enumerate(node.known.states)
            if n != chosen and dearer[n] < NEVER
        ]
        return tuple(sorted(found, key=lambda way: way.price))

    @functools.cached_property
    def _answers(self) -> tuple[Improvement, Improvement]:
        """The choice, with all prices and with the bytes that devices receive alone."""
        values = [self.cost(value) for value in self.uses if isinstance(value.type, TensorType)]
        sizes = [
            replace(v, prices=np.maximum(v.prices - BYTES_PER_COMMUNICATION, 0.0)) for v in values
        ]
        prices = [node.times * node.known.prices for node in self.nodes]
        sent = [
            node.times * np.array([state.sent for state in node.known.states])
            for node in self.nodes
        ]
        found = Improvement(prices, values), Improvement(sent, sizes)
        for answer in found:
            answer.start(self.chosen)
        return found

    def cost(self, value: Value) -> ValueCost:
        """What it costs that a tensor comes to its uses."""
        maker, made = None, _ONE
        if value not in self.fixed:
            node, number = self.made[value]
            maker, made = node.number, node.known.results[number].numbers
        uses = self.uses[value]
        wanted = [self._targets(use) for use in uses]
        targets = self._together(wanted)
        places = [self._places(targets, ways) for ways in wanted]
        found = [
            ValueUse(None, use.times, place)
            if use.node is None
            else ValueUse(use.node.number, use.times, self._ways(use, use.node.known, place))
            for use, place in zip(uses, places, strict=True)
        ]
        costs = self.transit.prices(value.tensor, self._arriving(value), targets)
        return ValueCost(maker, made, found, costs)

    def _places(self, targets: Ways, ways: Ways | None) -> Numbers:
        """Where the ways stand among others, in which they are."""
        key = targets, ways
        if key not in self._orders:
            assert ways is not None
            order = {lying: number for number, lying in enumerate(targets.lyings)}
            self._orders[key] = np.array([order[lying] for lying in ways.lyings], np.intp)
        return self._orders[key]

    def _ways(self, use: OperandUse, states: States, places: Numbers) -> Numbers:
        """For each state of the node, the place of how it wants the operand."""
        key = states, use.operand, id(places)
        if key not in self._selected:
            self._selected[key] = places[states.operands[use.operand].numbers]
        return self._selected[key]


_ONE: Numbers = np.zeros(1, np.intp)


def pairwise(
    prices: Sequence[Array],
    values: Sequence[ValueCost],
    parts: Sequence[Sequence[Array | float]] | None = None,
) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Prices of nodes and of edges between them, as if each use were on its own. parts: of each
    value, for each use, the part of the price that it pays; all of it where none is given."""
    own, edges = list(prices), dict[tuple[int, int], Array]()
    tables: dict[tuple[int, int, int, float, int], Array] = {}
    for number, value in enumerate(values):
        for place, use in enumerate(value.uses):
            if value.maker is None and use.node is None:
                continue
            part = 1.0 if parts is None else parts[number][place]
            key = id(value.prices), id(value.made), id(use.ways), use.times, id(part)
            if key not in tables:
                tables[key] = use.times * (value.prices * part)[np.ix_(value.made, use.ways)]
            costs = tables[key]
            if value.maker is None:
                assert use.node is not None
                own[use.node] = own[use.node] + costs[0]
            elif use.node is None:
                own[value.maker] = own[value.maker] + costs[:, 0]
            elif use.node == value.maker:
                own[value.maker] = own[value.maker] + costs.diagonal()
            else:
                edge = value.maker, use.node
                if use.node < value.maker:
                    edge, costs = (use.node, value.maker), costs.T
                edges[edge] = edges[edge] + costs if edge in edges else costs
    return own, edges


def _is_cut(lying: Lying) -> bool:
    return lying is not None and any(dim.axes for dim in lying.dims)
