"""`fft` along a dim that is cut: the other dims first, or last, and this one by itself.

By itself either with its axes on another dim, there and back; or, where there is no other dim, by
the transpose algorithm (Bailey, "FFTs in external or hierarchical memory", 1990): of n = p m
elements in p blocks, transforms of p elements across the devices, a factor for each element, and
transforms of m elements inside of them. Three exchanges of a block, where a gather brings p - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Op, Value
from ....hlo.sharding import DimSharding, Mesh, Sharding
from ....hlo.types import F64, I64, TensorType
from ..lowering import lower
from ..reshard import ReshardPlan, plan_reshard
from .local import rebuilt
from .partitioner import Axes, Partitioner

COMPLEX = ("FFT", "IFFT")
_Step = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class _Way:
    """steps: (dims, kind) of the transforms, one after the other; `along` is the step of the cut
    dim. there, back: how its axes come to another dim and back; None: by the transpose algorithm.
    """

    steps: tuple[_Step, ...]
    along: int
    cut: Axes
    there: ReshardPlan | None = None
    back: ReshardPlan | None = None


def _steps(o: Op, dim: int) -> tuple[_Step, ...]:
    """A dim by itself: where numbers become complex, or real, along the last one decides when."""
    rank, kind = o.operand.rank, str(o.fft_type)
    rest = tuple(d for d in range(rank - len(o.fft_length), rank) if d != dim)
    last = dim == rank - 1
    other = {"RFFT": "FFT", "IRFFT": "IFFT"}.get(kind, kind)
    alone: _Step = (dim,), kind if last else other
    others: _Step = rest, other if last else kind
    if not rest:
        return (alone,)
    return (alone, others) if (kind == "RFFT") == last else (others, alone)


def _way(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> _Way | None:
    cuts = [tuple(a for n in held for a in axes[n]) for held in factors.operands[0]]
    transformed = range(o.operand.rank - len(o.fft_length), o.operand.rank)
    cut = [dim for dim in transformed if cuts[dim]]
    if len(cut) != 1 or 0 in (*o.operand.dims, *o.result.dims):
        return None
    (dim,) = cut
    steps = _steps(o, dim)
    along = [dims for dims, _ in steps].index((dim,))
    parts = mesh.parts(cuts[dim])
    free = [d for d, size in enumerate(o.operand.dims) if d != dim and not cuts[d] and size > 1]
    if free:
        to = min(free, key=lambda d: (o.operand.dims[d] % parts > 0, -o.operand.dims[d]))
        kinds = [o.operand.tensor]
        for _, kind in steps:
            kinds.append(kinds[-1] if kind in COMPLEX else o.result.tensor)
        plans = _plans(kinds[along], kinds[along + 1], cuts, dim, to, mesh)
        return _Way(steps, along, cuts[dim], *plans)
    if o.fft_type in COMPLEX and o.operand.dims[dim] % parts**2 == 0:
        return _Way(steps, along, cuts[dim])
    return None


def _plans(
    before: TensorType, after: TensorType, cuts: Sequence[Axes], dim: int, to: int, mesh: Mesh
) -> tuple[ReshardPlan, ReshardPlan]:
    moved = [cuts[dim] if d == to else () if d == dim else held for d, held in enumerate(cuts)]
    home, away = _sharding(cuts), _sharding(moved)
    there = plan_reshard(mesh, before.dims, before.dtype.itemsize, home, away)
    return there, plan_reshard(mesh, after.dims, after.dtype.itemsize, away, home)


def _sharding(cuts: Sequence[Axes]) -> Sharding:
    return Sharding("", tuple(map(DimSharding, cuts)))


def transform_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """There and back; or three times all of a block but what stays."""
    if not any(axes[number] for number in factors.of_kind(FactorKind.REPLICATE)):
        return 0.0
    way = _way(o, factors, axes, mesh)
    if way is None:
        return None
    if way.there is not None and way.back is not None:
        return way.there.mean + way.back.mean
    local = _sharding([tuple(a for n in held for a in axes[n]) for held in factors.operands[0]])
    size = math.prod(local.local_dims(mesh, o.operand.dims)) * o.operand.tensor.dtype.itemsize
    parts = mesh.parts(way.cut)
    return 3 * size * (parts - 1) / parts


def transform_calls(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> int:
    """How often devices send one after the other."""
    if not any(axes[number] for number in factors.of_kind(FactorKind.REPLICATE)):
        return 0
    way = _way(o, factors, axes, mesh)
    return 3 if way is None or way.there is None else 2


def lower_transform(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    factors, axes = p.factors(o), p.axes(o)
    if not any(axes[number] for number in factors.of_kind(FactorKind.REPLICATE)):
        return rebuilt(p, o, operands, o.attributes)
    way = _way(o, factors, axes, p.mesh)
    if way is None:
        raise p.refuse(o, "its rows are cut in a way that nothing lowers", "leave them whole")
    (value,) = operands
    for number, (dims, kind) in enumerate(way.steps):
        if number != way.along:
            value = _local(p, o, value, dims, kind)
        elif way.there is None or way.back is None:
            value = _across(p, value, dims[0], kind, way.cut)
        else:
            value = lower(way.there, p.b, value, p.channels)
            value = lower(way.back, p.b, _local(p, o, value, dims, kind), p.channels)
    return [value]


def _local(p: Partitioner, o: Op, value: Value, dims: tuple[int, ...], kind: str) -> Value:
    """Transforms along these dims, which are whole."""
    order = [d for d in range(value.rank) if d not in dims] + list(dims)
    first = value.rank - len(o.fft_length)
    lengths = tuple(o.fft_length[d - first] for d in dims)
    found = p.b("fft", p.b.transpose(value, order), fft_type=kind, fft_length=lengths)
    return p.b.transpose(found, [order.index(d) for d in range(value.rank)])


def _across(p: Partitioner, value: Value, dim: int, kind: str, cut: Axes) -> Value:
    """One dim of n = parts x m elements, of which each device has m: element parts x + k, for k
    the device that has it between."""
    b, parts, m = p.b, p.mesh.parts(cut), value.dims[dim]
    order = [d for d in range(value.rank) if d != dim] + [dim]
    rows = b.transpose(value, order)
    count = math.prod(rows.dims[:-1])

    def sent(value: Value, split: int, joined: int) -> Value:
        return b(
            "all_to_all", value, split_dimension=split, concat_dimension=joined,
            split_count=parts, replica_groups=p.groups(cut), channel_id=p.channel(),
        )  # fmt: skip

    found = sent(b.reshape(rows, (count, parts, m // parts)), 1, 1)
    found = b.transpose(found, (0, 2, 1))
    found = b("fft", found, fft_type=kind, fft_length=(parts,))
    found = b("multiply", found, _roots(p, found.tensor, m * parts, kind, cut))
    found = b.reshape(sent(found, 2, 1), (count, m))
    found = b("fft", found, fft_type=kind, fft_length=(m,))
    found = sent(b.reshape(found, (count, parts, m // parts)), 1, 1)
    found = b.reshape(b.transpose(found, (0, 2, 1)), rows.dims)
    return b.transpose(found, [order.index(d) for d in range(value.rank)])


def _roots(p: Partitioner, kind: TensorType, n: int, name: str, cut: Axes) -> Value:
    """exp(-+2 pi i j k / n) for element j of what a device has between, and k of `parts`."""
    b = p.b
    _, rows, parts = kind.dims
    numbers = TensorType((rows, parts), I64)
    row, column = (b("iota", type=numbers, iota_dimension=d) for d in range(2))
    begin = b("multiply", b.convert(p.index(cut), I64), b.constant(np.int64(rows)))
    row = b("add", row, b.broadcast(begin, numbers.dims, ()))
    # Whole turns are taken off while numbers are exact.
    phase = b("remainder", b("multiply", row, column), b.constant(n, numbers))
    sign = -2 if name == "FFT" else 2
    scale = b.constant(sign * math.pi / n, numbers.with_element(F64))
    angle = b("multiply", b.convert(phase, F64), scale)
    found = b.convert(b("complex", b("cosine", angle), b("sine", angle)), kind.element)
    return b.broadcast(found, kind.dims, (1, 2))
