"""Tiles of positions, as in `start + iota`: linear along each dim, so that masks are cheap."""

from __future__ import annotations

from .deciding import surely_at_most
from .graph import Op, Value, constant_of
from .offsets import INTEGERS, Offset, Offsets
from .symbols import Dim, maximum, minimum

Position = tuple[Offset, tuple[Dim, ...]]
# Whether the sides change places for a - b >= 0 to be the comparison, and whether it is a - b > 0.
_COMPARISONS = {"GE": (False, False), "GT": (False, True), "LE": (True, False), "LT": (True, True)}


def linear(offsets: Offsets, value: Value) -> Position | None:
    """(the element at the origin, how it grows along each dim) of a tile of positions of i32 or
    i64; None for any other."""
    op = value.op
    if value.element not in INTEGERS:
        return None
    if not value.rank:
        return offsets.of(value), ()
    dense = constant_of(value)
    if dense is not None and dense.is_splat:
        return Offset(int(dense.splat_value)), (0,) * value.rank
    if op is None:
        return None
    if op.name == "iota":
        return Offset(0), tuple(int(dim == op.iota_dimension) for dim in range(value.rank))
    if op.name not in ("broadcast_in_dim", "reshape", "convert", "add", "subtract", "multiply"):
        return None
    found = [linear(offsets, operand) for operand in op.operands]
    if any(one is None for one in found):
        return None
    known = [one for one in found if one is not None]
    if op.name == "convert":
        narrower = op.operands[0].element.bits > value.element.bits
        return None if narrower else known[0]
    if op.name == "broadcast_in_dim":
        steps: list[Dim] = [0] * value.rank
        for number, dim in enumerate(op.broadcast_dimensions):
            steps[dim] = known[0][1][number] if op.operands[0].dims[number] != 1 else 0
        return known[0][0], tuple(steps)
    if op.name == "reshape":
        source = op.operands[0]
        if [n for n in source.dims if n != 1] != [n for n in value.dims if n != 1]:
            return None
        kept = iter([s for s, n in zip(known[0][1], source.dims, strict=True) if n != 1])
        return known[0][0], tuple(next(kept) if n != 1 else 0 for n in value.dims)
    (a, a_steps), (b, b_steps) = known
    if op.name == "multiply":
        if b.terms or any(b_steps):
            (a, a_steps), (b, b_steps) = (b, b_steps), (a, a_steps)
        if b.terms or any(b_steps):
            return None
        return a.times(b.constant), tuple(step * b.constant for step in a_steps)
    sign = 1 if op.name == "add" else -1
    steps = [one + sign * other for one, other in zip(a_steps, b_steps, strict=True)]
    return a.plus(b, sign), tuple(steps)


def difference(offsets: Offsets, compare: Op) -> Position | None:
    """What a comparison of positions says is at least 0; None where it is no such comparison."""
    rule = _COMPARISONS.get(compare.comparison_direction)
    sides = [linear(offsets, operand) for operand in compare.operands]
    if rule is None or sides[0] is None or sides[1] is None:
        return None
    swapped, strict = rule
    (a, a_steps), (b, b_steps) = reversed(sides) if swapped else sides  # type: ignore[misc]
    steps = tuple(one - other for one, other in zip(a_steps, b_steps, strict=True))
    return a.plus(b, -1).plus(Offset(-1 if strict else 0)), steps


def least(found: Position, dims: tuple[Dim, ...]) -> Offset:
    """The least of the positions of a tile of `dims`."""
    offset, steps = found
    return offset.plus(Offset(sum(_reach(s, n, False) for s, n in zip(steps, dims, strict=True))))


def most(found: Position, dims: tuple[Dim, ...]) -> Offset:
    """The greatest of them."""
    offset, steps = found
    return offset.plus(Offset(sum(_reach(s, n, True) for s, n in zip(steps, dims, strict=True))))


def _reach(step: Dim, count: Dim, up: bool) -> Dim:
    """How far positions go up or down along a dim."""
    reach = step * (count - 1)
    if isinstance(reach, int):
        return max(0, reach) if up else min(0, reach)
    if surely_at_most(0, reach):
        return reach if up else 0
    if surely_at_most(reach, 0):
        return 0 if up else reach
    return maximum(0, reach) if up else minimum(0, reach)
