"""Rules for dynamic_slice, dynamic_update_slice and gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.ops.indexing import along, slice_places, slice_starts
from ...hlo.types import F32, I32, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .slices import cut, padded

A = TensorType((6, 4), F32)
PART = TensorType((2, 4), F32)
INDEX = TensorType((), I32)
STARTS = tuple(np.int32(n) for n in (-1, 0, 3, 4, 5, 9))


def window(b: Any, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    return b("dynamic_slice", x, *starts, slice_sizes=tuple(sizes))


def update(b: Any, x: Value, part: Value, starts: Sequence[Value]) -> Value:
    return b("dynamic_update_slice", x, part, *starts)


def clamped(b: Rewriter, starts: Sequence[Value], dims: Any, sizes: Any) -> list[int] | None:
    """Constant starts as the operation clamps them; None if one is not constant."""
    found = []
    for value, dim, size in zip(starts, dims, sizes, strict=True):
        if dim == size:
            found.append(0)
            continue
        number = b.scalar(value)
        if number is None:
            return None
        found.append(min(max(int(number), 0), dim - size))
    return found


def _numbers(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.float32).reshape(-1, 4)


def _slice_examples() -> Iterator[Example]:
    for start in (-1, 2, 9):
        yield example(
            f"from {start}",
            [A],
            lambda b, x, s=start: window(
                b, x, [b.constant(s, INDEX), b.constant(1, INDEX)], (2, 3)
            ),
        )
    yield example(
        "whole",
        [A, INDEX, INDEX],
        lambda b, x, i, j: b("negate", window(b, x, [i, j], (6, 4))),
    )
    yield example(
        "unknown", [A, INDEX, INDEX], lambda b, x, i, j: window(b, x, [i, j], (2, 4)), fires=False
    )


@structural("dynamic-slice-at-constant", "dynamic_slice", examples=_slice_examples,
            lowers="dynamic operations")  # fmt: skip
def dynamic_slice_at_constant(op: Op, b: Rewriter) -> Value | None:
    """dynamic_slice(x, constants) -> slice x"""
    x = op.operands[0]
    if not x.tensor.is_static:
        return None
    start = clamped(b, op.operands[1:], x.dims, op.slice_sizes)
    if start is None:
        return None
    return cut(b, x, start, [s + n for s, n in zip(start, op.slice_sizes, strict=True)])


def _update_examples() -> Iterator[Example]:
    def body(b: Any, x: Value, part: Value, i: Value) -> Value:
        zero = b.constant(0, INDEX)
        return window(b, update(b, x, part, [i, zero]), [i, zero], (2, 4))

    for start in STARTS:
        yield example(f"at {start}", [A, PART, INDEX], body, (_numbers(24), -_numbers(8), start))

    def moved(b: Any, x: Value, part: Value, i: Value, j: Value) -> Value:
        zero = b.constant(0, INDEX)
        return window(b, update(b, x, part, [i, zero]), [j, zero], (2, 4))

    values = (_numbers(24), -_numbers(8), STARTS[1], STARTS[2])
    yield example("elsewhere", [A, PART, INDEX, INDEX], moved, values, fires=False)


@structural("dynamic-slice-of-update", "dynamic_slice", examples=_update_examples)
def dynamic_slice_of_update(op: Op, b: Rewriter) -> Value | None:
    """dynamic_slice(dynamic_update_slice(x, u, i), i) -> u [same size]"""
    inner = made_by(op.operands[0], "dynamic_update_slice")
    if inner is None or inner.operands[1].type is not op.results[0].type:
        return None
    return inner.operands[1] if inner.operands[2:] == op.operands[1:] else None


def _whole_examples() -> Iterator[Example]:
    yield example(
        "whole", [A, A, INDEX, INDEX], lambda b, x, u, i, j: b("negate", update(b, x, u, [i, j]))
    )


@structural("update-of-everything", "dynamic_update_slice", examples=_whole_examples)
def update_of_everything(op: Op, b: Rewriter) -> Value | None:
    """dynamic_update_slice(x, u) -> u [u is as large as x]"""
    return op.operands[1] if op.operands[1].type is op.results[0].type else None


def _update_same_examples() -> Iterator[Example]:
    def unchanged(b: Any, x: Value, i: Value) -> Value:
        zero = b.constant(0, INDEX)
        return b("negate", update(b, x, window(b, x, [i, zero], (2, 4)), [i, zero]))

    for start in STARTS:
        yield example(f"itself {start}", [A, INDEX], unchanged, (_numbers(24), start))

    def twice(b: Any, x: Value, u: Value, v: Value, i: Value) -> Value:
        zero = b.constant(0, INDEX)
        return update(b, update(b, x, u, [i, zero]), v, [i, zero])

    def both(b: Any, x: Value, u: Value, v: Value, i: Value) -> list[Value]:
        zero = b.constant(0, INDEX)
        inner = update(b, x, u, [i, zero])
        return [inner, update(b, inner, v, [i, zero])]

    yield example("needed as it is", [A, PART, PART, INDEX], both, fires=False)
    for start in STARTS:
        values = (_numbers(24), -_numbers(8), 3 * _numbers(8), start)
        yield example(f"twice {start}", [A, PART, PART, INDEX], twice, values)


@structural("update-of-same-place", "dynamic_update_slice", examples=_update_same_examples)
def update_of_same_place(op: Op, b: Rewriter) -> Value | None:
    """update(x, slice(x, i), i) -> x; update(update(x, u, i), v, i) -> update(x, v, i)"""
    x, part = op.operands[:2]
    read = made_by(part, "dynamic_slice")
    if read is not None and read.operands[0] is x and read.operands[1:] == op.operands[2:]:
        return x
    inner = made_by(x, "dynamic_update_slice")
    if inner is None or inner.operands[1].type is not part.type:
        return None
    if inner.operands[2:] != op.operands[2:] or not b.single_use(x):
        return None
    return update(b, inner.operands[0], part, op.operands[2:])


def _update_splat_examples() -> Iterator[Example]:
    for start in (-1, 2, 9):
        yield example(
            f"from {start}",
            [PART],
            lambda b, u, s=start: update(
                b, b.constant(0.5, A), u, [b.constant(s, INDEX), b.constant(0, INDEX)]
            ),
        )


@structural("update-of-splat", "dynamic_update_slice", examples=_update_splat_examples,
            lowers="dynamic operations")  # fmt: skip
def update_of_splat(op: Op, b: Rewriter) -> Value | None:
    """dynamic_update_slice(splat v, u, constants) -> pad(u, v)"""
    x, part = op.operands[:2]
    number = b.scalar(x)
    if number is None:
        return None
    start = clamped(b, op.operands[2:], x.dims, part.dims)
    if start is None:
        return None
    rows = zip(start, x.dims, part.dims, strict=True)
    high = [dim - size - first for first, dim, size in rows]
    value = b.splat(number, x.tensor.with_dims(()))
    return padded(b, part, value, start, high)


# Gathers.


def take(b: Any, x: Value, index: Value) -> Value:
    """Rows of a matrix, for examples."""
    return b(
        "gather", x, index, offset_dims=(index.rank - 1,), collapsed_slice_dims=(0,),
        start_index_map=(0,), index_vector_dim=index.rank - 1, slice_sizes=(1, x.dims[1]),
    )  # fmt: skip


def _gather_examples() -> Iterator[Example]:
    for count in (3, 6, 9):
        kind = TensorType((count, 1), I32)
        yield example(
            f"iota {count}",
            [A],
            lambda b, x, kind=kind: b("negate", take(b, x, b("iota", type=kind, iota_dimension=0))),
            fires=count <= 6,
        )
    yield example(
        "row by row", [A],
        lambda b, x: take(b, x, b("iota", type=TensorType((3, 1), I32), iota_dimension=0)),
        makes=("slice",),
    )  # fmt: skip
    for number in (-3, 2, 9):
        yield example(
            f"row {number}",
            [A],
            lambda b, x, n=number: take(b, x, b.constant(n, TensorType((1,), I32))),
        )
        yield example(
            f"rows {number}",
            [A],
            lambda b, x, n=number: take(b, x, b.constant(n, TensorType((5, 1), I32))),
        )
    yield example(
        "line", [A], lambda b, x: take(b, x, b.constant([[1], [2], [3]], TensorType((3, 1), I32)))
    )
    yield example(
        "mixed",
        [A],
        lambda b, x: take(b, x, b.constant([[1], [3], [2]], TensorType((3, 1), I32))),
        fires=False,
    )
    pairs = [[[2, n] for n in range(4)]]
    yield example(
        "elements", [A],
        lambda b, x: b(
            "gather", x, b.constant(pairs, TensorType((1, 4, 2), I32)), offset_dims=(),
            collapsed_slice_dims=(0, 1), start_index_map=(0, 1), index_vector_dim=2,
            slice_sizes=(1, 1),
        ),
    )  # fmt: skip
    starts = TensorType((2, 1), I32)
    for name, dim, sizes, offsets, fires in (
        ("pairs of rows", 0, (2, 4), (1, 2), True),
        ("rows of pairs", 0, (2, 4), (0, 2), False),
        ("columns", 1, (6, 1), (1, 2), False),
        ("halves of columns", 1, (6, 2), (1, 2), False),
    ):
        yield example(
            name,
            [A],
            lambda b, x, dim=dim, sizes=sizes, offsets=offsets: b(
                "gather", x, b.constant([[1], [1 + sizes[dim]]], starts), offset_dims=offsets,
                collapsed_slice_dims=(), start_index_map=(dim,), index_vector_dim=1,
                slice_sizes=sizes,
            ),
            fires=fires,
        )  # fmt: skip


LARGEST_INDEX = 1 << 16  # elements of a gather whose places are looked at


@structural("gather-of-neighbours", "gather", examples=_gather_examples,
            lowers="dynamic operations")  # fmt: skip
def gather_of_neighbours(op: Op, b: Rewriter) -> Value | None:
    """gather(x, known indices) -> slice x, reshaped [it reads one run of elements, or one slice]"""
    x, index = op.operands
    if not (x.tensor.is_static and op.type.is_static) or 0 in (op.type.size, *op.slice_sizes):
        return None
    if b.scalar(index) is not None and not op.operand_batching_dims:
        return _one_slice(op, b)
    if x.tensor.size > 1 << 31 or index.tensor.size > LARGEST_INDEX:
        return None
    known = known_array(index, b)
    if known is None:
        return None
    first = _first_of_run(op, known)
    if first is None:
        return None
    count = math.prod(op.type.dims)
    if count == x.tensor.size:
        return b.reshape(x, op.type.dims)
    row = math.prod(x.dims[1:])
    if first % row == 0 and count % row == 0:
        rows = cut(
            b, x, (first // row, *(0,) * (x.rank - 1)), ((first + count) // row, *x.dims[1:])
        )
        return b.reshape(rows, op.type.dims)
    line = cut(b, b.reshape(x, (x.tensor.size,)), (first,), (first + count,))
    return b.reshape(line, op.type.dims)


def _one_slice(op: Op, b: Rewriter) -> Value:
    """All windows are the same one: it is cut out once and repeated."""
    x = op.operands[0]
    number = int(b.scalar(op.operands[1]))
    start = [0] * x.rank
    for d in op.start_index_map:
        start[d] = min(max(number, 0), x.dims[d] - op.slice_sizes[d])
    limit = [s + n for s, n in zip(start, op.slice_sizes, strict=True)]
    window = cut(b, x, start, limit)
    sizes = [op.type.dims[d] for d in op.offset_dims]
    return b.broadcast(b.reshape(window, sizes), op.type.dims, op.offset_dims)


def _first_of_run(op: Op, index: np.ndarray[Any, Any]) -> int | None:
    """The row-major place of the first element read, if the others follow it one by one: an
    element's place is the sum of what its slice and its offset in that say, so each is asked alone.
    """
    x, dims = op.operands[0].tensor, op.type.dims
    places, strides = _row_major(dims), _row_major(x.dims)
    inner = slice_places(x.rank, op.collapsed_slice_dims, op.operand_batching_dims, op.offset_dims)
    if any(dims[d] > 1 and places[d] != strides[axis] for d, axis in inner.items()):
        return None
    batch = [d for d in range(op.type.rank) if d not in inner]
    begin = np.zeros([dims[d] for d in batch], np.int64)
    for start, stride in zip(slice_starts(op, x.dims, index, op.slice_sizes), strides, strict=True):
        begin += start * stride
    first = int(begin.reshape(-1)[0])
    for n, d in enumerate(batch):
        begin -= along(np.arange(dims[d]) * places[d], n, len(batch))
    return first if (begin == first).all() else None


def _row_major(dims: Sequence[int]) -> list[int]:
    """By how many places an element's neighbour along each dim lies behind it."""
    return [math.prod(dims[d + 1 :]) for d in range(len(dims))]


def known_array(value: Value, b: Rewriter, depth: int = 8) -> np.ndarray[Any, Any] | None:
    """A value that short formulas over constants and iotas give, else None."""
    op = value.op
    if op is None or depth == 0 or value.tensor.size > LARGEST_INDEX or len(op.results) != 1:
        return None
    dense = b.constant_of(value)
    if dense is not None:
        return dense.array
    if op.name != "iota" and (op.definition.pattern not in ("elementwise", "index") or op.regions):
        return None
    arrays = [known_array(operand, b, depth - 1) for operand in op.operands]
    if any(array is None for array in arrays):
        return None
    (result,) = b.engine.folder.interpreter.evaluate(op, arrays, {})
    return result


RULES: tuple[Rule, ...] = (
    dynamic_slice_at_constant,
    dynamic_slice_of_update,
    update_of_everything,
    update_of_same_place,
    update_of_splat,
    gather_of_neighbours,
)
