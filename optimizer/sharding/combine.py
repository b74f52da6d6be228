"""Small calls of the same devices as one: a call has a price of its own, whatever it carries.

Calls of one kind among the same groups are joined in the order in which their operands are ready,
up to `limit` bytes of operands and results. Sums whose results nothing but elementwise operations
and the program's end wait for (gradients) are joined whenever they fit. Of others, none is joined
that would be waited for longer than without, by more than a call's own price, nor a gather whose
result would lie there before it is read, unless its transfer takes less than that.

An all-reduce and an all-gather take several operands, so that none is copied. Of reduce-scatters
only those are joined whose own transfer takes less than a call: they are laid side by side first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ...hlo.build import Builder
from ...hlo.graph import Module, Op, Region, Value, union_origins
from ...hlo.ops.collectives import group_size
from ...hlo.regions import map_bodies, rename
from .interconnect import Link
from .timeline import Costs, sends

LIMIT = 30 << 20
"""Bytes of one call: what XLA's combiners join, too."""

_OPEN = 8  # calls that the next one may still join, of each kind


def combined(module: Module, costs: Costs, limit: int = LIMIT) -> Module:
    """The program of one device with fewer calls and the same bits; itself if none is joined.

    module: at level INLINED. limit: bytes of a joined call, 0: none is joined.
    """

    def change(region: Region) -> Region:
        return _Combiner(map_bodies(region, lambda _, body: change(body)), costs, limit).run()

    return module.with_main(change(module.body))


@dataclass(frozen=True)
class _CombinableCall:
    """A call that may be joined with others of its kind. ready, needed: seconds of computing before
    its operands are there, and before its results are read; late: only the end waits for them."""

    op: Op
    number: int
    ready: float
    needed: float
    late: bool
    bytes: int
    transfer: float


class _Bucket:
    """Calls that become one."""

    def __init__(self, first: _CombinableCall) -> None:
        self.calls = [first]
        self.mask = 1 << first.number

    @property
    def ready(self) -> float:
        return max(call.ready for call in self.calls)

    @property
    def needed(self) -> float:
        return min(call.needed for call in self.calls)

    @property
    def bytes(self) -> int:
        return sum(call.bytes for call in self.calls)

    @property
    def transfer(self) -> float:
        return sum(call.transfer for call in self.calls)


class _Combiner:
    def __init__(self, region: Region, costs: Costs, limit: int) -> None:
        self.region, self.costs, self.limit = region, costs, limit

    def run(self) -> Region:
        if sum(map(_kind_is_joined, self.region.ops)) < 2:
            return self.region
        calls = self.calls()
        before = self.before(calls)
        kinds: dict[Hashable, list[_Bucket]] = {}
        buckets = [_Bucket(call) for call in calls]
        of = {call.number: bucket for call, bucket in zip(calls, buckets, strict=True)}
        for call in sorted(calls, key=lambda call: (call.ready, call.number)):
            key = _kind(call.op)
            if key is None:
                continue
            there = kinds.setdefault(key, [])
            for bucket in there[-_OPEN:]:
                if self.pays(bucket, call) and _apart(bucket, of[call.number], of, before):
                    bucket.calls.append(call)
                    bucket.mask |= 1 << call.number
                    of[call.number] = bucket
                    break
            else:
                there.append(of[call.number])
        found = [b for b in itertools.chain(*kinds.values()) if len(b.calls) > 1]
        return _rebuilt(self.region, found) if found else self.region

    # What is known of the region.

    def calls(self) -> list[_CombinableCall]:
        """Everything that sends, in order; numbered so."""
        region, costs = self.region, self.costs
        starts: dict[Op, float] = {}
        ready: dict[Value, float] = {}
        now = 0.0
        for op in region.ops:
            starts[op] = now
            spent = 0.0 if sends(op) else costs.seconds(op)
            now += spent
            inputs = max((ready.get(value, 0.0) for value in _read(op)), default=0.0)
            at = now if _waits(op) else inputs
            ready.update((value, at) for value in op.results)
        needed: dict[Value, float] = {}
        late: dict[Value, bool] = {}
        for op in reversed(region.ops):
            first = min((needed.get(value, now) for value in op.results), default=now)
            end = all(late.get(value, True) for value in op.results) and _ends(op)
            for value in _read(op):
                at = first if end or not _waits(op) else starts[op]
                needed[value] = min(needed.get(value, now), at)
                late[value] = late.get(value, True) and end
        found = []
        for op in filter(sends, region.ops):
            found.append(
                _CombinableCall(
                    op, len(found),
                    max((ready.get(value, 0.0) for value in op.operands), default=0.0),
                    min((needed.get(value, now) for value in op.results), default=now),
                    all(late.get(value, True) for value in op.results),
                    sum(max(v.tensor.bytes, r.tensor.bytes)
                        for v, r in zip(op.operands, op.results, strict=False)),
                    op.definition.traffic(op, costs.mesh.devices) * costs.link(op).byte,
                )
            )  # fmt: skip
        return found

    def before(self, calls: Sequence[_CombinableCall]) -> list[int]:
        """For each call, as bits, the calls that it depends on."""
        numbers = {call.op: call.number for call in calls}
        known: dict[Value, int] = {}
        found = [0] * len(calls)
        for op in self.region.ops:
            mask = 0
            for value in _read(op):
                mask |= known.get(value, 0)
            number = numbers.get(op)
            if number is not None:
                found[number] = mask
                mask |= 1 << number
            known.update((value, mask) for value in op.results)
        return found

    def pays(self, bucket: _Bucket, call: _CombinableCall) -> bool:
        first, link = bucket.calls[0], self.costs.link(call.op)
        if bucket.bytes + call.bytes > self.limit:
            return False
        if call.op.name == "reduce_scatter" and not _brief(link, call, first):
            return False
        if first.late and call.late and call.op.name != "all_gather":
            return True
        apart = call.needed != bucket.needed
        if call.op.name == "all_gather" and apart and not _brief(link, call):
            return False
        own = bucket.ready + link.call + bucket.transfer
        behind = max(own, call.ready) + link.call + call.transfer
        joined = max(bucket.ready, call.ready) + link.call + bucket.transfer + call.transfer
        waits = max(own - bucket.needed, behind - call.needed, 0.0)
        return joined - min(bucket.needed, call.needed) <= waits + link.call


