"""sort: several arrays at once, any comparator, stable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cmp_to_key
from typing import Any

import numpy as np

from ..access import Access, IterationKind, Space, identity
from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, variadic
from ..types import F32, I1, I32, TensorType, Type, unsharded
from . import bodies
from .clauses import same_dims
from .examples import f32, i32, scalar_body


class Sort(OpDefinition, name="sort"):
    """results = inputs reordered together along `dimension` so that comparator(a, b) means a first.

    The order is stable whether or not `is_stable` asks for it.
    """

    pattern = "opaque"
    regions = ("comparator",)
    inputs = variadic()
    dimension = attribute(int, -1)
    is_stable = attribute(bool, False)
    C1 = constraint("0 < size(inputs)", lambda o: len(o.inputs) > 0)
    C3 = constraint(
        "inputs have the same dimensions",
        lambda o: all(same_dims(v.dims, o.inputs[0].dims) for v in o.inputs),
    )
    C4 = constraint(
        "-rank <= dimension < rank(inputs[0])",
        lambda o: -o.inputs[0].rank <= o.dimension < o.inputs[0].rank,
    )
    C5 = constraint(
        "comparator takes two scalars per input and returns an i1 scalar",
        lambda o: (
            len(o.regions[0].arguments) == 2 * len(o.inputs)
            and len(o.regions[0].results) == 1
            and unsharded(o.regions[0].result_types[0]) is TensorType((), I1)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.type for v in o.inputs]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        if not arrays[0].size:
            return arrays
        rows = [np.moveaxis(x, o.dimension, -1) for x in arrays]
        shape = rows[0].shape
        flat = [np.ascontiguousarray(x).reshape(-1, shape[-1]) for x in rows]
        region, module = o.regions[0], context.get("module")
        if bodies.is_liftable(region, module.functions if module else bodies.NO_FUNCTIONS):
            order = _merge_order(flat, bodies.body(region, context))
        else:
            order = _row_orders(flat, lambda values: context["run"](region, values)[0])
        sorted_rows = [np.take_along_axis(x, order, 1).reshape(shape) for x in flat]
        return tuple(np.moveaxis(x, -1, o.dimension) for x in sorted_rows)

    def access(self, o: Op) -> Access | None:
        space = Space(o.inputs[0].dims)
        indices = list(identity(o.inputs[0].rank))
        indices[o.dimension] = space.inner(o.inputs[0].dims[o.dimension], IterationKind.GATHER)
        return space.access(*([indices] * len(o.inputs)))

    def shard(self, o: Op) -> Factors | None:
        dims = o.inputs[0].dims
        alone = all(d == o.dimension or size == 1 for d, size in enumerate(dims))
        rule = FactorBuilder(o)
        for d, size in enumerate(dims):
            sorted_ = Factor(size, FactorKind.REPLICATE, blocked=alone)
            rule.everywhere(d, sorted_ if d == o.dimension else Factor(size))
        return rule.build()

    def flops(self, o: Op) -> float:
        length = o.inputs[0].dims[o.dimension]
        return float(o.inputs[0].tensor.size) * max(1, int(length).bit_length())

    def cases(self) -> Iterator[Case]:
        def less(b: Any, x: Any, y: Any) -> Any:
            return [b("compare", x, y, comparison_direction="LT", compare_type="TOTALORDER")]

        def greater_key(b: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
            return [b.compare("GT", i, j)]

        hostile = f32([[3, np.nan, -0.0, 0.0, -np.inf], [1, 1, -np.nan, np.inf, -2]])
        yield Case(
            "sort_total_order", (hostile,), {"dimension": 1}, regions=scalar_body(less, F32, F32)
        )
        yield Case(
            "sort_columns", (hostile,), {"dimension": 0}, regions=scalar_body(less, F32, F32)
        )
        keys = i32([2, 1, 2, 3, 1, 2, 1])
        yield Case(
            "sort_by_key", (np.arange(7, dtype=np.float32), keys), {"dimension": 0},
            regions=scalar_body(greater_key, F32, F32, I32, I32),
        )  # fmt: skip


def _merge_order(rows: Sequence[Any], before: bodies.Body) -> Any:
    """Stable order of each row: runs of 1, 2, 4, ... merged by binary search, all at once.

    An element's place in a merged run is its place in its own run plus how many elements of the
    other run stand before it; a binary search with the comparator counts those.
    """
    count, length = rows[0].shape
    order = np.broadcast_to(np.arange(length), (count, length)).copy()
    line = np.arange(count)[:, None]
    place = np.arange(length)
    size = 1
    while size < length:
        current = [x[line, order] for x in rows]
        start = place // (2 * size) * (2 * size)
        in_left = place < start + size
        other = np.where(in_left, start + size, start)
        other_end = np.minimum(other + size, length)
        low = np.broadcast_to(np.minimum(other, length), (count, length)).copy()
        high = np.broadcast_to(np.maximum(other_end, low), (count, length)).copy()
        while True:
            open_ = low < high
            if not open_.any():
                break
            middle = (low + high) // 2
            at = np.minimum(middle, length - 1)
            theirs = [x[line, at] for x in current]
            # another run's element stands first: strictly before for the left run's elements,
            # not after for the right run's, which keeps equal elements in order
            first = _interleave(theirs, current)
            theirs_before = before(*first)[0]
            ours_before = before(*_interleave(current, theirs))[0]
            smaller = np.where(in_left, theirs_before, ~ours_before)
            low = np.where(open_ & smaller, middle + 1, low)
            high = np.where(open_ & ~smaller, middle, high)
        target = np.where(in_left, place, place - size) + (low - other)
        target = np.where(other >= length, place, target)
        merged = np.empty_like(order)
        merged[line, target] = order
        order = merged
        size *= 2
    return order


def _interleave(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """The comparator's arguments: left 0, right 0, left 1, right 1, ..."""
    return [x for pair in zip(left, right, strict=True) for x in pair]


def _row_orders(rows: Sequence[Any], before: Callable[[Sequence[Any]], Any]) -> Any:
    """The same for a comparator that must be run on one pair at a time."""
    orders = []
    for number in range(rows[0].shape[0]):
        line = [x[number] for x in rows]

        def compared(i: int, j: int, line: Sequence[Any] = line) -> int:
            pair = _interleave([x[i : i + 1].reshape(()) for x in line],
                               [x[j : j + 1].reshape(()) for x in line])  # fmt: skip
            if bool(before(pair)):
                return -1
            back = _interleave(pair[1::2], pair[0::2])
            return 1 if bool(before(back)) else 0

        orders.append(sorted(range(len(line[0])), key=cmp_to_key(compared)))
    return np.asarray(orders, np.int64).reshape(rows[0].shape)


ROOMS = (Sort(),)
