"""`chlo.ragged_dot` where rows, or groups, are cut: each device has the sizes of all groups, and
says of its own rows which groups they belong to. Of groups that are cut (experts), each device
takes the rows of its own; what it finds of a sum is unreduced.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....hlo.build import build_region
from ....hlo.graph import Op, Value
from ....hlo.types import I32, TensorType
from .halo import Axes, block_of
from .local import rebuilt
from .partitioner import Partitioner


def lower_ragged_dot(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    lhs, rhs = (p.masked(o, number, 0) for number in range(2))
    sizes = p.b.convert(operands[2], I32)
    (rows,) = o.lhs_ragged_dimensions
    groups = _group_axes(p, o)
    if groups:
        offset, sizes = _own_groups(p, sizes, groups)
        numbers = p.positions(o.lhs, rows)
        begin = p.b.broadcast(offset, numbers.dims, ())
        mine = p.b.compare("GE", numbers, begin)
        lhs = p.b("select", mine, lhs, p.b.constant(0, lhs.tensor))
    if p.cuts(o.lhs)[rows]:
        sizes = _own_rows(p, o, sizes, rows)
    return rebuilt(p, o, [lhs, rhs, sizes], o.attributes)


def _group_axes(p: Partitioner, o: Op) -> Axes:
    """The axes that cut the groups: of the weights, or of the results."""
    if o.rhs_group_dimensions:
        return p.cuts(o.rhs)[o.rhs_group_dimensions[0]]
    if o.lhs_ragged_dimensions[0] in o.lhs_contracting_dimensions:
        return p.cuts(o.result)[0]
    return ()


def _own_groups(p: Partitioner, sizes: Value, axes: Axes) -> tuple[Value, Value]:
    """Where the rows of the device's groups begin, and the sizes of these groups; the first one
    takes the rows before it as well, which are zeros there."""
    b, parts = p.b, p.mesh.parts(axes)
    count = block_of(sizes.dims[0], parts)
    zero = b.constant(np.int32(0))
    more = count * parts - sizes.dims[0]
    begin = b("multiply", p.index(axes), b.constant(np.int32(count)))
    numbers = b("iota", type=sizes.tensor, iota_dimension=0)
    before = b.compare("LT", numbers, b.broadcast(begin, sizes.dims, ()))
    offset = b.reduce("add", b("select", before, sizes, b.constant(0, sizes.tensor)), zero, (0,))
    wide = b(
        "pad", sizes, zero, edge_padding_low=(0,), edge_padding_high=(more,), interior_padding=(0,)
    )
    own = b("dynamic_slice", wide, begin, slice_sizes=(count,))
    first = b.compare("EQ", b("iota", type=own.tensor, iota_dimension=0), b.constant(0, own.tensor))
    spread = b.broadcast(offset, own.dims, ())
    return offset, b("add", own, b("select", first, spread, b.constant(0, own.tensor)))


def _own_rows(p: Partitioner, o: Op, sizes: Value, rows: int) -> Value:
    """How many of each group's rows are in the device's block."""
    b, count = p.b, sizes.dims[0]
    if not count:
        return sizes
    scalar = TensorType((), I32)
    fold = build_region([scalar] * 2, lambda b, x, y: [b("add", x, y)])
    facts = {"window_dimensions": (count,), "padding": ((count - 1, 0),)}
    ends = b.op("reduce_window", [sizes, b.constant(np.int32(0))], facts, [fold]).result
    starts = b("subtract", ends, sizes)
    axes, size = p.cuts(o.lhs)[rows], o.lhs.dims[rows]
    block = block_of(size, p.mesh.parts(axes))
    held = [max(min(size - part * block, block), 0) for part in range(p.mesh.parts(axes))]
    begin = b.broadcast(p.offset(o.lhs, rows), ends.dims, ())
    most, none = p.of_part(axes, held), b.constant(np.int32(0))
    low, high = (b("clamp", none, b("subtract", bound, begin), most) for bound in (starts, ends))
    return b("subtract", high, low)
