"""Operations with a body over elements: reduce, map."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, IterationKind, Space, at, elementwise
from ..factors import Factor, FactorBuilder, Factors, alike, reducing
from ..graph import Op, Region
from ..room import Case, Constraint, OpDefinition, attribute, constraint, variadic
from ..types import BF16, F32, I1, I8, I32, Element, TensorType, Type
from . import bodies
from .clauses import merge_dims, same_dims, same_element, unique, within
from .examples import binary_body, counting, f32, i1, i8, i32, scalar_body


def inputs_of(o: Op) -> Sequence[Any]:
    return o.operands[: len(o.operands) // 2]


def inits_of(o: Op) -> Sequence[Any]:
    return o.operands[len(o.operands) // 2 :]


def folding_clauses() -> tuple[Constraint, ...]:
    """What holds of N inputs followed by their N initial values."""
    return (
        constraint(
            "as many inputs as init_values, at least one",
            lambda o: len(o.operands) >= 2 and len(o.operands) % 2 == 0,
        ),
        constraint(
            "inputs have the same dimensions",
            lambda o: all(same_dims(v.dims, o.operands[0].dims) for v in inputs_of(o)),
        ),
        constraint(
            "an init_value is a scalar of its input's element type",
            lambda o: all(
                init.rank == 0 and same_element(init.element, value.element)
                for value, init in zip(inputs_of(o), inits_of(o), strict=True)
            ),
        ),
    )


def folding_body() -> Constraint:
    """What holds of the body that folds them."""
    return constraint(
        "body takes two scalars per input and returns one per input",
        lambda o: (
            len(o.regions[0].arguments) == len(o.operands)
            and len(o.regions[0].results) == len(o.operands) // 2
            and not any(v.rank for v in (*o.regions[0].arguments, *o.regions[0].results))
        ),
    )


def folds(o: Op) -> list[tuple[str, Element]]:
    """For each result the monoid that its body is, "" for another, and what it folds."""
    names = bodies.monoids(o.regions[0]) or ("",) * len(o.results)
    return [(name, v.element) for name, v in zip(names, o.results, strict=True)]


class Reduce(OpDefinition, name="reduce"):
    """results = inputs folded over `dimensions` with body, starting from init_values.

    `inputs_and_inits` are N inputs, then N scalars. Any order of folding is legal.
    """

    pattern = "reduce"
    regions = ("body",)
    inputs_and_inits = variadic()
    dimensions = attribute(tuple)
    C0, C1, C2 = folding_clauses()
    C4 = constraint(
        "0 <= dimensions < rank(inputs[0])", lambda o: within(o.dimensions, o.operands[0].rank)
    )
    C5 = constraint("dimensions are unique", lambda o: unique(o.dimensions))
    C6 = folding_body()

    def infer(self, o: Op) -> Sequence[Type]:
        dims = merge_dims(*(v.dims for v in inputs_of(o)))
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
        summed = math.prod(inputs[0].shape[axis] for axis in axes)
        lines = [
            np.transpose(x, (*axes, *kept)).reshape(summed, *shape).astype(dtype, copy=False)
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
                indices.append(space.inner(size, IterationKind.REDUCE, monoid))
            else:
                indices.append(at(place))
                place += 1
        count = len(o.operands) // 2
        return space.access(*([indices] * count), *([()] * count))

    def shard(self, o: Op) -> Factors | None:
        count = len(o.operands) // 2
        rule, place = FactorBuilder(o), 0
        for d, size in enumerate(o.operands[0].dims):
            held = alike(range(count), d)
            if d in o.dimensions:
                rule.add(reducing(size, *folds(o)), held)
            else:
                rule.add(Factor(size), held, alike(range(count), place))
                place += 1
        return rule.build(once=range(count, 2 * count))

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


def _argmax(b: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
    """The larger value and its index; a NaN wins, the smaller index among equals."""
    better = b("or", b.compare("GT", x, y), b.compare("NE", x, x))
    ties = b("and", b.compare("EQ", x, y), b.compare("LT", i, j))
    first = b("or", better, ties)
    return [b("select", better, x, y), b("select", first, i, j)]


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


ROOMS = (Reduce(), Map())
