"""What a loop gathers for a turn, gathered in the turn before: the first before the loop.

    while i < n:  x = f(x, all_gather(w[i]))

becomes

    g = all_gather(w[0])
    while i < n - 1:  next = all_gather(w[i + 1]);  x = f(x, g);  g = next
    x = f(x, g)

so that a gather has nothing to wait for but the device's link, and each is still made once. This is
done where the number of turns is known and what is gathered follows from the loop's counters and
from values that stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...hlo.build import Builder
from ...hlo.graph import Module, Op, Region, Value, arguments
from ...hlo.regions import map_bodies, rename
from ..counters import counters, integer, turns
from .timeline import sends

_FREE = ("elementwise", "index", "source")  # what may be computed in the turn before


def gathered_ahead(module: Module) -> Module:
    """The program of one device with loops that gather ahead; itself if none does.

    module: at level INLINED. The values that it computes have the same bits.
    """
    return module.with_main(_region(module.body))


def _region(region: Region) -> Region:
    region = map_bodies(region, lambda _, body: _region(body))
    found = [(op, _ahead(op)) for op in region.ops if op.name == "while"]
    chosen = {op: gathers for op, gathers in found if gathers}
    if not chosen:
        return region
    b = Builder(check=False)
    known: dict[Value, Value] = {}
    for op in region.ops:
        if op in chosen:
            with b.at(op.origin):
                results = _rebuilt(b, op, [known.get(v, v) for v in op.operands], chosen[op], known)
            known.update(zip(op.results, results, strict=True))
        else:
            _copied(b, (op,), known)
    return Region(region.arguments, b.ops, [known.get(value, value) for value in region.results])


def _ahead(loop: Op) -> list[Op]:
    """The gathers of a loop's body that can be made in the turn before."""
    found = counters(loop)
    count = turns(loop, found)
    body = loop.regions[1]
    if count is None or count < 2 or _sooner(loop) is None:
        return []
    same = {
        argument
        for argument, result in zip(body.arguments, body.results, strict=True)
        if argument is result
    }
    known = same | {body.arguments[number] for number in found}
    inside = {result for op in body.ops for result in op.results}
    gathers = []
    for op in body.ops:
        if any(v in inside or (v in body.arguments and v not in known) for v in _reads(op, known)):
            continue
        if op.name == "all_gather":
            gathers.append(op)
        elif op.definition.pattern in _FREE and not op.regions:
            known.update(op.results)
    return gathers


def _reads(op: Op, known: set[Value]) -> list[Value]:
    return [value for value in op.operands if value not in known]


def _sooner(loop: Op) -> tuple[Op, int, int] | None:
    """What a loop's condition compares a counter with, so that it ends a turn sooner: the
    comparison, which of its operands is the bound, and the bound."""
    condition = loop.regions[0]
    compare = condition.results[0].op
    if compare is None or compare not in condition.ops or compare.name != "compare":
        return None
    for number, value in enumerate(compare.operands):
        other, bound = compare.operands[1 - number], integer(value)
        counter = counters(loop).get(other.index) if other in condition.arguments else None
        if bound is None or counter is None:
            continue
        low, high = counter.limits
        if low <= bound - counter.step <= high:
            return compare, number, bound - counter.step
    return None


def _rebuilt(
    b: Builder, loop: Op, operands: Sequence[Value], gathers: Sequence[Op],
    outer: Mapping[Value, Value],
) -> list[Value]:  # fmt: skip
    """The loop's results, from operations built with `b`."""
    body = loop.regions[1]
    needed = _cone(body, gathers)
    first = _gathered(b, needed, gathers, dict(outer), body.arguments, operands)
    values = [value for op in gathers for value in op.results]
    own = arguments([*(v.type for v in body.arguments), *(v.type for v in values)])
    inner, count = Builder(check=False), len(body.arguments)
    kept = [op for op in body.ops if op not in gathers]

    def turn(builder: Builder, given: Sequence[Value], there: Sequence[Value]) -> list[Value]:
        known = {**outer, **dict(zip(body.arguments, given, strict=True))}
        known.update(zip(values, there, strict=True))
        _copied(builder, kept, known)
        return [known.get(value, value) for value in body.results]

    results = turn(inner, own[:count], own[count:])
    later = _gathered(inner, needed, gathers, dict(outer), body.arguments, results)
    new = b.op(
        "while", [*operands, *first], loop.attributes,
        [_condition(loop, outer, own), Region(own, inner.ops, [*results, *later])],
        [value.type for value in own],
    )  # fmt: skip
    return turn(b, new.results[:count], new.results[count:])


def _cone(body: Region, gathers: Sequence[Op]) -> list[Op]:
    """The operations of the body that the gathers need, the gathers themselves last."""
    wanted = {value for op in gathers for value in op.operands}
    found: list[Op] = []
    for op in reversed(body.ops):
        if not sends(op) and any(result in wanted for result in op.results):
            found.append(op)
            wanted.update(op.operands)
    return [*reversed(found), *gathers]


def _gathered(
    b: Builder, ops: Sequence[Op], gathers: Sequence[Op], known: dict[Value, Value],
    own: Sequence[Value], given: Sequence[Value],
) -> list[Value]:  # fmt: skip
    known.update(zip(own, given, strict=True))
    _copied(b, ops, known)
    return [known[value] for op in gathers for value in op.results]


def _condition(loop: Op, outer: Mapping[Value, Value], kinds: Sequence[Value]) -> Region:
    """The loop's condition with a bound that is a step nearer, on more arguments."""
    condition = loop.regions[0]
    found = _sooner(loop)
    assert found is not None
    compare, number, bound = found
    own = arguments([value.type for value in kinds])
    b, known = Builder(check=False), dict(outer)
    known.update(zip(condition.arguments, own, strict=False))
    for op in condition.ops:
        if op is not compare:
            _copied(b, (op,), known)
            continue
        operands = [known.get(value, value) for value in op.operands]
        kind = op.operands[number].tensor
        operands[number] = b.constant(np.asarray(bound).astype(kind.dtype), kind)
        new = b.append(Op(op.definition, operands, op.attributes, (), op.result_types, op.origin))
        known[op.result] = new.result
    return Region(own, b.ops, [known[condition.results[0]]])


def _copied(b: Builder, ops: Sequence[Op], known: dict[Value, Value]) -> None:
    """Append copies of operations; what stands for their results goes into `known`."""
    for op in ops:
        operands = [known.get(value, value) for value in op.operands]
        regions = [rename(body, known) for body in op.regions]
        new = Op(op.definition, operands, op.attributes, regions, op.result_types, op.origin)
        b.append(new)
        known.update(zip(op.results, new.results, strict=True))
