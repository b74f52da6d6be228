"""Operations in which several processes take part, each with its own operands.

`evaluate` gets the calling process as `process` (see `hlo/distributed.py`): `process.exchange`
gives the operands of all members of its group, in the group's order. `alone` builds the same on a
grid of one process from ordinary operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..factors import Factor, FactorBuilder, FactorKind, Factors, alike
from ..graph import Op, Value
from ..groups import (
    CROSS_PARTITION,
    CROSS_REPLICA,
    CROSS_REPLICA_AND_PARTITION,
    FLATTENED_IDS,
    Groups,
    are_groups,
    is_mesh,
    listed,
    named_by,
    process_groups,
)
from ..processes import Parts
from ..room import ANY, Case, OpDefinition, attribute, constraint, operand, variadic
from ..types import F32, I32, TensorType, Type
from . import bodies
from .clauses import any_result, divides, is_tensor, same_dim, same_dims, same_element, unique
from .examples import binary_body, counting

ONE = {"replica_groups": ((0,),)}


def members(o: Op) -> Groups:
    """The op's groups as they are written."""
    return listed(o.replica_groups)


def ids_of(o: Op) -> list[int]:
    return [number for group in members(o) for number in group]


def _numbered(o: Op) -> bool:
    value = o.replica_groups
    count = len(ids_of(o)) if is_mesh(value) else sum(map(len, value))
    return all(0 <= number < count for number in ids_of(o))


def share(size: int, count: int, place: int) -> int:
    """Bytes of part number `place` of `size` bytes that `count` members divide among them."""
    return size * (place + 1) // count - size * place // count


def zeros(kind: TensorType, shape: Sequence[int]) -> Any:
    """What a process gets to which nobody sends: zeros; of a quantised type what stands for 0."""
    value = 0
    if kind.element.kind == "quantized":
        value = kind.element.zero_points[0]
    return np.full(shape, value).astype(kind.dtype)


def _bytes(value: Value) -> int:
    return value.tensor.size * value.tensor.dtype.itemsize


def zero(b: Any, kind: TensorType) -> Value:
    return b.constant(zeros(kind, ())[()], kind)


def _ratio(value: Value, result: Value) -> int:
    """How many parts of one are in the other: a gather's results show the size of its group."""
    if not value.tensor.is_static or not result.tensor.is_static:
        return 1
    sizes = sorted((value.tensor.size, result.tensor.size))
    return sizes[1] // sizes[0] if sizes[0] else 1


class Collective(OpDefinition):
    """What operations over replica groups have in common."""

    pattern = "opaque"
    opaque = "other processes hold the other parts"
    effects = True
    communicates = True
    covers = True  # every process is in a group
    since = "1.2"

    def strategy(self, o: Op) -> str:
        """How the process grid is split into groups."""
        if o.channel_id <= 0:
            return CROSS_REPLICA
        if "use_global_device_ids" not in self.attributes:
            return CROSS_PARTITION
        return FLATTENED_IDS if o.use_global_device_ids else CROSS_REPLICA_AND_PARTITION

    def size(self, o: Op) -> int:
        """Members of the largest group, as far as the op alone says."""
        return max(map(len, members(o)), default=1)

    def devices(self, o: Op) -> int:
        named = max((number for group in members(o) for number in group), default=0) + 1
        return max(named, *(_ratio(*pair) for pair in zip(o.operands, o.results, strict=False)), 1)

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        return [
            b.convert(value, result.element)
            for value, result in zip(values, o.results, strict=True)
        ]

    def moved(self, o: Op) -> tuple[int, ...]:
        """The dims along which elements go from one member to another."""
        return ()

    def shard(self, o: Op) -> Factors | None:
        numbers = range(len(o.results))
        same = len({o.operands[n].dims for n in numbers}) == 1
        rule = FactorBuilder(o)
        for together in [numbers] if same else [[n] for n in numbers]:
            first = together[0]
            for d, size in enumerate(o.operands[first].dims):
                held = alike(together, d)
                if d not in self.moved(o):
                    rule.add(Factor(size), held, held)
                    continue
                rule.add(Factor(size, FactorKind.REPLICATE), held)
                rule.add(Factor(o.results[first].dims[d], FactorKind.REPLICATE), {}, held)
        return rule.build()

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        process = context["process"]
        group = process.group(o, self.strategy(o), members(o), self.covers)
        if group is None:
            pairs = zip(o.results, arrays, strict=False)
            return tuple(zeros(result.tensor, array.shape) for result, array in pairs)
        parts = process.exchange(o, group, arrays)
        place = group.index(process.number)
        sizes = [sum(np.asarray(x).nbytes for x in part[: len(o.results)]) for part in parts]
        process.count(o.name, self.received(o, sizes, place))
        return self.combine(o, parts, place, context)

    def partners(self, o: Op, partitions: int) -> Groups:
        strategy = self.strategy(o)
        everyone = tuple(range(named_by(strategy, 1, partitions)))
        return process_groups(strategy, members(o) or (everyone,), 1, partitions)

    def traffic(self, o: Op, partitions: int) -> float:
        size = sum(map(_bytes, o.operands[: len(o.results)]))
        found = (
            self.received(o, [size] * len(group), place)
            for group in self.partners(o, partitions)
            for place in range(len(group))
        )
        return sum(found) / partitions

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        """Bytes that come to member number `place`, whatever route they take, where rings carry
        them; sizes[i] are the bytes of what member i gives."""
        raise NotImplementedError

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        """The results of member number `place`; parts[i] are the operands of member i."""
        raise NotImplementedError


