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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...hlo.contracts import require_contract
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.ops.manual import axis_of
from ...hlo.sharding import DimSharding, Sharding
from ...hlo.types import TensorType
from ..counters import counters, turns
from .candidates import Candidates, Lying, State
from .decide import decided
from .min_sum import cheapest
from .propagated import Propagated
from .transit import Transit

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

USUAL_TURNS = 8  # of a loop, where data decides
ANSWERS = 2  # that are compared where uses share what is brought to them
_KERNELS = ("kernel_call", "foreign_call")


@dataclass(frozen=True, eq=False)
class Choice:
    """`module`: the program at level DECIDED; `price`: what the choice is expected to cost a device
    in a step, with its prices for work and memory."""

    module: Module
    price: float


@dataclass
class _Node:
    """An operation that can be computed in several ways; `times` a step."""

    op: Op
    times: float
    states: list[State] = field(default_factory=list)
    chosen: int = 0

    @property
    def state(self) -> State:
        return self.states[self.chosen]


@dataclass
class _Use:
    """One operand: of a node, by its number, or one that has to come as `wanted`."""

    node: _Node | None
    operand: int
    wanted: Lying
    times: float


def choose(found: Propagated) -> Choice:
    """Decide how each tensor lies where it is made and where it is used.

    found: a program and how propagation lets its tensors lie. UserError for a kernel without a
    contract whose operands would be cut.
    """
    graph = _Graph(found)
    graph.fill()
    graph.solve()
    nodes = {node.op: node.state for node in graph.nodes}
    module = decided(found, graph.fixed, graph.wanted, nodes)
    return Choice(module, graph.price())


