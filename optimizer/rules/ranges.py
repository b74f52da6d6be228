"""What is proven of integers: their least and greatest number, and that they count along a dim."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.types import ElementType, TensorType
from ..counters import RULES
from ..rewrite import Rewriter
from .common import made_by, map_of_ones

Range = tuple[int, int]  # inclusive

DEPTH = 12  # operations that a proof looks through
LARGEST = 1 << 16  # elements of a constant that are looked at


def limits(element: ElementType) -> Range:
    """The least and the greatest number of an integer or boolean type."""
    if element.is_bool:
        return 0, 1
    if element.kind == "int":
        return -(1 << (element.bits - 1)), (1 << (element.bits - 1)) - 1
    return 0, (1 << element.bits) - 1


def interval(value: Value, b: Rewriter, depth: int = DEPTH) -> Range:
    """The range in which all elements of an integer or boolean value are proven to lie."""
    known = b.engine.ranges.get(value)
    if known is not None:
        return known
    whole = limits(value.element)
    op = value.op
    if op is None or depth == 0 or len(op.results) != 1:
        return whole
    found = _interval(op, b, depth - 1)
    if found is None or found[0] < whole[0] or found[1] > whole[1]:
        found = whole  # it may wrap around
    if depth == DEPTH or found != whole:
        b.engine.ranges[value] = found  # a range that depth has cut short is not kept
    return found


def _interval(op: Op, b: Rewriter, depth: int) -> Range | None:
    name = op.name
    if name == "constant":
        return _constant(op, b)
    if name == "iota":
        size = op.type.dims[op.iota_dimension]
        return (0, max(size - 1, 0)) if isinstance(size, int) else None
    if op.definition.moves:
        return interval(op.operands[0], b, depth)
    if name in ("concatenate", "pad"):
        return _union(*(interval(operand, b, depth) for operand in op.operands))
    if not all(_whole_number(operand) for operand in op.operands):
        return None
    if name == "select":
        return _of_select(op, b, depth)
    compute = _ARITHMETIC.get(name)
    return None if compute is None else compute(*(interval(v, b, depth) for v in op.operands))


def _whole_number(value: Value) -> bool:
    type = value.type
    return isinstance(type, TensorType) and (type.element.is_integer or type.element.is_bool)


def _constant(op: Op, b: Rewriter) -> Range | None:
    dense = op.attributes["value"]
    if dense.is_splat:
        return int(dense.splat_value), int(dense.splat_value)
    if not 0 < dense.type.size <= LARGEST:
        return None
    return int(dense.array.min()), int(dense.array.max())


def _union(*ranges: Range) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _of_select(op: Op, b: Rewriter, depth: int) -> Range:
    """Both branches; in each, what its condition says of the number that it compares."""
    condition, *branches = op.operands
    compare = made_by(condition, "compare")
    found = []
    for branch, holds in zip(branches, (True, False), strict=True):
        chosen = interval(branch, b, depth)
        if compare is not None and _whole_number(compare.operands[0]):
            x = compare.operands[0]
            bound = interval(compare.operands[1], b, depth)
            inside = _where(compare, holds, interval(x, b, depth), bound)
            shift = _added(branch, x, b)
            if shift is not None:
                moved, whole = (inside[0] + shift, inside[1] + shift), limits(x.element)
                if whole[0] <= moved[0] <= moved[1] <= whole[1]:
                    chosen = _meet(chosen, moved)
        found.append(chosen)
    return _union(*found)


def _where(compare: Op, holds: bool, x: Range, y: Range) -> Range:
    """The part of the range `x` on which a comparison with numbers of `y` may hold, or fail."""
    direction = compare.comparison_direction
    if not holds:
        opposite = {"LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT", "EQ": "NE", "NE": "EQ"}
        direction = opposite[direction]
    low, high = x
    if direction == "LT":
        return low, min(high, y[1] - 1)
    if direction == "LE":
        return low, min(high, y[1])
    if direction == "GT":
        return max(low, y[0] + 1), high
    if direction == "GE":
        return max(low, y[0]), high
    return _meet(x, y) if direction == "EQ" else x


def _added(value: Value, x: Value, b: Rewriter) -> int | None:
    """The number n for which value = x + n, but for sums that wrap around."""
    if value is x:
        return 0
    op = made_by(value, "add")
    if op is None or x not in op.operands:
        return None
    other = op.operands[1] if op.operands[0] is x else op.operands[0]
    number = b.scalar(other)
    return None if number is None else int(number)


def _meet(one: Range, other: Range) -> Range:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high else one


def _divide(x: Range, y: Range) -> Range | None:
    if y[0] <= 0:
        return None
    corners = [(abs(i) // j) * (1 if i >= 0 else -1) for i in x for j in y]
    return min(corners), max(corners)


def _remainder(x: Range, y: Range) -> Range | None:
    if y[0] <= 0:
        return None
    most = y[1] - 1
    return max(x[0], -most) if x[0] < 0 else 0, min(x[1], most) if x[1] > 0 else 0


def _and(x: Range, y: Range) -> Range | None:
    if x[0] >= 0 and y[0] >= 0:
        return 0, min(x[1], y[1])
    if x[0] >= 0 or y[0] >= 0:
        return 0, x[1] if x[0] >= 0 else y[1]
    return None


def _or(x: Range, y: Range) -> Range | None:
    if x[0] < 0 or y[0] < 0:
        return None
    return max(x[0], y[0]), (1 << max(x[1], y[1]).bit_length()) - 1


def _shift_right(x: Range, y: Range) -> Range | None:
    if x[0] < 0 or y[0] < 0:
        return None
    return x[0] >> min(y[1], 64), x[1] >> min(y[0], 64)


_ARITHMETIC: dict[str, Any] = {
    **RULES,
    "divide": _divide,
    "remainder": _remainder,
    "and": _and,
    "or": _or,
    "shift_right_logical": _shift_right,
    "shift_right_arithmetic": _shift_right,
}


def counts_along(value: Value, b: Rewriter, depth: int = DEPTH) -> int | None:
    """The dim along which each element is its own index (0, 1, 2, ...); None if there is none."""
    op = value.op
    if op is None or depth == 0 or not _whole_number(value) or not value.tensor.is_static:
        return None
    if op.name == "iota":
        return op.iota_dimension
    if op.name == "constant":
        return _counting_constant(op)
    if op.name not in ("broadcast_in_dim", "reshape", "transpose", "convert"):
        return None
    source = op.operands[0]
    d = counts_along(source, b, depth - 1)
    if d is None or op.name == "convert":
        fits = d is None or source.dims[d] - 1 <= limits(value.element)[1]
        return d if fits else None
    if op.name == "transpose":
        return op.permutation.index(d)
    if op.name == "broadcast_in_dim":
        target = op.broadcast_dimensions[d]
        return target if value.dims[target] == source.dims[d] else None
    places = map_of_ones(source.dims, value.dims)
    return None if places is None or source.dims[d] == 1 else places[d]


def _counting_constant(op: Op) -> int | None:
    dense = op.attributes["value"]
    if dense.is_splat or dense.type.size > LARGEST:
        return None
    for d, size in enumerate(dense.type.dims):
        line = np.arange(size).reshape([size if i == d else 1 for i in range(dense.type.rank)])
        if size > 1 and bool((dense.array == line).all()):
            return d
    return None