GROUPS_FORM = constraint(
    "replica_groups is a matrix of ids, or the axes of a mesh",
    lambda o: are_groups(o.replica_groups),
)
GROUPS_UNIQUE = constraint("replica_groups are unique", lambda o: unique(ids_of(o)))
GROUPS_BOUND = constraint("0 <= replica_groups < size(replica_groups)", _numbered)
GLOBAL_IDS = constraint(
    "channel_id is positive where use_global_device_ids holds",
    lambda o: not o.use_global_device_ids or o.channel_id > 0,
)


def _resized(o: Op, dimension: int, legal: Any) -> bool:
    """Results are like the operands, but for one dimension, of which legal(old, new) holds."""
    if len(o.results) != len(o.operands):
        return False
    for value, result in zip(o.operands, o.results, strict=True):
        if not is_tensor(result) or result.rank != value.rank:
            return False
        for d, (old, new) in enumerate(zip(value.dims, result.dims, strict=True)):
            if not (legal(old, new) if d == dimension else same_dim(old, new)):
                return False
    return True


def _divides(part: Any, whole: Any) -> bool:
    """part * n = whole for a whole number n, as far as it is known."""
    return divides(part, whole)


def group_size(o: Op) -> int | None:
    """Members of each group; None where the process grid decides."""
    groups = members(o)
    grid_decides = o.definition.strategy(o) == CROSS_REPLICA_AND_PARTITION  # type: ignore[attr-defined]
    return None if grid_decides or not groups else len(groups[0])


def _given(holds: Any) -> Any:
    """A clause about results that may be left out only where the op alone says what they are."""
    return lambda o: holds(o) if o.results or group_size(o) is None else True


def _same_elements(o: Op) -> bool:
    pairs = zip(o.operands, o.results, strict=True)
    return all(same_element(value.element, result.element) for value, result in pairs)


class AllGather(Collective, name="all_gather"):
    """results = the operands of all members of the group, joined along all_gather_dim."""

    inputs = variadic()
    all_gather_dim = attribute(int)
    replica_groups = attribute(ANY)
    channel_id = attribute(int, 0)
    use_global_device_ids = attribute(bool, False)
    C0 = GROUPS_FORM
    C1 = constraint(
        "0 <= all_gather_dim < rank(inputs)",
        lambda o: all(is_tensor(v) and 0 <= o.all_gather_dim < v.rank for v in o.operands),
    )
    C2 = GROUPS_UNIQUE
    C4 = GROUPS_BOUND
    C5 = GLOBAL_IDS
    C6 = constraint(
        "results are like the inputs, but for a multiple of dimension all_gather_dim",
        _given(lambda o: _resized(o, o.all_gather_dim, _divides) and _same_elements(o)),
    )

    def infer(self, o: Op) -> Sequence[Type] | None:
        count = group_size(o)
        if count is None:
            return None
        return [
            v.tensor.with_dims(
                size * count if d == o.all_gather_dim else size for d, size in enumerate(v.dims)
            )
            for v in o.operands
        ]

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        return sum(sizes) - sizes[place]

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        def joined() -> Any:
            columns = zip(*parts, strict=True)
            return tuple(np.concatenate(column, o.all_gather_dim) for column in columns)

        return parts.once(o, joined)

    def moved(self, o: Op) -> tuple[int, ...]:
        return (o.all_gather_dim,)

    def cases(self) -> Iterator[Case]:
        x = counting(2, 3)
        facts = {"all_gather_dim": 1, **ONE}
        kind = TensorType((2, 3), F32)
        yield Case("all_gather_one", (x,), facts, (kind,))
        both = (kind, TensorType((2, 2), I32))
        yield Case("all_gather_two", (x, counting(2, 2, dtype=np.int32)), facts, both)
        everyone = {"all_gather_dim": 0, "replica_groups": ()}
        yield Case("all_gather_everyone", (x,), everyone, (kind,))


