"""How arguments and weights lie where the user left that open: as costs least in the memory of a
device.

    found = fill(module, memory=8 << 30)
    found.module, found.price, found.memory

The prices are those of `choose`, and so is the search (`choice.py`), but arguments, weights,
results and what control flow carries have states too, and each operation one for every way in which
axes of the mesh divide it. The bound is relaxed (Lagrange): a byte that is held while the most is
held has a price, which grows until the rest fits. Without a bound nothing speaks for cutting a
weight but what is sent and computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...hlo import ops
from ...hlo.build import Builder
from ...hlo.errors import UserError
from ...hlo.graph import Module, Op, Region, Value, arguments
from ...hlo.sharding import Sharding
from ...hlo.types import TensorType, Type
from ..counters import counters, turns
from ..regions import rewritten
from .candidates import Lying, Ways
from .choice import USUAL_TURNS, Graph, Node, OperandUse, choose, pairwise
from .memory import Lifetimes, local_bytes, memory_of
from .min_sum import cheapest
from .propagated import Propagated, propagate
from .value_costs import Array, Improvement

ATTEMPTS = 6  # in which the bound is lowered by what the program holds beside the estimate
SWEEPS, ANSWERS = 10, 2  # to the same prices
MOMENTS = 6  # of a program that get a price for memory
HELD = (
    1 / 1024
)  # price of a byte of an argument: of ways equal in the rest, the one that holds less
# Such a price is between these (bytes sent for one held): first multiplied, then halved in between.
_LEAST, _MOST, _FACTOR, _HALVINGS = 1 / 64, 4.0**7, 4.0, 4


@dataclass(frozen=True, eq=False)
class Filled:
    """`module`: the program with shardings of open arguments and weights, and of products, from
    which those of the other values follow. `price`: what a step is expected to cost a device, as of
    `choose`; `memory`: bytes that it is expected to hold."""

    module: Module
    price: float
    memory: int


def fill(found: Propagated, memory: int | None = None) -> Filled:
    """Shardings for the arguments and weights of which nothing is said.

    found: a propagated program, whose types have the shardings that are said. memory: bytes that a
    device has for arguments, results and temporaries, as `memory.py` estimates them. UserError
    where they are too few.
    """
    graph = _OpenGraph(found)
    graph.fill()
    search = _Search(graph)
    bound, least = memory, float("inf")
    for _ in range(ATTEMPTS):
        answer = search.run(bound)
        if answer is None:
            break
        module = annotated(found.module, answer.shardings)
        choice = choose(propagate(module))
        held = memory_of(choice.module).total
        if memory is None or held <= memory:
            return Filled(module, choice.price, held)
        bound, least = int(answer.held) - (held - memory), min(held, least)
    least = min(least, *(answer.held for answer in search.found))
    raise UserError(
        f"memory: no choice that was found fits into {memory} bytes of a device, the least takes "
        f"{least:.0f}: give it more, or a larger mesh"
    )


def annotated(module: Module, shardings: Mapping[Value, Sharding]) -> Module:
    """The module with these shardings of arguments, and of results of operations."""
    body = module.body

    def typed(value: Value) -> Type:
        if value not in shardings:
            return value.type
        return value.tensor.with_sharding(shardings[value])

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if not any(value in shardings for value in op.results):
            return False
        new = b.append(op.with_operands([mapping.get(v, v) for v in op.operands]))
        for value, made in zip(op.results, new.results, strict=True):
            kinds = (typed(value),)
            constraint = Op(ops.find("sharding_constraint"), (made,), {}, (), kinds, op.origin)
            mapping[value] = b.append(constraint).result
        return True

    own = arguments([typed(value) for value in body.arguments])
    renamed = dict(zip(body.arguments, own, strict=True))
    return module.with_main(rewritten(body, renamed, change, own))


class _OpenGraph(Graph):
    """The graph of `choice.py`, in which what is not said is open."""

    def argument(self, value: Value) -> None:
        if isinstance(value.type, TensorType) and value.type.sharding is None:
            self._place((value,), [])
        else:
            super().argument(value)

    def result(self, region: Region, number: int) -> None:
        value = region.results[number]
        argument = _updated(value, set(region.arguments))
        if argument in self.made:
            node, _ = self.made[argument]
            self.uses.setdefault(value, []).append(OperandUse(node, 0, None, 1.0))
        elif isinstance(value.type, TensorType) and argument is None:
            self._place((), [(value, 1.0)], value.type)
        else:
            super().result(region, number)

    def _place(
        self,
        made: Sequence[Value],
        taken: Sequence[tuple[Value, float]],
        kind: TensorType | None = None,
    ) -> None:
        """A node for values that lie alike: those that it makes, and those that come to it."""
        states = self.candidates.placed(kind or made[0].tensor)
        node = Node(None, 1.0, len(self.nodes), (), states)
        self.nodes.append(node)
        self.made.update((value, (node, 0)) for value in made)
        for value, times in taken:
            self.uses.setdefault(value, []).append(OperandUse(node, 0, None, times))

    def loop(self, op: Op, times: float) -> None:
        cond, body = op.regions
        count = turns(op, counters(op))
        inner = times * (USUAL_TURNS if count is None else max(count, 1))
        for number, value in enumerate(op.operands):
            same = cond.arguments[number], body.arguments[number], op.results[number]
            if isinstance(value.type, TensorType):
                self._place(same, [(value, times), (body.results[number], inner)])
            else:
                self.fixed.update(dict.fromkeys(same))
                self.want(op, number, value, None, times)
                self.want(body, number, body.results[number], None, inner)
        self.region(cond, inner)
        self.want(cond, 0, cond.results[0], self.candidates.whole(cond.results[0]), inner)
        self.region(body, inner)

    def branches(self, op: Op, times: float) -> None:
        self.want(op, 0, op.operands[0], self.candidates.whole(op.operands[0]), times)
        for number, value in enumerate(op.results):
            ends = [(body.results[number], times) for body in op.regions]
            if isinstance(value.type, TensorType):
                self._place((value,), ends)
            else:
                self.fixed[value] = None
                for body, (end, _) in zip(op.regions, ends, strict=True):
                    self.want(body, number, end, None, times)
        for body in op.regions:
            self.region(body, times)

    def fill(self) -> None:
        """Every way of every node: once, in the order of the program."""
        for node in self.nodes:
            if node.op is None:
                continue
            arriving = [self._arriving(value) for value in node.op.operands]
            every = None
            if node.op.name != "sharding_constraint":
                every = self.candidates.every(node.op, arriving)
            if every is None:
                wanted = [self._nothing] * len(node.op.results)
                every = self.candidates.of(node.op, node.said, arriving, wanted)
            node.states = every

    @property
    def _nothing(self) -> Ways:
        return self.candidates.ways(())

    def stated(self) -> dict[Value, tuple[Node, int]]:
        """The open arguments, weights and products: each with the node that makes it, and which
        result."""
        found = {v: self.made[v] for v in self.module.body.arguments if v in self.made}
        for node in self.nodes:
            op = node.op
            if op is not None and (op.name == "weight" or op.definition.pattern == "contract"):
                found[op.result] = node, 0
        return found


def _updated(value: Value, arguments: set[Value]) -> Value | None:
    """The argument, of the same type, from which a result is made element by element: propagation
    lets both lie alike."""
    seen = {value}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one in arguments:
            return one
        if one.op is None or one.op.definition.pattern != "elementwise":
            continue
        for other in reversed(one.op.operands):
            if other not in seen and other.type == value.type:
                seen.add(other)
                waiting.append(other)
    return None


@dataclass(frozen=True, eq=False)
class _Answer:
    """`shardings`: of arguments, weights and products; of a product that is left as terms of a sum
    nothing is said. `held`: the most bytes at one time, without what is brought to uses."""

    shardings: Mapping[Value, Sharding]
    held: float


class _Found(NamedTuple):
    """States of all nodes; what they cost, without prices for memory; the most that they hold."""

    chosen: Sequence[int]
    price: float
    held: float


class _Search:
    """Prices for memory, and the cheapest answers under them."""

    def __init__(self, graph: _OpenGraph) -> None:
        self.graph, self.found = graph, list[_Found]()
        self.prices = [node.times * node.known.prices for node in graph.nodes]
        tensors = [value for value in graph.uses if isinstance(value.type, TensorType)]
        values = [graph.cost(value) for value in tensors]
        self._known: dict[tuple[tuple[int, float], ...], Sequence[int]] = {}
        self.own, self.edges = pairwise(self.prices, values)
        self.improvement = Improvement(self.prices, values)
        lifetimes = Lifetimes(graph.module.body)
        self.end = lifetimes.end
        self.held: list[tuple[int, int, int, Array]] = []  # start, end, node, bytes by state
        known: dict[tuple[TensorType, Ways], Array] = {}
        for value, (start, end) in lifetimes.spans.items():
            if value in graph.fixed:
                ways, node, numbers = graph.only(graph.fixed[value]), -1, None
            else:
                maker, number = graph.made[value]
                ways, numbers = maker.known.results[number]
                node = maker.number
            key = value.tensor, ways
            if key not in known:
                sizes = [self._bytes(value.tensor, lying) for lying in ways.lyings]
                known[key] = np.array(sizes, np.float64)
            sizes = known[key] if numbers is None else known[key][numbers]
            self.held.append((max(start, 0), end, node, sizes))

    def _bytes(self, kind: TensorType, lying: Lying) -> int:
        assert lying is not None
        return local_bytes(kind, lying, self.graph.mesh)

    def run(self, memory: int | None) -> _Answer | None:
        """The cheapest that was found of those that hold no more; None where none does."""
        moments: dict[int, float] = {}

        def tried(more: Mapping[int, float]) -> Array:
            """What is held at each time, in the cheapest answer under these prices."""
            return self._line(self._answer({**moments, **more}))

        line = tried({})
        for _ in range(MOMENTS):
            if memory is None or line.max(initial=0.0) <= memory:
                break
            moment = int(line.argmax())
            low, high = 0.0, moments.get(moment, _LEAST / _FACTOR)
            while high < _MOST:
                low, high = high, high * _FACTOR
                line = tried({moment: high})
                if line[moment] <= memory:
                    break
            for _ in range(_HALVINGS):
                middle = (max(low, _LEAST / _FACTOR) * high) ** 0.5
                at = tried({moment: middle})
                if at[moment] <= memory:
                    high, line = middle, at
                else:
                    low = middle
            moments[moment] = high
        fitting = [found for found in self.found if memory is None or found.held <= memory]
        if not fitting:
            return None
        best = min(fitting, key=lambda found: found.price)
        shardings: dict[Value, Sharding] = {}
        for value, (node, number) in self.graph.stated().items():
            lying = node.known.states[best.chosen[node.number]].results[number]
            assert lying is not None
            if not lying.unreduced:
                shardings[value] = lying
        return _Answer(shardings, best.held)

    def _answer(self, moments: Mapping[int, float]) -> Sequence[int]:
        """The cheapest states where held bytes have prices."""
        key = tuple(sorted(moments.items()))
        if key not in self._known:
            self._known[key] = self._solved(moments)
        return self._known[key]

    def _solved(self, moments: Mapping[int, float]) -> Sequence[int]:
        own, prices = list(self.own), list(self.prices)
        for start, end, node, sizes in self.held:
            rate = sum(price for moment, price in moments.items() if start <= moment <= end)
            if (start, end) == (0, self.end):
                rate += HELD
            if rate and node >= 0:
                own[node], prices[node] = own[node] + rate * sizes, prices[node] + rate * sizes
        best, lowest = list[int](), float("inf")
        for answer in cheapest(own, self.edges, SWEEPS, ANSWERS):
            self.improvement.prices = prices
            self.improvement.start(answer)
            self.improvement.run()
            chosen, price = self.improvement.chosen, self.improvement.price()
            if price < lowest * (1 - 1e-9):
                best, lowest = chosen, price
            self.improvement.prices = self.prices
            held = float(self._line(chosen).max(initial=0.0))
            self.found.append(_Found(chosen, self.improvement.price(), held))
        return best

    def _line(self, chosen: Sequence[int]) -> Array:
        """Bytes that are held, by the number of the operation that runs."""
        line = np.zeros(self.end + 2)
        for start, end, node, sizes in self.held:
            size = sizes[chosen[node] if node >= 0 else 0]
            line[start] += size
            line[end + 1] -= size
        return line[:-1].cumsum()
