"""Rules for gathers: indices that count along a dim become batching dims, and what a slice leaves
out is not gathered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.types import F32, I32, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .scatters import batch_dims, counted_by, index_part
from .slices import cut

TABLE = TensorType((3, 5), F32)
COLUMN = TensorType((3, 1), I32)


def _examples() -> Iterator[Example]:
    numbers = np.arange(15, dtype=np.float32).reshape(3, 5)
    labels = np.array([[4], [-1], [9]], np.int32)
    pairs = {"offset_dims": (), "collapsed_slice_dims": (0, 1), "start_index_map": (0, 1),
             "index_vector_dim": 1, "slice_sizes": (1, 1)}  # fmt: skip

    def counted(b: Any, x: Value, i: Value, first: Any = None, **changed: Any) -> Value:
        line = b("iota", type=COLUMN, iota_dimension=0) if first is None else b.constant(first)
        index = b("concatenate", line, i, dimension=1)
        return b("gather", x, index, **{**pairs, **changed})

    yield example("elements", [TABLE, COLUMN], counted, (numbers, labels))
    known = np.array([[0], [1], [2]], np.int32)
    yield example("known", [TABLE, COLUMN], lambda b, x, i: counted(b, x, i, known),
                  (numbers, labels))  # fmt: skip
    yield example("backwards", [TABLE, COLUMN],
                  lambda b, x, i: counted(b, x, i, known[::-1].copy()), (numbers, labels),
                  fires=False)  # fmt: skip
    yield example("larger table", [TensorType((5, 3), F32), COLUMN], counted,
                  (numbers.reshape(5, 3), labels), fires=False)  # fmt: skip
    yield example("other dimension", [TensorType((5, 3), F32), COLUMN],
                  lambda b, x, i: counted(b, x, i, start_index_map=(1, 0)),
                  (numbers.reshape(5, 3), labels))  # fmt: skip

    def rows(b: Any, x: Value, i: Value) -> Value:
        return counted(b, x, i, offset_dims=(1,), collapsed_slice_dims=(0,), slice_sizes=(1, 2))

    yield example("runs of rows", [TABLE, COLUMN], rows, (numbers, labels))
    cube = TensorType((2, 3, 5), F32)
    square = TensorType((2, 3, 1), I32)

    def both(b: Any, x: Value, i: Value) -> Value:
        lines = [b("iota", type=square, iota_dimension=d) for d in (0, 1)]
        index = b("concatenate", *lines, i, dimension=2)
        return b(
            "gather", x, index, offset_dims=(), collapsed_slice_dims=(0, 1, 2),
            start_index_map=(0, 1, 2), index_vector_dim=2, slice_sizes=(1, 1, 1),
        )  # fmt: skip

    random = np.random.default_rng(0)
    values = random.standard_normal((2, 3, 5)).astype(np.float32)
    yield example(
        "two", [cube, square], both, (values, random.integers(-1, 7, (2, 3, 1), np.int32))
    )


@structural("gather-by-row", "gather", examples=_examples, lowers="components of indices")
def gather_by_row(op: Op, b: Rewriter) -> Value | None:
    """gather(x, concatenate(iota, i)) -> gather(x, i) in batches [iota counts a whole dim of x]"""
    x, indices = op.operands
    if not (x.tensor.is_static and indices.tensor.is_static):
        return None
    collapsed, batching = list(op.collapsed_slice_dims), list(op.operand_batching_dims)
    axes = list(op.start_indices_batching_dims)
    left: list[int] = []
    for number, d in enumerate(op.start_index_map):
        axis = counted_by(op, number, b) if d in collapsed else None
        if axis is None or axis in axes or indices.dims[axis] != x.dims[d]:
            left.append(number)
            continue
        collapsed.remove(d)
        batching.append(d)
        axes.append(axis)
    if not left or len(left) == len(op.start_index_map):
        return None
    last = op.index_vector_dim
    outer = batch_dims(op)
    dims = [indices.dims[axis] for axis in outer]
    dims.insert(last, 1)
    parts = [b.reshape(index_part(op, number, b), dims) for number in left]
    index = b("concatenate", *parts, dimension=last)
    attributes = {
        **op.attributes,
        "collapsed_slice_dims": tuple(collapsed),
        "operand_batching_dims": tuple(batching),
        "start_indices_batching_dims": tuple(axes),
        "start_index_map": tuple(op.start_index_map[number] for number in left),
        "indices_are_sorted": False,
    }
    return b.build("gather", (x, index), attributes, (), op.result_types)[0]


def _slice_examples() -> Iterator[Example]:
    numbers = np.arange(15, dtype=np.float32).reshape(3, 5)
    labels = np.array([[2], [-1], [9], [0]], np.int32)
    line = TensorType((4, 1), I32)
    rows = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,),
            "index_vector_dim": 1, "slice_sizes": (1, 5)}  # fmt: skip

    def first(b: Any, x: Value, i: Value, limit: Any = (2, 5), **changed: Any) -> Value:
        made = b("gather", x, i, **{**rows, **changed})
        strides = (1,) * made.rank
        return b("slice", made, start_indices=(0,) * made.rank, limit_indices=limit,
                 strides=strides)  # fmt: skip

    yield example("first rows", [TABLE, line], first, (numbers, labels))
    yield example("other rows", [TABLE, line],
                  lambda b, x, i: b("slice", b("gather", x, i, **rows), start_indices=(1, 0),
                                    limit_indices=(4, 5), strides=(2, 1)),
                  (numbers, labels))  # fmt: skip
    yield example("offsets in front", [TABLE, line],
                  lambda b, x, i: first(b, x, i, (5, 3), offset_dims=(0,)),
                  (numbers, labels))  # fmt: skip
    yield example("components in front", [TABLE, TensorType((1, 4), I32)],
                  lambda b, x, i: first(b, x, i, index_vector_dim=0),
                  (numbers, labels.T.copy()))  # fmt: skip
    yield example("no dim for components", [TABLE, TensorType((4,), I32)], first,
                  (numbers, labels[:, 0].copy()))  # fmt: skip
    yield example("a part of each row", [TABLE, line],
                  lambda b, x, i: first(b, x, i, (2, 4)), (numbers, labels),
                  fires=False)  # fmt: skip
    batched = {"offset_dims": (), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
               "start_indices_batching_dims": (0,), "start_index_map": (1,),
               "slice_sizes": (1, 1)}  # fmt: skip
    yield example("fewer batches", [TABLE, COLUMN],
                  lambda b, x, i: first(b, x, i, (2,), **batched),
                  (numbers, labels[:3].copy()), fires=False)  # fmt: skip

    def all_rows(b: Any, x: Value, i: Value) -> list[Value]:
        made = b("gather", x, i, **rows)
        return [made, cut(b, made, (0, 0), (2, 5))]

    yield example("all of it as well", [TABLE, line], all_rows, (numbers, labels), fires=False)


@structural("slice-of-gather", "slice", examples=_slice_examples, lowers="computed elements",
            single=True)  # fmt: skip
def slice_of_gather(op: Op, b: Rewriter) -> Value | None:
    """slice(gather(x, i)) -> gather(x, slice i) [of whole slices and batches; no other use]"""
    gather = made_by(op.operands[0], "gather")
    if gather is None or not b.single_use(op.operands[0]):
        return None
    x, indices = gather.operands
    window = [(0, size, 1) for size in indices.dims]
    batches = (d for d in range(gather.type.rank) if d not in gather.offset_dims)
    axis_of = dict(zip(batches, batch_dims(gather), strict=True))
    for d, size in enumerate(gather.type.dims):
        wanted = (op.start_indices[d], op.limit_indices[d], op.strides[d])
        if wanted == (0, size, 1):
            continue
        axis = axis_of.get(d)
        if axis is None or axis in gather.start_indices_batching_dims:
            return None
        window[axis] = wanted
    start, limit, strides = zip(*window, strict=True)
    small = cut(b, indices, start, limit, strides)
    return b.like(gather, x, small, type=gather.type.with_dims(op.type.dims))


RULES: tuple[Rule, ...] = (gather_by_row, slice_of_gather)
