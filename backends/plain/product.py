"""Contractions as simpler operations, for element types that blocked products lack."""

from __future__ import annotations

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.types import TensorType, real_type


def as_reduction(region: Region) -> Region:
    """sum over the contracted dims of lhs * rhs, both spread over [batch, lhs, rhs, contracted].

    region: holds nothing but the dot_general; its arguments stay, in their order.
    """
    builder = Builder()
    (op,) = region.ops
    own = dict(zip(region.arguments, builder.arguments(region.argument_types), strict=True))
    left, right = (own[value] for value in op.operands)
    batch = list(zip(op.lhs_batching_dimensions, op.rhs_batching_dimensions, strict=True))
    summed = list(zip(op.lhs_contracting_dimensions, op.rhs_contracting_dimensions, strict=True))
    rows = _free(left, [pair[0] for pair in (*batch, *summed)])
    columns = _free(right, [pair[1] for pair in (*batch, *summed)])
    result = op.type
    dims = (*result.dims, *(left.dims[pair[0]] for pair in summed))

    def spread(value: Value, side: int, free: list[int], first: int) -> Value:
        mapped = [0] * value.rank
        for position, pair in enumerate(batch):
            mapped[pair[side]] = position
        for position, d in enumerate(free):
            mapped[d] = first + position
        for position, pair in enumerate(summed):
            mapped[pair[side]] = result.rank + position
        return builder.broadcast(builder.convert(value, result.element), dims, mapped)

    wide_left = spread(left, 0, rows, len(batch))
    wide_right = spread(right, 1, columns, len(batch) + len(rows))
    product = builder("multiply", wide_left, wide_right)
    zero = builder.constant(0, TensorType((), result.element))
    over = range(result.rank, len(dims))
    return builder.region([builder.reduce("add", product, zero, list(over))])


def _free(value: Value, taken: list[int]) -> list[int]:
    return [d for d in range(value.rank) if d not in taken]


def real_products(op: Op) -> Region:
    """A complex contraction as four real ones, one operation after another."""
    b = Builder()
    left, right = b.arguments([value.type for value in op.operands])
    kind = op.type.with_element(real_type(op.type.element))

    def product(x: Value, y: Value) -> Value:
        return b.op(op.name, [x, y], op.attributes, types=[kind]).result

    a, c = b("real", left), b("real", right)
    d, e = b("imag", left), b("imag", right)
    real = b("subtract", product(a, c), product(d, e))
    imaginary = b("add", product(a, e), product(d, c))
    return b.region([b("complex", real, imaginary)])
