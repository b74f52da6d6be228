"""Small tile functions: the cases of kernel_call, which use every tile operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import Region, Value
from ..room import BuildRegion, Case
from ..types import F32, I32, TensorType, tensor_of
from .examples import counting, f32, i32

INDEX = TensorType((), I32)
Body = Callable[..., None]


def kernel_cases() -> Iterator[Case]:
    """Each case names what it is about; inputs are small and tell every element apart."""
    x, matrix = counting(10), counting(5, 4)
    yield kernel("double", (x,), [(10,)], (3,), _double)
    yield kernel("bound", (x,), [(10,)], (3,), _bound)
    yield kernel("window", (matrix,), [(2, 6, 6)], (2,), _window)
    yield kernel("sum", (x,), [(4,)], (), _sum)
    yield kernel("row_softmax", (matrix,), [(5, 4)], (3,), _softmax)
    yield kernel("gather", (matrix, i32([4, -1, 9, 0])), [(4, 3)], (), _gather)
    yield kernel("masked", (x,), [(10,)], (2,), _masked, starts=(0,))
    where = i32([0, 1, 2, 3, 3, 2, 1, 0, 7, -1])
    yield kernel("histogram", (x, where, f32([1] * 4)), [(4,)], (3,), _histogram, starts=(2,))
    left = (counting(5, 6) - 11) / 7
    yield kernel("matmul", (left, counting(6, 7) / 5), [(5, 7)], (3, 2), _matmul)
    yield kernel("branch", (x, i32(3)), [(10,), ()], (), _branch)


def kernel(
    name: str,
    inputs: Sequence[Any],
    results: Sequence[tuple[int, ...]],
    grid: tuple[int, ...],
    body: Body,
    starts: tuple[int, ...] = (),
) -> Case:
    """A case of kernel_call with f32 results; the body stores and returns nothing."""
    types = tuple(TensorType(dims, F32) for dims in results)
    memory = [*(tensor_of(np.asarray(value)) for value in inputs), *types]

    def regions(build: BuildRegion) -> tuple[Region, ...]:
        def complete(b: Any, *values: Value) -> list[Value]:
            body(b, *values)
            return []

        return (build(memory, complete),)

    attributes: dict[str, Any] = {"kernel": name, "grid": grid}
    if starts:
        attributes["starts"] = starts
    return Case(f"kernel_{name}", tuple(inputs), attributes, types, regions)


def index(b: Any, value: int) -> Value:
    return b.constant(value, INDEX)


def scaled(b: Any, axis: int, size: int) -> Value:
    """The tile's first element along an axis of the grid."""
    return b("multiply", b("tile_id", axis=axis), index(b, size))


def _double(b: Any, x: Value, out: Value) -> None:
    start = scaled(b, 0, 4)
    value = b("tile_load", x, start, sizes=(4,))
    b.op("tile_store", [out, b("add", value, value), start])


def _bound(b: Any, x: Value, out: Value) -> None:
    start = scaled(b, 0, 4)
    value = b("tile_load", x, start, sizes=(4,), fill=7.0)
    kind = TensorType((4,), I32)
    end = b.broadcast(b("tile_bound", size=10), (4,), ())
    place = b("add", b("iota", type=kind, iota_dimension=0), b.broadcast(start, (4,), ()))
    known = b("select", b.compare("LT", place, end), value, b.constant(0, value.type))
    total = b.reduce("add", known, b.constant(0, TensorType((), F32)), (0,))
    b.op("tile_store", [out, b("add", value, b.broadcast(total, (4,), ())), start])


def _window(b: Any, x: Value, out: Value) -> None:
    start = b("subtract", scaled(b, 0, 3), index(b, 1))
    value = b("tile_load", x, start, index(b, -1), sizes=(6, 6), fill=-1.0)
    tile = b.reshape(value, (1, 6, 6))
    b.op("tile_store", [out, tile, b("tile_id", axis=0), index(b, 0), index(b, 0)])


def _sum(b: Any, x: Value, out: Value) -> None:
    tile = TensorType((4,), F32)

    def step(b: Any, i: Value, sum: Value) -> list[Value]:
        return [b("add", sum, b("tile_load", x, i, sizes=(4,)))]

    body = b.nested([INDEX, tile], step)
    start = [index(b, 0), index(b, 12), b.constant(0, tile)]
    loop = b.op("tile_for", start, {"step": 4}, (body,))
    b.op("tile_store", [out, loop.result, index(b, 0)])


def _softmax(b: Any, x: Value, out: Value) -> None:
    row, zero = scaled(b, 0, 2), index(b, 0)
    value = b("tile_load", x, row, zero, sizes=(2, 4))
    scalar = TensorType((), F32)
    largest = b.reduce("maximum", value, b.constant(-np.inf, scalar), (1,))
    shifted = b("subtract", value, b.broadcast(largest, (2, 4), (0,)))
    power = b("exponential", shifted)
    total = b.reduce("add", power, b.constant(0, scalar), (1,))
    b.op("tile_store", [out, b("divide", power, b.broadcast(total, (2, 4), (0,))), row, zero])


def _gather(b: Any, x: Value, rows: Value, out: Value) -> None:
    wanted = b("tile_load", rows, index(b, 0), sizes=(4,))
    value = b("tile_gather", x, wanted, index(b, 0), index(b, 1), axis=0, sizes=(4, 3), fill=-2.0)
    b.op("tile_store", [out, value, index(b, 0), index(b, 0)])


def _masked(b: Any, x: Value, out: Value) -> None:
    start = scaled(b, 0, 5)
    value = b("tile_load", x, start, sizes=(5,))
    odd = b("remainder", value, b.constant(2, value.type))
    mask = b.compare("NE", odd, b.constant(0, value.type))
    b.op("tile_store", [out, b("negate", value), start, mask], {"masked": True})


def _histogram(b: Any, x: Value, where: Value, start: Value, out: Value) -> None:
    at = scaled(b, 0, 4)
    value = b("tile_load", x, at, sizes=(4,))
    rows = b("tile_load", where, at, sizes=(4,), fill=-1.0)
    b.op("tile_scatter", [out, value, rows, index(b, 0)], {"axis": 0, "combine": "add"})


def _matmul(b: Any, x: Value, y: Value, out: Value) -> None:
    row, column = scaled(b, 0, 2), scaled(b, 1, 4)
    tile = TensorType((2, 4), F32)

    def step(b: Any, k: Value, sum: Value) -> list[Value]:
        left = b("tile_load", x, row, k, sizes=(2, 4))
        right = b("tile_load", y, k, column, sizes=(4, 4))
        dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
        return [b("add", sum, b("dot_general", left, right, type=tile, **dims))]

    body = b.nested([INDEX, tile], step)
    start = [index(b, 0), index(b, 6), b.constant(0, tile)]
    loop = b.op("tile_for", start, {"step": 4}, (body,))
    b.op("tile_store", [out, loop.result, row, column])


def _branch(b: Any, x: Value, number: Value, out: Value, chosen: Value) -> None:
    value = b("tile_load", x, index(b, 0), sizes=(10,))
    wanted = b("tile_load", number, sizes=())
    more = b.compare("GT", wanted, index(b, 2))
    scalar = TensorType((), F32)
    sides = [
        b.nested([], lambda b: [b("negate", value), b.constant(1, scalar)]),
        b.nested([], lambda b: [value, b.constant(2, scalar)]),
    ]
    both = b.op("if", [more], {}, sides)
    b.op("tile_store", [out, both.results[0], index(b, 0)])
    b.op("tile_store", [chosen, both.results[1]])
