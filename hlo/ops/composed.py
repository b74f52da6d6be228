"""chlo operations that are made of several others: top_k, scan, ragged_dot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, IterationKind, Space, identity
from ..factors import Factor, FactorBuilder, FactorKind, Factors, alike
from ..graph import Op
from ..room import Case, attribute, constraint, operand, variadic
from ..room import operand as second
from ..types import F32, I32, TensorType, Type
from .clauses import at_most, result_element, same_dim, same_dims
from .decomposed import Decomposed, Term, inlined, where
from .examples import counting, f32, i32, scalar_body


class TopK(Decomposed, name="chlo.top_k"):
    """values, indices = the k largest elements of each row, largest first, and their positions.

    A NaN is larger than any number; of equal elements the first comes first.
    """

    pattern = "opaque"
    operand = operand()
    k = attribute(int)
    C1 = constraint(
        "rank(operand) >= 1, and its elements are not complex",
        lambda o: o.operand.rank >= 1 and not o.operand.element.is_complex,
    )
    C2 = constraint(
        "0 <= k <= last dimension of operand",
        lambda o: o.k >= 0 and (o.operand.rank < 1 or at_most(o.k, o.operand.dims[-1])),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = (*o.operand.dims[:-1], o.k)
        return [o.operand.tensor.with_dims(dims), TensorType(dims, I32)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        (x,) = values
        last = x.rank - 1
        numbers = b("iota", type=x.tensor.with_element(I32), iota_dimension=last)
        scalars = [TensorType((), e) for e in (x.element, x.element, I32, I32)]
        kind = "TOTALORDER" if x.element.is_float else "NOTYPE"

        def larger(b: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
            return [b("compare", x, y, comparison_direction="GT", compare_type=kind)]

        order = b.op(
            "sort", [x, numbers], {"dimension": last, "is_stable": True},
            [b.nested(scalars, larger)],
        )  # fmt: skip
        cut = {
            "start_indices": (0,) * x.rank,
            "limit_indices": (*x.dims[:-1], o.k),
            "strides": (1,) * x.rank,
        }
        return [b("slice", result, **cut) for result in order.results]

    def access(self, o: Op) -> Access | None:
        space = Space(o.results[0].dims)
        rows = identity(o.operand.rank - 1)
        return space.access((*rows, space.inner(o.operand.dims[-1], IterationKind.GATHER)))

    def shard(self, o: Op) -> Factors | None:
        last = o.operand.rank - 1
        rule = FactorBuilder(o).batch(last)
        # The results' rows are others': the operand's can be cut without them.
        rule.add(Factor(o.operand.dims[last], FactorKind.REPLICATE, blocked=True), {0: last})
        numbers = range(len(o.results))
        rule.add(Factor(o.k, FactorKind.REPLICATE, blocked=True), {}, alike(numbers, last))
        return rule.build()

    def cases(self) -> Iterator[Case]:
        x = f32([[3, 1, np.nan, 3, -0.0, 0.0], [1, 2, 3, 4, 5, -np.inf]])
        yield Case("top_k_f32", (x,), {"k": 3})
        yield Case("top_k_i32", (i32([5, -1, 5, 7]),), {"k": 2})
        yield Case("top_k_none", (i32([5, -1]),), {"k": 0})


class Scan(Decomposed, name="chlo.scan"):
    """outputs, carries = body over the slices along `dimension`, each with the carries before it.

    `inputs_and_inits` are N inputs, then M initial carries. body takes N slices (without the
    dimension) and M carries; it returns slices of the outputs, then the M new carries.
    """

    pattern = "control"
    loops = True
    opaque = "its results have different dims"
    uncut = "it becomes a loop, whose values pass along edges"
    isolated = True
    regions = ("body",)
    inputs_and_inits = variadic()
    dimension = attribute(int)
    is_reverse = attribute(bool, False)
    is_associative = attribute(bool, False)
    C1 = constraint(
        "body takes one slice per input and one carry per init, returns the carries last",
        lambda o: (
            len(o.regions[0].arguments) == len(o.operands)
            and 0 < _input_count(o) < len(o.operands)
            and o.regions[0].result_types[len(o.regions[0].results) - _carry_count(o) :]
            == tuple(v.type for v in o.operands[_input_count(o) :])
        ),
    )
    C2 = constraint(
        "0 <= dimension < rank(inputs), and inputs are equally long along it",
        lambda o: all(
            0 <= o.dimension < v.rank
            and same_dim(v.dims[o.dimension], o.operands[0].dims[o.dimension])
            for v in o.operands[: _input_count(o)]
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        length, results = o.operands[0].dims[o.dimension], o.regions[0].results
        outputs = results[: len(results) - _carry_count(o)]
        stacked = [v.tensor.with_dims(_inserted(v.dims, o.dimension, length)) for v in outputs]
        return [*stacked, *(v.type for v in o.operands[_input_count(o) :])]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        body, axis = o.regions[0], o.dimension
        inputs, inits = values[: _input_count(o)], values[_input_count(o) :]
        length = inputs[0].dims[axis]
        stacks = [b.constant(0, kind) for kind in self.infer(o)[: -len(inits)]]
        number = TensorType((), I32)
        start = [b.constant(0, number), *stacks, *inits]
        types = [value.type for value in start]

        def count(b: Any) -> Any:
            if isinstance(length, int):
                return b.constant(length, number)
            return b("get_dimension_size", inputs[0], dimension=axis)

        def more(b: Any, i: Any, *rest: Any) -> Any:
            return [b.compare("LT", i, count(b))]

        def step(b: Any, i: Any, *rest: Any) -> Any:
            filled, carries = rest[: len(stacks)], rest[len(stacks) :]
            at = i
            if o.is_reverse and isinstance(length, int):
                at = b("subtract", b.constant(length - 1, number), i)
            elif o.is_reverse:
                at = b("subtract", b("subtract", count(b), b.constant(1, number)), i)
            slices = [_taken(b, x, axis, at) for x in inputs]
            results = inlined(b, body, [*slices, *carries])
            pairs = zip(filled, results, strict=False)
            written = [_written(b, stack, piece, axis, at) for stack, piece in pairs]
            following = b("add", i, b.constant(1, number))
            return [following, *written, *results[len(stacks) :]]

        regions = [b.nested(types, more), b.nested(types, step)]
        return list(b.op("while", start, {}, regions).results[1:])

    def cases(self) -> Iterator[Case]:
        sums = scalar_body(lambda b, x, c: [b("add", x, c)] * 2, F32, F32)
        line = (f32([1, 2, 3, 4]), f32(10))
        yield Case("scan_sum", line, {"dimension": 0}, regions=sums)
        backwards = {"dimension": 0, "is_reverse": True}
        yield Case("scan_sum_backwards", line, backwards, regions=sums)


def _input_count(o: Op) -> int:
    """Inputs have one dimension more than the body's argument, carries have its type."""
    pairs = zip(o.operands, o.regions[0].arguments, strict=False)
    return sum(value.rank == argument.tensor.rank + 1 for value, argument in pairs)


