"""Rules for gathers whose indices count along a dim: batching dims, without those indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.types import F32, I32, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .scatters import batch_dims, counted_by, index_part

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


RULES: tuple[Rule, ...] = (gather_by_row,)
