"""Operations that combine elements of tensors whose sizes data decide: what is behind a size is
neutral there."""

from __future__ import annotations

from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.ops import bodies, find
from ...hlo.symbols import Dim, maximum
from ...hlo.types import I1, I8, I32, TensorType
from ..rewrite import copied
from ..rules.reductions import neutral
from .scope import MaskScope, Rule, Unmasked, Whole


def _neutral(b: Builder, name: str | None, start: Value, element: Any) -> Value:
    """What a fold leaves other elements alone with: the neutral number of its monoid; otherwise the
    value that it starts from, which has to be that by StableHLO's rules."""
    kind = TensorType((), element)
    if name is not None and element is I1:
        return b.constant(find(name).neutral not in ("zero", "lowest"), kind)
    if name is not None and (element.is_float or element.is_integer):
        return b.constant(neutral(name, element), kind)
    return start


def reduce(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    count = len(xs) // 2
    name = bodies.monoid(op.regions[0]) if count == 1 else None
    first = xs[0]
    for x in xs[1:count]:
        for left, right in zip(first.dims, x.dims, strict=True):
            s.same(b, op, left, right)
    values = []
    for x, start in zip(xs[:count], xs[count:], strict=True):
        filler = _neutral(b, name, start.value, x.value.element)
        values.append(s.masked(b, Whole(x.value, first.dims), op.dimensions, filler))
    dims = tuple(d for axis, d in enumerate(first.dims) if axis not in op.dimensions)
    kinds = [s.kind(dims, result.tensor.element) for result in op.results]
    made = b.op(
        "reduce", [*values, *(x.value for x in xs[count:])], op.attributes, op.regions, kinds
    )
    return [Whole(result, dims) for result in made.results]


def window(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    """Windows that reach beyond a size find padding there."""
    count = len(xs) // 2
    rank, first = xs[0].value.rank, xs[0]

    def each(name: str, default: Any) -> Any:
        return op.attributes.get(name) or (default,) * rank

    strides, padding = each("window_strides", 1), each("padding", (0, 0))
    bases, dilations = each("base_dilations", 1), each("window_dilations", 1)
    dims, touched = list(first.dims), []
    columns = zip(op.window_dimensions, strides, padding, bases, dilations, strict=True)
    for axis, (size, stride, (low, high), base, dilation) in enumerate(columns):
        if (size, stride, low, high, base) == (1, 1, 0, 0, 1):
            continue
        touched.append(axis)
        have = dims[axis] if base == 1 else (dims[axis] - 1) * base + 1
        reach = (size - 1) * dilation + 1
        rest: Dim = have + low + high - reach
        dims[axis] = rest + 1 if stride == 1 else rest // stride + 1
        if not s.is_whole((dims[axis],)):
            s.at_most(b, op, 0, dims[axis])
    values = [  # padding is the initial value, whatever that is
        s.masked(b, x, touched, start.value)
        for x, start in zip(xs[:count], xs[count:], strict=True)
    ]
    kinds = [s.kind(dims, result.tensor.element) for result in op.results]
    made = b.op(
        "reduce_window", [*values, *(x.value for x in xs[count:])], op.attributes, op.regions, kinds
    )
    return [Whole(result, tuple(dims)) for result in made.results]


def dot(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Both sides are zero behind the sizes of what is summed over."""
    left, right = xs
    facts = op.attributes
    summed, batched = (
        list(zip(facts.get(f"lhs_{kind}", ()), facts.get(f"rhs_{kind}", ()), strict=True))
        for kind in ("contracting_dimensions", "batching_dimensions")
    )
    for d, e in (*summed, *batched):
        s.same(b, op, left.dims[d], right.dims[e])
    used = [d for d, _ in (*summed, *batched)], [e for _, e in (*summed, *batched)]
    values = []
    for x, dims in ((left, [d for d, _ in summed]), (right, [e for _, e in summed])):
        values.append(s.masked(b, x, dims, b.constant(0, TensorType((), x.value.element))))
    wide = list(right.value.dims)
    for d, e in (*summed, *batched):
        wide[e] = left.value.dims[d]
    values[1] = s.fit(b, values[1], wide)
    places = [left.dims[d] for d, _ in batched]
    for x, gone in zip(xs, used, strict=True):
        places += [dim for d, dim in enumerate(x.dims) if d not in gone]
    kind = s.kind(places, op.type.element)
    return Whole(b.op("dot_general", values, facts, (), [kind]).result, tuple(places))


def convolution(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> Whole:
    """Pixels behind a size are zeros, as padding is."""
    image, kernel = xs
    batch, feature = op.input_batch_dimension, op.input_feature_dimension
    if not s.is_whole((*kernel.dims, image.dims[feature])):
        raise Unmasked("data decide the sizes of its kernel or its features")
    if not s.is_whole((image.dims[batch],)) and op.attributes.get("batch_group_count", 1) != 1:
        raise Unmasked("it has groups of a batch whose size data decide")
    spatial = op.input_spatial_dimensions
    zero = b.constant(0, TensorType((), image.value.element))
    value = s.masked(b, image, spatial, zero)
    dims = list(op.type.dims)
    for place, d in enumerate(spatial):
        if s.is_whole((image.dims[d],)):
            continue

        def each(name: str, default: Any, place: int = place) -> Any:
            given = op.attributes.get(name)
            return given[place] if given else default

        low, high = each("padding", (0, 0))
        base = each("lhs_dilation", 1)
        have = image.dims[d] if base == 1 else (image.dims[d] - 1) * base + 1
        size = kernel.dims[op.kernel_spatial_dimensions[place]]
        reach = (size - 1) * each("rhs_dilation", 1) + 1
        found: Dim = (have + low + high - reach) // each("window_strides", 1) + 1
        dims[op.output_spatial_dimensions[place]] = found
        s.at_most(b, op, 0, found)
    if not s.is_whole((image.dims[batch],)):
        dims[op.output_batch_dimension] = image.dims[batch]
    kind = s.kind(dims, op.type.element)
    made = b.op("convolution", [value, kernel.value], op.attributes, (), [kind])
    return Whole(made.result, tuple(dims))


def sort(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    """What is behind the size comes last, whatever it holds."""
    first = xs[0]
    for x in xs[1:]:
        for left, right in zip(first.dims, x.dims, strict=True):
            s.same(b, op, left, right)
    axis = op.dimension % first.value.rank
    values, region = [x.value for x in xs], op.regions[0]
    mask = s.inside(b, first, [axis])
    if mask is not None:
        beyond = b.convert(b("not", mask), I8)
        values, region = [beyond, *values], _behind(region)
    kinds = [value.type for value in values]
    made = b.op("sort", values, {**op.attributes, "is_stable": True}, [region], kinds).results
    return [Whole(v, first.dims) for v in (made if mask is None else made[1:])]


def _behind(region: Region) -> Region:
    """The comparator that asks a first pair of keys first."""
    b = Builder(check=False)
    key = TensorType((), I8)
    left, right, *others = b.arguments([key, key, *region.argument_types])
    values = dict(zip(region.arguments, others, strict=True))
    for op in region.ops:
        copy = b.append(copied(op, values))
        values.update(zip(op.results, copy.results, strict=True))
    (before,) = (values.get(value, value) for value in region.results)
    equal = b("and", b.compare("EQ", left, right), before)
    return b.region([b("or", b.compare("LT", left, right), equal)])


def scatter(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    """Updates behind their sizes get a position at which nothing is."""
    count = len(xs) // 2
    inputs, indices, updates = xs[:count], xs[count], xs[count + 1 :]
    windows = op.update_window_dims
    places, first = indices.value, updates[0]
    for x in inputs[1:]:
        for one, other in zip(inputs[0].dims, x.dims, strict=True):
            s.same(b, op, one, other)
    for x in updates[1:]:
        for one, other in zip(first.dims, x.dims, strict=True):
            s.same(b, op, one, other)
    gone = {*op.inserted_window_dims, *op.input_batching_dims}
    kept = [d for d in range(inputs[0].value.rank) if d not in gone]
    for d, place in zip(kept, windows, strict=True):
        if not s.is_whole((first.dims[place],)):
            if d in op.scatter_dims_to_operand_dims:
                raise Unmasked("data decide the size of windows that positions move")
            s.same(b, op, first.dims[place], inputs[0].dims[d])
    pairs = zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True)
    for d, e in pairs:
        s.same(b, op, inputs[0].dims[d], indices.dims[e])
    axes = [axis for axis in range(indices.value.rank) if axis != op.index_vector_dim]
    outer = [d for d in range(first.value.rank) if d not in windows]
    for axis, d in zip(axes, outer, strict=True):
        s.same(b, op, indices.dims[axis], first.dims[d])
    mask = s.inside(b, indices, axes)
    if mask is not None:
        largest = s.size(b, maximum(*inputs[0].value.dims, 0))
        if places.element.bits < 32:
            places = b.convert(places, I32)
        nowhere = b.broadcast(b.convert(largest, places.element), places.dims, ())
        places = b("select", mask, places, nowhere)
    values = [x.value for x in (*inputs, *updates)]
    values.insert(count, places)
    kinds = [
        TensorType(x.value.dims, result.tensor.element)
        for x, result in zip(inputs, op.results, strict=True)
    ]
    facts = {**op.attributes, "indices_are_sorted": False, "unique_indices": False}
    made = b.op("scatter", values, facts, op.regions, kinds)
    return [Whole(v, x.dims) for v, x in zip(made.results, inputs, strict=True)]


RULES: dict[str, Rule] = {
    "convolution": convolution,
    "dot_general": dot,
    "reduce": reduce,
    "reduce_window": window,
    "scatter": scatter,
    "sort": sort,
}
