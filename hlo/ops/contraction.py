"""Sums of products: dot_general and dot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Index, IterationKind, Space, at, identity
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..types import BF16, C64, F32, F64, I8, I32, TensorType, Type
from . import numerics
from .clauses import any_result, result_element, same_dim, unique, within
from .examples import counting


class DotGeneral(OpDefinition, name="dot_general"):
    """result[batch, lhs free, rhs free] = sum over contracting of lhs * rhs.

    Products of small floats are summed in f32 and rounded once; the result's element type may be
    wider than the operands', the sum is then done in it.
    """

    pattern = "contract"
    linear = "separately"
    lhs = operand()
    rhs = operand()
    lhs_batching_dimensions = attribute(tuple, ())
    rhs_batching_dimensions = attribute(tuple, ())
    lhs_contracting_dimensions = attribute(tuple, ())
    rhs_contracting_dimensions = attribute(tuple, ())
    precision_config = attribute(tuple, ())
    C1 = constraint(
        "as many lhs_ as rhs_batching_dimensions",
        lambda o: len(o.lhs_batching_dimensions) == len(o.rhs_batching_dimensions),
    )
    C2 = constraint(
        "as many lhs_ as rhs_contracting_dimensions",
        lambda o: len(o.lhs_contracting_dimensions) == len(o.rhs_contracting_dimensions),
    )
    C3 = constraint(
        "lhs_batching and lhs_contracting dimensions are unique",
        lambda o: unique((*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions)),
    )
    C4 = constraint(
        "rhs_batching and rhs_contracting dimensions are unique",
        lambda o: unique((*o.rhs_batching_dimensions, *o.rhs_contracting_dimensions)),
    )
    C5 = constraint(
        "0 <= lhs_batching and lhs_contracting dimensions < rank(lhs)",
        lambda o: within((*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions), o.lhs.rank),
    )
    C7 = constraint(
        "0 <= rhs_batching and rhs_contracting dimensions < rank(rhs)",
        lambda o: within((*o.rhs_batching_dimensions, *o.rhs_contracting_dimensions), o.rhs.rank),
    )
    C9 = constraint(
        "batching dimensions agree",
        lambda o: _agree(o, o.lhs_batching_dimensions, o.rhs_batching_dimensions),
    )
    C10 = constraint(
        "contracting dimensions agree",
        lambda o: _agree(o, o.lhs_contracting_dimensions, o.rhs_contracting_dimensions),
    )
    C11 = constraint(
        "precision_config is empty or has two entries", lambda o: len(o.precision_config) in (0, 2)
    )

    def infer(self, o: Op) -> Sequence[Type]:
        batch = [o.lhs.dims[d] for d in o.lhs_batching_dimensions]
        left = [o.lhs.dims[d] for d in free_dims(o, "lhs")]
        right = [o.rhs.dims[d] for d in free_dims(o, "rhs")]
        return [TensorType((*batch, *left, *right), result_element(o, o.lhs.element))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        lhs, rhs = arrays
        batch = o.lhs_batching_dimensions, o.rhs_batching_dimensions
        contract = o.lhs_contracting_dimensions, o.rhs_contracting_dimensions
        return contracted(lhs, rhs, batch, contract, o.type.dtype)

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        lhs: dict[int, Index] = {}
        rhs: dict[int, Index] = {}
        batching = zip(o.lhs_batching_dimensions, o.rhs_batching_dimensions, strict=True)
        for place, (left, right) in enumerate(batching):
            lhs[left] = rhs[right] = at(place)
        place = len(o.lhs_batching_dimensions)
        for indices, side in ((lhs, "lhs"), (rhs, "rhs")):
            for d in free_dims(o, side):
                indices[d] = at(place)
                place += 1
        contracting = zip(o.lhs_contracting_dimensions, o.rhs_contracting_dimensions, strict=True)
        for left, right in contracting:
            lhs[left] = rhs[right] = space.inner(o.lhs.dims[left], IterationKind.REDUCE, "add")
        return space.access(*([side[d] for d in sorted(side)] for side in (lhs, rhs)))

    def flops(self, o: Op) -> float:
        depth = math.prod(o.lhs.dims[d] for d in o.lhs_contracting_dimensions)
        return 2.0 * o.type.size * depth

    def cases(self) -> Iterator[Case]:
        matrix = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
        for element in (F32, F64, BF16, C64, I8, I32):
            left, right = counting(2, 3, dtype=element.dtype), counting(3, 4, dtype=element.dtype)
            tolerance = 1e-2 if element is BF16 else 1e-5
            name = f"dot_general_{element.name}"
            yield Case(name, (left, right), matrix, tolerance=tolerance)
        batched = {
            "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (2,),
            "lhs_contracting_dimensions": (1, 3), "rhs_contracting_dimensions": (1, 0),
        }  # fmt: skip
        yield Case("dot_general_batched", (counting(2, 3, 5, 4), counting(4, 3, 2, 6)), batched)
        yield Case("dot_general_outer", (counting(2), counting(3)), {})
        yield Case("dot_general_empty_sum", (counting(2, 0), counting(0, 3)), matrix)
        wide = (TensorType((2, 2), I32),)
        large = np.full((2, 2), 127, np.int8)
        yield Case("dot_general_i8_to_i32", (large, large), matrix, wide)
        doubles = (TensorType((2, 2), F64),)
        precise = np.full((2, 2), 2**24 + 1, np.int64)
        yield Case("dot_general_i64_to_f64", (precise, precise), matrix, doubles, tolerance=1e-15)
        sums = (TensorType((2, 2), F32),)
        halves = counting(2, 2, dtype=BF16.dtype)
        yield Case("dot_general_bf16_to_f32", (halves, halves), matrix, sums)


def _agree(o: Op, left: Sequence[int], right: Sequence[int]) -> bool:
    return all(same_dim(o.lhs.dims[i], o.rhs.dims[j]) for i, j in zip(left, right, strict=True))


def free_dims(o: Op, side: str) -> list[int]:
    """Dimensions of lhs or rhs that are neither batching nor contracting."""
    value = o.lhs if side == "lhs" else o.rhs
    taken = {
        *getattr(o, f"{side}_batching_dimensions"),
        *getattr(o, f"{side}_contracting_dimensions"),
    }
    return [d for d in range(value.rank) if d not in taken]


def contracted(
    lhs: Any,
    rhs: Any,
    batch: tuple[Sequence[int], Sequence[int]],
    contract: tuple[Sequence[int], Sequence[int]],
    dtype: np.dtype[Any],
) -> Any:
    """The sum of products, as one (batched) matrix product."""
    computing = accumulator(lhs.dtype, rhs.dtype, dtype)
    left_free = [d for d in range(lhs.ndim) if d not in {*batch[0], *contract[0]}]
    right_free = [d for d in range(rhs.ndim) if d not in {*batch[1], *contract[1]}]
    batches = [lhs.shape[d] for d in batch[0]]
    left_dims = [lhs.shape[d] for d in left_free]
    right_dims = [rhs.shape[d] for d in right_free]
    depth = math.prod(lhs.shape[d] for d in contract[0])
    left = np.transpose(lhs, (*batch[0], *left_free, *contract[0]))
    right = np.transpose(rhs, (*batch[1], *contract[1], *right_free))
    left = left.reshape((*batches, math.prod(left_dims), depth)).astype(computing, copy=False)
    right = right.reshape((*batches, depth, math.prod(right_dims))).astype(computing, copy=False)
    with np.errstate(all="ignore"):
        product = np.matmul(left, right)
        return numerics.narrow(product, dtype).reshape((*batches, *left_dims, *right_dims))


def accumulator(left: np.dtype[Any], right: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """The type that products are summed in: f32 at least for floats, the result's for integers."""
    if not numerics.is_integer(result) and result.kind != "b":
        wide = [numerics.wide(np.empty(0, d)).dtype for d in (left, right, result)]
        return np.result_type(*(d for d in wide if d.kind in "fc"))
    return np.result_type(*(numerics.wide(np.empty(0, d)).dtype for d in (result,)))


