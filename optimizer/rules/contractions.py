"""Rules for dot_general and convolution: operands' shape changes go into dimension numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import F32, TensorType
from ..licence import IGNORES_ZERO_SIGN
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import groups, made_by, map_of_ones, without

Dims = tuple[int, ...]


def f32(*dims: int) -> TensorType:
    return TensorType(dims, F32)


class DotSides:
    """A dot_general's dimension numbers, per side: `batch`, `contract` and `free` dims in order."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.values = list(op.operands)
        self.batch = [list(op.lhs_batching_dimensions), list(op.rhs_batching_dimensions)]
        self.contract = [list(op.lhs_contracting_dimensions), list(op.rhs_contracting_dimensions)]

    def free(self, side: int) -> list[int]:
        taken = {*self.batch[side], *self.contract[side]}
        return [d for d in range(self.values[side].rank) if d not in taken]

    def result_dims(self) -> tuple[Any, ...]:
        left, right = self.values
        return (
            *(left.dims[d] for d in self.batch[0]),
            *(left.dims[d] for d in self.free(0)),
            *(right.dims[d] for d in self.free(1)),
        )

    def swap(self) -> None:
        """Left becomes right."""
        self.values.reverse()
        self.batch.reverse()
        self.contract.reverse()

    def build(self, b: Rewriter) -> Value:
        """The dot_general with these numbers; other attributes and the element type stay."""
        attributes = {
            **self.op.attributes,
            "lhs_batching_dimensions": tuple(self.batch[0]),
            "rhs_batching_dimensions": tuple(self.batch[1]),
            "lhs_contracting_dimensions": tuple(self.contract[0]),
            "rhs_contracting_dimensions": tuple(self.contract[1]),
        }
        type = TensorType(self.result_dims(), self.op.type.element)
        return b.build("dot_general", self.values, attributes, (), (type,))[0]


def dot(
    b: Any, left: Value, right: Value, contract: Any, batch: Any = ((), ()), **attributes: Any
) -> Value:
    """A dot_general for examples."""
    return b(
        "dot_general", left, right, lhs_contracting_dimensions=tuple(contract[0]),
        rhs_contracting_dimensions=tuple(contract[1]), lhs_batching_dimensions=tuple(batch[0]),
        rhs_batching_dimensions=tuple(batch[1]), **attributes,
    )  # fmt: skip


def convolution(b: Any, x: Value, kernel: Value, **attributes: Any) -> Value:
    """A channels-first two-dimensional convolution for examples."""
    numbers: dict[str, Any] = {
        "input_batch_dimension": 0, "input_feature_dimension": 1,
        "input_spatial_dimensions": (2, 3), "kernel_output_feature_dimension": 0,
        "kernel_input_feature_dimension": 1, "kernel_spatial_dimensions": (2, 3),
        "output_batch_dimension": 0, "output_feature_dimension": 1,
        "output_spatial_dimensions": (2, 3), **attributes,
    }  # fmt: skip
    return b("convolution", x, kernel, **numbers)


# dot_general and transposes.


def _dot_of_transpose_examples() -> Iterator[Example]:
    yield example(
        "right",
        [f32(2, 3), f32(4, 3)],
        lambda b, x, y: dot(b, x, b.transpose(y, (1, 0)), ((1,), (0,))),
    )
    yield example(
        "left",
        [f32(3, 2), f32(3, 4)],
        lambda b, x, y: dot(b, b.transpose(x, (1, 0)), y, ((1,), (0,))),
    )
    yield example(
        "heads",
        [f32(1, 5, 2, 3), f32(1, 5, 2, 3)],
        lambda b, q, k: dot(
            b,
            b.transpose(q, (0, 2, 1, 3)),
            b.transpose(k, (0, 2, 3, 1)),
            ((3,), (2,)),
            ((0, 1), (0, 1)),
        ),
    )
    yield example(
        "free dimensions swap",
        [f32(2, 3, 4), f32(4, 5)],
        lambda b, x, y: dot(b, b.transpose(x, (1, 0, 2)), y, ((2,), (0,))),
        fires=False,
    )


