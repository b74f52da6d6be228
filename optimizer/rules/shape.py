"""Rules for broadcast, reshape, transpose and reverse: fewer of them, later, on fewer elements.

Reshapes and transposes sink towards results: past elementwise operations, until another one undoes
them or a contraction takes them into its dimension numbers. Broadcasts sink because what is
computed before them is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.ops import DEFINITIONS
from ...hlo.types import F32, I32, TensorType
from ..fold import compact
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import groups, inverse, made_by, map_of_ones

A = TensorType((2, 3, 4), F32)
ONES = TensorType((2, 1, 3), F32)
ROW = TensorType((3,), F32)
SCALAR = TensorType((), F32)


# Constants and broadcasts.


_MOVES = sorted(one.name for one in DEFINITIONS if one.moves)


def _splat_examples() -> Iterator[Example]:
    yield example("broadcast", [], lambda b: b.broadcast(b.constant(2.5, ROW), (2, 3), (1,)))
    yield example("reshape", [], lambda b: b.reshape(b.constant(-0.0, A), (6, 4)))
    yield example("transpose", [], lambda b: b.transpose(b.constant(7, A), (2, 0, 1)))
    yield example("reverse", [], lambda b: b("reverse", b.constant(7, A), dimensions=(1,)))
    yield example(
        "slice", [],
        lambda b: b("slice", b.constant(1.5, A), start_indices=(0, 1, 0), limit_indices=(2, 3, 4),
                    strides=(1, 2, 1)),
    )  # fmt: skip
    yield example(
        "dynamic slice", [TensorType((), I32)],
        lambda b, i: b("dynamic_slice", b.constant(1.5, ROW), i, slice_sizes=(2,)),
    )  # fmt: skip
    yield example("not a splat", [ROW], lambda b, x: b.broadcast(x, (2, 3), (1,)), fires=False)


@structural("move-of-splat", *_MOVES, examples=_splat_examples)
def move_of_splat(op: Op, b: Rewriter) -> Value | None:
    """move(splat) -> splat"""
    number = b.scalar(op.operands[0])
    if number is None or not op.type.is_static:
        return None
    return b.splat(number, op.type)


def _uniform_examples() -> Iterator[Example]:
    equal = np.full((2, 3, 4), -0.0, np.float32)
    mixed = equal.copy()
    mixed[0, 1, 2] = 0.0
    yield example("equal", [A], lambda b, x: b("add", x, b.constant(equal)))
    yield example(
        "zeros of two signs", [A], lambda b, x: b("add", x, b.constant(mixed)), fires=False
    )


@structural("constant-is-splat", "constant", examples=_uniform_examples, lowers="stored elements")
def constant_is_splat(op: Op, b: Rewriter) -> Value | None:
    """a constant whose elements are all equal -> splat"""
    dense = op.attributes["value"]
    found = compact(dense)
    return None if found is dense else b.constant(found)


def _broadcast_of_broadcast_examples() -> Iterator[Example]:
    yield example(
        "twice", [ROW], lambda b, x: b.broadcast(b.broadcast(x, (2, 3), (1,)), (4, 2, 3), (1, 2))
    )
    one = TensorType((1, 3), F32)
    yield example(
        "expanding",
        [one],
        lambda b, x: b.broadcast(b.broadcast(x, (1, 5, 3), (0, 2)), (6, 5, 3), (0, 1, 2)),
    )


@structural("broadcast-of-broadcast", "broadcast_in_dim", examples=_broadcast_of_broadcast_examples)
def broadcast_of_broadcast(op: Op, b: Rewriter) -> Value | None:
    """broadcast(broadcast x) -> broadcast x"""
    inner = made_by(op.operands[0], "broadcast_in_dim")
    if inner is None:
        return None
    mapped = [op.broadcast_dimensions[d] for d in inner.broadcast_dimensions]
    return b.broadcast(inner.operands[0], op.type.dims, mapped)


def _same_count_examples() -> Iterator[Example]:
    yield example("reshape", [ROW], lambda b, x: b.broadcast(x, (1, 3, 1), (1,)))
    yield example("transpose", [A], lambda b, x: b.broadcast(x, (4, 2, 3), (1, 2, 0)))
    yield example("both", [A], lambda b, x: b.broadcast(x, (4, 1, 2, 3), (2, 3, 0)))
    yield example(
        "identity",
        [A],
        lambda b, x: b("broadcast_in_dim", x, type=A, broadcast_dimensions=(0, 1, 2)),
    )
    yield example("larger", [ROW], lambda b, x: b.broadcast(x, (2, 3), (1,)), fires=False)


@structural("broadcast-of-same-count", "broadcast_in_dim", examples=_same_count_examples,
            lowers="broadcasts")  # fmt: skip
def broadcast_of_same_count(op: Op, b: Rewriter) -> Value | None:
    """broadcast x -> reshape(transpose x) [as many elements]"""
    source, target = op.operands[0], op.type
    if not (source.tensor.is_static and target.is_static) or source.tensor.size != target.size:
        return None
    order = sorted(range(source.rank), key=lambda d: op.broadcast_dimensions[d])
    return b.reshape(b.transpose(source, order), target.dims)


def _sorted_examples() -> Iterator[Example]:
    yield example("swapped", [A], lambda b, x: b.broadcast(x, (4, 5, 2, 3), (2, 3, 0)))
    yield example("last two swapped", [A], lambda b, x: b.broadcast(x, (2, 5, 4, 3), (0, 3, 2)))
    yield example(
        "in order", [A], lambda b, x: b.broadcast(x, (2, 5, 3, 4), (0, 2, 3)), fires=False
    )


@structural("broadcast-in-order", "broadcast_in_dim", examples=_sorted_examples,
            lowers="broadcasts out of order")  # fmt: skip
def broadcast_in_order(op: Op, b: Rewriter) -> Value | None:
    """broadcast x -> broadcast(transpose x) [mapped dimensions out of order]"""
    mapped = op.broadcast_dimensions
    if all(left < right for left, right in zip(mapped, mapped[1:], strict=False)):
        return None
    order = sorted(range(len(mapped)), key=lambda d: mapped[d])
    moved = b.transpose(op.operands[0], order)
    return b.broadcast(moved, op.type.dims, sorted(mapped))


def _broadcast_of_reshape_examples() -> Iterator[Example]:
    yield example(
        "ones added", [ROW], lambda b, x: b.broadcast(b.reshape(x, (1, 3, 1)), (2, 3, 4), (0, 1, 2))
    )
    yield example(
        "split",
        [TensorType((6,), F32)],
        lambda b, x: b.broadcast(b.reshape(x, (2, 3)), (2, 3, 4), (0, 1)),
        fires=False,
    )


@structural("broadcast-of-reshape", "broadcast_in_dim", examples=_broadcast_of_reshape_examples)
def broadcast_of_reshape(op: Op, b: Rewriter) -> Value | None:
    """broadcast(reshape x) -> broadcast x [the reshape only adds ones]"""
    inner = made_by(op.operands[0], "reshape")
    if inner is None:
        return None
    source = inner.operands[0]
    places = map_of_ones(source.dims, inner.type.dims)
    if places is None or None in places:
        return None
    mapped = [op.broadcast_dimensions[d] for d in places if d is not None]
    return b.broadcast(source, op.type.dims, mapped)


def _broadcast_of_groups_examples() -> Iterator[Example]:
    yield example(
        "merged",
        [TensorType((2, 3, 4), F32)],
        lambda b, x: b.broadcast(b.reshape(x, (6, 4)), (6, 4, 5), (0, 1)),
    )
    yield example(
        "split",
        [TensorType((6,), F32)],
        lambda b, x: b.broadcast(b.reshape(x, (2, 3)), (4, 2, 3), (1, 2)),
    )
    yield example(
        "split and spread",
        [TensorType((6,), F32)],
        lambda b, x: b.broadcast(b.reshape(x, (2, 3)), (2, 4, 3), (0, 2)),
        fires=False,
    )


@structural("broadcast-of-grouping", "broadcast_in_dim", examples=_broadcast_of_groups_examples,
            lowers="height of reshapes")  # fmt: skip
def broadcast_of_grouping(op: Op, b: Rewriter) -> Value | None:
    """broadcast(reshape x) -> reshape(broadcast x) [what is split or merged stays side by side]"""
    inner = made_by(op.operands[0], "reshape")
    if inner is None or not op.type.is_static:
        return None
    source, mapped = inner.operands[0], op.broadcast_dimensions
    if map_of_ones(source.dims, inner.type.dims) is not None:
        return None  # only ones: other rules do better
    if any(inner.type.dims[i] != op.type.dims[d] for i, d in enumerate(mapped)):
        return None
    first: dict[int, tuple[tuple[int, ...], int]] = {}  # result dim -> source dims there, how many
    for before, after in groups(source.dims, inner.type.dims):
        places = [mapped[d] for d in after]
        if places != list(range(places[0], places[0] + len(places))):
            return None
        first[places[0]] = before, len(places)
    dims: list[Any] = []
    where = [0] * source.rank
    d = 0
    while d < op.type.rank:
        before, count = first.get(d, ((), 1))
        for axis in before:
            where[axis] = len(dims)
            dims.append(source.dims[axis])
        if d not in first:
            dims.append(op.type.dims[d])
        d += count
    return b.reshape(b.broadcast(source, dims, where), op.type.dims)


# Reshapes.


def _reshape_examples() -> Iterator[Example]:
    yield example("twice", [A], lambda b, x: b.reshape(b.reshape(x, (6, 4)), (3, 8)))
    yield example("back", [A], lambda b, x: b("negate", b.reshape(b.reshape(x, (6, 4)), A.dims)))


@structural("reshape-of-reshape", "reshape", examples=_reshape_examples)
def reshape_of_reshape(op: Op, b: Rewriter) -> Value | None:
    """reshape(reshape x) -> reshape x"""
    inner = made_by(op.operands[0], "reshape")
    return None if inner is None else b.reshape(inner.operands[0], op.type.dims)


def _reshape_identity_examples() -> Iterator[Example]:
    yield example("same", [A], lambda b, x: b("negate", b("reshape", x, type=A)))


@structural("reshape-identity", "reshape", examples=_reshape_identity_examples)
def reshape_identity(op: Op, b: Rewriter) -> Value | None:
    """reshape x -> x [same type]"""
    return op.operands[0] if op.operands[0].type is op.results[0].type else None


Runs = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


def remapped_broadcast(broadcast: Op, runs: Runs, dims: Sequence[Any]) -> list[int | None] | None:
    """Where a broadcast's operand goes if its result is reshaped to `dims`; None if it cannot.

    `runs` are the `groups` of that reshape: runs of the old and of the new dimensions. A dimension
    of size one that has no place there is None: the operand must lose it.
    """
    source, old_dims = broadcast.operands[0].dims, broadcast.type.dims
    places: list[int | None] = [None] * len(source)
    operand_dim = {d: i for i, d in enumerate(broadcast.broadcast_dimensions)}
    for old, new in runs:
        if not any(d in operand_dim for d in old):
            continue
        local = map_of_ones([old_dims[d] for d in old], [dims[d] for d in new])
        for number, d in enumerate(old):
            if d not in operand_dim:
                continue
            i = operand_dim[d]
            place = None if local is None else local[number]
            if place is None and source[i] != 1:
                return None
            places[i] = None if place is None else new[place]
    return places


def rebroadcast(b: Rewriter, value: Value, dims: Sequence[Any], places: list[int | None]) -> Value:
    """`value` broadcast to `dims`, without its dimensions that have no place there."""
    kept = [place for place in places if place is not None]
    if len(kept) < len(places):
        left = [size for size, place in zip(value.dims, places, strict=True) if place is not None]
        value = b.reshape(value, left)
    return b.broadcast(value, dims, kept)


def _reshape_of_broadcast_examples() -> Iterator[Example]:
    yield example("merged", [ROW], lambda b, x: b.reshape(b.broadcast(x, (2, 4, 3), (2,)), (8, 3)))
    yield example("split", [ROW], lambda b, x: b.reshape(b.broadcast(x, (8, 3), (1,)), (2, 4, 3)))
    yield example("ones", [ROW], lambda b, x: b.reshape(b.broadcast(x, (2, 3), (1,)), (1, 2, 1, 3)))
    yield example(
        "a one is lost",
        [TensorType((1, 3), F32)],
        lambda b, x: b.reshape(b.broadcast(x, (1, 3, 4), (0, 1)), (3, 4)),
    )
    yield example(
        "a spread one",
        [TensorType((3, 1), F32)],
        lambda b, x: b.reshape(b.broadcast(x, (3, 4), (0, 1)), (3, 2, 2)),
    )
    yield example(
        "through the data",
        [ROW],
        lambda b, x: b.reshape(b.broadcast(x, (2, 3), (1,)), (6,)),
        fires=False,
    )


@structural("reshape-of-broadcast", "reshape", examples=_reshape_of_broadcast_examples,
            lowers="reshaped elements")  # fmt: skip
def reshape_of_broadcast(op: Op, b: Rewriter) -> Value | None:
    """reshape(broadcast x) -> broadcast x [no dimension of x is split or merged]"""
    inner = made_by(op.operands[0], "broadcast_in_dim")
    if inner is None or not inner.type.is_static or not op.type.is_static:
        return None
    mapped = remapped_broadcast(inner, groups(inner.type.dims, op.type.dims), op.type.dims)
    if mapped is None:
        return None
    return rebroadcast(b, inner.operands[0], op.type.dims, mapped)


# Transposes.


def _transpose_examples() -> Iterator[Example]:
    yield example("twice", [A], lambda b, x: b.transpose(b.transpose(x, (1, 2, 0)), (0, 2, 1)))
    yield example(
        "back", [A], lambda b, x: b("negate", b.transpose(b.transpose(x, (1, 2, 0)), (2, 0, 1)))
    )


@structural("transpose-of-transpose", "transpose", examples=_transpose_examples)
def transpose_of_transpose(op: Op, b: Rewriter) -> Value | None:
    """transpose(transpose x) -> transpose x"""
    inner = made_by(op.operands[0], "transpose")
    if inner is None:
        return None
    return b.transpose(inner.operands[0], [inner.permutation[d] for d in op.permutation])


def _transpose_is_reshape_examples() -> Iterator[Example]:
    yield example("ones move", [ONES], lambda b, x: b.transpose(x, (0, 2, 1)))
    yield example(
        "identity", [A], lambda b, x: b("negate", b("transpose", x, permutation=(0, 1, 2)))
    )
    yield example("more moves", [ONES], lambda b, x: b.transpose(x, (2, 1, 0)), fires=False)


@structural("transpose-is-reshape", "transpose", examples=_transpose_is_reshape_examples,
            lowers="transposes")  # fmt: skip
def transpose_is_reshape(op: Op, b: Rewriter) -> Value | None:
    """transpose x -> reshape x [only dimensions of size one move]"""
    dims = op.operands[0].dims
    moved = [d for d in op.permutation if dims[d] != 1]
    return b.reshape(op.operands[0], op.type.dims) if moved == sorted(moved) else None


def _transpose_of_broadcast_examples() -> Iterator[Example]:
    yield example("row", [ROW], lambda b, x: b.transpose(b.broadcast(x, (2, 3), (1,)), (1, 0)))
    two = TensorType((2, 3), F32)
    yield example(
        "two", [two], lambda b, x: b.transpose(b.broadcast(x, (2, 4, 3), (0, 2)), (2, 1, 0))
    )


@structural("transpose-of-broadcast", "transpose", examples=_transpose_of_broadcast_examples,
            lowers="transposed elements")  # fmt: skip
def transpose_of_broadcast(op: Op, b: Rewriter) -> Value | None:
    """transpose(broadcast x) -> broadcast x, mapped elsewhere"""
    inner = made_by(op.operands[0], "broadcast_in_dim")
    if inner is None:
        return None
    place = inverse(op.permutation)
    mapped = [place[d] for d in inner.broadcast_dimensions]
    return b.broadcast(inner.operands[0], op.type.dims, mapped)


def _transpose_of_reshape_examples() -> Iterator[Example]:
    yield example("ones", [A], lambda b, x: b.transpose(b.reshape(x, (1, 2, 3, 4)), (0, 2, 1, 3)))
    yield example("merged", [A], lambda b, x: b.transpose(b.reshape(x, (2, 12)), (1, 0)))
    wide = TensorType((5, 12), F32)
    yield example(
        "split moves together", [wide], lambda b, x: b.transpose(b.reshape(x, (5, 3, 4)), (1, 2, 0))
    )
    yield example(
        "heads", [wide], lambda b, x: b.transpose(b.reshape(x, (5, 3, 4)), (1, 0, 2)), fires=False
    )


@structural("transpose-of-reshape", "transpose", examples=_transpose_of_reshape_examples,
            lowers="height of reshapes")  # fmt: skip
def transpose_of_reshape(op: Op, b: Rewriter) -> Value | None:
    """transpose(reshape x) -> reshape(transpose x) [what is split or merged stays together]"""
    inner = made_by(op.operands[0], "reshape")
    if inner is None or not inner.type.is_static:
        return None
    source, dims = inner.operands[0], inner.type.dims
    kept = [d for d, size in enumerate(source.dims) if size != 1]
    split = [d for d, size in enumerate(dims) if size != 1]
    runs = groups([source.dims[d] for d in kept], [dims[d] for d in split])
    group_of = {split[d]: number for number, (_, run) in enumerate(runs) for d in run}
    permutation = [d for d, size in enumerate(source.dims) if size == 1]
    order = [d for d in op.permutation if dims[d] != 1]
    position = 0
    while position < len(order):
        left, run = runs[group_of[order[position]]]
        if order[position : position + len(run)] != [split[d] for d in run]:
            return None
        permutation.extend(kept[d] for d in left)
        position += len(run)
    return b.reshape(b.transpose(source, permutation), op.type.dims)


# Reverse.


def _reverse_examples() -> Iterator[Example]:
    yield example(
        "twice",
        [A],
        lambda b, x: b("reverse", b("reverse", x, dimensions=(0, 1)), dimensions=(1, 2)),
    )
    yield example("ones", [ONES], lambda b, x: b("negate", b("reverse", x, dimensions=(1,))))
    yield example("nothing", [A], lambda b, x: b("negate", b("reverse", x, dimensions=())))
    yield example("once", [A], lambda b, x: b("reverse", x, dimensions=(1,)), fires=False)


@structural("reverse-of-reverse", "reverse", examples=_reverse_examples)
def reverse_of_reverse(op: Op, b: Rewriter) -> Value | None:
    """reverse(reverse x) -> reverse x; dimensions of size one need none"""
    source = op.operands[0]
    inner = made_by(source, "reverse")
    reversed_dims = {d for d in op.dimensions if source.dims[d] != 1}
    if inner is not None:
        source = inner.operands[0]
        reversed_dims ^= {d for d in inner.dimensions if source.dims[d] != 1}
    if inner is None and 0 < len(reversed_dims) == len(op.dimensions):
        return None
    return (
        b("reverse", source, dimensions=tuple(sorted(reversed_dims))) if reversed_dims else source
    )


RULES: tuple[Rule, ...] = (
    constant_is_splat,
    move_of_splat,
    broadcast_of_broadcast,
    broadcast_of_same_count,
    broadcast_in_order,
    broadcast_of_reshape,
    broadcast_of_grouping,
    reshape_identity,
    reshape_of_reshape,
    reshape_of_broadcast,
    transpose_of_transpose,
    transpose_is_reshape,
    transpose_of_broadcast,
    transpose_of_reshape,
    reverse_of_reverse,
)