class Dot(OpDefinition, name="dot"):
    """result = lhs's last dimension contracted with rhs's first."""

    pattern = "contract"
    alias = "dot_general"
    linear = "separately"
    lhs = operand()
    rhs = operand()
    precision_config = attribute(tuple, ())
    C1 = constraint("lhs and rhs have rank 1 or 2", lambda o: {o.lhs.rank, o.rhs.rank} <= {1, 2})
    C2 = constraint(
        "the contracted dimensions agree", lambda o: same_dim(o.lhs.dims[-1], o.rhs.dims[0])
    )
    C3 = constraint(
        "operands and result have one kind of element",
        any_result(lambda o: o.lhs.element.kind == o.result.element.kind),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = (*o.lhs.dims[:-1], *o.rhs.dims[1:])
        return [TensorType(dims, result_element(o, o.lhs.element))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        lhs, rhs = arrays
        last = (lhs.ndim - 1,)
        return contracted(lhs, rhs, ((), ()), (last, (0,)), o.type.dtype)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return [
            b(
                "dot_general", *values, type=o.type, precision_config=o.precision_config,
                lhs_contracting_dimensions=(values[0].rank - 1,), rhs_contracting_dimensions=(0,),
            )
        ]  # fmt: skip

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        depth = space.inner(o.lhs.dims[-1], IterationKind.REDUCE, "add")
        left = o.lhs.rank - 1
        rows, columns = identity(left), [at(left + d) for d in range(o.rhs.rank - 1)]
        return space.access((*rows, depth), (depth, *columns))

    def flops(self, o: Op) -> float:
        return 2.0 * o.type.size * o.lhs.dims[-1]

    def cases(self) -> Iterator[Case]:
        yield Case("dot_vectors", (counting(3), counting(3)))
        yield Case("dot_matrix_vector", (counting(2, 3), counting(3)))
        yield Case("dot_matrices", (counting(2, 3), counting(3, 4)))


ROOMS = (DotGeneral(), Dot())
