"""Loops of tile functions without the turns that change nothing.

Attention that looks back only masks whole windows of what comes later: their scores are -inf, their
weights 0, and what the loop carries stays as it was. That is proven for a loop's body by computing
with what is known of its values where the mask holds nowhere; then the loop ends before, or begins
behind, such windows. What they hold is taken to be finite, so that 0 * x is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...hlo.build import Builder, build_module, make_op
from ...hlo.deciding import at_hint, surely_at_most
from ...hlo.graph import Dense, Op, Region, Value, arguments, constant_of
from ...hlo.interpret import Interpreter
from ...hlo.offsets import EVERYTHING, Offset, Offsets
from ...hlo.ops.bodies import monoid
from ...hlo.ops.tile import INDEX
from ...hlo.positions import difference, most
from ...hlo.regions import rewritten
from ...hlo.symbols import Dim, maximum
from ...hlo.types import TensorType
from ..fold import Folder
from ..licence import Ledger

_NEUTRAL = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}
_NEUTRAL_BEHIND = {"subtract": 0.0, "divide": 1.0}
_REFLEXIVE = frozenset(("EQ", "GE", "LE"))


class Edge(NamedTuple):
    """Turns change nothing where `rest` + `slope` * (the loop's variable) is negative."""

    rest: Offset
    slope: int  # not 0


def without_idle_turns(kernel: Op) -> Op:
    """The kernel_call whose loops leave out the turns in which a mask that holds nowhere makes them
    change nothing."""
    found: dict[Op, Edge] = {}
    offsets = Offsets(kernel)
    for op in kernel.regions[0].ops:
        if op.name == "tile_for" and (edge := next(_edges(op, offsets), None)) is not None:
            found[op] = edge
    if not found:
        return kernel

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        edge = found.get(op)
        if edge is None:
            return False
        lower, upper, *carried = (mapping.get(value, value) for value in op.operands)
        bound = _bound(b, edge, offsets, mapping)
        ends = [_quotient(end, edge.slope) for end in offsets.range(edge.rest)]
        if edge.slope > 0:
            lower = bound
        elif all(surely_at_most(end, offsets.of(op.operands[1]).constant) for end in ends):
            upper = bound
        else:
            upper = b("minimum", upper, bound)
        body = rewritten(op.regions[0], mapping, change)
        new = b.append(op.with_operands([lower, upper, *carried], [body]))
        mapping.update(zip(op.results, new.results, strict=True))
        return True

    body, *others = kernel.regions
    return kernel.with_operands(kernel.operands, [rewritten(body, {}, change), *others])


def _edges(loop: Op, offsets: Offsets) -> Iterator[Edge]:
    """The masks of a loop behind whose edge its turns change nothing."""
    body = loop.regions[0]
    lower, upper = (offsets.of(bound) for bound in loop.operands[:2])
    if loop.step != 1 or lower.terms or upper.terms or lower.constant != 0:
        return
    for mask in body.ops:
        if mask.name != "compare" or not mask.result.rank:
            continue
        position = difference(offsets, mask)
        if position is None:
            continue
        highest = most(position, mask.result.dims)
        factors = dict(highest.terms)
        slope = factors.pop(body.arguments[0], 0)
        if not isinstance(slope, int) or not slope:
            continue
        if any(_is_inside(value, body) for value in factors):
            continue
        edge = Edge(Offset(highest.constant, tuple(factors.items())), slope)
        low, high = (_quotient(end, slope) for end in offsets.range(edge.rest))
        reach = [sign * end + abs(slope) for end in offsets.range(edge.rest) for sign in (1, -1)]
        if not all(surely_at_most(end, EVERYTHING[1]) for end in reach):
            continue
        low, high = at_hint(low), at_hint(high)
        gains = low < at_hint(upper.constant) if slope < 0 else low > 0 or high > 0
        if gains and _is_idle(body, mask):
            yield edge


def _is_inside(value: Value, body: Region) -> bool:
    return value.owner is body or value.op in body.ops


def _quotient(rest: Dim, slope: int) -> Dim:
    """The first turn that an edge leaves out, or the first that it does not, from 0 on."""
    step = abs(slope)
    return maximum(0, rest + step if slope < 0 else step - 1 - rest) // step


def _bound(b: Builder, edge: Edge, offsets: Offsets, mapping: dict[Value, Value]) -> Value:
    """`_quotient` of the rest, as an i32 scalar."""
    step = abs(edge.slope)
    above = edge.rest.plus(Offset(step)) if edge.slope < 0 else Offset(step - 1).plus(edge.rest, -1)
    whole = all(factor % step == 0 for _, factor in above.terms)
    constant, divide = above.constant, True
    positive = surely_at_most(0, offsets.range(above)[0])
    if whole and positive:  # each term by itself: the sum stays linear
        constant, divide = above.constant // step, False
    total = _scalar(b, constant)
    for variable, factor in above.terms:
        number = _scalar(b, factor if divide else factor // step)
        total = b("add", total, b("multiply", mapping.get(variable, variable), number))
    if divide:
        total = b("maximum", total, b.constant(0, INDEX))
        total = b("divide", total, b.constant(step, INDEX))
    return total


def _scalar(b: Builder, number: Dim) -> Value:
    """A number as an i32 scalar; a size that a call decides is none below 0."""
    if isinstance(number, int):
        return b.constant(number, INDEX)
    if surely_at_most(0, number):
        return b("tile_bound", size=number)
    return b("negate", b("tile_bound", size=-number))


class _Fact(NamedTuple):
    """What is known of a tile: that it is one number, or a carried value as it was, and that no
    element of it is -inf."""

    number: Any = None
    carried: int | None = None
    bounded: bool = False


_NOTHING = _Fact()


def _is_end(test: Op | None) -> bool:
    """Whether a comparison is one with a bound of an open dim."""
    if test is None or test.name != "compare":
        return False
    spread = test.operands[1].op
    if spread is None or spread.name != "broadcast_in_dim":
        return False
    bound = spread.operands[0].op
    return bound is not None and bound.name == "tile_bound"


def _is_idle(body: Region, mask: Op) -> bool:
    """Whether the body gives what it takes where the mask holds nowhere."""
    if any(op.definition.effects or op.name == "tile_for" for op in body.ops):
        return False
    known = _KnownFacts()
    for number, value in enumerate(body.arguments[1:]):
        known.facts[value] = _Fact(carried=number)
    known.facts[mask.result] = _number(False)
    for op in body.ops:
        if op is not mask and len(op.results) == 1:
            known.facts[op.result] = known.fact(op)
    return all(known.of(value).carried == n for n, value in enumerate(body.results))


def _number(number: Any) -> _Fact:
    return _Fact(number=number, bounded=float(number) != -math.inf)


class _KnownFacts:
    """Facts of the values of a loop's body, in order."""

    def __init__(self) -> None:
        self.facts: dict[Value, _Fact] = {}
        self.folder = Folder(Interpreter(build_module([], lambda b: [])), Ledger())

    def of(self, value: Value) -> _Fact:
        dense = constant_of(value)
        if dense is not None and dense.is_splat and not value.element.is_complex:
            return _number(dense.splat_value)
        return self.facts.get(value, _NOTHING)

    def fact(self, op: Op) -> _Fact:
        facts = [self.of(value) for value in op.operands]
        numbers = [fact.number for fact in facts]
        if op.definition.moves == "whole":
            orders = op.name in ("transpose", "reverse")
            same = op.result.dims == op.operands[0].dims and not orders
            return facts[0] if same else facts[0]._replace(carried=None)
        if op.name == "select" and numbers[0] is not None:
            return facts[1] if numbers[0] else facts[2]
        if op.name == "reduce":
            return self.reduced(op, numbers)
        if op.name == "dot_general" and 0 in [n for n in numbers if n is not None]:
            return _number(0.0)
        if op.definition.pattern != "elementwise":
            return _NOTHING
        if all(number is not None for number in numbers):
            return self.folded(op, numbers)
        return self.elementwise(op, facts)

    def elementwise(self, op: Op, facts: list[_Fact]) -> _Fact:
        numbers = [fact.number for fact in facts]
        if op.name == "select":
            return self.guarded(op, facts)
        if op.name == "and" and any(n is not None and not n for n in numbers):
            return _number(False)
        if op.name == "compare" and op.comparison_direction in _REFLEXIVE:
            same = facts[0].carried is not None and facts[0].carried == facts[1].carried
            return _number(True) if same else _NOTHING
        if len(facts) != 2 or not op.result.element.is_float:
            return _NOTHING
        neutral = _NEUTRAL.get(op.name)
        for one, other in ((0, 1), (1, 0)):
            if neutral is not None and numbers[one] == neutral:
                return facts[other]
        behind = _NEUTRAL_BEHIND.get(op.name)
        if behind is not None and numbers[1] == behind:
            return facts[0]
        if op.name == "multiply" and 0 in [n for n in numbers if n is not None]:
            return _number(0.0)
        if op.name == "subtract" and numbers[0] == -math.inf and facts[1].bounded:
            return facts[0]
        return _NOTHING

    def guarded(self, op: Op, facts: list[_Fact]) -> _Fact:
        """select(x = -inf, a, x), which is never -inf; one number on both sides of an end that a
        call decides."""
        test, tile = op.operands[0].op, op.operands[2]
        if facts[1].number is not None and facts[1] == facts[2] and _is_end(test):
            return facts[1]
        if test is None or test.name != "compare" or test.comparison_direction != "EQ":
            return _NOTHING
        limit = self.of(test.operands[1]).number
        if limit == -math.inf and test.operands[0] is tile and facts[1].bounded:
            return _Fact(bounded=True)
        return _NOTHING

    def reduced(self, op: Op, numbers: list[Any]) -> _Fact:
        """The sum of one number, where it does not depend on how often that is added."""
        name = monoid(op.regions[0])
        if len(numbers) != 2 or name is None or None in numbers:
            return _NOTHING
        element = op.operands[0].element
        scalars = arguments([TensorType((), element)] * 2)
        combine = make_op(name, scalars)
        once = self.folded(combine, [numbers[1], numbers[0]])
        for pair in ((once.number, numbers[0]), (once.number, once.number)):
            if self.folded(combine, list(pair)) != once:
                return _NOTHING
        return once

    def folded(self, op: Op, numbers: list[Any]) -> _Fact:
        """An elementwise operation of numbers."""
        constants = []
        for value, number in zip(op.operands, numbers, strict=True):
            dense = Dense.splat(number, TensorType((), value.element))
            constants.append(make_op("constant", (), {"value": dense}).result)
        types = [TensorType((), op.result.element)]
        dense = self.folder.fold(Op(op.definition, constants, op.attributes, (), types, op.origin))
        if dense is None or dense.type.element.is_complex:
            return _NOTHING
        return _number(dense.splat_value)
