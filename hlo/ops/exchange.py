"""Who sends which box to whom: the one step that every resharding can be made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..graph import Op, Value
from ..groups import Groups, process_groups
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..types import F32, TensorType
from .clauses import any_result, is_tensor, same_element
from .collectives import Collective, zero, zeros
from .examples import counting


class Transfer(NamedTuple):
    """The box of `sizes` at `source_start` of the source's operand is the box at `target_start` of
    the target's result. Processes as in `replica_groups`; a process may send to itself."""

    source: int
    target: int
    source_start: tuple[int, ...]
    target_start: tuple[int, ...]
    sizes: tuple[int, ...]


def transfers(o: Op) -> list[Transfer]:
    return [Transfer(*entry) for entry in o.transfers]


def _formed(o: Op) -> bool:
    rank = o.operands[0].rank
    return all(
        min(t.source, t.target, *t.source_start, *t.target_start, *t.sizes) >= 0
        and len(t.source_start) == len(t.target_start) == len(t.sizes) == rank
        for t in transfers(o)
    )


def _inside(dims: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> bool:
    return all(s + n <= d for s, n, d in zip(starts, sizes, dims, strict=True))


def _disjoint(o: Op) -> bool:
    """No two boxes that one target receives share an element."""
    by_target: dict[int, list[Transfer]] = {}
    for transfer in transfers(o):
        if 0 not in transfer.sizes:
            by_target.setdefault(transfer.target, []).append(transfer)
    for boxes in by_target.values():
        low = np.array([box.target_start for box in boxes]).reshape(len(boxes), -1)
        high = low + np.array([box.sizes for box in boxes]).reshape(len(boxes), -1)
        shared = (low[:, None] < high[None]) & (low[None] < high[:, None])
        if shared.all(-1).sum() > len(boxes):
            return False
    return True


class Exchange(Collective, name="exchange"):
    """result = the boxes of the processes' operands that transfers say, zeros elsewhere.

    transfers: (source, target, start in the source's operand, start in the target's result, sizes).
    part_of: the collective that it is a part of, by which errors and counters name it.
    """

    since = "1.4"
    uncut = "it stands in programs that are cut already"
    operand = operand()
    transfers = attribute(tuple)
    channel_id = attribute(int, 0)
    part_of = attribute(str, "")
    C1 = constraint("operand is a tensor of fixed dims", lambda o: o.operands[0].tensor.is_static)
    C2 = constraint(
        "transfers are (source, target, source_start, target_start, sizes), none negative, with a "
        "number for each dimension of operand",
        _formed,
    )
    C3 = constraint(
        "boxes lie inside of operand",
        lambda o: all(_inside(o.operands[0].dims, t.source_start, t.sizes) for t in transfers(o)),
    )
    C4 = constraint(
        "result has operand's element type and rank, and fixed dims",
        any_result(
            lambda o: (
                is_tensor(o.results[0])
                and same_element(o.operands[0].element, o.results[0].element)
                and o.results[0].rank == o.operands[0].rank
                and o.results[0].tensor.is_static
            )
        ),
    )
    C5 = constraint(
        "boxes lie inside of result",
        any_result(
            lambda o: all(_inside(o.results[0].dims, t.target_start, t.sizes) for t in transfers(o))
        ),
    )
    C6 = constraint("the boxes of one target are disjoint", _disjoint)

    def shard(self, o: Op) -> None:
        return None

    def devices(self, o: Op) -> int:
        return max((number for t in transfers(o) for number in t[:2]), default=0) + 1

    def partners(self, o: Op, partitions: int) -> Groups:
        pairs = tuple((t.source, t.target) for t in transfers(o))
        return process_groups(self.strategy(o), pairs, 1, partitions)

    def traffic(self, o: Op, partitions: int) -> float:
        boxes = [math.prod(t.sizes) for t in transfers(o)]
        pairs = self.partners(o, partitions)
        copies = len(pairs) // max(len(boxes), 1)
        cells = sum(boxes[n // copies] for n, (one, other) in enumerate(pairs) if one != other)
        return cells * o.operands[0].tensor.dtype.itemsize / partitions

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        kind = o.result.tensor
        found = zero(b, kind)
        for t in transfers(o):
            limits = tuple(s + n for s, n in zip(t.source_start, t.sizes, strict=True))
            steps = (1,) * kind.rank
            box = b(
                "slice", values[0], start_indices=t.source_start, limit_indices=limits,
                strides=steps,
            )  # fmt: skip
            starts = [b.constant(np.int32(start)) for start in t.target_start]
            found = b("dynamic_update_slice", found, box, *starts)
        return [found]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        process, (x,) = context["process"], arrays
        boxes = transfers(o)
        pairs = process.pairs(o, self.strategy(o), tuple((t.source, t.target) for t in boxes))
        copies = len(pairs) // max(len(boxes), 1)  # each replica, or partition, has its own
        outgoing: dict[int, list[Any]] = {}
        incoming: dict[int, list[Transfer]] = {}
        for number, (source, target) in enumerate(pairs):
            t = boxes[number // copies]
            if source == process.number:
                outgoing.setdefault(target, []).append(x[_window(t.source_start, t.sizes)])
            if target == process.number:
                incoming.setdefault(source, []).append(t)
        found = process.transfer(o, outgoing, incoming)
        result = np.array(np.broadcast_to(zeros(o.result.tensor, ()), o.result.dims))
        for source, parts in found.items():
            for t, part in zip(incoming[source], parts, strict=True):
                result[_window(t.target_start, t.sizes)] = part
                if source != process.number:
                    process.count(o.part_of or o.name, part.nbytes)
        return result

    def cases(self) -> Iterator[Case]:
        kind = (TensorType((2, 4), F32),)
        boxes = ((0, 0, (0, 1), (1, 0), (1, 2)), (0, 0, (2, 0), (0, 3), (1, 1)))
        yield Case("exchange", (counting(3, 3),), {"transfers": boxes}, kind)
        yield Case("exchange_nothing", (counting(3, 3),), {"transfers": ()}, kind)


def _window(starts: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))


ROOMS: tuple[OpDefinition, ...] = (Exchange(),)
