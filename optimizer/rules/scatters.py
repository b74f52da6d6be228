"""Rules for scatter: at most one update of each element is a selection, one window an update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...hlo.build import build_region
from ...hlo.graph import Op, Value
from ...hlo.ops.bodies import monoid, overwrites
from ...hlo.types import F32, I32, I64, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .indexing import update, window
from .ranges import counts_along, interval, limits
from .slices import cut

TABLE = TensorType((3, 5), F32)
ROW = TensorType((3,), F32)
ROW_INDEX = TensorType((3, 1), I32)


def scatter(b: Any, x: Value, index: Value, updates: Value, body: str, **numbers: Any) -> Value:
    """A scatter for examples; `body`: the operation that combines, or "" to replace."""
    scalar = TensorType((), x.element)
    region = build_region([scalar] * 2, lambda c, p, q: [c(body, p, q) if body else q])
    return b("scatter", x, index, updates, regions=(region,), **numbers)


class ScatterWindow(NamedTuple):
    """How a scatter's updates lie in its operand, where every element gets at most one of them."""

    sources: dict[int, int]  # dim of the updates -> dim of the operand
    compared: dict[int, int]  # dim of the operand -> which component of an index must equal it


def component(op: Op, number: int, b: Rewriter) -> tuple[Value, int | None]:
    """A value that holds one component of a scatter's or gather's index, and the dim that only it
    has (None: the indices are single numbers). Builds nothing; `None` dims and parts of several
    components are left to `index_part`."""
    indices = op.operands[1]
    d = op.index_vector_dim
    if d == indices.rank:
        return indices, None
    joined = made_by(indices, "concatenate")
    if joined is not None and joined.dimension == d:
        for part in joined.operands:
            if number < part.dims[d]:
                return (part, d) if part.dims[d] == 1 else (indices, d)
            number -= part.dims[d]
    return indices, d


def index_part(op: Op, number: int, b: Rewriter) -> Value:
    """One component of the indices, without the dim that components are counted along."""
    value, d = component(op, number, b)
    if d is None:
        return value
    if value.dims[d] > 1:
        start, limit = [0] * value.rank, list(value.dims)
        start[d], limit[d] = number, number + 1
        value = cut(b, value, start, limit)
    return b.reshape(value, [size for axis, size in enumerate(value.dims) if axis != d])


def batch_dims(op: Op) -> list[int]:
    """Dims of the indices, but for the one that components are counted along, in order."""
    return [d for d in range(op.operands[1].rank) if d != op.index_vector_dim]


def counted_by(op: Op, number: int, b: Rewriter) -> int | None:
    """The dim of the indices that a component of them counts along, as 0, 1, 2, ..."""
    value, d = component(op, number, b)
    if d is not None and value.dims[d] > 1:
        return None
    axis = counts_along(value, b)
    return None if axis == d else axis


def _window(op: Op, b: Rewriter) -> ScatterWindow | None:
    x, indices, updates = op.operands
    taken = {*op.inserted_window_dims, *op.input_batching_dims}
    windows = [d for d in range(x.rank) if d not in taken]
    sizes = dict.fromkeys(op.inserted_window_dims, 1)
    sizes |= {d: updates.dims[own] for own, d in zip(op.update_window_dims, windows, strict=True)}
    moved = op.scatter_dims_to_operand_dims
    if any(size != (1 if d in moved else x.dims[d]) for d, size in sizes.items()):
        return None  # an element may have several places in its window
    placed = dict(zip(op.scatter_indices_batching_dims, op.input_batching_dims, strict=True))
    compared: dict[int, int] = {}
    for number, d in enumerate(moved):
        axis = counted_by(op, number, b)
        if axis is None or axis in placed or indices.dims[axis] != x.dims[d]:
            compared[d] = number
        else:
            placed[axis] = d
    batch = batch_dims(op)
    if any(indices.dims[axis] != 1 and axis not in placed for axis in batch):
        return None  # an element may get several updates
    pairs = zip(op.update_window_dims, windows, strict=True)
    sources = {own: d for own, d in pairs if d not in moved}
    outer = [d for d in range(updates.rank) if d not in op.update_window_dims]
    for own, axis in zip(outer, batch, strict=True):
        if axis in placed:
            sources[own] = placed[axis]
    most = limits(indices.element)[1]
    if any(x.dims[d] - 1 > most for d in compared):
        return None
    return ScatterWindow(sources, compared)


