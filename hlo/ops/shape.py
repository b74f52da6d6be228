"""Operations that move elements without computing: reshape, transpose, slice, pad, iota, ..."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Index, IndexTerm, Space, at, identity, reshaped
from ..factors import Factor, FactorBuilder, FactorKind, Factors, reshaping, resized
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand, variadic
from ..room import operand as second
from ..symbols import maximum
from ..types import BF16, C64, F32, I4, I32, UI32, TensorType, Type
from . import numerics
from .clauses import (
    any_result,
    at_most,
    merge_dims,
    same_dim,
    same_dims,
    same_element,
    same_size,
    simplified,
    static_dims,
    unique,
    within,
)
from .examples import counting, f32


class Reshape(OpDefinition, name="reshape"):
    """result = operand's elements, in row-major order, in other dimensions."""

    pattern = "index"
    moves = "whole"
    strided = True
    views = "once"
    linear = "together"
    operand = operand()
    C1 = constraint(
        "operand and result have the same element type",
        any_result(lambda o: same_element(o.operand.element, o.result.element)),
    )
    C2 = constraint(
        "operand and result have the same number of elements",
        any_result(lambda o: same_size(o.operand.dims, o.result.dims)),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.reshape(arrays[0], static_dims(o.type, self.name))

    def access(self, o: Op) -> Access | None:
        indices = reshaped(o.operand.dims, o.type.dims)
        return Space(o.type.dims).access(indices)

    def shard(self, o: Op) -> Factors | None:
        return reshaping(o)

    def cases(self) -> Iterator[Case]:
        for name, source, target in (
            ("split", (6,), (2, 3)), ("merge", (2, 3, 2), (6, 2)), ("scalar", (1, 1), ()),
            ("unit", (4,), (1, 4, 1)), ("empty", (0, 3), (3, 0, 2)),
        ):  # fmt: skip
            yield Case(
                f"reshape_{name}", (counting(*source),), result_types=(TensorType(target, F32),)
            )


class Transpose(OpDefinition, name="transpose"):
    """result[i_permutation] = operand[i]: result dim d is operand dim permutation[d]."""

    pattern = "index"
    moves = "whole"
    strided = True
    views = "once"
    linear = "together"
    operand = operand()
    permutation = attribute(tuple)
    C2 = constraint(
        "permutation is a permutation of range(rank(operand))",
        lambda o: sorted(o.permutation) == list(range(o.operand.rank)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_dims([o.operand.dims[d] for d in o.permutation])]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.transpose(arrays[0], o.permutation)

    def access(self, o: Op) -> Access | None:
        places = [o.permutation.index(d) for d in range(o.operand.rank)]
        return Space(o.type.dims).access([at(place) for place in places])

    def cases(self) -> Iterator[Case]:
        yield Case("transpose_matrix", (counting(2, 3),), {"permutation": (1, 0)})
        yield Case("transpose_3d", (counting(2, 3, 4),), {"permutation": (2, 0, 1)})
        yield Case("transpose_scalar", (counting(),), {"permutation": ()})
        yield Case("transpose_bf16", (counting(2, 3, dtype=BF16.dtype),), {"permutation": (1, 0)})


class BroadcastInDim(OpDefinition, name="broadcast_in_dim"):
    """result[i] = operand[i_broadcast_dimensions], where a dimension of size 1 repeats."""

    pattern = "index"
    moves = "whole"
    views = "repeated"
    linear = "together"
    operand = operand()
    broadcast_dimensions = attribute(tuple)
    C1 = constraint(
        "operand and result have the same element type",
        any_result(lambda o: same_element(o.operand.element, o.result.element)),
    )
    C2 = constraint(
        "size(broadcast_dimensions) = rank(operand)",
        lambda o: len(o.broadcast_dimensions) == o.operand.rank,
    )
    C3 = constraint(
        "0 <= broadcast_dimensions < rank(result)",
        any_result(lambda o: within(o.broadcast_dimensions, o.result.rank)),
    )
    C4 = constraint("broadcast_dimensions are unique", lambda o: unique(o.broadcast_dimensions))
    C5 = constraint(
        "a dimension of operand is 1 or that of the result it is mapped to",
        any_result(
            lambda o: all(
                d == 1 or same_dim(d, o.result.dims[m])
                for d, m in zip(o.operand.dims, o.broadcast_dimensions, strict=True)
            )
        ),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        dims = static_dims(o.type, self.name)
        return broadcast_to(arrays[0], dims, o.broadcast_dimensions)

    def access(self, o: Op) -> Access | None:
        indices = broadcast_indices(o.operand.dims, o.type.dims, o.broadcast_dimensions)
        return Space(o.type.dims).access(indices)

    def cases(self) -> Iterator[Case]:
        for name, source, mapped, target in (
            ("scalar", (), (), (2, 3)), ("row", (3,), (1,), (2, 3)), ("column", (2,), (0,), (2, 3)),
            ("ones", (1, 3), (0, 2), (4, 2, 3)), ("swap", (2, 3), (1, 0), (3, 2)),
        ):  # fmt: skip
            yield Case(
                f"broadcast_in_dim_{name}", (counting(*source),), {"broadcast_dimensions": mapped},
                (TensorType(target, F32),),
            )  # fmt: skip


def broadcast_to(x: Any, dims: Sequence[int], mapped: Sequence[int]) -> Any:
    """A view of x spread over `dims`: dimension i of x becomes dimension mapped[i]."""
    order = sorted(range(len(mapped)), key=lambda i: mapped[i])
    shape = [1] * len(dims)
    for source in order:
        shape[mapped[source]] = x.shape[source]
    return np.broadcast_to(np.transpose(x, order).reshape(shape), dims)


def broadcast_indices(
    source: Sequence[int], dims: Sequence[int], mapped: Sequence[int]
) -> list[Index]:
    """The indices that broadcast_to reads: what repeats is always read at 0."""
    pairs = zip(source, mapped, strict=True)
    return [Index() if size == 1 != dims[place] else at(place) for size, place in pairs]


class Broadcast(OpDefinition, name="broadcast"):
    """result[i..., j...] = operand[j...]: new dimensions of sizes broadcast_sizes in front."""

    pattern = "index"
    moves = "whole"
    views = "repeated"
    linear = "together"
    operand = operand()
    broadcast_sizes = attribute(tuple)
    C1 = constraint("0 <= broadcast_sizes", lambda o: all(size >= 0 for size in o.broadcast_sizes))

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_dims((*o.broadcast_sizes, *o.operand.dims))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.broadcast_to(arrays[0], (*o.broadcast_sizes, *arrays[0].shape))

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        sizes = o.broadcast_sizes
        dims = (*sizes, *values[0].dims)
        return [b.broadcast(values[0], dims, range(len(sizes), len(dims)))]

    def access(self, o: Op) -> Access | None:
        new = len(o.broadcast_sizes)
        return Space(o.type.dims).access([at(new + d) for d in range(o.operand.rank)])

    def cases(self) -> Iterator[Case]:
        yield Case("broadcast", (counting(3),), {"broadcast_sizes": (2, 1)})


class Concatenate(OpDefinition, name="concatenate"):
    """result = the inputs, one after the other along `dimension`."""

    pattern = "index"
    linear = "together"
    inputs = variadic()
    dimension = attribute(int)
    C3 = constraint("0 < size(inputs)", lambda o: len(o.inputs) > 0)
    C1 = constraint(
        "inputs have the same element type",
        lambda o: all(same_element(v.element, o.inputs[0].element) for v in o.inputs),
    )
    C4 = constraint(
        "0 <= dimension < rank(inputs[0])", lambda o: 0 <= o.dimension < o.inputs[0].rank
    )
    C2 = constraint(
        "inputs must agree outside dimension",
        lambda o: all(
            same_dims(_without(v.dims, o.dimension), _without(o.inputs[0].dims, o.dimension))
            for v in o.inputs
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = list(merge_dims(*(v.dims for v in o.inputs)))
        dims[o.dimension] = sum(v.dims[o.dimension] for v in o.inputs)
        return [o.inputs[0].tensor.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        shape = list(arrays[0].shape)
        shape[o.dimension] = sum(array.shape[o.dimension] for array in arrays)
        # Row-major whatever the strides of the parts, so that nobody copies it again.
        return np.concatenate(arrays, o.dimension, out=np.empty(shape, arrays[0].dtype))

    def access(self, o: Op) -> Access | None:
        operands, before = [], 0
        for value in o.inputs:
            indices = list(identity(value.rank))
            indices[o.dimension] = at(o.dimension, offset=-before)
            operands.append(indices)
            before += value.dims[o.dimension]
        return Space(o.type.dims).access(*operands)

    def shard(self, o: Op) -> Factors | None:
        # Parts that are cut from larger tensors are shifts of those, which neighbours exchange.
        sources = [v.op.operands[0] if v.op and v.op.name == "slice" else v for v in o.inputs]
        slices = sum(source is not v for source, v in zip(sources, o.inputs, strict=True))
        shifts = slices == len(sources) or (slices and len(set(sources)) == 1)
        along = FactorKind.PERMUTATION if shifts else FactorKind.REPLICATE
        rule = FactorBuilder(o)
        for d, size in enumerate(o.type.dims):
            rule.everywhere(d, Factor(size, along if d == o.dimension else FactorKind.PASS))
        return rule.build()

    def cases(self) -> Iterator[Case]:
        pieces = (counting(2, 3), counting(2, 1) + 10, counting(2, 0))
        yield Case("concatenate_columns", pieces, {"dimension": 1})
        yield Case("concatenate_rows", (counting(2, 3), counting(1, 3) + 9), {"dimension": 0})
        yield Case("concatenate_one", (counting(2, dtype=np.int8),), {"dimension": 0})


def _without(dims: tuple[Any, ...], dimension: int) -> tuple[Any, ...]:
    return dims[:dimension] + dims[dimension + 1 :]


class Reverse(OpDefinition, name="reverse"):
    """result[i] = operand[dim - 1 - i] along each of `dimensions`."""

    pattern = "index"
    moves = "whole"
    linear = "together"
    operand = operand()
    dimensions = attribute(tuple)
    C2 = constraint("dimensions are unique", lambda o: unique(o.dimensions))
    C3 = constraint(
        "0 <= dimensions < rank(operand)", lambda o: within(o.dimensions, o.operand.rank)
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.flip(arrays[0], o.dimensions)

    def access(self, o: Op) -> Access | None:
        dims = o.type.dims
        indices = [at(d, -1, n - 1) if d in o.dimensions else at(d) for d, n in enumerate(dims)]
        return Space(dims).access(indices)

    def cases(self) -> Iterator[Case]:
        yield Case("reverse_both", (counting(2, 3),), {"dimensions": (0, 1)})
        yield Case("reverse_last", (counting(2, 3),), {"dimensions": (1,)})
        yield Case("reverse_none", (counting(2),), {"dimensions": ()})


class Slice(OpDefinition, name="slice"):
    """result[i] = operand[start_indices + i * strides], up to limit_indices."""

    pattern = "index"
    moves = "part"
    strided = True
    linear = "together"
    operand = operand()
    start_indices = attribute(tuple)
    limit_indices = attribute(tuple)
    strides = attribute(tuple)
    C2 = constraint(
        "start_indices, limit_indices and strides have rank(operand) entries",
        lambda o: len(o.start_indices) == len(o.limit_indices) == len(o.strides) == o.operand.rank,
    )
    C3 = constraint(
        "0 <= start_indices <= limit_indices <= dimensions of operand",
        lambda o: all(
            at_most(0, start) and at_most(start, limit) and at_most(limit, dim)
            for start, limit, dim in zip(
                o.start_indices, o.limit_indices, o.operand.dims, strict=True
            )
        ),
    )
    C4 = constraint("0 < strides", lambda o: all(stride > 0 for stride in o.strides))

    def infer(self, o: Op) -> Sequence[Type]:
        bounds = zip(o.start_indices, o.limit_indices, o.strides, strict=True)
        dims = [-(-(limit - start) // stride) for start, limit, stride in bounds]
        return [o.operand.tensor.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return arrays[0][tuple(map(slice, o.start_indices, o.limit_indices, o.strides))]

    def access(self, o: Op) -> Access | None:
        bounds = enumerate(zip(o.start_indices, o.strides, strict=True))
        return Space(o.type.dims).access([at(d, stride, start) for d, (start, stride) in bounds])

    def shard(self, o: Op) -> Factors | None:
        return resized(o, FactorKind.PERMUTATION)

    def cases(self) -> Iterator[Case]:
        for name, start, limit, strides in (
            ("middle", (1, 2), (3, 4), (1, 1)), ("strided", (0, 1), (3, 5), (2, 3)),
            ("empty", (1, 0), (1, 5), (1, 1)),
        ):  # fmt: skip
            bounds = {"start_indices": start, "limit_indices": limit, "strides": strides}
            yield Case(f"slice_{name}", (counting(3, 5),), bounds)


class Pad(OpDefinition, name="pad"):
    """result = operand with padding_value before, after and between elements; negative cuts."""

    pattern = "index"
    operand = operand()
    padding_value = second()
    edge_padding_low = attribute(tuple)
    edge_padding_high = attribute(tuple)
    interior_padding = attribute(tuple)
    C1 = constraint(
        "operand and padding_value have the same element type, padding_value is a scalar",
        lambda o: (
            same_element(o.operand.element, o.padding_value.element) and o.padding_value.rank == 0
        ),
    )
    C2 = constraint(
        "the paddings have rank(operand) entries",
        lambda o: (
            len(o.edge_padding_low)
            == len(o.edge_padding_high)
            == len(o.interior_padding)
            == o.operand.rank
        ),
    )
    C3 = constraint("0 <= interior_padding", lambda o: all(i >= 0 for i in o.interior_padding))
    C4 = constraint(
        "the result's dimensions are not negative",
        lambda o: all(at_most(0, d) for d in _padded_dims(o)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_dims(_padded_dims(o))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        x, value = arrays
        return padded(x, value, o.edge_padding_low, o.edge_padding_high, o.interior_padding)

    def access(self, o: Op) -> Access | None:
        edges = enumerate(zip(o.edge_padding_low, o.interior_padding, strict=True))
        indices = [
            Index((IndexTerm(d),), -low, divisor=gap + 1, dilated=gap > 0)
            for d, (low, gap) in edges
        ]
        return Space(o.type.dims).access(indices, ())

    def shard(self, o: Op) -> Factors | None:
        pads = zip(o.edge_padding_low, o.edge_padding_high, o.interior_padding, strict=True)
        rule = FactorBuilder(o)
        for d, pad in enumerate(pads):
            kind = FactorKind.PERMUTATION if any(pad) else FactorKind.PASS
            rule.add(Factor(o.operand.dims[d], kind), {0: d}, {0: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        for name, low, high, interior in (
            ("edges", (1, 0), (0, 2), (0, 0)), ("interior", (0, 0), (0, 0), (1, 2)),
            ("negative", (-1, 1), (1, -2), (0, 0)), ("mixed", (-1, 2), (2, -3), (2, 1)),
        ):  # fmt: skip
            attributes = {
                "edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior,
            }  # fmt: skip
            yield Case(f"pad_{name}", (counting(2, 3), f32(-7)), attributes)


def _padded_dims(o: Op) -> list[Any]:
    paddings = zip(
        o.operand.dims, o.edge_padding_low, o.edge_padding_high, o.interior_padding, strict=True
    )
    return [padded_dim(*padding) for padding in paddings]


def padded_dim(dim: Any, low: Any, high: Any, interior: int) -> Any:
    """The size of a dimension after padding."""
    between = maximum(dim - 1, 0) * interior if interior else 0
    return simplified(low + dim + between + high)


def padded(
    x: Any, value: Any, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Any:
    """x with `value` around and between its elements; negative edges cut afterwards."""
    if not any(low) and not any(high) and not any(interior):
        return x
    dims = list(map(padded_dim, x.shape, low, high, interior))
    result = np.full_like(x, value, shape=dims)
    source, target = [], []
    for dim, size, before, gap in zip(x.shape, dims, low, interior, strict=True):
        step = gap + 1
        first = 0 if before >= 0 else -(before // step)
        last = min(dim, -((before - size) // step))
        last = max(first, last)
        source.append(slice(first, last))
        start = before + first * step
        target.append(slice(start, start + (last - first - 1) * step + 1 if last > first else start,
                            step))  # fmt: skip
    result[tuple(target)] = x[tuple(source)]
    return result


class Iota(OpDefinition, name="iota"):
    """result[i] = i[iota_dimension]."""

    pattern = "source"
    known = True
    iota_dimension = attribute(int)
    C1 = constraint(
        "0 <= iota_dimension < rank(result)",
        any_result(lambda o: 0 <= o.iota_dimension < o.result.rank),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        dims = static_dims(o.type, self.name)
        return counted(dims, o.iota_dimension, o.result.element)

    def access(self, o: Op) -> Access | None:
        return Space(o.type.dims).access()

    def cases(self) -> Iterator[Case]:
        for element in (F32, BF16, I4, I32, UI32, C64):
            for dimension in (0, 1):
                name = f"iota_{element.name}_{dimension}"
                attributes = {"iota_dimension": dimension}
                yield Case(name, (), attributes, (TensorType((3, 4), element),))


def counted(dims: Sequence[int], dimension: int, element: Any) -> Any:
    """0, 1, 2, ... along one dimension, repeated along the others."""
    line = numerics.convert(np.arange(dims[dimension], dtype=np.int64), element)
    return broadcast_to(line, dims, (dimension,))


ROOMS = (
    Reshape(), Transpose(), BroadcastInDim(), Broadcast(), Concatenate(), Reverse(), Slice(), Pad(),
    Iota(),
)  # fmt: skip
