"""Rules for slice, concatenate, pad and iota, and for operations with empty results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Dense, Op, Value
from ...hlo.types import F32, I32, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import inverse, made_by
from .sinking import is_map, may_sink

A = TensorType((6, 4), F32)
WIDE = TensorType((60, 40), F32)
SCALAR = TensorType((), F32)


def cut(b: Any, x: Value, start: Sequence[int], limit: Sequence[int], strides: Any = None) -> Value:
    """A slice; the value itself if it is all of it."""
    steps = tuple(strides or (1,) * x.rank)
    if tuple(start) == (0,) * x.rank and tuple(limit) == x.dims and steps == (1,) * x.rank:
        return x
    return b("slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=steps)


def padded(
    b: Any, x: Value, value: Value, low: Sequence[int], high: Sequence[int], interior: Any = None
) -> Value:
    return b(
        "pad", x, value, edge_padding_low=tuple(low), edge_padding_high=tuple(high),
        interior_padding=tuple(interior or (0,) * x.rank),
    )  # fmt: skip


# Slices.


def _slice_all_examples() -> Iterator[Example]:
    def whole(b: Any, x: Value) -> Value:
        all_of_it = b("slice", x, start_indices=(0, 0), limit_indices=(6, 4), strides=(1, 1))
        return b("negate", all_of_it)

    yield example("all", [A], whole)
    yield example("part", [A], lambda b, x: cut(b, x, (1, 0), (3, 4)), fires=False)


@structural("slice-of-everything", "slice", examples=_slice_all_examples)
def slice_of_everything(op: Op, b: Rewriter) -> Value | None:
    """slice x -> x [same type]"""
    return op.operands[0] if op.operands[0].type is op.results[0].type else None


def _slice_slice_examples() -> Iterator[Example]:
    yield example(
        "strided",
        [A],
        lambda b, x: cut(b, cut(b, x, (1, 0), (6, 4), (2, 1)), (1, 1), (3, 4), (1, 2)),
    )


@structural("slice-of-slice", "slice", examples=_slice_slice_examples)
def slice_of_slice(op: Op, b: Rewriter) -> Value | None:
    """slice(slice x) -> slice x"""
    inner = made_by(op.operands[0], "slice")
    if inner is None:
        return None
    start, limit, steps = [], [], []
    for d in range(op.type.rank):
        step = inner.strides[d]
        start.append(inner.start_indices[d] + op.start_indices[d] * step)
        last = inner.start_indices[d] + max(op.limit_indices[d] - 1, 0) * step + 1
        limit.append(min(last, inner.limit_indices[d]) if op.type.dims[d] else start[-1])
        steps.append(step * op.strides[d])
    return cut(b, inner.operands[0], start, limit, steps)


def _slice_concat_examples() -> Iterator[Example]:
    def joined(b: Any, x: Value, y: Value) -> Value:
        return b("concatenate", x, y, dimension=0)

    yield example("first", [A, A], lambda b, x, y: cut(b, joined(b, x, y), (1, 0), (5, 4)))
    yield example("second", [A, A], lambda b, x, y: cut(b, joined(b, x, y), (6, 1), (12, 3)))
    yield example(
        "both", [A, A], lambda b, x, y: cut(b, joined(b, x, y), (1, 0), (8, 4)), fires=False
    )


@structural("slice-of-concatenate", "slice", examples=_slice_concat_examples)
def slice_of_concatenate(op: Op, b: Rewriter) -> Value | None:
    """slice(concatenate(..., x, ...)) -> slice x [it reads one operand only]"""
    inner = made_by(op.operands[0], "concatenate")
    if inner is None or not inner.type.is_static:
        return None
    d = inner.dimension
    first, end = op.start_indices[d], op.limit_indices[d]
    place = 0
    for operand in inner.operands:
        size = operand.dims[d]
        if place <= first and end <= place + size and first < end:
            start, limit = list(op.start_indices), list(op.limit_indices)
            start[d], limit[d] = first - place, end - place
            return cut(b, operand, start, limit, op.strides)
        place += size
    return None


def _slice_pad_examples() -> Iterator[Example]:
    def body(start: Any, limit: Any) -> Any:
        return lambda b, x: cut(
            b, padded(b, x, b.constant(1.5, SCALAR), (2, 0), (1, 3)), start, limit
        )

    yield example("inside", [A], body((2, 0), (7, 3)))
    yield example("outside", [A], body((0, 0), (2, 7)))
    yield example("across", [A], body((1, 0), (7, 3)), fires=False)


@structural("slice-of-pad", "slice", examples=_slice_pad_examples)
def slice_of_pad(op: Op, b: Rewriter) -> Value | None:
    """slice(pad(x, v)) -> slice x or broadcast v [it reads one of them only]"""
    inner = made_by(op.operands[0], "pad")
    if inner is None or any(inner.interior_padding) or not inner.type.is_static:
        return None
    x, low = inner.operands[0], inner.edge_padding_low
    start = [s - p for s, p in zip(op.start_indices, low, strict=True)]
    limit = [e - p for e, p in zip(op.limit_indices, low, strict=True)]
    rows = list(zip(start, limit, x.dims, strict=True))
    if any(e <= 0 or s >= size for s, e, size in rows):
        return b.broadcast(inner.operands[1], op.type.dims, ())
    if all(s >= 0 and e <= size for s, e, size in rows):
        return cut(b, x, start, limit, op.strides)
    return None


def _slice_broadcast_examples() -> Iterator[Example]:
    row = TensorType((4,), F32)
    yield example("new", [row], lambda b, x: cut(b, b.broadcast(x, (6, 4), (1,)), (1, 0), (3, 4)))
    yield example(
        "both", [row], lambda b, x: cut(b, b.broadcast(x, (6, 4), (1,)), (1, 1), (5, 4), (2, 2))
    )
    yield example(
        "a repeated one",
        [TensorType((1, 4), F32)],
        lambda b, x: cut(b, b.broadcast(x, (2, 4), (0, 1)), (1, 1), (2, 3)),
    )


@structural("slice-of-broadcast", "slice", examples=_slice_broadcast_examples,
            lowers="computed elements")  # fmt: skip
def slice_of_broadcast(op: Op, b: Rewriter) -> Value | None:
    """slice(broadcast x) -> broadcast(slice x)"""
    inner = made_by(op.operands[0], "broadcast_in_dim")
    if inner is None:
        return None
    x = inner.operands[0]
    window = []
    for size, d in zip(x.dims, inner.broadcast_dimensions, strict=True):
        if size == inner.type.dims[d]:
            window.append((op.start_indices[d], op.limit_indices[d], op.strides[d]))
        else:
            window.append((0, size, size))  # of size one, and repeated
    start, limit, steps = zip(*window, strict=True) if window else ((), (), ())
    return b.broadcast(cut(b, x, start, limit, steps), op.type.dims, inner.broadcast_dimensions)


def _slice_transpose_examples() -> Iterator[Example]:
    yield example(
        "swapped", [A], lambda b, x: cut(b, b.transpose(x, (1, 0)), (1, 0), (3, 5), (1, 2))
    )

    def kept(b: Any, x: Value) -> list[Value]:
        transposed = b.transpose(x, (1, 0))
        return [transposed, cut(b, transposed, (1, 0), (3, 5))]

    yield example("needed as it is", [A], kept, fires=False)


@structural("slice-of-transpose", "slice", examples=_slice_transpose_examples,
            lowers="height of transposes")  # fmt: skip
def slice_of_transpose(op: Op, b: Rewriter) -> Value | None:
    """slice(transpose x) -> transpose(slice x)"""
    inner = made_by(op.operands[0], "transpose")
    if inner is None or not may_sink(op.operands[0], b):
        return None
    back = inverse(inner.permutation)
    small = cut(
        b, inner.operands[0], [op.start_indices[d] for d in back],
        [op.limit_indices[d] for d in back], [op.strides[d] for d in back],
    )  # fmt: skip
    return b.transpose(small, inner.permutation)


def _slice_map_examples() -> Iterator[Example]:
    yield example("unary", [A], lambda b, x: cut(b, b("exponential", x), (1, 0), (3, 4)))
    yield example("binary", [A, A], lambda b, x, y: cut(b, b("add", x, y), (1, 0), (3, 4)))

    def twice(b: Any, x: Value) -> list[Value]:
        y = b("exponential", x)
        return [cut(b, y, (0, 0), (3, 4)), cut(b, y, (3, 0), (6, 4))]

    yield example("all of it in pieces", [A], twice, fires=False)


@structural("slice-of-map", "slice", examples=_slice_map_examples, lowers="computed elements",
            single=True)  # fmt: skip
def slice_of_map(op: Op, b: Rewriter) -> Value | None:
    """slice f(x, y) -> f(slice x, slice y) [no other use]"""
    owner = op.operands[0].owner
    if not isinstance(owner, Op) or owner.definition.pattern != "elementwise":
        return None
    if not b.single_use(op.operands[0]) or not is_map(owner):
        return None
    small = [
        cut(b, value, op.start_indices, op.limit_indices, op.strides) for value in owner.operands
    ]
    return b.like(owner, *small, type=owner.type.with_dims(op.type.dims))


# Concatenations.


def _concat_examples() -> Iterator[Example]:
    yield example("one", [A], lambda b, x: b("negate", b("concatenate", x, dimension=0)))
    empty = TensorType((0, 4), F32)
    yield example("empty", [A, empty], lambda b, x, y: b("concatenate", x, y, dimension=0))
    yield example(
        "nested",
        [A, A],
        lambda b, x, y: b("concatenate", x, b("concatenate", y, x, dimension=0), dimension=0),
    )
    yield example(
        "adjacent slices",
        [A],
        lambda b, x: b(
            "concatenate", cut(b, x, (1, 0), (3, 4)), cut(b, x, (3, 0), (5, 4)), dimension=0
        ),
    )
    yield example(
        "equal splats",
        [],
        lambda b: b("concatenate", b.constant(2.0, WIDE), b.constant(2.0, WIDE), dimension=1),
    )
    yield example("two", [A, A], lambda b, x, y: b("concatenate", x, y, dimension=0), fires=False)


@structural("concatenate-parts", "concatenate", examples=_concat_examples, lowers="operands")
def concatenate_parts(op: Op, b: Rewriter) -> Value | None:
    """concatenate: nested ones are flattened, empty parts dropped, adjacent parts joined"""
    d = op.dimension
    parts: list[Value] = []
    for operand in op.operands:
        inner = made_by(operand, "concatenate")
        if inner is not None and inner.dimension == d and b.single_use(operand):
            parts.extend(inner.operands)
        elif operand.dims[d] != 0:
            parts.append(operand)
    joined = parts[:1]
    for part in parts[1:]:
        both = _adjacent(joined[-1], part, d, b)
        if both is None:
            joined.append(part)
        else:
            joined[-1] = both
    if tuple(joined) == op.operands and len(joined) > 1 or not joined:
        return None
    return joined[0] if len(joined) == 1 else b("concatenate", *joined, dimension=d)


def _adjacent(left: Value, right: Value, d: int, b: Rewriter) -> Value | None:
    """Two parts as one value: neighbouring slices of one tensor, or equal splats."""
    one, two = b.scalar(left), b.scalar(right)
    dims = [*left.dims[:d], left.dims[d] + right.dims[d], *left.dims[d + 1 :]]
    if one is not None and two is not None and one.tobytes() == two.tobytes():
        return b.splat(one, left.tensor.with_dims(dims))
    first, second = made_by(left, "slice"), made_by(right, "slice")
    if first is None or second is None or first.operands[0] is not second.operands[0]:
        return None
    if any(step != 1 for step in (*first.strides, *second.strides)):
        return None
    start, limit = first.start_indices, list(first.limit_indices)
    for axis in range(left.rank):
        if axis == d:
            if second.start_indices[d] != first.limit_indices[d]:
                return None
        elif (start[axis], limit[axis]) != (second.start_indices[axis], second.limit_indices[axis]):
            return None
    limit[d] = second.limit_indices[d]
    return cut(b, first.operands[0], start, limit)


def _concat_transpose_examples() -> Iterator[Example]:
    yield example(
        "two",
        [A, A],
        lambda b, x, y: b(
            "concatenate", b.transpose(x, (1, 0)), b.transpose(y, (1, 0)), dimension=0
        ),
    )
    yield example(
        "one",
        [A, TensorType((4, 6), F32)],
        lambda b, x, y: b("concatenate", b.transpose(x, (1, 0)), y, dimension=0),
        fires=False,
    )

    def kept(b: Any, x: Value, y: Value) -> list[Value]:
        transposed = b.transpose(x, (1, 0))
        return [transposed, b("concatenate", transposed, b.transpose(y, (1, 0)), dimension=0)]

    yield example("one needed as it is", [A, A], kept, fires=False)


@structural("concatenate-of-transposes", "concatenate", examples=_concat_transpose_examples,
            lowers="height of transposes")  # fmt: skip
def concatenate_of_transposes(op: Op, b: Rewriter) -> Value | None:
    """concatenate(transpose x, transpose y) -> transpose(concatenate(x, y))"""
    first = made_by(op.operands[0], "transpose")
    if first is None:
        return None
    for operand in op.operands:
        inner = made_by(operand, "transpose")
        if inner is None or inner.permutation != first.permutation or not may_sink(operand, b):
            return None
    parts = [operand.op.operands[0] for operand in op.operands if operand.op is not None]
    joined = b("concatenate", *parts, dimension=first.permutation[op.dimension])
    return b.transpose(joined, first.permutation)


def _concat_reshape_examples() -> Iterator[Example]:
    flat = TensorType((6, 1, 4), F32)
    yield example(
        "ones",
        [flat, flat],
        lambda b, x, y: b("concatenate", b.reshape(x, (6, 4)), b.reshape(y, (6, 4)), dimension=1),
    )
    pair = TensorType((2, 1, 3), F32)
    yield example(
        "ones of pairs",
        [pair, pair],
        lambda b, x, y: b("concatenate", b.reshape(x, (2, 3)), b.reshape(y, (2, 3)), dimension=0),
    )
    yield example(
        "one alone",
        [flat],
        lambda b, x: b("concatenate", b.reshape(x, (6, 4)), dimension=1),
        fires=False,
    )


@structural("concatenate-of-reshapes", "concatenate", examples=_concat_reshape_examples,
            lowers="height of reshapes")  # fmt: skip
def concatenate_of_reshapes(op: Op, b: Rewriter) -> Value | None:
    """concatenate(reshape x, reshape y) -> reshape(concatenate(x, y)) [only ones were dropped]"""
    first = made_by(op.operands[0], "reshape")
    if first is None or len(op.operands) < 2:
        return None
    source = first.operands[0].dims
    kept = [d for d in range(len(source)) if source[d] != 1]
    target = [d for d, size in enumerate(first.type.dims) if size != 1]
    if [source[d] for d in kept] != [first.type.dims[d] for d in target]:
        return None
    if op.dimension not in target:
        return None
    d = kept[target.index(op.dimension)]
    parts = []
    for operand in op.operands:
        inner = made_by(operand, "reshape")
        if inner is None:
            return None
        dims = inner.operands[0].dims
        if len(dims) != len(source) or any(
            dims[i] != source[i] for i in range(len(source)) if i != d
        ):
            return None
        if dims[d] != operand.dims[op.dimension]:
            return None
        parts.append(inner.operands[0])
    return b.reshape(b("concatenate", *parts, dimension=d), op.type.dims)


# Pads.


def _pad_nothing_examples() -> Iterator[Example]:
    yield example(
        "nothing", [A, SCALAR], lambda b, x, v: b("negate", padded(b, x, v, (0, 0), (0, 0)))
    )
    yield example(
        "interior of one",
        [TensorType((1, 4), F32), SCALAR],
        lambda b, x, v: b("negate", padded(b, x, v, (0, 0), (0, 0), (3, 0))),
    )
    yield example("one", [A, SCALAR], lambda b, x, v: padded(b, x, v, (1, 0), (0, 0)), fires=False)


@structural("pad-by-nothing", "pad", examples=_pad_nothing_examples)
def pad_by_nothing(op: Op, b: Rewriter) -> Value | None:
    """pad x -> x [no padding]"""
    same = op.operands[0].type is op.results[0].type
    if not same or any(op.edge_padding_low) or any(op.edge_padding_high):
        return None
    return op.operands[0]


def _pad_negative_examples() -> Iterator[Example]:
    yield example("both", [A, SCALAR], lambda b, x, v: padded(b, x, v, (-1, 2), (-2, -1)))
    yield example("high", [A, SCALAR], lambda b, x, v: padded(b, x, v, (0, 0), (0, -3)))


@structural("pad-negative", "pad", examples=_pad_negative_examples, lowers="negative paddings")
def pad_negative(op: Op, b: Rewriter) -> Value | None:
    """pad by less than nothing -> pad(slice x)"""
    x, low, high = op.operands[0], op.edge_padding_low, op.edge_padding_high
    if min((*low, *high), default=0) >= 0 or any(op.interior_padding) or not x.tensor.is_static:
        return None
    start = [max(-p, 0) for p in low]
    limit = [size - max(-p, 0) for p, size in zip(high, x.dims, strict=True)]
    if any(s >= e for s, e in zip(start, limit, strict=True)):
        return None
    small = cut(b, x, start, limit)
    low, high = [max(p, 0) for p in low], [max(p, 0) for p in high]
    return padded(b, small, op.operands[1], low, high) if any((*low, *high)) else small


def _pad_pad_examples() -> Iterator[Example]:
    yield example(
        "twice",
        [A, SCALAR],
        lambda b, x, v: padded(b, padded(b, x, v, (1, 0), (0, 2)), v, (0, 3), (1, 1)),
    )
    yield example(
        "other values",
        [A, SCALAR, SCALAR],
        lambda b, x, v, w: padded(b, padded(b, x, v, (1, 0), (0, 2)), w, (0, 3), (1, 1)),
        fires=False,
    )


@structural("pad-of-pad", "pad", examples=_pad_pad_examples)
def pad_of_pad(op: Op, b: Rewriter) -> Value | None:
    """pad(pad(x, v), v) -> pad(x, v)"""
    inner = made_by(op.operands[0], "pad")
    if inner is None or inner.operands[1] is not op.operands[1] or any(op.interior_padding):
        return None
    edges = (*op.edge_padding_low, *op.edge_padding_high, *inner.edge_padding_low,
             *inner.edge_padding_high)  # fmt: skip
    if min(edges, default=0) < 0:
        return None
    low = [i + j for i, j in zip(inner.edge_padding_low, op.edge_padding_low, strict=True)]
    high = [i + j for i, j in zip(inner.edge_padding_high, op.edge_padding_high, strict=True)]
    return padded(b, inner.operands[0], op.operands[1], low, high, inner.interior_padding)


def _pad_splat_examples() -> Iterator[Example]:
    yield example(
        "same",
        [],
        lambda b: padded(b, b.constant(2.0, WIDE), b.constant(2.0, SCALAR), (1, 0), (0, 2)),
    )
    yield example(
        "other", [],
        lambda b: b("negate", padded(b, b.constant(2.0, WIDE),
                                     b.constant(1.0, SCALAR), (1, 0), (0, 2))),
        fires=False,
    )  # fmt: skip


@structural("pad-of-splat", "pad", examples=_pad_splat_examples)
def pad_of_splat(op: Op, b: Rewriter) -> Value | None:
    """pad(splat v, v) -> splat v"""
    inside, outside = b.scalar(op.operands[0]), b.scalar(op.operands[1])
    if inside is None or outside is None or inside.tobytes() != outside.tobytes():
        return None
    return b.splat(inside, op.type) if op.type.is_static else None


# Iotas and empty results.


def _iota_examples() -> Iterator[Example]:
    def counted(*dims: int, along: int = 0) -> Any:
        kind = TensorType(dims, I32)
        return lambda b: b("iota", type=kind, iota_dimension=along)

    yield example("one", [], counted(3, 1, along=1))
    yield example("rank two", [], counted(3, 4, along=1))
    yield example("line", [], counted(5), fires=False)


@structural("iota-in-one-dimension", "iota", examples=_iota_examples, lowers="ranks of iotas")
def iota_in_one_dimension(op: Op, b: Rewriter) -> Value | None:
    """iota of rank > 1 -> broadcast(iota); iota of one number -> 0"""
    d = op.iota_dimension
    if op.type.dims[d] == 1 and op.type.is_static:
        return b.splat(0, op.type)
    if op.type.rank <= 1:
        return None
    line = b("iota", type=op.type.with_dims([op.type.dims[d]]), iota_dimension=0)
    return b.broadcast(line, op.type.dims, (d,))


def _empty_examples() -> Iterator[Example]:
    yield example("slice", [A], lambda b, x: cut(b, x, (2, 0), (2, 4)))
    none = TensorType((0,), F32)
    yield example("map", [none, none], lambda b, x, y: b("add", x, y))
    yield example("map of something", [A], lambda b, x: b("negate", x), fires=False)
    yield example(
        "with a body",
        [TensorType((3, 0), F32)],
        lambda b, x: b.reduce("add", x, b.constant(0.0, TensorType((), F32)), (0,)),
        fires=False,
    )


@structural("empty-result", "*", examples=_empty_examples, lowers="operations on arguments")
def empty_result(op: Op, b: Rewriter) -> Value | None:
    """anything without elements -> an empty constant"""
    if len(op.results) != 1 or op.definition.pattern in ("source", "control") or op.regions:
        return None
    type = op.results[0].type
    if not isinstance(type, TensorType) or 0 not in type.dims or not type.is_static:
        return None
    if op.definition.effects or op.name == "optimization_barrier":
        return None
    return b.constant(Dense(type, np.zeros(type.dims, type.dtype)))


RULES: tuple[Rule, ...] = (
    slice_of_everything,
    slice_of_slice,
    slice_of_concatenate,
    slice_of_pad,
    slice_of_broadcast,
    slice_of_transpose,
    slice_of_map,
    concatenate_parts,
    concatenate_of_transposes,
    concatenate_of_reshapes,
    pad_by_nothing,
    pad_negative,
    pad_of_pad,
    pad_of_splat,
    iota_in_one_dimension,
    empty_result,
)
