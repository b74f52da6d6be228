"""Operations whose shape is an operand. They run on the shape that the result type fixes, or, where
it is symbolic, on the one that the operand holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Space, reshaped
from ..deciding import is_decided, surely_at_most, surely_below
from ..factors import Factor, FactorBuilder, Factors, reshaping
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..room import operand as second
from ..symbols import maximum
from ..types import F8E8M0FNU, F32, TensorType
from .clauses import any_result, per_dim, same_dim, same_element, unique, within
from .convolution import Convolution, convolved, numbers
from .examples import counting, f32, i32, i64
from .indexing import Gather, gathered
from .shape import broadcast_indices, broadcast_to, counted, padded


def _is_shape(value: Any) -> bool:
    return value.rank == 1 and value.element.is_integer


def _dims(array: Any) -> tuple[int, ...]:
    return tuple(map(int, np.asarray(array).reshape(-1)))


def _shape(array: Any) -> tuple[int, ...]:
    """The dimensions in a shape operand; ValueError if one is negative."""
    dims = _dims(array)
    if min(dims, default=0) < 0:
        raise ValueError(f"a shape is {list(dims)}")
    return dims


# Sizes are fixed before anything is cut; what remains of these is replaced by the fixed operation.
_FIXED_FIRST = "it becomes the operation of fixed sizes before anything is cut"


def _shape_case(name: str, inputs: tuple[Any, ...], dims: Sequence[int], **attributes: Any) -> Case:
    return Case(name, inputs, attributes, (TensorType(dims, F32),))


def _element(b: Any, vector: Any, number: int) -> Any:
    """Entry `number` of a vector, as a scalar."""
    bounds = {"start_indices": (number,), "limit_indices": (number + 1,), "strides": (1,)}
    one = b("slice", vector, **bounds)
    return b.reshape(one, ())


def _line(b: Any, scalar: Any, count: int) -> tuple[Any, Any]:
    """The scalar `count` times, and 0, 1, 2, ... of its type."""
    kind = TensorType((count,), scalar.element)
    return b.broadcast(scalar, (count,), ()), b("iota", type=kind, iota_dimension=0)


def _last(b: Any, x: Any, d: int, like: TensorType) -> Any:
    """The last position along a dimension, everywhere."""
    size = x.dims[d]
    if isinstance(size, int):
        return b.constant(size - 1, like)
    count = b("get_dimension_size", x, dimension=d)
    last = b("subtract", count, b.constant(1, count.tensor))
    return b.broadcast(b.convert(last, like.element), like.dims, ())


def _taken(b: Any, x: Any, indices: Any, dimension: int) -> Any:
    """x with the elements at `indices`, a vector, along one dimension."""
    sizes = [1 if d == dimension else size for d, size in enumerate(x.dims)]
    others = tuple(d for d in range(x.rank) if d != dimension)
    return b(
        "gather", x, indices, offset_dims=others, collapsed_slice_dims=(dimension,),
        start_index_map=(dimension,), index_vector_dim=1, slice_sizes=tuple(sizes),
    )  # fmt: skip


class DynamicReshape(OpDefinition, name="dynamic_reshape"):
    """result = operand's elements in the dimensions output_shape."""

    pattern = "index"
    operand = operand()
    output_shape = second()
    C1 = constraint(
        "operand and result have the same element type",
        any_result(lambda o: same_element(o.operand.element, o.result.element)),
    )
    C3 = constraint("output_shape is a vector of integers", lambda o: _is_shape(o.output_shape))
    C4 = constraint(
        "output_shape has rank(result) entries",
        any_result(lambda o: same_dim(o.output_shape.dims[0], o.result.rank)),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.reshape(arrays[0], _shape(arrays[1]))

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return [b.reshape(values[0], o.type.dims)] if is_decided(o.type) else None

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        shape = space.whole(o.output_shape.dims)
        return space.access(reshaped(o.operand.dims, o.type.dims), shape)

    def shard(self, o: Op) -> Factors | None:
        return reshaping(o)

    def cases(self) -> Iterator[Case]:
        yield _shape_case("dynamic_reshape", (counting(2, 3), i64([3, 2])), (3, 2))


class DynamicBroadcastInDim(OpDefinition, name="dynamic_broadcast_in_dim"):
    """result[i] = operand[i_broadcast_dimensions] in the dimensions output_dimensions."""

    pattern = "index"
    operand = operand()
    output_dimensions = second()
    broadcast_dimensions = attribute(tuple)
    known_expanding_dimensions = attribute(tuple, ())
    known_nonexpanding_dimensions = attribute(tuple, ())
    C2 = constraint(
        "size(broadcast_dimensions) = rank(operand)",
        lambda o: len(o.broadcast_dimensions) == o.operand.rank,
    )
    C3 = constraint(
        "0 <= broadcast_dimensions < rank(result)",
        any_result(lambda o: within(o.broadcast_dimensions, o.result.rank)),
    )
    C4 = constraint("broadcast_dimensions are unique", lambda o: unique(o.broadcast_dimensions))
    C6 = constraint(
        "output_dimensions is a vector of rank(result) integers",
        any_result(
            lambda o: (
                _is_shape(o.output_dimensions)
                and same_dim(o.output_dimensions.dims[0], o.result.rank)
            )
        ),
    )
    C7 = constraint(
        "known dimensions are unique",
        lambda o: unique((*o.known_expanding_dimensions, *o.known_nonexpanding_dimensions)),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return broadcast_to(arrays[0], _shape(arrays[1]), o.broadcast_dimensions)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        if not is_decided(o.type):
            return None
        return [b.broadcast(values[0], o.type.dims, o.broadcast_dimensions)]

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        indices = broadcast_indices(o.operand.dims, o.type.dims, o.broadcast_dimensions)
        return space.access(indices, space.whole(o.output_dimensions.dims))

    def shard(self, o: Op) -> Factors | None:
        rule, sources = FactorBuilder(o), o.broadcast_dimensions
        for d, size in enumerate(o.type.dims):
            held = {0: sources.index(d)} if d in sources else {}
            same = [n for n in held.values() if o.operand.dims[n] == size]
            rule.add(Factor(size), held if same else {}, {0: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        inputs = (counting(1, 3), i32([2, 3, 2]))
        dims = (2, 3, 2)
        yield _shape_case("dynamic_broadcast", inputs, dims, broadcast_dimensions=(2, 1))


class DynamicIota(OpDefinition, name="dynamic_iota"):
    """result[i] = i[iota_dimension] in the dimensions output_shape."""

    pattern = "index"
    output_shape = operand()
    iota_dimension = attribute(int)
    C1 = constraint(
        "0 <= iota_dimension < size(output_shape)",
        lambda o: (
            o.iota_dimension >= 0
            and (
                not isinstance(o.output_shape.dims[0], int)
                or o.iota_dimension < o.output_shape.dims[0]
            )
        ),
    )
    C2 = constraint(
        "output_shape is a vector of rank(result) integers",
        any_result(
            lambda o: _is_shape(o.output_shape) and same_dim(o.output_shape.dims[0], o.result.rank)
        ),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return counted(_shape(arrays[0]), o.iota_dimension, o.result.element)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        if not is_decided(o.type):
            return None
        return [b("iota", type=o.type, iota_dimension=o.iota_dimension)]

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        return space.access(space.whole(o.output_shape.dims))

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        for d, size in enumerate(o.type.dims):
            rule.add(Factor(size, placed=True), {}, {0: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        yield _shape_case("dynamic_iota", (i64([2, 3]),), (2, 3), iota_dimension=1)


class DynamicPad(OpDefinition, name="dynamic_pad"):
    """result = operand padded as `pad` does, with the paddings given as operands."""

    pattern = "index"
    opaque = "how far the elements move is an operand"
    uncut = _FIXED_FIRST
    operand = operand()
    padding_value = second()
    edge_padding_low = second()
    edge_padding_high = second()
    interior_padding = second()
    C1 = constraint(
        "operand and padding_value have the same element type, padding_value is a scalar",
        lambda o: (
            same_element(o.operand.element, o.padding_value.element) and o.padding_value.rank == 0
        ),
    )
    C2 = constraint(
        "the paddings are vectors of rank(operand) integers",
        lambda o: all(_is_shape(v) and same_dim(v.dims[0], o.operand.rank) for v in o.operands[2:]),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return padded(arrays[0], arrays[1], *map(_dims, arrays[2:]))

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        """Along each dimension: the elements that belong there, the padding elsewhere."""
        x, padding, lows, _, interiors = values
        if not (is_decided(x.tensor) and is_decided(o.type)):
            return None
        if x.tensor.size == 0:
            return [b.broadcast(padding, o.type.dims, ())]
        if not surely_below(0, x.tensor.size):
            return None
        for d, count in enumerate(o.type.dims):
            low, place = _line(b, _element(b, lows, d), count)
            step, _ = _line(b, _element(b, interiors, d), count)
            one = b.constant(1, low.tensor)
            zero, last = b.constant(0, low.tensor), _last(b, x, d, low.tensor)
            moved, step = b("subtract", place, low), b("add", step, one)
            source = b("divide", moved, step)
            exact = b.compare("EQ", b("multiply", source, step), moved)
            inside = b("and", b.compare("GE", moved, zero), b.compare("LE", source, last))
            belongs = b("and", exact, inside)
            x = _taken(b, x, b("clamp", zero, source, last), d)
            mask = b.broadcast(belongs, x.dims, (d,))
            x = b("select", mask, x, b.broadcast(padding, x.dims, ()))
        return [x]

    def cases(self) -> Iterator[Case]:
        paddings = (i64([1, -1]), i64([0, 2]), i64([1, 0]))
        yield _shape_case("dynamic_pad", (counting(2, 3), f32(-7), *paddings), (4, 4))


class RealDynamicSlice(OpDefinition, name="real_dynamic_slice"):
    """result[i] = operand[start_indices + i * strides], with all bounds given as operands."""

    pattern = "index"
    opaque = "how far the elements move is an operand"
    uncut = _FIXED_FIRST
    operand = operand()
    start_indices = second()
    limit_indices = second()
    strides = second()
    C2 = constraint(
        "start_indices, limit_indices and strides are vectors of rank(operand) integers",
        lambda o: all(_is_shape(v) and same_dim(v.dims[0], o.operand.rank) for v in o.operands[1:]),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        starts, limits, strides = bounds = [_dims(array) for array in arrays[1:]]
        for size, start, limit, stride in zip(arrays[0].shape, *bounds, strict=True):
            if not 0 <= start <= limit <= size or stride <= 0:
                raise ValueError(f"a slice {start}:{limit}:{stride} of {size} elements")
        return arrays[0][tuple(map(slice, starts, limits, strides))]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        x, starts, _, strides = values
        if not (is_decided(x.tensor) and is_decided(o.type)) or x.tensor.size == 0:
            return None
        for d, count in enumerate(o.type.dims):
            start, place = _line(b, _element(b, starts, d), count)
            stride, _ = _line(b, _element(b, strides, d), count)
            x = _taken(b, x, b("add", start, b("multiply", place, stride)), d)
        return [x]

    def cases(self) -> Iterator[Case]:
        bounds = (i64([1, 0]), i64([3, 5]), i64([1, 2]))
        yield _shape_case("real_dynamic_slice", (counting(3, 5), *bounds), (2, 3))


class DynamicGather(OpDefinition, name="dynamic_gather"):
    """result = gather with slice_sizes given as an operand."""

    pattern = "index"
    opaque = "how large the gathered slices are is an operand"
    uncut = _FIXED_FIRST
    operand = operand()
    start_indices = second()
    slice_sizes = second()
    offset_dims = attribute(tuple)
    collapsed_slice_dims = attribute(tuple)
    operand_batching_dims = attribute(tuple, ())
    start_indices_batching_dims = attribute(tuple, ())
    start_index_map = attribute(tuple)
    index_vector_dim = attribute(int)
    indices_are_sorted = attribute(bool, False)
    C2 = constraint(
        "0 <= index_vector_dim <= rank(start_indices)",
        lambda o: 0 <= o.index_vector_dim <= o.start_indices.rank,
    )
    C8 = constraint(
        "slice_sizes is a vector of rank(operand) integers",
        lambda o: _is_shape(o.slice_sizes) and same_dim(o.slice_sizes.dims[0], o.operand.rank),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        sizes = _shape(arrays[2])
        if any(size > whole for size, whole in zip(sizes, arrays[0].shape, strict=True)):
            raise ValueError(f"slices of {list(sizes)} from {list(arrays[0].shape)}")
        return gathered(o, arrays[0], arrays[1], sizes)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        """The result's dimensions say how large the slices are."""
        if not is_decided(o.type):
            return None
        gone = {*o.collapsed_slice_dims, *o.operand_batching_dims}
        kept = iter(o.type.dims[d] for d in o.offset_dims)
        sizes = tuple(1 if d in gone else next(kept) for d in range(o.operand.rank))
        return [b("gather", *values[:2], type=o.type, **{**o.attributes, "slice_sizes": sizes})]

    def cases(self) -> Iterator[Case]:
        case = next(iter(Gather().cases()))
        facts = dict(case.attributes)
        sizes = np.asarray(facts.pop("slice_sizes"), np.int32)
        yield _shape_case("dynamic_gather", (*case.inputs, sizes), (4, 3), **facts)


class DynamicConvolution(OpDefinition, name="dynamic_conv"):
    """result = convolution with the padding given as an operand, [spatial dimensions, 2]."""

    pattern = "opaque"
    opaque = "how far the windows move is an operand"
    uncut = _FIXED_FIRST
    lhs = operand()
    rhs = second()
    d_padding = second()
    C1 = constraint("lhs and rhs have the same rank", lambda o: o.lhs.rank == o.rhs.rank)
    C2 = constraint(
        "d_padding is a matrix of two integers per spatial dimension",
        lambda o: (
            o.d_padding.rank == 2
            and o.d_padding.element.is_integer
            and o.d_padding.dims == (o.lhs.rank - 2, 2)
        ),
    )
    attributes = {  # noqa: RUF012
        name: spec for name, spec in Convolution.attributes.items() if name != "padding"
    }

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        padding = [(int(low), int(high)) for low, high in np.asarray(arrays[2])]
        return convolved(o, arrays[0], arrays[1], padding, o.type.dtype)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        """Pad first, as far as the windows of the result reach; then convolve without padding."""
        lhs, rhs, padding = values
        if lhs.element is F8E8M0FNU:
            lhs = b.convert(lhs, F32)  # the type has no zero to pad with
        if not all(map(is_decided, (lhs.tensor, rhs.tensor, o.type))):
            return None
        count = lhs.rank - 2
        strides, dilations, bases = (
            per_dim(o.attributes.get(key), count, 1)
            for key in ("window_strides", "rhs_dilation", "lhs_dilation")
        )
        dims, inner = list(lhs.dims), [0] * lhs.rank
        zero = b.constant(0, TensorType((1,), padding.element))
        lows = [zero] * lhs.rank
        for number, d in enumerate(o.input_spatial_dimensions):
            window = (rhs.dims[o.kernel_spatial_dimensions[number]] - 1) * dilations[number] + 1
            result = o.type.dims[o.output_spatial_dimensions[number]]
            reach = (result - 1) * strides[number] + window
            dims[d] = reach if surely_at_most(0, reach) else maximum(0, reach)
            bounds = {"start_indices": (number, 0), "limit_indices": (number + 1, 1)}
            lows[d] = b.reshape(b("slice", padding, strides=(1, 1), **bounds), (1,))
            inner[d] = bases[number] - 1
        if lhs.tensor.size == 0 or 0 in dims or 0 in o.type.dims:
            return None
        low = b("concatenate", *lows, dimension=0)
        interior = b.constant(np.asarray(inner), low.tensor)
        nothing = b.constant(0, TensorType((), lhs.element))
        wide = b("dynamic_pad", lhs, nothing, low, low, interior, type=lhs.tensor.with_dims(dims))
        facts = {k: v for k, v in o.attributes.items() if k != "lhs_dilation"}
        return [b("convolution", wide, rhs, type=o.type, **facts)]

    def flops(self, o: Op) -> float:
        return Convolution().flops(o)

    def cases(self) -> Iterator[Case]:
        inputs = (counting(1, 4, 2), counting(3, 2, 3), i32([[1, 1]]))
        yield _shape_case("dynamic_conv", inputs, (1, 4, 3), **numbers(1))


ROOMS = (
    DynamicReshape(), DynamicBroadcastInDim(), DynamicIota(), DynamicPad(), RealDynamicSlice(),
    DynamicGather(), DynamicConvolution(),
)  # fmt: skip