def _carry_count(o: Op) -> int:
    return len(o.operands) - _input_count(o)


def _inserted(dims: Sequence[Any], axis: int, size: Any) -> tuple[Any, ...]:
    return (*dims[:axis], size, *dims[axis:])


def _starts(b: Any, rank: int, axis: int, at: Any) -> list[Any]:
    zero = b.constant(0, at.tensor)
    return [at if d == axis else zero for d in range(rank)]


def _taken(b: Any, x: Any, axis: int, at: Any) -> Any:
    """x[..., at, ...] without that dimension."""
    sizes = tuple(1 if d == axis else size for d, size in enumerate(x.dims))
    part = b("dynamic_slice", x, *_starts(b, x.rank, axis, at), slice_sizes=sizes)
    return b.reshape(part, (*x.dims[:axis], *x.dims[axis + 1 :]))


def _written(b: Any, stack: Any, piece: Any, axis: int, at: Any) -> Any:
    """stack with piece at position `at` of the dimension."""
    part = b.reshape(piece, _inserted(piece.dims, axis, 1))
    return b("dynamic_update_slice", stack, part, *_starts(b, stack.rank, axis, at))


class RaggedDot(Decomposed, name="chlo.ragged_dot"):
    """result = dot_general, with another part of rhs (or of the sum) per group of lhs rows.

    group_sizes[g] consecutive positions of lhs's ragged dimension make group g. A free ragged
    dimension meets rhs[g]; a contracted one gives one result per group, in front; a batching one
    needs no groups. Positions after the last group count as zero. Where group_sizes has further
    dimensions, in front, it has a row of sizes for each position in those dimensions of lhs that
    come before the ragged one: batching ones, then those of its kind.
    """

    pattern = "opaque"
    opaque = "where the groups begin is an operand"
    lhs = operand()
    rhs = second()
    group_sizes = second()
    lhs_batching_dimensions = attribute(tuple, ())
    rhs_batching_dimensions = attribute(tuple, ())
    lhs_contracting_dimensions = attribute(tuple, ())
    rhs_contracting_dimensions = attribute(tuple, ())
    lhs_ragged_dimensions = attribute(tuple)
    rhs_group_dimensions = attribute(tuple, ())
    precision_config = attribute(tuple, ())
    C1 = constraint(
        "there is one ragged dimension of lhs",
        lambda o: (
            len(o.lhs_ragged_dimensions) == 1 and 0 <= o.lhs_ragged_dimensions[0] < o.lhs.rank
        ),
    )
    C2 = constraint(
        "rhs has a group dimension just where lhs's ragged dimension is free",
        lambda o: len(o.rhs_group_dimensions) == (_ragged_kind(o) == "free"),
    )
    C3 = constraint(
        "group_sizes has integers, as many as rhs's group dimension is long, in one row or in one "
        "for each position before the ragged dimension",
        lambda o: (
            o.group_sizes.element.is_integer
            and o.group_sizes.rank >= 1
            and same_dims([o.lhs.dims[d] for d in _rows_of(o)], o.group_sizes.dims[:-1])
            and all(same_dim(o.rhs.dims[d], o.group_sizes.dims[-1]) for d in o.rhs_group_dimensions)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        used = {*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions}
        left = [size for d, size in enumerate(o.lhs.dims) if d not in used]
        used = {
            *o.rhs_batching_dimensions, *o.rhs_contracting_dimensions, *o.rhs_group_dimensions
        }  # fmt: skip
        right = [size for d, size in enumerate(o.rhs.dims) if d not in used]
        batch = [o.lhs.dims[d] for d in o.lhs_batching_dimensions]
        groups = o.group_sizes.dims[-1:] if _ragged_kind(o) == "contracting" else ()
        dims = (*groups, *batch, *left, *right)
        return [TensorType(dims, result_element(o, o.lhs.element))]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        lhs, rhs, sizes = values
        kind, axes = _ragged_kind(o), (*_rows_of(o), o.lhs_ragged_dimensions[0])
        place, groups = sizes.rank - 1, sizes.dims[-1]
        if kind == "batching":
            zero = b.constant(0, TensorType((), sizes.element))
            ends = b.reduce("add", sizes, zero, (place,))
            whole = lhs.tensor.with_element(sizes.element)
            numbers = Term(b, b("iota", type=whole, iota_dimension=axes[-1]))
            counted = numbers < Term(b, b.broadcast(ends, whole.dims, axes[:-1]))
            return [_product(b, o, where(counted, Term(b, lhs), 0).value, rhs)]
        rows = sizes.tensor.with_dims(sizes.dims[:-1])

        def inside(b: Any, value: Any, axes: Sequence[int], start: Any, end: Any) -> Term:
            """Where a tensor, whose dimensions `axes` are the rows and then the ragged one,
            belongs to the group between `start` and `end`."""
            kind = value.tensor.with_element(sizes.element)
            numbers = Term(b, b("iota", type=kind, iota_dimension=axes[-1]))
            low, high = (Term(b, b.broadcast(v, kind.dims, axes[:-1])) for v in (start, end))
            return (numbers >= low) & (numbers < high)

        def with_group(b: Any, total: Any, group: Any, start: Any) -> tuple[Any, Any]:
            """The result so far with that of the group that begins at `start`, and its end."""
            end = b("add", start, _taken(b, sizes, place, group))
            if kind == "free":
                other = _taken(b, rhs, o.rhs_group_dimensions[0], group)
                product = Term(b, _product(b, o, lhs, other))
                mine = inside(b, total, _result_axes(o, axes), start, end)
                return where(mine, product, Term(b, total)).value, end
            parts = [
                where(inside(b, value, on, start, end), Term(b, value), 0).value
                for value, on in ((lhs, axes), (rhs, _partners(o, axes)))
            ]
            return _written(b, total, _product(b, o, *parts), 0, group), end

        start, total = b.constant(0, rows), b.constant(0, o.type)
        number = TensorType((), I32)
        if not isinstance(groups, int):
            return [_over_groups(b, sizes, start, total, with_group)]
        for group in range(groups):
            total, start = with_group(b, total, b.constant(group, number), start)
        return [total]

    def shard(self, o: Op) -> Factors | None:
        return self._factors(o, divided=False)

    def divide(self, o: Op) -> Factors | None:
        """Who has a part of the rows, or of the groups, finds what is in it."""
        return self._factors(o, divided=o.group_sizes.rank == 1)

    def _factors(self, o: Op, divided: bool) -> Factors:
        rule = FactorBuilder(o)
        place = int(_ragged_kind(o) == "contracting")  # behind the groups
        if divided and place:
            rule.add(Factor(o.type.dims[0], placed=True), {}, {0: 0})

        def factor(left: int, kind: FactorKind = FactorKind.PASS) -> Factor:
            ragged = left in o.lhs_ragged_dimensions
            if ragged and not divided:
                kind = FactorKind.REPLICATE
            return Factor(o.lhs.dims[left], kind, placed=ragged and divided)

        rows = _rows_of(o)

        def sizes(left: int) -> dict[int, int]:
            return {2: rows.index(left)} if left in rows else {}

        for left, right in zip(o.lhs_batching_dimensions, o.rhs_batching_dimensions, strict=True):
            rule.add(factor(left), {0: left, 1: right, **sizes(left)}, {0: place})
            place += 1
        inner = list(zip(o.lhs_contracting_dimensions, o.rhs_contracting_dimensions, strict=True))
        used = {*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions}
        for d in (d for d in range(o.lhs.rank) if d not in used):
            rule.add(factor(d), {0: d, **sizes(d)}, {0: place})
            place += 1
        used = {
            *o.rhs_batching_dimensions, *o.rhs_contracting_dimensions, *o.rhs_group_dimensions
        }  # fmt: skip
        for d in (d for d in range(o.rhs.rank) if d not in used):
            rule.add(Factor(o.rhs.dims[d]), {1: d}, {0: place})
            place += 1
        for left, right in inner:
            kind = FactorKind.REDUCTION
            rule.add(factor(left, kind), {0: left, 1: right, **sizes(left)})
        for d in o.rhs_group_dimensions if divided else ():
            rule.add(Factor(o.rhs.dims[d], FactorKind.REDUCTION, placed=True), {1: d})
        return rule.build()

    def flops(self, o: Op) -> float:
        depth = math.prod(o.lhs.dims[d] for d in o.lhs_contracting_dimensions)
        return 2.0 * o.type.size * depth

    def cases(self) -> Iterator[Case]:
        rows, sizes = counting(5, 3), i32([2, 3])
        facts = {
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
            "lhs_ragged_dimensions": (0,), "rhs_group_dimensions": (0,),
        }  # fmt: skip
        yield Case("ragged_dot_free", (rows, counting(2, 3, 4), sizes), facts)
        facts = {
            "lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,),
            "lhs_ragged_dimensions": (0,),
        }  # fmt: skip
        yield Case("ragged_dot_contracting", (rows, counting(5, 2), sizes), facts)
        facts = {
            "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,),
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
            "lhs_ragged_dimensions": (0,),
        }  # fmt: skip
        yield Case("ragged_dot_batching", (rows, counting(5, 3), i32([1, 3])), facts)
        facts = {
            "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (1,),
            "lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (2,),
            "lhs_ragged_dimensions": (1,), "rhs_group_dimensions": (0,),
        }  # fmt: skip
        of_rows = (counting(2, 5, 3), counting(2, 2, 3, 4), i32([[2, 3], [4, 0]]))
        yield Case("ragged_dot_groups_of_rows", of_rows, facts)


def _ragged_kind(o: Op) -> str:
    """Which of lhs's dimensions is ragged: a batching, a contracting or a free one."""
    if not o.lhs_ragged_dimensions:
        return ""
    ragged = o.lhs_ragged_dimensions[0]
    if ragged in o.lhs_batching_dimensions:
        return "batching"
    return "contracting" if ragged in o.lhs_contracting_dimensions else "free"


def _rows_of(o: Op) -> tuple[int, ...]:
    """The dimensions of lhs for whose positions group_sizes has rows of their own."""
    if o.group_sizes.rank == 1 or not o.lhs_ragged_dimensions:
        return ()
    ragged, kind = o.lhs_ragged_dimensions[0], _ragged_kind(o)
    batch = tuple(o.lhs_batching_dimensions)
    if kind == "batching":
        return batch[: batch.index(ragged)]
    alike = tuple(o.lhs_contracting_dimensions)
    if kind == "free":
        alike = tuple(d for d in range(o.lhs.rank) if d not in (*batch, *alike))
    return (*batch, *alike[: alike.index(ragged)])


def _partners(o: Op, axes: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of rhs that batching and contracted ones of lhs meet."""
    left = (*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions)
    right = (*o.rhs_batching_dimensions, *o.rhs_contracting_dimensions)
    return tuple(right[left.index(d)] for d in axes)


def _result_axes(o: Op, axes: Sequence[int]) -> tuple[int, ...]:
    """The result's dimensions that come from batching and free ones of lhs."""
    batch, used = tuple(o.lhs_batching_dimensions), tuple(o.lhs_contracting_dimensions)
    order = (*batch, *(d for d in range(o.lhs.rank) if d not in (*batch, *used)))
    return tuple(map(order.index, axes))


def _over_groups(b: Any, sizes: Any, start: Any, total: Any, with_group: Any) -> Any:
    """The result of as many groups as a call has."""
    begin = [b.constant(0, TensorType((), I32)), start, total]
    types = [value.type for value in begin]

    def more(b: Any, group: Any, start: Any, total: Any) -> Any:
        count = b("get_dimension_size", sizes, dimension=sizes.rank - 1)
        return [b.compare("LT", group, count)]

    def step(b: Any, group: Any, start: Any, total: Any) -> Any:
        total, end = with_group(b, total, group, start)
        return [b("add", group, b.constant(1, group.tensor)), end, total]

    regions = [b.nested(types, more), b.nested(types, step)]
    return b.op("while", begin, {}, regions).results[2]


def _product(b: Any, o: Op, lhs: Any, rhs: Any) -> Any:
    """dot_general, rhs's dimensions renumbered without its group dimension."""

    def renumbered(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(d - sum(group < d for group in o.rhs_group_dimensions) for d in dims)

    facts = {
        "lhs_batching_dimensions": o.lhs_batching_dimensions,
        "rhs_batching_dimensions": renumbered(o.rhs_batching_dimensions),
        "lhs_contracting_dimensions": o.lhs_contracting_dimensions,
        "rhs_contracting_dimensions": renumbered(o.rhs_contracting_dimensions),
        "precision_config": o.precision_config,
    }
    inferred = b.op("dot_general", [lhs, rhs], facts).result
    wanted = inferred.tensor.with_element(o.type.element)
    if wanted is inferred.type:
        return inferred
    return b.op("dot_general", [lhs, rhs], facts, (), [wanted]).result


ROOMS = (TopK(), Scan(), RaggedDot())
