"""Operations with a body over elements: reduce, reduce_window, select_and_scatter, map."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Index, Kind, Space, Term, at, elementwise, windowed
from ..errors import UnsupportedError
from ..graph import Op, Region
from ..room import Case, OpDefinition, attribute, constraint, operand, variadic
from ..room import operand as second
from ..types import BF16, F32, I1, I8, I32, TensorType, Type
from . import bodies, numerics
from .clauses import merge_dims, per_dim, same_dims, same_element, unique, within
from .examples import binary_body, counting, f32, i1, i8, i32, scalar_body
from .shape import padded


class Reduce(OpDefinition, name="reduce"):
    """results = inputs folded over `dimensions` with body, starting from init_values.

    `inputs_and_inits` are N inputs, then N scalars. Any order of folding is legal.
    """

    pattern = "reduce"
    regions = ("body",)
    inputs_and_inits = variadic()
    dimensions = attribute(tuple)
    C0 = constraint(
        "as many inputs as init_values, at least one",
        lambda o: len(o.operands) >= 2 and len(o.operands) % 2 == 0,
    )
    C1 = constraint(
        "inputs have the same dimensions",
        lambda o: all(same_dims(v.dims, o.operands[0].dims) for v in _inputs(o)),
    )
    C2 = constraint(
        "an init_value is a scalar of its input's element type",
        lambda o: all(
            init.rank == 0 and same_element(init.element, value.element)
            for value, init in zip(_inputs(o), _inits(o), strict=True)
        ),
    )
    C4 = constraint(
        "0 <= dimensions < rank(inputs[0])", lambda o: within(o.dimensions, o.operands[0].rank)
    )
    C5 = constraint("dimensions are unique", lambda o: unique(o.dimensions))
    C6 = constraint(
        "body takes two scalars per input and returns one per input",
        lambda o: (
            len(o.regions[0].arguments) == len(o.operands)
            and len(o.regions[0].results) == len(o.operands) // 2
            and not any(v.rank for v in (*o.regions[0].arguments, *o.regions[0].results))
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = merge_dims(*(v.dims for v in _inputs(o)))
        kept = [d for axis, d in enumerate(dims) if axis not in o.dimensions]
        return [TensorType(kept, result.tensor.element) for result in o.regions[0].results]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        count = len(arrays) // 2
        inputs, inits = arrays[:count], arrays[count:]
        region = o.regions[0]
        name = bodies.monoid(region)
        wanted = [result.tensor.dtype for result in region.results]
        if name is not None and wanted == [inputs[0].dtype]:
            return bodies.reduce_axes(name, inputs[0], tuple(o.dimensions), inits[0])
        axes = tuple(o.dimensions)
        kept = [axis for axis in range(inputs[0].ndim) if axis not in axes]
        shape = [inputs[0].shape[axis] for axis in kept]
        lines = [
            np.transpose(x, (*axes, *kept)).reshape(-1, *shape).astype(dtype, copy=False)
            for x, dtype in zip(inputs, wanted, strict=True)
        ]
        starts = [
            np.broadcast_to(np.asarray(init).astype(dtype, copy=False), shape)
            for init, dtype in zip(inits, wanted, strict=True)
        ]
        if math.prod(lines[0].shape) == 0:
            return tuple(np.array(start) for start in starts)
        combine = bodies.body(region, context)
        return tuple(map(np.asarray, combine(*starts, *bodies.reduce_front(combine, lines))))

    def access(self, o: Op) -> Access | None:
        space = Space(o.results[0].dims)
        monoid = bodies.monoid(o.regions[0]) or ""
        indices, place = [], 0
        for d, size in enumerate(o.operands[0].dims):
            if d in o.dimensions:
                indices.append(space.inner(size, Kind.REDUCE, monoid))
            else:
                indices.append(at(place))
                place += 1
        count = len(o.operands) // 2
        return space.access(*([indices] * count), *([()] * count))

    def flops(self, o: Op) -> float:
        return o.operands[0].tensor.size * bodies.body_flops(o, o.regions[0])

    def cases(self) -> Iterator[Case]:
        x = counting(2, 3, 4) - 5
        for name in ("add", "multiply", "maximum", "minimum"):
            init = f32(1 if name == "multiply" else 0)
            yield Case(
                f"reduce_{name}", (x, init), {"dimensions": (2,)}, regions=binary_body(name, F32)
            )
        yield Case(
            "reduce_outer", (x, f32(0)), {"dimensions": (0, 1)},
            regions=binary_body("add", F32),
        )  # fmt: skip
        yield Case("reduce_none", (x, f32(0)), {"dimensions": ()}, regions=binary_body("add", F32))
        yield Case(
            "reduce_empty", (counting(3, 0), f32(4)), {"dimensions": (1,)},
            regions=binary_body("add", F32),
        )  # fmt: skip
        yield Case(
            "reduce_i8_wraps", (np.full(5, 100, np.int8), i8(0)), {"dimensions": (0,)},
            regions=binary_body("add", I8),
        )  # fmt: skip
        yield Case(
            "reduce_bf16", (np.full((300,), 1, BF16.dtype), BF16.dtype.type(0)),
            {"dimensions": (0,)}, regions=binary_body("add", BF16), tolerance=1.6e-2,
        )  # fmt: skip
        flags = np.array([[True, False], [True, True]])
        for name in ("and", "or", "add"):
            init = i1(name == "and")
            yield Case(
                f"reduce_i1_{name}", (flags, init), {"dimensions": (1,)},
                regions=binary_body(name, I1),
            )  # fmt: skip
        values = f32([[3, 7, 7, -1], [2, np.nan, 9, np.nan]])
        indices = np.broadcast_to(np.arange(4, dtype=np.int32), (2, 4))
        yield Case(
            "reduce_argmax", (values, indices, f32(-np.inf), i32(0)),
            {"dimensions": (1,)}, regions=scalar_body(_argmax, F32, I32, F32, I32),
        )  # fmt: skip


def _inputs(o: Op) -> Sequence[Any]:
    return o.operands[: len(o.operands) // 2]


def _inits(o: Op) -> Sequence[Any]:
    return o.operands[len(o.operands) // 2 :]


def _argmax(b: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
    """The larger value and its index; a NaN wins, the smaller index among equals."""
    better = b("or", b.compare("GT", x, y), b.compare("NE", x, x))
    ties = b("and", b.compare("EQ", x, y), b.compare("LT", i, j))
    first = b("or", better, ties)
    return [b("select", better, x, y), b("select", first, i, j)]


class ReduceWindow(OpDefinition, name="reduce_window"):
    """results[i] = window i of the padded, dilated inputs folded with body from init_values."""

    pattern = "opaque"
    regions = ("body",)
    inputs_and_inits = variadic()
    window_dimensions = attribute(tuple)
    window_strides = attribute(tuple, ())
    base_dilations = attribute(tuple, ())
    window_dilations = attribute(tuple, ())
    padding = attribute(tuple, ())
    C0 = constraint(
        "as many inputs as init_values, at least one",
        lambda o: len(o.operands) >= 2 and len(o.operands) % 2 == 0,
    )
    C2 = constraint(
        "inputs have the same dimensions",
        lambda o: all(same_dims(v.dims, o.operands[0].dims) for v in _inputs(o)),
    )
    C3 = constraint(
        "an init_value is a scalar of its input's element type",
        lambda o: all(
            init.rank == 0 and same_element(init.element, value.element)
            for value, init in zip(_inputs(o), _inits(o), strict=True)
        ),
    )
    C4 = constraint(
        "size(window_dimensions) = rank(inputs[0])",
        lambda o: len(o.window_dimensions) == o.operands[0].rank,
    )
    C5 = constraint("0 < window_dimensions", lambda o: min(o.window_dimensions, default=1) > 0)
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
    C13 = constraint(
        "body takes two scalars per input and returns one per input",
        lambda o: (
            len(o.regions[0].arguments) == len(o.operands)
            and len(o.regions[0].results) == len(o.operands) // 2
            and not any(v.rank for v in (*o.regions[0].arguments, *o.regions[0].results))
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = windowed_dims(
            merge_dims(*(v.dims for v in _inputs(o))), o.window_dimensions,
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

    def access(self, o: Op) -> Access | None:
        space = Space(o.results[0].dims)
        monoid = bodies.monoid(o.regions[0]) or ""
        strides, base, dilations, padding = _window_attributes(o, len(o.window_dimensions))
        indices = []
        for d, size in enumerate(o.window_dimensions):
            position = space.inner(size, Kind.WINDOW, monoid)
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


def windowed_dims(
    dims: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[int],
    base: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> list[int]:
    """How many windows fit along each dimension."""
    counts = []
    for dim, size, stride, gap, dilation, (low, high) in zip(
        dims, sizes, strides, base, dilations, padding, strict=True
    ):
        spread = (0 if dim == 0 else (dim - 1) * gap + 1) + low + high
        reach = (size - 1) * dilation + 1
        empty = isinstance(spread, int) and (spread <= 0 or reach > spread)
        counts.append(0 if empty else _quotient(spread - reach, stride) + 1)
    return counts


def _quotient(value: Any, divisor: int) -> Any:
    if divisor == 1:
        return value
    if not isinstance(value, int):
        raise UnsupportedError(f"a window stride of {divisor} over {value}, which is not fixed")
    return value // divisor


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
    C5 = constraint("0 < window_dimensions", lambda o: min(o.window_dimensions, default=1) > 0)
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
            (start,) = space.inner(size, Kind.WINDOW).terms
            (position,) = space.inner(size, Kind.GATHER).terms
            over = (Term(d), start._replace(coefficient=-1))
            source.append(Index(over, low, divisor=stride, dilated=stride > 1))
            operand.append(Index((*over, position)))
        return space.access(operand, source, ())

    def cases(self) -> Iterator[Case]:
        def regions() -> tuple[Region, ...]:
            select = scalar_body(lambda b, x, y: [b.compare("GE", x, y)], F32, F32)
            return (*select(), *binary_body("add", F32)())

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


def scatter_elements(
    results: Sequence[Any], places: Any, updates: Sequence[Any], region: Region, context: Any
) -> None:
    """results[places] = body(results[places], updates) in place, in order, on flat arrays.

    Updates of one place are applied one after the other; different places at once.
    """
    if places.size == 0:
        return
    if bodies.overwrites(region):
        results[0][places] = updates[0]
        return
    combine = bodies.body(region, context)
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    starts = np.flatnonzero(first)
    turn = np.arange(ordered.size) - starts[np.cumsum(first) - 1]
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.r_[0, np.cumsum(np.bincount(turn))]
    for begin, end in itertools.pairwise(bounds):
        some = order[by_turn[begin:end]]
        at = places[some]
        values = combine(*(r[at] for r in results), *(u[some] for u in updates))
        for result, value in zip(results, values, strict=True):
            result[at] = value


class Map(OpDefinition, name="map"):
    """result[i] = computation(inputs[0][i], inputs[1][i], ...)."""

    pattern = "opaque"
    regions = ("computation",)
    inputs = variadic()
    dimensions = attribute(tuple)
    C1 = constraint(
        "inputs have the same dimensions",
        lambda o: all(same_dims(v.dims, o.inputs[0].dims) for v in o.inputs),
    )
    C2 = constraint("0 < size(inputs)", lambda o: len(o.inputs) > 0)
    C3 = constraint(
        "dimensions = range(rank(inputs[0]))",
        lambda o: tuple(o.dimensions) == tuple(range(o.inputs[0].rank)),
    )
    C4 = constraint(
        "computation takes one scalar per input and returns one",
        lambda o: (
            len(o.regions[0].arguments) == len(o.inputs)
            and len(o.regions[0].results) == 1
            and not any(v.rank for v in (*o.regions[0].arguments, *o.regions[0].results))
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.inputs[0].tensor.with_element(o.regions[0].results[0].tensor.element)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.asarray(bodies.body(o.regions[0], context)(*arrays)[0])

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return None if o.regions[0].captures() else bodies.lifted(b, o.regions[0], values)

    def access(self, o: Op) -> Access | None:
        return elementwise(o.type.dims, (value.rank for value in o.inputs))

    def cases(self) -> Iterator[Case]:
        yield Case(
            "map_multiply", (counting(2, 3), counting(2, 3) - 2), {"dimensions": (0, 1)},
            regions=binary_body("multiply", F32),
        )  # fmt: skip


ROOMS = (Reduce(), ReduceWindow(), SelectAndScatter(), Map())