class _Graph:
    def __init__(self, found: Propagated) -> None:
        self.module, self.said = found.module, found.shardings
        used = (s.mesh for s in found.shardings.values())
        self.name = next(used, next(iter(found.module.meshes)))
        self.mesh = found.module.meshes[self.name]
        self.candidates = Candidates(self.mesh, self.name)
        self.transit = Transit(self.mesh)
        self.nodes: list[_Node] = []
        self.made: dict[Value, tuple[_Node, int]] = {}  # by which node, which of its results
        self.fixed: dict[Value, Lying] = {}  # how values lie that no node makes
        self.uses: dict[Value, list[_Use]] = {}
        self.wanted: dict[tuple[Op | Region, int], Lying] = {}  # operands that have no choice
        self._matrices: dict[tuple[int, int], Array] = {}
        body = self.module.body
        for value in body.arguments:
            self.fixed[value] = self.lying(value)
        self._region(body, 1.0)
        for number, value in enumerate(body.results):
            self._want(body, number, value, self.lying(value), 1.0)

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

    def _want(
        self, owner: Op | Region, number: int, value: Value, lying: Lying, times: float
    ) -> None:
        self.wanted[owner, number] = lying
        self.uses.setdefault(value, []).append(_Use(None, number, lying, times))

    def _region(self, region: Region, times: float) -> None:
        for op in region.ops:
            if op.name == "while":
                self._loop(op, times)
            elif op.name in ("case", "if"):
                self._branches(op, times)
            elif op.name == "sdy.manual_computation":
                self._manual(op, times)
            elif op.name != "sharding_group":
                self._operation(op, times)

    def _operation(self, op: Op, times: float) -> None:
        if op.name in _KERNELS and any(map(_is_cut, map(self.lying, op.operands))):
            require_contract(op)
        node = _Node(op, times)
        self.nodes.append(node)
        for number, value in enumerate(op.operands):
            self.uses.setdefault(value, []).append(_Use(node, number, None, times))
        self.made.update((value, (node, number)) for number, value in enumerate(op.results))

    def _loop(self, op: Op, times: float) -> None:
        cond, body = op.regions
        count = turns(op, counters(op))
        inner = times * (USUAL_TURNS if count is None else max(count, 1))
        for number, value in enumerate(op.operands):
            lying = self.lying(body.arguments[number])
            self._want(op, number, value, lying, times)
            for same in (cond.arguments[number], body.arguments[number], op.results[number]):
                self.fixed[same] = lying
        self._region(cond, inner)
        self._want(cond, 0, cond.results[0], self.candidates.whole(cond.results[0]), inner)
        self._region(body, inner)
        for number, value in enumerate(body.results):
            self._want(body, number, value, self.fixed[body.arguments[number]], inner)

    def _branches(self, op: Op, times: float) -> None:
        self._want(op, 0, op.operands[0], self.candidates.whole(op.operands[0]), times)
        for value in op.results:
            self.fixed[value] = self.lying(value)
        for body in op.regions:
            self._region(body, times)
            for number, value in enumerate(body.results):
                self._want(body, number, value, self.fixed[op.results[number]], times)

    def _manual(self, op: Op, times: float) -> None:
        cuts = (*op.in_shardings, *op.out_shardings)
        for number, (value, said) in enumerate(zip((*op.operands, *op.results), cuts, strict=True)):
            lying: Lying = None
            if isinstance(value.type, TensorType):
                dims = tuple(DimSharding(self.mesh.merged(map(axis_of, axes))) for axes in said)
                lying = Sharding(self.name, dims)
            if number < len(op.operands):
                self._want(op, number, value, lying, times)
            else:
                self.fixed[value] = lying

    # States.

    def fill(self) -> None:
        """The states of all nodes: with the ways of earlier ones, then with those of later ones
        too."""
        for backwards in (False, True, False):
            order = reversed(self.nodes) if backwards else self.nodes
            for node in order:
                said = [self.lying(v) for v in (*node.op.operands, *node.op.results)]
                arriving = [self._arriving(value) for value in node.op.operands]
                wanted = [self._wanted(value) for value in node.op.results]
                node.states = self.candidates.of(node.op, said, arriving, wanted)

    def _arriving(self, value: Value) -> list[Lying]:
        if value in self.fixed:
            return [self.fixed[value]]
        node, number = self.made[value]
        return list(dict.fromkeys(state.results[number] for state in node.states))

    def _wanted(self, value: Value) -> list[Lying]:
        found: dict[Lying, None] = {}
        for use in self.uses.get(value, ()):
            if use.node is None:
                found[use.wanted] = None
            else:
                found.update((state.operands[use.operand], None) for state in use.node.states)
        return list(found)

    # The cheapest.

    def solve(self) -> None:
        """Choose a state for each node."""
        places = {id(node): number for number, node in enumerate(self.nodes)}
        prices = [
            np.array([node.times * state.price for state in node.states]) for node in self.nodes
        ]
        edges: dict[tuple[int, int], Array] = {}
        for value, sources, maker in self._values():
            for use in self.uses.get(value, ()):
                targets = self._targets(use)
                costs = use.times * self.transit.prices(value.tensor, sources, targets)
                costs = np.minimum(costs, 1e18)
                if maker is None and use.node is None:
                    continue
                if maker is None or use.node is None:
                    node = maker or use.node
                    assert node is not None
                    prices[places[id(node)]] += costs[0] if maker is None else costs[:, 0]
                    continue
                edge = places[id(maker)], places[id(use.node)]
                edges[edge] = edges[edge] + costs if edge in edges else costs
        best, lowest = list[int](), float("inf")
        for answer in cheapest(prices, edges)[:ANSWERS]:
            self._take(answer)
            self._polish()
            price = self.price()
            if price < lowest * (1 - 1e-9):
                best, lowest = [node.chosen for node in self.nodes], price
        self._take(best)

    def _take(self, answer: Sequence[int]) -> None:
        for node, chosen in zip(self.nodes, answer, strict=True):
            node.chosen = chosen

    def _values(self) -> Iterator[tuple[Value, list[Lying], _Node | None]]:
        """Each tensor that is used, how it may lie where it is made, and the node that makes it."""
        for value in self.uses:
            if not isinstance(value.type, TensorType):
                continue
            if value in self.fixed:
                yield value, [self.fixed[value]], None
            else:
                node, number = self.made[value]
                yield value, [state.results[number] for state in node.states], node

    def _targets(self, use: _Use) -> list[Lying]:
        if use.node is None:
            return [use.wanted]
        return [state.operands[use.operand] for state in use.node.states]

    def _polish(self) -> None:
        """Take better states one by one, where uses that want the same share what brings it."""
        for _ in range(3):
            changed = False
            for node in self.nodes:
                values = [v for v in (*node.op.operands, *node.op.results) if v in self.uses]
                values = [v for v in dict.fromkeys(values) if isinstance(v.type, TensorType)]
                before = node.chosen
                best, lowest = before, float("inf")
                for number in (before, *(n for n in range(len(node.states)) if n != before)):
                    node.chosen = number
                    price = node.times * node.state.price + sum(map(self._moved, values))
                    if price < lowest * (1 - 1e-9) - 1e-6:
                        best, lowest = number, price
                node.chosen = best
                changed = changed or best != before
            if not changed:
                return

    def _moved(self, value: Value) -> float:
        """What it costs that a value comes to all of its uses."""
        if value in self.fixed:
            source = self.fixed[value]
        else:
            node, number = self.made[value]
            source = node.state.results[number]
        targets: dict[Lying, float] = {}
        for use in self.uses[value]:
            lying = use.wanted if use.node is None else use.node.state.operands[use.operand]
            if lying != source:
                targets[lying] = max(targets.get(lying, 0.0), use.times)
        if not targets:
            return 0.0
        kind = value.tensor
        return sum(
            times * float(self.transit.prices(kind, (source,), (lying,))[0, 0])
            for lying, times in targets.items()
        )

    def price(self) -> float:
        own = sum(node.times * node.state.price for node in self.nodes)
        tensors = (v for v in self.uses if isinstance(v.type, TensorType))
        return own + sum(map(self._moved, tensors))


def _is_cut(lying: Lying) -> bool:
    return lying is not None and any(dim.axes for dim in lying.dims)
