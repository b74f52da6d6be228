"""Masks that hold everywhere in the first rounds of a loop.

A comparison of positions, as in `row >= column`, that is linear in the loop's variable holds for a
whole tile up to some round. Those rounds are walked by a loop of their own, without the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....hlo.graph import Op, Value
from ....hlo.offsets import Offset
from ....hlo.types import I32
from ... import llvm
from .positions import linear
from .registers import Evaluator
from .work import Work

_STRICT = {"GE": (False, False), "GT": (False, True), "LE": (True, False), "LT": (True, True)}


@dataclass(frozen=True)
class Mask:
    """A comparison that holds for all elements of a tile where `least` is not negative; `least`
    falls by `slope` with each unit of the loop's variable."""

    value: Value
    least: Offset  # without the loop's variable
    slope: int


def masks(work: Work) -> tuple[list[Value], list[Mask]]:
    """(comparisons that hold always, those that hold in the first rounds) in the loop."""
    always: list[Value] = []
    first: list[Mask] = []
    if work.loop is None:
        return always, first
    body = work.loop.regions[0]
    index = body.arguments[0]
    inside = set(body.ops)
    for op in body.ops:
        least = _least(work, op)
        if least is None:
            continue
        if work.offsets.range(least)[0] >= 0:
            always.append(op.result)
            continue
        factors = dict(least.terms)
        slope = -factors.pop(index, 0)
        known = all(v.owner is not body and v.op not in inside for v in factors)
        if slope > 0 and known:
            rest = Offset(least.constant, tuple(factors.items()))
            first.append(Mask(op.result, rest, slope))
    return always, first


def _least(work: Work, op: Op) -> Offset | None:
    """The least value over a tile of what has to be at least 0 for a comparison to hold."""
    if op.name != "compare" or op.operands[0].element is not I32 or not op.result.rank:
        return None
    rule = _STRICT.get(op.comparison_direction)
    sides = [linear(work, operand) for operand in op.operands]
    if rule is None or sides[0] is None or sides[1] is None:
        return None
    swapped, strict = rule
    (a, a_steps), (b, b_steps) = reversed(sides) if swapped else sides  # type: ignore[misc]
    least = a.plus(b, -1).plus(Offset(-1 if strict else 0))
    for size, one, other in zip(op.result.dims, a_steps, b_steps, strict=True):
        least = least.plus(Offset(min(0, (one - other) * (size - 1))))
    return least


def first_rounds(
    evaluator: Evaluator, found: list[Mask], begin: llvm.Value, end: llvm.Value, step: int
) -> llvm.Value:
    """Where the rounds from `begin` on end in which all of the masks hold: begin + a multiple of
    `step`, beyond `end` by less than one round."""
    f = evaluator.function
    last = end
    for mask in found:
        least = evaluator.offset(mask.least)
        rounds = f.add(f.udiv(f.max(least, 0), mask.slope), 1)
        last = f.min(last, f.select(f.compare("slt", least, 0), begin, rounds))
    count = f.udiv(f.add(f.sub(f.max(last, begin), begin), step - 1), step)
    return f.add(begin, f.mul(count, step))
