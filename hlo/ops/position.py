"""Operations at a position that is an operand, or on the size of a dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, ClampedStart, Index, IndexTerm, Space, identity
from ..errors import UserError
from ..factors import Factor, FactorBuilder, FactorKind, Factors, resized
from ..graph import Op, constant_of
from ..room import Case, OpDefinition, attribute, constraint, operand, variadic
from ..room import operand as second
from ..types import F32, I32, TensorType, Type
from .clauses import at_most, is_same, same_element
from .examples import counting, i32


class DynamicSlice(OpDefinition, name="dynamic_slice"):
    """result = slice_sizes elements of operand from start_indices, clamped to stay inside."""

    pattern = "index"
    moves = "indexed"
    operand = operand()
    start_indices = variadic()
    slice_sizes = attribute(tuple)
    C2 = constraint(
        "start_indices and slice_sizes have rank(operand) entries",
        lambda o: len(o.start_indices) == len(o.slice_sizes) == o.operand.rank,
    )
    C3 = constraint(
        "start_indices are scalars of one integer type",
        lambda o: all(
            v.rank == 0 and v.element.is_integer and v.element is o.start_indices[0].element
            for v in o.start_indices
        ),
    )
    C4 = constraint(
        "0 <= slice_sizes <= dimensions of operand",
        lambda o: all(
            at_most(0, size) and at_most(size, dim)
            for size, dim in zip(o.slice_sizes, o.operand.dims, strict=True)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_dims(o.slice_sizes)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return arrays[0][window(arrays[0].shape, o.slice_sizes, arrays[1:])]

    def access(self, o: Op) -> Access | None:
        dims = enumerate(zip(o.operand.dims, o.slice_sizes, strict=True))
        indices = [
            Index(
                (IndexTerm(d),),
                start=ClampedStart(1 + d, dim - size) if not is_same(size, dim) else None,
            )
            for d, (dim, size) in dims
        ]
        return Space(o.type.dims).access(indices, *((),) * o.operand.rank)

    def shard(self, o: Op) -> Factors | None:
        return resized(o, FactorKind.REPLICATE, blocked=True)

    def cases(self) -> Iterator[Case]:
        for name, start in (("inside", (1, 2)), ("past", (9, 3)), ("before", (-5, -1))):
            starts = tuple(i32(s) for s in start)
            yield Case(f"dynamic_slice_{name}", (counting(3, 5), *starts), {"slice_sizes": (2, 3)})


def window(dims: Sequence[int], sizes: Sequence[int], starts: Sequence[Any]) -> Any:
    """The index of a window of those sizes, its start clamped so that it stays inside."""
    clamped = [
        min(max(int(start), 0), dim - size)
        for start, dim, size in zip(starts, dims, sizes, strict=True)
    ]
    return tuple(slice(start, start + size) for start, size in zip(clamped, sizes, strict=True))


class DynamicUpdateSlice(OpDefinition, name="dynamic_update_slice"):
    """result = operand with update written at start_indices, clamped to stay inside."""

    pattern = "index"
    operand = operand()
    update = second()
    start_indices = variadic()
    C2 = constraint(
        "operand and update have the same element type",
        lambda o: same_element(o.operand.element, o.update.element),
    )
    C3 = constraint(
        "operand and update have the same rank", lambda o: o.operand.rank == o.update.rank
    )
    C4 = constraint(
        "start_indices has rank(operand) entries", lambda o: len(o.start_indices) == o.operand.rank
    )
    C5 = constraint(
        "start_indices are scalars of one integer type",
        lambda o: all(
            v.rank == 0 and v.element.is_integer and v.element is o.start_indices[0].element
            for v in o.start_indices
        ),
    )
    C6 = constraint(
        "dimensions of update <= dimensions of operand",
        lambda o: all(map(at_most, o.update.dims, o.operand.dims)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        x, update, *starts = arrays
        result = x.copy()
        result[window(x.shape, update.shape, starts)] = update
        return result

    def access(self, o: Op) -> Access | None:
        dims = enumerate(zip(o.operand.dims, o.update.dims, strict=True))
        indices = [
            Index(
                (IndexTerm(d),),
                start=ClampedStart(2 + d, dim - size, -1) if not is_same(size, dim) else None,
            )
            for d, (dim, size) in dims
        ]
        rank = o.operand.rank
        return Space(o.type.dims).access(identity(rank), indices, *((),) * rank)

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        for d, (size, written) in enumerate(zip(o.operand.dims, o.update.dims, strict=True)):
            if size == written:
                rule.add(Factor(size), {0: d, 1: d}, {0: d})
            else:  # each part writes what falls into it
                rule.add(Factor(size, placed=True), {0: d}, {0: d})
                rule.add(Factor(written, FactorKind.REPLICATE), {1: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        for name, start in (("inside", (1, 2)), ("past", (9, 3)), ("before", (-5, -1))):
            starts = tuple(i32(s) for s in start)
            yield Case(
                f"dynamic_update_slice_{name}", (counting(3, 5), -counting(2, 2) - 1, *starts)
            )


class GetDimensionSize(OpDefinition, name="get_dimension_size"):
    """result = size of operand's `dimension`, as i32."""

    pattern = "index"
    opaque = "it reads the shape, and no element"
    uncut = "it is a constant wherever sizes are known"
    operand = operand()
    dimension = attribute(int)
    C1 = constraint("0 <= dimension < rank(operand)", lambda o: 0 <= o.dimension < o.operand.rank)

    def infer(self, o: Op) -> Sequence[Type]:
        return [TensorType((), I32)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.array(arrays[0].shape[o.dimension], np.int32)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        size = values[0].dims[o.dimension]
        return [b.constant(size, TensorType((), I32))] if isinstance(size, int) else None

    def cases(self) -> Iterator[Case]:
        yield Case("get_dimension_size", (counting(2, 3),), {"dimension": 1})


class SetDimensionSize(OpDefinition, name="set_dimension_size"):
    """result = the first `size` elements of operand along `dimension`.

    Where the result's dimension is fixed, it is the operand's, and `size` has to be all of it.
    """

    pattern = "index"
    opaque = "how many elements it keeps is an operand"
    operand = operand()
    size = second()
    dimension = attribute(int)
    C1 = constraint("0 <= dimension < rank(operand)", lambda o: 0 <= o.dimension < o.operand.rank)
    C2 = constraint("size is a scalar of i32", lambda o: o.size.rank == 0 and o.size.element is I32)

    def infer(self, o: Op) -> Sequence[Type] | None:
        return [o.operand.type] if self.keeps_all(o) else None

    def keeps_all(self, o: Op) -> bool:
        """Whether the size is a constant, and the operand's own."""
        size = constant_of(o.size)
        return size is not None and int(size.splat_value) == o.operand.dims[o.dimension]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        x, size = arrays[0], int(arrays[1])
        whole = x.shape[o.dimension]
        if not 0 <= size <= whole or (isinstance(o.type.dims[o.dimension], int) and size != whole):
            raise UserError(
                f"{o.place}set_dimension_size: dimension {o.dimension} of {o.operand.type} with "
                f"{whole} elements cannot get the size {size} in a result {o.type}"
            )
        return x[(slice(None),) * o.dimension + (slice(0, size),)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return [values[0]] if self.keeps_all(o) else None

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        for d, size in enumerate(o.operand.dims):
            kind = FactorKind.REPLICATE if d == o.dimension else FactorKind.PASS
            rule.add(Factor(size, kind), {0: d}, {0: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        kind = (TensorType((2, 3), F32),)
        yield Case("set_dimension_size", (counting(2, 3), i32(3)), {"dimension": 1}, kind)


ROOMS = (DynamicSlice(), DynamicUpdateSlice(), GetDimensionSize(), SetDimensionSize())
