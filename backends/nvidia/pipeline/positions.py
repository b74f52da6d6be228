"""Tiles of positions, as in `start + iota`: linear along each dim, so that masks are cheap."""

from __future__ import annotations

from ....hlo.graph import Value
from ....hlo.offsets import Offset
from .work import Work, shape, splat_of


def linear(work: Work, value: Value) -> tuple[Offset, tuple[int, ...]] | None:
    """(the element at the origin, how it grows along each dim) of a tile of positions."""
    op = value.op
    if not value.rank:
        return work.offsets.of(value), ()
    number = splat_of(value)
    if number is not None:
        return Offset(int(number)), (0,) * value.rank  # type: ignore[call-overload]
    if op is None:
        return None
    if op.name == "iota":
        return Offset(0), tuple(int(dim == op.iota_dimension) for dim in range(value.rank))
    if op.name not in ("broadcast_in_dim", "reshape", "add", "subtract", "multiply"):
        return None
    found = [linear(work, operand) for operand in op.operands]
    if any(one is None for one in found):
        return None
    known = [one for one in found if one is not None]
    if op.name == "broadcast_in_dim":
        steps = [0] * value.rank
        for number, dim in enumerate(op.broadcast_dimensions):
            steps[dim] = known[0][1][number] if op.operands[0].dims[number] != 1 else 0
        return known[0][0], tuple(steps)
    if op.name == "reshape":
        source = op.operands[0]
        if shape(source) != shape(value):
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
