"""Values that come from nothing: each device makes, or takes, its block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....hlo.graph import Op, Value
from ....hlo.types import I32, TensorType
from .partitioner import Partitioner


def lower_constant(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """The block of a constant; of a splat a smaller one."""
    kind = p.local(o.result.type)
    assert isinstance(kind, TensorType)
    if o.value.is_splat:
        return [p.b.constant(o.value.splat_value, kind)]
    return [block(p, o.result, p.b.constant(np.asarray(o.value.array), kind_of(o)))]


def lower_weight(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """The block of a weight, an argument of the local program; a whole one is its own."""
    if any(p.cuts(o.result)):
        return [p.weight(o.weight, o.result.tensor)]
    return [p.b("weight", type=kind_of(o), weight=o.weight)]


def lower_iota(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """Numbers that count from where the block begins."""
    kind = p.local(o.result.type)
    assert isinstance(kind, TensorType)
    if not p.cuts(o.result)[o.iota_dimension]:
        return [p.b("iota", type=kind, iota_dimension=o.iota_dimension)]
    return [p.b.convert(p.positions(o.result, o.iota_dimension), o.result.element)]


def lower_random(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """All the numbers, of which each device keeps its block: bits are those of the whole program.
    They are computed element by element, so that fusion leaves only those that are kept."""
    types = [kind_of_value(value) for value in o.results]
    made = p.b.op(o.name, operands, o.attributes, (), types).results
    return [block(p, *pair) for pair in zip(o.results, made, strict=True)]


def block(p: Partitioner, value: Value, whole: Value) -> Value:
    """This device's block of a value of the program, of which `whole` is all."""
    cuts, kind = p.cuts(value), p.local(value.type)
    assert isinstance(kind, TensorType)
    if not any(cuts):
        return whole
    none = (0,) * value.rank
    sizes = [c * p.mesh.parts(axes) for c, axes in zip(kind.dims, cuts, strict=True)]
    more = tuple(size - old for size, old in zip(sizes, value.dims, strict=True))
    if any(more):
        zero = p.b.constant(0, TensorType((), value.element))
        whole = p.b(
            "pad", whole, zero, edge_padding_low=none, edge_padding_high=more, interior_padding=none
        )
    zero_start = p.b.constant(0, TensorType((), I32))
    starts = [p.offset(value, dim) if axes else zero_start for dim, axes in enumerate(cuts)]
    return p.b("dynamic_slice", whole, *starts, slice_sizes=kind.dims)


def kind_of(o: Op) -> TensorType:
    return kind_of_value(o.result)


def kind_of_value(value: Value) -> TensorType:
    """The whole tensor's type, without its sharding."""
    return TensorType(value.dims, value.element)