def is_reduction(o: Op) -> bool:
    """The region takes and returns scalars of one element type."""
    region = o.regions[0]
    values = (*region.arguments, *region.results)
    return (
        (len(region.arguments), len(region.results)) == (2, 1)
        and all(is_tensor(value) and value.rank == 0 for value in values)
        and len({value.element for value in values}) == 1
    )


def _reduced_elements(o: Op) -> bool:
    element = o.regions[0].results[0].element
    return all(same_element(result.element, element) for result in o.results)


class Reduction(Collective):
    """A collective that folds the operands of the members, in the group's order."""

    regions = ("computation",)

    def totals(self, o: Op, parts: Parts, count: int, context: Any) -> Any:
        """The first `count` operands of all members, folded: the same for each of them."""

        def make() -> Any:
            return self.fold(o, list(zip(*parts, strict=True))[:count], context)

        return make() if o.regions[0].captures() else parts.once(o, make)

    def fold(self, o: Op, columns: Any, context: Any) -> Any:
        combine = bodies.body(o.regions[0], context)
        dtype = o.regions[0].results[0].tensor.dtype
        results = []
        for column in columns:
            total, *rest = (np.asarray(part).astype(dtype, copy=False) for part in column)
            for part in rest:
                (total,) = combine(total, part)
            results.append(np.asarray(total))
        return results

    def flops(self, o: Op) -> float:
        size = sum(value.tensor.size for value in o.operands)
        return (self.size(o) - 1.0) * size * bodies.body_flops(o, o.regions[0])


class AllReduce(Reduction, name="all_reduce"):
    """results = the operands of all members of the group, folded by computation."""

    inputs = variadic()
    replica_groups = attribute(ANY)
    channel_id = attribute(int, 0)
    use_global_device_ids = attribute(bool, False)
    C0 = GROUPS_FORM
    C1 = GROUPS_UNIQUE
    C3 = GROUPS_BOUND
    C4 = GLOBAL_IDS
    C5 = constraint("computation takes and returns scalars of one element type", is_reduction)
    C2 = constraint("inputs are tensors", lambda o: all(map(is_tensor, o.operands)))
    C6 = constraint(
        "results have the dimensions of the inputs",
        any_result(
            lambda o: (
                len(o.results) == len(o.operands)
                and all(
                    is_tensor(r) and same_dims(v.dims, r.dims)
                    for v, r in zip(o.operands, o.results, strict=True)
                )
            )
        ),
    )
    C7 = constraint("results have computation's element type", any_result(_reduced_elements))

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.tensor.with_element(o.regions[0].results[0].element) for v in o.operands]

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        """Sums of all parts but one, then all parts but the own one."""
        return 2 * (sizes[place] - share(sizes[place], len(sizes), place))

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        return tuple(self.totals(o, parts, len(o.operands), context))

    def cases(self) -> Iterator[Case]:
        add = binary_body("add", F32)
        yield Case("all_reduce_one", (counting(4),), ONE, regions=add)
        yield Case("all_reduce_two", (counting(4), counting(2, 2)), ONE, regions=add)


class CrossReplicaSum(Collective, name="cross-replica-sum"):
    """result = the sum of the operand over the replicas of the group; all_reduce with add."""

    operand = operand()
    replica_groups = attribute(ANY)
    C0 = GROUPS_FORM
    C1 = GROUPS_UNIQUE
    C2 = constraint("operand is a tensor", lambda o: is_tensor(o.operands[0]))
    C3 = GROUPS_BOUND

    def strategy(self, o: Op) -> str:
        return CROSS_REPLICA

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        """Sums of all parts but one, then all parts but the own one."""
        return 2 * (sizes[place] - share(sizes[place], len(sizes), place))

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        def summed() -> Any:
            total = parts[0][0]
            for (part,) in parts[1:]:
                total = np.add(total, part, dtype=total.dtype)
            return (np.asarray(total),)

        return parts.once(o, summed)

    def flops(self, o: Op) -> float:
        return (self.size(o) - 1.0) * o.operand.tensor.size

    def cases(self) -> Iterator[Case]:
        yield Case("cross_replica_sum", (counting(4),), ONE)


