"""Rules that carry broadcasts, reshapes and transposes past elementwise operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import F32, I1, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import groups, inverse, made_by
from .shape import rebroadcast, remapped_broadcast

A = TensorType((2, 3, 4), F32)
FLAT = TensorType((6, 4), F32)
ROW = TensorType((4,), F32)

# Users past which a transpose can sink, or in which it ends.
SINKS = frozenset({"transpose", "dot_general", "convolution", "slice", "concatenate", "reverse"})


def is_map(op: Op) -> bool:
    """Whether an operation is elementwise, with all operands of the result's dimensions."""
    if op.definition.pattern != "elementwise" or len(op.results) != 1:
        return False
    dims = op.results[0].tensor.dims
    return all(operand.tensor.dims == dims for operand in op.operands)


def _broadcast_examples() -> Iterator[Example]:
    yield example("unary", [ROW], lambda b, x: b("exponential", b.broadcast(x, A.dims, (2,))))
    yield example(
        "two",
        [ROW, ROW],
        lambda b, x, y: b("add", b.broadcast(x, A.dims, (2,)), b.broadcast(y, A.dims, (2,))),
    )
    yield example(
        "with a constant",
        [ROW],
        lambda b, x: b("multiply", b.broadcast(x, A.dims, (2,)), b.constant(2.0, A)),
    )
    yield example(
        "no more elements",
        [ROW],
        lambda b, x: b("exponential", b.broadcast(x, (1, ROW.dims[0]), (1,))),
        fires=False,
    )
    yield example(
        "select",
        [TensorType((4,), I1), ROW],
        lambda b, p, x: b(
            "select",
            b.broadcast(p, A.dims, (2,)),
            b.broadcast(x, A.dims, (2,)),
            b.constant(-1.0, A),
        ),
    )
    yield example(
        "other dimensions",
        [ROW, TensorType((3,), F32)],
        lambda b, x, y: b("add", b.broadcast(x, A.dims, (2,)), b.broadcast(y, A.dims, (1,))),
        fires=False,
    )


@structural(
    "map-of-broadcasts",
    "*",
    examples=_broadcast_examples,
    lowers="computed elements",
    makers=("broadcast_in_dim",),
)
def map_of_broadcasts(op: Op, b: Rewriter) -> Value | None:
    """f(broadcast x, broadcast y) -> broadcast f(x, y)"""
    if not op.operands or not is_map(op) or not op.type.is_static:
        return None
    first = None
    for operand in op.operands:
        inner = made_by(operand, "broadcast_in_dim")
        if inner is None:
            if b.scalar(operand) is None:
                return None
        elif first is None:
            first = inner
        elif (
            inner.operands[0].dims != first.operands[0].dims
            or inner.broadcast_dimensions != first.broadcast_dimensions
        ):
            return None
    if first is None:
        return None
    dims = first.operands[0].dims
    if op.type.size <= first.operands[0].tensor.size:
        return None
    small = [_unbroadcast(operand, dims, b) for operand in op.operands]
    result = b.like(op, *small, type=op.type.with_dims(dims))
    return b.broadcast(result, op.type.dims, first.broadcast_dimensions)


def _unbroadcast(value: Value, dims: Sequence[Any], b: Rewriter) -> Value:
    inner = made_by(value, "broadcast_in_dim")
    if inner is not None:
        return inner.operands[0]
    return b.splat(b.scalar(value), value.tensor.with_dims(dims))


Moved = Callable[[], Value]


def _reshape_examples() -> Iterator[Example]:
    yield example("unary", [A], lambda b, x: b("exponential", b.reshape(x, (6, 4))))
    yield example(
        "bias",
        [A, ROW],
        lambda b, x, y: b("add", b.reshape(x, (6, 4)), b.broadcast(y, (6, 4), (1,))),
    )
    yield example(
        "both", [A, A], lambda b, x, y: b("add", b.reshape(x, (6, 4)), b.reshape(y, (6, 4)))
    )
    yield example(
        "constant",
        [A],
        lambda b, x: b("multiply", b.reshape(x, (6, 4)), b.constant(2.0, FLAT)),
    )
    yield example(
        "another operand", [A, FLAT], lambda b, x, y: b("add", b.reshape(x, (6, 4)), y), fires=False
    )
    yield example(
        "a bias along what is merged",
        [A, TensorType((6,), F32)],
        lambda b, x, y: b("add", b.reshape(x, (6, 4)), b.broadcast(y, (6, 4), (0,))),
        fires=False,
    )


