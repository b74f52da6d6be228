"""Masks that hold everywhere in the first rounds of a loop.

A comparison of positions, as in `row >= column`, that is linear in the loop's variable holds for a
whole tile up to some round. Those rounds are walked by a loop of their own, without the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....hlo.deciding import surely_at_most
from ....hlo.graph import Value
from ....hlo.offsets import EVERYTHING, Offset
from ....hlo.positions import difference, least
from ....optimizer.asynchronous.work import PipelineWork
from ... import llvm
from .registers import FragmentEvaluator


@dataclass(frozen=True)
class Mask:
    """A comparison that holds for all elements of a tile where `least` is not negative; `least`
    falls by `slope` with each unit of the loop's variable."""

    value: Value
    least: Offset  # without the loop's variable
    slope: int


def masks(work: PipelineWork) -> tuple[list[Value], list[Mask]]:
    """(comparisons that hold always, those that hold in the first rounds) in the loop."""
    always: list[Value] = []
    first: list[Mask] = []
    if work.loop is None:
        return always, first
    body = work.loop.regions[0]
    index = body.arguments[0]
    inside = set(body.ops)
    for op in body.ops:
        if op.name != "compare" or not op.result.rank:
            continue
        found = difference(work.offsets, op)
        if found is None:
            continue
        lowest = least(found, op.result.dims)
        low, high = work.offsets.range(lowest)
        if surely_at_most(0, low):
            always.append(op.result)
            continue
        if not (surely_at_most(EVERYTHING[0], low) and surely_at_most(high, EVERYTHING[1])):
            continue
        factors = dict(lowest.terms)
        slope = -factors.pop(index, 0)
        known = all(v.owner is not body and v.op not in inside for v in factors)
        if isinstance(slope, int) and slope > 0 and known:
            rest = Offset(lowest.constant, tuple(factors.items()))
            first.append(Mask(op.result, rest, slope))
    return always, first


def first_rounds(
    evaluator: FragmentEvaluator, found: list[Mask], begin: llvm.Value, end: llvm.Value, step: int
) -> llvm.Value:
    """Where the rounds from `begin` on end in which all of the masks hold: begin + a multiple of
    `step`, beyond `end` by less than one round."""
    f = evaluator.f
    last = end
    for mask in found:
        lowest = evaluator.sum(mask.least, "i32")
        rounds = f.add(f.udiv(f.max(lowest, 0), mask.slope), 1)
        last = f.min(last, f.select(f.compare("slt", lowest, 0), begin, rounds))
    count = f.udiv(f.add(f.sub(f.max(last, begin), begin), step - 1), step)
    return f.add(begin, f.mul(count, step))
