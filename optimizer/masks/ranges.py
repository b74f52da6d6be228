"""What is proven of sizes and of integers in a program whose sizes data decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...hlo.graph import Value, constant_of
from ...hlo.ops.bodies import monoid
from ...hlo.symbols import Dim
from ..rules.ranges import limits

if TYPE_CHECKING:
    from .scope import MaskScope


def is_at_most(left: Dim | None, right: Dim | None) -> bool:
    """Whether a size is proven not to be beyond another one, both at least 0."""
    if left is None or right is None:
        return False
    rest = right - left
    if isinstance(rest, int):
        return rest >= 0
    return all(coefficient >= 0 for _, coefficient in rest.terms)


def interval(value: Value, scope: MaskScope, depth: int = 16) -> tuple[int, Dim | None]:
    """What is proven of the elements of an integer or boolean value of the source: the least and
    the greatest number; None where the type alone bounds it."""
    least, most = limits(value.element)
    low, high = _interval(value, scope, depth)
    if isinstance(high, int) and not (least <= low and high <= most):
        return least, None  # it may wrap around
    return max(low, least), high


def _interval(value: Value, scope: MaskScope, depth: int) -> tuple[int, Dim | None]:
    plain: tuple[int, Dim | None] = limits(value.element)[0], None
    if value.element.is_bool:
        return 0, 1
    op = value.op
    if op is None or not depth or len(op.results) != 1:
        return plain
    dense = constant_of(value)
    if dense is not None and dense.type.size:
        array = np.asarray(dense.array)
        return int(array.min()), int(array.max())

    def of(number: int) -> tuple[int, Dim | None]:
        operand = op.operands[number]
        if not (operand.element.is_integer or operand.element.is_bool):
            return plain
        return interval(operand, scope, depth - 1)

    def lower(left: Dim | None, right: Dim | None) -> Dim | None:
        if left is None or right is None:
            return right if left is None else left
        return left if is_at_most(left, right) else right

    name = op.name
    if name == "convert" or op.definition.moves in ("whole", "part"):
        found = of(0)
        narrower = op.operands[0].element.bits > value.element.bits
        return plain if narrower and found[1] is None else found
    if name == "get_dimension_size":
        return 0, scope.largest(scope.find(op.operands[0]).dims[op.dimension])
    if name == "reduce" and len(op.operands) == 2:
        body, first, start = monoid(op.regions[0]), of(0), of(1)
        if body == "add" and first[0] >= 0 and start[0] >= 0 and None not in (first[1], start[1]):
            whole = scope.find(op.operands[0]).dims
            count: Dim = 1
            for d in op.dimensions:
                count = count * scope.largest(whole[d])
            return 0, count * first[1] + start[1]
        return plain
    if name == "clamp":
        least, middle, most = of(0), of(1), of(2)
        return max(least[0], min(middle[0], most[0])), most[1]
    if name == "minimum":
        left, right = of(0), of(1)
        return min(left[0], right[0]), lower(left[1], right[1])
    if name == "maximum":
        left, right = of(0), of(1)
        known = None not in (left[1], right[1])
        high = None
        if known:
            high = right[1] if is_at_most(left[1], right[1]) else left[1]
            if not (is_at_most(left[1], high) and is_at_most(right[1], high)):
                high = None
        return max(left[0], right[0]), high
    if name == "subtract":
        left, right = of(0), of(1)
        if left[1] is not None and right[0] >= 0 and left[0] >= 0:
            low = left[0] - right[1] if isinstance(right[1], int) else plain[0]
            return low, left[1] - right[0]
    if name == "add":
        left, right = of(0), of(1)
        if left[0] >= 0 and right[0] >= 0 and left[1] is not None and right[1] is not None:
            return left[0] + right[0], left[1] + right[1]
    return plain


def is_proven(value: Value, scope: MaskScope) -> bool:
    """Whether a comparison of integers of the source always holds."""
    op = value.op
    while op is not None and op.name in ("reshape", "convert"):
        op = op.operands[0].op
    if op is None or op.name != "compare" or not op.operands[0].element.is_integer:
        return False
    (left_low, left_high), (right_low, right_high) = (interval(v, scope) for v in op.operands)
    match op.comparison_direction:
        case "LE":
            return left_high is not None and is_at_most(left_high, right_low)
        case "GE":
            return right_high is not None and is_at_most(right_high, left_low)
        case _:
            return False