def spread(b: Any, value: Value, dims: Sequence[int], places: dict[int, int]) -> Value:
    """`value` over `dims`: its dim i becomes places[i], others have one element and go."""
    order = sorted(places, key=lambda axis: places[axis])
    value = b.transpose(value, [*order, *(d for d in range(value.rank) if d not in places)])
    value = b.reshape(value, value.dims[: len(order)])
    return b.broadcast(value, dims, [places[axis] for axis in order])


def _examples() -> Iterator[Example]:
    rows = {"update_window_dims": (), "inserted_window_dims": (1,), "index_vector_dim": 1,
            "input_batching_dims": (0,), "scatter_indices_batching_dims": (0,),
            "scatter_dims_to_operand_dims": (1,)}  # fmt: skip
    numbers = np.array([[4], [-1], [5]], np.int32), np.array([1.5, 2, -0.0], np.float32)

    def filled(b: Any, start: float = 0.0) -> Value:
        return b.constant(start, TABLE)

    for body in ("add", "", "maximum"):
        yield example(
            f"batched {body or 'set'}", [ROW_INDEX, ROW],
            lambda b, i, u, body=body: scatter(b, filled(b, 0.5), i, u, body, **rows),
        )  # fmt: skip
    for places in ([[4], [0], [2]], [[-1], [5], [1 << 30]]):
        yield example(
            f"to {places}", [ROW_INDEX, ROW],
            lambda b, i, u: scatter(b, filled(b), i, u, "add", **rows),
            (np.array(places, np.int32), numbers[1]),
        )  # fmt: skip
    pairs = {"update_window_dims": (), "inserted_window_dims": (0, 1), "index_vector_dim": 1,
             "scatter_dims_to_operand_dims": (0, 1)}  # fmt: skip

    def paired(b: Any, i: Value, u: Value, first: Any = None, **changed: Any) -> Value:
        count = b("iota", type=ROW_INDEX, iota_dimension=0) if first is None else first
        index = b("concatenate", count, i, dimension=1)
        return scatter(b, filled(b), index, u, "add", **{**pairs, **changed})

    for places in ([[4], [0], [2]], [[-1], [5], [0]]):
        yield example(f"counted to {places}", [ROW_INDEX, ROW], paired,
                      (np.array(places, np.int32), numbers[1]))  # fmt: skip
    known = np.array([[0], [1], [2]], np.int32)
    yield example("counted by a constant", [ROW_INDEX, ROW],
                  lambda b, i, u: paired(b, i, u, b.constant(known)), numbers)  # fmt: skip
    yield example("counted backwards", [ROW_INDEX, ROW],
                  lambda b, i, u: paired(b, i, u, b.constant(known[::-1].copy())), numbers,
                  fires=False)  # fmt: skip
    swapped = {"scatter_dims_to_operand_dims": (1, 0)}
    yield example("another dimension", [ROW_INDEX, ROW],
                  lambda b, i, u: paired(b, i, u, **swapped), numbers, fires=False)  # fmt: skip
    yield example(
        "several updates", [ROW_INDEX, TensorType((3, 5), F32)],
        lambda b, i, u: scatter(
            b, filled(b), i, u, "add", update_window_dims=(1,), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,), index_vector_dim=1),
        fires=False,
    )  # fmt: skip
    yield example(
        "one row", [TensorType((1,), I64), TensorType((5,), F32)],
        lambda b, i, u: scatter(
            b, filled(b), i, u, "add", update_window_dims=(0,), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,), index_vector_dim=0),
    )  # fmt: skip
    yield example(
        "part of a row", [TensorType((1,), I64), TensorType((4,), F32)],
        lambda b, i, u: scatter(
            b, filled(b), i, u, "add", update_window_dims=(0,), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,), index_vector_dim=0),
        fires=False,
    )  # fmt: skip
    for starts in ([3, 1], [3, 4], [-1, 2]):
        yield example(
            f"window of one at {starts}", [TensorType((2,), I32), TensorType((1, 1), F32)],
            lambda b, i, u: scatter(
                b, filled(b), i, u, "add", update_window_dims=(0, 1), inserted_window_dims=(),
                scatter_dims_to_operand_dims=(1, 0), index_vector_dim=0),
            (np.array(starts, np.int32), np.array([[1.5]], np.float32)),
        )  # fmt: skip
    yield example("into a tensor", [TABLE, ROW_INDEX, ROW],
                  lambda b, x, i, u: scatter(b, x, i, u, "add", **rows),
                  (np.ones((3, 5), np.float32), *numbers), fires=False)  # fmt: skip


