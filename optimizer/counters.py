"""Counters of loops: how many turns a loop makes, and what is known of integers inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..hlo.graph import Op, Region, Value, constant_of
from ..hlo.types import TensorType

Range = tuple[int, int]  # the lowest and the highest value
Known = dict[Value, Range]

MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}


class Counter(NamedTuple):
    """A carried integer that starts at `first` and grows by `step` in every turn, modulo its type's
    range."""

    first: int
    step: int
    limits: Range  # of its type


def counters(loop: Op) -> dict[int, Counter]:
    """The counters among a loop's carried values, by number: scalars that start at a constant."""
    body = loop.regions[1]
    found: dict[int, Counter] = {}
    for index, (start, argument) in enumerate(zip(loop.operands, body.arguments, strict=True)):
        first, limits = integer(start), limits_of(argument)
        if first is None or limits is None or argument.rank:
            continue
        step = _step(argument, body.results[index])
        if step:
            found[index] = Counter(first, step, limits)
    return found


def _made(value: Value) -> tuple[Op | None, Sequence[Value]]:
    """The operation that makes a value, and its operands, also where it stands in a fusion."""
    op = value.op
    if op is None or op.name != "fusion":
        return op, () if op is None else op.operands
    inner = op.regions[0].results[value.index].op
    given = dict(zip(op.regions[0].arguments, op.operands, strict=True))
    return inner, () if inner is None else [given.get(one, one) for one in inner.operands]


_SIGNS = {"add": 1, "subtract": -1}


def _step(argument: Value, result: Value) -> int | None:
    op, operands = _made(result)
    sign = None if op is None else _SIGNS.get(op.name)
    if sign is None:
        return None
    left, right = operands
    if sign > 0 and right is argument:
        left, right = right, left
    number = integer(right)
    return None if left is not argument or number is None else sign * number


