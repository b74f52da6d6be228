"""Convolution over any number of spatial dimensions, any layout, groups, dilations, reversal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Index, IndexTerm, IterationKind, Space, at, windowed
from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..types import I32, TensorType, Type
from . import numerics
from .clauses import divides, per_dim, result_element, same_dim, unique
from .contraction import accumulator
from .examples import counting
from .shape import padded
from .windows import windowed_dims

DIMENSION_NUMBERS = (
    "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
    "kernel_input_feature_dimension", "kernel_output_feature_dimension",
    "kernel_spatial_dimensions",
    "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions",
)  # fmt: skip


class Convolution(OpDefinition, name="convolution"):
    """result[b, o, y] = sum over i, k of lhs[b, i, y * stride + k * dilation - low] * rhs[i, o, k].

    lhs is dilated by lhs_dilation and padded with zeros (or cut) first. With groups, each group
    of output features sees its own group of input features (or of the batch).
    """

    pattern = "contract"
    linear = "separately"
    lhs = operand()
    rhs = operand()
    input_batch_dimension = attribute(int)
    input_feature_dimension = attribute(int)
    input_spatial_dimensions = attribute(tuple)
    kernel_input_feature_dimension = attribute(int)
    kernel_output_feature_dimension = attribute(int)
    kernel_spatial_dimensions = attribute(tuple)
    output_batch_dimension = attribute(int)
    output_feature_dimension = attribute(int)
    output_spatial_dimensions = attribute(tuple)
    window_strides = attribute(tuple, ())
    padding = attribute(tuple, ())
    lhs_dilation = attribute(tuple, ())
    rhs_dilation = attribute(tuple, ())
    window_reversal = attribute(tuple, ())
    feature_group_count = attribute(int, 1)
    batch_group_count = attribute(int, 1)
    precision_config = attribute(tuple, ())
    C1 = constraint("lhs and rhs have the same rank", lambda o: o.lhs.rank == o.rhs.rank)
    C2 = constraint(
        "window attributes are empty or have an entry per spatial dimension",
        lambda o: all(
            len(values) in (0, o.lhs.rank - 2)
            for values in (
                o.window_strides, o.padding, o.lhs_dilation, o.rhs_dilation, o.window_reversal,
            )
        ),
    )  # fmt: skip
    C3 = constraint("0 < window_strides", lambda o: min(o.window_strides, default=1) > 0)
    C6 = constraint("0 < lhs_dilation", lambda o: min(o.lhs_dilation, default=1) > 0)
    C8 = constraint("0 < rhs_dilation", lambda o: min(o.rhs_dilation, default=1) > 0)
    C13 = constraint(
        "input dimension numbers are a permutation of range(rank(lhs))",
        lambda o: _complete(o, "input_batch_dimension", "input_feature_dimension",
                            "input_spatial_dimensions"),
    )  # fmt: skip
    C18 = constraint(
        "kernel dimension numbers are a permutation of range(rank(lhs))",
        lambda o: _complete(o, "kernel_input_feature_dimension", "kernel_output_feature_dimension",
                            "kernel_spatial_dimensions"),
    )  # fmt: skip
    C20 = constraint(
        "output dimension numbers are a permutation of range(rank(lhs))",
        lambda o: _complete(o, "output_batch_dimension", "output_feature_dimension",
                            "output_spatial_dimensions"),
    )  # fmt: skip
    C21 = constraint("0 < feature_group_count", lambda o: o.feature_group_count > 0)
    C22 = constraint("0 < batch_group_count", lambda o: o.batch_group_count > 0)
    C10 = constraint(
        "batch_group_count divides the input batch",
        lambda o: _divides(o.batch_group_count, o.lhs.dims[o.input_batch_dimension]),
    )
    C11 = constraint(
        "feature_group_count divides the input features",
        lambda o: _divides(o.feature_group_count, o.lhs.dims[o.input_feature_dimension]),
    )
    C14 = constraint(
        "kernel input features * feature_group_count = input features",
        lambda o: same_dim(
            o.rhs.dims[o.kernel_input_feature_dimension] * o.feature_group_count,
            o.lhs.dims[o.input_feature_dimension],
        ),
    )
    C15 = constraint(
        "batch_group_count divides the kernel's output features",
        lambda o: _divides(o.batch_group_count, o.rhs.dims[o.kernel_output_feature_dimension]),
    )
    C16 = constraint(
        "feature_group_count divides the kernel's output features",
        lambda o: _divides(o.feature_group_count, o.rhs.dims[o.kernel_output_feature_dimension]),
    )
    C23 = constraint(
        "feature_group_count = 1 or batch_group_count = 1",
        lambda o: 1 in (o.feature_group_count, o.batch_group_count),
    )
    C24 = constraint(
        "precision_config is empty or has two entries", lambda o: len(o.precision_config) in (0, 2)
    )

    def infer(self, o: Op) -> Sequence[Type]:
        strides, padding, base, dilation, _ = window_attributes(o)
        spatial = windowed_dims(
            [o.lhs.dims[d] for d in o.input_spatial_dimensions],
            [o.rhs.dims[d] for d in o.kernel_spatial_dimensions],
            strides, base, dilation, padding,
        )  # fmt: skip
        dims: list[Any] = [0] * o.lhs.rank
        batch = o.lhs.dims[o.input_batch_dimension]
        dims[o.output_batch_dimension] = batch // o.batch_group_count
        dims[o.output_feature_dimension] = o.rhs.dims[o.kernel_output_feature_dimension]
        for dimension, size in zip(o.output_spatial_dimensions, spatial, strict=True):
            dims[dimension] = size
        return [TensorType(dims, result_element(o, o.lhs.element))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        lhs, rhs = arrays
        padding = window_attributes(o)[1]
        return convolved(o, lhs, rhs, padding, o.type.dtype)

    def access(self, o: Op) -> Access | None:
        return convolution_access(o, window_attributes(o)[1])

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        groups = Factor(max(o.feature_group_count, o.batch_group_count))
        kernel, feature = {1: o.kernel_output_feature_dimension}, {0: o.output_feature_dimension}
        batch, depth = {0: o.input_batch_dimension}, {0: o.input_feature_dimension}
        if o.batch_group_count > 1:
            rule.add(groups, {**batch, **kernel}, feature)
        images = o.output_batch_dimension
        rule.add(Factor(o.type.dims[images]), batch, {0: images})
        for source, window, result in zip(
            o.input_spatial_dimensions, o.kernel_spatial_dimensions, o.output_spatial_dimensions,
            strict=True,
        ):  # fmt: skip
            # Both the windows and the places in them walk along the input: more of them first.
            rest = o.lhs.dims[source]
            taps = Factor(o.rhs.dims[window], FactorKind.REDUCTION, placed=True)
            walks = [
                (Factor(o.type.dims[result], FactorKind.PERMUTATION), {0: source}, {0: result}),
                (taps, {0: source, 1: window}, {}),
            ]
            for factor, operands, results in sorted(walks, key=lambda walk: -walk[0].size):
                size = min(rest, factor.size)
                if size > 1:
                    rule.add(factor._replace(size=size), operands, results)
                    rest //= size
        if o.feature_group_count > 1:
            rule.add(groups, {**depth, **kernel}, feature)
        inner = o.kernel_input_feature_dimension
        rule.add(Factor(o.rhs.dims[inner], FactorKind.REDUCTION), {**depth, 1: inner})
        rule.add(Factor(o.type.dims[o.output_feature_dimension] // groups.size), kernel, feature)
        return rule.build()

    def flops(self, o: Op) -> float:
        rhs = o.rhs.tensor
        return 2.0 * o.type.size * rhs.size / rhs.dims[o.kernel_output_feature_dimension]

    def cases(self) -> Iterator[Case]:
        image, kernel = counting(2, 5, 6, 4) % 7 - 3, counting(3, 2, 4, 6) % 5 - 2
        yield Case("convolution_nhwc", (image, kernel), {**numbers(2), "padding": ((1, 1), (0, 2))})
        yield Case(
            "convolution_strided_dilated", (image, kernel),
            {**numbers(2), "window_strides": (2, 1), "rhs_dilation": (1, 2),
             "lhs_dilation": (2, 1), "padding": ((-1, 2), (1, 0))},
        )  # fmt: skip
        yield Case(
            "convolution_reversed",
            (image, kernel),
            {**numbers(2), "window_reversal": (True, False)},
        )
        depthwise = counting(3, 2, 1, 8) % 5 - 2
        yield Case(
            "convolution_depthwise", (image, depthwise), {**numbers(2), "feature_group_count": 4}
        )
        yield Case(
            "convolution_batch_groups", (image, kernel), {**numbers(2), "batch_group_count": 2}
        )
        yield Case("convolution_nchw", (np.moveaxis(image, 3, 1), counting(6, 4, 3, 2) % 3 - 1),
                   numbers(2, channels_first=True))  # fmt: skip
        yield Case("convolution_1d", (counting(1, 7, 2), counting(3, 2, 2)), numbers(1))
        yield Case("convolution_0d", (counting(3, 2), counting(2, 4)), numbers(0))
        small = np.full((1, 4, 2), 100, np.int8)
        result = (TensorType((1, 2, 1), I32),)
        yield Case("convolution_i8_to_i32", (small, small.reshape(4, 2, 1)[:3]), numbers(1), result)


def convolution_access(o: Op, padding: Sequence[tuple[int, int]]) -> Access:
    """lhs is read in windows; a group of output features reads its group of features or batch."""
    strides, _, base, dilation, reversal = window_attributes(o)
    space = Space(o.type.dims)
    batch, feature = at(o.output_batch_dimension), o.output_feature_dimension
    depth = space.inner(o.rhs.dims[o.kernel_input_feature_dimension], IterationKind.REDUCE, "add")
    groups = max(o.feature_group_count, o.batch_group_count)
    per_group = o.type.dims[feature] // groups

    def of_group(index: Index, size: int) -> Index:
        if groups == 1 or per_group == 0:
            return index
        return Index((IndexTerm(feature, size, per_group), *index.terms))

    lhs, rhs = [Index()] * o.lhs.rank, [Index()] * o.lhs.rank
    if o.batch_group_count > 1:
        lhs[o.input_feature_dimension] = depth
        lhs[o.input_batch_dimension] = of_group(batch, o.type.dims[o.output_batch_dimension])
    else:
        lhs[o.input_batch_dimension] = batch
        size = o.rhs.dims[o.kernel_input_feature_dimension]
        lhs[o.input_feature_dimension] = of_group(depth if size != 1 else Index(), size)
    rhs[o.kernel_input_feature_dimension] = depth
    rhs[o.kernel_output_feature_dimension] = at(feature)
    for axis, (source, kernel, result) in enumerate(
        zip(
            o.input_spatial_dimensions, o.kernel_spatial_dimensions, o.output_spatial_dimensions,
            strict=True,
        )
    ):  # fmt: skip
        size = o.rhs.dims[kernel]
        position = rhs[kernel] = space.inner(size, IterationKind.WINDOW, "add")
        if size == 1:  # a window of one place is there, wherever the result is
            position = Index()
        lhs[source] = windowed(
            position, result, strides[axis], dilation[axis], padding[axis][0], base[axis],
            size if reversal[axis] else 0,
        )  # fmt: skip
    return space.access(lhs, rhs)


def numbers(spatial: int, channels_first: bool = False) -> dict[str, Any]:
    """Dimension numbers of [b, 0.., f] x [0.., i, o], or of [b, f, 0..] x [o, i, 0..]."""
    if channels_first:
        places = tuple(range(2, 2 + spatial))
        values: tuple[Any, ...] = (0, 1, places, 1, 0, places, 0, 1, places)
    else:
        image, kernel = tuple(range(1, 1 + spatial)), tuple(range(spatial))
        values = (0, spatial + 1, image, spatial, spatial + 1, kernel, 0, spatial + 1, image)
    return dict(zip(DIMENSION_NUMBERS, values, strict=True))


def _complete(o: Op, first: str, second: str, spatial: str) -> bool:
    found = (o.attributes[first], o.attributes[second], *o.attributes[spatial])
    return unique(found) and sorted(found) == list(range(o.lhs.rank))


def _divides(divisor: int, value: Any) -> bool:
    return divisor > 0 and divides(divisor, value)


def window_attributes(o: Op) -> tuple[Any, Any, Any, Any, Any]:
    """Strides, padding, lhs and rhs dilation and reversal, one per spatial dimension."""
    count = o.lhs.rank - 2
    return (
        per_dim(o.window_strides, count, 1),
        per_dim(o.padding if "padding" in o.definition.attributes else (), count, (0, 0)),
        per_dim(o.lhs_dilation, count, 1),
        per_dim(o.rhs_dilation, count, 1),
        per_dim(o.window_reversal, count, False),
    )


def convolved(
    o: Op, lhs: Any, rhs: Any, padding: Sequence[tuple[int, int]], dtype: np.dtype[Any]
) -> Any:
    """The convolution as a matrix product of unfolded windows and the kernel, one per group."""
    computing = accumulator(lhs.dtype, rhs.dtype, dtype)
    strides, _, base, dilation, reversal = window_attributes(o)
    x = np.transpose(
        lhs, (o.input_batch_dimension, *o.input_spatial_dimensions, o.input_feature_dimension)
    ).astype(computing, copy=False)
    k = np.transpose(
        rhs,
        (*o.kernel_spatial_dimensions, o.kernel_input_feature_dimension,
         o.kernel_output_feature_dimension),
    ).astype(computing, copy=False)  # fmt: skip
    k = np.flip(k, tuple(axis for axis, flipped in enumerate(reversal) if flipped))
    low, high = (0, *(p[0] for p in padding), 0), (0, *(p[1] for p in padding), 0)
    x = padded(x, computing.type(0), low, high, (0, *(d - 1 for d in base), 0))
    sizes = k.shape[:-2]
    ones = [1] * len(sizes)
    spatial = windowed_dims(x.shape[1:-1], sizes, strides, ones, dilation, [(0, 0)] * len(sizes))
    groups, batches = o.feature_group_count, o.batch_group_count
    if batches > 1:
        # the batch's groups become feature groups: [g, b, ...] -> [b, ..., g * features]
        x = np.moveaxis(x.reshape(batches, -1, *x.shape[1:]), 0, -2)
        x = x.reshape(*x.shape[:-2], -1)
        groups = batches
    with np.errstate(all="ignore"):
        result = _grouped(x, k, groups, spatial, strides, dilation)
    order = np.argsort(
        (o.output_batch_dimension, *o.output_spatial_dimensions, o.output_feature_dimension)
    )
    return np.transpose(numerics.narrow(result, dtype), order)


def _grouped(
    x: Any, k: Any, groups: int, spatial: Sequence[int], strides: Any, dilation: Any
) -> Any:
    """x [batch, space, groups * in] and k [window, in, groups * out] -> [batch, space, out]."""
    batch, outputs, inputs = x.shape[0], k.shape[-1], k.shape[-2]
    window = k.shape[:-2]
    if 0 in (batch, outputs, inputs, *window, *spatial):
        return np.zeros((batch, *spatial, outputs), x.dtype)
    if groups == 1 and math.prod(window) == 1:
        x = x[(slice(None), *(slice(0, (n - 1) * s + 1, s)
                              for n, s in zip(spatial, strides, strict=True)))]  # fmt: skip
        product = x.reshape(-1, inputs) @ k.reshape(inputs, outputs)
        return product.reshape(batch, *spatial, outputs)
    if inputs == 1 and outputs == groups:
        return _depthwise(x, k, spatial, strides, dilation)
    count = len(window)
    # the summed dimensions (window, then input features) in the order in which the kernel has
    # them in memory: then only the windows are copied, never the kernel
    order = sorted(range(count + 1), key=lambda axis: -k.strides[axis])
    space = x.strides[1:-1]
    steps = [s * d for s, d in zip(space, dilation, strict=True)] + [x.strides[-1]]
    sizes = [*window, inputs]
    unfolded = np.lib.stride_tricks.as_strided(
        x,
        (groups, batch, *spatial, *(sizes[axis] for axis in order)),
        (
            x.strides[-1] * inputs,
            x.strides[0],
            *(s * n for s, n in zip(space, strides, strict=True)),
            *(steps[axis] for axis in order),
        ),
        writeable=False,
    )
    depth = math.prod(sizes)
    left = unfolded.reshape(groups, -1, depth)
    right = np.transpose(k, (*order, count + 1)).reshape(depth, groups, -1)
    product = np.moveaxis(left @ np.moveaxis(right, 1, 0), 0, 1)
    return product.reshape(batch, *spatial, outputs)


def _depthwise(x: Any, k: Any, spatial: Sequence[int], strides: Any, dilation: Any) -> Any:
    """One input and one output feature per group: a sum of scaled, shifted images."""
    total = np.zeros((x.shape[0], *spatial, x.shape[-1]), x.dtype)
    for position in np.ndindex(*k.shape[:-2]):
        index = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(position, dilation, spatial, strides, strict=True)
        )
        total += x[(slice(None), *index)] * k[(*position, 0)]
    return total


ROOMS = (Convolution(),)
