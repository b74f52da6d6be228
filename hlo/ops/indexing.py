"""Operations that read where data says: gather, torch_index_select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Index, IterationKind, Space, at, identity
from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..room import operand as second
from ..types import Type
from . import numerics
from .clauses import ascending, at_most, same_dim, unique, within
from .examples import counting, i32


class Gather(OpDefinition, name="gather"):
    """result[batch, offset] = operand[start_indices[batch] + offset], starts clamped."""

    pattern = "index"
    moves = "indexed"
    operand = operand()
    start_indices = second()
    offset_dims = attribute(tuple)
    collapsed_slice_dims = attribute(tuple)
    operand_batching_dims = attribute(tuple, ())
    start_indices_batching_dims = attribute(tuple, ())
    start_index_map = attribute(tuple)
    index_vector_dim = attribute(int)
    slice_sizes = attribute(tuple)
    indices_are_sorted = attribute(bool, False)
    C1 = constraint(
        "rank(operand) = offset_dims + collapsed_slice_dims + operand_batching_dims",
        lambda o: (
            o.operand.rank
            == len(o.offset_dims) + len(o.collapsed_slice_dims) + len(o.operand_batching_dims)
        ),
    )
    C2 = constraint(
        "0 <= index_vector_dim <= rank(start_indices)",
        lambda o: 0 <= o.index_vector_dim <= o.start_indices.rank,
    )
    C3 = constraint(
        "start_index_map has one entry per index component",
        lambda o: (
            at_most(len(o.start_index_map), _index_count(o))
            and at_most(_index_count(o), len(o.start_index_map))
        ),
    )
    C4 = constraint(
        "offset_dims are unique and ascending",
        lambda o: unique(o.offset_dims) and ascending(o.offset_dims),
    )
    C6 = constraint(
        "collapsed_slice_dims and operand_batching_dims are unique",
        lambda o: unique((*o.collapsed_slice_dims, *o.operand_batching_dims)),
    )
    C7 = constraint(
        "collapsed_slice_dims are ascending", lambda o: ascending(o.collapsed_slice_dims)
    )
    C8 = constraint(
        "0 <= collapsed_slice_dims and operand_batching_dims < rank(operand)",
        lambda o: within((*o.collapsed_slice_dims, *o.operand_batching_dims), o.operand.rank),
    )
    C18 = constraint(
        "as many operand_ as start_indices_batching_dims",
        lambda o: len(o.operand_batching_dims) == len(o.start_indices_batching_dims),
    )
    C19 = constraint(
        "start_index_map and operand_batching_dims are unique",
        lambda o: unique((*o.start_index_map, *o.operand_batching_dims)),
    )
    C20 = constraint(
        "size(slice_sizes) = rank(operand)", lambda o: len(o.slice_sizes) == o.operand.rank
    )
    C21 = constraint(
        "0 <= slice_sizes <= dimensions of operand",
        lambda o: all(
            at_most(0, size) and at_most(size, dim)
            for size, dim in zip(o.slice_sizes, o.operand.dims, strict=True)
        ),
    )
    C9 = constraint(
        "slice_sizes of collapsed and batching dimensions <= 1",
        lambda o: all(
            at_most(o.slice_sizes[d], 1)
            for d in (*o.collapsed_slice_dims, *o.operand_batching_dims)
        ),
    )
    C15 = constraint(
        "start_indices_batching_dims are unique dims of start_indices, not index_vector_dim, "
        "and as long as those of operand",
        lambda o: batching_fits(
            o, o.start_indices, o.start_indices_batching_dims, o.operand, o.operand_batching_dims
        ),
    )
    C16 = constraint(
        "0 <= start_index_map < rank(operand)", lambda o: within(o.start_index_map, o.operand.rank)
    )
    C24 = constraint("start_indices are integers", lambda o: o.start_indices.element.is_integer)

    def infer(self, o: Op) -> Sequence[Type]:
        batch = [d for axis, d in enumerate(o.start_indices.dims) if axis != o.index_vector_dim]
        offsets = [
            size
            for d, size in enumerate(o.slice_sizes)
            if d not in o.collapsed_slice_dims and d not in o.operand_batching_dims
        ]
        dims = []
        for axis in range(len(batch) + len(offsets)):
            dims.append(offsets.pop(0) if axis in o.offset_dims else batch.pop(0))
        return [o.operand.tensor.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        x, indices = arrays
        return gathered(o, x, indices, o.slice_sizes)

    def access(self, o: Op) -> Access | None:
        return gather_access(o, o.slice_sizes)

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        placed = Factor(1, FactorKind.REDUCTION, placed=True)  # one part has the element
        places = slice_places(
            o.operand.rank, o.collapsed_slice_dims, o.operand_batching_dims, o.offset_dims
        )
        batches = batch_places(o, o.type.rank, o.offset_dims)
        pairs = dict(zip(o.start_indices_batching_dims, o.operand_batching_dims, strict=True))
        for d, size in enumerate(o.type.dims):
            if d in batches:
                axis = batches[d]
                shared = {0: pairs[axis]} if axis in pairs else {}
                rule.add(Factor(size), {**shared, 1: axis}, {0: d})
                continue
            source = places[d]
            whole = o.operand.dims[source]
            if whole == size:
                rule.add(Factor(size), {0: source}, {0: d})
            elif size == 1:
                rule.add(placed._replace(size=whole), {0: source})
            else:
                rule.add(Factor(whole, FactorKind.REPLICATE, blocked=True), {0: source}, {0: d})
        for d in o.collapsed_slice_dims:
            rule.add(placed._replace(size=o.operand.dims[d]), {0: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        table = counting(5, 3)
        rows = i32([[4], [0], [9], [-3]])
        lookup = {
            "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,),
            "index_vector_dim": 1, "slice_sizes": (1, 3),
        }  # fmt: skip
        yield Case("gather_rows", (table, rows), lookup)
        yield Case("gather_rows_flat", (table, rows[:, 0]), lookup)
        windows = {
            "offset_dims": (0, 2), "collapsed_slice_dims": (), "start_index_map": (1, 0),
            "index_vector_dim": 0, "slice_sizes": (2, 2),
        }  # fmt: skip
        yield Case("gather_windows", (table, i32([[0, 1, 2], [3, 0, 9]])), windows)
        batched = {
            "offset_dims": (2,), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
            "start_indices_batching_dims": (0,), "start_index_map": (1,), "index_vector_dim": 2,
            "slice_sizes": (1, 1, 3),
        }  # fmt: skip
        starts = i32([[[1], [0]], [[3], [7]]])
        yield Case("gather_batched", (counting(2, 4, 3), starts), batched)


def gather_access(o: Op, sizes: Sequence[int]) -> Access:
    """An index component may point anywhere in its dim; what it does not move is read as it is."""
    space = Space(o.results[0].dims)
    batch = [d for d in range(o.results[0].rank) if d not in o.offset_dims]
    components = [d for d in range(o.start_indices.rank) if d != o.index_vector_dim]
    place = dict(zip(components, batch, strict=True))
    starts = [
        at(place[d]) if d in place else space.inner(size, IterationKind.GATHER)
        for d, size in enumerate(o.start_indices.dims)
    ]
    offsets = list(o.offset_dims)
    operand: list[Index] = []
    for d, size in enumerate(o.operand.dims):
        collapsed = d in o.collapsed_slice_dims
        batching = d in o.operand_batching_dims
        offset = None if collapsed or batching else offsets.pop(0)
        if batching:
            axis = o.start_indices_batching_dims[o.operand_batching_dims.index(d)]
            operand.append(at(place[axis]))
        elif d in o.start_index_map and sizes[d] != size:
            operand.append(space.inner(size, IterationKind.GATHER))
        else:
            operand.append(Index() if offset is None else at(offset))
    return space.access(operand, starts)


def slice_places(
    rank: int, gone: Sequence[int], batching: Sequence[int], offsets: Sequence[int]
) -> dict[int, int]:
    """For each dim of a slice (as `offsets` numbers them) the dim that it is cut from."""
    kept = [d for d in range(rank) if d not in gone and d not in batching]
    return dict(zip(offsets, kept, strict=True))


def batch_places(o: Op, rank: int, offsets: Sequence[int]) -> dict[int, int]:
    """For each other dim of a result (updates), of that rank, the dim of the indices it follows."""
    batch = [d for d in range(rank) if d not in offsets]
    axes = [d for d in range(o.operands[len(o.operands) // 2].rank) if d != o.index_vector_dim]
    return dict(zip(batch, axes, strict=True))


def _index_count(o: Op) -> Any:
    dims = o.start_indices.dims
    return dims[o.index_vector_dim] if o.index_vector_dim < len(dims) else 1


def index_vectors(indices: Any, vector_dim: int) -> Any:
    """The indices as signed 64-bit integers with the index components last."""
    indices = np.asarray(numerics.wide(indices))
    if indices.dtype.kind == "u" and indices.dtype.itemsize == 8:
        indices = np.minimum(indices, np.iinfo(np.int64).max)  # still outside, and not negative
    indices = indices.astype(np.int64)
    if vector_dim == indices.ndim:
        return indices[..., None]
    return np.moveaxis(indices, vector_dim, -1)


def slice_starts(o: Op, dims: Sequence[int], indices: Any, sizes: Sequence[int]) -> list[Any]:
    """Where slices of an array of such dims begin in each of these: integers over the batch dims,
    or over dims of size 1 in their place."""
    vectors = index_vectors(indices, o.index_vector_dim)
    batch = vectors.shape[:-1]
    # a batching dim of start_indices counts the index vector's dim, which is gone here
    batching = [d - (d > o.index_vector_dim) for d in o.start_indices_batching_dims]
    starts: list[Any] = []
    for d, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
        lines: Any = np.zeros((1,) * len(batch), np.int64)
        if d in o.start_index_map:
            last = dim - (1 if d in o.collapsed_slice_dims else size)  # a collapsed dim has 1 place
            lines = np.clip(vectors[..., o.start_index_map.index(d)], 0, last)
        elif d in o.operand_batching_dims:
            axis = batching[o.operand_batching_dims.index(d)]
            lines = along(np.arange(batch[axis]), axis, len(batch))
        starts.append(lines)
    return starts


def gathered(o: Op, x: Any, indices: Any, sizes: Sequence[int]) -> Any:
    """Fancy indexing: one index array per operand dimension, batch dims first, then offsets."""
    batch = [d for axis, d in enumerate(np.shape(indices)) if axis != o.index_vector_dim]
    kept = [
        d
        for d in range(x.ndim)
        if d not in o.collapsed_slice_dims and d not in o.operand_batching_dims
    ]
    index: list[Any] = []
    for d, lines in enumerate(slice_starts(o, x.shape, indices, sizes)):
        lines = lines.reshape(lines.shape + (1,) * len(kept))
        if d in kept:
            lines = lines + along(np.arange(sizes[d]), kept.index(d), len(kept))
        index.append(lines)
    shape = (*batch, *(sizes[d] for d in kept))
    if 0 in shape:
        result = np.empty(shape, x.dtype)
    else:
        result = np.broadcast_to(x[tuple(index)], shape)
    rank = len(shape)
    batch_dims = [d for d in range(rank) if d not in o.offset_dims]
    return np.transpose(result, np.argsort((*batch_dims, *o.offset_dims)) if rank else ())


def along(line: Any, axis: int, rank: int) -> Any:
    """A line of numbers along one axis of an array of that rank."""
    return line.reshape([-1 if d == axis else 1 for d in range(rank)])


def batching_fits(
    o: Op, indices: Any, batching: Sequence[int], operand: Any, operand_batching: Sequence[int]
) -> bool:
    """Whether the batching dims of indices and operand belong together."""
    return (
        unique(batching)
        and within(batching, indices.rank)
        and o.index_vector_dim not in batching
        and all(
            same_dim(indices.dims[a], operand.dims[b])
            for a, b in zip(batching, operand_batching, strict=True)
        )
    )


class TorchIndexSelect(OpDefinition, name="torch_index_select"):
    """result[batch, before, i, after] = operand[batch, before, index[batch, i], after], clamped."""

    pattern = "index"
    operand = operand()
    index = second()
    dim = attribute(int)
    batch_dims = attribute(int, 0)
    C1 = constraint("0 <= dim < rank(operand)", lambda o: 0 <= o.dim < o.operand.rank)
    C2 = constraint(
        "0 <= batch_dims <= dim and batch_dims <= rank(index)",
        lambda o: 0 <= o.batch_dims <= min(o.dim, o.index.rank),
    )
    C3 = constraint("index holds integers", lambda o: o.index.element.is_integer)

    def infer(self, o: Op) -> Sequence[Type]:
        x, index = o.operand.dims, o.index.dims
        dims = (*x[: o.dim], *index[o.batch_dims :], *x[o.dim + 1 :])
        return [o.operand.tensor.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        x, index = arrays
        index = np.clip(index_vectors(index, index.ndim)[..., 0], 0, x.shape[o.dim] - 1)
        batch, before = o.batch_dims, o.dim - o.batch_dims
        rest, after = index.ndim - batch, x.ndim - o.dim - 1
        rank = batch + before + rest + after
        lines: list[Any] = [along(np.arange(x.shape[d]), d, rank) for d in range(o.dim)]
        lines.append(
            index.reshape(*index.shape[:batch], *(1,) * before, *index.shape[batch:], *(1,) * after)
        )
        for d in range(after):
            size = x.shape[o.dim + 1 + d]
            lines.append(along(np.arange(size), rank - after + d, rank))
        return x[tuple(lines)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        x, index = o.operand, o.index
        batch, rest = o.batch_dims, o.index.rank - o.batch_dims
        sizes = [1 if d == o.dim or d < batch else size for d, size in enumerate(x.dims)]
        offsets = (*range(batch, o.dim), *range(o.dim + rest, x.rank - 1 + rest))
        return [
            b(
                "gather", *values, offset_dims=offsets, collapsed_slice_dims=(o.dim,),
                operand_batching_dims=tuple(range(batch)), start_index_map=(o.dim,),
                start_indices_batching_dims=tuple(range(batch)), index_vector_dim=index.rank,
                slice_sizes=tuple(sizes),
            )
        ]  # fmt: skip

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        rest = o.index.rank - o.batch_dims
        operand = list(map(at, range(o.dim)))
        operand.append(space.inner(o.operand.dims[o.dim], IterationKind.GATHER))
        operand += [at(d - 1 + rest) for d in range(o.dim + 1, o.operand.rank)]
        chosen = [at(o.dim + d) for d in range(rest)]
        return space.access(operand, [*identity(o.batch_dims), *chosen])

    def shard(self, o: Op) -> Factors | None:
        rule, rest = FactorBuilder(o), o.index.rank - o.batch_dims
        for d, size in enumerate(o.operand.dims):
            if d == o.dim:  # one part has the element
                rule.add(Factor(size, FactorKind.REDUCTION, placed=True), {0: d})
                for axis in range(rest):
                    taken = Factor(o.type.dims[d + axis])
                    rule.add(taken, {1: o.batch_dims + axis}, {0: d + axis})
            else:
                held = {0: d, 1: d} if d < o.batch_dims else {0: d}
                rule.add(Factor(size), held, {0: d if d < o.dim else d - 1 + rest})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        yield Case("index_select_rows", (counting(4, 3), i32([3, 0, 3])), {"dim": 0})
        yield Case("index_select_columns", (counting(4, 3), i32([[2, 0]])), {"dim": 1})
        yield Case(
            "index_select_batched", (counting(2, 4, 3), i32([[1], [3]])),
            {"dim": 1, "batch_dims": 1},
        )  # fmt: skip


ROOMS = (Gather(), TorchIndexSelect())