@structural("scatter-once", "scatter", examples=_examples, lowers="opaque operations")
def scatter_once(op: Op, b: Rewriter) -> Value | None:
    """scatter(splat v, i, u) -> select(iota == i, f(v, u), v) [at most one update per element]"""
    if len(op.operands) != 3 or any(not value.tensor.is_static for value in op.operands):
        return None
    x, indices, updates = op.operands
    number = b.scalar(x)
    if number is None or op.results[0].type is not x.type:
        return None
    window = _window(op, b)
    body = monoid(op.regions[0])
    if window is None or (body is None and not overwrites(op.regions[0])):
        return None
    batch = batch_dims(op)
    outer = [own for own in range(updates.rank) if own not in op.update_window_dims]
    places = {
        batch.index(axis): window.sources[own]
        for own, axis in zip(outer, batch, strict=True)
        if own in window.sources
    }
    mask = None
    for d, part in window.compared.items():
        line = TensorType((x.dims[d],), indices.element)
        own = b.broadcast(b("iota", type=line, iota_dimension=0), x.dims, (d,))
        here = b.compare("EQ", own, spread(b, index_part(op, part, b), x.dims, places))
        mask = here if mask is None else b("and", mask, here)
    start = b.splat(number, x.tensor)
    new = spread(b, updates, x.dims, window.sources)
    new = new if body is None else b(body, start, new)
    return new if mask is None else b("select", mask, new, start)


# One window.


class Starts(NamedTuple):
    """Where a scatter's only window begins: for each dim of the operand the component of the index
    that says so, None: at 0; and the window's size."""

    components: list[int | None]
    sizes: list[int]
    guarded: list[int]  # dims in which it may begin outside


def _starts(op: Op, b: Rewriter) -> Starts | None:
    """None where there are several windows, or one that may reach outside in part."""
    x, indices, updates = op.operands
    if any(indices.dims[d] != 1 for d in batch_dims(op)):
        return None
    taken = {*op.inserted_window_dims, *op.input_batching_dims}
    windows = [d for d in range(x.rank) if d not in taken]
    sizes = [1] * x.rank
    for own, d in zip(op.update_window_dims, windows, strict=True):
        sizes[d] = updates.dims[own]
    components: list[int | None] = [None] * x.rank
    guarded: list[int] = []
    for number, d in enumerate(op.scatter_dims_to_operand_dims):
        components[d] = number
        least, most = interval(component(op, number, b)[0], b)
        if least < 0 or most > x.dims[d] - sizes[d]:
            guarded.append(d)
    larger = any(size > dim for size, dim in zip(sizes, x.dims, strict=True))
    if larger or any(sizes[d] != 1 for d in guarded) or math.prod(sizes) == 0:
        return None
    most = limits(indices.element)[1]
    return Starts(components, sizes, guarded) if max(x.dims, default=0) <= most else None


