"""Communication beside computing: a call starts early, and is waited for late.

The operations of a region are put into one order, the same on all devices, by a walk along a
timeline (`timeline.py`): the next operation is the first of the program's order that waits for no
call. A call that makes its value no larger starts as soon as its operands are there. One that makes
it larger (a gather) starts when it would else be late, and when the link is free, so that what is
gathered does not lie there for long. Nothing is started, or taken before its turn, where more
memory would be needed than the program's own order needs, or than `memory` allows, and the largest
gathered value; but for what is next in any case.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ...hlo.build import Builder, build_region
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.ops.rooted import ProcessNumber
from ...hlo.regions import map_bodies, rename
from ...hlo.types import TensorType
from .timeline import Costs, sends


def overlapped(module: Module, costs: Costs, memory: int | None = None) -> Module:
    """The program of one device, whose calls are `async_start` and `async_done` wherever something
    is computed between the two; the same bits.

    module: at level INLINED. memory: bytes that values may take at a time beside arguments; None:
    what they take in the program's own order, and one gathered value more.
    """

    def change(region: Region) -> Region:
        region = map_bodies(region, lambda _, body: change(body))
        calls = [op for op in region.ops if sends(op)]
        if not calls or any(_is_fixed(op) for op in region.ops):
            return region
        return _OverlapWalk(region, costs, memory).run()

    return module.with_main(change(module.body))


def _is_fixed(op: Op) -> bool:
    """Whether an operation's place among others means something."""
    if op.definition.flow or sends(op) or isinstance(op.definition, ProcessNumber):
        return False
    return op.definition.effects or op.definition.communicates