@structural("dot-of-transpose", "dot_general", examples=_dot_of_transpose_examples,
            lowers="transposes", sums=True)  # fmt: skip
def dot_of_transpose(op: Op, b: Rewriter) -> Value | None:
    """dot(transpose x, y) -> dot(x, y) with other dimension numbers"""
    sides = DotSides(op)
    changed = False
    for side in (0, 1):
        inner = made_by(op.operands[side], "transpose")
        if inner is None:
            continue
        permutation = inner.permutation
        free = [permutation[d] for d in sides.free(side)]
        if free != sorted(free):
            continue
        sides.values[side] = inner.operands[0]
        sides.batch[side] = [permutation[d] for d in sides.batch[side]]
        sides.contract[side] = [permutation[d] for d in sides.contract[side]]
        changed = True
    return sides.build(b) if changed else None


def _transpose_of_dot_examples() -> Iterator[Example]:
    yield example(
        "swapped",
        [f32(3, 2), f32(3, 4)],
        lambda b, x, y: b.transpose(dot(b, x, y, ((0,), (0,))), (1, 0)),
    )
    yield example(
        "batched",
        [f32(5, 3, 2), f32(5, 3, 4)],
        lambda b, x, y: b.transpose(dot(b, x, y, ((1,), (1,)), ((0,), (0,))), (0, 2, 1)),
    )
    yield example(
        "operands lie well",
        [f32(2, 3), f32(3, 4)],
        lambda b, x, y: b.transpose(dot(b, x, y, ((1,), (0,))), (1, 0)),
        fires=False,
    )
    yield example(
        "weights on the right",
        [f32(3, 2)],
        lambda b, x: b.transpose(dot(b, x, b.constant(0.5, f32(3, 4)), ((0,), (0,))), (1, 0)),
        fires=False,
    )
    yield example(
        "another precision each", [f32(3, 2), f32(3, 4)],
        lambda b, x, y: b.transpose(
            dot(b, x, y, ((0,), (0,)), precision_config=("HIGHEST", "DEFAULT")), (1, 0)),
        fires=False,
    )  # fmt: skip
    yield example(
        "batch moves",
        [f32(5, 2, 3), f32(5, 3, 4)],
        lambda b, x, y: b.transpose(dot(b, x, y, ((2,), (1,)), ((0,), (0,))), (1, 0, 2)),
        fires=False,
    )


@structural("transpose-of-dot", "transpose", examples=_transpose_of_dot_examples,
            lowers="transposes", sums=True, single=True)  # fmt: skip
def transpose_of_dot(op: Op, b: Rewriter) -> Value | None:
    """transpose(dot(x, y)) -> dot(y, x) [free dimensions of the two sides swap as blocks]"""
    inner = made_by(op.operands[0], "dot_general")
    if inner is None or not b.single_use(op.operands[0]) or not _may_swap(inner):
        return None
    sides = DotSides(inner)
    batch, left = len(sides.batch[0]), len(sides.free(0))
    rank = op.type.rank
    wanted = (*range(batch), *range(batch + left, rank), *range(batch, batch + left))
    if op.permutation != wanted:
        return None
    before = _fit(sides)
    sides.swap()
    if b.is_static(sides.values[0]) or (not b.is_static(sides.values[1]) and _fit(sides) < before):
        return None
    return sides.build(b)


def _may_swap(op: Op) -> bool:
    """Whether nothing in the operation tells its two operands apart but their dimensions."""
    precision = op.attributes.get("precision_config") or ()
    return len(set(precision)) <= 1 and op.operands[0].element is op.operands[1].element


def _fit(sides: DotSides) -> int:
    """How many operands lie as a product reads them: rows of x along the sum, rows of y across."""
    left, right = sides.values
    return (left.rank - 1 in sides.contract[0]) + (right.rank - 1 not in sides.contract[1])


