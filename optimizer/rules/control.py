"""Rules for while, if, case and sort: branches that are known, carries that are not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.build import build_region
from ...hlo.graph import Op, Region, Value, arguments
from ...hlo.interpret import evaluated
from ...hlo.types import F32, I1, I32, TensorType
from ..rewrite import Rewriter, copied
from ..rule import Example, Rule, example, structural
from .common import made_by

LINE = TensorType((4,), F32)
COUNT = TensorType((), I32)
FLAG = TensorType((), I1)


# Branches.


def _if_examples() -> Iterator[Example]:
    def body(b: Any, x: Value, p: Value | None = None, known: bool = True) -> Value:
        double = build_region([], lambda c: [c("add", x, x)])
        other = build_region([], lambda c: [c("negate", x)])
        pred = b.constant(np.bool_(known), FLAG) if p is None else p
        return b("if", pred, regions=(double, other))

    yield example("true", [LINE], body)
    yield example("false", [LINE], lambda b, x: body(b, x, None, False))
    yield example("unknown", [LINE, FLAG], body, fires=False)


@structural("if-known", "if", examples=_if_examples, lowers="branches")
def if_known(op: Op, b: Rewriter) -> Sequence[Value] | None:
    """if(true | false) -> the branch that is taken"""
    number = b.scalar(op.operands[0])
    if number is None:
        return None
    return b.inline(op.regions[0 if number else 1], [])


def _case_examples() -> Iterator[Example]:
    for number in (0, 1, 7, -1):

        def body(b: Any, x: Value, n: int = number) -> Value:
            first = build_region([], lambda c: [c("add", x, x)])
            second = build_region([], lambda c: [c("negate", x)])
            return b("case", b.constant(n, COUNT), regions=(first, second))

        yield example(f"{number}", [LINE], body)


@structural("case-known", "case", examples=_case_examples, lowers="branches")
def case_known(op: Op, b: Rewriter) -> Sequence[Value] | None:
    """case(constant) -> the branch that is taken; one branch is always taken"""
    number = b.scalar(op.operands[0])
    last = len(op.regions) - 1
    if number is None and last:
        return None
    taken = last if number is None or not 0 <= number < last else int(number)
    return b.inline(op.regions[taken], [])


# Loops.


def loop(b: Any, values: Sequence[Value], cond: Any, body: Any) -> Op:
    """A while operation for examples."""
    types = [value.type for value in values]
    return b.op("while", values, {}, [build_region(types, cond), build_region(types, body)])


def _never_examples() -> Iterator[Example]:
    def body(b: Any, x: Value) -> Value:
        op = loop(
            b, [x],
            lambda c, v: [c.constant(np.bool_(False), FLAG)],
            lambda c, v: [c("negate", v)],
        )  # fmt: skip
        return op.results[0]

    def counted(first: int) -> Any:
        def build(b: Any, x: Value) -> list[Value]:
            op = loop(
                b, [b.constant(first, COUNT), x],
                lambda c, i, v: [c.compare("LT", i, c.constant(3, COUNT))],
                lambda c, i, v: [c("add", i, c.constant(1, COUNT)), c("negate", v)],
            )  # fmt: skip
            return [b("negate", op.results[1])]

        return build

    yield example("false", [LINE], lambda b, x: b("abs", body(b, x)))
    yield example("count is reached", [LINE], counted(3))
    yield example("count is not reached", [LINE], counted(2), fires=False)


@structural("while-never", "while", examples=_never_examples, lowers="loops")
def while_never(op: Op, b: Rewriter) -> Sequence[Value] | None:
    """while whose condition is false at once -> its operands"""
    cond = op.regions[0]
    if len(cond.ops) > 8:
        return None
    known = _first_condition(op, cond, b)
    return op.operands if known is False else None


def _first_condition(op: Op, cond: Region, b: Rewriter) -> bool | None:
    """The condition's value before the first round, if constants alone decide it."""
    start = dict(zip(cond.arguments, op.operands, strict=True))
    numbers: dict[Value, Any] = {}

    def number(value: Value) -> Any:
        if value in numbers:
            return numbers[value]
        return b.scalar(start.get(value, value))

    for inner in cond.ops:
        found = [number(value) for value in inner.operands]
        if inner.name == "constant":
            numbers[inner.results[0]] = b.scalar(inner.results[0])
        elif inner.definition.pattern == "elementwise" and all(n is not None for n in found):
            (result,) = evaluated(inner, list(map(np.asarray, found)))
            numbers[inner.results[0]] = np.asarray(result)[()]
        else:
            return None
    known = number(cond.results[0])
    return None if known is None else bool(known)