class ReduceScatter(Reduction, name="reduce_scatter"):
    """result = this member's part of the folded operands, split along scatter_dimension."""

    operand = operand()
    scatter_dimension = attribute(int)
    replica_groups = attribute(ANY)
    channel_id = attribute(int, 0)
    use_global_device_ids = attribute(bool, False)
    C0 = GROUPS_FORM
    C2 = constraint(
        "0 <= scatter_dimension < rank(operand)",
        lambda o: 0 <= o.scatter_dimension < o.operands[0].rank,
    )
    C3 = GROUPS_UNIQUE
    C5 = GROUPS_BOUND
    C6 = GLOBAL_IDS
    C7 = constraint("computation takes and returns scalars of one element type", is_reduction)
    C8 = constraint(
        "result is like the operand, but for a part of dimension scatter_dimension",
        _given(lambda o: _resized(o, o.scatter_dimension, lambda old, new: _divides(new, old))),
    )
    C9 = constraint("result has computation's element type", any_result(_reduced_elements))

    C1 = constraint(
        "the group's size divides dimension scatter_dimension of the operand",
        lambda o: _divides(group_size(o) or 1, o.operands[0].dims[o.scatter_dimension]),
    )

    def infer(self, o: Op) -> Sequence[Type] | None:
        count, dims = group_size(o), list(o.operands[0].dims)
        if count is None or not isinstance(dims[o.scatter_dimension], int):
            return None
        dims[o.scatter_dimension] //= count
        return [TensorType(dims, o.regions[0].results[0].element)]

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        return sizes[place] - share(sizes[place], len(sizes), place)

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        (total,) = self.totals(o, parts, 1, context)
        context["process"].divisible(o, total.shape[o.scatter_dimension], len(parts))
        return (np.split(total, len(parts), o.scatter_dimension)[place],)

    def moved(self, o: Op) -> tuple[int, ...]:
        return (o.scatter_dimension,)

    def cases(self) -> Iterator[Case]:
        facts = {"scatter_dimension": 1, **ONE}
        kind = (TensorType((2, 4), F32),)
        yield Case("reduce_scatter", (counting(2, 4),), facts, kind, binary_body("add", F32))


class AllToAll(Collective, name="all_to_all"):
    """results = part number "my place" of every member's operand, joined along concat_dimension."""

    inputs = variadic()
    split_dimension = attribute(int)
    concat_dimension = attribute(int)
    split_count = attribute(int)
    replica_groups = attribute(ANY)
    channel_id = attribute(int, 0)
    C0 = GROUPS_FORM
    C1 = constraint(
        "0 <= split_dimension < rank(inputs)",
        lambda o: all(is_tensor(v) and 0 <= o.split_dimension < v.rank for v in o.operands),
    )
    C3 = constraint(
        "0 <= concat_dimension < rank(inputs)",
        lambda o: all(0 <= o.concat_dimension < v.rank for v in o.operands),
    )
    C4 = constraint("0 < split_count", lambda o: o.split_count > 0)
    C2 = constraint(
        "split_count divides dimension split_dimension of the inputs",
        lambda o: all(_divides(o.split_count, v.dims[o.split_dimension]) for v in o.operands),
    )
    C5 = GROUPS_UNIQUE
    C7 = GROUPS_BOUND
    C8 = constraint(
        "the groups have split_count members",
        lambda o: all(len(group) == o.split_count for group in members(o)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.tensor.with_dims(_exchanged(o, v.dims)) for v in o.operands]

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        return sizes[place] - share(sizes[place], len(sizes), place)

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        context["process"].group_of(o, o.split_count, len(parts))
        split, joined = o.split_dimension, o.concat_dimension
        return tuple(
            np.concatenate([np.split(x, len(parts), split)[place] for x in column], joined)
            for column in zip(*parts, strict=True)
        )

    def moved(self, o: Op) -> tuple[int, ...]:
        return (o.split_dimension, o.concat_dimension)

    def cases(self) -> Iterator[Case]:
        facts = {"split_dimension": 1, "concat_dimension": 0, "split_count": 1, **ONE}
        yield Case("all_to_all_one", (counting(2, 4),), facts)
        yield Case("all_to_all_two", (counting(2, 4), counting(3, 1)), facts)


def _exchanged(o: Op, dims: Sequence[Any]) -> list[Any]:
    found = list(dims)
    if o.split_dimension != o.concat_dimension:
        old = found[o.split_dimension]
        found[o.split_dimension] = old // o.split_count if isinstance(old, int) else old
        found[o.concat_dimension] = found[o.concat_dimension] * o.split_count
    return found


ROOMS: tuple[OpDefinition, ...] = (
    AllGather(), AllReduce(), CrossReplicaSum(), ReduceScatter(), AllToAll(),
)  # fmt: skip
