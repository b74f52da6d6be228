"""Operations that move elements of tensors whose sizes data decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from ...hlo.ops.shape import padded_dim
from ...hlo.symbols import Dim, SymbolicDim, maximum
from ...hlo.types import I32, TensorType
from .scope import (
    MaskScope,
    Rule,
    Unmasked,
    Whole,
    entries_of,
    line,
    scalars,
    sliced,
    spread,
    taken,
)


def set_size(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """The first elements; a size out of bounds is an error of the call."""
    x, axis = xs[0], op.dimension
    scalar = op.operands[1]
    dims = list(x.dims)
    known, declared = s.number(scalar), op.type.dims[axis]
    if known is None:
        own = s.declared(declared)
        bound = s.largest(x.dims[axis])
        known = s.sized(b, op, SymbolicDim(s.named(declared)), scalar, bound)
        if own is not None:
            s.same(b, op, known, own)  # another operation has decided the size before
            known = own
        if not isinstance(x.dims[axis], int):
            s.at_most(b, op, known, x.dims[axis])
    else:
        s.at_most(b, op, known, x.dims[axis])
    dims[axis] = known
    return Whole(s.fit(b, x.value, s.whole(dims)), tuple(dims))


def get_size(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    return Whole(s.size(b, xs[0].dims[op.dimension]), ())


def elementwise(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """All tensors have the same true sizes, or the call is an error."""
    first = next(x for x in xs if x.value.rank)
    if op.type.rank != first.value.rank:
        raise Unmasked("it changes how many elements there are")
    for x in xs:
        if x.value.rank:
            for left, right in zip(first.dims, x.dims, strict=True):
                s.same(b, op, left, right)
    whole = s.whole(first.dims)
    values = [s.fit(b, x.value, whole) if x.value.rank else x.value for x in xs]
    made = b.op(op.name, values, op.attributes, (), [TensorType(whole, op.type.element)])
    return Whole(made.result, first.dims)


def transpose(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    (x,) = xs
    return Whole(b.transpose(x.value, op.permutation), tuple(x.dims[d] for d in op.permutation))


def shape_of(s: MaskScope, b: Builder, op: Op, vector: Value | None) -> tuple[Dim, ...]:
    """The true dims of the result, which an operand tells where the type does not."""
    entries = None if vector is None else scalars(vector)
    found: list[Dim] = []
    for place, declared in enumerate(op.type.dims):
        entry = None if entries is None else entries[place]
        if isinstance(declared, int):
            found.append(declared)
        elif isinstance(entry, int):
            found.append(entry)
        else:
            found.append(s.sized(b, op, declared, entry))
    return tuple(found)


def broadcast(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    x, mapped = xs[0], op.broadcast_dimensions
    declared: list[Dim | None] = []
    for place, dim in enumerate(op.type.dims):
        source = mapped.index(place) if place in mapped else -1
        unknown = isinstance(dim, SymbolicDim) and s.declared(dim) is None
        known = source >= 0 and x.dims[source] != 1 and (len(xs) == 1 or unknown)
        declared.append(x.dims[source] if known and unknown else None)
    entries = scalars(op.operands[1]) if len(xs) > 1 else None
    dims: list[Dim] = []
    for place, dim in enumerate(op.type.dims):
        entry = None if entries is None else entries[place]
        own = declared[place]
        if own is not None:
            dims.append(own)
        elif isinstance(dim, int):
            dims.append(dim)
        else:
            dims.append(entry if isinstance(entry, int) else s.sized(b, op, dim, entry))
    value = x.value
    whole = s.whole(dims)
    inner: list[Dim] = list(value.dims)
    for source, place in enumerate(mapped):
        if x.dims[source] != 1 or dims[place] == 1:
            s.same(b, op, x.dims[source], dims[place])
            inner[source] = whole[place]
    return Whole(b.broadcast(s.fit(b, value, inner), whole, mapped), tuple(dims))


def iota(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    dims = shape_of(s, b, op, op.operands[0] if op.operands else None)
    kind = s.kind(dims, op.type.element)
    return Whole(b("iota", type=kind, iota_dimension=op.iota_dimension), dims)


def reshape(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Elements in row-major order: as they lie, where those in use are the first ones of each row
    that stays together; else each is fetched from its place."""
    x = xs[0]
    dims = shape_of(s, b, op, op.operands[1] if len(op.operands) > 1 else None)
    s.same(b, op, _product(x.dims), _product(dims))
    old, new = [d for d in x.dims if d != 1], [d for d in dims if d != 1]
    lead = 0
    while lead < min(len(old), len(new)) and old[lead] == new[lead]:
        lead += 1
    rest = old[lead:], new[lead:]
    whole = s.whole(dims)
    if not rest[0] and not rest[1]:
        return Whole(b.reshape(x.value, whole), dims)
    if all(s.is_whole(part[1:]) for part in rest):
        kept = s.whole(old[:lead])
        flat = b.reshape(x.value, (*kept, _product(s.whole(rest[0]))))
        flat = s.fit(b, flat, (*kept, _product(s.whole(rest[1]))))
        return Whole(b.reshape(flat, whole), dims)
    return Whole(_fetched(s, b, x, dims), dims)