def _brief(link: Link, *calls: _CombinableCall) -> bool:
    return all(call.transfer <= link.call for call in calls)


def _kind_is_joined(op: Op) -> bool:
    return op.name in ("all_reduce", "all_gather", "reduce_scatter")


def _kind(op: Op) -> Hashable | None:
    """What calls that are joined have in common; None for one that is joined with none."""
    if not _kind_is_joined(op) or not all(v.tensor.is_static for v in op.operands):
        return None
    facts = (op.name, str(op.replica_groups), op.channel_id > 0, op.use_global_device_ids)
    elements = {value.element for value in (*op.operands, *op.results)}
    if op.name == "all_gather":
        return (*facts, op.all_gather_dim)
    (fold, *more) = op.regions[0].ops
    simple = not more and not fold.regions and fold.operands == op.regions[0].arguments
    if not simple or len(elements) != 1 or op.regions[0].results != fold.results:
        return None
    return (*facts, fold.name, *elements)


def _waits(op: Op) -> bool:
    """Whether an operation takes time of its own: its operands are needed when it starts."""
    return op.definition.pattern not in ("elementwise", "index", "source")


def _ends(op: Op) -> bool:
    """Whether an operation is no more than what makes a part of the results of a sum."""
    return not _waits(op) or op.definition.pattern == "reduce"


def _read(op: Op) -> Iterable[Value]:
    if not op.regions:
        return op.operands
    return (*op.operands, *(value for region in op.regions for value in region.captures()))


def _apart(left: _Bucket, right: _Bucket, of: dict[int, _Bucket], before: list[int]) -> bool:
    """Whether neither depends on the other, through calls that were joined, too."""

    def reaches(start: _Bucket, wanted: _Bucket) -> bool:
        seen: set[int] = {id(start)}
        pending = [start]
        while pending:
            for call in pending.pop().calls:
                mask = before[call.number]
                if mask & wanted.mask:
                    return True
                while mask:
                    number = (mask & -mask).bit_length() - 1
                    mask &= mask - 1
                    bucket = of[number]
                    mask &= ~bucket.mask
                    if len(bucket.calls) > 1 and id(bucket) not in seen:
                        seen.add(id(bucket))
                        pending.append(bucket)
        return False

    return not reaches(left, right) and not reaches(right, left)


