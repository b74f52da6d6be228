"""chlo operations that are made of several others: top_k, scan, ragged_dot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Kind, Space, identity
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
        from ..build import build_region  # build imports the table of rooms

        (x,) = values
        last = x.rank - 1
        numbers = b("iota", type=x.tensor.with_element(I32), iota_dimension=last)
        scalars = [TensorType((), e) for e in (x.element, x.element, I32, I32)]
        kind = "TOTALORDER" if x.element.is_float else "NOTYPE"

        def larger(b: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
            return [b("compare", x, y, comparison_direction="GT", compare_type=kind)]

        order = b.op(
            "sort", [x, numbers], {"dimension": last, "is_stable": True},
            [build_region(scalars, larger)],
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
        return space.access((*rows, space.inner(o.operand.dims[-1], Kind.GATHER)))

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
        from ..build import build_region  # build imports the table of rooms

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

        regions = [build_region(types, more), build_region(types, step)]
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
    needs no groups. Positions after the last group count as zero.
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
        "group_sizes is a vector of integers, as long as rhs's group dimension",
        lambda o: (
            o.group_sizes.element.is_integer
            and o.group_sizes.rank == 1
            and same_dims(
                [o.rhs.dims[d] for d in o.rhs_group_dimensions],
                o.group_sizes.dims[: len(o.rhs_group_dimensions)],
            )
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
        groups = o.group_sizes.dims if _ragged_kind(o) == "contracting" else ()
        dims = (*groups, *batch, *left, *right)
        return [TensorType(dims, result_element(o, o.lhs.element))]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        lhs, rhs, sizes = values
        if not sizes.tensor.is_static:
            return None
        kind = _ragged_kind(o)
        masks = _group_masks(b, lhs, sizes, o.lhs_ragged_dimensions[0])
        if kind == "batching":
            inside = masks[0]
            for mask in masks[1:]:
                inside = inside | mask
            masks = [inside]
        products = []
        for group, mask in enumerate(masks):
            part = where(mask, Term(b, lhs), 0).value
            other = _group(b, rhs, o.rhs_group_dimensions[0], group) if kind == "free" else rhs
            products.append(_product(b, o, part, other))
        if kind == "contracting":
            stacked = [b.reshape(p, (1, *p.dims)) for p in products]
            return [b("concatenate", *stacked, dimension=0)]
        total = products[0]
        for product in products[1:]:
            total = b("add", total, product)
        return [total]

    def shard(self, o: Op) -> Factors | None:
        return self._factors(o, divided=False)

    def divide(self, o: Op) -> Factors | None:
        """Who has a part of the rows, or of the groups, finds what is in it."""
        return self._factors(o, divided=True)

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

        for left, right in zip(o.lhs_batching_dimensions, o.rhs_batching_dimensions, strict=True):
            rule.add(factor(left), {0: left, 1: right}, {0: place})
            place += 1
        inner = list(zip(o.lhs_contracting_dimensions, o.rhs_contracting_dimensions, strict=True))
        used = {*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions}
        for d in (d for d in range(o.lhs.rank) if d not in used):
            rule.add(factor(d), {0: d}, {0: place})
            place += 1
        used = {
            *o.rhs_batching_dimensions, *o.rhs_contracting_dimensions, *o.rhs_group_dimensions
        }  # fmt: skip
        for d in (d for d in range(o.rhs.rank) if d not in used):
            rule.add(Factor(o.rhs.dims[d]), {1: d}, {0: place})
            place += 1
        for left, right in inner:
            rule.add(factor(left, FactorKind.REDUCTION), {0: left, 1: right})
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


def _ragged_kind(o: Op) -> str:
    """Which of lhs's dimensions is ragged: a batching, a contracting or a free one."""
    if not o.lhs_ragged_dimensions:
        return ""
    ragged = o.lhs_ragged_dimensions[0]
    if ragged in o.lhs_batching_dimensions:
        return "batching"
    return "contracting" if ragged in o.lhs_contracting_dimensions else "free"


def _group_masks(b: Any, lhs: Any, sizes: Any, ragged: int) -> list[Term]:
    """For each group, where lhs belongs to it."""
    kind = lhs.tensor.with_element(sizes.element)
    numbers = Term(b, b("iota", type=kind, iota_dimension=ragged))
    start: Any = numbers.like(0)
    masks = []
    for group in range(sizes.dims[0]):
        cut = {"start_indices": (group,), "limit_indices": (group + 1,), "strides": (1,)}
        size = b.reshape(b("slice", sizes, **cut), ())
        end = start + Term(b, b.broadcast(size, kind.dims, ()))
        masks.append((numbers >= start) & (numbers < end))
        start = end
    return masks


def _group(b: Any, rhs: Any, axis: int, group: int) -> Any:
    """rhs[..., group, ...] without that dimension."""
    bounds = {
        "start_indices": tuple(group if d == axis else 0 for d in range(rhs.rank)),
        "limit_indices": tuple(group + 1 if d == axis else size for d, size in enumerate(rhs.dims)),
        "strides": (1,) * rhs.rank,
    }
    return b.reshape(b("slice", rhs, **bounds), (*rhs.dims[:axis], *rhs.dims[axis + 1 :]))


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