def turns(loop: Op, found: Mapping[int, Counter]) -> int | None:
    """How many turns a loop makes, where its condition compares a counter with a constant and the
    counter reaches that without wrapping around; else None."""
    asked = _condition(loop, found)
    if asked is None:
        return None
    index, direction, bound = asked
    limit = integer(bound)
    if limit is None:
        return None
    first, step, (low, high) = found[index]
    if direction == "NE":
        count, rest = divmod(limit - first, step)
        if rest or count < 0:
            return None
    elif direction in ("LT", "LE") and step > 0:
        count = max(0, -(-(limit + (direction == "LE") - first) // step))
    elif direction in ("GT", "GE") and step < 0:
        count = max(0, -(-(first - limit + (direction == "GE")) // -step))
    else:
        return None
    return count if low <= first + step * count <= high else None


def _condition(loop: Op, found: Mapping[int, Counter]) -> tuple[int, str, Value] | None:
    """The counter that a loop's condition compares, how, and with what."""
    condition = loop.regions[0]
    op, operands = _made(condition.results[0])
    if op is None or op.name != "compare" or condition.results[0].op not in condition.ops:
        return None
    left, right = operands
    direction = op.comparison_direction
    if right in condition.arguments:
        left, right, direction = right, left, MIRRORED[direction]
    if left not in condition.arguments or left.index not in found:
        return None
    return left.index, direction, right


def ranges(loop: Op, found: Mapping[int, Counter], count: int | None) -> Known:
    """What is known of the arguments of a loop's body; `count` is the number of turns."""
    arguments = loop.regions[1].arguments
    if count is None:
        asked = _condition(loop, found)
        if asked is None or asked[1] != "LT" or found[asked[0]].step != 1:
            return {}
        first, _, (_, high) = found[asked[0]]  # below a bound, so one more is no overflow
        return {arguments[asked[0]]: (first, high - 1)} if first < high else {}
    known: Known = {}
    for index, (first, step, (low, high)) in found.items():
        last = first + step * max(count - 1, 0)
        if low <= last <= high:
            known[arguments[index]] = min(first, last), max(first, last)
    return known


def integer(value: Value) -> int | None:
    """The integer of which a value is the splat, else None."""
    dense = constant_of(value)
    if dense is None or not dense.is_splat or limits_of(value) is None:
        return None
    return int(dense.splat_value)


def limits_of(value: Value) -> Range | None:
    """The range of an integer type that numpy has, else None."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.element.dtype.kind not in "iu":
        return None
    info = np.iinfo(kind.element.dtype)
    return int(info.min), int(info.max)


class Proven(NamedTuple):
    """What takes the place of values: a truth, or another value."""

    truths: dict[Value, bool]
    equal: dict[Value, Value]


def proven(region: Region, known: Known) -> Proven:
    """Comparisons that are always true or false, and clamps, extrema and remainders that change
    nothing, where `known` holds; nested bodies of control flow included."""
    result = Proven({}, {})
    _walk(region, dict(known), result)
    return result


def _walk(region: Region, known: Known, result: Proven) -> None:
    for op in region.ops:
        if op.definition.flow:
            for body in op.regions:
                _walk(body, known, result)
        elif len(op.results) == 1 and not op.regions:
            _visit(op, known, result)


def _visit(op: Op, known: Known, result: Proven) -> None:
    limits = limits_of(op.result)
    if op.name == "constant":
        if (number := integer(op.result)) is not None:
            known[op.result] = number, number
        return
    if op.name == "compare":
        left, right = (known.get(value) for value in op.operands)
        if left is not None and right is not None:
            truth = _truth(op.comparison_direction, left, right)
            if truth is not None:
                result.truths[op.result] = truth
        return
    if limits is None:
        return
    if op.name == "select" and op.operands[0] in result.truths:
        chosen = op.operands[1 if result.truths[op.operands[0]] else 2]
        result.equal[op.result] = chosen
        if chosen in known:
            known[op.result] = known[chosen]
        return
    given = [known.get(value) for value in op.operands]
    if op.name == "select":
        given = given[1:]
    rule = RULES.get(op.name)
    if rule is None or None in given:
        return
    low, high = rule(*given)
    if limits[0] <= low and high <= limits[1]:
        known[op.result] = low, high
        if op.name in NEEDLESS and (same := NEEDLESS[op.name](*given)) is not None:
            result.equal[op.result] = op.operands[same]


def _truth(direction: str, left: Range, right: Range) -> bool | None:
    if direction in ("GT", "GE"):
        left, right, direction = right, left, MIRRORED[direction]
    if direction in ("LT", "LE"):
        equal = direction == "LE"
        if left[1] < right[0] or (equal and left[1] == right[0]):
            return True
        return False if left[0] > right[1] or (not equal and left[0] == right[1]) else None
    apart = left[1] < right[0] or right[1] < left[0]
    same = left[0] == left[1] == right[0] == right[1]
    return (direction == "NE") == apart if apart or same else None


def _product(left: Range, right: Range) -> Range:
    ends = [one * two for one in left for two in right]
    return min(ends), max(ends)


UNKNOWN: Range = (0, 1 << 200)  # no type has it


def _remainder(left: Range, right: Range) -> Range:
    return (0, min(left[1], right[1] - 1)) if left[0] >= 0 and right[0] > 0 else UNKNOWN


def _quotient(left: Range, right: Range) -> Range:
    return (left[0] // right[1], left[1] // right[0]) if left[0] >= 0 < right[0] else UNKNOWN


def _join(left: Range, right: Range) -> Range:
    return min(left[0], right[0]), max(left[1], right[1])


def _highest(left: Range, right: Range) -> Range:
    return max(left[0], right[0]), max(left[1], right[1])


def _lowest(left: Range, right: Range) -> Range:
    return min(left[0], right[0]), min(left[1], right[1])


# The range of a result from those of its operands; out of its type's range: it may wrap around.
RULES: dict[str, Callable[..., Range]] = {
    "add": lambda left, right: (left[0] + right[0], left[1] + right[1]),
    "subtract": lambda left, right: (left[0] - right[1], left[1] - right[0]),
    "multiply": _product,
    "negate": lambda one: (-one[1], -one[0]),
    "maximum": _highest,
    "minimum": _lowest,
    "clamp": lambda low, value, high: _lowest(_highest(low, value), high),
    "select": _join,
    "remainder": _remainder,
    "divide": _quotient,
    "convert": lambda one: one,
    "reshape": lambda one: one,
    "broadcast_in_dim": lambda one: one,
}


def _maximum(left: Range, right: Range) -> int | None:
    return 0 if left[0] >= right[1] else 1 if right[0] >= left[1] else None


def _minimum(left: Range, right: Range) -> int | None:
    return 0 if left[1] <= right[0] else 1 if right[1] <= left[0] else None


# Which operand a result always equals, if any.
NEEDLESS: dict[str, Callable[..., int | None]] = {
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp": lambda low, value, high: 1 if low[1] <= value[0] and value[1] <= high[0] else None,
    "remainder": lambda left, right: 0 if left[0] >= 0 and left[1] < right[0] else None,
}
