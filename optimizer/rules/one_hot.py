"""Rules for selections of one element per row: `iota == index`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.types import F32, I1, I32, TensorType
from ..licence import ASSUMES_FINITE, IGNORES_ZERO_SIGN
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .contractions import DotSides, dot, f32
from .ranges import counts_along, limits
from .reductions import plain, reduced

LABELS = TensorType((3,), I32)
HOSTILE = np.array([4, -1, 5], np.int32)
LEAST = 8  # columns from which on a product with single ones is worth a gather


class OneHot(NamedTuple):
    """A predicate that holds where the position along `dim` equals `index`."""

    dim: int
    index: Value  # has the predicate's other dims, in order


def one_hot(mask: Value, b: Rewriter) -> OneHot | None:
    """What a comparison of positions with broadcast indices is; None if it is something else."""
    op = made_by(mask, "compare")
    if op is None or op.comparison_direction != "EQ" or not op.type.is_static:
        return None
    for position, other in (op.operands, op.operands[::-1]):
        if not other.element.is_integer:
            return None
        d = counts_along(position, b)
        if d is None:
            continue
        index = without_dim(other, d, b)
        if index is not None:
            return OneHot(d, index)
    return None


def without_dim(value: Value, d: int, b: Rewriter, build: bool = True) -> Value | None:
    """A value that is the same all along dim `d`, without it; None if that is not known."""
    number = b.scalar(value)
    dims = [size for axis, size in enumerate(value.dims) if axis != d]
    if number is not None:
        return b.splat(number, value.tensor.with_dims(dims)) if build else value
    op = made_by(value, "broadcast_in_dim")
    if op is None:
        return None
    mapped, source = op.broadcast_dimensions, op.operands[0]
    if d in mapped:
        i = mapped.index(d)
        if source.dims[i] != 1:
            return None
        if not build:
            return value
        source = b.reshape(source, [size for axis, size in enumerate(source.dims) if axis != i])
        mapped = [m for m in mapped if m != d]
    return b.broadcast(source, dims, [m - (m > d) for m in mapped]) if build else value


def examples_of(body: Any, fires: bool = True) -> Any:
    for name, labels in (("inside", [4, 0, 2]), ("outside", HOSTILE)):
        inputs = (np.array(labels, np.int32), np.array([1.5, -2.0, 3.0], np.float32))
        yield example(name, [LABELS, TensorType((3,), F32)], body, inputs, fires)


def hot(b: Any, labels: Value, d: int = 1, size: int = 5) -> Value:
    """The comparison for examples, of `size` positions along dim `d`."""
    dims = (3, size) if d == 1 else (size, 3)
    line = b("iota", type=TensorType((size,), I32), iota_dimension=0)
    return b.compare("EQ", b.broadcast(line, dims, (d,)), b.broadcast(labels, dims, (1 - d,)))


def _sum_examples() -> Iterator[Example]:
    def body(dim: int = 1, d: int = 1, other: float = 0.0) -> Any:
        def build(b: Any, labels: Value, x: Value) -> Value:
            mask = hot(b, labels, d)
            kind = x.tensor.with_dims(mask.dims)
            chosen = b("select", mask, b.broadcast(x, mask.dims, (1 - d,)), b.constant(other, kind))
            return reduced(b, "add", chosen, (dim,))

        return build

    yield from examples_of(body())
    yield from examples_of(body(0, 0))
    yield from examples_of(body(other=1.0), fires=False)
    yield from examples_of(body(dim=0), fires=False)


@structural("sum-of-one-hot", "reduce", licence=IGNORES_ZERO_SIGN, examples=_sum_examples,
            lowers="computed elements", makers=("select",))  # fmt: skip
def sum_of_one_hot(op: Op, b: Rewriter) -> Value | None:
    """sum(select(iota == i, broadcast x, 0)) -> select(0 <= i < size, x, 0) [over iota's dim]"""
    chosen = made_by(op.operands[0], "select")
    if chosen is None or len(op.dimensions) != 1 or plain(op, b) != "add":
        return None
    mask, x, other = chosen.operands
    (d,) = op.dimensions
    if b.scalar(other) != 0 or mask.rank == 0 or without_dim(x, d, b, build=False) is None:
        return None
    found = one_hot(mask, b)
    if found is None or found.dim != d:
        return None
    value = without_dim(x, d, b)
    assert value is not None
    inside = _inside(found.index, mask.dims[d], b)
    return b("select", inside, value, b.splat(0, op.type))


def _inside(index: Value, size: int, b: Rewriter) -> Value:
    """Where 0 <= index < size."""
    above = b.compare("GE", index, b.splat(0, index.tensor))
    most = min(size - 1, limits(index.element)[1])
    return b("and", above, b.compare("LE", index, b.splat(most, index.tensor)))


def _dot_examples() -> Iterator[Example]:
    def body(d: int = 1, sum_over: int | None = None, size: int = 8, other: float = 0.0) -> Any:
        def build(b: Any, labels: Value, table: Value) -> Value:
            mask = hot(b, labels, d, size)
            kind = TensorType(mask.dims, F32)
            if other:
                ones = b("select", mask, b.constant(1.0, kind), b.constant(other, kind))
            else:
                ones = b.convert(mask, F32)
            return dot(b, ones, table, ((d if sum_over is None else sum_over,), (0,)))

        return build

    numbers = np.arange(32, dtype=np.float32).reshape(8, 4) - 7
    for labels in ([4, 0, 7], [-1, 8, 2]):
        inputs = (np.array(labels, np.int32), numbers)
        yield example(f"rows {labels}", [LABELS, f32(8, 4)], body(), inputs)
        yield example(f"columns {labels}", [LABELS, f32(8, 4)], body(0), inputs)

        def right(b: Any, labels: Value, table: Value) -> Value:
            return dot(b, table, b.convert(hot(b, labels, 0, 8), F32), ((0,), (0,)))

        yield example(f"right {labels}", [LABELS, f32(8, 4)], right, inputs)
    inputs = (np.array([4, 0, 2], np.int32), numbers[:3])
    yield example("summed over rows", [LABELS, f32(3, 4)], body(1, 0), inputs, fires=False)
    yield example("not zero", [LABELS, f32(8, 4)], body(other=0.5),
                  (inputs[0], numbers), fires=False)  # fmt: skip
    yield example("small", [LABELS, f32(5, 4)], body(size=5), (inputs[0], numbers[:5]), fires=False)


@structural("dot-of-one-hot", "dot_general", licence=IGNORES_ZERO_SIGN | ASSUMES_FINITE,
            examples=_dot_examples, lowers="multiplications")  # fmt: skip
def dot_of_one_hot(op: Op, b: Rewriter) -> Value | None:
    """dot(iota == i, x) -> select(0 <= i < size, gather(x, i), 0) [without batching dims]"""
    sides = DotSides(op)
    if sides.batch[0] or len(sides.contract[0]) != 1:
        return None
    for side in (0, 1):
        mask = _ones(sides.values[side], b)
        x, k = sides.values[1 - side], sides.contract[1 - side][0]
        if mask is None or x.dims[k] < LEAST or x.element is not op.type.element:
            continue
        found = one_hot(mask, b)
        if found is None or found.dim != sides.contract[side][0]:
            continue
        index, rank = found.index, found.index.rank
        first = 0 if side == 1 else rank  # of the dims that x gives
        offsets = tuple(range(first, first + x.rank - 1))
        rows = b(
            "gather", x, b.reshape(index, (*index.dims, 1)), offset_dims=offsets,
            collapsed_slice_dims=(k,), start_index_map=(k,), index_vector_dim=rank,
            slice_sizes=tuple(1 if d == k else size for d, size in enumerate(x.dims)),
        )  # fmt: skip
        places = [d for d in range(op.type.rank) if d not in offsets]
        inside = b.broadcast(_inside(index, x.dims[k], b), op.type.dims, places)
        return b("select", inside, rows, b.splat(0, op.type))
    return None


def _ones(value: Value, b: Rewriter) -> Value | None:
    """The predicate that a tensor of ones and zeros stands for."""
    op = made_by(value, "convert", "select")
    if op is None:
        return None
    if op.name == "convert":
        return op.operands[0] if op.operands[0].element is I1 else None
    mask, one, zero = op.operands
    if mask.rank == 0 or b.scalar(one) != 1 or b.scalar(zero) != 0:
        return None
    return mask


RULES: tuple[Rule, ...] = (sum_of_one_hot, dot_of_one_hot)