@structural(
    "map-of-reshapes",
    "*",
    examples=_reshape_examples,
    lowers="height of reshapes",
    makers=("reshape",),
)
def map_of_reshapes(op: Op, b: Rewriter) -> Value | None:
    """f(reshape x, ...) -> reshape f(x, ...) [every operand can be had in x's dimensions]"""
    if not is_map(op) or not op.type.is_static:
        return None
    first = next((made for v in op.operands if (made := made_by(v, "reshape"))), None)
    if first is None:
        return None
    dims = first.operands[0].dims
    if b.is_static(first.results[0]) and len(op.operands) > 1:
        return None
    runs = groups(op.type.dims, dims)
    moved: list[Moved] = []
    for operand in op.operands:
        found = _reshaped(operand, dims, runs, b)
        if found is None:
            return None
        moved.append(found)
    result = b.like(op, *(make() for make in moved), type=op.type.with_dims(dims))
    return b.reshape(result, op.type.dims)


def _reshaped(value: Value, dims: Sequence[Any], runs: Any, b: Rewriter) -> Moved | None:
    """How to have a value in other dimensions without an operation on its elements."""
    reshape = made_by(value, "reshape")
    if reshape is not None and reshape.operands[0].dims == dims:
        return lambda: reshape.operands[0]
    number = b.scalar(value)
    if number is not None:
        return lambda: b.splat(number, value.tensor.with_dims(dims))
    broadcast = made_by(value, "broadcast_in_dim")
    if broadcast is not None:
        mapped = remapped_broadcast(broadcast, runs, dims)
        if mapped is not None:
            return lambda: rebroadcast(b, broadcast.operands[0], dims, mapped)
    elif b.is_static(value):
        return lambda: b.reshape(value, dims)
    return None


def _transpose_examples() -> Iterator[Example]:
    swap = (0, 2, 1)
    swapped = TensorType((2, 4, 3), F32)
    yield example("unary", [A], lambda b, x: b("exponential", b.transpose(x, swap)))
    yield example(
        "both", [A, A], lambda b, x, y: b("add", b.transpose(x, swap), b.transpose(y, swap))
    )
    yield example(
        "with a broadcast",
        [A, ROW],
        lambda b, x, y: b("add", b.transpose(x, swap), b.broadcast(y, swapped.dims, (1,))),
    )
    yield example(
        "with a constant",
        [A],
        lambda b, x: b("multiply", b.transpose(x, swap), b.constant(0.5, swapped)),
    )
    yield example(
        "another operand",
        [A, swapped],
        lambda b, x, y: b("add", b.transpose(x, swap), y),
        fires=False,
    )


@structural(
    "map-of-transposes",
    "*",
    examples=_transpose_examples,
    lowers="height of transposes",
    makers=("transpose",),
)
def map_of_transposes(op: Op, b: Rewriter) -> Value | None:
    """f(transpose x, ...) -> transpose f(x, ...) [every operand can be had untransposed]"""
    if not is_map(op):
        return None
    first = next((made for v in op.operands if (made := made_by(v, "transpose"))), None)
    if first is None:
        return None
    permutation = first.permutation
    moved: list[Moved] = []
    for operand in op.operands:
        found = _untransposed(operand, permutation, b)
        if found is None:
            return None
        moved.append(found)
    dims = first.operands[0].dims
    result = b.like(op, *(make() for make in moved), type=op.type.with_dims(dims))
    return b.transpose(result, permutation)


def _untransposed(value: Value, permutation: Sequence[int], b: Rewriter) -> Moved | None:
    back = inverse(permutation)
    transpose = made_by(value, "transpose")
    if transpose is not None:
        if transpose.permutation != permutation or not may_sink(value, b):
            return None
        return lambda: transpose.operands[0]
    if b.scalar(value) is not None or made_by(value, "broadcast_in_dim") or b.is_static(value):
        return lambda: b.transpose(value, back)
    return None


def may_sink(transposed: Value, b: Rewriter) -> bool:
    """Whether no user would be left that needs the transpose where it is."""
    return b.single_use(transposed) or all(
        user in SINKS or user == "elementwise" for user in b.users(transposed)
    )


RULES: tuple[Rule, ...] = (map_of_broadcasts, map_of_reshapes, map_of_transposes)