def _one_window_examples() -> Iterator[Example]:
    row = {"update_window_dims": (0,), "inserted_window_dims": (0,), "index_vector_dim": 0,
           "scatter_dims_to_operand_dims": (0,)}  # fmt: skip
    types = [TABLE, TensorType((1,), I32), TensorType((5,), F32)]
    numbers = (
        np.arange(15, dtype=np.float32).reshape(3, 5),
        np.array([1.5, 2, -0.0, 7, -1], np.float32),
    )
    for body in ("", "add", "maximum"):
        for at in (-1, 0, 2, 3, 1 << 30):
            yield example(
                f"{body or 'set'} row {at}", types,
                lambda b, x, i, u, body=body: scatter(b, x, i, u, body, **row),
                (numbers[0], np.array([at], np.int32), numbers[1]),
            )  # fmt: skip
    for at in (0, 1, 7):

        def inside(b: Any, x: Value, i: Value, u: Value) -> Value:
            known = b("and", i, b.constant(np.array([1], np.int32)))
            return scatter(b, x, known, u, "", **{**row, "update_window_dims": (0, 1),
                                                  "inserted_window_dims": ()})  # fmt: skip

        yield example(
            f"window inside at {at}", [*types[:2], TensorType((2, 5), F32)], inside,
            (numbers[0], np.array([at], np.int32), -numbers[0][:2]),
        )  # fmt: skip
    cell = {"update_window_dims": (), "inserted_window_dims": (0, 1), "index_vector_dim": 1,
            "scatter_dims_to_operand_dims": (1, 0)}  # fmt: skip
    for at in ((4, 2), (2, 4), (-1, 0), (0, -1)):
        yield example(
            f"cell {at}", [TABLE, TensorType((1, 2), I64), TensorType((1,), F32)],
            lambda b, x, i, u: scatter(b, x, i, u, "add", **cell),
            (numbers[0], np.array([at]), np.array([1.5], np.float32)),
        )  # fmt: skip
    yield example(
        "a window that may reach outside", [*types[:2], TensorType((2, 5), F32)],
        lambda b, x, i, u: scatter(b, x, i, u, "", **{
            **row, "update_window_dims": (0, 1), "inserted_window_dims": ()}),
        (numbers[0], np.array([2], np.int32), -numbers[0][:2]), fires=False,
    )  # fmt: skip
    yield example(
        "two rows", [TABLE, TensorType((2, 1), I32), TensorType((2, 5), F32)],
        lambda b, x, i, u: scatter(b, x, i, u, "", **{
            **row, "update_window_dims": (1,), "index_vector_dim": 1}),
        fires=False,
    )  # fmt: skip


@structural(
    "scatter-of-one-window", "scatter", examples=_one_window_examples, lowers="opaque operations"
)
def scatter_of_one_window(op: Op, b: Rewriter) -> Value | None:
    """scatter(x, i, u) -> dynamic_update_slice(x, select(inside(i), f(slice(x, i), u), ...), i)"""
    if len(op.operands) != 3 or any(not value.tensor.is_static for value in op.operands):
        return None
    x, indices, updates = op.operands
    body = monoid(op.regions[0])
    if op.results[0].type is not x.type or (body is None and not overwrites(op.regions[0])):
        return None
    starts = _starts(op, b)
    if starts is None:
        return None
    scalar = TensorType((), indices.element)
    places = [
        b.constant(0, scalar) if number is None else b.reshape(index_part(op, number, b), ())
        for number in starts.components
    ]
    new = b.reshape(updates, starts.sizes)
    if body is not None or starts.guarded:
        old = window(b, x, places, starts.sizes)
        new = new if body is None else b(body, old, new)
        inside = None
        for d in starts.guarded:
            here = b.compare("GE", places[d], b.constant(0, scalar))
            below = b.compare("LT", places[d], b.constant(x.dims[d], scalar))
            here = b("and", here, below)
            inside = here if inside is None else b("and", inside, here)
        if inside is not None:
            new = b("select", inside, new, old)
    return update(b, x, new, places)


RULES: tuple[Rule, ...] = (scatter_once, scatter_of_one_window)