def _product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _fetched(s: MaskScope, b: Builder, x: Whole, dims: Sequence[Dim]) -> Value:
    """Each element of a reshape by its number among those in use."""
    whole = s.whole(dims)
    kind = TensorType(whole, I32)

    def full(dim: Dim) -> Value:
        return b.broadcast(s.size(b, dim), whole, ())

    number = b.constant(0, kind)
    for axis, dim in enumerate(dims):
        places = b("iota", type=kind, iota_dimension=axis)
        number = b("add", b("multiply", number, full(dim)), places)
    step: Dim = 1
    source = b.constant(0, kind)
    for dim, size in zip(reversed(x.dims), reversed(x.value.dims), strict=True):
        count = b("maximum", full(dim), b.constant(1, kind))  # an empty tensor has no elements
        place = b("remainder", number, count)
        number = b("divide", number, count)
        source = b("add", source, b("multiply", place, full(step)))
        step = step * size
    flat = b.reshape(x.value, (x.value.tensor.size,))
    found = taken(b, flat, 0, b.reshape(source, (kind.size,)))
    return b.reshape(found, whole)


def slice_(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    (x,) = xs
    value, dims = x.value, list(x.dims)
    bounds = zip(op.start_indices, op.limit_indices, op.strides, strict=True)
    for axis, (start, limit, stride) in enumerate(bounds):
        if (start, limit, stride) == (0, x.dims[axis], 1):
            continue
        value, dims[axis] = _part(s, b, op, x, value, axis, start, limit, stride)
    return Whole(value, tuple(dims))


def _part(
    s: MaskScope, b: Builder, op: Op, x: Whole, value: Value, axis: int, start: Dim, limit: Dim,
    stride: int, count: Dim | None = None,
) -> tuple[Value, Dim]:  # fmt: skip
    """[start:limit:stride] along one axis, of sizes that are known; its true size: `count`, where
    the caller knows."""
    s.at_most(b, op, limit, x.dims[axis])
    if count is None:
        count = (limit - start + stride - 1) // stride
    s.at_most(b, op, start, limit)
    whole = s.largest(count)
    if isinstance(start, int) and isinstance(whole, int) and isinstance(value.dims[axis], int):
        end = min(value.dims[axis], start + (whole - 1) * stride + 1) if whole else start
        start = min(start, end)
        return s.fit(
            b, sliced(b, value, axis, start, end, stride), _with(value, axis, whole)
        ), count
    positions = b("multiply", line(b, whole), b.constant(stride, TensorType((whole,), I32)))
    first = s.size(b, start)
    return taken(b, value, axis, b("add", positions, spread(b, first, positions))), count


def _with(value: Value, axis: int, size: Dim) -> tuple[Dim, ...]:
    return (*value.dims[:axis], size, *value.dims[axis + 1 :])


def real_slice(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Bounds that are operands."""
    x = xs[0]
    starts, limits, strides = (entries_of(s, b, operand) for operand in op.operands[1:])
    if starts is None or limits is None or strides is None:
        raise Unmasked("its bounds are computed as whole vectors")
    value, dims = x.value, list(x.dims)
    for axis, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
        if not isinstance(stride, int):
            raise Unmasked("its strides are computed")
        first, last = (end if isinstance(end, int) else s.number(end) for end in (start, limit))
        if (first, last, stride) == (0, x.dims[axis], 1):
            continue
        declared = op.type.dims[axis]
        count = s.declared(declared)
        if first is None and isinstance(start, Value):
            first = s.sized(b, op, s.new(), start, s.largest(x.dims[axis]))
        if last is None and isinstance(limit, Value):
            own = declared if (first, stride) == (0, 1) else s.new()
            last = s.sized(b, op, own, limit, s.largest(x.dims[axis]))
        assert first is not None and last is not None
        value, dims[axis] = _part(s, b, op, x, value, axis, first, last, stride, count)
        if count is not None:
            s.same(b, op, count, (last - first + stride - 1) // stride)
    return Whole(value, tuple(dims))


def concatenate(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """What follows a tensor of a size that data decide is moved up to its end."""
    axis = op.dimension
    dims = list(xs[0].dims)
    for x in xs[1:]:
        for d, (left, right) in enumerate(zip(dims, x.dims, strict=True)):
            if d != axis:
                s.same(b, op, left, right)
    whole = s.whole(dims)
    values = [s.fit(b, x.value, _with_axis(whole, axis, x.value.dims[axis])) for x in xs]
    joined = b("concatenate", *values, dimension=axis)
    total: Dim = 0
    for x in xs:
        total = total + x.dims[axis]
    dims[axis] = total
    if not all(s.is_whole((x.dims[axis],)) for x in xs[:-1]):
        places = line(b, s.largest(total))
        position, end, begin = places, xs[0].dims[axis], xs[0].value.dims[axis]
        for x in xs[1:]:
            mine = spread(b, s.size(b, end), places)
            moved = spread(b, s.size(b, begin - end), places)
            later = b.compare("GE", places, mine)
            position = b("select", later, b("add", places, moved), position)
            end, begin = end + x.dims[axis], begin + x.value.dims[axis]
        joined = taken(b, joined, axis, position)
    return Whole(joined, tuple(dims))


def _with_axis(dims: Sequence[Dim], axis: int, size: Dim) -> tuple[Dim, ...]:
    return (*dims[:axis], size, *dims[axis + 1 :])


def pad(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """The padding stands behind the true size, too."""
    x, filler = xs
    columns = zip(op.edge_padding_low, op.edge_padding_high, op.interior_padding, strict=True)
    dims, touched = list(x.dims), []
    for axis, (low, high, interior) in enumerate(columns):
        if low or high or interior:
            touched.append(axis)
            dims[axis] = padded_dim(x.dims[axis], low, high, interior)
    value = s.masked(b, x, touched, filler.value)
    facts = dict(op.attributes)
    made = b("pad", value, filler.value, **facts)
    return Whole(s.fit(b, made, s.whole(dims)), tuple(dims))


def dynamic_pad(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Paddings that are operands: each element is fetched from its place."""
    x, filler = xs[:2]
    paddings = [entries_of(s, b, operand) for operand in op.operands[2:]]
    lows, highs, inners = ([] if one is None else one for one in paddings)
    if None in paddings:
        raise Unmasked("its paddings are computed as whole vectors")
    value, dims = x.value, list(x.dims)
    for axis, amounts in enumerate(zip(lows, highs, inners, strict=True)):
        known = [one if isinstance(one, int) else s.number(one) for one in amounts]
        if known == [0, 0, 0]:
            continue
        low, high, inner = (
            _scalar(s, b, one) if size is None else s.size(b, size)
            for one, size in zip(amounts, known, strict=True)
        )
        count, zero, one = s.size(b, x.dims[axis]), b.constant(0, low.tensor), s.size(b, 1)
        gaps = b("multiply", b("maximum", b("subtract", count, one), zero), inner)
        total = b("add", b("add", b("add", low, count), gaps), high)
        dims[axis] = _padded(s, b, op, axis, x, known, total)
        places = line(b, s.largest(dims[axis]))
        moved = b("subtract", places, spread(b, low, places))
        step = spread(b, b("add", inner, one), places)
        source = b("divide", moved, step)
        inside = b("and", b.compare("EQ", b("multiply", source, step), moved), b(
            "and", b.compare("GE", moved, spread(b, zero, places)),
            b.compare("LT", source, spread(b, count, places)),
        ))  # fmt: skip
        least = _with_axis(value.dims, axis, maximum(value.dims[axis], 1))
        value = taken(b, s.fit(b, value, least), axis, source)
        mask = b.broadcast(inside, value.dims, (axis,))
        value = b("select", mask, value, b.broadcast(filler.value, value.dims, ()))
    return Whole(value, tuple(dims))


def _padded(
    s: MaskScope, b: Builder, op: Op, axis: int, x: Whole, known: Sequence[Dim | None], total: Value
) -> Dim:  # fmt: skip
    """The true size of an axis that has been padded to `total`."""
    declared = op.type.dims[axis]
    count = s.declared(declared)
    low, high, inner = known
    if low is not None and high is not None and inner is not None:
        between = maximum(x.dims[axis] - 1, 0) * inner
        size = low + x.dims[axis] + between + high
        if count is not None:
            s.same(b, op, count, size)
        return size
    if count is not None:
        s.check(b, op, lambda: b.compare("EQ", total, s.size(b, count)), f"its size is {count}")
        return count
    return s.sized(b, op, declared, total)


def _scalar(s: MaskScope, b: Builder, entry: int | Value) -> Value:
    """An entry of a shape operand as an i32 scalar."""
    assert isinstance(entry, Value)
    return b.convert(b.reshape(s.find(entry).value, ()), I32)


def reverse(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    (x,) = xs
    plain = tuple(d for d in op.dimensions if s.is_whole((x.dims[d],)))
    value = b("reverse", x.value, dimensions=plain) if plain else x.value
    for axis in op.dimensions:
        if axis not in plain:
            places = line(b, value.dims[axis])
            last = spread(b, s.size(b, x.dims[axis] - 1), places)
            value = taken(b, value, axis, b("subtract", last, places))
    return Whole(value, x.dims)


def gather(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Positions are clamped into the true sizes."""
    x, indices = xs[0], xs[1]
    gone = {*op.collapsed_slice_dims, *op.operand_batching_dims}
    if op.name == "gather":
        sizes: Sequence[Any] = op.slice_sizes
    else:
        entries = scalars(op.operands[2])
        if entries is None:
            raise Unmasked("its slice sizes are computed as a whole vector")
        kept = [d for d in range(x.value.rank) if d not in gone]
        declared = dict(zip(kept, (op.type.dims[place] for place in op.offset_dims), strict=True))
        sizes = [
            e if isinstance(e, int)
            else s.sized(b, op, declared.get(d, s.new()), e, s.largest(x.dims[d]))
            for d, e in enumerate(entries)
        ]  # fmt: skip
    batch = [d for axis, d in enumerate(indices.dims) if axis != op.index_vector_dim]
    offsets = [size for d, size in enumerate(sizes) if d not in gone]
    rank = len(batch) + len(offsets)
    dims = tuple(offsets.pop(0) if d in op.offset_dims else batch.pop(0) for d in range(rank))
    for d, size in enumerate(sizes):
        if size != x.dims[d] and not isinstance(size, int):
            s.at_most(b, op, size, x.dims[d])
    for d, e in zip(op.operand_batching_dims, op.start_indices_batching_dims, strict=True):
        s.same(b, op, x.dims[d], indices.dims[e])
    places = indices.value
    limits = [x.dims[d] - sizes[d] for d in op.start_index_map]
    if not s.is_whole(limits):
        if places.element.bits < 32:
            places = b.convert(places, I32)
        scalars_ = [b.convert(s.size(b, limit), places.element) for limit in limits]
        axis = op.index_vector_dim
        if axis == places.rank:
            last = b.broadcast(scalars_[0], places.dims, ())
        else:
            vector = [b.reshape(scalar, (1,)) for scalar in scalars_]
            joined = b("concatenate", *vector, dimension=0) if vector[1:] else vector[0]
            last = b.broadcast(joined, places.dims, (axis,))
        zero = b.constant(0, places.tensor)
        places = b("clamp", zero, places, b("maximum", last, zero))
    whole = tuple(s.largest(size) for size in sizes)
    kind = s.kind(dims, op.type.element)
    if any(size != 0 and have == 0 for size, have in zip(whole, x.value.dims, strict=True)):
        return Whole(b.constant(0, kind), dims)  # no call has an element
    facts = {k: v for k, v in op.attributes.items() if k != "slice_sizes"}
    return Whole(b("gather", x.value, places, type=kind, slice_sizes=whole, **facts), dims)


def dynamic_slice(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    x, sizes = xs[0], op.slice_sizes
    starts = []
    for axis, start in enumerate(xs[1:]):
        s.at_most(b, op, sizes[axis], x.dims[axis])
        starts.append(_clamped(s, b, start.value, x.dims[axis], sizes[axis]))
    return Whole(b("dynamic_slice", x.value, *starts, slice_sizes=sizes), tuple(sizes))


def _clamped(
    s: MaskScope, b: Builder, start: Value, size: Dim, part: Dim, by_reader: bool = True
) -> Value:
    """A start at which a part fits into the true size. by_reader: what reads it clamps it to the
    size of its operand itself."""
    if by_reader and s.is_whole((size, part)):
        return start
    if start.element.bits < 32:
        start = b.convert(start, I32)
    zero = b.constant(0, start.tensor)
    last = b.convert(s.size(b, size - part), start.element)
    return b("clamp", zero, start, b("maximum", last, zero))


def dynamic_update(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Where it begins is clamped by the true sizes; no more than the update's own is written."""
    x, update = xs[0], xs[1]
    whole = s.is_whole(update.dims)
    starts = [
        _clamped(s, b, start.value, size, part, by_reader=whole)
        for start, size, part in zip(xs[2:], x.dims, update.dims, strict=True)
    ]
    for size, part in zip(x.dims, update.dims, strict=True):
        s.at_most(b, op, part, size)
    if whole:
        made = b("dynamic_update_slice", x.value, update.value, *starts)
        return Whole(made, x.dims)
    value, mask = update.value, None
    for axis, (start, part) in enumerate(zip(starts, update.dims, strict=True)):
        places = line(b, x.value.dims[axis])
        own = b("subtract", places, spread(b, b.convert(b.reshape(start, ()), I32), places))
        value = taken(b, value, axis, own)
        least = b.compare("GE", own, b.constant(0, own.tensor))
        most = b.compare("LT", own, spread(b, s.size(b, part), own))
        inside = b.broadcast(b("and", least, most), x.value.dims, (axis,))
        mask = inside if mask is None else b("and", mask, inside)
    assert mask is not None
    return Whole(b("select", mask, value, x.value), x.dims)


def unchanged(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    """A barrier between operations."""
    made = b.op(op.name, [x.value for x in xs], op.attributes, (), [x.value.type for x in xs])
    return [Whole(v, x.dims) for v, x in zip(made.results, xs, strict=True)]


RULES: dict[str, Rule] = {
    "broadcast_in_dim": broadcast,
    "concatenate": concatenate,
    "dynamic_broadcast_in_dim": broadcast,
    "dynamic_gather": gather,
    "dynamic_iota": iota,
    "dynamic_pad": dynamic_pad,
    "dynamic_reshape": reshape,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update,
    "gather": gather,
    "get_dimension_size": get_size,
    "iota": iota,
    "optimization_barrier": unchanged,
    "pad": pad,
    "real_dynamic_slice": real_slice,
    "reshape": reshape,
    "reverse": reverse,
    "set_dimension_size": set_size,
    "slice": slice_,
    "transpose": transpose,
}