def _static_right_examples() -> Iterator[Example]:
    def weights(b: Any) -> Value:
        return b.constant([[1.0, 2.0, 0.5], [3.0, -1.0, 4.0]], f32(2, 3))

    yield example("matrix", [f32(3, 4)], lambda b, x: dot(b, weights(b), x, ((1,), (0,))))
    yield example("vector", [f32(3)], lambda b, x: dot(b, weights(b), x, ((1,), (0,))))
    yield example(
        "another precision each", [f32(3, 4)],
        lambda b, x: dot(b, weights(b), x, ((1,), (0,)), precision_config=("HIGHEST", "DEFAULT")),
        fires=False,
    )  # fmt: skip
    yield example(
        "right already",
        [f32(4, 2)],
        lambda b, x: dot(b, x, weights(b), ((1,), (0,))),
        fires=False,
    )


@structural("static-operand-right", "dot_general", examples=_static_right_examples,
            lowers="static left operands", sums=True)  # fmt: skip
def static_operand_right(op: Op, b: Rewriter) -> Value | None:
    """dot(w, x) -> transpose dot(x, w) [w is known when the bundle is built]"""
    left, right = op.operands
    if not b.is_static(left) or b.is_static(right) or not _may_swap(op):
        return None
    sides = DotSides(op)
    batch, first, second = len(sides.batch[0]), len(sides.free(0)), len(sides.free(1))
    sides.swap()
    after = batch + second
    order = (*range(batch), *range(after, after + first), *range(batch, after))
    return b.transpose(sides.build(b), order)


# dot_general and reshapes.


def _dot_of_reshape_examples() -> Iterator[Example]:
    yield example(
        "free merged",
        [f32(2, 3, 4), f32(4, 5)],
        lambda b, x, y: dot(b, b.reshape(x, (6, 4)), y, ((1,), (0,))),
    )
    yield example(
        "free merged right",
        [f32(5, 4), f32(2, 3, 4)],
        lambda b, x, y: dot(b, x, b.reshape(y, (6, 4)), ((1,), (1,))),
    )
    yield example(
        "ones",
        [f32(1, 3, 4, 1), f32(3, 4, 5)],
        lambda b, x, y: dot(b, b.reshape(x, (3, 4)), y, ((1,), (1,)), ((0,), (0,))),
    )
    yield example(
        "batch merged after a transpose",
        [f32(2, 5, 3, 4), f32(6, 7, 4)],
        lambda b, x, y: dot(
            b, b.reshape(b.transpose(x, (0, 2, 1, 3)), (6, 5, 4)), y, ((2,), (2,)), ((0,), (0,))
        ),
    )
    yield example(
        "contracted merged",
        [f32(2, 3, 4), f32(12, 5)],
        lambda b, x, y: dot(b, b.reshape(x, (2, 12)), y, ((1,), (0,))),
        fires=False,
    )


@structural("dot-of-reshape", "dot_general", examples=_dot_of_reshape_examples,
            lowers="height of reshapes", sums=True)  # fmt: skip
def dot_of_reshape(op: Op, b: Rewriter) -> Value | None:
    """dot(reshape x, y) -> reshape dot(x, y) [dimensions of one role are merged or split]"""
    for side in (0, 1):
        inner = made_by(op.operands[side], "reshape")
        if inner is not None:
            result = _without_reshape(op, side, inner, b)
            if result is not None:
                return result
    return None


