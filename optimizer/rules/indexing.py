"""Rules for dynamic_slice, dynamic_update_slice and gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
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
            f"from {start}", [A],
            lambda b, x, s=start: window(
                b, x, [b.constant(s, INDEX), b.constant(1, INDEX)], (2, 3)
            ),
        )
    yield example(
        "whole", [A, INDEX, INDEX],
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
            f"from {start}", [PART],
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
            f"iota {count}", [A],
            lambda b, x, kind=kind: b(
                "negate", take(b, x, b("iota", type=kind, iota_dimension=0))
            ),
            fires=count <= 6,
        )
    for number in (-3, 2, 9):
        yield example(
            f"row {number}", [A],
            lambda b, x, n=number: take(b, x, b.constant(n, TensorType((1,), I32))),
        )
        yield example(
            f"rows {number}", [A],
            lambda b, x, n=number: take(b, x, b.constant(n, TensorType((5, 1), I32))),
        )
    yield example(
        "line", [A], lambda b, x: take(b, x, b.constant([[1], [2], [3]], TensorType((3, 1), I32)))
    )
    yield example(
        "mixed", [A],
        lambda b, x: take(b, x, b.constant([[1], [3], [2]], TensorType((3, 1), I32))), fires=False,
    )


@structural("gather-of-neighbours", "gather", examples=_gather_examples,
            lowers="dynamic operations")  # fmt: skip
def gather_of_neighbours(op: Op, b: Rewriter) -> Value | None:
    """gather(x, known consecutive indices of one dimension) -> slice x, reshaped"""
    x, index = op.operands
    if op.operand_batching_dims or len(op.start_index_map) != 1 or not x.tensor.is_static:
        return None
    if not op.type.is_static or op.type.size == 0:
        return None
    (axis,) = op.start_index_map
    if op.slice_sizes[axis] != 1:
        return None
    if any(n != x.dims[d] for d, n in enumerate(op.slice_sizes) if d != axis):
        return None
    batch = [d for d in range(op.type.rank) if d not in op.offset_dims]
    if axis in op.collapsed_slice_dims:
        if len(op.collapsed_slice_dims) != 1:
            return None
    elif op.collapsed_slice_dims:
        return None
    count = math.prod(op.type.dims[d] for d in batch)
    span = _span(index, count, x.dims[axis], b)
    if span is None:
        return None
    first, step = span
    # Batch dims must stand where the axis is, or be one number that is repeated.
    kept = [d for d in op.offset_dims if op.type.dims[d] != 1]
    large = [d for d in batch if op.type.dims[d] != 1]
    if step and count > 1:
        before = [d for d in range(axis) if x.dims[d] != 1]
        if not all(sum(k < d for k in kept) == len(before) for d in large):
            return None
    start, limit = [0] * x.rank, list(x.dims)
    start[axis], limit[axis] = first, first + (count if step else 1)
    rows = cut(b, x, start, limit)
    if step or count == 1:
        return b.reshape(rows, op.type.dims)
    sizes = [op.type.dims[d] for d in op.offset_dims]
    return b.broadcast(b.reshape(rows, sizes), op.type.dims, op.offset_dims)


def _span(index: Value, count: int, size: int, b: Rewriter) -> tuple[int, int] | None:
    """(first, step) of indices that are all equal (0) or count up by one (1), once clamped."""
    number = b.scalar(index)
    if number is not None:
        return min(max(int(number), 0), size - 1), 0
    dense = b.constant_of(index)
    if dense is not None:
        line = np.clip(dense.array.reshape(-1).astype(np.int64), 0, size - 1)
        if len(line) == count and np.array_equal(line, line[0] + np.arange(count)):
            return int(line[0]), 1
        return None
    source = index
    inner = made_by(source, "reshape", "broadcast_in_dim")
    if inner is not None and inner.operands[0].tensor.is_static:
        source = inner.operands[0]
        if source.tensor.size != index.tensor.size:
            return None
    iota = made_by(source, "iota")
    if iota is None or source.dims[iota.iota_dimension] != count or count > size:
        return None
    return (0, 1) if source.tensor.size == count else None


RULES: tuple[Rule, ...] = (
    dynamic_slice_at_constant,
    dynamic_slice_of_update,
    update_of_everything,
    update_of_same_place,
    update_of_splat,
    gather_of_neighbours,
)