def _carry_examples() -> Iterator[Example]:
    def body(b: Any, x: Value, y: Value) -> list[Value]:
        op = loop(
            b, [b.constant(0, COUNT), x, y, x],
            lambda c, i, v, k, w: [c.compare("LT", i, c.constant(3, COUNT))],
            lambda c, i, v, k, w: [
                c("add", i, c.constant(1, COUNT)), c("add", v, k), k, c("negate", w)
            ],
        )  # fmt: skip
        return [op.results[1], op.results[2]]

    yield example("invariant and dead", [LINE, LINE], body)

    def needed(b: Any, x: Value) -> Value:
        op = loop(
            b, [b.constant(0, COUNT), x],
            lambda c, i, v: [c.compare("LT", i, c.constant(3, COUNT))],
            lambda c, i, v: [c("add", i, c.constant(1, COUNT)), c("negate", v)],
        )  # fmt: skip
        return op.results[1]

    yield example("needed", [LINE], needed, fires=False)


@structural("while-carries", "while", examples=_carry_examples, lowers="carried values",
            local=True)  # fmt: skip
def while_carries(op: Op, b: Rewriter) -> Sequence[Value] | None:
    """while without carries that never change (now captured) or that nothing needs"""
    cond, body = op.regions
    count = len(op.operands)
    same = {i for i in range(count) if body.results[i] is body.arguments[i]}
    kept = _needed_carries(op, b) - same
    if len(kept) == count:
        return None
    order = sorted(kept)
    regions = [_narrowed(cond, op.operands, order, same, cond.results)]
    regions.append(_narrowed(body, op.operands, order, same, [body.results[i] for i in order]))
    results: list[Value] = list(op.operands)  # right for what never changes, unused otherwise
    if order:
        types = [op.operands[i].type for i in order]
        made = b.build("while", [op.operands[i] for i in order], op.attributes, regions, types)
        for i, value in zip(order, made, strict=True):
            results[i] = value
        return results
    return None  # nothing is carried: it never ends, or never begins


def _needed_carries(op: Op, b: Rewriter) -> set[int]:
    """Carries that the condition, a result in use, or another needed carry depends on."""
    cond, body = op.regions
    if b.replacing is None:
        return set(range(len(op.operands)))  # just built: who uses it is not known yet
    needed = {i for i, value in enumerate(b.replacing.results) if b.uses(value)}
    needed |= _arguments_behind(cond, [cond.results[0]])
    for region in (cond, body):
        if any(b.engine.keys.has_effects(inner) for inner in region.ops):
            return set(range(len(op.operands)))
    while True:
        behind = _arguments_behind(body, [body.results[i] for i in needed]) | needed
        if behind == needed:
            return needed
        needed = behind


def _arguments_behind(region: Region, results: Sequence[Value]) -> set[int]:
    """Which arguments of a region some of its results depend on."""
    wanted = set(results)
    for inner in reversed(region.ops):
        if any(value in wanted for value in inner.results):
            wanted.update(inner.operands)
            for nested in inner.regions:
                wanted.update(nested.captures())
    return {argument.index for argument in region.arguments if argument in wanted}


def _narrowed(
    region: Region, operands: Sequence[Value], kept: Sequence[int], same: set[int],
    results: Sequence[Value],
) -> Region:  # fmt: skip
    """The region with the kept arguments alone; those in `same` become the outer values."""
    fresh = arguments([region.arguments[i].type for i in kept])
    values = {region.arguments[i]: operands[i] for i in same}
    values.update((region.arguments[i], value) for i, value in zip(kept, fresh, strict=True))
    wanted = set(results)
    live = []
    for inner in reversed(region.ops):
        if any(value in wanted for value in inner.results):
            wanted.update(inner.operands)
            for nested in inner.regions:
                wanted.update(nested.captures())
            live.append(inner)
    ops = []
    for inner in reversed(live):
        copy = copied(inner, values)
        values.update(zip(inner.results, copy.results, strict=True))
        ops.append(copy)
    return Region(fresh, ops, [values.get(value, value) for value in results])


# Barriers.


def _barrier_examples() -> Iterator[Example]:
    yield example(
        "twice",
        [LINE],
        lambda b, x: b("optimization_barrier", b("optimization_barrier", x)),
    )
    yield example("once", [LINE], lambda b, x: b("optimization_barrier", x), fires=False)


@structural("barrier-of-barrier", "optimization_barrier", examples=_barrier_examples)
def barrier_of_barrier(op: Op, b: Rewriter) -> Sequence[Value] | None:
    """barrier(barrier x) -> barrier x"""
    inner = made_by(op.operands[0], "optimization_barrier") if op.operands else None
    if inner is None or op.operands != inner.results:
        return None
    return inner.results


def _member_examples() -> Iterator[Example]:
    yield example(
        "second",
        [LINE, COUNT],
        lambda b, x, y: b("get_tuple_element", b("tuple", x, y), index=1, type=COUNT),
    )


@structural("member-of-tuple", "get_tuple_element", examples=_member_examples)
def member_of_tuple(op: Op, b: Rewriter) -> Value | None:
    """get_tuple_element(tuple(x, y), i) -> the i-th of x, y"""
    inner = made_by(op.operands[0], "tuple")
    return None if inner is None else inner.operands[op.index]


RULES: tuple[Rule, ...] = (
    if_known, case_known, while_never, while_carries, barrier_of_barrier, member_of_tuple,
)  # fmt: skip
