"""How arguments and weights lie where the user left that open: as costs least in the memory of a
device.

    found = fill(module, memory=8 << 30)
    found.module, found.price, found.memory

The prices are those of `choose`, but arguments, weights, results and what control flow carries
have states too, and each operation one for every way in which axes of the mesh divide it.
`search.py` finds the cheapest that hold no more than there is memory. Without a limit nothing
speaks for cutting a weight but what is sent and computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isfinite

from ...hlo import ops
from ...hlo.build import Builder
from ...hlo.errors import UserError
from ...hlo.graph import Module, Op, Origin, Region, Value, arguments
from ...hlo.regions import rewritten
from ...hlo.sharding import Sharding
from ...hlo.types import TensorType, Type
from ..counters import counters, turns
from .alike import alike
from .candidates import Ways
from .choice import USUAL_TURNS, ChoiceGraph, ChoiceNode, OperandUse, choose
from .memory import memory_of
from .propagated import Propagated, propagate
from .search import WHOLE, ShardingSearch

ATTEMPTS = 8  # in which the limit is lowered by what the program holds beside the estimate
NEAR = 64  # limits that differ by less than this part of the memory are one


@dataclass(frozen=True, eq=False)
class Filled:
    """`module`: the program with shardings of open arguments and weights, and of products, from
    which those of the other values follow. `price`: what a step is expected to cost a device, as of
    `choose`; `memory`: bytes that it is expected to hold; `bound`: what no choice costs less than
    that fits, cuts dims evenly by whole axes, and lets equal layers lie alike."""

    module: Module
    price: float
    memory: int
    bounded: Callable[[], float]

    @cached_property
    def bound(self) -> float:
        """Found when it is asked for, which takes seconds for a layer of a model."""
        return self.bounded()

    @property
    def gap(self) -> float:
        """How much more the choice costs, as a part of the bound; choices that cut dims in other
        ways can cost less, which is no gap."""
        return max(self.price / self.bound - 1, 0.0) if self.bound > 0 else float("inf")

    def facts(self) -> dict[str, float | int | None]:
        """As JSON values."""
        gap = self.gap
        return {
            "price": self.price, "bound": self.bound, "gap": gap if isfinite(gap) else None,
            "memory_bytes": self.memory,
        }  # fmt: skip


def fill(found: Propagated, memory: int | None = None) -> Filled:
    """Shardings for the arguments and weights of which nothing is said.

    found: a propagated program, whose types have the shardings that are said. memory: bytes that a
    device has for arguments, results and temporaries, as `memory.py` estimates them. UserError
    where they are too few.
    """
    graph = _OpenGraph(found)
    graph.fill()
    search = ShardingSearch(alike(graph))
    best: Filled | None = None
    limit, low, high, least = memory, 0, memory or 0, inf  # with `low` what was found fits
    for _ in range(ATTEMPTS):
        answer = search.cheapest(limit)
        if answer is None:
            break
        states = search.states(answer)
        module = annotated(found.module, graph.shardings(states), graph.results(states))
        choice = choose(propagate(module))
        held = memory_of(choice.module).total
        filled = Filled(module, choice.price, held, partial(search.bound, memory))
        if memory is None or limit is None or limit == memory and held <= memory:
            return filled
        least = min(held, least)
        if held <= memory:
            low = limit
            if best is None or filled.price < best.price:
                best = filled
        else:
            high = int(answer.held)
        if best is None:
            limit = int(answer.held) - (held - memory)
        elif high - low < memory // NEAR or search.columns > WHOLE:
            break
        else:
            limit = (low + high) // 2
    if best is not None:
        return best
    least = min(least, *(answer.held for answer in search.found))
    raise UserError(
        f"memory: no choice that was found fits into {memory} bytes of a device, the least takes "
        f"{least:.0f}: give it more, or a larger mesh"
    )


def annotated(
    module: Module, shardings: Mapping[Value, Sharding], results: Mapping[int, Sharding]
) -> Module:
    """The module with these shardings of arguments and of results of operations, and of the
    program's results, by number."""
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
            mapping[value] = b.append(_constrained(made, typed(value), op.origin)).result
        return True

    own = arguments([typed(value) for value in body.arguments])
    renamed = dict(zip(body.arguments, own, strict=True))
    new = rewritten(body, renamed, change, own)
    ops, ends = list(new.ops), list(new.results)
    for number, sharding in results.items():
        value = ends[number]
        kind = value.tensor.with_sharding(sharding)
        if value.type != kind:
            origin = () if value.op is None else value.op.origin
            ops.append(_constrained(value, kind, origin))
            ends[number] = ops[-1].result
    return module.with_main(Region(own, ops, ends))


def _constrained(value: Value, kind: Type, origin: tuple[Origin, ...]) -> Op:
    return Op(ops.find("sharding_constraint"), (value,), {}, (), (kind,), origin)


class _OpenGraph(ChoiceGraph):
    """The graph of `choice.py`, in which what is not said is open. `ends`: the nodes of results of
    which nothing is said, by their numbers."""

    def __init__(self, found: Propagated) -> None:
        self.ends: dict[int, ChoiceNode] = {}
        super().__init__(found)

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
        elif argument is None and isinstance(value.type, TensorType) and not value.type.sharding:
            self.ends[number] = self._place((), [(value, 1.0)], value.type)
        else:
            super().result(region, number)

    def _place(
        self,
        made: Sequence[Value],
        taken: Sequence[tuple[Value, float]],
        kind: TensorType | None = None,
    ) -> ChoiceNode:
        """A node for values that lie alike: those that it makes, and those that come to it."""
        states = self.candidates.placed(kind or made[0].tensor)
        node = ChoiceNode(None, 1.0, len(self.nodes), (), states)
        self.nodes.append(node)
        self.made.update((value, (node, 0)) for value in made)
        for value, times in taken:
            self.uses.setdefault(value, []).append(OperandUse(node, 0, None, times))
        return node

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

    def results(self, states: Sequence[int]) -> dict[int, Sharding]:
        """Of the program's results, by number, from each node's state."""
        found: dict[int, Sharding] = {}
        for number, node in self.ends.items():
            (lying,) = node.known.states[states[node.number]].results
            assert lying is not None
            found[number] = lying
        return found

    @property
    def _nothing(self) -> Ways:
        return self.candidates.ways(())

    def shardings(self, states: Sequence[int]) -> dict[Value, Sharding]:
        """Of the open arguments, weights and products, from each node's state; of a product that is
        left as terms of a sum nothing is said."""
        stated = {v: self.made[v] for v in self.module.body.arguments if v in self.made}
        for node in self.nodes:
            op = node.op
            if op is not None and (op.name == "weight" or op.definition.pattern == "contract"):
                stated[op.result] = node, 0
        found: dict[Value, Sharding] = {}
        for value, (node, number) in stated.items():
            lying = node.known.states[states[node.number]].results[number]
            assert lying is not None
            if not lying.unreduced:
                found[value] = lying
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