def _without_reshape(op: Op, side: int, inner: Op, b: Rewriter) -> Value | None:
    source, target = inner.operands[0], inner.type
    if not (target.is_static and op.type.is_static) or target.size == 0:
        return None
    sides = DotSides(op)
    role = dict.fromkeys(sides.batch[side], "batch")
    role |= dict.fromkeys(sides.contract[side], "contract")
    new: dict[int, Dims] = {}  # what became of a batching or contracting dimension
    for before, after in groups(source.dims, target.dims):
        roles = {role.get(d, "free") for d in after}
        if roles == {"free"}:
            continue
        old, fresh = [target.dims[d] for d in after], [source.dims[d] for d in before]
        places = map_of_ones(old, fresh)
        if places is None:
            large = [d for d in after if target.dims[d] != 1]
            if roles != {"batch"} or len(large) != 1 or len(after) != 1:
                return None
            if made_by(source, "transpose") is None:
                return None
            new[after[0]] = before
            continue
        for d, place in zip(after, places, strict=True):
            if d in role:
                if place is None:
                    return None
                new[d] = (before[place],)
    old_dims = sides.result_dims()
    other = 1 - side
    splits = {  # dimensions of the other operand that must be split alike
        pair: [source.dims[d] for d in new[own]]
        for own, pair in zip(sides.batch[side], sides.batch[other], strict=True)
        if len(new[own]) > 1
    }
    sides.values[side] = source
    sides.contract[side] = [d for own in sides.contract[side] for d in new[own]]
    sides.batch[side] = [d for own in sides.batch[side] for d in new[own]]
    if splits:
        _split(sides, other, splits, b)
    return b.reshape(sides.build(b), old_dims)


def _split(sides: DotSides, side: int, splits: dict[int, list[int]], b: Rewriter) -> None:
    """Reshape one operand so that some of its dimensions fall into several."""
    value = sides.values[side]
    dims: list[int] = []
    places: dict[int, list[int]] = {}
    for d, size in enumerate(value.dims):
        parts = splits.get(d, [size])
        places[d] = list(range(len(dims), len(dims) + len(parts)))
        dims.extend(parts)
    sides.values[side] = b.reshape(value, dims)
    sides.batch[side] = [place for d in sides.batch[side] for place in places[d]]
    sides.contract[side] = [place for d in sides.contract[side] for place in places[d]]


def _dot_ones_examples() -> Iterator[Example]:
    yield example(
        "contracted",
        [f32(3, 1, 4), f32(4, 1, 5)],
        lambda b, x, y: dot(b, x, y, ((1, 2), (1, 0))),
    )
    yield example(
        "ones alone", [f32(3, 1, 1), f32(1, 1, 5)], lambda b, x, y: dot(b, x, y, ((1, 2), (1, 0)))
    )
    yield example(
        "outer product",
        [f32(3, 1), f32(1, 5)],
        lambda b, x, y: dot(b, x, y, ((1,), (0,))),
        fires=False,
    )


@structural("dot-sum-of-one", "dot_general", examples=_dot_ones_examples,
            lowers="contracting dimensions", sums=True)  # fmt: skip
def dot_sum_of_one(op: Op, b: Rewriter) -> Value | None:
    """dot over contracting dimensions of size one too -> reshape(dot) with them free"""
    sides = DotSides(op)
    dims = sides.values[0].dims
    ones = [i for i, d in enumerate(sides.contract[0]) if dims[d] == 1]
    if len(ones) == len(sides.contract[0]):
        ones = ones[1:]  # at least one dimension is summed over
    if not ones or not op.type.is_static:
        return None
    for side in (0, 1):
        sides.contract[side] = list(without(sides.contract[side], ones))
    return b.reshape(sides.build(b), op.type.dims)


def _outer_examples() -> Iterator[Example]:
    yield example(
        "contracted one", [f32(3, 1), f32(1, 5)], lambda b, x, y: dot(b, x, y, ((1,), (0,)))
    )
    yield example("nothing contracted", [f32(3), f32(5)], lambda b, x, y: dot(b, x, y, ((), ())))
    yield example(
        "batched",
        [f32(2, 3), f32(2, 5)],
        lambda b, x, y: dot(b, x, y, ((), ()), ((0,), (0,))),
    )
    yield example(
        "a sum", [f32(3, 2), f32(2, 5)], lambda b, x, y: dot(b, x, y, ((1,), (0,))), fires=False
    )


