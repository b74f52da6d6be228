"""Collectives in which processes have parts to play: roots, sources and targets, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..factors import FactorBuilder, Factors
from ..graph import Op, Value
from ..groups import CROSS_PARTITION, CROSS_REPLICA, FLATTENED_IDS, Groups, process_groups
from ..processes import Parts
from ..room import ANY, Case, OpDefinition, attribute, constraint, operand, variadic
from ..types import F32, I32, UI32, TensorType, Type
from .clauses import is_tensor, same_dims, unique
from .collectives import (
    GROUPS_FORM,
    GROUPS_UNIQUE,
    ONE,
    Collective,
    Reduction,
    ids_of,
    is_reduction,
    members,
    zero,
    zeros,
)
from .examples import binary_body, counting, i32


def _roots(o: Op) -> bool:
    if not o.has_dynamic_root:
        return True
    last = o.operands[-1].tensor
    return last.element is I32 and same_dims(last.dims, (len(o.operands) - 1,))


class Rooted(Collective):
    """A collective with one member of each group that gives, or that gets, the value."""

    covers = False

    def data(self, o: Op) -> tuple[Value, ...]:
        """The operands without the one that holds the roots."""
        return o.operands[:-1] if o.has_dynamic_root else o.operands

    def received(self, o: Op, sizes: Sequence[int], place: int) -> int:
        """All of it, but for the end of the ring at which it starts."""
        return sizes[place] if place else 0

    def roots(self, o: Op, parts: Parts, place: int, context: Any) -> list[int]:
        """The place of the root in the group, for each of the data operands."""
        count = len(self.data(o))
        if not o.has_dynamic_root:
            return [0] * count
        roots = [int(root) for root in parts[place][-1]]
        for root in roots:
            context["process"].member(o, root, len(parts))
        return roots


class CollectiveBroadcast(Rooted, name="collective_broadcast"):
    """results = the operands of the root of the group; zeros outside of all groups."""

    inputs = variadic()
    replica_groups = attribute(ANY)
    channel_id = attribute(int, 0)
    has_dynamic_root = attribute(bool, False)
    C0 = GROUPS_FORM
    C1 = GROUPS_UNIQUE
    C2 = constraint("0 <= replica_groups", lambda o: all(number >= 0 for number in ids_of(o)))
    C3 = constraint(
        "there is an operand beside the root",
        lambda o: len(o.operands) > bool(o.has_dynamic_root) and all(map(is_tensor, o.operands)),
    )
    C4 = constraint("a dynamic root is an i32 vector, one entry per other operand", _roots)

    def infer(self, o: Op) -> Sequence[Type]:
        return [value.type for value in self.data(o)]

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        if any(0 in group for group in members(o)) or not members(o):
            return values[: len(o.results)]
        return [zero(b, result.tensor) for result in o.results]

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        roots = self.roots(o, parts, place, context)
        return tuple(parts[root][number] for number, root in enumerate(roots))

    def cases(self) -> Iterator[Case]:
        yield Case("collective_broadcast", (counting(3),), ONE)
        dynamic = {**ONE, "has_dynamic_root": True}
        values = (counting(3), counting(2, 2), i32([0, 0]))
        yield Case("collective_broadcast_root", values, dynamic)


class CollectiveReduce(Reduction, Rooted, name="collective_reduce"):
    """results = the folded operands of the group on its root; zeros on the other members."""

    inputs = variadic()
    replica_groups = attribute(ANY)
    channel_id = attribute(int, 0)
    use_global_device_ids = attribute(bool, False)
    has_dynamic_root = attribute(bool, False)
    C0 = GROUPS_FORM
    C1 = GROUPS_UNIQUE
    C2 = constraint("0 <= replica_groups", lambda o: all(number >= 0 for number in ids_of(o)))
    C3 = constraint(
        "there is an operand beside the root, an i32 vector with one entry per other operand",
        lambda o: (
            len(o.operands) > bool(o.has_dynamic_root)
            and all(map(is_tensor, o.operands))
            and _roots(o)
        ),
    )
    C4 = constraint("computation takes and returns scalars of one element type", is_reduction)

    def strategy(self, o: Op) -> str:
        if o.use_global_device_ids and o.channel_id > 0:
            return FLATTENED_IDS
        return CROSS_PARTITION if o.channel_id > 0 else CROSS_REPLICA

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.tensor.with_element(o.regions[0].results[0].element) for v in self.data(o)]

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        if any(0 in group for group in members(o)) or not members(o):
            data = values[: len(o.results)]
            return [b.convert(v, r.element) for v, r in zip(data, o.results, strict=True)]
        return [zero(b, result.tensor) for result in o.results]

    def combine(self, o: Op, parts: Parts, place: int, context: Any) -> Any:
        roots = self.roots(o, parts, place, context)
        totals = self.totals(o, parts, len(roots), context)
        return tuple(
            total if root == place else zeros(result.tensor, total.shape)
            for total, root, result in zip(totals, roots, o.results, strict=True)
        )

    def cases(self) -> Iterator[Case]:
        add = binary_body("add", F32)
        yield Case("collective_reduce", (counting(3),), ONE, regions=add)
        dynamic = {**ONE, "has_dynamic_root": True}
        yield Case("collective_reduce_root", (counting(3), i32([0])), dynamic, regions=add)


def pair_clauses() -> tuple[Any, Any, Any, Any]:
    """The four clauses about source_target_pairs that three operations share."""
    return (
        constraint(
            "source_target_pairs are pairs",
            lambda o: all(isinstance(p, tuple) and len(p) == 2 for p in o.source_target_pairs),
        ),
        constraint(
            "sources are unique", lambda o: unique([pair[0] for pair in o.source_target_pairs])
        ),
        constraint(
            "targets are unique", lambda o: unique([pair[1] for pair in o.source_target_pairs])
        ),
        constraint(
            "0 <= source_target_pairs", lambda o: all(min(p) >= 0 for p in o.source_target_pairs)
        ),
    )


def paired_traffic(pairs: Groups, kinds: Iterable[TensorType], partitions: int) -> float:
    """What a process receives, the mean of all, where tensors of these types go from the first to
    the second of each pair."""
    size = sum(kind.size * kind.dtype.itemsize for kind in kinds)
    return size * sum(source != target for source, target in pairs) / partitions


class CollectivePermute(Collective, name="collective_permute"):
    """result = the operand of the process that is paired with this target; zeros without one."""

    operand = operand()
    source_target_pairs = attribute(tuple)
    channel_id = attribute(int, 0)
    C1, C2, C3, C4 = pair_clauses()
    C5 = constraint("operand is a tensor", lambda o: is_tensor(o.operands[0]))

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def size(self, o: Op) -> int:
        return 2

    def devices(self, o: Op) -> int:
        return max((number for pair in o.source_target_pairs for number in pair), default=0) + 1

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        if (0, 0) in o.source_target_pairs:
            return values
        return [zero(b, o.result.tensor)]

    def partners(self, o: Op, partitions: int) -> Groups:
        return process_groups(self.strategy(o), o.source_target_pairs, 1, partitions)

    def traffic(self, o: Op, partitions: int) -> float:
        return paired_traffic(self.partners(o, partitions), [o.operand.tensor], partitions)

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        process = context["process"]
        pairs = process.pairs(o, self.strategy(o), o.source_target_pairs)
        found = process.permute(o, pairs, arrays)
        if found is not None and (process.number, process.number) not in pairs:
            process.count(o.name, sum(np.asarray(array).nbytes for array in found))
        return (zeros(o.result.tensor, arrays[0].shape),) if found is None else tuple(found)

    def cases(self) -> Iterator[Case]:
        self_loop = {"source_target_pairs": ((0, 0),)}
        yield Case("collective_permute_self", (counting(2, 2),), self_loop)
        yield Case("collective_permute_none", (counting(2, 2),), {"source_target_pairs": ()})


class ProcessNumber(OpDefinition):
    """result = where this process stands in its grid: 0 on one device."""

    pattern = "source"
    opaque = "each process has its own"
    communicates = True

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def infer(self, o: Op) -> Sequence[Type]:
        return [TensorType((), UI32)]

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        return [b.constant(0, o.result.tensor)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        process = context["process"]
        number = process.partition if self.name == "partition_id" else process.replica
        return np.array(number, np.uint32)

    def shard(self, o: Op) -> Factors | None:
        return FactorBuilder(o).build()

    def cases(self) -> Iterator[Case]:
        yield Case(self.name, ())


ROOMS: tuple[OpDefinition, ...] = (
    CollectiveBroadcast(), CollectiveReduce(), CollectivePermute(),
    ProcessNumber("partition_id"), ProcessNumber("replica_id"),
)  # fmt: skip