class _OverlapWalk:
    def __init__(self, region: Region, costs: Costs, memory: int | None) -> None:
        self.region, self.costs = region, costs
        self.place = {op: number for number, op in enumerate(region.ops)}
        self.makes = {value: op for op in region.ops for value in op.results}
        self.users: dict[Op, list[Op]] = {op: [] for op in region.ops}
        self.missing: dict[Op, int] = {}
        self.reads = {op: list(dict.fromkeys(_read(op))) for op in region.ops}
        for op, values in self.reads.items():
            values[:] = [value for value in values if value in self.makes]
            sources = dict.fromkeys(self.makes[value] for value in values)
            self.missing[op] = len(sources)
            for source in sources:
                self.users[source].append(op)
        self.left = dict.fromkeys(self.makes, 0)  # readers to come
        for values in self.reads.values():
            for value in values:
                self.left[value] += 1
        for value in region.results:
            if value in self.left:
                self.left[value] += 1
        self.live = 0
        self.most = self.limit(memory)
        self.live = 0
        self.now = self.link = self.computed = 0.0
        self.before = self.times()
        self.cones = self.found_cones()
        within = {op for cone in self.cones.values() for op in cone}
        self.kept = {
            op for op in within if all(u in within or u in self.cones for u in self.users[op])
        }  # for a gather alone: computed when that starts
        self.ready: list[int] = []
        self.gathers: list[tuple[int, int]] = []  # ready: first reader's place, own place
        self.waiting: list[tuple[float, int]] = []  # end, place
        self.done: set[Op] = set()
        self.order: list[Op] = []

    # What is known beforehand.

    def times(self) -> list[float]:
        """Seconds of computing before each operation in the program's order."""
        found, now = [], 0.0
        for op in self.region.ops:
            found.append(now)
            now += 0.0 if sends(op) else self.costs.seconds(op)
        return [*found, now]

    def found_cones(self) -> dict[Op, list[Op]]:
        """For gathers that need but little computed of what is there from the start: that."""
        free: dict[Op, list[Op]] = {}
        for op in self.region.ops:
            sources = list(dict.fromkeys(self.makes[value] for value in self.reads[op]))
            cheap = op.definition.pattern in ("elementwise", "index", "source") and not op.regions
            if (cheap or _grows(op)) and all(s in free and not sends(s) for s in sources):
                free[op] = list(dict.fromkeys(o for s in sources for o in (*free[s], s)))
        return {op: cone for op, cone in free.items() if _grows(op)}

    def limit(self, memory: int | None) -> int:
        """Bytes that may live at a time."""
        left, most = dict(self.left), 0
        for op in self.region.ops:
            self.live += sum(map(_bytes, op.results))
            most = max(most, self.live)
            for value in self.reads[op]:
                left[value] -= 1
                if not left[value]:
                    self.live -= _bytes(value)
        ahead = max((_made(op) for op in self.region.ops if _grows(op)), default=0)
        return most + ahead if memory is None else memory

    # The walk.

    def run(self) -> Region:
        for op in self.cones:
            first = min((self.place[user] for user in self.users[op]), default=-1)
            heapq.heappush(self.gathers, (first, self.place[op]))
        for op in [op for op, count in self.missing.items() if not count]:
            self.arrived(op)
        while len(self.done) < len(self.region.ops):
            self.land()
            upcoming = self.next()
            self.start(upcoming)
            if upcoming is not None:
                if upcoming not in self.done:  # a gather that has started may have needed it
                    self.take(upcoming)
            elif self.waiting:  # everything else waits for a call
                self.now = max(self.now, self.waiting[0][0])
        return self.built()

    def arrived(self, op: Op) -> None:
        """All that an operation reads is there."""
        number = self.place[op]
        if not sends(op):
            if op not in self.kept:
                heapq.heappush(self.ready, number)
        elif not _grows(op):
            self.issue(op)
        elif op not in self.cones:
            first = min((self.place[user] for user in self.users[op]), default=-1)
            heapq.heappush(self.gathers, (first, number))

    def land(self) -> None:
        """Calls that have ended by now."""
        while self.waiting and self.waiting[0][0] <= self.now:
            _, number = heapq.heappop(self.waiting)
            self.finished(self.region.ops[number])

    def next(self) -> Op | None:
        """What is computed next; taken out of what is ready."""
        skipped: list[int] = []
        found = None
        while self.ready:
            number = heapq.heappop(self.ready)
            op = self.region.ops[number]
            if op in self.done:
                continue
            if self.live + _made(op) <= self.most or not (self.waiting or self.gathers):
                found = op
                break
            skipped.append(number)
        if found is None and skipped and not self.waiting:
            found = self.region.ops[skipped.pop(0)]
        for number in skipped:
            heapq.heappush(self.ready, number)
        return found

    def start(self, upcoming: Op | None) -> None:
        """Gathers that would be late if they began after what is computed next."""
        behind = self.now + (0.0 if upcoming is None else self.costs.seconds(upcoming))
        while self.gathers:
            first, number = self.gathers[0]
            op = self.region.ops[number]
            needed = self.now + max(self.before[max(first, 0)] - self.computed, 0.0)
            late = needed - self.costs.seconds(op) <= behind
            fits = self.live + _made(op) <= self.most
            urgent = upcoming is None and not self.waiting
            if not urgent and not (late and fits and self.link <= behind):
                return
            heapq.heappop(self.gathers)
            self.issue(op)
            if urgent:
                return

    def issue(self, op: Op) -> None:
        for made in self.cones.get(op, ()):
            if made not in self.done:
                self.take(made)
        begin = max(self.now, self.link)
        self.link = begin + self.costs.seconds(op)
        self.order.append(op)
        self.live += _made(op)
        heapq.heappush(self.waiting, (self.link, self.place[op]))

    def take(self, op: Op) -> None:
        spent = self.costs.seconds(op)
        self.order.append(op)
        self.live += _made(op)
        self.now += spent
        self.computed += spent
        self.finished(op)

    def finished(self, op: Op) -> None:
        """The results of an operation can be read."""
        self.done.add(op)
        for value in self.reads[op]:
            self.left[value] -= 1
            if not self.left[value]:
                self.live -= _bytes(value)
        for user in self.users[op]:
            self.missing[user] -= 1
            if not self.missing[user]:
                self.arrived(user)

    # The region.

    def built(self) -> Region:
        """The order as operations, with a wait before the first reader of each call's results."""
        b = Builder(check=False)
        known: dict[Value, Value] = {}
        futures: dict[Op, Value] = {}
        apart = self.parted()
        for op in self.order:
            for source in dict.fromkeys(self.makes[value] for value in self.reads[op]):
                if source in futures:
                    _waited(b, source, futures.pop(source), known)
            if op in apart:
                futures[op] = _begun(b, op, known)
                continue
            operands = [known.get(value, value) for value in op.operands]
            new = op.with_operands(operands, [rename(body, known) for body in op.regions])
            known.update(zip(op.results, new.results, strict=True))
            b.append(new)
        for source, future in futures.items():
            _waited(b, source, future, known)
        results = [known.get(value, value) for value in self.region.results]
        return Region(self.region.arguments, b.ops, results)

    def parted(self) -> set[Op]:
        """Calls between whose start and first reader something is computed."""
        found: set[Op] = set()
        since: dict[Op, float] = {}
        computed = 0.0
        for op in self.order:
            for source in dict.fromkeys(self.makes[value] for value in self.reads[op]):
                if source in since and computed > since.pop(source):
                    found.add(source)
            if sends(op):
                since[op] = computed
            else:
                computed += self.costs.seconds(op)
        found.update(op for op, before in since.items() if computed > before)
        return found


def _begun(b: Builder, op: Op, known: dict[Value, Value]) -> Value:
    operands = [known.get(value, value) for value in op.operands]
    with b.at(op.origin):
        types = [value.type for value in operands]

        def body(inner: Builder, *own: Value) -> list[Value]:
            new = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
            return list(inner.append(new).results)

        return b.op("async_start", operands, {}, [build_region(types, body)]).result


def _waited(b: Builder, op: Op, future: Value, known: dict[Value, Value]) -> None:
    with b.at(op.origin):
        done = b.op("async_done", [future])
    known.update(zip(op.results, done.results, strict=True))


def _read(op: Op) -> Iterable[Value]:
    if not op.regions:
        return op.operands
    return (*op.operands, *(value for region in op.regions for value in region.captures()))


def _grows(op: Op) -> bool:
    return sends(op) and _made(op) > sum(map(_bytes, op.operands))


def _made(op: Op) -> int:
    return sum(map(_bytes, op.results))


def _bytes(value: Value) -> int:
    """Bytes that a value takes; what is cheap to make again inside of its readers takes none."""
    op, kind = value.op, value.type
    if not isinstance(kind, TensorType) or (op is not None and _is_spread(op)):
        return 0
    return kind.bytes


def _is_spread(op: Op) -> bool:
    return op.definition.pattern == "source" or op.name == "broadcast_in_dim"
