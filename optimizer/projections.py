"""Products in loops of what a turn reads of a sequence and what is the same in all turns: one
product of the whole sequence before the loop, of whose result each turn reads its part.

A turn's index is clamped in the product as in the sequence, so nothing has to be known of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..hlo.build import Builder
from ..hlo.graph import EXACT, Op, Value
from ..hlo.types import TensorType

_MOST_ROWS = 16  # of a turn's product: more of them use well what is read of the other operand


class Projection(NamedTuple):
    """`product` in a loop's body is of `rows` rows, which are part `index` of dim `dim` of
    `sequence`, and of a value from outside."""

    product: Op
    sequence: Value
    dim: int
    index: Value
    rows: int


def projections(
    body: Iterable[Op], varying: Collection[Value], turns: int, most: int
) -> list[Projection]:
    """Those among the operations of a loop's body. varying: values that are not from outside.
    turns: of the loop; a sequence may be twice as long. most: bytes that a product of a whole
    sequence may have."""
    found: list[Projection] = []
    for op in body:
        if op.name != "dot_general" or EXACT in op.attributes or op.lhs_batching_dimensions:
            continue
        left, right = op.operands
        if right in varying or not (left.tensor.is_static and op.result.tensor.is_static):
            continue
        rank, dims = left.rank, left.tensor.dims
        if rank > 2 or tuple(op.lhs_contracting_dimensions) != (rank - 1,):
            continue
        read = left.op
        while read is not None and read.name == "reshape":
            read = read.operands[0].op
        if read is None or read.name != "dynamic_slice" or read.operands[0] in varying:
            continue
        sequence, *starts = read.operands
        whole, part = sequence.tensor.dims, read.slice_sizes
        moving = [dim for dim, size in enumerate(part) if size != whole[dim]]
        rows = dims[0] if rank == 2 else 1
        if len(moving) != 1 or part[moving[0]] != 1 or rows > _MOST_ROWS:
            continue
        (dim,) = moving
        pays = 2 <= whole[dim] <= 2 * turns and whole[dim] * op.result.tensor.bytes <= most
        if pays and starts[dim] in varying:
            found.append(Projection(op, sequence, dim, starts[dim], rows))
    return found


def before(one: Projection, b: Builder) -> Value:
    """The product of the whole sequence: what turns need of it, one part after the other."""
    op, value, dims = one.product, one.sequence, one.sequence.tensor.dims
    if one.dim:
        order = (one.dim, *(dim for dim in range(len(dims)) if dim != one.dim))
        value = b("transpose", value, permutation=order)
    length, depth = dims[one.dim], op.operands[0].tensor.dims[-1]
    result = op.result.tensor
    free = result.dims[op.operands[0].rank - 1 :]
    value = _reshaped(b, value, (length * one.rows, depth))
    attributes = {**op.attributes, "lhs_contracting_dimensions": (1,)}
    kind = TensorType((length * one.rows, *free), result.element)
    product = b.op("dot_general", [value, op.operands[1]], attributes, (), [kind]).result
    return _reshaped(b, product, (length, *result.dims))


def within(one: Projection, parts: Value, index: Value, b: Builder) -> Value:
    """A turn's part of what `before` gives."""
    dims = one.product.result.tensor.dims
    zero = b.constant(0, index.tensor)
    starts = [index, *[zero] * len(dims)]
    part = b("dynamic_slice", parts, *starts, slice_sizes=(1, *dims))
    return _reshaped(b, part, dims)


def _reshaped(b: Builder, value: Value, dims: tuple[int, ...]) -> Value:
    if value.tensor.dims == dims:
        return value
    return b("reshape", value, type=TensorType(dims, value.tensor.element))