def _rebuilt(region: Region, buckets: Sequence[_Bucket]) -> Region:
    """The region with one call for each bucket, in an order near its own."""
    place = {op: number for number, op in enumerate(region.ops)}
    gone = {call.op for bucket in buckets for call in bucket.calls}
    mapping: dict[Value, Value] = {}
    pieces: list[tuple[int, list[Op]]] = [(place[op], [op]) for op in region.ops if op not in gone]
    for bucket in buckets:
        ops = sorted((call.op for call in bucket.calls), key=place.__getitem__)
        made, results = _joined(ops)
        old = [value for op in ops for value in op.results]
        mapping.update(zip(old, results, strict=True))
        pieces.append((place[ops[-1]], made))
    return _in_order(region, pieces, mapping)


def _joined(ops: Sequence[Op]) -> tuple[list[Op], list[Value]]:
    """One call for several, with what stands around it, and its results."""
    first = ops[0]
    b = Builder(union_origins(*(op.origin for op in ops)), check=False)
    if first.name == "reduce_scatter":
        return _side_by_side(b, ops)
    operands = [value for op in ops for value in op.operands]
    types = [value.type for op in ops for value in op.results]
    new = b.op(first.name, operands, first.attributes, first.regions, types)
    return b.ops, list(new.results)


def _side_by_side(b: Builder, ops: Sequence[Op]) -> tuple[list[Op], list[Value]]:
    """Reduce-scatters as one of a matrix with a row for each member."""
    first, count = ops[0], group_size(ops[0])
    assert count is not None
    rows = []
    for op in ops:
        value, d = op.operands[0], op.scatter_dimension
        apart = b.reshape(
            value, (*value.dims[:d], count, value.dims[d] // count, *value.dims[d + 1 :])
        )
        front = b.transpose(apart, (d, *(n for n in range(apart.rank) if n != d)))
        rows.append(b.reshape(front, (count, value.tensor.size // count)))
    width = sum(row.dims[1] for row in rows)
    kind = rows[0].tensor
    wide = b("concatenate", *rows, type=kind.with_dims((count, width)), dimension=1)
    facts = {**first.attributes, "scatter_dimension": 0}
    found = b.op(
        "reduce_scatter", [wide], facts, first.regions, [kind.with_dims((1, width))]
    ).result
    results, start = [], 0
    for op, row in zip(ops, rows, strict=True):
        stop = start + row.dims[1]
        part = b(
            "slice", found, type=kind.with_dims((1, stop - start)), start_indices=(0, start),
            limit_indices=(1, stop), strides=(1, 1),
        )  # fmt: skip
        results.append(b.reshape(part, op.result.dims))
        start = stop
    return b.ops, results


def _in_order(
    region: Region, pieces: Sequence[tuple[int, list[Op]]], mapping: dict[Value, Value]
) -> Region:
    """Pieces in the order of their numbers, as far as values are there before they are read."""
    makes = {v: n for n, (_, ops) in enumerate(pieces) for op in ops for v in op.results}
    makes.update({old: makes[new] for old, new in mapping.items()})
    users: list[list[int]] = [[] for _ in pieces]
    missing = [0] * len(pieces)
    for number, (_, ops) in enumerate(pieces):
        sources = {makes[v] for op in ops for v in _read(op) if v in makes} - {number}
        missing[number] = len(sources)
        for source in sources:
            users[source].append(number)
    ready = [(pieces[n][0], n) for n, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered: list[Op] = []
    while ready:
        _, number = heapq.heappop(ready)
        ordered += pieces[number][1]
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (pieces[user][0], user))
    return renamed(region, ordered, mapping)


def renamed(region: Region, ops: Sequence[Op], mapping: dict[Value, Value]) -> Region:
    """The region with other operations, in which values are replaced."""
    known = dict(mapping)
    replaced: dict[Value, list[Value]] = {}
    for old, value in mapping.items():
        replaced.setdefault(value, []).append(old)
    found: list[Op] = []
    for op in ops:
        operands = [known.get(value, value) for value in op.operands]
        new = op.with_operands(operands, [rename(body, known) for body in op.regions])
        if new is not op:
            for old, value in zip(op.results, new.results, strict=True):
                known.update(dict.fromkeys((old, *replaced.get(old, ())), value))
        found.append(new)
    return Region(region.arguments, found, [known.get(v, v) for v in region.results])
