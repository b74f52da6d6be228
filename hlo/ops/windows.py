"""Operations with a body over windows: reduce_window, select_and_scatter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Index, IndexTerm, IterationKind, Space, windowed
from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op, Region, Value, repeated_constant
from ..room import BuildRegion, Case, OpDefinition, attribute, constraint, operand, variadic
from ..room import operand as second
from ..symbols import maximum
from ..types import F32, I1, I8, TensorType, Type
from . import bodies, numerics
from .clauses import at_most, merge_dims, per_dim, same_dims, same_element, simplified
from .examples import binary_body, counting, f32, i8, scalar_body
from .reduction import folding_body, folding_clauses, inits_of, inputs_of, scatter_elements
from .shape import padded


class ReduceWindow(OpDefinition, name="reduce_window"):
    """results[i] = window i of the padded, dilated inputs folded with body from init_values.

    What padding and dilation add to an input is its initial value, once for each place.
    """

    pattern = "opaque"
    regions = ("body",)
    inputs_and_inits = variadic()
    window_dimensions = attribute(tuple)
    window_strides = attribute(tuple, ())
    base_dilations = attribute(tuple, ())
    window_dilations = attribute(tuple, ())
    padding = attribute(tuple, ())
    C0, C2, C3 = folding_clauses()
    C4 = constraint(
        "size(window_dimensions) = rank(inputs[0])",
        lambda o: len(o.window_dimensions) == o.operands[0].rank,
    )
    C5 = constraint(
        "0 < window_dimensions", lambda o: all(at_most(1, size) for size in o.window_dimensions)
    )
    C6 = constraint(
        "window_strides, base_dilations, window_dilations and padding have as many entries",
        lambda o: all(
            len(values) in (0, o.operands[0].rank)
            for values in (o.window_strides, o.base_dilations, o.window_dilations, o.padding)
        ),
    )
    C7 = constraint("0 < window_strides", lambda o: min(o.window_strides, default=1) > 0)
    C9 = constraint("0 < base_dilations", lambda o: min(o.base_dilations, default=1) > 0)
    C11 = constraint("0 < window_dilations", lambda o: min(o.window_dilations, default=1) > 0)
    C13 = folding_body()

    def infer(self, o: Op) -> Sequence[Type]:
        dims = windowed_dims(
            merge_dims(*(v.dims for v in inputs_of(o))), o.window_dimensions,
            *_window_attributes(o, len(o.window_dimensions)),
        )  # fmt: skip
        return [TensorType(dims, result.tensor.element) for result in o.regions[0].results]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        count = len(arrays) // 2
        rank = arrays[0].ndim
        strides, base, dilations, padding = _window_attributes(o, rank)
        wanted = [result.tensor.dtype for result in o.regions[0].results]
        low, high = [p[0] for p in padding], [p[1] for p in padding]
        inits = [np.asarray(x).astype(t) for x, t in zip(arrays[count:], wanted, strict=True)]
        spread = [
            padded(x.astype(dtype, copy=False), init, low, high, [d - 1 for d in base])
            for x, init, dtype in zip(arrays[:count], inits, wanted, strict=True)
        ]
        sizes = o.window_dimensions
        dims = windowed_dims(arrays[0].shape, sizes, strides, base, dilations, padding)
        combine = bodies.accumulating(o.regions[0], context)
        totals: list[Any] = [np.broadcast_to(init, dims) for init in inits]
        if 0 in dims:
            return tuple(totals)
        for position in itertools.product(*map(range, o.window_dimensions)):
            index = tuple(
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(position, dilations, dims, strides, strict=True)
            )
            totals = combine(*totals, *(x[index] for x in spread))
        return tuple(numerics.narrow(x, dtype) for x, dtype in zip(totals, wanted, strict=True))

    def decompose(self, b: Any, o: Op, *values: Any) -> Sequence[Any] | None:
        """Running totals to which each place of the padding adds: the padding as a `pad`.

        All others are sums from one start, each of which its neighbour continues.
        """
        if running(o) is None or absorbs_padding(o, inits_of(o)):
            return None
        count, rank = len(values) // 2, o.operands[0].rank
        low, high = zip(*o.padding, strict=True)
        edges = {
            "edge_padding_low": low,
            "edge_padding_high": high,
            "interior_padding": (0,) * rank,
        }
        wide = [b.op("pad", (values[n], values[count + n]), edges).result for n in range(count)]
        attributes = {name: value for name, value in o.attributes.items() if name != "padding"}
        operands = (*wide, *values[count:])
        return b.op(o.name, operands, attributes, o.regions, o.result_types).results

    def access(self, o: Op) -> Access | None:
        space = Space(o.results[0].dims)
        monoid = bodies.monoid(o.regions[0]) or ""
        strides, base, dilations, padding = _window_attributes(o, len(o.window_dimensions))
        indices = []
        for d, size in enumerate(o.window_dimensions):
            position = space.inner(size, IterationKind.WINDOW, monoid)
            low = padding[d][0]
            indices.append(windowed(position, d, strides[d], dilations[d], low, base[d]))
        count = len(o.operands) // 2
        return space.access(*([indices] * count), *([()] * count))

    def flops(self, o: Op) -> float:
        each = bodies.body_flops(o, o.regions[0]) * math.prod(o.window_dimensions)
        return o.results[0].tensor.size * each

    def cases(self) -> Iterator[Case]:
        x = counting(4, 5) - 7
        low = f32(-np.inf)
        yield Case(
            "reduce_window_max", (x, low), {"window_dimensions": (2, 2), "window_strides": (2, 1)},
            regions=binary_body("maximum", F32),
        )  # fmt: skip
        yield Case(
            "reduce_window_sum", (x, f32(0)),
            {"window_dimensions": (3, 2), "padding": ((1, 1), (0, -1)), "base_dilations": (1, 2),
             "window_dilations": (1, 2), "window_strides": (1, 2)},
            regions=binary_body("add", F32),
        )  # fmt: skip
        yield Case(
            "reduce_window_cumulative", (x, f32(0)),
            {"window_dimensions": (4, 1), "padding": ((3, 0), (0, 0))},
            regions=binary_body("add", F32),
        )  # fmt: skip
        yield Case(
            "reduce_window_padded_from_two", (x, f32(2)),
            {"window_dimensions": (3, 2), "padding": ((2, 1), (0, 1)), "base_dilations": (1, 2)},
            regions=binary_body("add", F32),
        )  # fmt: skip
        yield Case(
            "reduce_window_i8", (np.full((2, 3), 100, np.int8), i8(0)),
            {"window_dimensions": (2, 2)}, regions=binary_body("add", I8),
        )  # fmt: skip


def _window_attributes(o: Op, rank: int) -> tuple[Any, Any, Any, Any]:
    """Strides, base dilations, window dilations and padding, one per dimension."""
    return (
        per_dim(o.window_strides, rank, 1),
        per_dim(o.base_dilations, rank, 1),
        per_dim(o.window_dilations, rank, 1),
        per_dim(o.padding, rank, (0, 0)),
    )


def running(o: Op) -> tuple[int, bool] | None:
    """(dimension, from its end) where window i is all elements up to (or from) i and the rest
    padding: a running total. None for other windows."""
    source, sizes = o.operands[0].dims, o.window_dimensions
    strides, base, dilations, padding = _window_attributes(o, len(source))
    moving = [d for d, size in enumerate(sizes) if size != 1]
    if len(moving) != 1 or any(step != 1 for step in (*strides, *base, *dilations)):
        return None
    (d,) = moving
    if sizes[d] != source[d] or any(any(pair) for n, pair in enumerate(padding) if n != d):
        return None
    size = source[d]
    return {(size - 1, 0): (d, False), (0, size - 1): (d, True)}.get(tuple(padding[d]))


# Combined with itself, any value stays what it is.
_IDEMPOTENT = ("maximum", "minimum", "and", "or")


def absorbs_padding(o: Op, inits: Sequence[Value]) -> bool:
    """Whether initial values change nothing where one already stands: body(init, init) = init."""
    region = o.regions[0]
    if bodies.monoid(region) in _IDEMPOTENT:
        return True
    known = [repeated_constant(value) for value in inits]
    if region.captures() or None in known:
        return False
    numbers = [
        np.asarray(dense.splat_value).astype(total.tensor.dtype)
        for dense, total in zip(known, region.results, strict=True)
        if dense is not None
    ]
    again = bodies.of_numbers(region, [*numbers, *numbers])
    return again is not None and all(
        np.array_equal(one, number, equal_nan=numerics.is_float(number.dtype))
        for one, number in zip(again, numbers, strict=True)
    )


def windowed_dims(
    dims: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[int],
    base: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> list[Any]:
    """How many windows fit along each dimension."""
    counts = []
    for dim, size, stride, gap, dilation, (low, high) in zip(
        dims, sizes, strides, base, dilations, padding, strict=True
    ):
        spread = maximum((dim - 1) * gap + 1, 0) + low + high
        reach = (size - 1) * dilation + 1
        counts.append(simplified(maximum((spread - reach) // stride + 1, 0)))
    return counts


def _takes_two_scalars(region: Region) -> bool:
    """Whether it takes two scalars, and returns one value, a scalar."""
    values = (*region.arguments, *region.results)
    return len(region.arguments) == 2 and len(values) == 3 and not any(v.rank for v in values)


class SelectAndScatter(OpDefinition, name="select_and_scatter"):
    """result = init_value everywhere, source scattered to the element each window selects."""

    pattern = "opaque"
    regions = ("select", "scatter")
    operand = operand()
    source = second()
    init_value = second()
    window_dimensions = attribute(tuple, ())
    window_strides = attribute(tuple, ())
    padding = attribute(tuple, ())
    C1 = constraint(
        "operand and source have the same element type",
        lambda o: same_element(o.operand.element, o.source.element),
    )
    C3 = constraint(
        "init_value is a scalar of operand's element type",
        lambda o: o.init_value.rank == 0 and same_element(o.init_value.element, o.operand.element),
    )
    C4 = constraint(
        "window_dimensions has rank(operand) entries",
        lambda o: len(o.window_dimensions) in (0, o.operand.rank),
    )
    C5 = constraint(
        "0 < window_dimensions", lambda o: all(at_most(1, size) for size in o.window_dimensions)
    )
    C7 = constraint("0 < window_strides", lambda o: min(o.window_strides, default=1) > 0)
    C2 = constraint(
        "source has the dimensions of operand's windows",
        lambda o: same_dims(o.source.dims, _selected_dims(o)),
    )
    C9 = constraint(
        "select takes two scalars and returns an i1 scalar",
        lambda o: _takes_two_scalars(o.regions[0]) and o.regions[0].results[0].element is I1,
    )
    C10 = constraint(
        "scatter takes two scalars and returns one", lambda o: _takes_two_scalars(o.regions[1])
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_element(o.regions[1].results[0].tensor.element)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        x, source, init = arrays
        rank = x.ndim
        sizes, strides, padding = _selection_window(o, rank)
        select = bodies.body(o.regions[0], context)
        chosen = np.zeros(source.shape, x.dtype)
        place = np.full(source.shape, -1, np.int64)  # flat position of the chosen element
        numbers = np.arange(x.size).reshape(x.shape)
        steps = [np.arange(n) * s - p[0] for n, s, p in
                 zip(source.shape, strides, padding, strict=True)]  # fmt: skip
        for position in itertools.product(*map(range, sizes)):
            lines = np.ix_(*(step + p for step, p in zip(steps, position, strict=True)))
            inside = np.ones(source.shape, bool)
            for line, dim in zip(lines, x.shape, strict=True):
                inside &= (line >= 0) & (line < dim)
            index = tuple(np.clip(i, 0, d - 1) for i, d in zip(lines, x.shape, strict=True))
            candidate = x[index]
            keep = select(chosen, candidate)[0] & (place >= 0)
            better = inside & ~keep
            chosen = np.where(better, candidate, chosen)
            place = np.where(better, numbers[index], place)
        result = np.full(x.shape, init, x.dtype)
        hit = place.reshape(-1) >= 0
        scatter_elements(
            [result.reshape(-1)], place.reshape(-1)[hit], [source.reshape(-1)[hit]],
            o.regions[1], context,
        )  # fmt: skip
        return result

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        sizes, strides, padding = _selection_window(o, o.operand.rank)
        operand, source = [], []
        for d, (size, stride, (low, _)) in enumerate(zip(sizes, strides, padding, strict=True)):
            # the windows over an element, and all elements of those windows
            (start,) = space.inner(size, IterationKind.WINDOW).terms
            (position,) = space.inner(size, IterationKind.GATHER).terms
            over = (IndexTerm(d), start._replace(coefficient=-1))
            source.append(Index(over, low, divisor=stride, dilated=stride > 1))
            operand.append(Index((*over, position)))
        return space.access(operand, source, ())

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        windows = zip(o.type.dims, *_selection_window(o, o.operand.rank), strict=True)
        for d, (size, window, stride, padding) in enumerate(windows):
            if window == stride == 1 and not any(padding):
                rule.add(Factor(size), {0: d, 1: d}, {0: d})
            else:
                rule.add(Factor(o.source.dims[d], FactorKind.REPLICATE), {1: d})
                rule.add(Factor(size, FactorKind.PERMUTATION), {0: d}, {0: d})
        return rule.build()

    def divide(self, o: Op) -> Factors | None:
        """Windows, and what they scatter, are cut with the operand."""
        rule = FactorBuilder(o)
        windows = zip(o.source.dims, *_selection_window(o, o.operand.rank), strict=True)
        for d, (count, window, stride, padding) in enumerate(windows):
            alone = window == stride == 1 and not any(padding)
            kind = FactorKind.PASS if alone else FactorKind.PERMUTATION
            rule.add(Factor(count, kind), {0: d, 1: d}, {0: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        def regions(build: BuildRegion) -> tuple[Region, ...]:
            select = scalar_body(lambda b, x, y: [b.compare("GE", x, y)], F32, F32)
            return (*select(build), *binary_body("add", F32)(build))

        x = f32([[1, 5, 2, 0], [3, 5, 9, 4], [7, 8, 6, 9]])
        yield Case(
            "select_and_scatter", (x, f32([[1, 2, 3], [4, 5, 6]]), f32(0)),
            {"window_dimensions": (2, 2), "window_strides": (1, 1)}, regions=regions,
        )  # fmt: skip
        yield Case(
            "select_and_scatter_padded", (x, f32([[1, 2], [4, 5]]), f32(0)),
            {"window_dimensions": (3, 3), "window_strides": (2, 2), "padding": ((1, 1), (0, 1))},
            regions=regions,
        )  # fmt: skip


def _selection_window(o: Op, rank: int) -> tuple[Any, Any, Any]:
    return (
        per_dim(o.window_dimensions, rank, 1),
        per_dim(o.window_strides, rank, 1),
        per_dim(o.padding, rank, (0, 0)),
    )


def _selected_dims(o: Op) -> list[int]:
    rank = o.operand.rank
    sizes, strides, padding = _selection_window(o, rank)
    if len(sizes) != rank or len(strides) != rank or len(padding) != rank:
        return [-1]
    ones = (1,) * rank
    return windowed_dims(o.operand.dims, sizes, strides, ones, ones, padding)


ROOMS = (ReduceWindow(), SelectAndScatter())