@structural("dot-without-sum", "dot_general", licence=IGNORES_ZERO_SIGN, examples=_outer_examples,
            lowers="contractions", sums=True)  # fmt: skip
def dot_without_sum(op: Op, b: Rewriter) -> Value | None:
    """dot(x, y) -> broadcast x * broadcast y [one product per element]"""
    sides = DotSides(op)
    if any(sides.values[0].dims[d] != 1 for d in sides.contract[0]) or not op.type.is_static:
        return None
    if any(value.element is not op.type.element for value in sides.values):
        return None
    factors = []
    count = len(sides.batch[0])
    for side in (0, 1):
        value, free = sides.values[side], sides.free(side)
        order = [*sides.batch[side], *free, *sides.contract[side]]
        moved = b.transpose(value, order)
        moved = b.reshape(moved, [value.dims[d] for d in (*sides.batch[side], *free)])
        first = count if side == 0 else count + len(sides.free(0))
        mapped = (*range(count), *range(first, first + len(free)))
        factors.append(b.broadcast(moved, op.type.dims, mapped))
    return b("multiply", *factors)


def _dot_of_broadcast_examples() -> Iterator[Example]:
    yield example(
        "new rows",
        [f32(4), f32(4, 5)],
        lambda b, x, y: dot(b, b.broadcast(x, (3, 4), (1,)), y, ((1,), (0,))),
    )
    yield example(
        "right",
        [f32(3, 4), f32(4, 2)],
        lambda b, x, y: dot(b, x, b.broadcast(y, (4, 7, 2), (0, 2)), ((1,), (0,))),
    )
    yield example(
        "rows turned",
        [f32(3, 2, 4), f32(4, 5)],
        lambda b, x, y: dot(b, b.broadcast(x, (2, 3, 6, 4), (1, 0, 3)), y, ((3,), (0,))),
        fires=False,
    )
    yield example(
        "batched",
        [f32(4, 3), f32(2, 3, 5)],
        lambda b, x, y: dot(b, b.broadcast(x, (2, 4, 3), (1, 2)), y, ((2,), (1,)), ((0,), (0,))),
        fires=False,
    )


@structural("dot-of-broadcast", "dot_general", examples=_dot_of_broadcast_examples,
            lowers="computed elements", sums=True)  # fmt: skip
def dot_of_broadcast(op: Op, b: Rewriter) -> Value | None:
    """dot(broadcast x, y) -> broadcast dot(x, y) [only free dimensions are new]"""
    for side in (0, 1):
        inner = made_by(op.operands[side], "broadcast_in_dim")
        if inner is None or not inner.type.is_static:
            continue
        sides = DotSides(op)
        mapped, source = inner.broadcast_dimensions, inner.operands[0]
        kept = {d for i, d in enumerate(mapped) if source.dims[i] == inner.type.dims[d]}
        free = sides.free(side)
        if not all(d in kept for d in range(inner.type.rank) if d not in free):
            continue
        if list(mapped) != sorted(mapped) or len(kept) != len(mapped):
            continue
        place = {d: i for i, d in enumerate(mapped)}
        sides.values[side] = source
        sides.batch[side] = [place[d] for d in sides.batch[side]]
        sides.contract[side] = [place[d] for d in sides.contract[side]]
        small = sides.build(b)
        first = len(sides.batch[0]) + (len(DotSides(op).free(0)) if side == 1 else 0)
        stay = [first + i for i, d in enumerate(free) if d in kept]
        positions = [*range(first), *stay, *range(first + len(free), op.type.rank)]
        return b.broadcast(small, op.type.dims, positions)
    return None


RULES: tuple[Rule, ...] = (
    dot_of_transpose,
    transpose_of_dot,
    static_operand_right,
    dot_of_reshape,
    dot_sum_of_one,
    dot_without_sum,
    dot_of_broadcast,
)
